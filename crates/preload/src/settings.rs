//! Settings of the preload libraries: the environment variables that they read.
//!
//! | variable | value |
//! |---|---|
//! | `RDMESH_ENDPOINT` | the endpoint's directory; without it, the one that the library was loaded from |
//! | `RDMESH_YIELD` | number of empty polls in a row after which a thread yields; 0 for never |
//!
//! They are read once, when the library is loaded.

use rdmesh_uverbs::session::ENDPOINT_ENV;
use std::env;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// What the environment says.
#[derive(Debug, PartialEq, Eq)]
pub struct Settings {
    endpoint: Option<PathBuf>,
    yield_after: Option<u32>,
}

/// The settings of this program.
pub fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let var = |name| env::var_os(name).filter(|value| !value.is_empty());
        Settings {
            endpoint: var(ENDPOINT_ENV).map(PathBuf::from),
            yield_after: var(YIELD).and_then(|value| value.to_str()?.parse().ok()),
        }
    })
}

impl Settings {
    /// The endpoint's directory, where one is named.
    pub fn endpoint(&self) -> Option<&Path> {
        self.endpoint.as_deref()
    }

    /// Number of empty polls after which a thread yields, where one is given; 0 for never.
    pub fn yield_after(&self) -> Option<u32> {
        self.yield_after
    }
}

const YIELD: &str = "RDMESH_YIELD";
