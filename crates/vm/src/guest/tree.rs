//! The endpoint's directory in a guest, made as the host's is.

use super::AgentError;
use crate::wire::{Entry, Frames, Kind};
use rustix::net::{RecvFlags, recv};
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

/// A directory in the making, beside its final place.
pub(super) struct Staging {
    path: PathBuf,
    place: PathBuf,
}

impl Staging {
    pub(super) fn new(place: &Path) -> io::Result<Self> {
        let path = place.with_extension("new");
        if let Some(parent) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
        }
        remove(&path)?;
        DirBuilder::new().mode(0o755).create(&path)?;
        Ok(Self { path, place: place.to_owned() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Receives the directory. Returns the virtual machine's token.
    pub(super) fn receive(&self, control: &OwnedFd) -> Result<[u8; 16], AgentError> {
        let (mut frames, mut token, mut buffer) = (Frames::default(), None, vec![0; 64 << 10]);
        loop {
            while let Some((kind, payload)) = frames.take().map_err(|error| AgentError::Protocol(error.to_string()))? {
                match kind {
                    Kind::Welcome => token = payload.try_into().ok(),
                    Kind::Entry => {
                        let entry =
                            Entry::parse(&payload).ok_or_else(|| AgentError::Protocol("malformed entry".into()))?;
                        self.add(&entry).map_err(|source| AgentError::Directory { path: self.path.clone(), source })?;
                    }
                    Kind::Ready => return token.ok_or(AgentError::Refused),
                    _ => {}
                }
            }
            match recv(control, &mut buffer[..], RecvFlags::empty()) {
                Ok((len @ 1.., _)) => frames.push(&buffer[..len]),
                Err(rustix::io::Errno::INTR) => {}
                Ok((0, _)) | Err(_) => return Err(AgentError::Refused),
            }
        }
    }

    fn add(&self, entry: &Entry) -> io::Result<()> {
        let below = Path::new(&entry.path);
        if !below.components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(io::ErrorKind::InvalidFilename.into());
        }
        let path = self.path.join(below);
        if entry.mode & Entry::DIRECTORY != 0 {
            return DirBuilder::new().mode(entry.mode & 0o777).create(path);
        }
        if entry.mode & Entry::LINK != 0 {
            let target = String::from_utf8(entry.bytes.clone()).map_err(|_| io::ErrorKind::InvalidData)?;
            return std::os::unix::fs::symlink(target, path);
        }
        let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(&path)?;
        file.write_all(&entry.bytes)?;
        fs::set_permissions(&path, Permissions::from_mode(entry.mode & 0o777))
    }

    /// Puts it in its place. Programs that use the one before keep the files that they have open.
    pub(super) fn publish(self) -> io::Result<()> {
        let old = self.place.with_extension("old");
        remove(&old)?;
        match fs::rename(&self.place, &old) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::rename(&self.path, &self.place)?;
        remove(&old)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let _ = remove(&self.path);
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}
