//! The command that starts an MPI launcher: its environment is that of all ranks.

use crate::control::{JOB_ENV, Job};
use crate::settings::{CACHE_ENV, DEVICE_ENV, THRESHOLD_ENV};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::Command;

/// The command `program` with `arguments`, whose ranks load `libraries` and join `job`.
///
/// The library's settings that are in this process's environment, or among `settings`, hold for all ranks.
pub fn command(
    program: &OsStr,
    arguments: &[OsString],
    libraries: &[PathBuf],
    job: &Job,
    settings: &[(&'static str, OsString)],
) -> Command {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env(JOB_ENV, job.to_string())
        .env(PRELOAD_ENV, preload(libraries, std::env::var_os(PRELOAD_ENV).as_deref()));
    let mut names = vec![PRELOAD_ENV, JOB_ENV];
    names.extend([THRESHOLD_ENV, CACHE_ENV, DEVICE_ENV].iter().filter(|name| std::env::var_os(name).is_some()));
    for (name, value) in settings {
        command.env(name, value);
        names.push(name);
    }
    names.dedup();
    command.env(OPEN_MPI_ENV, handed_on(&names, std::env::var_os(OPEN_MPI_ENV).as_deref()));
    command
}

/// The value of `LD_PRELOAD`: what was there, then the libraries that were not.
fn preload(libraries: &[PathBuf], existing: Option<&OsStr>) -> OsString {
    let existing = existing.unwrap_or_default();
    let before: Vec<&[u8]> = existing.as_bytes().split(|&byte| byte == b':' || byte == b' ').collect();
    let missing =
        libraries.iter().map(|library| library.as_os_str()).filter(|library| !before.contains(&library.as_bytes()));
    let all: Vec<&OsStr> = (!existing.is_empty()).then_some(existing).into_iter().chain(missing).collect();
    all.join(OsStr::new(":"))
}

/// Variables that Open MPI hands on to ranks of other hosts: it hands on none by itself. MPICH's launcher hands on all.
fn handed_on(names: &[&str], existing: Option<&OsStr>) -> OsString {
    let existing = existing.filter(|existing| !existing.is_empty()).map(OsStr::to_owned);
    let all: Vec<OsString> = existing.into_iter().chain(names.iter().map(OsString::from)).collect();
    all.join(OsStr::new(";"))
}

const OPEN_MPI_ENV: &str = "OMPI_MCA_mca_base_env_list";

const PRELOAD_ENV: &str = "LD_PRELOAD";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_before_stays() {
        let libraries = ["/e/librdmesh.so", "/e/librdmesh-mpi.so"].map(PathBuf::from);
        assert_eq!(preload(&libraries, None), "/e/librdmesh.so:/e/librdmesh-mpi.so");
        assert_eq!(preload(&libraries, Some(OsStr::new("/e/librdmesh.so"))), "/e/librdmesh.so:/e/librdmesh-mpi.so");
        assert_eq!(preload(&libraries[1..], Some(OsStr::new("/own.so"))), "/own.so:/e/librdmesh-mpi.so");
        assert_eq!(handed_on(&["LD_PRELOAD", JOB_ENV], None), "LD_PRELOAD;RDMESH_MPI");
        assert_eq!(handed_on(&[JOB_ENV], Some(OsStr::new("OMP_NUM_THREADS"))), "OMP_NUM_THREADS;RDMESH_MPI");
    }
}
