//! An endpoint's directory, as frames for the agent.

use crate::wire::{ENTRY_PART, Entry};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The frames of everything in `directory` but sockets.
pub(super) fn frames(directory: &Path) -> io::Result<Vec<Vec<u8>>> {
    let mut frames = Vec::new();
    walk(directory, "", &mut frames)?;
    Ok(frames)
}

fn walk(directory: &Path, below: &str, frames: &mut Vec<Vec<u8>>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_str().ok_or(io::ErrorKind::InvalidFilename)?;
        let path = if below.is_empty() { name.to_owned() } else { format!("{below}/{name}") };
        let (kind, mode) = (entry.file_type()?, entry.metadata()?.permissions().mode() & 0o777);
        if kind.is_dir() {
            frames.push(Entry { mode: mode | Entry::DIRECTORY, path: path.clone(), bytes: Vec::new() }.to_frame());
            walk(&entry.path(), &path, frames)?;
        } else if kind.is_symlink() {
            let bytes = fs::read_link(entry.path())?.as_os_str().as_bytes().to_vec();
            frames.push(Entry { mode: mode | Entry::LINK, path, bytes }.to_frame());
        } else if kind.is_file() {
            let bytes = fs::read(entry.path())?;
            frames.push(Entry { mode, path: path.clone(), bytes: Vec::new() }.to_frame());
            let part = |part: &[u8]| Entry { mode, path: path.clone(), bytes: part.to_vec() }.to_frame();
            frames.extend(bytes.chunks(ENTRY_PART).map(part));
        }
    }
    Ok(())
}
