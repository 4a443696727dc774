//! Settings of the preload libraries: the environment variables that they read.
//!
//! | variable | value |
//! |---|---|
//! | `RDMESH_ENDPOINT` | the endpoint's directory; without it, the one that the library was loaded from |
//! | `RDMESH_EXCLUDE` | programs that the libraries leave alone: names of files, with commas between them |
//! | `RDMESH_LINGER` | milliseconds for which devices outlive the program |
//! | `RDMESH_SPIN` | microseconds for which a thread looks for data before it sleeps; 0 for never |
//! | `RDMESH_UPGRADE` | writes after which a connection moves to shared memory; `never` |
//! | `RDMESH_YIELD` | number of empty polls in a row after which a thread yields; 0 for never |
//!
//! They are read once, when the library is loaded.
#![allow(unsafe_code)]

use rdmesh_uverbs::session::ENDPOINT_ENV;
use rustix::fs::CWD;
use std::env;
use std::ffi::{CStr, OsStr, OsString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

/// Settings from the environment.
#[derive(Debug, PartialEq, Eq)]
pub struct Settings {
    endpoint: Option<PathBuf>,
    is_excluded: bool,
    linger: Option<Duration>,
    spin_microseconds: u32,
    upgrade_after: Option<u32>,
    yield_after: Option<u32>,
}

/// The settings of this program.
pub fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let var = |name| env::var_os(name).filter(|value| !value.is_empty());
        let number = |value: Option<OsString>| value.and_then(|value| value.to_str()?.parse().ok());
        Settings {
            endpoint: var(ENDPOINT_ENV).map(PathBuf::from),
            is_excluded: var(EXCLUDE).is_some_and(|names| program_names().iter().any(|own| lists(&names, own))),
            linger: var(LINGER).and_then(|value| value.to_str()?.parse().ok()).map(Duration::from_millis),
            spin_microseconds: number(var(SPIN)).unwrap_or(DEFAULT_SPIN),
            upgrade_after: match var(UPGRADE) {
                Some(never) if never == "never" => None,
                other => Some(number(other).unwrap_or(DEFAULT_UPGRADE)),
            },
            yield_after: var(YIELD).and_then(|value| value.to_str()?.parse().ok()),
        }
    })
}

impl Settings {
    /// The endpoint's directory, where one is named.
    pub fn endpoint(&self) -> Option<&Path> {
        self.endpoint.as_deref()
    }

    /// Whether this program is to be left alone.
    pub fn is_excluded(&self) -> bool {
        self.is_excluded
    }

    /// Time for which devices outlive the program, where it is to ask for that.
    pub fn linger(&self) -> Option<Duration> {
        self.linger
    }

    /// Microseconds for which a thread that waits for a connection's data looks for it before it sleeps; 0 for never.
    pub fn spin_microseconds(&self) -> u32 {
        self.spin_microseconds
    }

    /// Writes after which a TCP connection moves to shared memory, if its other end can; none where none ever does.
    pub fn upgrade_after(&self) -> Option<u32> {
        self.upgrade_after
    }

    /// Number of empty polls after which a thread yields, where one is given; 0 for never.
    pub fn yield_after(&self) -> Option<u32> {
        self.yield_after
    }
}

/// As long as a sleep costs.
const DEFAULT_SPIN: u32 = 20;
/// Short connections stay on TCP: a ring costs some 100 microseconds to set up.
const DEFAULT_UPGRADE: u32 = 3;

/// The names of this program's file: that by which it was executed, which is a script's own, and the one without links.
fn program_names() -> Vec<Vec<u8>> {
    let real = rustix::fs::readlinkat(CWD, "/proc/self/exe", Vec::new()).map(|path| path.into_bytes()).ok();
    let name = |path: Vec<u8>| Path::new(OsStr::from_bytes(&path)).file_name().map(|name| name.as_bytes().to_vec());
    [executed_path(), real].into_iter().flatten().filter_map(name).collect()
}

/// The path that this program was executed by.
fn executed_path() -> Option<Vec<u8>> {
    // SAFETY: asks for an address.
    let path = std::ptr::with_exposed_provenance::<c_char>(unsafe { libc::getauxval(libc::AT_EXECFN) } as usize);
    // SAFETY: if it is there the kernel has put a C string at it, which stays.
    (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) }.to_bytes().to_vec())
}

/// Whether `name` is in a list with commas.
fn lists(names: &OsStr, name: &[u8]) -> bool {
    names.as_bytes().split(|&byte| byte == b',').any(|listed| listed.trim_ascii() == name)
}

const EXCLUDE: &str = "RDMESH_EXCLUDE";
const LINGER: &str = "RDMESH_LINGER";
const SPIN: &str = "RDMESH_SPIN";
const UPGRADE: &str = "RDMESH_UPGRADE";
const YIELD: &str = "RDMESH_YIELD";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_listed_with_commas() {
        let lists = |names: &str, name: &str| lists(OsStr::new(names), name.as_bytes());
        for names in ["redis", "nginx,redis", "redis, nginx", " redis ,"] {
            assert!(lists(names, "redis"), "{names}");
        }
        for names in ["", ",", "redis-server", "nginx", "re,dis", "bin/redis"] {
            assert!(!lists(names, "redis"), "{names}");
        }
    }

    #[test]
    fn a_program_has_the_name_of_its_file() {
        let own = env::current_exe().unwrap();
        let names = program_names();
        assert!(names.iter().any(|name| name == own.file_name().unwrap().as_bytes()), "{names:?}");
        assert!(names.iter().all(|name| !name.contains(&b'/')));
    }
}
