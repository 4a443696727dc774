//! uverbs commands: a `write()` on the command descriptor.
#![allow(unsafe_code)]

use super::channel::Reply;
use super::completion;
use super::context::{Context, borrow};
use super::doorbell;
use super::response::Response;
use crate::descriptors::{self, Kind, TABLE};
use crate::memory::{self, Registration};
use rdmesh_uverbs::abi::number;
use rdmesh_uverbs::session::FdUse;
use rustix::fd::{IntoRawFd, RawFd};
use rustix::io::Errno;
use std::borrow::Cow;
use std::sync::Arc;

const EXTENDED: u32 = 0x8000_0000;
const GET_CONTEXT: u32 = number::GET_CONTEXT as u32;
const REG_MR: u32 = number::REG_MR as u32;
const CREATE_COMP_CHANNEL: u32 = number::CREATE_COMP_CHANNEL as u32;
const CREATE_CQ: u32 = number::CREATE_CQ as u32;
const MODIFY_SRQ: u32 = number::MODIFY_SRQ as u32;
/// `ib_uverbs_cmd_hdr`.
const HEADER_LEN: usize = 8;
/// The same and `ib_uverbs_ex_cmd_hdr`.
const EXTENDED_HEADER_LEN: usize = 24;
/// The same and `ib_uverbs_reg_mr`.
const REG_MR_LEN: usize = 48;
/// Where `rxe_modify_srq_cmd.mmap_info_addr` follows `ib_uverbs_modify_srq`.
const MMINFO_ADDR_AT: usize = 24;
const MMINFO_LEN: usize = 16;

/// Result of a `write`.
pub(crate) enum Written {
    /// A command, with its result.
    Command(Result<(), Errno>),
    /// Not for the device: the descriptor was closed and reused meanwhile.
    Foreign,
}

/// Executes the command in `bytes`, which the program wrote to `fd`, a descriptor of `context`.
#[inline]
pub(crate) fn write(context: &Context, fd: RawFd, bytes: &[u8]) -> Written {
    match doorbell::answer(context, bytes) {
        Some(result) => Written::Command(result),
        None => send(fd, bytes),
    }
}

#[cold]
#[inline(never)]
fn send(fd: RawFd, bytes: &[u8]) -> Written {
    let Some(Kind::Device(context)) = descriptors::kind(fd) else { return Written::Foreign };
    let _gate = memory::gate();
    // SAFETY: a number that the program closes meanwhile gives EBADF.
    if !context.owns(unsafe { borrow(fd) }) {
        TABLE.forget(fd);
        return Written::Foreign;
    }
    Written::Command(Command::parse(bytes).and_then(|command| command.execute(&context)))
}

/// A command with a well-formed header.
pub(super) struct Command<'a> {
    bytes: &'a [u8],
    number: u32,
    response: Response,
}

impl<'a> Command<'a> {
    /// Checks the header as the kernel does (`verify_hdr`).
    fn parse(bytes: &'a [u8]) -> Result<Self, Errno> {
        let number = u32::from_ne_bytes(read(bytes, 0)?);
        let in_words = usize::from(u16::from_ne_bytes(read(bytes, 4)?));
        let out_words = usize::from(u16::from_ne_bytes(read(bytes, 6)?));
        let response = if number & EXTENDED != 0 {
            let address = u64::from_ne_bytes(read(bytes, 8)?);
            let provider_in = usize::from(u16::from_ne_bytes(read(bytes, 16)?));
            let provider_out = usize::from(u16::from_ne_bytes(read(bytes, 18)?));
            let len = (out_words + provider_out) * 8;
            if bytes.len() != EXTENDED_HEADER_LEN + (in_words + provider_in) * 8 || (address == 0) != (len == 0) {
                return Err(Errno::INVAL);
            }
            Response { address, len }
        } else {
            if bytes.len() != in_words * 4 || bytes.len() < HEADER_LEN {
                return Err(Errno::INVAL);
            }
            let address = if out_words == 0 { 0 } else { u64::from_ne_bytes(read(bytes, HEADER_LEN)?) };
            Response { address, len: out_words * 4 }
        };
        Ok(Self { bytes, number, response })
    }

    /// A command that the library made; its response is returned to the caller that executes it.
    pub(super) fn composed(bytes: &'a [u8]) -> Result<Self, Errno> {
        let number = u32::from_ne_bytes(read(bytes, 0)?);
        Ok(Self { bytes, number, response: Response { address: 0, len: 0 } })
    }

    fn execute(&self, context: &Arc<Context>) -> Result<(), Errno> {
        self.execute_with(context, |response| self.response.fill(response))
    }

