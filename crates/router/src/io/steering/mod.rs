//! Steering: the kernel hands a datagram to the socket of the worker that its queue pair is on.
//!
//! All workers have a socket at the tunnel's port, and a program chooses one for each datagram. It reads the number of the queue
//! pair, at the place where [`wire`](rdmesh_nic::wire) puts it, and looks up the worker in a table, which the router keeps. The
//! table has fewer places than there are numbers, so it only advises: a datagram that comes to another worker is handed on. A
//! datagram that is not laid out as routers lay them out goes to any of them.
//!
//! Where the kernel gives the router no table (bpf(2) is mostly for the privileged), a program without one chooses the worker
//! on which the queue pair was made, if it never moved.

use super::raw::{self, Instruction};
use rdmesh_bpf::{Array, Instruction as Extended, Kind, Program};
use rdmesh_nic::wire::{geneve, header, ip};
use rdmesh_verbs::Qpn;
use rustix::io;
use std::os::fd::{AsFd, AsRawFd};

/// The table of a group of sockets.
#[derive(Debug)]
pub(crate) struct Steering(Array);

impl Steering {
    /// Has a program with a table choose among the sockets that share an address with `socket`. Their datagrams have so many
    /// bytes before the inner IP header.
    pub(super) fn start(socket: impl AsFd, geneve: usize) -> io::Result<Self> {
        let array = Array::new(PLACES)?;
        let program = Program::load(Kind::SOCKET, &by_table(geneve as u32, array.number()))?;
        let descriptor = program.as_fd().as_raw_fd();
        raw::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_EBPF, descriptor)?;
        Ok(Self(array))
    }

    /// Datagrams for a queue pair go to the socket of `worker` from now on.
    pub(crate) fn set(&self, qpn: Qpn, worker: u32) {
        if let Err(error) = self.0.set(qpn.value() & (PLACES - 1), worker) {
            tracing::debug!(%error, %qpn, "datagrams are handed on by the worker that gets them");
        }
    }
}

/// One step of a program: on bytes of the datagram, and on one number.
#[derive(Clone, Copy)]
enum Step {
    /// Loads two bytes.
    Half(u32),
    /// Loads four bytes.
    Word(u32),
    /// Skips so many steps unless the number is this one.
    SkipUnless(u32, u8),
    /// Skips so many steps.
    Skip(u8),
    /// Keeps these bits of the number.
    And(u32),
}

/// The steps that load the number of the queue pair.
fn number(geneve: u32, bits: u32) -> [Step; 6] {
    let dest = |ip: usize| Step::Word(geneve + (ip + header::DEST_WORD) as u32);
    [
        Step::Half(geneve::PROTOCOL as u32),
        Step::SkipUnless(geneve::IPV6.into(), 2),
        dest(ip::IPV6_LEN),
        Step::Skip(1),
        dest(ip::IPV4_LEN),
        Step::And(bits),
    ]
}

/// The program that chooses the worker on which a queue pair was made: numbers are dealt out in turn.
pub(super) fn by_number(workers: u32, geneve: usize) -> Vec<Instruction> {
    let op = |code: u32, k: u32| Instruction { code: code as u16, jt: 0, jf: 0, k };
    let mut program: Vec<_> = number(geneve as u32, NUMBER).iter().map(Step::classic).collect();
    program.push(op(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, workers));
    program.push(op(libc::BPF_RET | libc::BPF_A, 0));
    program
}

/// The program that looks the worker up in the table with number `map`.
fn by_table(geneve: u32, map: i32) -> Vec<Extended> {
    let op = |code, registers, offset, constant| Extended { code, registers, offset, constant };
    // Loads from the datagram find it by register 6, and leave their result in register 0.
    let mut program = vec![op(MOVE, 0x16, 0, 0)];
    program.extend(number(geneve, PLACES - 1).iter().map(Step::extended));
    program.extend([
        // The key lies on the stack, below what register 10 points to.
        op(STORE_WORD, 0x0a, -4, 0),
        op(MOVE, 0xa2, 0, 0),
        op(ADD, 0x02, 0, -4),
        op(LOAD_MAP, 0x11, 0, map),
        op(0, 0, 0, 0),
        op(CALL, 0, 0, MAP_LOOKUP),
        // Every key is in the table, which the kernel's checker does not know.
        op(SKIP_UNLESS, 0, 1, 0),
        op(EXIT, 0, 0, 0),
        op(LOAD_WORD, 0, 0, 0),
        op(EXIT, 0, 0, 0),
    ]);
    program
}

impl Step {
    fn classic(&self) -> Instruction {
        let op = |code: u32, k: u32| Instruction { code: code as u16, jt: 0, jf: 0, k };
        match *self {
            Self::Half(at) => op(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, at),
            Self::Word(at) => op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at),
            Self::SkipUnless(k, count) => {
                Instruction { jf: count, ..op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, k) }
            }
            Self::Skip(count) => op(libc::BPF_JMP | libc::BPF_JA, count.into()),
            Self::And(bits) => op(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, bits),
        }
    }

    fn extended(&self) -> Extended {
        let op = |code, offset: u8, k: u32| Extended {
            code,
            registers: 0,
            offset: offset.into(),
            constant: k.cast_signed(),
        };
        match *self {
            Self::Half(at) => op(LOAD_HALF_ABS, 0, at),
            Self::Word(at) => op(LOAD_WORD_ABS, 0, at),
            Self::SkipUnless(k, count) => op(SKIP_UNLESS, count, k),
            Self::Skip(count) => op(SKIP, count, 0),
            Self::And(bits) => op(AND, 0, bits),
        }
    }
}

/// The bits of a word that are the number of a queue pair.
const NUMBER: u32 = 0xff_ffff;
/// Places of the table, 8 bytes each. Numbers are dealt out from low ones on, so that few share a place.
const PLACES: u32 = 1 << 16;

/// Codes of instructions, from `linux/bpf.h` and `linux/bpf_common.h`.
const LOAD_WORD_ABS: u8 = 0x20;
const LOAD_HALF_ABS: u8 = 0x28;
const LOAD_WORD: u8 = 0x61;
const STORE_WORD: u8 = 0x63;
const LOAD_MAP: u8 = 0x18;
const MOVE: u8 = 0xbf;
const ADD: u8 = 0x07;
const AND: u8 = 0x54;
const SKIP: u8 = 0x05;
const SKIP_UNLESS: u8 = 0x55;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// The function `bpf_map_lookup_elem`.
const MAP_LOOKUP: i32 = 1;

#[cfg(test)]
mod tests;
