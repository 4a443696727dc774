//! Binary interfaces of MPI libraries: handles, constants and the layout of a status.
//!
//! Each MPI has its own. Which one a program uses is found out once, from the library that it has loaded.

/// A handle of MPI (communicator, datatype, request, …), as wide as a pointer: MPICH's are four bytes, of which the rest is zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct Handle(pub usize);

/// Binary interface of an MPI library (`mpi.h`): sizes, offsets, constants and named handles.
#[derive(Clone, Copy, Debug)]
pub struct Abi {
    /// Size of a handle, in bytes: 4 or 8.
    pub handle_size: usize,
    /// Size of `MPI_Status`, in bytes.
    pub status_size: usize,
    /// Offset of `MPI_SOURCE` in it; `MPI_TAG` and `MPI_ERROR` follow.
    pub status_source: usize,
    /// `MPI_STATUS_IGNORE` and `MPI_STATUSES_IGNORE`.
    pub status_ignore: usize,
    /// `MPI_IN_PLACE`.
    pub in_place: usize,
    /// `MPI_ANY_SOURCE`.
    pub any_source: i32,
    /// `MPI_ANY_TAG`.
    pub any_tag: i32,
    /// `MPI_PROC_NULL`.
    pub proc_null: i32,
    /// `MPI_UNDEFINED`.
    pub undefined: i32,
    /// `MPI_ERR_TRUNCATE`.
    pub err_truncate: i32,
    /// `MPI_ERR_IN_STATUS`.
    pub err_in_status: i32,
    /// `MPI_ERR_OTHER`.
    pub err_other: i32,
    /// `MPI_COMBINER_NAMED`; `_DUP` and `_CONTIGUOUS` follow.
    pub combiner_named: i32,
    /// Handles that are constants in `mpi.h`.
    pub named: Named,
}

/// Handles that MPI names.
#[derive(Clone, Copy, Debug)]
pub struct Named {
    /// `MPI_COMM_WORLD`.
    pub comm_world: Handle,
    /// `MPI_COMM_SELF`.
    pub comm_self: Handle,
    /// `MPI_COMM_NULL`.
    pub comm_null: Handle,
    /// `MPI_BYTE`.
    pub byte: Handle,
    /// `MPI_REQUEST_NULL`.
    pub request_null: Handle,
    /// `MPI_MESSAGE_NULL`.
    pub message_null: Handle,
}

/// MPICH 3 and 4, and what shares their interface (`mpi.h` of MPICH).
pub const MPICH: Abi = Abi {
    handle_size: 4,
    status_size: 20,
    status_source: 8,
    status_ignore: 1,
    in_place: usize::MAX,
    any_source: -2,
    any_tag: -1,
    proc_null: -1,
    undefined: -32766,
    err_truncate: 14,
    err_in_status: 17,
    err_other: 15,
    combiner_named: 1,
    named: Named {
        comm_world: Handle(0x4400_0000),
        comm_self: Handle(0x4400_0001),
        comm_null: Handle(0x0400_0000),
        byte: Handle(0x4c00_010d),
        request_null: Handle(0x2c00_0000),
        message_null: Handle(0x2c00_0000),
    },
};

/// Open MPI 2 to 5 (`mpi.h` of Open MPI), whose named handles are the addresses of variables.
pub const fn open_mpi(named: Named) -> Abi {
    Abi {
        handle_size: 8,
        status_size: 24,
        status_source: 0,
        status_ignore: 0,
        in_place: 1,
        any_source: -1,
        any_tag: -1,
        proc_null: -2,
        undefined: -32766,
        err_truncate: 15,
        err_in_status: 18,
        err_other: 16,
        combiner_named: 0,
        named,
    }
}

/// Room for a status of any MPI.
pub(crate) const STATUS_ROOM: usize = 48;

/// A status of our own, for calls whose caller ignores it.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(crate) struct Status(pub(crate) [u8; STATUS_ROOM]);

impl Status {
    pub(crate) const fn new() -> Self {
        Self([0; STATUS_ROOM])
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut libc::c_void {
        self.0.as_mut_ptr().cast()
    }

    /// `MPI_SOURCE`.
    pub(crate) fn source(&self, abi: &Abi) -> i32 {
        self.word(abi.status_source)
    }

    /// `MPI_TAG`.
    pub(crate) fn tag(&self, abi: &Abi) -> i32 {
        self.word(abi.status_source + 4)
    }

    /// Sets `MPI_SOURCE` and `MPI_TAG`.
    #[cfg(test)]
    pub(crate) fn set_envelope(&mut self, abi: &Abi, source: i32, tag: i32) {
        self.set_word(abi.status_source, source);
        self.set_word(abi.status_source + 4, tag);
    }

    /// Sets `MPI_ERROR`.
    pub(crate) fn set_error(&mut self, abi: &Abi, code: i32) {
        self.set_word(abi.status_source + 8, code);
    }

    /// `MPI_ERROR`.
    pub(crate) fn error(&self, abi: &Abi) -> i32 {
        self.word(abi.status_source + 8)
    }

    fn word(&self, at: usize) -> i32 {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.0[at..at + 4]);
        i32::from_ne_bytes(bytes)
    }

    fn set_word(&mut self, at: usize, value: i32) {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_has_its_words_where_each_mpi_has_them() {
        let nowhere = Handle(0);
        let named = Named {
            comm_world: nowhere,
            comm_self: nowhere,
            comm_null: nowhere,
            byte: nowhere,
            request_null: nowhere,
            message_null: nowhere,
        };
        for abi in [MPICH, open_mpi(named)] {
            let mut status = Status::new();
            status.set_envelope(&abi, 3, 17);
            status.set_error(&abi, abi.err_truncate);
            assert_eq!((status.source(&abi), status.tag(&abi), status.error(&abi)), (3, 17, abi.err_truncate));
            assert!(status.0[abi.status_size..].iter().all(|&byte| byte == 0));
        }
    }
}
