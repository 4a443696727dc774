//! Extended BPF: programs as instructions, and the kernel's calls that check and attach them.
//!
//! Only what the router needs of bpf(2): tables of words, a word for each socket, and programs that choose a socket or that hold
//! the sockets of a control group to their addresses. Programs are written with an [`Assembler`], so that no compiler for them is
//! needed where rdmesh is built.

mod assembler;
mod kernel;

pub use assembler::{Assembler, Function, Instruction, Label, Register};
pub use kernel::{Array, Attachment, Kind, Program, SocketStorage};
