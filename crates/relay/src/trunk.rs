//! Trunk: the reliable connection between this relay and another one, which all streams between the two endpoints share.

use crate::device::cm::CmId;
use crate::device::{Device, Pd, QueuePair, Region, Request};
use crate::wire::{BATCH, Batch, Message};
use rdmesh_uverbs::shared::SharedMemory;
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::net::IpAddr;

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
    /// Messages that are sent with the next request, or when there is room.
    batch: Batch,
    /// Messages for which there was none.
    queue: VecDeque<Message>,
    /// Streams that have something to send, for which there was none.
    pub(crate) backlog: VecDeque<u32>,
}

/// Memory for batches: as many as there are receive requests, and behind them as many as there are send requests.
struct Buffers {
    memory: SharedMemory,
    region: Region,
    receives: u32,
    sends: u32,
    /// Requests that have been posted, modulo `sends`: each has the buffer of its number while it is in flight.
    posted: u32,
}

/// Subject of a completion, as its `wr_id`.
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
    pub(crate) fn new(number: u32, id: CmId, local: IpAddr, peer: IpAddr, pd: Pd) -> Self {
        let (queue, backlog) = (VecDeque::new(), VecDeque::new());
        Self {
            number,
            id,
            local,
            peer,
            is_up: false,
            is_quiet: false,
            pd,
            qp: None,
            batch: Batch::new(),
            queue,
            backlog,
        }
    }

    /// Makes its queue pair; returns the number.
    pub(crate) fn make_qp(&mut self, device: &mut Device) -> Result<u32, Errno> {
        let qp = device.create_qp(self.pd, REQUESTS)?;
        let (receives, sends) = qp.capacities();
        let (memory, region) = match Self::register_buffers(device, self.pd, receives + sends) {
            Ok(registered) => registered,
            Err(errno) => {
                // The error that is told is the first.
                let _ = device.destroy_qp(&qp);
                return Err(errno);
            }
        };
        let qpn = qp.qpn;
        self.qp = Some((qp, Buffers { memory, region, receives, sends, posted: 0 }));
        (0..receives).for_each(|buffer| self.post_buffer(device, buffer));
        Ok(qpn)
    }

    /// Memory for `count` batches: whole pages, of which a virtual machine's are registered.
    fn register_buffers(device: &mut Device, pd: Pd, count: u32) -> Result<(SharedMemory, Region), Errno> {
        let len = (count as usize * BATCH).next_multiple_of(PAGE);
        let (memory, fd) = SharedMemory::create("rdmesh-relay-buffers", len)?;
        let region = device.register(pd, &memory, fd.as_fd())?;
        Ok((memory, region))
    }

    /// Its queue pair.
    pub(crate) fn qp(&self) -> Result<&QueuePair, Errno> {
        self.qp.as_ref().map(|(qp, _)| qp).ok_or(Errno::INVAL)
    }

    /// A buffer can be received into, again.
    pub(crate) fn post_buffer(&mut self, device: &Device, buffer: u32) {
        if let Some((qp, buffers)) = &mut self.qp {
            let work = Work::Received { trunk: self.number, buffer };
            let offset = u64::from(buffer) * BATCH as u64;
            device.post_recv(qp, work.id(), &buffers.region, offset, BATCH as u32);
        }
    }

    /// The batch in a buffer.
    pub(crate) fn received(&self, buffer: u32) -> Option<[u64; BATCH / 8]> {
        let (_, buffers) = self.qp.as_ref()?;
        let (mut words, at) = ([0; BATCH / 8], buffer as usize * BATCH);
        (at + BATCH <= buffers.memory.len()).then(|| buffers.memory.part(at, BATCH).load(&mut words))?;
        Some(words)
    }

    /// Sends a message, now or when there is room.
    pub(crate) fn send(&mut self, device: &Device, message: Message) {
        if !self.try_send(device, message) {
            self.queue.push_back(message);
        }
    }

    /// Sends a message if there is room.
    pub(crate) fn try_send(&mut self, device: &Device, message: Message) -> bool {
        self.queue.is_empty() && self.add(device, |batch| batch.add(&message))
    }

    /// Sends few bytes of the peer's stream `stream` if there is room; `fill` puts them in place.
    pub(crate) fn try_send_bytes(
        &mut self,
        device: &Device,
        stream: u32,
        len: usize,
        fill: impl Fn(&mut [u8]),
    ) -> bool {
        self.queue.is_empty() && self.add(device, |batch| batch.add_bytes(stream, len, &fill))
    }

    /// Writes bytes of stream `stream` if there is room: behind what has been sent before.
    pub(crate) fn try_write(&mut self, device: &Device, stream: u32, request: &Request) -> bool {
        if !self.is_up || !self.queue.is_empty() || !self.send_batch(device) {
            return false;
        }
        let Some((qp, buffers)) = self.qp.as_mut().filter(|(qp, _)| qp.has_room()) else { return false };
        let work = Work::Sent { trunk: self.number, stream: Some(stream) };
        device.post_send(qp, work.id(), request);
        buffers.posted = (buffers.posted + 1) % buffers.sends;
        self.is_quiet = true;
        true
    }

    fn add(&mut self, device: &Device, add: impl Fn(&mut Batch) -> bool) -> bool {
        self.is_up && (add(&mut self.batch) || self.send_batch(device) && add(&mut self.batch))
    }

    fn send_batch(&mut self, device: &Device) -> bool {
        if self.batch.bytes().is_empty() {
            return true;
        }
        let Some((qp, buffers)) = self.qp.as_mut().filter(|(qp, _)| qp.has_room()) else { return false };
        let at = (buffers.receives + buffers.posted) as usize * BATCH;
        buffers.memory.part(at, BATCH).store(self.batch.bytes());
        let (from, len) = (buffers.region.addr + at as u64, self.batch.bytes().len() as u32);
        let request = Request::Send { from, lkey: buffers.region.lkey, len };
        let work = Work::Sent { trunk: self.number, stream: None };
        device.post_send(qp, work.id(), &request);
        buffers.posted = (buffers.posted + 1) % buffers.sends;
        (self.batch, self.is_quiet) = (Batch::new(), true);
        true
    }

    /// Sends the batch, and tells the worker of what has been posted since the last call.
    pub(crate) fn ring(&mut self, device: &Device) {
        self.send_batch(device);
        if let Some((qp, _)) = self.qp.as_ref().filter(|_| self.is_quiet) {
            device.ring(qp);
            self.is_quiet = false;
        }
    }

    /// There may be room again: sends messages that wait. Returns whether there is more room.
    pub(crate) fn flush(&mut self, device: &Device) -> bool {
        while let Some(message) = self.queue.pop_front() {
            if !self.add(device, |batch| batch.add(&message)) {
                self.queue.push_front(message);
                return false;
            }
        }
        true
    }

    /// Whether something is to be sent, or has been and was not yet acknowledged.
    pub(crate) fn has_unsent(&self) -> bool {
        let is_sending = self.qp.as_ref().is_some_and(|(qp, _)| qp.is_sending());
        self.is_up && (is_sending || !self.queue.is_empty() || !self.batch.bytes().is_empty())
    }

    /// Whether the peer lets more messages wait than a relay has reason to send.
    pub(crate) fn is_stuck(&self) -> bool {
        self.queue.len() > WAITING
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
/// Messages that may wait: more than all streams have to say at a time.
const WAITING: usize = 4 * rdmesh_streams::inbox::STREAMS;
const PAGE: usize = 4096;
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
