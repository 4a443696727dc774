//! Connections to other relays, and what those say.

use super::{Asked, PORT, Server};
use crate::device::cm::{CmId, Event};
use crate::mirror::Changed;
use crate::stream::Remote;
use crate::trunk::{Trunk, Work};
use crate::wire::{self, BATCH, Message, Received};
use rdmesh_streams::ends::Ends;
use rdmesh_streams::message::Message as Said;
use rdmesh_streams::ring::Corrupt;
use rdmesh_uverbs::abi::WorkCompletion;
use rustix::io::Errno;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

impl Server {
    /// The trunk from one of the endpoint's addresses to another relay, made where there is none.
    pub(super) fn trunk_to(&mut self, local: IpAddr, peer: IpAddr) -> Result<u32, Errno> {
        let is_it = |trunk: &&Trunk| trunk.local == local && trunk.peer == peer;
        if let Some(trunk) = self.trunks.values().find(is_it) {
            return Ok(trunk.number);
        }
        let now = Instant::now();
        self.unreachable.retain(|_, until| *until > now);
        if self.unreachable.contains_key(&peer) || self.trunks.len() == TRUNKS {
            return Err(Errno::HOSTUNREACH);
        }
        let begun = self.cm.resolve(local, SocketAddr::new(peer, PORT)).and_then(|id| self.add_trunk(id, local, peer));
        if begun.is_err() {
            self.unreachable.insert(peer, now + UNREACHABLE);
        }
        begun
    }

    fn add_trunk(&mut self, id: CmId, local: IpAddr, peer: IpAddr) -> Result<u32, Errno> {
        let pd = match self.device.alloc_pd() {
            Ok(pd) => pd,
            Err(errno) => {
                self.cm.destroy(id);
                return Err(errno);
            }
        };
        let number = self.next_trunk;
        self.next_trunk = (number + 1) % (1 << 30);
        self.trunks.insert(number, Trunk::new(number, id, local, peer, pd));
        Ok(number)
    }

    fn number_of(&self, id: CmId) -> Option<u32> {
        self.trunks.values().find(|trunk| trunk.id == id).map(|trunk| trunk.number)
    }

    /// Something has happened to a connection.
    pub(super) fn take_event(&mut self, id: CmId, event: Event) {
        let done = match event {
            Event::Request => self.take_request(id),
            Event::AddressResolved => self.cm.resolve_route(id),
            Event::RouteResolved => self.connect(id),
            Event::Accepted => self.accepted(id),
            Event::Established => {
                self.set_up(id);
                Ok(())
            }
            Event::Ended => Err(Errno::CONNRESET),
            Event::Other => Ok(()),
        };
        if let Err(errno) = done
            && let Some(number) = self.number_of(id)
        {
            tracing::debug!(%errno, ?event, "a connection to another relay ends");
            self.remove_trunk(number);
        }
    }

    /// Another relay asks for a trunk.
    fn take_request(&mut self, id: CmId) -> Result<(), Errno> {
        let addresses = if self.trunks.len() == TRUNKS { Err(Errno::NOBUFS) } else { self.cm.addresses(id) };
        let (local, peer) = match addresses {
            Ok(addresses) => addresses,
            Err(errno) => {
                self.cm.destroy(id);
                return Err(errno);
            }
        };
        let number = self.add_trunk(id, local, peer)?;
        let qpn = self.prepare(number)?;
        self.modify(number, &[RTR, RTS])?;
        self.cm.accept(id, Some(qpn))
    }

    /// Makes a trunk's queue pair; returns its number.
    fn prepare(&mut self, number: u32) -> Result<u32, Errno> {
        let trunk = self.trunks.get_mut(&number).ok_or(Errno::INVAL)?;
        let attributes = self.cm.attributes(trunk.id, INIT)?;
        let qpn = trunk.make_qp(&mut self.device)?;
        self.device.modify_qp(trunk.qp()?, &attributes)?;
        Ok(qpn)
    }

    fn modify(&mut self, number: u32, states: &[u32]) -> Result<(), Errno> {
        let trunk = self.trunks.get(&number).ok_or(Errno::INVAL)?;
        for state in states {
            let attributes = self.cm.attributes(trunk.id, *state)?;
            self.device.modify_qp(trunk.qp()?, &attributes)?;
        }
        Ok(())
    }

    fn connect(&mut self, id: CmId) -> Result<(), Errno> {
        let number = self.number_of(id).ok_or(Errno::INVAL)?;
        let qpn = self.prepare(number)?;
        self.cm.connect(id, qpn)
    }

