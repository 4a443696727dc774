//! `fts`: a walk whose entries the program reads. They are the C library's own, with paths that the kernel knows; the
//! program is shown others in them, and the library's are put back before it goes on.
#![allow(unsafe_code)]

use super::replace;
use crate::place::{self, Last, Place, view};
use crate::real;
use libc::{AT_FDCWD, c_char, c_int, c_long, c_ushort, c_void};
use std::ffi::{CStr, CString};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

const FTS_COMFOLLOW: c_int = 0x1;
const FTS_LOGICAL: c_int = 0x2;

/// The fields of `FTSENT` that are used here.
#[repr(C)]
struct Entry {
    links: [*mut Entry; 3],
    number: c_long,
    pointer: *mut c_void,
    accpath: *mut c_char,
    path: *mut c_char,
    errno: c_int,
    symfd: c_int,
    pathlen: c_ushort,
}

/// A path that a walk begins with: as the program named it, and as the kernel finds it.
struct Root {
    named: Vec<u8>,
    real: CString,
}

/// A walk that begins in the endpoint's tree.
struct Walk {
    stream: usize,
    roots: Vec<Root>,
    shown: Option<Shown>,
}

/// An entry that the program has, and the C library's original fields.
struct Shown {
    entry: *mut Entry,
    accpath: *mut c_char,
    path: *mut c_char,
    pathlen: c_ushort,
    /// The texts that the program reads.
    _texts: [CString; 2],
}

// SAFETY: the pointers are used only by the thread that walks.
unsafe impl Send for Shown {}

static WALKS: Mutex<Vec<Walk>> = Mutex::new(Vec::new());
/// Number of walks, so that all other calls cost one load.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn walks() -> MutexGuard<'static, Vec<Walk>> {
    WALKS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with_walk(stream: *mut c_void, act: impl FnOnce(&mut Walk)) {
    if COUNT.load(Ordering::Relaxed) != 0
        && let Some(walk) = walks().iter_mut().find(|walk| walk.stream == stream.addr())
    {
        act(walk);
    }
}

impl Walk {
    /// The path that the program is shown for `path`.
    fn translate(&self, path: &CStr) -> CString {
        let path = path.to_bytes();
        let rest = |root: &Root| {
            let rest = path.strip_prefix(root.real.as_bytes())?;
            let is_below = rest.is_empty() || rest[0] == b'/' || root.real.as_bytes().ends_with(b"/");
            is_below.then(|| [&root.named[..], rest].concat())
        };
        let longest = self.roots.iter().max_by_key(|root| rest(root).map(|_| root.real.as_bytes().len()));
        CString::new(longest.and_then(rest).unwrap_or_else(|| path.to_vec())).unwrap_or_default()
    }

    fn show(&mut self, entry: *mut Entry) {
        // SAFETY: null, or the C library's entry, which the program is about to get.
        let Some(about) = (unsafe { entry.as_mut() }) else { return };
        // SAFETY: C strings of the C library's.
        let texts = unsafe { [CStr::from_ptr(about.accpath), CStr::from_ptr(about.path)] };
        let texts = texts.map(|text| self.translate(text));
        let (accpath, path, pathlen) = (about.accpath, about.path, about.pathlen);
        about.accpath = texts[0].as_ptr().cast_mut();
        about.path = texts[1].as_ptr().cast_mut();
        about.pathlen = texts[1].as_bytes().len() as c_ushort;
        self.shown = Some(Shown { entry, accpath, path, pathlen, _texts: texts });
    }

    /// Restores the fields that the C library wrote; returns the entry, to be shown again where it is still the program's.
    fn hide(&mut self) -> *mut Entry {
        let Some(shown) = self.shown.take() else { return null_mut() };
        // SAFETY: the entry lives until the next one is asked for, which is after this.
        let about = unsafe { &mut *shown.entry };
        (about.accpath, about.path, about.pathlen) = (shown.accpath, shown.path, shown.pathlen);
        shown.entry
    }
}

