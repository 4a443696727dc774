//! Ownership checks of a state directory: only its user and root may be able to change it.
//!
//! Files in the directory are executed (the preload library), trusted (the API's socket) and overwritten (the log). In a
//! world-writable folder, such as /tmp, another user can make the directory first.

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawMode, Stat, fstat, openat, statat};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Reason why a state directory is not used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A link can be made by others, and changed at any time.
    #[error("{} is a symbolic link, not a directory: {REMEDY}", .0.display())]
    Link(PathBuf),
    /// Something else has the name.
    #[error("{} is no directory: {REMEDY}", .0.display())]
    NoDirectory(PathBuf),
    /// Another user's.
    #[error("{} belongs to user {owner}, who could make you run anything through it: {}", .path.display(), remedy(*.owner, *.user))]
    Foreign {
        /// The directory, or one above it.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
    /// Others may change its contents.
    #[error("{} may be written by other users (mode {mode:o}): `chmod go-w` it, or {REMEDY}", .path.display())]
    Writable {
        /// The directory, or one above it.
        path: PathBuf,
        /// Its permissions.
        mode: RawMode,
    },
    /// A file in the directory is not of the expected kind.
    #[error("{} is not a regular file of this user's own: remove it, or {REMEDY}", .0.display())]
    NoFile(PathBuf),
    /// A file of secrets in the directory that others could have read.
    #[error(
        "{} may be read or changed by other users (mode {mode:o}): `chmod 600` it, and if somebody may have read it give the hosts \
         new keys (`rdmesh peer rotate HOST --key FILE`)", .path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: RawMode,
    },
    /// A socket in the directory would have an address that is too long.
    #[error(
        "{} is too long for a state directory, which has room for {longest} bytes because sockets lie in it: \
         use a shorter --state-dir", .path.display()
    )]
    TooLong {
        /// The directory.
        path: PathBuf,
        /// The maximum length.
        longest: usize,
    },
    /// The kernel refused.
    #[error("{}: {source}; {REMEDY}", .path.display())]
    Io {
        /// The path concerned.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl StateError {
    /// Whether there simply is no such directory.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// Permitted owners of trusted files: this process's user and, for clients of a router, root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owners {
    pub(crate) user: u32,
    pub(crate) or_root: bool,
}

impl Owners {
    /// This process's user, for a router's files.
    pub(crate) fn own() -> Self {
        Self { user: rustix::process::geteuid().as_raw(), or_root: false }
    }

    /// This process's user and root, for clients of a router.
    pub(crate) fn own_or_root() -> Self {
        Self { or_root: true, ..Self::own() }
    }

    /// Whether `uid` is one of them.
    pub(crate) fn include(self, uid: u32) -> bool {
        uid == self.user || (self.or_root && uid == ROOT)
    }
}

/// Opens the directory `path` if it is one of `owners`' and others can change neither it nor the way to it.
pub(crate) fn open_directory(path: &Path, owners: Owners) -> Result<OwnedFd, StateError> {
    let failed = |error: Errno| StateError::Io { path: path.to_owned(), source: error.into() };
    let named = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
    check_kind(path, &named)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat(CWD, path, flags, Mode::empty()).map_err(failed)?;
    // The check applies to the opened file, not to its path.
    let stat = fstat(&directory).map_err(failed)?;
    if !owners.include(stat.st_uid) {
        return Err(StateError::Foreign { path: path.to_owned(), owner: stat.st_uid, user: owners.user });
    }
    let mode = Mode::from_raw_mode(stat.st_mode);
    if mode.intersects(Mode::WGRP | Mode::WOTH) {
        return Err(StateError::Writable { path: path.to_owned(), mode: mode.as_raw_mode() });
    }
    let above = path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
    above.into_iter().try_for_each(|above| check_above(above, owners))?;
    Ok(directory)
}

/// Checks a directory on the path: a user who may rename its entries controls the end of the path.
fn check_above(path: &Path, owners: Owners) -> Result<(), StateError> {
    let stat = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|error| StateError::Io { path: path.to_owned(), source: error.into() })?;
    check_kind(path, &stat)?;
    let mode = Mode::from_raw_mode(stat.st_mode);
    if stat.st_uid != ROOT && !owners.include(stat.st_uid) && !is_outside(stat.st_uid) {
        return Err(StateError::Foreign { path: path.to_owned(), owner: stat.st_uid, user: owners.user });
    }
    // In a sticky directory users cannot rename each other's files.
    if mode.intersects(Mode::WGRP | Mode::WOTH) && !mode.contains(Mode::SVTX) {
        return Err(StateError::Writable { path: path.to_owned(), mode: mode.as_raw_mode() });
    }
    Ok(())
}

