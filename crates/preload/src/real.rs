//! The libc functions behind the replaced ones.
//!
//! Found with `dlsym(RTLD_NEXT)`, so that other preloaded libraries stay in the chain; looked up at the first call,
//! which may come before this library's own constructor has run.
#![allow(unsafe_code)]
#![allow(non_snake_case, reason = "one function's name is not")]
#![allow(clippy::not_unsafe_ptr_arg_deref, reason = "pointers are the program's own, passed on as they are")]

use libc::{
    DIR, FILE, c_char, c_int, c_long, c_uint, c_ulong, c_void, dirent, mode_t, off_t, pid_t, rlimit, size_t, ssize_t,
};
use libc::{
    clockid_t, iovec, mmsghdr, msghdr, nfds_t, pollfd, sem_t, sembuf, siginfo_t, sigset_t, sockaddr, socklen_t,
};
use libc::{timespec, timeval};
use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// One function, looked up once.
struct Symbol {
    /// With its NUL.
    name: &'static str,
    address: AtomicPtr<c_void>,
}

/// Marks a symbol that no library has.
const MISSING: usize = 1;
/// The oldest symbol version of glibc here: the version of functions to which new programs no longer link.
#[cfg(target_arch = "x86_64")]
const BASE_VERSION: &CStr = c"GLIBC_2.2.5";
#[cfg(not(target_arch = "x86_64"))]
const BASE_VERSION: &CStr = c"GLIBC_2.17";

impl Symbol {
    const fn new(name: &'static str) -> Self {
        Self { name, address: AtomicPtr::new(null_mut()) }
    }

    /// Its address; none where no library has it.
    fn address(&self) -> Option<*mut c_void> {
        let mut address = self.address.load(Ordering::Acquire);
        if address.is_null() {
            address = self.look_up().unwrap_or(MISSING as *mut c_void);
            self.address.store(address, Ordering::Release);
        }
        (address as usize != MISSING).then_some(address)
    }

    #[cold]
    fn look_up(&self) -> Option<*mut c_void> {
        // SAFETY: the names end with a NUL; RTLD_NEXT asks for the definition behind this library's own.
        let found = unsafe {
            let default = libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr().cast());
            if default.is_null() { versioned(self.name.as_ptr().cast()) } else { default }
        };
        (!found.is_null()).then_some(found)
    }
}

/// The definition behind this library's own that only old programs are linked to. musl has no versions, and no function
/// to ask for one.
fn versioned(name: *const c_char) -> *mut c_void {
    type DlVSym = extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;
    // SAFETY: both names end with a NUL; glibc defines the function with this signature.
    unsafe {
        let dlvsym = libc::dlsym(libc::RTLD_DEFAULT, c"dlvsym".as_ptr());
        if dlvsym.is_null() {
            return null_mut();
        }
        std::mem::transmute::<*mut c_void, DlVSym>(dlvsym)(libc::RTLD_NEXT, name, BASE_VERSION.as_ptr())
    }
}

/// Declares functions that call the next definition of the same name. Where there is none, the expression after `else`.
macro_rules! real {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty, else $missing:expr;)*) => {
        #[allow(non_upper_case_globals)]
        mod symbols {
            use super::Symbol;
            $(pub(super) static $name: Symbol = Symbol::new(concat!(stringify!($name), "\0"));)*
        }

        /// Looks every function up, so that later calls, perhaps in a signal handler, need not.
        pub fn look_up_all() {
            $(symbols::$name.address();)*
            ALL_KNOWN.store(true, Ordering::Release);
        }

        $(#[doc = concat!("`", stringify!($name), "`.")]
        pub fn $name($($arg: $ty),*) -> $ret {
            match symbols::$name.address() {
                Some(address) => {
                    // SAFETY: libc defines the function with this signature (variadic ones take their arguments in
                    // the same registers). A thread that is cancelled in it unwinds through frames that must not have
                    // anything to drop: "C-unwind" would stop it where panics abort.
                    let function: extern "C" fn($($ty),*) -> $ret = unsafe { std::mem::transmute(address) };
                    function($($arg),*)
                }
                None => $missing,
            }
        })*
    };
}

