//! Other programs, and other users of a descriptor: they know no rings, so what they get is on TCP.
#![allow(unsafe_code)]

use super::replace;
use crate::table::{for_each_stream, with_stream};
use libc::{c_char, c_int, c_void, msghdr, pid_t};
use rdmesh_preload::real;
use rdmesh_streams::report::Reason;

type Words = *const *const c_char;

replace! {
    fn execve(path: *const c_char, arguments: Words, environment: Words) -> c_int {
        leave_inherited();
        real::execve(path, arguments, environment)
    }

    fn execv(path: *const c_char, arguments: Words) -> c_int {
        leave_inherited();
        real::execv(path, arguments)
    }

    fn execvp(file: *const c_char, arguments: Words) -> c_int {
        leave_inherited();
        real::execvp(file, arguments)
    }

    fn execvpe(file: *const c_char, arguments: Words, environment: Words) -> c_int {
        leave_inherited();
        real::execvpe(file, arguments, environment)
    }

    fn fexecve(fd: c_int, arguments: Words, environment: Words) -> c_int {
        leave_inherited();
        real::fexecve(fd, arguments, environment)
    }

    fn posix_spawn(
        pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: Words,
        environment: Words,
    ) -> c_int {
        leave_inherited();
        real::posix_spawn(pid, path, actions, attributes, arguments, environment)
    }

    fn posix_spawnp(
        pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: Words,
        environment: Words,
    ) -> c_int {
        leave_inherited();
        real::posix_spawnp(pid, file, actions, attributes, arguments, environment)
    }

    fn system(command: *const c_char) -> c_int {
        leave_inherited();
        real::system(command)
    }

    fn popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE {
        leave_inherited();
        real::popen(command, mode)
    }

    fn fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE {
        // stdio reads and writes by functions that cannot be replaced.
        with_stream(fd, |stream| stream.move_to_tcp(fd, Reason::Stdio));
        real::fdopen(fd, mode)
    }
}

/// Streams that a program executed now would inherit go to TCP.
fn leave_inherited() {
    for_each_stream(|fd, stream| {
        let flags = real::fcntl(fd, libc::F_GETFD, std::ptr::null_mut());
        if flags >= 0 && flags & libc::FD_CLOEXEC == 0 {
            stream.move_to_tcp(fd, Reason::Exec);
        }
    });
}

/// Streams whose descriptors are sent to another process (`SCM_RIGHTS`) go to TCP.
pub(super) fn descriptors_leave(message: *const msghdr) {
    // SAFETY: the program hands a message, whose control messages the macros of libc walk through; numbers may not be aligned.
    unsafe {
        let Some(message) =
            message.as_ref().filter(|message| !message.msg_control.is_null() && message.msg_controllen != 0)
        else {
            return;
        };
        let mut control = libc::CMSG_FIRSTHDR(message);
        while !control.is_null() {
            let header = &*control;
            if (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let len = (header.cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                let fds = libc::CMSG_DATA(control).cast::<c_int>();
                for n in 0..len / size_of::<c_int>() {
                    let fd = fds.add(n).read_unaligned();
                    with_stream(fd, |stream| stream.move_to_tcp(fd, Reason::Passed));
                }
            }
            control = libc::CMSG_NXTHDR(message, control);
        }
    }
}
