//! Pulls: announced messages that are being read from their senders.
//!
//! Data is read into the receiver's buffer itself where that can be registered, and through a small pool of our own otherwise. Where
//! the connection fails, the rest comes over the launcher, so that a message that was matched is never lost.

use super::peers::Link;
use crate::control::Kind;
use crate::memory::{self, Pages};
use crate::verbs::{Completion, DEPTH, Device, Local, Region, Remote};
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::Arc;

/// Length of one part of the pool, and of a part that comes over the launcher.
const CHUNK: u64 = 64 << 10;
const CHUNKS: usize = 64;
/// Shorter than the longest body of a frame.
const REPAIR_CHUNK: u64 = 64 << 10;

/// A message to be read.
pub(crate) struct Incoming {
    pub(crate) peer: u32,
    pub(crate) from: Remote,
    pub(crate) len: u64,
    pub(crate) done: Remote,
    pub(crate) sequence: u64,
}

/// Where its data goes.
pub(crate) enum Target {
    /// A buffer in one piece, which is registered.
    InPlace { address: usize, region: Arc<Region> },
    /// A buffer in one piece, through the pool.
    Through { address: usize },
    /// Memory of our own, from which it is unpacked.
    Packed(Pages),
}

/// One pull.
struct Pull {
    incoming: Incoming,
    target: Target,
    /// Part of the pool in use.
    chunk: Option<usize>,
    posted: u64,
    landed: u64,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Waits for a connection or for room, or READs are outstanding.
    Reading,
    /// All data has landed; the sender is to be told.
    Telling,
    /// Comes over the launcher.
    Repairing,
    Finished,
    Failed,
}

/// End of a pull.
pub(crate) struct Pulled {
    /// Buffer, or memory that is to be unpacked into it.
    pub(crate) target: Target,
    /// Bytes that were read.
    pub(crate) len: u64,
    pub(crate) is_good: bool,
}

/// The pulls, and the pool.
pub(crate) struct Pulls {
    pulls: HashMap<u64, Pull>,
    /// Work requests without a completion.
    outstanding: HashMap<u64, Request>,
    next: u64,
    pool: Pool,
    max_read: u64,
}

/// What a work request was for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Request {
    peer: u32,
    purpose: Purpose,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose {
    /// To get so many bytes of a pull.
    Read { pull: u64, len: u64 },
    /// To tell a sender that its message `sequence` was read.
    Tell { sequence: u64 },
}

struct Pool {
    pages: Pages,
    region: Region,
    free: Vec<usize>,
}

/// What pulls ask of the rest of the job.
pub(crate) trait Ways {
    /// The connection to a rank.
    fn link(&mut self, rank: u32) -> Option<&mut Link>;
    /// Whether a connection to it is about to be there.
    fn is_asked(&self, rank: u32) -> bool;
    /// Destroys the connection to it: no READ of it lands any more.
    fn give_up(&mut self, rank: u32);
    /// Sends a frame; false where the launcher is gone.
    fn send(&mut self, kind: Kind, rank: u32, body: Vec<u8>) -> bool;
}

impl Pulls {
    pub(crate) fn new(device: &Device) -> Result<Self, Errno> {
        let pages = Pages::new(CHUNK as usize * CHUNKS)?;
        let region = device.register(pages.address(), pages.len())?;
        let pool = Pool { pages, region, free: (0..CHUNKS).collect() };
        let max_read = u64::from(device.max_message());
        Ok(Self { pulls: HashMap::new(), outstanding: HashMap::new(), next: 1, pool, max_read })
    }

    /// Begins to read a message.
    pub(crate) fn begin(&mut self, incoming: Incoming, target: Target, ways: &mut impl Ways) -> u64 {
        let id = self.next_id();
        let pull = Pull { incoming, target, chunk: None, posted: 0, landed: 0, stage: Stage::Reading };
        self.pulls.insert(id, pull);
        self.advance(id, ways);
        id
    }

