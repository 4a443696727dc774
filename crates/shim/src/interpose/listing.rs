//! Directory listings that merge the endpoint's entries with the kernel's: `/sys/class`, `/dev` and so on. The endpoint's
//! entries follow the kernel's.
#![allow(unsafe_code)]

use super::replace;
use super::route::fail;
use crate::place::{self, Last, Place, view};
use crate::real;
use libc::{AT_FDCWD, DIR, c_char, c_int, c_long, c_void, dirent};
use rustix::io::Errno;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An open directory to which the endpoint adds.
struct Listing {
    directory: usize,
    names: Vec<place::Added>,
    next: usize,
    entry: Box<dirent>,
}

static LISTINGS: Mutex<Vec<Listing>> = Mutex::new(Vec::new());
/// Number of listings, so that all other directories cost one load.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn listings() -> MutexGuard<'static, Vec<Listing>> {
    LISTINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Remembers what the endpoint adds to `directory`.
fn note(directory: *mut DIR, names: Vec<place::Added>) -> *mut DIR {
    if !directory.is_null() && !names.is_empty() {
        // SAFETY: plain data, filled before it is given away.
        let entry = Box::new(unsafe { std::mem::zeroed::<dirent>() });
        listings().push(Listing { directory: directory.addr(), names, next: 0, entry });
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
    directory
}

fn change(directory: *mut DIR, change: impl FnOnce(&mut Vec<Listing>, usize)) {
    if COUNT.load(Ordering::Relaxed) != 0 {
        let mut all = listings();
        if let Some(at) = all.iter().position(|listing| listing.directory == directory.addr()) {
            change(&mut all, at);
        }
    }
}

/// The next entry: the kernel's, then the endpoint's.
fn next(directory: *mut DIR, real: impl FnOnce(*mut DIR) -> *mut dirent) -> *mut dirent {
    let entry = real(directory);
    if !entry.is_null() || COUNT.load(Ordering::Relaxed) == 0 {
        return entry;
    }
    let mut added = null_mut();
    change(directory, |all, at| added = all[at].add());
    added
}

impl Listing {
    fn add(&mut self) -> *mut dirent {
        let Some(added) = self.names.get(self.next) else { return null_mut() };
        self.next += 1;
        self.entry.d_ino = added.inode;
        self.entry.d_type = added.kind;
        self.entry.d_reclen = size_of::<dirent>() as u16;
        self.entry.d_name.fill(0);
        // The last byte stays the NUL.
        let room = self.entry.d_name.len() - 1;
        for (to, from) in self.entry.d_name[..room].iter_mut().zip(&added.name) {
            *to = *from as c_char;
        }
        &raw mut *self.entry
    }
}

/// Functions that `glob` uses instead of libc's own: `closedir`, `readdir`, `opendir`, `lstat`, `stat`.
pub(super) fn functions() -> [*const c_void; 5] {
    let [lstat, stat] = super::stats::functions();
    [closedir as *const c_void, readdir64 as *const c_void, opendir as *const c_void, lstat, stat]
}

fn open_near(path: *const c_char) -> *mut DIR {
    view::opened();
    note(real::opendir(path), place::added_at(AT_FDCWD, path))
}

replace! {
    fn opendir(path: *const c_char) -> *mut DIR {
        match place::of(AT_FDCWD, path, Last::Follow) {
            Place::Elsewhere => real::opendir(path),
            Place::Above => open_near(path),
            Place::Outside(path) => open_near(path.as_ptr()),
            Place::File(path) | Place::Counter(path) => {
                view::opened();
                real::opendir(path.as_ptr())
            }
            Place::Device(_) => fail(Errno::NOTDIR),
            Place::Failed(errno) => fail(errno),
        }
    }

    fn fdopendir(fd: c_int) -> *mut DIR {
        note(real::fdopendir(fd), place::added_at(fd, c".".as_ptr()))
    }

    fn readdir(directory: *mut DIR) -> *mut dirent {
        next(directory, real::readdir)
    }

    fn readdir64(directory: *mut DIR) -> *mut dirent {
        next(directory, real::readdir64)
    }

    fn rewinddir(directory: *mut DIR) -> () {
        change(directory, |all, at| all[at].next = 0);
        real::rewinddir(directory);
    }

    fn seekdir(directory: *mut DIR, to: c_long) -> () {
        change(directory, |all, at| all[at].next = 0);
        real::seekdir(directory, to);
    }

    fn closedir(directory: *mut DIR) -> c_int {
        change(directory, |all, at| {
            all.swap_remove(at);
            COUNT.fetch_sub(1, Ordering::Relaxed);
        });
        real::closedir(directory)
    }
}
