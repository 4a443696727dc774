//! Functions that walk a tree: `nftw`, `ftw` and `glob`. libc opens the files that they visit by internal calls, which are not
//! replaced: the functions get the real path of the endpoint's tree, and the paths that they report are translated back.
#![allow(unsafe_code)]

use super::replace;
use super::route::fail;
use crate::place::{self, Last, Place, view};
use crate::real;
use libc::{AT_FDCWD, c_char, c_int, c_void};
use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::ptr::null;

const FTW_PHYS: c_int = 1;
const GLOB_ALTDIRFUNC: c_int = 1 << 9;

/// A walk of `nftw` or `ftw` that is under way on this thread.
struct Walk {
    callback: *const c_void,
    /// The path that the program named, without slashes at its end, and the length of its translation.
    named: Vec<u8>,
    real_len: usize,
}

/// Position of `nftw` in the tree (`struct FTW`).
#[repr(C)]
struct Ftw {
    base: c_int,
    level: c_int,
}

thread_local! {
    static WALK: Cell<*const Walk> = const { Cell::new(null()) };
}

/// Calls `real` with a path and a callback: the program's own, or their translations.
fn walk(
    path: *const c_char,
    last: Last,
    callback: *const c_void,
    translated: *const c_void,
    real: impl FnOnce(*const c_char, *const c_void) -> c_int,
) -> c_int {
    if path.is_null() {
        return real(path, callback);
    }
    // As libc does it first.
    // SAFETY: a C string of the caller's.
    let named = without_slashes(unsafe { CStr::from_ptr(path) });
    let place = match place::of(AT_FDCWD, named.as_ptr(), last) {
        Place::Elsewhere | Place::Above => return real(path, callback),
        Place::File(path) | Place::Counter(path) | Place::Outside(path) => Ok(path),
        Place::Device(device) => Ok(place::stand_in(device)),
        Place::Failed(errno) => Err(errno),
    };
    let real_path = match place {
        Ok(path) => without_slashes(&path),
        Err(errno) => return fail(errno),
    };
    let walk = Walk { callback, named: named.into_bytes(), real_len: real_path.as_bytes().len() };
    view::may_move();
    let outer = WALK.replace(&raw const walk);
    let result = real(real_path.as_ptr(), translated);
    WALK.set(outer);
    view::moved();
    result
}

fn without_slashes(path: &CStr) -> CString {
    let path = path.to_bytes();
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(path.len().min(1), |last| last + 1);
    CString::new(&path[..end]).unwrap_or_default()
}

/// The walk of libc's callback, the program's path for `path`, and the position for the program.
fn visit<'a>(path: *const c_char, about: *const libc::stat) -> (&'a Walk, CString, libc::stat) {
    // SAFETY: only called while a walk of this thread is under way, whose frame is below; libc's own string and struct.
    let (walk, path, mut told) = unsafe { (&*WALK.get(), CStr::from_ptr(path).to_bytes(), *about) };
    let shown = [&walk.named, path.get(walk.real_len..).unwrap_or_default()].concat();
    let shown = CString::new(shown).unwrap_or_default();
    if let Place::Device(device) = place::of(AT_FDCWD, shown.as_ptr(), Last::Keep) {
        super::stats::stat_device(device, &mut told);
    }
    (walk, shown, told)
}

extern "C-unwind" fn visit_nftw(path: *const c_char, about: *const libc::stat, kind: c_int, at: *mut Ftw) -> c_int {
    type Callback = extern "C-unwind" fn(*const c_char, *const libc::stat, c_int, *mut Ftw) -> c_int;
    let (walk, shown, told) = visit(path, about);
    // SAFETY: libc's struct.
    let at = unsafe { &*at };
    let (real, named) = (walk.real_len as c_int, &walk.named);
    let own_base = || named.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash as c_int + 1);
    let base = if at.base > real { at.base - real + named.len() as c_int } else { own_base() };
    // SAFETY: what the program gave nftw.
    let callback: Callback = unsafe { std::mem::transmute(walk.callback) };
    callback(shown.as_ptr(), &told, kind, &mut Ftw { base, level: at.level })
}

extern "C-unwind" fn visit_ftw(path: *const c_char, about: *const libc::stat, kind: c_int) -> c_int {
    type Callback = extern "C-unwind" fn(*const c_char, *const libc::stat, c_int) -> c_int;
    let (walk, shown, told) = visit(path, about);
    // SAFETY: what the program gave ftw.
    let callback: Callback = unsafe { std::mem::transmute(walk.callback) };
    callback(shown.as_ptr(), &told, kind)
}

fn root(flags: c_int) -> Last {
    if flags & FTW_PHYS != 0 { Last::Keep } else { Last::Follow }
}

/// `glob`'s result, with the functions that it is told to use.
#[repr(C)]
struct Glob {
    count: usize,
    paths: *mut *mut c_char,
    offset: usize,
    flags: c_int,
    functions: [*const c_void; 5],
}

fn match_paths(pattern: *const c_char, flags: c_int, out: *mut Glob, real: impl FnOnce(c_int) -> c_int) -> c_int {
    if flags & GLOB_ALTDIRFUNC != 0 || out.is_null() || !place::may_match(pattern) {
        return real(flags);
    }
    // SAFETY: the caller's struct; these fields mean nothing without the flag.
    unsafe { (*out).functions = super::listing::functions() };
    let result = real(flags | GLOB_ALTDIRFUNC);
    // SAFETY: as above. The program did not set it.
    unsafe { (*out).flags &= !GLOB_ALTDIRFUNC };
    result
}

replace! {
    fn nftw(path: *const c_char, callback: *const c_void, descriptors: c_int, flags: c_int) -> c_int {
        walk(path, root(flags), callback, visit_nftw as *const c_void, |path, callback| {
            real::nftw(path, callback, descriptors, flags)
        })
    }

    fn nftw64(path: *const c_char, callback: *const c_void, descriptors: c_int, flags: c_int) -> c_int {
        walk(path, root(flags), callback, visit_nftw as *const c_void, |path, callback| {
            real::nftw64(path, callback, descriptors, flags)
        })
    }

    fn ftw(path: *const c_char, callback: *const c_void, descriptors: c_int) -> c_int {
        walk(path, Last::Follow, callback, visit_ftw as *const c_void, |path, callback| {
            real::ftw(path, callback, descriptors)
        })
    }

    fn ftw64(path: *const c_char, callback: *const c_void, descriptors: c_int) -> c_int {
        walk(path, Last::Follow, callback, visit_ftw as *const c_void, |path, callback| {
            real::ftw64(path, callback, descriptors)
        })
    }

    fn glob(pattern: *const c_char, flags: c_int, error: *const c_void, out: *mut c_void) -> c_int {
        match_paths(pattern, flags, out.cast(), |flags| real::glob(pattern, flags, error, out))
    }

    fn glob64(pattern: *const c_char, flags: c_int, error: *const c_void, out: *mut c_void) -> c_int {
        match_paths(pattern, flags, out.cast(), |flags| real::glob64(pattern, flags, error, out))
    }
}
