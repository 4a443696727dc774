//! Errors, as engines show them.

use rdmesh_fabric::{ClientError, StateError};
use serde_json::json;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Error of a command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{name}: {reason}")]
    Variable { name: &'static str, reason: String },
    #[error("{}: {reason}", .file.display())]
    Bundle { file: PathBuf, reason: String },
    #[error("the engine names no --pid-file, by which the container's network namespace is found")]
    NoPidFile,
    #[error("{}: {source}", .file.display())]
    File { file: PathBuf, source: io::Error },
    #[error("{program}: {source}; RDMESH_RUNC names another runtime to use")]
    Runc { program: String, source: io::Error },
    #[error("the router has no librdmesh-sockets.so: install it beside librdmesh.so, and start the router again")]
    NoSockets,
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Router(#[from] ClientError),
}

impl Failure {
    /// Writes it where the engine looks: to `log`, a line of JSON, and to standard error.
    pub(crate) fn report(&self, log: Option<&Path>) {
        let text = format!("rdmesh: {self}");
        if let Some(Ok(mut log)) = log.map(|log| OpenOptions::new().append(true).create(true).open(log)) {
            // It is on standard error, too.
            let _ = writeln!(log, "{}", json!({ "level": "error", "msg": text }));
        }
        eprintln!("{text}");
    }
}
