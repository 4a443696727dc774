//! Datagrams to be sent, collected in trains of equal size.

use super::Target;
use crate::schedule::{TURN_BYTES, TURN_PACKETS};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// A lane: one of a worker's UDP source ports for the tunnel, from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lane(pub u8);

impl Lane {
    /// As an index of a list of lanes.
    pub fn index(self) -> usize {
        self.0.into()
    }
}

/// Datagrams of one size, the last one possibly shorter, to one target: one system call with segmentation offload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Train {
    /// Destination.
    pub target: Target,
    /// The outer IP header's traffic class.
    pub traffic_class: u8,
    /// Offset of the first in [`Transmits::buffer`].
    pub start: usize,
    /// Bytes of all.
    pub len: usize,
    /// Bytes of each but the last.
    pub segment: usize,
    /// Lane that it leaves by, through the tunnel.
    pub lane: Lane,
}

impl Train {
    /// Number of datagrams in it.
    pub fn count(&self) -> usize {
        self.len.div_ceil(self.segment.max(1))
    }
}

/// Properties common to the datagrams of a train.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TrainKey {
    pub(crate) target: Target,
    pub(crate) traffic_class: u8,
    pub(crate) lane: Lane,
}

/// Datagrams to be sent, in trains. The buffer is allocated once and used again and again.
pub struct Transmits {
    buffer: Box<[u8]>,
    used: usize,
    trains: Vec<Train>,
    count: usize,
    open: bool,
    is_sealed: bool,
    /// The buffer's and the packets' limit in the present turn of a queue pair.
    turn_end: (usize, usize),
}

impl Transmits {
    /// Room for some trains.
    pub fn new() -> Self {
        let (buffer, trains) = (vec![0; BUFFER].into(), Vec::with_capacity(TRAINS));
        Self { buffer, used: 0, trains, count: 0, open: false, is_sealed: false, turn_end: (0, 0) }
    }

    /// The same for a router that seals what it sends through the tunnel: packets there have [room for the
    /// seal](crate::wire::geneve::encode_sealed), and no invariant CRC, because the tag covers more.
    pub fn for_sealing() -> Self {
        Self { is_sealed: true, ..Self::new() }
    }

    /// Whether packets in the tunnel have room for a seal.
    pub(crate) fn is_sealed(&self) -> bool {
        self.is_sealed
    }

    /// The trains, in order.
    pub fn trains(&self) -> &[Train] {
        &self.trains
    }

    /// The bytes of `train`.
    pub fn bytes(&self, train: &Train) -> &[u8] {
        &self.buffer[train.start..train.start + train.len]
    }

    /// The datagrams of the train with number `train`, to be sealed.
    pub fn datagrams_mut(&mut self, train: usize) -> impl Iterator<Item = &mut [u8]> {
        let Train { start, len, segment, .. } = self.trains[train];
        self.buffer[start..start + len].chunks_mut(segment.max(1))
    }

    /// Number of datagrams in all trains.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.trains.is_empty()
    }

    /// Forgets what was sent.
    pub fn clear(&mut self) {
        self.used = 0;
        self.trains.clear();
        self.count = 0;
        self.open = false;
    }

    /// The present fill level, for [`Transmits::since`].
    pub(crate) fn mark(&self) -> usize {
        self.used
    }

    /// The packets that were added since `mark`, each with its train and its place there.
    pub(crate) fn since(&self, mark: usize) -> impl Iterator<Item = (&Train, u16, &[u8])> {
        let packets = |train: &Train| (0..train.count()).map(|i| train.start + i * train.segment).collect::<Vec<_>>();
        self.trains.iter().filter(move |train| train.start + train.len > mark).flat_map(move |train| {
            packets(train).into_iter().enumerate().filter(move |(_, at)| *at >= mark).map(move |(i, at)| {
                let end = (at + train.segment).min(train.start + train.len);
                (train, i as u16, &self.buffer[at..end])
            })
        })
    }

    /// Whether a packet of any size still fits.
    pub fn has_room(&self) -> bool {
        self.trains.len() < TRAINS && self.buffer.len() - self.used >= MAX_PACKET
    }

    /// A queue pair's turn begins.
    pub(crate) fn begin_turn(&mut self) {
        self.turn_end = (self.used + TURN_BYTES, self.count + TURN_PACKETS);
    }

    /// Whether the present turn goes on, and a packet of any size still fits.
    pub(crate) fn has_turn(&self) -> bool {
        let (used, count) = self.turn_end;
        self.used < used && self.count < count && self.has_room()
    }

    /// Position in its train that a packet of `len` bytes would have, from 0: its IPv4 identification on a plain path.
    pub(crate) fn position(&self, key: &TrainKey, len: usize) -> u16 {
        if self.joins(key, len) { self.trains.last().map_or(0, |train| train.count() as u16) } else { 0 }
    }

    /// Room for the next packet, to be kept by [`Transmits::push`]. The caller has asked [`Transmits::has_room`].
    pub(crate) fn next(&mut self) -> &mut [u8] {
        &mut self.buffer[self.used..]
    }

    /// Keeps the packet of `len` bytes that was written to [`Transmits::next`].
    pub(crate) fn push(&mut self, key: TrainKey, len: usize) {
        if self.joins(&key, len) {
            let train = self.trains.last_mut().expect("a packet joins a train");
            train.len += len;
            self.open = len == train.segment;
        } else {
            let TrainKey { target, traffic_class, lane } = key;
            self.trains.push(Train { target, traffic_class, start: self.used, len, segment: len, lane });
            self.open = true;
        }
        self.used += len;
        self.count += 1;
    }

    fn joins(&self, key: &TrainKey, len: usize) -> bool {
        self.open
            && self.trains.last().is_some_and(|train| {
                let same = TrainKey { target: train.target, traffic_class: train.traffic_class, lane: train.lane };
                same == *key && len <= train.segment && train.len + len <= MAX_TRAIN && train.count() < MAX_SEGMENTS
            })
    }
}

impl Default for Transmits {
    fn default() -> Self {
        Self::new()
    }
}

/// Largest packet that the engine makes, with all its headers.
pub(crate) const MAX_PACKET: usize = 4096 + 256;
/// Bytes of a train: the largest UDP datagram over IPv6 with room for extension headers.
const MAX_TRAIN: usize = 65_000;
/// Datagrams of a train (`UDP_MAX_SEGMENTS` of Linux before 6.9).
const MAX_SEGMENTS: usize = 64;
/// Trains that are collected before they are sent.
const TRAINS: usize = 32;
/// Bytes that are collected before they are sent.
const BUFFER: usize = 256 * 1024;
