//! Extended BPF: tables that the kernel reads, and programs that read them.
//!
//! Only what steering needs of bpf(2): arrays of words, and programs of the type for sockets, which an unprivileged router may
//! load too where the machine allows it.

use rustix::io::{self, Errno};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// One instruction, as the kernel has it: code, registers, offset, constant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub(super) struct Extended {
    pub(super) code: u8,
    /// The destination in the low half, the source in the high one.
    pub(super) registers: u8,
    pub(super) offset: i16,
    pub(super) constant: i32,
}

/// An array of words, all zero at first.
#[derive(Debug)]
pub(super) struct Array(OwnedFd);

impl Array {
    /// An array of `len` words.
    pub(super) fn new(len: u32) -> io::Result<Self> {
        let attributes = [MAP_TYPE_ARRAY, WORD, WORD, len, 0];
        call(MAP_CREATE, &attributes).map(Self)
    }

    /// Sets a word.
    #[allow(unsafe_code)]
    pub(super) fn set(&self, index: u32, value: u32) -> io::Result<()> {
        #[repr(C)]
        struct Update {
            map: u32,
            reserved: u32,
            key: u64,
            value: u64,
            flags: u64,
        }
        let (key, value) = (&raw const index, &raw const value);
        let map = self.0.as_raw_fd().cast_unsigned();
        let update = Update { map, reserved: 0, key: key.addr() as u64, value: value.addr() as u64, flags: 0 };
        // SAFETY: `update` is what this command reads; it points to two words, which the kernel reads before it returns.
        let result = unsafe { libc::syscall(libc::SYS_bpf, MAP_UPDATE_ELEM, &raw const update, size_of::<Update>()) };
        if result == 0 { Ok(()) } else { Err(last_error()) }
    }

    /// The number by which a program names it.
    pub(super) fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

/// A program that the kernel has checked.
#[derive(Debug)]
pub(super) struct Program(OwnedFd);

impl Program {
    /// Loads a program.
    #[allow(unsafe_code)]
    pub(super) fn load(instructions: &[Extended]) -> io::Result<Self> {
        #[repr(C)]
        struct Load {
            kind: u32,
            count: u32,
            instructions: u64,
            license: u64,
            log: [u32; 2],
            log_buffer: u64,
            version: u32,
            flags: u32,
        }
        let load = Load {
            kind: PROGRAM_SOCKET_FILTER,
            count: instructions.len() as u32,
            instructions: instructions.as_ptr().addr() as u64,
            license: LICENSE.as_ptr().addr() as u64,
            log: [0; 2],
            log_buffer: 0,
            version: 0,
            flags: 0,
        };
        // SAFETY: `load` is what this command reads; it points to `count` instructions and to a string that ends with zero,
        // which the kernel copies and checks before it returns.
        let result = unsafe { libc::syscall(libc::SYS_bpf, PROG_LOAD, &raw const load, size_of::<Load>()) };
        descriptor(result).map(Self)
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A command that makes a descriptor, and whose attributes point nowhere.
#[allow(unsafe_code)]
fn call(command: i32, attributes: &[u32]) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads `attributes`, all of which are numbers.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), size_of_val(attributes)) };
    descriptor(result)
}

#[allow(unsafe_code)]
fn descriptor(result: libc::c_long) -> io::Result<OwnedFd> {
    let fd = i32::try_from(result).ok().filter(|fd| *fd >= 0).ok_or_else(last_error)?;
    // SAFETY: the kernel has just made this descriptor for the caller, closed on exec as all of bpf(2) are.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

/// `enum bpf_cmd`, `enum bpf_map_type`, `enum bpf_prog_type` of `linux/bpf.h`.
const MAP_CREATE: i32 = 0;
const MAP_UPDATE_ELEM: i32 = 2;
const PROG_LOAD: i32 = 5;
const MAP_TYPE_ARRAY: u32 = 2;
const PROGRAM_SOCKET_FILTER: u32 = 1;
const WORD: u32 = 4;
/// It calls no function that asks for a certain one.
const LICENSE: &std::ffi::CStr = c"MIT OR Apache-2.0";
