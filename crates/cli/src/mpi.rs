//! `rdmesh mpi`: starts an MPI launcher whose ranks send large messages by RDMA.
//!
//! It stays the launcher's parent: the ranks find each other through it, and tell it at their end which way their messages went.

use crate::args::MpiOptions;
use crate::failure::Failure;
use rdmesh_mpi::launcher::Launcher;
use rdmesh_mpi::{CACHE_ENV, THRESHOLD_ENV, launch};
use rdmesh_router::endpoint::{Library, MPI_LIBRARY_NAME};
use rdmesh_vm::host::spawn_bound;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Runs the launcher to its end; its exit status is this program's own.
pub(crate) fn mpi(options: &MpiOptions) -> Result<ExitCode, Failure> {
    let [program, arguments @ ..] = options.command.as_slice() else { return Err(Failure::new("no command")) };
    let launcher = Launcher::start()?;
    let given = [(THRESHOLD_ENV, options.threshold), (CACHE_ENV, options.cache)];
    let settings: Vec<_> =
        given.into_iter().filter_map(|(name, value)| Some((name, value?.to_string().into()))).collect();
    let mut command = launch::command(program, arguments, &[library()?], launcher.job(), &settings);
    let started = spawn_bound(&mut command);
    let mut child =
        started.map_err(|error| Failure::with_code(format!("{}: {error}", Path::new(program).display()), 127))?;
    let status = child.wait()?;
    if !options.quiet {
        eprintln!("rdmesh mpi: {}", launcher.report());
    }
    Ok(match (status.code(), status.signal()) {
        (Some(code), _) => ExitCode::from(code as u8),
        (None, signal) => ExitCode::from(128 + signal.unwrap_or(0) as u8),
    })
}

/// The library: the endpoint's, whose path is the same on all endpoints; else the installed one.
fn library() -> Result<PathBuf, Failure> {
    let of_endpoint = std::env::var_os("RDMESH_ENDPOINT").map(|directory| Path::new(&directory).join(MPI_LIBRARY_NAME));
    match of_endpoint.filter(|library| library.is_file()) {
        Some(library) => Ok(library),
        None => Ok(Library::find_other(MPI_LIBRARY_NAME)?),
    }
}
