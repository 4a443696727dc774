//! MPI's functions that are intercepted, under their own names.
//!
//! Each asks first whether there is anything to do; where there is not, the call goes on to the MPI library (`PMPI_…`) as it came.
#![allow(unsafe_code)]

mod collectives;
mod completion;
mod lifetime;
mod measuring;
mod probes;
mod receives;
mod requests;
mod sends;

use crate::abi::Status;
use crate::job::Outcome;
use crate::library::Library;
use libc::{c_int, c_void};

/// Defines functions under MPI's names, and under those of its profiling interface: Open MPI's functions for Fortran call these.
macro_rules! intercept {
    ($(fn $name:ident, $profiled:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg_attr(test, allow(dead_code))]
        #[allow(non_snake_case, reason = "MPI's names")]
        #[allow(clippy::too_many_arguments, reason = "MPI's own")]
        pub(in crate::interpose) extern "C" fn $name($($arg: $ty),*) -> c_int $body

        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg_attr(test, allow(dead_code))]
        #[allow(non_snake_case, reason = "MPI's names")]
        #[allow(clippy::too_many_arguments, reason = "MPI's own")]
        extern "C" fn $profiled($($arg: $ty),*) -> c_int {
            $name($($arg),*)
        }
    )*};
}
pub(crate) use intercept;

/// The MPI library; its absence ends the calling function with an error, which cannot be: the program calls MPI.
macro_rules! mpi {
    () => {
        match $crate::library::library() {
            Some(library) => library,
            None => return $crate::interpose::NO_MPI,
        }
    };
}
pub(crate) use mpi;

/// Any error but success.
pub(crate) const NO_MPI: c_int = 16;

/// Writes a status to where the program wants it, with `MPI_ERROR` only where several operations complete at a time (MPI 4.1, 3.2.5).
fn give_status(library: &Library, to: *mut c_void, status: &Status, with_error: bool) {
    let abi = &library.abi;
    if to.addr() == abi.status_ignore {
        return;
    }
    let error = abi.status_source + 8;
    let whole = &status.0[..abi.status_size];
    let pieces = if with_error { [whole, &[]] } else { [&whole[..error], &whole[error + 4..]] };
    let offsets = [0, error + 4];
    for (piece, offset) in pieces.into_iter().zip(offsets) {
        // SAFETY: the program gives a status of its MPI's size.
        unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr(), to.cast::<u8>().add(offset), piece.len()) };
    }
}

/// Tells the program how an operation ended, and its error handler if it ended badly.
fn conclude(library: &Library, outcome: &Outcome, status: *mut c_void) -> c_int {
    give_status(library, status, &outcome.status, false);
    raise(library, outcome);
    outcome.code
}

fn raise(library: &Library, outcome: &Outcome) {
    if let Some(comm) = outcome.raise {
        library.comm_call_errhandler(comm, outcome.code);
    }
}

/// Writes a number to where the program wants it.
fn give(to: *mut c_int, value: c_int) {
    // SAFETY: the program gives the address of an int.
    unsafe { to.write(value) }
}
