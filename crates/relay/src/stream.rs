//! Streams: accelerated connections between a process of the endpoint and one of another.

use crate::device::{Device, Region, Request};
use crate::mirror::{Action, Mirror};
use crate::process::Process;
use crate::trunk::Trunk;
use crate::wire::{FEW, Message, RemoteSlot};
use rdmesh_streams::ends::Ends;
use rdmesh_streams::inbox::STREAMS;
use rdmesh_streams::ring::Corrupt;
use rdmesh_streams::ring::layout::{HEADER, RING};

/// A stream.
pub(crate) struct Stream {
    /// Its number, by which the other relay names it: its index, and a count of those that have had the index before.
    pub(crate) number: u32,
    pub(crate) process: u64,
    /// Number of the offer by which the process has given the slot.
    pub(crate) offer: u32,
    pub(crate) ends: Ends,
    pub(crate) trunk: u32,
    pub(crate) mirror: Mirror,
    pub(crate) region: Region,
    pub(crate) remote: Option<Remote>,
    /// WRITEs whose completion has not come.
    pub(crate) in_flight: u32,
    /// It has ended at both ends, or its trunk has: it goes with its last completion.
    pub(crate) is_ending: bool,
    /// It goes back to TCP at a time, if it is unsettled then.
    pub(crate) has_limit: bool,
    /// It is in the backlog of its trunk.
    pub(crate) is_waiting: bool,
}

/// The other end of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote {
    pub(crate) stream: u32,
    pub(crate) slot: RemoteSlot,
}

impl Stream {
    /// Hands what is new in its slot to its trunk; returns how many bytes of the process's. What finds no room waits in the backlog.
    pub(crate) fn pump(&mut self, device: &Device, trunk: &mut Trunk) -> Result<usize, Corrupt> {
        let Some(remote) = self.remote.filter(|_| !self.is_ending) else { return Ok(0) };
        let ring = (HEADER + self.mirror.tx() * RING) as u64;
        let (number, in_flight, region) = (self.number, &mut self.in_flight, self.region);
        let slot = self.mirror.slot();
        let (mut is_full, mut sent, out) = (false, 0, slot.ring(self.mirror.tx()));
        self.mirror.poll(|action| {
            let bytes = if let Action::Bytes { len, .. } = action { len } else { 0 };
            let is_sent = match action {
                Action::Tell(state) => trunk.try_send(device, Message::State { stream: remote.stream, state }),
                Action::Bytes { at, len } if len <= FEW => {
                    trunk.try_send_bytes(device, remote.stream, len, |place| out.load(at as u64, place))
                }
                Action::Bytes { at, len } => {
                    let request = Request::Write {
                        from: region.addr + ring + at as u64,
                        lkey: region.lkey,
                        to: remote.slot.addr.wrapping_add(ring + at as u64),
                        rkey: remote.slot.rkey,
                        len: len as u32,
                        imm: remote.stream,
                    };
                    let is_sent = trunk.try_write(device, number, &request);
                    *in_flight += u32::from(is_sent);
                    is_sent
                }
            };
            is_full |= !is_sent;
            sent += if is_sent { bytes } else { 0 };
            is_sent
        })?;
        if is_full && !self.is_waiting {
            self.is_waiting = true;
            trunk.backlog.push_back(number);
        }
        Ok(sent)
    }

    /// Tells the process's readers or writers of it to look.
    pub(crate) fn signal(&self, process: &Process, changed: crate::mirror::Changed) {
        if changed.reader {
            process.signal(&self.mirror.input().header.reader);
        }
        if changed.writer {
            process.signal(&self.mirror.out().header.writer);
        }
    }

    /// Its index in the process.
    pub(crate) fn index_in_process(&self) -> u32 {
        self.mirror.input().header.reader.index.load(std::sync::atomic::Ordering::Relaxed)
    }
}

/// Streams by number.
#[derive(Default)]
pub(crate) struct Streams {
    places: Vec<(u32, Option<Box<Stream>>)>,
    free: Vec<u32>,
}

impl Streams {
    /// A number for a new stream; none where there are too many.
    pub(crate) fn claim(&mut self) -> Option<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.places.len() < STREAMS => {
                self.places.push((0, None));
                self.places.len() as u32 - 1
            }
            None => return None,
        };
        Some(self.places[index as usize].0.wrapping_mul(STREAMS as u32).wrapping_add(index))
    }

    /// Gives a number back that no stream has got.
    pub(crate) fn give_back(&mut self, number: u32) {
        self.free.push(number % STREAMS as u32);
    }

    /// Adds the stream for which its number was claimed.
    pub(crate) fn add(&mut self, stream: Stream) {
        let index = stream.number as usize % STREAMS;
        self.places[index].1 = Some(Box::new(stream));
    }

    /// The stream with a number.
    pub(crate) fn get(&mut self, number: u32) -> Option<&mut Stream> {
        self.at(number % STREAMS as u32).filter(|stream| stream.number == number)
    }

    /// The stream at an index.
    pub(crate) fn at(&mut self, index: u32) -> Option<&mut Stream> {
        self.places.get_mut(index as usize)?.1.as_deref_mut()
    }

    /// Removes a stream.
    pub(crate) fn remove(&mut self, number: u32) -> Option<Box<Stream>> {
        self.get(number)?;
        let index = number % STREAMS as u32;
        let (uses, stream) = &mut self.places[index as usize];
        // So that a number and one more fit a word.
        *uses = (*uses + 1) % (u32::MAX / STREAMS as u32);
        self.free.push(index);
        stream.take()
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.places.len()
    }

    /// Numbers of all streams for which `is_wanted` holds.
    pub(crate) fn numbers(&self, is_wanted: impl Fn(&Stream) -> bool) -> Vec<u32> {
        let streams = self.places.iter().filter_map(|(_, stream)| stream.as_deref());
        streams.filter(|stream| is_wanted(stream)).map(|stream| stream.number).collect()
    }
}