    /// Takes a pull that has ended.
    pub(crate) fn take(&mut self, id: u64) -> Option<Pulled> {
        let is_ended = matches!(self.pulls.get(&id)?.stage, Stage::Finished | Stage::Failed);
        let pull = if is_ended { self.pulls.remove(&id)? } else { return None };
        Some(Pulled { target: pull.target, len: pull.incoming.len, is_good: pull.stage == Stage::Finished })
    }

    /// Posts what waits for a connection or for room.
    pub(crate) fn advance_all(&mut self, ways: &mut impl Ways) {
        let is_waiting = |pull: &Pull| matches!(pull.stage, Stage::Reading | Stage::Telling);
        let ids: Vec<u64> = self.pulls.iter().filter(|(_, pull)| is_waiting(pull)).map(|(&id, _)| id).collect();
        for id in ids {
            self.advance(id, ways);
        }
    }

    /// Whether no pull is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.pulls.is_empty()
    }

    /// A work request has completed.
    pub(crate) fn on_completion(&mut self, completion: Completion, ways: &mut impl Ways) {
        let Some(request) = self.outstanding.remove(&completion.id) else { return };
        if !completion.is_good {
            // The word of this request is told again with those of the others.
            self.outstanding.insert(completion.id, request);
            return self.fail(request.peer, ways);
        }
        if let Some(link) = ways.link(request.peer) {
            link.posted = link.posted.saturating_sub(1);
        }
        let Purpose::Read { pull: id, len } = request.purpose else { return };
        if let Some(pull) = self.pulls.get_mut(&id) {
            if let Some(chunk) = pull.chunk.take() {
                self.pool.copy_out(chunk, len, &mut pull.target, pull.landed);
            }
            pull.landed += len;
            self.advance(id, ways);
        }
    }

    /// The connection to `peer` has failed: its messages come over the launcher, and are told of that way.
    pub(crate) fn fail(&mut self, peer: u32, ways: &mut impl Ways) {
        ways.give_up(peer);
        self.outstanding.retain(|_, request| {
            if let Request { peer: of, purpose: Purpose::Tell { sequence } } = *request
                && of == peer
            {
                ways.send(Kind::Done, peer, sequence.to_le_bytes().to_vec());
            }
            request.peer != peer
        });
        for pull in self.pulls.values_mut().filter(|pull| pull.incoming.peer == peer) {
            if matches!(pull.stage, Stage::Reading | Stage::Telling) {
                pull.repair(&mut self.pool, ways);
            }
        }
    }

    /// A part of a message that comes over the launcher. Returns the length of a message that is whole now.
    pub(crate) fn on_part(&mut self, peer: u32, sequence: u64, data: &[u8], ways: &mut impl Ways) -> Option<u64> {
        let is_it = |pull: &&mut Pull| {
            let incoming = &pull.incoming;
            pull.stage == Stage::Repairing && incoming.peer == peer && incoming.sequence == sequence
        };
        let pull = self.pulls.values_mut().find(is_it)?;
        if data.is_empty() {
            pull.stage = Stage::Failed;
            return None;
        }
        let len = (data.len() as u64).min(pull.incoming.len - pull.landed);
        pull.target.put(pull.landed, &data[..len as usize]);
        pull.landed += len;
        pull.ask_or_tell(ways);
        (pull.stage == Stage::Finished).then_some(pull.incoming.len)
    }

    fn advance(&mut self, id: u64, ways: &mut impl Ways) {
        let Some(pull) = self.pulls.get_mut(&id) else { return };
        let peer = pull.incoming.peer;
        if ways.is_asked(peer) {
            return;
        }
        let Some(link) = ways.link(peer) else { return self.fail(peer, ways) };
        let mut posted = Ok(());
        while pull.stage == Stage::Reading
            && pull.posted < pull.incoming.len
            && link.posted + 1 < DEPTH
            && posted.is_ok()
        {
            let Some((local, len)) = pull.next_piece(&mut self.pool, self.max_read) else { break };
            let from = Remote { address: pull.incoming.from.address + pull.posted, ..pull.incoming.from };
            self.next += 1;
            posted = link.connection.read(local, from, self.next);
            self.outstanding.insert(self.next, Request { peer, purpose: Purpose::Read { pull: id, len } });
            pull.posted += len;
            link.posted += 1;
        }
        if pull.stage == Stage::Reading && pull.landed == pull.incoming.len {
            pull.stage = Stage::Telling;
        }
        if pull.stage == Stage::Telling && link.posted < DEPTH && posted.is_ok() {
            let sequence = pull.incoming.sequence;
            self.next += 1;
            posted = link.connection.write_word(sequence, pull.incoming.done, self.next);
            self.outstanding.insert(self.next, Request { peer, purpose: Purpose::Tell { sequence } });
            link.posted += 1;
            pull.stage = Stage::Finished;
        }
        if posted.is_err() {
            self.fail(peer, ways);
        }
    }

    fn next_id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl Pull {
    /// Where the next READ puts its data, and its length; none while the pool has no room.
    fn next_piece(&mut self, pool: &mut Pool, max_read: u64) -> Option<(Local, u64)> {
        let left = self.incoming.len - self.posted;
        match &self.target {
            Target::InPlace { address, region } => {
                let len = left.min(max_read).min(MAX_LEN);
                Some((Local { address: *address as u64 + self.posted, len: len as u32, lkey: region.lkey() }, len))
            }
            Target::Through { .. } | Target::Packed(_) => {
                if self.chunk.is_some() {
                    return None;
                }
                let chunk = pool.free.pop()?;
                self.chunk = Some(chunk);
                let len = left.min(CHUNK);
                Some((Local { address: pool.address(chunk) as u64, len: len as u32, lkey: pool.region.lkey() }, len))
            }
        }
    }

    /// Goes on over the launcher: from the beginning, for the pieces that had landed may have gaps.
    fn repair(&mut self, pool: &mut Pool, ways: &mut impl Ways) {
        pool.free.extend(self.chunk.take());
        if self.stage == Stage::Reading {
            self.landed = 0;
        }
        self.stage = Stage::Repairing;
        self.ask_or_tell(ways);
    }

    /// Asks for the next part; tells the sender, where there is no more.
    fn ask_or_tell(&mut self, ways: &mut impl Ways) {
        let Incoming { peer, sequence, len, .. } = self.incoming;
        let left = (len - self.landed).min(REPAIR_CHUNK);
        let sent = if left == 0 {
            self.stage = Stage::Finished;
            ways.send(Kind::Done, peer, sequence.to_le_bytes().to_vec())
        } else {
            ways.send(Kind::Give, peer, [sequence, self.landed, left].map(u64::to_le_bytes).concat())
        };
        if !sent {
            self.stage = Stage::Failed;
        }
    }
}

impl Target {
    fn put(&mut self, offset: u64, data: &[u8]) {
        let offset = offset as usize;
        match self {
            Self::InPlace { address, .. } | Self::Through { address } => memory::write(*address + offset, data),
            Self::Packed(packed) => memory::write(packed.address() + offset, data),
        }
    }
}

impl Pool {
    fn address(&self, chunk: usize) -> usize {
        self.pages.address() + chunk * CHUNK as usize
    }

    fn copy_out(&mut self, chunk: usize, len: u64, target: &mut Target, offset: u64) {
        let (from, len, offset) = (self.address(chunk), len as usize, offset as usize);
        match target {
            Target::InPlace { address, .. } | Target::Through { address } => memory::copy(from, *address + offset, len),
            Target::Packed(packed) => memory::copy(from, packed.address() + offset, len),
        }
        self.free.push(chunk);
    }
}

/// Most bytes of one READ, whatever the device allows (IBA 9.7.7: 2^31).
const MAX_LEN: u64 = 1 << 30;
