//! The kernel's side: tables, programs and their attachment, by bpf(2).

use crate::Instruction;
use rustix::io::{self, Errno};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// An array of words, all zero at first.
#[derive(Debug)]
pub struct Array(OwnedFd);

impl Array {
    /// An array of `len` words.
    pub fn new(len: u32) -> io::Result<Self> {
        call(MAP_CREATE, &CreateMap { kind: MAP_TYPE_ARRAY, key: WORD, value: WORD, len, ..CreateMap::default() })
            .map(Self)
    }

    /// Sets a word.
    pub fn set(&self, index: u32, value: u32) -> io::Result<()> {
        let (key, value) = (&raw const index, &raw const value);
        let map = self.0.as_raw_fd().cast_unsigned();
        let update = UpdateMap { map, reserved: 0, key: key.addr() as u64, value: value.addr() as u64, flags: 0 };
        execute(MAP_UPDATE_ELEM, &update).map(drop)
    }

    /// The number by which a program names it.
    pub fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

/// Four words for each socket that a program has asked for some, zero at first. A connection that a listening socket accepts begins
/// with a copy of the listener's.
#[derive(Debug)]
pub struct SocketStorage(OwnedFd);

impl SocketStorage {
    /// A storage without sockets.
    pub fn new() -> io::Result<Self> {
        // The kernel wants to know what is stored as what type: a key of 32 bits, a value of four such words.
        let types = type_format();
        let load = LoadTypes {
            types: types.as_ptr().addr() as u64,
            log: 0,
            len: types.len() as u32,
            log_len: 0,
            log_level: 0,
            flags: 0,
        };
        let types = call(BTF_LOAD, &load)?;
        let flags = NO_PREALLOC | CLONE;
        let create = CreateMap {
            kind: MAP_TYPE_SK_STORAGE,
            key: WORD,
            value: 4 * WORD,
            flags,
            types: types.as_raw_fd().cast_unsigned(),
            key_type: KEY_TYPE,
            value_type: VALUE_TYPE,
            ..CreateMap::default()
        };
        call(MAP_CREATE, &create).map(Self)
    }

    /// The number by which a program names it.
    pub fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

/// A kind of program: what it is given, and when it runs (`enum bpf_prog_type`, `enum bpf_attach_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kind {
    program: u32,
    attach: u32,
}

impl Kind {
    /// Of sockets: a datagram, to choose one of a group.
    pub const SOCKET: Self = Self { program: 1, attach: 0 };
    /// Of control groups: a packet that one of its sockets receives.
    pub const INGRESS: Self = Self { program: 8, attach: 0 };
    /// A packet that one of its sockets sends.
    pub const EGRESS: Self = Self { program: 8, attach: 1 };
    /// The address of a call of bind(2).
    pub const BIND4: Self = Self::of_address(8);
    /// As [`Kind::BIND4`], for IPv6.
    pub const BIND6: Self = Self::of_address(9);
    /// The address of a call of connect(2).
    pub const CONNECT4: Self = Self::of_address(10);
    /// As [`Kind::CONNECT4`], for IPv6.
    pub const CONNECT6: Self = Self::of_address(11);
    /// The addresses of a datagram whose socket is not connected.
    pub const SENDMSG4: Self = Self::of_address(14);
    /// As [`Kind::SENDMSG4`], for IPv6.
    pub const SENDMSG6: Self = Self::of_address(15);
    /// The sender's address that recvmsg(2) is about to return.
    pub const RECVMSG4: Self = Self::of_address(19);
    /// As [`Kind::RECVMSG4`], for IPv6.
    pub const RECVMSG6: Self = Self::of_address(20);
    /// A call of setsockopt(2).
    pub const SETSOCKOPT: Self = Self { program: 25, attach: 22 };
    /// The address that getpeername(2) or accept(2) is about to return.
    pub const GETPEERNAME4: Self = Self::of_address(29);
    /// As [`Kind::GETPEERNAME4`], for IPv6.
    pub const GETPEERNAME6: Self = Self::of_address(30);
    /// The address that getsockname(2) is about to return.
    pub const GETSOCKNAME4: Self = Self::of_address(31);
    /// As [`Kind::GETSOCKNAME4`], for IPv6.
    pub const GETSOCKNAME6: Self = Self::of_address(32);

    const fn of_address(attach: u32) -> Self {
        Self { program: 18, attach }
    }
}

/// A program that the kernel has checked.
#[derive(Debug)]
pub struct Program {
    fd: OwnedFd,
    kind: Kind,
}

impl Program {
    /// Loads a program.
    pub fn load(kind: Kind, instructions: &[Instruction]) -> io::Result<Self> {
        let load = LoadProgram {
            kind: kind.program,
            count: instructions.len() as u32,
            instructions: instructions.as_ptr().addr() as u64,
            license: LICENSE.as_ptr().addr() as u64,
            expected_attach: kind.attach,
            ..LoadProgram::default()
        };
        call(PROG_LOAD, &load).map(|fd| Self { fd, kind })
    }

