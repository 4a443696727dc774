//! `rdmesh accel`: starts a program whose TCP connections are accelerated.
//!
//! It needs no router: programs of one user in one network namespace find each other by a table in shared memory. Between users,
//! namespaces and hosts somebody must say who may talk to whom, and that is a router's to say.

use crate::args::AccelOptions;
use crate::failure::Failure;
use crate::program;
use rdmesh_router::endpoint::{Library, SOCKETS_LIBRARY_NAME};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Executes the program: its process id, its signals and its exit status are this process's own.
pub(crate) fn accel(options: AccelOptions) -> Result<(), Failure> {
    let [program, arguments @ ..] = options.command.as_slice() else { return Ok(()) };
    let (search, library) = (std::env::var_os("PATH"), Library::find_other(SOCKETS_LIBRARY_NAME)?);
    if let Some((obstacle, file)) = program::obstacle(program.as_ref(), search.as_deref(), &library) {
        eprintln!("rdmesh: {}", obstacle.warning(&file, "stays on TCP"));
    }
    let mut command = Command::new(program);
    if let Some(spin) = options.spin {
        command.env("RDMESH_SPIN", spin.to_string());
    }
    let error = command.args(arguments).env("LD_PRELOAD", preload(library, std::env::var_os("LD_PRELOAD"))).exec();
    // As a shell does.
    let code = if error.kind() == ErrorKind::NotFound { 127 } else { 126 };
    Err(Failure::with_code(format!("{}: {error}", Path::new(program).display()), code))
}

/// The value of `LD_PRELOAD`: the library for sockets, then the previous value.
fn preload(library: PathBuf, existing: Option<OsString>) -> OsString {
    let mut value = library.into_os_string();
    if let Some(existing) = existing.filter(|existing| !existing.is_empty()) {
        value.push(":");
        value.push(existing);
    }
    value
}

/// Refuses acceleration where an endpoint's directory has no library for sockets: the router has found none.
pub(crate) fn require_library(directory: &Path) -> Result<(), Failure> {
    if directory.join(SOCKETS_LIBRARY_NAME).exists() {
        return Ok(());
    }
    Err(Failure::new(format!(
        "the router has no {SOCKETS_LIBRARY_NAME}: install it beside librdmesh.so, and start the router again"
    )))
}
