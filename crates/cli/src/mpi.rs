//! `rdmesh mpi`: starts an MPI launcher whose ranks send large messages by RDMA.
//!
//! It stays the launcher's parent: the ranks find each other through it, and tell it at their end which way their messages went.

use crate::args::MpiOptions;
use crate::failure::Failure;
use rdmesh_mpi::control::JOB_ENV;
use rdmesh_mpi::launcher::Launcher;
use rdmesh_mpi::{CACHE_ENV, THRESHOLD_ENV};
use rdmesh_router::endpoint::{Library, MPI_LIBRARY_NAME};
use rdmesh_vm::host::spawn_bound;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Runs the launcher to its end; its exit status is this program's own.
pub(crate) fn mpi(options: &MpiOptions) -> Result<ExitCode, Failure> {
    let [program, arguments @ ..] = options.command.as_slice() else { return Err(Failure::new("no command")) };
    let library = library()?;
    let launcher = Launcher::start()?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env(JOB_ENV, launcher.job().to_string())
        .env("LD_PRELOAD", preload(&library, std::env::var_os("LD_PRELOAD").as_deref()));
    let mut names = vec!["LD_PRELOAD", JOB_ENV];
    for (name, value) in [(THRESHOLD_ENV, options.threshold), (CACHE_ENV, options.cache)] {
        if let Some(value) = value {
            command.env(name, value.to_string());
            names.push(name);
        }
    }
    command.env(OPEN_MPI_ENV, handed_on(&names, std::env::var_os(OPEN_MPI_ENV).as_deref()));
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

/// The value of `LD_PRELOAD`: what was there, then the library for MPI.
fn preload(library: &Path, existing: Option<&OsStr>) -> OsString {
    let existing = existing.filter(|existing| !existing.is_empty()).map(OsStr::to_owned);
    let all: Vec<OsString> = existing.into_iter().chain([library.as_os_str().to_owned()]).collect();
    all.join(OsStr::new(":"))
}

/// Variables that Open MPI hands on to ranks of other hosts: it hands on none by itself. MPICH's launcher hands on all.
fn handed_on(names: &[&str], existing: Option<&OsStr>) -> OsString {
    let existing = existing.filter(|existing| !existing.is_empty()).map(OsStr::to_owned);
    let all: Vec<OsString> = existing.into_iter().chain(names.iter().map(OsString::from)).collect();
    all.join(OsStr::new(";"))
}

const OPEN_MPI_ENV: &str = "OMPI_MCA_mca_base_env_list";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_before_stays() {
        let library = Path::new("/e/librdmesh-mpi.so");
        assert_eq!(preload(library, None), "/e/librdmesh-mpi.so");
        assert_eq!(preload(library, Some(OsStr::new("/e/librdmesh.so"))), "/e/librdmesh.so:/e/librdmesh-mpi.so");
        assert_eq!(handed_on(&["LD_PRELOAD", JOB_ENV], None), "LD_PRELOAD;RDMESH_MPI");
        assert_eq!(handed_on(&[JOB_ENV], Some(OsStr::new("OMP_NUM_THREADS"))), "OMP_NUM_THREADS;RDMESH_MPI");
    }
}