    /// Has the program run for the sockets of a control group and of those below it, beside others.
    pub fn attach(&self, group: BorrowedFd<'_>) -> io::Result<Attachment> {
        let target = group.as_raw_fd().cast_unsigned();
        let program = self.fd.as_raw_fd().cast_unsigned();
        let attach = Attach { target, program, kind: self.kind.attach, flags: ALLOW_MULTI };
        execute(PROG_ATTACH, &attach)?;
        Ok(Attachment { program: self.fd.try_clone().map_err(|_| Errno::MFILE)?, kind: self.kind })
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A program that runs for a control group: until the group is removed, or it is taken away.
#[derive(Debug)]
pub struct Attachment {
    program: OwnedFd,
    kind: Kind,
}

impl Attachment {
    /// Takes the program away from the control group that it was attached to.
    pub fn detach(&self, group: BorrowedFd<'_>) -> io::Result<()> {
        let target = group.as_raw_fd().cast_unsigned();
        let program = self.program.as_raw_fd().cast_unsigned();
        execute(PROG_DETACH, &Attach { target, program, kind: self.kind.attach, flags: 0 }).map(drop)
    }
}

/// Attributes of the commands, as `union bpf_attr` of `linux/bpf.h` begins. The rest is zero to the kernel.
trait Attributes {}

#[derive(Default)]
#[repr(C)]
struct CreateMap {
    kind: u32,
    key: u32,
    value: u32,
    len: u32,
    flags: u32,
    inner: u32,
    node: u32,
    name: [u32; 4],
    interface: u32,
    types: u32,
    key_type: u32,
    value_type: u32,
}

#[repr(C)]
struct UpdateMap {
    map: u32,
    reserved: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[derive(Default)]
#[repr(C)]
struct LoadProgram {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_len: u32,
    log: u64,
    version: u32,
    flags: u32,
    name: [u32; 4],
    interface: u32,
    expected_attach: u32,
}

#[repr(C)]
struct Attach {
    target: u32,
    program: u32,
    kind: u32,
    flags: u32,
}

#[repr(C)]
struct LoadTypes {
    types: u64,
    log: u64,
    len: u32,
    log_len: u32,
    log_level: u32,
    flags: u32,
}

impl Attributes for CreateMap {}
impl Attributes for UpdateMap {}
impl Attributes for LoadProgram {}
impl Attributes for Attach {}
impl Attributes for LoadTypes {}

/// A command that makes a descriptor.
#[allow(unsafe_code)]
fn call(command: i32, attributes: &impl Attributes) -> io::Result<OwnedFd> {
    let result = execute(command, attributes)?;
    let fd = i32::try_from(result).map_err(|_| Errno::INVAL)?;
    // SAFETY: only commands that make a descriptor are called here. The kernel has just made this one for the caller, closed on
    // exec as all of bpf(2) are.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Executes a command whose attributes point to nothing or to what the caller keeps until it returns.
#[allow(unsafe_code)]
fn execute<A: Attributes>(command: i32, attributes: &A) -> io::Result<libc::c_long> {
    // SAFETY: `attributes` is what the command reads, with its size. Their addresses are those of values that their callers hold,
    // with the lengths beside them; the kernel reads them before it returns, and checks programs before it takes them.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw const *attributes, size_of::<A>()) };
    if result < 0 { Err(last_error()) } else { Ok(result) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

/// Types in the BPF type format (Linux, `Documentation/bpf/btf.rst`): an integer of 32 bits, and an array of four of it.
fn type_format() -> Vec<u8> {
    let integer = [1, KIND_INT << 24, WORD, 8 * WORD];
    let array = [0, KIND_ARRAY << 24, 0, KEY_TYPE, KEY_TYPE, 4];
    let types: Vec<u8> = integer.iter().chain(&array).flat_map(|word: &u32| word.to_ne_bytes()).collect();
    let strings = b"\0word\0";
    let len = types.len() as u32;
    let head = [HEADER_LEN, 0, len, len, strings.len() as u32];
    let mut bytes = BTF_MAGIC.to_ne_bytes().to_vec();
    bytes.extend([BTF_VERSION, 0]);
    bytes.extend(head.iter().flat_map(|word| word.to_ne_bytes()));
    bytes.extend(types);
    bytes.extend(strings);
    bytes
}

const BTF_MAGIC: u16 = 0xeb9f;
const BTF_VERSION: u8 = 1;
const HEADER_LEN: u32 = 24;
const KIND_INT: u32 = 1;
const KIND_ARRAY: u32 = 3;
const KEY_TYPE: u32 = 1;
const VALUE_TYPE: u32 = 2;

/// `enum bpf_cmd`, `enum bpf_map_type` and flags of `linux/bpf.h`.
const MAP_CREATE: i32 = 0;
const MAP_UPDATE_ELEM: i32 = 2;
const PROG_LOAD: i32 = 5;
const PROG_ATTACH: i32 = 8;
const PROG_DETACH: i32 = 9;
const BTF_LOAD: i32 = 18;
const MAP_TYPE_ARRAY: u32 = 2;
const MAP_TYPE_SK_STORAGE: u32 = 24;
const NO_PREALLOC: u32 = 1;
const CLONE: u32 = 1 << 9;
const ALLOW_MULTI: u32 = 1 << 1;
const WORD: u32 = 4;
/// The programs call no function that asks for a certain one.
const LICENSE: &std::ffi::CStr = c"MIT OR Apache-2.0";