    /// Executes the command, and lets `deliver` take the response where it belongs.
    pub(super) fn execute_with(&self, context: &Arc<Context>, deliver: impl FnOnce(&[u8])) -> Result<(), Errno> {
        let mut deliver = Some(deliver);
        let mut deliver = |response: &[u8]| deliver.take().map_or((), |deliver| deliver(response));
        match self.attempt(context, &mut deliver) {
            // The router found a page missing that was present before: the program removed it by a call that is not replaced.
            Err(Errno::FAULT) if self.number == REG_MR => {
                memory::distrust();
                self.attempt(context, &mut deliver)
            }
            done => done,
        }
    }

    fn attempt(&self, context: &Arc<Context>, deliver: &mut impl FnMut(&[u8])) -> Result<(), Errno> {
        context.find_functions();
        let bytes = self.with_channel_number(context)?;
        let registration = self.register()?;
        let mut state = context.lock();
        let connection = context.connection(&mut state)?;
        // SAFETY: the connection stays open while the state is locked.
        let socket = unsafe { borrow(connection) };
        if registration.has_private() {
            memory::allow_router(socket);
        }
        let mut reply = state.channel.call_filling(socket, &bytes, &registration, context.queues())?;
        for received in reply.take_fds() {
            match received.purpose {
                FdUse::Install => {
                    let number = received.fd.into_raw_fd();
                    let channel = install(&mut reply, received.place, number)?;
                    match self.number {
                        CREATE_COMP_CHANNEL => completion::add(context, number, channel),
                        GET_CONTEXT => context.events().made(number),
                        _ => {}
                    }
                }
                FdUse::Open => {}
            }
        }
        deliver(reply.response());
        if let Some(queue) = self.made_queue() {
            context.has_queue(queue);
        }
        self.return_mminfo(&reply);
        Ok(())
    }

    /// The program's address of the completion queue that the command makes: libibverbs' user handle.
    fn made_queue(&self) -> Option<u64> {
        let at = match self.number {
            CREATE_CQ => HEADER_LEN + 8,
            number if number == CREATE_CQ | EXTENDED => EXTENDED_HEADER_LEN,
            _ => return None,
        };
        read(self.bytes, at).map(u64::from_ne_bytes).ok()
    }

    /// The command, in which CREATE_CQ names its channel by the router's number instead of the program's descriptor.
    fn with_channel_number(&self, context: &Context) -> Result<Cow<'a, [u8]>, Errno> {
        let at = match self.number {
            CREATE_CQ => HEADER_LEN + 24,
            number if number == CREATE_CQ | EXTENDED => EXTENDED_HEADER_LEN + 16,
            _ => return Ok(Cow::Borrowed(self.bytes)),
        };
        let fd = i32::from_ne_bytes(read(self.bytes, at)?);
        if fd < 0 {
            return Ok(Cow::Borrowed(self.bytes));
        }
        let mut bytes = self.bytes.to_vec();
        bytes[at..at + 4].copy_from_slice(&completion::number(context, fd)?.to_ne_bytes());
        Ok(Cow::Owned(bytes))
    }

    /// Makes the memory of a REG_MR ready for the router.
    fn register(&self) -> Result<Registration, Errno> {
        if self.number != REG_MR || self.bytes.len() < REG_MR_LEN {
            return Ok(Registration::default());
        }
        let start = u64::from_ne_bytes(read(self.bytes, 16)?);
        let len = u64::from_ne_bytes(read(self.bytes, 24)?);
        let access = u32::from_ne_bytes(read(self.bytes, 44)?);
        memory::register(start, len, access)
    }

    /// rxe's MODIFY_SRQ returns the new queue's place through a pointer behind the command.
    fn return_mminfo(&self, reply: &Reply<'_>) {
        let (MODIFY_SRQ, Some(info)) = (self.number, reply.mminfo()) else { return };
        if let Ok(address) = read(self.bytes, MMINFO_ADDR_AT).map(u64::from_ne_bytes) {
            Response { address, len: MMINFO_LEN }.fill(&info);
        }
    }
}

/// Puts the number of a descriptor that is now the program's into the response; returns what stood there.
fn install(reply: &mut Reply<'_>, at: u64, number: RawFd) -> Result<u32, Errno> {
    let place = usize::try_from(at).ok().and_then(|at| reply.response_mut().get_mut(at..)?.first_chunk_mut());
    match place {
        Some(place) => {
            let before = std::mem::replace(place, number.to_ne_bytes());
            Ok(u32::from_ne_bytes(before))
        }
        None => {
            super::link::discard(number);
            Err(Errno::IO)
        }
    }
}

fn read<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], Errno> {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().ok_or(Errno::INVAL)
}
