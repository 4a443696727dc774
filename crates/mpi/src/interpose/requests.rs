//! Arrays of requests, of which some are ours and the others MPI's.

use crate::abi::Handle;
use crate::job::Job;
use crate::library::Library;
use libc::{c_int, c_void};

/// Requests of the program, in the array that it has given.
pub(super) struct Requests<'a> {
    library: &'a Library,
    at: *mut c_void,
    /// Those of MPI; in the place of ours there is `MPI_REQUEST_NULL`.
    others: Vec<u64>,
    /// Indices of ours that are active.
    own: Vec<usize>,
}

impl<'a> Requests<'a> {
    /// Sorts the requests.
    pub(super) fn sort(library: &'a Library, job: &Job, count: c_int, at: *mut c_void) -> Self {
        let count = usize::try_from(count).unwrap_or(0);
        let mut sorted = Self { library, at, others: vec![0; count], own: Vec::new() };
        for index in 0..count {
            let handle = library.handle_at(at, index);
            let is_own = job.has(handle) && !job.is_idle(handle);
            if is_own {
                sorted.own.push(index);
            }
            let other = if is_own { library.abi.named.request_null } else { handle };
            library.set_handle(sorted.others(), index, other);
        }
        sorted
    }

    /// The array for MPI.
    pub(super) fn others(&mut self) -> *mut c_void {
        self.others.as_mut_ptr().cast()
    }

    /// Indices of ours.
    pub(super) fn own(&self) -> &[usize] {
        &self.own
    }

    /// Ours, as the program has them.
    pub(super) fn own_handles(&self) -> impl Iterator<Item = Handle> + Clone {
        self.own.iter().map(|&index| self.handle(index))
    }

    /// The request at an index, as the program has it.
    pub(super) fn handle(&self, index: usize) -> Handle {
        self.library.handle_at(self.at, index)
    }

    /// One of ours has ended: the program's request is null, unless it stays.
    pub(super) fn ended(&self, index: usize, stays: bool) {
        if !stays {
            self.library.set_handle(self.at, index, self.library.abi.named.request_null);
        }
    }

    /// Gives the program what MPI has made of its requests.
    pub(super) fn give_back(&self) {
        for index in (0..self.others.len()).filter(|index| !self.own.contains(index)) {
            let handle = self.library.handle_at(self.others.as_ptr().cast(), index);
            self.library.set_handle(self.at, index, handle);
        }
    }
}
