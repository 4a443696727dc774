//! uverbs commands: a `write()` on the command descriptor.
#![allow(unsafe_code)]

use super::channel::Reply;
use super::completion;
use super::context::{Context, borrow};
use super::doorbell;
use super::response::Response;
use crate::memory::{self, Registration};
use crate::{descriptors, polling};
use rdmesh_uverbs::abi::{
    CommandHeader, CreateCq, EXTENDED, ExCreateCq, ExtendedCommandHeader, MmapInfo, ModifySrq, RegMr, RxeModifySrq,
    number,
};
use rdmesh_uverbs::session::FdUse;
use rustix::fd::{IntoRawFd, RawFd};
use rustix::io::Errno;
use std::borrow::Cow;
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes};

const GET_CONTEXT: u32 = number::GET_CONTEXT as u32;
const REG_MR: u32 = number::REG_MR as u32;
const CREATE_COMP_CHANNEL: u32 = number::CREATE_COMP_CHANNEL as u32;
const CREATE_CQ: u32 = number::CREATE_CQ as u32;
const MODIFY_SRQ: u32 = number::MODIFY_SRQ as u32;
const EX_CREATE_CQ: u32 = CREATE_CQ | EXTENDED;

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
    let Some(context) = descriptors::get::<Context>(fd) else { return Written::Foreign };
    let _gate = memory::gate();
    // SAFETY: a number that the program closes meanwhile gives EBADF.
    if !context.owns(unsafe { borrow(fd) }) {
        descriptors::forget(fd);
        return Written::Foreign;
    }
    Written::Command(Command::parse(bytes).and_then(|command| command.execute(&context)))
}

/// A command with a well-formed header.
pub(super) struct Command<'a> {
    bytes: &'a [u8],
    /// With [`EXTENDED`].
    number: u32,
    /// The core's request, and the provider's.
    body: &'a [u8],
    response: Response,
}

impl<'a> Command<'a> {
    /// Checks the header as the kernel does (`verify_hdr`).
    fn parse(bytes: &'a [u8]) -> Result<Self, Errno> {
        let (header, rest) = read::<CommandHeader>(bytes)?;
        let (in_words, out_words) = (usize::from(header.in_words), usize::from(header.out_words));
        let (body, response) = if header.command & EXTENDED != 0 {
            let (extended, body) = read::<ExtendedCommandHeader>(rest)?;
            let in_words = in_words + usize::from(extended.provider_in_words);
            let len = (out_words + usize::from(extended.provider_out_words)) * 8;
            if body.len() != in_words * 8 || (extended.response == 0) != (len == 0) {
                return Err(Errno::INVAL);
            }
            (body, Response { address: extended.response, len })
        } else {
            if bytes.len() != in_words * 4 {
                return Err(Errno::INVAL);
            }
            // Every request that is answered begins with the address for that.
            let address = if out_words == 0 { 0 } else { read::<u64>(rest)?.0 };
            (rest, Response { address, len: out_words * 4 })
        };
        Ok(Self { bytes, number: header.command, body, response })
    }

    /// A command that the library made; its response is returned to the caller that executes it.
    pub(super) fn composed(bytes: &'a [u8]) -> Result<Self, Errno> {
        let (header, rest) = read::<CommandHeader>(bytes)?;
        let body = if header.command & EXTENDED != 0 { read::<ExtendedCommandHeader>(rest)?.1 } else { rest };
        Ok(Self { bytes, number: header.command, body, response: Response { address: 0, len: 0 } })
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
        if let Some(queue) = context.polled().take_queue() {
            polling::adopt(queue, context.polled());
        }
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
                    // A device that had this number has been closed in a way that was not seen.
                    descriptors::forget(number);
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
            context.polled().has_queue(queue);
        }
        self.return_mminfo(&reply);
        Ok(())
    }

    /// The program's address of the completion queue that the command makes: libibverbs' user handle.
    fn made_queue(&self) -> Option<u64> {
        match self.number {
            CREATE_CQ => self.request::<CreateCq>().map(|request| request.user_handle),
            EX_CREATE_CQ => self.request::<ExCreateCq>().map(|request| request.user_handle),
            _ => None,
        }
    }

    /// The command, in which CREATE_CQ names its channel by the router's number instead of the program's descriptor.
    fn with_channel_number(&self, context: &Context) -> Result<Cow<'a, [u8]>, Errno> {
        match self.number {
            CREATE_CQ => self.with_number::<CreateCq>(context, |request| &mut request.comp_channel),
            EX_CREATE_CQ => self.with_number::<ExCreateCq>(context, |request| &mut request.comp_channel),
            _ => Ok(Cow::Borrowed(self.bytes)),
        }
    }

    /// A command that is too short is left to the router, which refuses it.
    fn with_number<T: FromBytes + IntoBytes + Immutable>(
        &self,
        context: &Context,
        channel: impl FnOnce(&mut T) -> &mut i32,
    ) -> Result<Cow<'a, [u8]>, Errno> {
        let Ok((mut request, rest)) = read::<T>(self.body) else { return Ok(Cow::Borrowed(self.bytes)) };
        let channel = channel(&mut request);
        if *channel < 0 {
            return Ok(Cow::Borrowed(self.bytes));
        }
        *channel = completion::number(context, *channel)?.cast_signed();
        let headers = &self.bytes[..self.bytes.len() - self.body.len()];
        Ok(Cow::Owned([headers, request.as_bytes(), rest].concat()))
    }

    /// Makes the memory of a REG_MR ready for the router.
    fn register(&self) -> Result<Registration, Errno> {
        match self.request::<RegMr>() {
            Some(request) if self.number == REG_MR => {
                memory::register(request.start, request.length, request.access_flags)
            }
            _ => Ok(Registration::default()),
        }
    }

    /// rxe's MODIFY_SRQ returns the new queue's place through a pointer behind the command.
    fn return_mminfo(&self, reply: &Reply<'_>) {
        if self.number == MODIFY_SRQ
            && let Some(info) = reply.mminfo()
            && let Ok((_, driver)) = read::<ModifySrq>(self.body)
            && let Ok((RxeModifySrq { mmap_info_addr }, _)) = read(driver)
        {
            Response { address: mmap_info_addr, len: size_of::<MmapInfo>() }.fill(&info);
        }
    }

    /// The core's request; none where the command is too short for it.
    fn request<T: FromBytes>(&self) -> Option<T> {
        read(self.body).ok().map(|(request, _)| request)
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

/// The struct that `bytes` begin with, and what follows it.
fn read<T: FromBytes>(bytes: &[u8]) -> Result<(T, &[u8]), Errno> {
    T::read_from_prefix(bytes).map_err(|_| Errno::INVAL)
}
