//! Control groups (version 2) of programs on endpoints.

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// A control group, by its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlGroup {
    path: PathBuf,
    /// Whether it was made for an endpoint, and goes with it.
    is_own: bool,
}

impl ControlGroup {
    /// A new group in `path`.
    pub fn make(path: PathBuf) -> io::Result<Self> {
        let group = Self { path, is_own: true };
        match fs::create_dir(&group.path) {
            // What a router that was killed has left.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                group.dissolve()?;
                fs::create_dir(&group.path)?;
            }
            other => other?,
        }
        Ok(group)
    }

    /// A group that was made for an endpoint by a router that has died.
    pub fn left(path: PathBuf) -> Self {
        Self { path, is_own: true }
    }

    /// The place for a group called `name` inside that of process `pid`, so that what limits the process goes on to limit it.
    pub fn place(pid: i32, name: &str) -> io::Result<PathBuf> {
        Ok(Self::mount_point()?.join(of_process(pid)?).join(name))
    }

    /// A group that another program has made and will remove, such as a container's.
    pub fn given(path: &Path) -> io::Result<Self> {
        let (path, root) = (path.canonicalize()?, Self::mount_point()?);
        if !path.starts_with(&root) || path == root {
            let text = format!("{} is no control group below {}", path.display(), root.display());
            return Err(io::Error::new(ErrorKind::InvalidInput, text));
        }
        Ok(Self { path, is_own: false })
    }

    /// Absolute path of its directory, below the mount point of the hierarchy.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves process `pid` into it.
    pub fn take_in(&self, pid: i32) -> io::Result<()> {
        fs::write(self.path.join("cgroup.procs"), pid.to_string())
    }

    pub(super) fn is_own(&self) -> bool {
        self.is_own
    }

    pub(super) fn open(&self) -> io::Result<OwnedFd> {
        Ok(openat(CWD, &self.path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Kills the processes in it, and removes it if there are none left: whether it is gone.
    pub fn kill(&self) -> io::Result<bool> {
        match remove(&self.path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) => {
                fs::write(self.path.join("cgroup.kill"), "1").or_else(|_| kill_each(&self.path))?;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Kills the processes in it, waits until they have ended, and removes it.
    fn dissolve(&self) -> io::Result<()> {
        let start = Instant::now();
        while !self.kill()? {
            if start.elapsed() > PATIENCE {
                return Err(io::Error::new(ErrorKind::TimedOut, "killed processes have not ended"));
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Where the hierarchy of version 2 is mounted.
    pub(super) fn mount_point() -> io::Result<PathBuf> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let found = mounts.lines().find_map(|line| {
            let (place, kind) = line.split_once(" - ")?;
            kind.starts_with("cgroup2 ").then(|| place.split(' ').nth(4))?.map(PathBuf::from)
        });
        found.ok_or_else(|| io::Error::new(ErrorKind::NotFound, "no hierarchy of version 2 is mounted"))
    }
}

/// Removes a group with those below it.
fn remove(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path())?;
        }
    }
    fs::remove_dir(path)
}

/// For kernels without `cgroup.kill` (before Linux 5.14).
fn kill_each(path: &Path) -> io::Result<()> {
    for line in fs::read_to_string(path.join("cgroup.procs"))?.lines() {
        if let Some(pid) = line.parse().ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
    Ok(())
}

/// Path of the group of a process below the hierarchy's root.
fn of_process(pid: i32) -> io::Result<PathBuf> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let path = path.ok_or_else(|| io::Error::new(ErrorKind::NotFound, "the process is in none of version 2"))?;
    // Of a process outside the part of the hierarchy that the router sees.
    if path.starts_with("..") {
        return Err(io::Error::new(ErrorKind::NotFound, "the process is outside the router's control groups"));
    }
    Ok(PathBuf::from(path))
}

/// Time in which killed processes end.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(1);
