//! Programs: the process at the other end of a connection, as the kernel reports it.

use crate::budget::Share;
use crate::io::open_namespace;
use crate::memory::{ArenaId, ProcessMemory, WaitAllowance};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::cell::Cell;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// The process that connected, and what is known of its memory.
pub(super) struct Program {
    process: Arc<Process>,
    /// Its memory, once some of it has been registered: all regions share the descriptor.
    memory: Option<ProcessMemory>,
    /// The arena that it registered memory of last.
    arena: Cell<Option<ArenaId>>,
}

/// A process, as the kernel named it when it connected.
pub(super) struct Process {
    /// Its number as the router sees it; 0 where the router's PID namespace does not have it.
    pub(super) pid: i32,
    pub(super) uid: u32,
    /// Shows whether `pid` still is that process.
    pidfd: Option<OwnedFd>,
}

impl Program {
    pub(super) fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self { process: Arc::new(Process::of(socket)?), memory: None, arena: Cell::default() })
    }

    /// The process, which lookups on other threads share.
    pub(super) fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// The process's memory, once it has been opened; an error where it is another process since.
    pub(super) fn memory(&self) -> Option<io::Result<ProcessMemory>> {
        let memory = self.memory.as_ref()?;
        Some(self.process.is_unchanged().map(|()| memory.clone()))
    }

    /// The arena that it registered memory of last.
    pub(super) fn arena(&self) -> Option<ArenaId> {
        self.arena.get()
    }

    /// It has registered memory of `arena`.
    pub(super) fn set_arena(&self, arena: ArenaId) {
        self.arena.set(Some(arena));
    }

    /// The process's memory has been opened.
    pub(super) fn set_memory(&mut self, memory: ProcessMemory) {
        self.memory = Some(memory);
    }
}

impl Process {
    pub(super) fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        // struct ucred: pid, uid, gid.
        let [pid, uid, _] = socket_option(socket, libc::SO_PEERCRED)?;
        // Kernels before 6.5 do not tell it of the socket. Then it is that of the number, a moment after the connection.
        let pidfd = peer_pidfd(socket).or_else(|| pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok());
        Ok(Self { pid, uid: uid.cast_unsigned(), pidfd })
    }

    /// Opens its memory, of this process and no other, as long as it has no more privileges than when it connected. The
    /// descriptor is charged to `share`. The tenant controls how long this takes: opening waits for the lock of its address
    /// space.
    pub(super) fn open_memory(&self, allowance: &WaitAllowance, share: &Share) -> io::Result<ProcessMemory> {
        let memory = ProcessMemory::open(self.pid, allowance, share)?;
        // Asked after the opening: if the process lives now, then its number was not another's a moment ago. And a
        // program that gains rights (set-user-ID, capabilities) belongs to root here: what an ordinary user may not
        // trace, it may not register. Had it gained them and lost them since the opening, that memory is gone.
        self.is_unchanged()?;
        Ok(memory)
    }

    /// Whether it still is that process, with the rights that it had.
    pub(super) fn is_unchanged(&self) -> io::Result<()> {
        if self.has_exited() {
            return Err(io::Errno::SRCH);
        }
        let owner = rustix::fs::stat(format!("/proc/{}", self.pid))?.st_uid;
        if owner == self.uid { Ok(()) } else { Err(io::Errno::ACCESS) }
    }

    /// The network namespace that the process is in.
    pub(super) fn network_namespace(&self) -> io::Result<OwnedFd> {
        let namespace = open_namespace(&format!("/proc/{}/ns/net", self.pid))?;
        // As for its memory.
        self.is_unchanged().map(|()| namespace)
    }

    /// Whether it is this process, in which the relays of endpoints are.
    pub(super) fn is_router(&self) -> bool {
        self.pid == rustix::process::getpid().as_raw_nonzero().get()
    }

    /// The process's name, which it chose itself: any bytes but zero.
    pub(super) fn comm(&self) -> String {
        let bytes = std::fs::read(format!("/proc/{}/comm", self.pid)).unwrap_or_default();
        let name = String::from_utf8_lossy(bytes.strip_suffix(b"\n").unwrap_or(&bytes));
        rdmesh_fabric::printable(&name).into_owned()
    }

    /// The process id as `asker` sees it; none where the process has exited, or is in a namespace that `asker` does not see.
    pub(super) fn number_for(&self, asker: &Self) -> Option<u32> {
        if self.has_exited() {
            return None;
        }
        let namespace = |pid: &str| rustix::fs::stat(format!("/proc/{pid}/ns/pid")).ok().map(|stat| stat.st_ino);
        let seen_from = namespace(&asker.pid.to_string())?;
        if namespace("self") == Some(seen_from) {
            return u32::try_from(self.pid).ok().filter(|pid| *pid != 0);
        }
        if namespace(&self.pid.to_string()) != Some(seen_from) {
            return None;
        }
        // The last number is that in the innermost namespace (`proc_pid_status(5)`).
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_ascii_whitespace().next_back()?.parse().ok()
    }

    fn has_exited(&self) -> bool {
        // Without one, any process could be behind the number.
        let Some(pidfd) = &self.pidfd else { return true };
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
    }
}

