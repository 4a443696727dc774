//! Children that do not outlive their parent: a machine monitor its device, an MPI launcher what its ranks need.

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// Starts a child that ends with the calling thread, which is to be the process's main one.
#[allow(unsafe_code)]
pub fn spawn_bound(command: &mut Command) -> io::Result<Child> {
    let parent = getpid();
    // SAFETY: between fork and exec the closure only makes system calls, and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(Signal::TERM))?;
            // The parent may have gone before.
            if getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
        });
    }
    command.spawn()
}
