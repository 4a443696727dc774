//! The border to C: results as it has them, and the text of the last error.
//!
//! Checks of arguments from C, before they are used: nothing here panics.
#![allow(unsafe_code)]

use crate::errno;
use libc::{c_char, c_int};
use rdmesh_preload::replace;
use rustix::io::Errno;
use std::cell::RefCell;
use std::ffi::CStr;
use std::fmt::Display;
use std::ptr::null_mut;

/// Reason why a call failed, for its caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Failure {
    errno: Errno,
    text: String,
}

pub(super) type Result<T> = std::result::Result<T, Failure>;

thread_local! {
    /// The text of the last error, and a NUL. No heap: a thread that ends may still ask.
    static LAST: RefCell<[u8; ROOM]> = const { RefCell::new([0; ROOM]) };
}

impl Failure {
    /// An error of the caller's: it must do something else.
    pub(super) fn invalid(text: impl Display) -> Self {
        Self { errno: Errno::INVAL, text: text.to_string() }
    }

    /// An error with a number of its own.
    pub(super) fn with(errno: Errno, text: impl Display) -> Self {
        Self { errno, text: text.to_string() }
    }

    /// An error of the system's or the router's in doing something.
    pub(super) fn of(errno: Errno, what: impl Display) -> Self {
        let remedy = match errno {
            Errno::NODEV => "; run the program under `rdmesh run`",
            Errno::NOMEM => "; a quota of the endpoint may be spent: see `rdmesh doctor`",
            Errno::NOSYS => "; the program has not loaded libibverbs",
            _ => "",
        };
        Self { errno, text: format!("{what}: {errno}{remedy}") }
    }
}

/// The result of a call that returns a count or a negative errno.
pub(super) fn code(call: impl FnOnce() -> Result<usize>) -> c_int {
    match call() {
        Ok(value) => {
            forget();
            c_int::try_from(value).unwrap_or(c_int::MAX)
        }
        Err(failure) => -note(&failure).raw_os_error(),
    }
}

/// The result of a call that returns a new object.
pub(super) fn object<T>(call: impl FnOnce() -> Result<T>) -> *mut T {
    match call() {
        Ok(value) => {
            forget();
            Box::into_raw(Box::new(value))
        }
        Err(failure) => {
            errno::set(note(&failure));
            null_mut()
        }
    }
}

/// Frees an object that [`object`] has made; null is ignored.
///
/// # Safety
/// The caller gives it up, and no other thread uses it.
pub(super) unsafe fn free<T>(object: *mut T) {
    if !object.is_null() {
        // SAFETY: made by `object`, by the contract.
        drop(unsafe { Box::from_raw(object) });
    }
}

/// An object that the program passes.
///
/// # Safety
/// Null, or valid for as long as the result is used.
pub(super) unsafe fn given<'a, T>(pointer: *const T, what: &str) -> Result<&'a T> {
    // SAFETY: by the contract.
    unsafe { pointer.as_ref() }.ok_or_else(|| Failure::invalid(format_args!("{what} is NULL")))
}

/// The same, to be changed.
///
/// # Safety
/// As above, and nothing else uses it meanwhile.
pub(super) unsafe fn given_mut<'a, T>(pointer: *mut T, what: &str) -> Result<&'a mut T> {
    // SAFETY: by the contract.
    unsafe { pointer.as_mut() }.ok_or_else(|| Failure::invalid(format_args!("{what} is NULL")))
}

/// A list that the program passes; null with no elements is an empty one.
///
/// # Safety
/// Null, or that many valid elements for as long as the result is used.
pub(super) unsafe fn list<'a, T>(pointer: *const T, count: usize, what: &str) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() || count > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(Failure::invalid(format_args!("{what} is NULL or too long")));
    }
    // SAFETY: by the contract.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// A string that the program passes.
///
/// # Safety
/// Null, or a C string that stays for as long as the result is used.
pub(super) unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str> {
    if pointer.is_null() {
        return Err(Failure::invalid(format_args!("{what} is NULL")));
    }
    // SAFETY: by the contract.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Failure::invalid(format_args!("{what} is not UTF-8")))
}

/// Puts text and a NUL into a buffer, cut off where it does not fit.
pub(super) fn put(text: &str, buffer: &mut [u8]) {
    let Some(room) = buffer.len().checked_sub(1) else { return };
    let len = (0..=text.len().min(room)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    buffer[..len].copy_from_slice(&text.as_bytes()[..len]);
    buffer[len] = 0;
}

/// Puts a value where the program wants it.
///
/// # Safety
/// Null, which is ignored, or valid for writes.
pub(super) unsafe fn store<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: by the contract.
        unsafe { place.write(value) };
    }
}

fn note(failure: &Failure) -> Errno {
    LAST.with(|last| put(&failure.text, &mut last.borrow_mut()[..]));
    failure.errno
}

fn forget() {
    LAST.with(|last| last.borrow_mut()[0] = 0);
}

replace! {
    /// See `rdmesh_chain.h`.
    fn rdmesh_chain_error() -> *const c_char {
        LAST.with(|last| last.as_ptr().cast())
    }
}

/// Bytes of a text, with its NUL.
const ROOM: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> String {
        // SAFETY: a string of this thread's.
        unsafe { CStr::from_ptr(rdmesh_chain_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn an_error_has_a_number_and_a_text_until_the_next_call() {
        assert_eq!(code(|| Err(Failure::invalid("a slot is missing"))), -libc::EINVAL);
        assert_eq!(last(), "a slot is missing");
        assert_eq!(code(|| Ok(7)), 7);
        assert_eq!(last(), "");
        assert!(object::<u8>(|| Err(Failure::of(Errno::NOMEM, "ibv_reg_mr"))).is_null());
        assert!(last().starts_with("ibv_reg_mr: ") && last().ends_with("`rdmesh doctor`"), "{}", last());
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let mut buffer = [1; 5];
        put("äöü", &mut buffer);
        assert_eq!(&buffer[..], b"\xc3\xa4\xc3\xb6\0");
        put("", &mut buffer[..0]);
    }
}
