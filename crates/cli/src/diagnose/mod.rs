//! `rdmesh diagnose`: one archive with what a bug report needs, and nothing secret.
//!
//! * [`parts`]: its contents; [`secrets`]: removal of passwords and the like from them.

mod parts;
mod secrets;

use crate::args::DiagnoseOptions;
use crate::failure::Failure;
use crate::show::print_line;
use flate2::Compression;
use flate2::write::GzEncoder;
use parts::Part;
use rdmesh_fabric::{Client, StateDir};
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Writes the archive.
pub(crate) fn diagnose(options: &DiagnoseOptions, client: &Client, state: &StateDir) -> Result<(), Failure> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let name = format!("rdmesh-diagnosis-{}-{now}", host.replace('/', "-"));
    let path = options.output.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.tar.gz")));
    let failed = |error: io::Error| Failure::new(format!("{}: {error}; choose another --output", path.display()));
    let file = create(&path).map_err(failed)?;
    let parts = parts::collect(client, state);
    write(file, &name, now, &parts).map_err(failed)?;
    print_line(format!(
        "Written to {}: {} files. Names, addresses and counters of this host are in it; keys, passwords and contents of memory are not.\n\
         Look through it before you send it: tar xzf {0}",
        path.display(),
        parts.len()
    ))
}

/// A new file, which only its owner reads.
fn create(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    OpenOptions::new().write(true).create_new(true).mode(0o600).custom_flags(flags).open(path)
}

/// Writes the parts as files of a folder of this name.
fn write(file: File, folder: &str, time: u64, parts: &[Part]) -> io::Result<()> {
    let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
    for Part { name, text } in parts {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(time);
        archive.append_data(&mut header, format!("{folder}/{name}"), text.as_bytes())?;
    }
    archive.into_inner()?.finish()?.sync_all()
}