fn check_kind(path: &Path, stat: &Stat) -> Result<(), StateError> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Ok(()),
        FileType::Symlink => Err(StateError::Link(path.to_owned())),
        _ => Err(StateError::NoDirectory(path.to_owned())),
    }
}

/// Whether `uid` is the overflow id, for users outside this user namespace, who own the directories near the root there.
fn is_outside(uid: u32) -> bool {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let overflow = || read("/proc/sys/kernel/overflowuid").trim().parse() == Ok(uid);
    let all_are_mapped = || read("/proc/self/uid_map").split_whitespace().eq(["0", "0", "4294967295"]);
    overflow() && !all_are_mapped()
}

fn remedy(owner: u32, user: u32) -> String {
    if user == ROOT {
        format!("run the command as that user (`sudo -u '#{owner}' rdmesh …`), or {REMEDY}")
    } else {
        REMEDY.to_owned()
    }
}

const ROOT: u32 = 0;
const REMEDY: &str = "name a directory that is yours alone with --state-dir or $RDMESH_STATE";

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::os::unix::net::UnixListener;

    const STRANGER: u32 = 65_533;

    fn open(path: &Path) -> Result<OwnedFd, StateError> {
        open_directory(path, Owners::own())
    }

    fn directory_with_mode(path: &Path, mode: u32) {
        fs::create_dir_all(path).unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_directory_of_ones_own_is_taken() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("state");
        for mode in [0o700, 0o755] {
            directory_with_mode(&path, mode);
            open(&path).unwrap();
        }
        assert!(open(&temp.path().join("missing")).unwrap_err().is_missing());
    }

    #[test]
    fn what_is_no_directory_or_a_link_to_one_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let (target, link, socket) = (temp.path().join("target"), temp.path().join("link"), temp.path().join("socket"));
        directory_with_mode(&target, 0o700);
        symlink(&target, &link).unwrap();
        let _listener = UnixListener::bind(&socket).unwrap();
        assert!(matches!(open(&link), Err(StateError::Link(_))));
        assert!(matches!(open(&socket), Err(StateError::NoDirectory(_))));
        assert!(matches!(open(&link.join("state")), Err(StateError::Io { .. } | StateError::Link(_))));
    }

    #[test]
    fn what_others_may_write_is_refused_here_and_above() {
        let temp = tempfile::tempdir().unwrap();
        let (above, path) = (temp.path().join("above"), temp.path().join("above/state"));
        directory_with_mode(&above, 0o755);
        for mode in [0o770, 0o702, 0o1777] {
            directory_with_mode(&path, mode);
            assert!(matches!(open(&path), Err(StateError::Writable { path: named, .. }) if named == path), "{mode:o}");
        }
        directory_with_mode(&path, 0o700);
        directory_with_mode(&above, 0o777);
        assert!(matches!(open(&path), Err(StateError::Writable { path: named, .. }) if named == above));
        directory_with_mode(&above, 0o1777);
        open(&path).unwrap();
    }

    #[test]
    fn another_users_is_refused_here_and_above() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: giving a directory away needs root");
        }
        let temp = tempfile::tempdir().unwrap();
        let (above, path) = (temp.path().join("above"), temp.path().join("above/state"));
        directory_with_mode(&above, 0o755);
        directory_with_mode(&path, 0o700);
        let is_refused = |named: &Path| matches!(open(&path), Err(StateError::Foreign { path, owner: STRANGER, .. }) if path == *named);
        chown(&path, Some(STRANGER), None).unwrap();
        assert!(is_refused(&path));
        chown(&path, Some(0), None).unwrap();
        chown(&above, Some(STRANGER), None).unwrap();
        assert!(is_refused(&above));
        let as_stranger = Owners { user: STRANGER, or_root: false };
        assert!(matches!(open_directory(&path, as_stranger), Err(StateError::Foreign { owner: 0, .. })));
        open_directory(&path, Owners { or_root: true, ..as_stranger }).unwrap();
    }
}
