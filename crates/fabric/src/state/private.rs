//! Secret files in a state directory: readable by their owner alone, and replaced atomically.

use super::{Owners, StateDir, StateError};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, fsync, openat, renameat, unlinkat};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

impl StateDir {
    /// The text of the file `name`; none where there is no such file. One that is not this user's, or that others may read or
    /// change, is refused.
    pub fn read_private(&self, name: &str) -> Result<Option<String>, StateError> {
        let (path, directory) = (self.path().join(name), self.open_own()?);
        let failed = |source| StateError::Io { path: path.clone(), source };
        // A pipe without a writer does not block this.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&directory, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP | Errno::NXIO) => return Err(StateError::NoFile(path)),
            file => file.map_err(|error| failed(error.into()))?,
        };
        check(&path, file.as_fd())?;
        let mut text = String::new();
        File::from(file).read_to_string(&mut text).map_err(failed)?;
        Ok(Some(text))
    }

    /// Replaces the file `name` by one with `text`, which only this user can read. If the process is killed meanwhile, or the
    /// machine loses its power, the old one or the new one is left. Only one process may do it at a time.
    pub fn write_private(&self, name: &str, text: &str) -> Result<(), StateError> {
        let directory = self.open_own()?;
        let replaced = replace(directory.as_fd(), name, text);
        replaced.map_err(|source| StateError::Io { path: self.path().join(name), source })
    }
}

fn replace(directory: BorrowedFd<'_>, name: &str, text: &str) -> io::Result<()> {
    let new = format!("{name}.new");
    // The file of an unfinished replacement.
    absent_is_fine(unlinkat(directory, &new, AtFlags::empty()))?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(directory, &new, flags, Mode::RUSR | Mode::WUSR)?);
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    let renamed = written.and_then(|()| Ok(renameat(directory, &new, directory, name)?));
    if renamed.is_err() {
        absent_is_fine(unlinkat(directory, &new, AtFlags::empty()))?;
        return renamed;
    }
    // A directory that was opened without the right to read it cannot be synchronised.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(fsync(openat(directory, ".", flags, Mode::empty())?)?)
}

fn check(path: &Path, file: BorrowedFd<'_>) -> Result<(), StateError> {
    let stat = fstat(file).map_err(|error| StateError::Io { path: path.to_owned(), source: error.into() })?;
    let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if !is_regular || !Owners::own().include(stat.st_uid) || stat.st_nlink != 1 {
        return Err(StateError::NoFile(path.to_owned()));
    }
    let mode = Mode::from_raw_mode(stat.st_mode);
    if mode.intersects(Mode::RWXG | Mode::RWXO) {
        return Err(StateError::Exposed { path: path.to_owned(), mode: mode.as_raw_mode() });
    }
    Ok(())
}

fn absent_is_fine(result: Result<(), Errno>) -> Result<(), Errno> {
    if result == Err(Errno::NOENT) { Ok(()) } else { result }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    const NAME: &str = "keys";

    fn state() -> (tempfile::TempDir, StateDir) {
        let temp = tempfile::tempdir().unwrap();
        let state = StateDir::new(temp.path().join("state"));
        state.make(0o755).unwrap();
        (temp, state)
    }

    #[test]
    fn what_is_written_is_read_and_nobody_else_s() {
        let (_temp, state) = state();
        assert_eq!(state.read_private(NAME).unwrap(), None);
        for text in ["one", "another"] {
            state.write_private(NAME, text).unwrap();
            assert_eq!(state.read_private(NAME).unwrap().as_deref(), Some(text));
            let mode = fs::metadata(state.path().join(NAME)).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o600);
        }
        assert_eq!(fs::read_dir(state.path()).unwrap().count(), 1, "nothing else stays");
    }

    #[test]
    fn a_half_written_one_stands_in_nobodys_way_and_a_link_is_not_followed() {
        let (temp, state) = state();
        let precious = temp.path().join("precious");
        fs::write(&precious, "precious").unwrap();
        symlink(&precious, state.path().join("keys.new")).unwrap();
        symlink(&precious, state.path().join(NAME)).unwrap();
        assert!(matches!(state.read_private(NAME), Err(StateError::NoFile(_))));
        state.write_private(NAME, "new").unwrap();
        assert_eq!(state.read_private(NAME).unwrap().as_deref(), Some("new"));
        assert_eq!(fs::read(&precious).unwrap(), b"precious");
    }

    #[test]
    fn one_that_cannot_be_replaced_stays() {
        let (_temp, state) = state();
        state.write_private(NAME, "old").unwrap();
        fs::create_dir(state.path().join("keys.new")).unwrap();
        assert!(matches!(state.write_private(NAME, "new"), Err(StateError::Io { .. })));
        assert_eq!(state.read_private(NAME).unwrap().as_deref(), Some("old"));
    }

    #[test]
    fn one_that_others_can_read_or_own_is_refused() {
        let (_temp, state) = state();
        state.write_private(NAME, "text").unwrap();
        let path = state.path().join(NAME);
        for (mode, is_good) in [(0o640, false), (0o604, false), (0o620, false), (0o400, true), (0o600, true)] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let read = state.read_private(NAME);
            assert_eq!(read.is_ok(), is_good, "{mode:o}");
            if let Err(error) = read {
                assert!(error.to_string().contains("chmod 600"), "{error}");
            }
        }
        if rustix::process::geteuid().is_root() {
            chown(&path, Some(65_533), None).unwrap();
            assert!(matches!(state.read_private(NAME), Err(StateError::NoFile(_))));
        }
    }
}
