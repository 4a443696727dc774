//! Network namespaces that live in a file, as those of `ip netns` do.

use nix::sched::{CloneFlags, unshare};
use rustix::fs::{CWD, Mode, OFlags, openat, statfs};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;

/// An open network namespace.
#[derive(Debug)]
pub(crate) struct Namespace(OwnedFd);

impl Namespace {
    /// The namespace in `path`, made if there is none.
    pub(crate) fn ensure(path: &Path) -> io::Result<Self> {
        if let Some(existing) = Self::open(path)? {
            return Ok(existing);
        }
        File::create(path)?;
        // A thread of its own, whose namespace ends with it.
        thread::scope(|scope| {
            let make = || -> io::Result<()> {
                unshare(CloneFlags::CLONE_NEWNET)?;
                Ok(mount_bind("/proc/thread-self/ns/net", path)?)
            };
            join(scope.spawn(make).join())
        })?;
        Self::open(path)?.ok_or_else(|| io::Error::other("the new namespace is not in its file"))
    }

    /// Keeps the namespace `given`, which is another's, in `path` too: as long as it is there, it is the same one.
    pub(crate) fn hold(given: &Path, path: &Path) -> io::Result<()> {
        let refused = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, why.to_owned()));
        // Not opened in earnest: what is no namespace may be a device, or a pipe that no process writes to.
        let fd = openat(CWD, given, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        if rustix::fs::fstatfs(&fd)?.f_type != NSFS_MAGIC {
            return refused("it is no namespace");
        }
        let (stat, own) = (rustix::fs::fstat(&fd)?, rustix::fs::fstat(Self::own()?)?);
        if (stat.st_dev, stat.st_ino) == (own.st_dev, own.st_ino) {
            return refused("it is the router's own");
        }
        File::create(path)?;
        mount_bind(format!("/proc/self/fd/{}", fd.as_raw_fd()), path)?;
        let held = Self::open(path)?.ok_or(io::ErrorKind::NotFound)?;
        // Only a network namespace can be entered as one.
        held.run(|| Ok(())).or_else(|_| refused("it is no network namespace"))
    }

    /// The namespace in `path`, if there is one.
    pub(crate) fn open(path: &Path) -> io::Result<Option<Self>> {
        let fd = match openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let is_namespace = rustix::fs::fstatfs(&fd)?.f_type == NSFS_MAGIC;
        Ok(is_namespace.then_some(Self(fd)))
    }

    /// The namespace of the calling thread.
    pub(crate) fn own() -> io::Result<Self> {
        Self::open(Path::new("/proc/thread-self/ns/net"))?.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Removes the namespace in `path` and the file. The kernel's namespace goes when no process is in it and no other file is it.
    pub(crate) fn remove(path: &Path) -> io::Result<()> {
        while statfs(path).is_ok_and(|fs| fs.f_type == NSFS_MAGIC) {
            unmount(path, UnmountFlags::DETACH)?;
        }
        match std::fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    /// Runs `work` on a thread in the namespace.
    pub(crate) fn run<R: Send>(&self, work: impl FnOnce() -> io::Result<R> + Send) -> io::Result<R> {
        thread::scope(|scope| {
            let inside = || {
                self.enter()?;
                work()
            };
            join(scope.spawn(inside).join())
        })
    }

    /// Moves the calling thread into the namespace.
    pub(crate) fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))?)
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Runs `work` on a thread in the network namespace that `file` is, such as `/proc/PID/ns/net`.
pub fn in_namespace<R: Send>(file: &Path, work: impl FnOnce() -> io::Result<R> + Send) -> io::Result<R> {
    Namespace::open(file)?.ok_or(io::ErrorKind::NotFound)?.run(work)
}

/// Identity of a network namespace, by which its processes are found also when its file has gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NamespaceId {
    device: u64,
    inode: u64,
}

impl NamespaceId {
    /// That of the namespace in `file`, such as `/run/netns/NAME` or `/proc/PID/ns/net`.
    pub fn of(file: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(file).ok()?;
        Some(Self { device: metadata.dev(), inode: metadata.ino() })
    }

    /// Its inode number; the next namespace may have it once this one has ended.
    pub fn inode(self) -> u64 {
        self.inode
    }

    /// Processes whose main thread is in the namespace, by number and name: `123 python3`.
    pub fn processes(self) -> Vec<String> {
        let inside = |pid: &u32| Self::of(Path::new(&format!("/proc/{pid}/ns/net"))) == Some(self);
        let described = |pid: u32| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            format!("{pid} {}", name.trim_end())
        };
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(inside).map(described).collect()
    }
}

fn join<R>(result: thread::Result<io::Result<R>>) -> io::Result<R> {
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// `linux/magic.h`.
const NSFS_MAGIC: rustix::fs::FsWord = 0x6e73_6673;
