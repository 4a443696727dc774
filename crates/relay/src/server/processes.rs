//! Messages of the endpoint's processes, and the streams that they offer.

use super::{Asked, Server, Source};
use crate::mirror::Mirror;
use crate::process::Process;
use crate::stream::Stream;
use crate::wire::{Message, RemoteSlot};
use arrayvec::ArrayVec;
use rdmesh_streams::ends::{Ends, is_local};
use rdmesh_streams::message::{FDS, Message as Said, Received, VERSION};
use rdmesh_streams::ring::Slot;
use rdmesh_streams::ring::layout::SLOT;
use rdmesh_uverbs::shared::SharedMemory;
use rustix::event::epoll;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use rustix::rand::{GetRandomFlags, getrandom};
use std::sync::atomic::Ordering;

/// A slot that a process has offered, for the connection between `ends`.
struct Offered {
    process: u64,
    offer: u32,
    ends: Ends,
    slot: OwnedFd,
}

impl Server {
    /// Takes processes that have connected.
    pub(super) fn accept(&mut self) {
        while let Ok(socket) = accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            if self.processes.len() == PROCESSES {
                continue;
            }
            let number = self.next_process;
            let Ok(process) = Process::new(socket, self.doorbell.as_fd()) else { continue };
            let events = epoll::EventFlags::IN;
            if epoll::add(&self.epoll, process.socket(), Source::Process(number).data(), events).is_ok() {
                self.next_process += 1;
                self.processes.insert(number, process);
                self.counters.set_busy(true);
            }
        }
    }

    /// A process has said something, or has ended.
    pub(super) fn listen_to(&mut self, number: u64) {
        for _ in 0..TURN {
            let Some(process) = self.processes.get(&number) else { return };
            let heard = match Said::receive(process.socket()) {
                Err(Errno::AGAIN) => return,
                Ok(Some(received)) => self.hear(number, received),
                Ok(None) => Err(Errno::PIPE),
                Err(errno) => Err(errno),
            };
            if heard.is_err() {
                return self.remove_process(number);
            }
        }
    }

    /// Handles a message. A process that breaks the rules is not listened to any more.
    fn hear(&mut self, number: u64, Received { message, mut fds }: Received) -> Result<(), Errno> {
        let process = self.processes.get_mut(&number).ok_or(Errno::SRCH)?;
        match message {
            Said::Hello { version: VERSION } => {
                process.peer().take_inbox(&fds.pop().ok_or(Errno::PROTO)?)?;
                // It may have written to rings before its inbox was here.
                self.streams
                    .numbers(|stream| stream.process == number)
                    .into_iter()
                    .for_each(|stream| self.pump(stream));
                Ok(())
            }
            Said::Doorbell { waiter } => {
                if self.doorbells == DOORBELLS {
                    return Err(Errno::MFILE);
                }
                process.take_doorbell(waiter, fds.pop().ok_or(Errno::PROTO)?)?;
                self.doorbells += 1;
                Ok(())
            }
            Said::Offer { offer } => {
                if self.take_offer(number, offer, fds).is_err() {
                    self.answer(number, Said::Later { offer });
                }
                Ok(())
            }
            Said::Refuse { offer: index } => {
                let is_it = |asked: &Asked| asked.process == number && asked.index == index;
                if let Some(ends) = self.asked.iter().find(|(_, asked)| is_it(asked)).map(|(ends, _)| *ends) {
                    self.refuse_asked(&ends);
                }
                Ok(())
            }
            Said::Down { index } => {
                if let Some(stream) = self.streams.at(index).filter(|stream| stream.process == number) {
                    let stream = stream.number;
                    self.pump(stream);
                }
                Ok(())
            }
            _ => Err(Errno::PROTO),
        }
    }

    pub(super) fn answer(&mut self, process: u64, message: Said) {
        if let Some(process) = self.processes.get(&process) {
            // One that does not listen is found to have ended, or misses what it has asked for.
            process.say(message);
        }
    }

    /// A process ends: what it has written still goes to the other ends of its connections.
    fn remove_process(&mut self, number: u64) {
        if let Some(process) = self.processes.remove(&number) {
            let _ = epoll::delete(&self.epoll, process.socket());
            self.doorbells -= process.doorbells();
        }
        let asked = self.asked.iter().filter(|(_, asked)| asked.process == number).map(|(ends, _)| *ends);
        asked.collect::<Vec<_>>().iter().for_each(|ends| self.refuse_asked(ends));
        for stream in self.streams.numbers(|stream| stream.process == number) {
            if let Some(stream) = self.streams.get(stream) {
                stream.mirror.orphan();
            }
            self.pump(stream);
            if self.streams.get(stream).is_some_and(|stream| stream.remote.is_none()) {
                self.end(stream);
            }
        }
    }

    /// Takes the slot of a connection, whose socket has come with it and proves whose it is. What fails here is tried again later.
    fn take_offer(&mut self, process: u64, offer: u32, fds: ArrayVec<OwnedFd, FDS>) -> Result<(), Errno> {
        let [socket, slot] = fds.into_inner().map_err(|_| Errno::PROTO)?;
        let is_own = self.processes.get(&process).is_some_and(|process| process.shares_namespace(socket.as_fd()));
        let accepted = Ends::of(socket.as_fd(), false).filter(|_| is_own).ok_or(Errno::NOTCONN)?;
        if let Some(asked) = self.asked.get(&accepted).filter(|asked| asked.process == process) {
            let (trunk, remote, nonce) = (asked.trunk, asked.remote, asked.nonce);
            self.asked.remove(&accepted);
            let number = self.add_offered(Offered { process, offer, ends: accepted, slot }, trunk, 1)?;
            return self.join(number, remote, nonce);
        }
        let ends = Ends { connector: accepted.acceptor, acceptor: accepted.connector };
        if is_local(ends.connector.ip(), ends.acceptor.ip()) {
            return Err(Errno::HOSTUNREACH);
        }
        let trunk = self.trunk_to(ends.connector.ip(), ends.acceptor.ip())?;
        let number = self.add_offered(Offered { process, offer, ends, slot }, trunk, 0)?;
        if self.trunks.get(&trunk).is_some_and(|trunk| trunk.is_up) {
            self.ask(number);
        }
        Ok(())
    }

    /// Adds the stream of an offered slot; its process writes direction `tx`.
    fn add_offered(&mut self, offered: Offered, trunk: u32, tx: usize) -> Result<u32, Errno> {
        let pd = self.trunks.get(&trunk).ok_or(Errno::HOSTUNREACH)?.pd;
        let memory = SharedMemory::map(offered.slot.as_fd(), 0, SLOT, true)?;
        let slot = Slot::new(memory.clone()).ok_or(Errno::INVAL)?;
        let number = self.streams.claim().ok_or(Errno::NOBUFS)?;
        let region = match self.device.register(pd, &memory, offered.slot.as_fd()) {
            Ok(region) => region,
            Err(errno) => {
                self.streams.give_back(number);
                return Err(errno);
            }
        };
        let index = number % rdmesh_streams::inbox::STREAMS as u32;
        self.add_stream(Stream {
            number,
            process: offered.process,
            offer: offered.offer,
            ends: offered.ends,
            trunk,
            mirror: Mirror::new(slot, tx, index),
            region,
            remote: None,
            in_flight: 0,
            is_ending: false,
            has_limit: false,
            is_waiting: false,
        });
        Ok(number)
    }

    /// Asks the other relay for the other end of a stream.
    pub(super) fn ask(&mut self, number: u32) {
        let Some(stream) = self.streams.get(number) else { return };
        let Some(trunk) = self.trunks.get_mut(&stream.trunk) else { return };
        let mut bytes = [0; 16];
        // Without a random number the other end's way back to TCP is not recognised, and ends the connection.
        let _ = getrandom(&mut bytes, GetRandomFlags::empty());
        let words = u128::from_ne_bytes(bytes);
        let nonce = [words as u64, (words >> 64) as u64];
        stream.mirror.set_nonce(nonce);
        let slot = RemoteSlot { addr: stream.region.addr, rkey: stream.region.rkey };
        trunk.send(&self.device, Message::Ask { stream: number, slot, ends: stream.ends, nonce });
    }

    /// The process that has accepted a connection has offered its slot: the stream is whole.
    fn join(&mut self, number: u32, remote: crate::stream::Remote, nonce: [u64; 2]) -> Result<(), Errno> {
        let stream = self.streams.get(number).ok_or(Errno::INVAL)?;
        stream.remote = Some(remote);
        self.counters.add_stream();
        stream.mirror.set_nonce(nonce);
        std::sync::atomic::fence(Ordering::SeqCst);
        let slot = RemoteSlot { addr: stream.region.addr, rkey: stream.region.rkey };
        let (process, offer) = (stream.process, stream.offer);
        if let Some(trunk) = self.trunks.get_mut(&stream.trunk) {
            trunk.send(&self.device, Message::Found { asked: remote.stream, stream: number, slot });
        }
        self.answer(process, Said::Accept { offer });
        self.pump(number);
        Ok(())
    }
}

/// Most processes of an endpoint that are linked, and doorbells that they have sent: descriptors of the router.
const PROCESSES: usize = 256;
const DOORBELLS: usize = 1024;
/// Messages of a process that are handled before others have their turn.
const TURN: usize = 64;
