//! The libc functions behind the replaced ones.
//!
//! Found with `dlsym(RTLD_NEXT)`, so that other preloaded libraries stay in the chain; looked up at the first call,
//! which may come before this library's own constructor has run.
#![allow(unsafe_code)]

use libc::{DIR, FILE, c_char, c_int, c_uint, c_ulong, c_void, dirent, mode_t, size_t, ssize_t};
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
/// The oldest symbol version of glibc here: what a function that new programs no longer link to still has.
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
            if default.is_null() {
                libc::dlvsym(libc::RTLD_NEXT, self.name.as_ptr().cast(), BASE_VERSION.as_ptr())
            } else {
                default
            }
        };
        (!found.is_null()).then_some(found)
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
        pub(crate) fn look_up_all() {
            $(symbols::$name.address();)*
            ALL_KNOWN.store(true, Ordering::Release);
        }

        $(pub(crate) fn $name($($arg: $ty),*) -> $ret {
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
    fn opendir(path: *const c_char) -> *mut DIR, else no_pointer();
    fn scandir(path: *const c_char, list: *mut *mut *mut dirent, filter: *const c_void, order: *const c_void) -> c_int,
        else unsupported();
    fn scandir64(path: *const c_char, list: *mut *mut *mut dirent, filter: *const c_void, order: *const c_void) -> c_int,
        else scandir(path, list, filter, order);
    fn access(path: *const c_char, mode: c_int) -> c_int, else unsupported();
    fn euidaccess(path: *const c_char, mode: c_int) -> c_int, else unsupported();
    fn eaccess(path: *const c_char, mode: c_int) -> c_int, else unsupported();
    fn faccessat(at: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int, else unsupported();
    fn readlink(path: *const c_char, buffer: *mut c_char, len: size_t) -> ssize_t, else unsupported();
    fn readlinkat(at: c_int, path: *const c_char, buffer: *mut c_char, len: size_t) -> ssize_t, else unsupported();
    fn realpath(path: *const c_char, resolved: *mut c_char) -> *mut c_char, else no_pointer();
    fn statx(at: c_int, path: *const c_char, flags: c_int, mask: c_uint, out: *mut libc::statx) -> c_int, else unsupported();
    fn write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t, else unsupported();
    fn recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t, else unsupported();
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
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int, else unsupported();
}

/// `fstatat`, straight from the kernel: which libc function does this depends on the version of glibc.
pub(crate) fn fstatat(at: c_int, path: *const c_char, out: *mut libc::stat, flags: c_int) -> c_int {
    // SAFETY: the caller's pointers go to the kernel, which checks them; its struct is glibc's.
    unsafe { libc::syscall(libc::SYS_newfstatat, at, path, out, flags) as c_int }
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
pub(crate) fn early_madvise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int {
    if ALL_KNOWN.load(Ordering::Acquire) { madvise(addr, len, advice) } else { raw_madvise(addr, len, advice) }
}

fn raw_madvise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int {
    // SAFETY: the program's own call, passed on.
    unsafe { libc::syscall(libc::SYS_madvise, addr, len, advice) as c_int }
}

/// Whether [`look_up_all`] has run.
static ALL_KNOWN: AtomicBool = AtomicBool::new(false);