real! {
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int, else unsupported();
    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int, else open(path, flags, mode);
    fn openat(at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int, else unsupported();
    fn openat64(at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int, else openat(at, path, flags, mode);
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE, else no_pointer();
    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE, else fopen(path, mode);
    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE, else no_pointer();
    fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE,
        else freopen(path, mode, stream);
    fn openat2(at: c_int, path: *const c_char, how: *const libc::open_how, size: size_t) -> c_int,
        else raw_openat2(at, path, how, size);
    fn opendir(path: *const c_char) -> *mut DIR, else no_pointer();
    fn fdopendir(fd: c_int) -> *mut DIR, else no_pointer();
    fn readdir(directory: *mut DIR) -> *mut dirent, else no_pointer();
    fn readdir64(directory: *mut DIR) -> *mut dirent, else readdir(directory);
    fn rewinddir(directory: *mut DIR) -> (), else ();
    fn seekdir(directory: *mut DIR, to: c_long) -> (), else ();
    fn closedir(directory: *mut DIR) -> c_int, else unsupported();
    fn scandir(path: *const c_char, list: *mut *mut *mut dirent, filter: *const c_void, order: *const c_void) -> c_int,
        else unsupported();
    fn scandir64(path: *const c_char, list: *mut *mut *mut dirent, filter: *const c_void, order: *const c_void) -> c_int,
        else scandir(path, list, filter, order);
    fn scandirat(
        at: c_int, path: *const c_char, list: *mut *mut *mut dirent, filter: *const c_void, order: *const c_void
    ) -> c_int, else unsupported();
    fn scandirat64(
        at: c_int, path: *const c_char, list: *mut *mut *mut dirent, filter: *const c_void, order: *const c_void
    ) -> c_int, else scandirat(at, path, list, filter, order);
    fn nftw(path: *const c_char, callback: *const c_void, descriptors: c_int, flags: c_int) -> c_int,
        else unsupported();
    fn nftw64(path: *const c_char, callback: *const c_void, descriptors: c_int, flags: c_int) -> c_int,
        else nftw(path, callback, descriptors, flags);
    fn ftw(path: *const c_char, callback: *const c_void, descriptors: c_int) -> c_int, else unsupported();
    fn ftw64(path: *const c_char, callback: *const c_void, descriptors: c_int) -> c_int,
        else ftw(path, callback, descriptors);
    fn fts_open(paths: *const *mut c_char, options: c_int, compare: *const c_void) -> *mut c_void, else no_pointer();
    fn fts64_open(paths: *const *mut c_char, options: c_int, compare: *const c_void) -> *mut c_void,
        else fts_open(paths, options, compare);
    fn fts_read(stream: *mut c_void) -> *mut c_void, else no_pointer();
    fn fts64_read(stream: *mut c_void) -> *mut c_void, else fts_read(stream);
    fn fts_children(stream: *mut c_void, options: c_int) -> *mut c_void, else no_pointer();
    fn fts64_children(stream: *mut c_void, options: c_int) -> *mut c_void, else fts_children(stream, options);
    fn fts_close(stream: *mut c_void) -> c_int, else unsupported();
    fn fts64_close(stream: *mut c_void) -> c_int, else fts_close(stream);
    fn glob(pattern: *const c_char, flags: c_int, error: *const c_void, out: *mut c_void) -> c_int, else unsupported();
    fn glob64(pattern: *const c_char, flags: c_int, error: *const c_void, out: *mut c_void) -> c_int,
        else glob(pattern, flags, error, out);
    fn chdir(path: *const c_char) -> c_int, else unsupported();
    fn fchdir(fd: c_int) -> c_int, else unsupported();
    fn getcwd(buffer: *mut c_char, size: size_t) -> *mut c_char, else no_pointer();
    fn __getcwd_chk(buffer: *mut c_char, size: size_t, room: size_t) -> *mut c_char, else getcwd(buffer, size.min(room));
    fn getwd(buffer: *mut c_char) -> *mut c_char, else getcwd(buffer, libc::PATH_MAX as size_t);
    fn get_current_dir_name() -> *mut c_char, else getcwd(null_mut(), 0);
    fn statfs(path: *const c_char, out: *mut libc::statfs) -> c_int, else unsupported();
    fn statfs64(path: *const c_char, out: *mut libc::statfs) -> c_int, else statfs(path, out);
    fn fstatfs(fd: c_int, out: *mut libc::statfs) -> c_int, else unsupported();
    fn fstatfs64(fd: c_int, out: *mut libc::statfs) -> c_int, else fstatfs(fd, out);
    fn statvfs(path: *const c_char, out: *mut libc::statvfs) -> c_int, else unsupported();
    fn statvfs64(path: *const c_char, out: *mut libc::statvfs) -> c_int, else statvfs(path, out);
    fn fstatvfs(fd: c_int, out: *mut libc::statvfs) -> c_int, else unsupported();
    fn fstatvfs64(fd: c_int, out: *mut libc::statvfs) -> c_int, else fstatvfs(fd, out);
    fn getxattr(path: *const c_char, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t,
        else unsupported();
    fn lgetxattr(path: *const c_char, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t,
        else unsupported();
    fn listxattr(path: *const c_char, list: *mut c_char, size: size_t) -> ssize_t, else unsupported();
    fn llistxattr(path: *const c_char, list: *mut c_char, size: size_t) -> ssize_t, else unsupported();
    fn inotify_add_watch(fd: c_int, path: *const c_char, mask: u32) -> c_int, else unsupported();
    fn name_to_handle_at(
        at: c_int, path: *const c_char, handle: *mut c_void, mount: *mut c_int, flags: c_int
    ) -> c_int, else unsupported();
    fn getrlimit(resource: c_uint, out: *mut rlimit) -> c_int, else unsupported();
    fn getrlimit64(resource: c_uint, out: *mut rlimit) -> c_int, else getrlimit(resource, out);
    fn setrlimit(resource: c_uint, new: *const rlimit) -> c_int, else unsupported();
    fn setrlimit64(resource: c_uint, new: *const rlimit) -> c_int, else setrlimit(resource, new);
    fn prlimit(process: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int, else unsupported();
    fn prlimit64(process: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int,
        else prlimit(process, resource, new, old);
    fn access(path: *const c_char, mode: c_int) -> c_int, else unsupported();
    fn euidaccess(path: *const c_char, mode: c_int) -> c_int, else unsupported();
    fn eaccess(path: *const c_char, mode: c_int) -> c_int, else unsupported();
    fn faccessat(at: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int, else unsupported();
    fn readlink(path: *const c_char, buffer: *mut c_char, len: size_t) -> ssize_t, else unsupported();
    fn readlinkat(at: c_int, path: *const c_char, buffer: *mut c_char, len: size_t) -> ssize_t, else unsupported();
    fn __readlink_chk(path: *const c_char, buffer: *mut c_char, len: size_t, room: size_t) -> ssize_t,
        else readlink(path, buffer, len.min(room));
    fn __readlinkat_chk(at: c_int, path: *const c_char, buffer: *mut c_char, len: size_t, room: size_t) -> ssize_t,
        else readlinkat(at, path, buffer, len.min(room));
    fn realpath(path: *const c_char, resolved: *mut c_char) -> *mut c_char, else no_pointer();
    fn statx(at: c_int, path: *const c_char, flags: c_int, mask: c_uint, out: *mut libc::statx) -> c_int, else unsupported();
    fn read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t, else unsupported();
    fn write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t, else unsupported();
    fn bind(fd: c_int, name: *const sockaddr, len: socklen_t) -> c_int, else unsupported();
    fn getsockname(fd: c_int, name: *mut sockaddr, len: *mut socklen_t) -> c_int, else unsupported();
    fn getpeername(fd: c_int, name: *mut sockaddr, len: *mut socklen_t) -> c_int, else unsupported();
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int,
        else unsupported();
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int,
        else unsupported();
    fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int, else unsupported();
    fn madvise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int, else raw_madvise(addr, len, advice);
    fn close(fd: c_int) -> c_int, else unsupported();
    fn close_range(first: c_uint, last: c_uint, flags: c_uint) -> c_int, else unsupported();
    fn dup(fd: c_int) -> c_int, else unsupported();
    fn dup2(fd: c_int, new: c_int) -> c_int, else unsupported();
    fn dup3(fd: c_int, new: c_int, flags: c_int) -> c_int, else unsupported();
    fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int, else unsupported();
    fn fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int, else fcntl(fd, command, argument);
    fn fork() -> c_int, else unsupported();
    fn pkey_mprotect(at: *mut c_void, len: size_t, rights: c_int, key: c_int) -> c_int, else unsupported();
    fn _Fork() -> c_int, else unsupported();
    fn clone(function: extern "C" fn(*mut c_void) -> c_int, stack: *mut c_void, flags: c_int, argument: *mut c_void,
        parent: *mut c_int, area: *mut c_void, child: *mut c_int) -> c_int, else unsupported();
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int, else unsupported();

    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int, else unsupported();
    fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, len: size_t) -> c_int, else poll(fds, count, timeout);
    fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int,
        else unsupported();
    fn __ppoll_chk(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, len: size_t)
        -> c_int, else ppoll(fds, count, timeout, mask);
    fn select(count: c_int, read: *mut c_void, write: *mut c_void, except: *mut c_void, timeout: *mut timeval) -> c_int,
        else unsupported();
    fn pselect(count: c_int, read: *mut c_void, write: *mut c_void, except: *mut c_void, timeout: *const timespec,
        mask: *const sigset_t) -> c_int, else unsupported();
    fn epoll_wait(fd: c_int, events: *mut c_void, most: c_int, timeout: c_int) -> c_int, else unsupported();
    fn epoll_pwait(fd: c_int, events: *mut c_void, most: c_int, timeout: c_int, mask: *const sigset_t) -> c_int,
        else unsupported();
    fn epoll_create(size: c_int) -> c_int, else unsupported();
    fn epoll_create1(flags: c_int) -> c_int, else unsupported();
    fn epoll_pwait2(fd: c_int, events: *mut c_void, most: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int,
        else unsupported();
    fn nanosleep(wanted: *const timespec, left: *mut timespec) -> c_int, else unsupported();
    fn clock_nanosleep(clock: clockid_t, flags: c_int, wanted: *const timespec, left: *mut timespec) -> c_int,
        else libc::ENOSYS;
    fn usleep(microseconds: c_uint) -> c_int, else unsupported();
    fn sleep(seconds: c_uint) -> c_uint, else seconds;
    fn pause() -> c_int, else unsupported();
    fn sigsuspend(mask: *const sigset_t) -> c_int, else unsupported();
    fn sigwaitinfo(set: *const sigset_t, info: *mut siginfo_t) -> c_int, else unsupported();
    fn sigtimedwait(set: *const sigset_t, info: *mut siginfo_t, timeout: *const timespec) -> c_int, else unsupported();
    fn sem_timedwait(semaphore: *mut sem_t, until: *const timespec) -> c_int, else unsupported();
    fn sem_clockwait(semaphore: *mut sem_t, clock: clockid_t, until: *const timespec) -> c_int, else unsupported();
    fn msgrcv(queue: c_int, message: *mut c_void, len: size_t, kind: c_long, flags: c_int) -> ssize_t, else unsupported();
    fn msgsnd(queue: c_int, message: *const c_void, len: size_t, flags: c_int) -> c_int, else unsupported();
    fn semop(set: c_int, operations: *mut sembuf, count: size_t) -> c_int, else unsupported();
    fn semtimedop(set: c_int, operations: *mut sembuf, count: size_t, timeout: *const timespec) -> c_int,
        else unsupported();
    fn __read_chk(fd: c_int, buffer: *mut c_void, len: size_t, room: size_t) -> ssize_t, else read(fd, buffer, len);
    fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t, else unsupported();
    fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t, else unsupported();
    fn pread(fd: c_int, buffer: *mut c_void, len: size_t, at: off_t) -> ssize_t, else unsupported();
    fn pread64(fd: c_int, buffer: *mut c_void, len: size_t, at: off_t) -> ssize_t, else pread(fd, buffer, len, at);
    fn __pread_chk(fd: c_int, buffer: *mut c_void, len: size_t, at: off_t, room: size_t) -> ssize_t,
        else pread(fd, buffer, len, at);
    fn __pread64_chk(fd: c_int, buffer: *mut c_void, len: size_t, at: off_t, room: size_t) -> ssize_t,
        else pread(fd, buffer, len, at);
    fn pwrite(fd: c_int, buffer: *const c_void, len: size_t, at: off_t) -> ssize_t, else unsupported();
    fn pwrite64(fd: c_int, buffer: *const c_void, len: size_t, at: off_t) -> ssize_t, else pwrite(fd, buffer, len, at);
    fn preadv(fd: c_int, parts: *const iovec, count: c_int, at: off_t) -> ssize_t, else unsupported();
    fn preadv2(fd: c_int, parts: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t, else unsupported();
    fn preadv64v2(fd: c_int, parts: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t, else unsupported();
    fn pwritev2(fd: c_int, parts: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t, else unsupported();
    fn pwritev64v2(fd: c_int, parts: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t, else unsupported();
    fn preadv64(fd: c_int, parts: *const iovec, count: c_int, at: off_t) -> ssize_t, else preadv(fd, parts, count, at);
    fn pwritev(fd: c_int, parts: *const iovec, count: c_int, at: off_t) -> ssize_t, else unsupported();
    fn pwritev64(fd: c_int, parts: *const iovec, count: c_int, at: off_t) -> ssize_t, else pwritev(fd, parts, count, at);
    fn recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t, else unsupported();
    fn __recv_chk(fd: c_int, buffer: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t,
        else recv(fd, buffer, len, flags);
    fn recvfrom(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t)
        -> ssize_t, else unsupported();
    fn __recvfrom_chk(fd: c_int, buffer: *mut c_void, len: size_t, room: size_t, flags: c_int, from: *mut sockaddr,
        from_len: *mut socklen_t) -> ssize_t, else recvfrom(fd, buffer, len, flags, from, from_len);
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t, else unsupported();
    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int,
        else unsupported();
    fn send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t, else unsupported();
    fn sendto(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int, to: *const sockaddr, to_len: socklen_t)
        -> ssize_t, else unsupported();
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t, else unsupported();
    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int, else unsupported();
    fn accept(fd: c_int, from: *mut sockaddr, from_len: *mut socklen_t) -> c_int, else unsupported();
    fn accept4(fd: c_int, from: *mut sockaddr, from_len: *mut socklen_t, flags: c_int) -> c_int, else unsupported();
    fn connect(fd: c_int, to: *const sockaddr, to_len: socklen_t) -> c_int, else unsupported();
    fn listen(fd: c_int, backlog: c_int) -> c_int, else unsupported();
    fn shutdown(fd: c_int, how: c_int) -> c_int, else unsupported();
    fn epoll_ctl(epfd: c_int, operation: c_int, fd: c_int, event: *mut c_void) -> c_int, else unsupported();
    fn execve(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int,
        else unsupported();
    fn execv(path: *const c_char, arguments: *const *const c_char) -> c_int, else unsupported();
    fn execvp(file: *const c_char, arguments: *const *const c_char) -> c_int, else unsupported();
    fn execvpe(file: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int,
        else unsupported();
    fn fexecve(fd: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int,
        else unsupported();
    fn posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: *const *const c_char, environment: *const *const c_char) -> c_int, else libc::ENOSYS;
    fn posix_spawnp(pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: *const *const c_char, environment: *const *const c_char) -> c_int, else libc::ENOSYS;
    fn system(command: *const c_char) -> c_int, else unsupported();
    fn syscall(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long,
        else unsupported();
    fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE, else no_pointer();
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE, else no_pointer();
}

/// `fstatat`, straight from the kernel: which libc function does this depends on the version of glibc.
pub fn fstatat(at: c_int, path: *const c_char, out: *mut libc::stat, flags: c_int) -> c_int {
    // SAFETY: the caller's pointers go to the kernel, which checks them; its struct is glibc's.
    unsafe { libc::syscall(libc::SYS_newfstatat, at, path, out, flags) as c_int }
}

/// Registers these three to be called before a fork, and after it in the parent and in the child.
pub fn at_fork(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) {
    type Handler = extern "C" fn();
    type Register = extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;
    let find = |name: &CStr| {
        // SAFETY: the name ends with a NUL.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
    };
    // The function behind `pthread_atfork` in glibc, which in older versions is linked into the program itself. musl has only
    // `pthread_atfork`, which ignores a fourth argument.
    let register = Some(find(c"__register_atfork")).filter(|found| !found.is_null());
    let register = register.unwrap_or_else(|| find(c"pthread_atfork"));
    if !register.is_null() {
        // SAFETY: one of the two, with this signature. The library is never unloaded, so the handlers stay valid.
        unsafe { std::mem::transmute::<*mut c_void, Register>(register)(prepare, parent, child, null_mut()) };
    }
}

fn unsupported<T: From<i8>>() -> T {
    crate::errno::minus_one(rustix::io::Errno::NOSYS)
}

fn no_pointer<T>() -> *mut T {
    crate::errno::set(rustix::io::Errno::NOSYS);
    null_mut()
}

/// `madvise` for a caller that may be an allocator on its way up: before the look-up, which may itself allocate, the
/// system call.
pub fn early_madvise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int {
    if ALL_KNOWN.load(Ordering::Acquire) { madvise(addr, len, advice) } else { raw_madvise(addr, len, advice) }
}

fn raw_openat2(at: c_int, path: *const c_char, how: *const libc::open_how, size: size_t) -> c_int {
    // SAFETY: the program's own call, passed on.
    unsafe { libc::syscall(libc::SYS_openat2, at, path, how, size) as c_int }
}

/// `read`, likewise.
pub fn early_read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t {
    if ALL_KNOWN.load(Ordering::Acquire) {
        return read(fd, buffer, count);
    }
    // SAFETY: the program's own call, passed on.
    unsafe { libc::syscall(libc::SYS_read, fd, buffer, count) as ssize_t }
}

/// Whether [`look_up_all`] has run.
pub(crate) fn all_are_known() -> bool {
    ALL_KNOWN.load(Ordering::Acquire)
}

fn raw_madvise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int {
    // SAFETY: the program's own call, passed on.
    unsafe { libc::syscall(libc::SYS_madvise, addr, len, advice) as c_int }
}

/// Whether [`look_up_all`] has run.
static ALL_KNOWN: AtomicBool = AtomicBool::new(false);
