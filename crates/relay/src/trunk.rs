//! Trunk: the reliable connection between this relay and another one, which all streams between the two endpoints share.

use crate::device::cm::CmId;
use crate::device::{Device, Pd, QueuePair, Region, Request};
use crate::wire::{self, Message};
use rdmesh_uverbs::shared::SharedMemory;
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::net::IpAddr;
use zerocopy::IntoBytes;

/// A trunk. Its regions are in a protection domain of its own: a peer reaches the slots of its own streams only.
pub(crate) struct Trunk {
    pub(crate) number: u32,
    pub(crate) id: CmId,
    pub(crate) local: IpAddr,
    pub(crate) peer: IpAddr,
    pub(crate) is_up: bool,
    /// The worker has not been told of requests.
    is_quiet: bool,
    pub(crate) pd: Pd,
    qp: Option<(QueuePair, Buffers)>,
    /// Messages for which there was no room.
    queue: VecDeque<Message>,
    /// Streams that have something to send, for which there was none.
    pub(crate) backlog: VecDeque<u32>,
}

/// Memory for received messages.
struct Buffers {
    memory: SharedMemory,
    region: Region,
}

/// What a completion is about: the `wr_id`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    /// A received message or bytes, in this buffer.
    Received { trunk: u32, buffer: u32 },
    /// Bytes of a stream, or a message (none), that have been sent.
    Sent { trunk: u32, stream: Option<u32> },
}

impl Work {
    fn id(self) -> u64 {
        match self {
            Self::Received { trunk, buffer } => RECEIVED | u64::from(trunk) << 32 | u64::from(buffer),
            Self::Sent { trunk, stream } => u64::from(trunk) << 32 | stream.map_or(0, |stream| u64::from(stream) + 1),
        }
    }

    /// That of a completion.
    pub(crate) fn of(id: u64) -> Self {
        let (trunk, low) = ((id & !RECEIVED) >> 32, id as u32);
        let trunk = trunk as u32;
        match id & RECEIVED {
            0 => Self::Sent { trunk, stream: low.checked_sub(1) },
            _ => Self::Received { trunk, buffer: low },
        }
    }
}

impl Trunk {
    /// A trunk without a queue pair.
    pub(crate) fn new(number: u32, id: CmId, (local, peer): (IpAddr, IpAddr), pd: Pd) -> Self {
        let (queue, backlog) = (VecDeque::new(), VecDeque::new());
        Self { number, id, local, peer, is_up: false, is_quiet: false, pd, qp: None, queue, backlog }
    }

    /// Makes its queue pair; returns the number.
    pub(crate) fn make_qp(&mut self, device: &mut Device) -> Result<u32, Errno> {
        let qp = device.create_qp(self.pd, REQUESTS, wire::LEN as u32)?;
        let count = qp.receive_capacity();
        let (memory, fd) = SharedMemory::create("rdmesh-relay-buffers", count as usize * wire::LEN)?;
        let region = device.register(self.pd, &memory, fd.as_fd())?;
        let qpn = qp.qpn;
        self.qp = Some((qp, Buffers { memory, region }));
        (0..count).for_each(|buffer| self.post_buffer(device, buffer));
        Ok(qpn)
    }

    /// Its queue pair.
    pub(crate) fn qp(&self) -> Result<&QueuePair, Errno> {
        self.qp.as_ref().map(|(qp, _)| qp).ok_or(Errno::INVAL)
    }

    /// A buffer can be received into, again.
    pub(crate) fn post_buffer(&mut self, device: &Device, buffer: u32) {
        if let Some((qp, buffers)) = &mut self.qp {
            let work = Work::Received { trunk: self.number, buffer };
            let offset = u64::from(buffer) * wire::LEN as u64;
            device.post_recv(qp, work.id(), &buffers.region, offset, wire::LEN as u32);
        }
    }

    /// The message in a buffer; none where it is none.
    pub(crate) fn message(&self, buffer: u32) -> Option<Message> {
        let (_, buffers) = self.qp.as_ref()?;
        let mut words = [0u64; wire::LEN / 8];
        let at = buffer as usize * wire::LEN;
        (at + wire::LEN <= buffers.memory.len()).then(|| buffers.memory.part(at, wire::LEN).load(&mut words))?;
        Message::parse(words.as_bytes().try_into().ok()?)
    }

    /// Sends a message, now or when there is room.
    pub(crate) fn send(&mut self, device: &Device, message: Message) {
        if !self.try_send(device, message) {
            self.queue.push_back(message);
        }
    }

    /// Sends a message if there is room.
    pub(crate) fn try_send(&mut self, device: &Device, message: Message) -> bool {
        self.queue.is_empty()
            && self.post(device, Work::Sent { trunk: self.number, stream: None }, &Request::Send(&message.encode()))
    }

    /// Sends bytes of stream `stream` if there is room.
    pub(crate) fn try_write(&mut self, device: &Device, stream: u32, request: &Request<'_>) -> bool {
        self.queue.is_empty() && self.post(device, Work::Sent { trunk: self.number, stream: Some(stream) }, request)
    }

    fn post(&mut self, device: &Device, work: Work, request: &Request<'_>) -> bool {
        let Some((qp, _)) = self.qp.as_mut().filter(|_| self.is_up) else { return false };
        let is_posted = device.post_send(qp, work.id(), request);
        self.is_quiet |= is_posted;
        is_posted
    }

    /// Tells the worker of what has been posted since the last call.
    pub(crate) fn ring(&mut self, device: &Device) {
        if let Some((qp, _)) = self.qp.as_ref().filter(|_| self.is_quiet) {
            device.ring(qp);
            self.is_quiet = false;
        }
    }

    /// There may be room again: sends messages that wait. Returns whether there is more room.
    pub(crate) fn flush(&mut self, device: &Device) -> bool {
        while let Some(message) = self.queue.pop_front() {
            if !self.try_send_first(device, message) {
                self.queue.push_front(message);
                return false;
            }
        }
        true
    }

    fn try_send_first(&mut self, device: &Device, message: Message) -> bool {
        self.post(device, Work::Sent { trunk: self.number, stream: None }, &Request::Send(&message.encode()))
    }

    /// Gives back what it has, but for the protection domain, whose other regions may be streams'.
    pub(crate) fn close(&mut self, device: &mut Device) {
        if let Some((qp, buffers)) = self.qp.take() {
            // What the router has lost already need not be given back.
            let _ = device.destroy_qp(&qp);
            let _ = device.deregister(buffers.region);
        }
        self.is_up = false;
    }
}

/// Requests in flight each way. A trunk has twice as many completions.
const REQUESTS: u32 = 127;
const RECEIVED: u64 = 1 << 63;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_say_what_they_are_about() {
        for work in [
            Work::Received { trunk: 0, buffer: 0 },
            Work::Received { trunk: u32::MAX >> 1, buffer: u32::MAX },
            Work::Sent { trunk: 7, stream: None },
            Work::Sent { trunk: 0, stream: Some(0) },
            Work::Sent { trunk: 9, stream: Some(u32::MAX - 1) },
        ] {
            assert_eq!(Work::of(work.id()), work);
        }
    }
}