    fn accepted(&mut self, id: CmId) -> Result<(), Errno> {
        let number = self.number_of(id).ok_or(Errno::INVAL)?;
        self.modify(number, &[RTR, RTS])?;
        self.cm.accept(id, None)?;
        self.set_up(id);
        Ok(())
    }

    /// A trunk can be used: streams that wait for it ask for their other ends.
    fn set_up(&mut self, id: CmId) {
        let Some(number) = self.number_of(id) else { return };
        if let Some(trunk) = self.trunks.get_mut(&number) {
            trunk.is_up = true;
            trunk.flush(&self.device);
        }
        self.streams
            .numbers(|stream| stream.trunk == number && stream.remote.is_none() && stream.mirror.tx() == 0)
            .into_iter()
            .for_each(|stream| self.ask(stream));
    }

    /// A trunk has ended, or could not be made: its streams go back to TCP.
    pub(super) fn remove_trunk(&mut self, number: u32) {
        let Some(mut trunk) = self.trunks.remove(&number) else { return };
        if !trunk.is_up {
            self.unreachable.insert(trunk.peer, Instant::now() + UNREACHABLE);
        }
        let was_up = trunk.is_up;
        trunk.close(&mut self.device);
        self.cm.destroy(trunk.id);
        self.asked.retain(|_, asked| asked.trunk != number);
        for stream_number in self.streams.numbers(|stream| stream.trunk == number) {
            if let Some(stream) = self.streams.get(stream_number) {
                // The queue pair's completions do not come any more.
                stream.in_flight = 0;
                let (process, offer) = (stream.process, stream.offer);
                if !was_up {
                    self.answer(process, Said::Later { offer });
                    self.end(stream_number);
                    continue;
                }
            }
            // The other end may have its rings already.
            self.lose(stream_number);
        }
        // Its regions have gone.
        let _ = self.device.dealloc_pd(trunk.pd);
    }

    /// Handles a completion.
    pub(super) fn take_completion(&mut self, completion: &WorkCompletion) {
        let (number, received) = match Work::of(completion.wr_id) {
            Work::Received { trunk, buffer } => (trunk, Some(buffer)),
            Work::Sent { trunk, stream } => {
                if let Some(stream) = stream.filter(|_| completion.status == 0) {
                    self.bytes_sent(stream);
                }
                (trunk, None)
            }
        };
        if completion.status != 0 {
            return self.remove_trunk(number);
        }
        if let Some(buffer) = received {
            self.take_received(number, buffer, completion);
        }
        self.drain_backlog(number);
    }

    fn bytes_sent(&mut self, number: u32) {
        let Some(stream) = self.streams.get(number) else { return };
        stream.in_flight = stream.in_flight.saturating_sub(1);
        if stream.is_ending {
            self.end(number);
        }
    }

    /// Streams that have waited for room have their turn.
    fn drain_backlog(&mut self, number: u32) {
        let Some(trunk) = self.trunks.get_mut(&number) else { return };
        if !trunk.flush(&self.device) {
            return;
        }
        let waiting = std::mem::take(&mut trunk.backlog);
        for stream in waiting {
            if let Some(stream) = self.streams.get(stream) {
                stream.is_waiting = false;
            }
            self.pump(stream);
        }
    }

    fn take_received(&mut self, number: u32, buffer: u32, completion: &WorkCompletion) {
        let Some(trunk) = self.trunks.get_mut(&number) else { return };
        let batch = if completion.opcode == RECV { trunk.received(buffer) } else { None };
        trunk.post_buffer(&self.device, buffer);
        // Its first message may be faster than the word that the connection is there.
        trunk.is_up = true;
        match batch {
            Some(words) => self.take_batch(number, &words.as_bytes()[..BATCH.min(completion.byte_len as usize)]),
            None if completion.opcode == RECV_RDMA_WITH_IMM => {
                let stream = u32::from_be(completion.ex);
                self.counters.add_received(completion.byte_len.into());
                self.change(number, stream, |mirror| mirror.on_bytes(completion.byte_len));
            }
            None => self.remove_trunk(number),
        }
    }

    fn take_batch(&mut self, number: u32, batch: &[u8]) {
        for received in wire::parse(batch) {
            match received {
                Some(Received::Message(message)) => self.take_message(number, message),
                Some(Received::Bytes { stream, bytes }) => {
                    self.counters.add_received(bytes.len() as u64);
                    self.change(number, stream, |mirror| mirror.on_few_bytes(bytes));
                }
                None => return self.remove_trunk(number),
            }
        }
        if self.trunks.get(&number).is_some_and(Trunk::is_stuck) {
            self.remove_trunk(number);
        }
    }