#[allow(unsafe_code)]
fn peer_pidfd(socket: BorrowedFd<'_>) -> Option<OwnedFd> {
    const SO_PEERPIDFD: i32 = 77;
    let [fd] = socket_option(socket, SO_PEERPIDFD).ok()?;
    // SAFETY: the kernel has just made this descriptor for us, and no other code knows of it.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Bytes of kernel memory for data that was sent over a socket and that the other side has not read.
#[allow(unsafe_code)]
pub(super) fn unread(socket: BorrowedFd<'_>) -> io::Result<i32> {
    let mut bytes = 0;
    // SAFETY: SIOCOUTQ, which has this number, stores an integer.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result == 0 { Ok(bytes) } else { Err(io::Errno::INVAL) }
}

/// Reads a socket option that is exactly `N` integers.
#[allow(unsafe_code)]
fn socket_option<const N: usize>(socket: BorrowedFd<'_>, name: i32) -> io::Result<[i32; N]> {
    let mut value = [0; N];
    let mut len = size_of_val(&value) as libc::socklen_t;
    let (to, to_len) = (value.as_mut_ptr().cast(), &raw mut len);
    // SAFETY: `to` is valid for writing `len` bytes, which may have any value, and `to_len` for a length.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, to, to_len) };
    match result {
        0 if len as usize == size_of_val(&value) => Ok(value),
        0 => Err(io::Errno::INVAL),
        _ => Err(io::Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(io::Errno::INVAL)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::{Budget, Limits, Resource};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::os::fd::AsFd;

    fn share() -> Share {
        Budget::new(Limits::of_this_process()).share(u32::MAX)
    }

    #[test]
    fn a_process_is_opened_once() {
        let (a, _b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let (mut program, share) = (Program::of(a.as_fd()).unwrap(), share());
        assert!(program.memory().is_none());
        program.set_memory(program.process().open_memory(&WaitAllowance::default(), &share).unwrap());
        let regions: Vec<_> = (0..10).map(|_| program.memory().unwrap().unwrap()).collect();
        assert_eq!(share.held(Resource::Descriptors), 1);
        drop((program, regions));
        assert_eq!(share.held(Resource::Descriptors), 0);
    }

    #[test]
    fn the_kernel_names_the_peer() {
        let (a, _b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let program = Program::of(a.as_fd()).unwrap();
        let process = program.process();
        assert_eq!(process.pid, std::process::id().cast_signed());
        assert_eq!(process.uid, rustix::process::getuid().as_raw());
        assert!(!process.has_exited());
        assert!(process.open_memory(&WaitAllowance::default(), &share()).is_ok());
        assert!(process.network_namespace().is_ok());
        assert!(!process.comm().is_empty());
    }

    #[test]
    fn a_name_is_no_command_to_a_terminal() {
        let named = |name: &std::ffi::CStr| {
            rustix::thread::set_name(name).unwrap();
            let pid = rustix::thread::gettid().as_raw_nonzero().get();
            Process { pid, uid: 0, pidfd: None }.comm()
        };
        assert_eq!(named(c"\x1b[2J\x1b]0;x\x07\n"), "\\x1b[2J\\x1b]0;x\\x07\\x0a");
        assert_eq!(named(c"a\n"), "a\\x0a");
        assert_eq!(named(c"\xff\xe2\x80\xaea"), "\u{fffd}\\u{202e}a");
    }

    #[test]
    fn a_process_that_became_another_is_not_reached() {
        let (a, _b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let process = Process::of(a.as_fd()).unwrap();
        let changed = Process { uid: process.uid + 1, ..process };
        assert_eq!(changed.open_memory(&WaitAllowance::default(), &share()).err(), Some(io::Errno::ACCESS));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id().cast_signed();
        let pidfd = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).ok();
        child.wait().unwrap();
        // The number is another's now.
        let pid = std::process::id().cast_signed();
        let reused = Process { pid, pidfd, uid: changed.uid - 1 };
        assert_eq!(reused.open_memory(&WaitAllowance::default(), &share()).err(), Some(io::Errno::SRCH));
        assert_eq!(reused.network_namespace().err(), Some(io::Errno::SRCH));
    }
}