fn open(
    paths: *const *mut c_char,
    options: c_int,
    real: impl FnOnce(*const *mut c_char) -> *mut c_void,
) -> *mut c_void {
    let last = if options & (FTS_LOGICAL | FTS_COMFOLLOW) != 0 { Last::Follow } else { Last::Keep };
    let (mut roots, mut given) = (Vec::new(), Vec::new());
    for index in 0.. {
        // SAFETY: the caller's array ends with a null pointer.
        let path = unsafe { *paths.add(index) };
        if path.is_null() {
            break;
        }
        let root = root(path, last);
        given.push(root.as_ref().map_or(path, |root| root.real.as_ptr().cast_mut()));
        roots.extend(root);
    }
    given.push(null_mut());
    let stream = real(given.as_ptr());
    if !roots.is_empty() && !stream.is_null() {
        view::may_move();
        walks().push(Walk { stream: stream.addr(), roots, shown: None });
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
    stream
}

fn root(path: *const c_char, last: Last) -> Option<Root> {
    let real = match place::of(AT_FDCWD, path, last) {
        Place::File(real) | Place::Counter(real) | Place::Outside(real) => real.into_bytes(),
        _ => return None,
    };
    // SAFETY: not null, or it would lead elsewhere.
    let named = unsafe { CStr::from_ptr(path) }.to_bytes().to_vec();
    // Names below follow a slash, which may be there already.
    let real = if named.ends_with(b"/") { &real[..] } else { real.strip_suffix(b"/").unwrap_or(&real) };
    Some(Root { named, real: CString::new(real).ok()? })
}

fn read(stream: *mut c_void, real: impl FnOnce(*mut c_void) -> *mut c_void) -> *mut c_void {
    with_walk(stream, |walk| {
        walk.hide();
    });
    let entry = real(stream);
    with_walk(stream, |walk| walk.show(entry.cast()));
    entry
}

fn children(stream: *mut c_void, real: impl FnOnce(*mut c_void) -> *mut c_void) -> *mut c_void {
    let mut entry = null_mut();
    with_walk(stream, |walk| entry = walk.hide());
    let children = real(stream);
    with_walk(stream, |walk| walk.show(entry));
    children
}

fn close(stream: *mut c_void, real: impl FnOnce(*mut c_void) -> c_int) -> c_int {
    let mut is_ours = false;
    with_walk(stream, |walk| {
        walk.hide();
        is_ours = true;
    });
    let result = real(stream);
    if is_ours {
        walks().retain(|walk| walk.stream != stream.addr());
        COUNT.fetch_sub(1, Ordering::Relaxed);
        view::moved();
    }
    result
}

replace! {
    fn fts_open(paths: *const *mut c_char, options: c_int, compare: *const c_void) -> *mut c_void {
        open(paths, options, |paths| real::fts_open(paths, options, compare))
    }

    fn fts64_open(paths: *const *mut c_char, options: c_int, compare: *const c_void) -> *mut c_void {
        open(paths, options, |paths| real::fts64_open(paths, options, compare))
    }

    fn fts_read(stream: *mut c_void) -> *mut c_void {
        read(stream, real::fts_read)
    }

    fn fts64_read(stream: *mut c_void) -> *mut c_void {
        read(stream, real::fts64_read)
    }

    fn fts_children(stream: *mut c_void, options: c_int) -> *mut c_void {
        children(stream, |stream| real::fts_children(stream, options))
    }

    fn fts64_children(stream: *mut c_void, options: c_int) -> *mut c_void {
        children(stream, |stream| real::fts64_children(stream, options))
    }

    fn fts_close(stream: *mut c_void) -> c_int {
        close(stream, real::fts_close)
    }

    fn fts64_close(stream: *mut c_void) -> c_int {
        close(stream, real::fts64_close)
    }
}