    fn take_message(&mut self, number: u32, message: Message) {
        match message {
            Message::Ask { stream, slot, ends, nonce } => {
                if self.take_ask(number, Remote { stream, slot }, ends, nonce).is_none()
                    && let Some(trunk) = self.trunks.get_mut(&number)
                {
                    trunk.send(&self.device, Message::Unknown { asked: stream });
                }
            }
            Message::Found { asked, stream, slot } => self.take_found(number, asked, Remote { stream, slot }),
            Message::Unknown { asked } => {
                let Some(stream) = self.streams.get(asked).filter(|stream| stream.trunk == number) else { return };
                if stream.remote.is_none() {
                    let (process, offer) = (stream.process, stream.offer);
                    self.answer(process, Said::Later { offer });
                    self.end(asked);
                }
            }
            Message::State { stream, state } => self.change(number, stream, |mirror| mirror.on_state(state)),
            Message::End { stream } => {
                let is_own = self.streams.get(stream).is_some_and(|stream| stream.trunk == number);
                if is_own {
                    self.ended(stream);
                }
            }
        }
    }

    /// The other end has ended a stream. Where it has not said so before, its bytes are not complete.
    fn ended(&mut self, number: u32) {
        let Some(stream) = self.streams.get(number) else { return };
        if !stream.mirror.has_heard_end() {
            let (index, process) = (stream.index_in_process(), stream.process);
            self.counters.add_lost();
            self.answer(process, Said::Lost { index });
        }
        self.end(number);
    }

    /// Another relay asks for a connection that a process here has accepted.
    fn take_ask(&mut self, number: u32, remote: Remote, ends: Ends, nonce: [u64; 2]) -> Option<()> {
        let trunk = self.trunks.get(&number)?;
        // A relay speaks for its own endpoint's address only.
        if (ends.connector.ip(), ends.acceptor.ip()) != (trunk.peer, trunk.local) || self.asked.len() == ASKED {
            return None;
        }
        let key = ends.hash();
        let found = |(process, known): (&u64, &crate::process::Process)| Some((*process, known.find_accepted(key)?));
        let (process, index) = self.processes.iter().find_map(found)?;
        if self.asked.contains_key(&ends) || !self.processes.get(&process)?.say(Said::Want { index }) {
            return None;
        }
        let until = Instant::now() + ANSWER;
        self.asked.insert(ends, Asked { trunk: number, remote, nonce, process, index, until });
        Some(())
    }

    /// The other end of a stream is there.
    fn take_found(&mut self, number: u32, asked: u32, remote: Remote) {
        let Some(stream) = self.streams.get(asked).filter(|stream| stream.trunk == number) else { return };
        if stream.remote.is_some() || stream.is_ending {
            return;
        }
        stream.remote = Some(remote);
        self.counters.add_stream();
        let (process, offer) = (stream.process, stream.offer);
        self.answer(process, Said::Accept { offer });
        self.pump(asked);
    }

    /// Enters what the other end of a stream has sent, and tells its process.
    fn change(
        &mut self,
        number: u32,
        stream: u32,
        enter: impl FnOnce(&mut crate::mirror::Mirror) -> Result<Changed, Corrupt>,
    ) {
        let Some(known) = self.streams.get(stream).filter(|stream| stream.trunk == number && !stream.is_ending) else {
            return;
        };
        let Ok(changed) = enter(&mut known.mirror) else { return self.lose(stream) };
        if let Some(process) = self.processes.get(&known.process) {
            known.signal(process, changed);
            if changed.is_frozen {
                process.say(Said::Down { index: known.index_in_process() });
            }
        }
        self.pump(stream);
    }
}

/// Time for which an address is taken to have no relay.
const UNREACHABLE: Duration = Duration::from_millis(200);
/// Time for a process to offer a connection that it has accepted.
const ANSWER: Duration = Duration::from_secs(2);
/// Most trunks of a relay; their completions fit its completion queue.
const TRUNKS: usize = 120;
/// Most streams that wait for a process.
const ASKED: usize = 4096;
/// `enum ibv_qp_state`.
const INIT: u32 = 1;
const RTR: u32 = 2;
const RTS: u32 = 3;
/// `enum ibv_wc_opcode`.
const RECV: u32 = 128;
const RECV_RDMA_WITH_IMM: u32 = 129;
