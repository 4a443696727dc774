//! Connection table, with its indices for lookup.

use super::connection::CmConnection;
use super::types::{CmState, Ends};
use crate::path::NetworkGid;
use crate::seeded::{HashMap, Seeded, derive};
use crate::timer::Time;
use alloc::collections::BTreeSet;
use core::hash::Hash;
use hashbrown::hash_map::Entry;
use rdmesh_verbs::Qpn;

/// All connections by their local communication ids. Connections are changed only through [`Table::change`], which keeps the
/// indexes consistent.
pub(super) struct Table {
    connections: HashMap<u32, CmConnection>,
    /// By the peer's communication ID, from the first message that carries it to the end of time-wait.
    remote_ids: HashMap<RemoteId, u32>,
    /// By the peer's QP, until the connection is at an end.
    remote_qpns: HashMap<RemoteQpn, u32>,
    /// SIDR requests by the requester's ID.
    questions: HashMap<Question, u32>,
    deadlines: BTreeSet<Deadline>,
    time_waits: BTreeSet<Deadline>,
    pending: Counts,
    orphans: Counts,
    count: u32,
    key: u64,
}

type RemoteId = (Ends, [u8; 8], u32);
type RemoteQpn = (Ends, [u8; 8], Qpn);
type Question = (Ends, u32);
type Deadline = (Time, u32);
/// Number of connections of each local GID.
type Counts = HashMap<NetworkGid, usize>;

/// The keys of a connection in the indices; none where it is not in one.
#[derive(Clone, Copy)]
struct Keys {
    pending: Option<NetworkGid>,
    orphan: Option<NetworkGid>,
    deadline: Option<Deadline>,
    time_wait: Option<Deadline>,
    question: Option<Question>,
    remote_id: Option<RemoteId>,
    remote_qpn: Option<RemoteQpn>,
}

/// A connection could not be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Full;

impl Table {
    pub(super) fn new(seed: u64) -> Self {
        let seeded = Seeded::new(derive(seed, 3));
        Self {
            connections: HashMap::with_hasher(seeded),
            remote_ids: HashMap::with_hasher(seeded),
            remote_qpns: HashMap::with_hasher(seeded),
            questions: HashMap::with_hasher(seeded),
            deadlines: BTreeSet::new(),
            time_waits: BTreeSet::new(),
            pending: HashMap::with_hasher(seeded),
            orphans: HashMap::with_hasher(seeded),
            count: derive(seed, 1) as u32,
            key: derive(seed, 2),
        }
    }

    pub(super) fn get(&self, id: u32) -> Option<&CmConnection> {
        self.connections.get(&id)
    }

    pub(super) fn len(&self) -> usize {
        self.connections.len()
    }

    pub(super) fn time_waits(&self) -> usize {
        self.time_waits.len()
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|(time, _)| *time)
    }

    /// The first connection whose deadline is not after `now`.
    pub(super) fn due(&self, now: Time) -> Option<u32> {
        self.deadlines.first().filter(|(time, _)| *time <= now).map(|(_, id)| *id)
    }

    /// The connection whose time-wait ends first, where there are too many in it.
    pub(super) fn surplus(&self) -> Option<u32> {
        (self.time_waits.len() > MAX_TIME_WAITS).then(|| self.time_waits.first().map(|(_, id)| *id)).flatten()
    }

    /// Whether the local GID of a connection that the owner has given up has too many of those.
    pub(super) fn is_crowded(&self, id: u32) -> bool {
        let orphan = self.get(id).filter(|c| c.is_orphan());
        orphan.and_then(|c| self.orphans.get(&here(c))).is_some_and(|n| *n > MAX_ORPHANS)
    }

    /// The connection that a message from a peer names.
    pub(super) fn find(&self, ends: Ends, id: u32) -> Option<&CmConnection> {
        self.get(id).filter(|c| c.ends() == ends)
    }

    /// The connection with both communication IDs of a message.
    pub(super) fn find_both(&self, ends: Ends, id: u32, remote_id: u32) -> Option<&CmConnection> {
        self.find(ends, id).filter(|c| c.remote_id == remote_id)
    }

    pub(super) fn by_remote_id(&self, ends: Ends, guid: [u8; 8], remote_id: u32) -> Option<u32> {
        self.remote_ids.get(&(ends, guid, remote_id)).copied()
    }

    pub(super) fn by_remote_qpn(&self, ends: Ends, guid: [u8; 8], qpn: Qpn) -> Option<u32> {
        self.remote_qpns.get(&(ends, guid, qpn)).copied()
    }

    pub(super) fn question(&self, ends: Ends, request_id: u32) -> Option<u32> {
        self.questions.get(&(ends, request_id)).copied()
    }

    /// A fresh communication ID, which cannot be guessed from others.
    pub(super) fn fresh_id(&mut self) -> u32 {
        loop {
            self.count = self.count.wrapping_add(1);
            let id = scramble(self.count, self.key);
            if id != 0 && !self.connections.contains_key(&id) {
                return id;
            }
        }
    }

    /// Adds a connection under a fresh id, unless too many wait for the owner already.
    pub(super) fn insert(&mut self, id: u32, connection: CmConnection) -> Result<(), Full> {
        if connection.is_pending() && self.pending.get(&here(&connection)).is_some_and(|n| *n >= MAX_PENDING) {
            return Err(Full);
        }
        self.index(id, &Keys::NONE, &Keys::of(id, &connection));
        self.connections.insert(id, connection);
        Ok(())
    }

    /// Lets `change` work on a connection.
    pub(super) fn change(&mut self, id: u32, change: impl FnOnce(&mut CmConnection)) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let before = Keys::of(id, connection);
        change(connection);
        let after = Keys::of(id, connection);
        self.index(id, &before, &after);
    }

    pub(super) fn remove(&mut self, id: u32) {
        if let Some(connection) = self.connections.remove(&id) {
            self.index(id, &Keys::of(id, &connection), &Keys::NONE);
        }
    }

    /// Brings the indices from a connection's keys `before` to those `after`.
    fn index(&mut self, id: u32, before: &Keys, after: &Keys) {
        recount(&mut self.pending, before.pending, after.pending);
        recount(&mut self.orphans, before.orphan, after.orphan);
        reorder(&mut self.deadlines, before.deadline, after.deadline);
        reorder(&mut self.time_waits, before.time_wait, after.time_wait);
        rename(&mut self.questions, id, before.question, after.question);
        rename(&mut self.remote_ids, id, before.remote_id, after.remote_id);
        rename(&mut self.remote_qpns, id, before.remote_qpn, after.remote_qpn);
    }

    #[cfg(test)]
    pub(super) fn ids(&self) -> Vec<u32> {
        let mut ids: Vec<_> = self.connections.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// Whether nothing is left of any connection.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.connections.is_empty()
            && self.remote_ids.is_empty()
            && self.remote_qpns.is_empty()
            && self.questions.is_empty()
            && self.deadlines.is_empty()
            && self.time_waits.is_empty()
            && self.pending.is_empty()
            && self.orphans.is_empty()
    }
}

fn here(c: &CmConnection) -> NetworkGid {
    NetworkGid::new(c.path.vni, c.path.local)
}

impl Keys {
    const NONE: Self = Self {
        pending: None,
        orphan: None,
        deadline: None,
        time_wait: None,
        question: None,
        remote_id: None,
        remote_qpn: None,
    };

    fn of(id: u32, c: &CmConnection) -> Self {
        let deadline = c.deadline.map(|time| (time, id));
        Self {
            pending: c.is_pending().then(|| here(c)),
            orphan: c.is_orphan().then(|| here(c)),
            deadline,
            time_wait: deadline.filter(|_| c.state == CmState::TimeWait),
            question: (c.state == CmState::SidrReqRcvd).then(|| (c.ends(), c.remote_id)),
            remote_id: has_remote_id(c).then(|| (c.ends(), c.remote_guid, c.remote_id)),
            remote_qpn: has_remote_qpn(c).then(|| (c.ends(), c.remote_guid, c.qp.remote_qpn)),
        }
    }
}

fn recount(counts: &mut Counts, before: Option<NetworkGid>, after: Option<NetworkGid>) {
    if before == after {
        return;
    }
    if let Some(after) = after {
        *counts.entry(after).or_default() += 1;
    }
    if let Some(Entry::Occupied(mut entry)) = before.map(|before| counts.entry(before)) {
        *entry.get_mut() -= 1;
        if *entry.get() == 0 {
            entry.remove();
        }
    }
}

fn reorder(times: &mut BTreeSet<Deadline>, before: Option<Deadline>, after: Option<Deadline>) {
    if before != after {
        before.iter().for_each(|before| {
            times.remove(before);
        });
        times.extend(after);
    }
}

/// An entry may belong to another connection since, which then keeps it.
fn rename<K: Copy + Eq + Hash>(names: &mut HashMap<K, u32>, id: u32, before: Option<K>, after: Option<K>) {
    if before == after {
        return;
    }
    if let Some(before) = before.filter(|before| names.get(before) == Some(&id)) {
        names.remove(&before);
    }
    if let Some(after) = after {
        names.insert(after, id);
    }
}

/// Whether the peer's communication ID is known and may still arrive.
fn has_remote_id(c: &CmConnection) -> bool {
    use CmState::*;
    match c.state {
        Idle | ReqSent | MraReqRcvd | SidrReqSent | SidrReqRcvd => false,
        ReqRcvd | MraReqSent | RepSent | MraRepRcvd | RepRcvd | MraRepSent | Established | DreqSent | DreqRcvd => true,
        TimeWait => c.remote_id != 0,
    }
}

/// Whether the peer's QP belongs to this connection and to no other. One that the peer itself ends, or that the
/// owner has given up, does not keep the peer from using the QP again.
fn has_remote_qpn(c: &CmConnection) -> bool {
    use CmState::*;
    c.is_owned
        && matches!(
            c.state,
            ReqRcvd | MraReqSent | RepSent | MraRepRcvd | RepRcvd | MraRepSent | Established | DreqSent
        )
}

/// A permutation of all numbers (the finalizer of splitmix64).
pub(super) fn mix(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ n >> 31
}

/// A permutation of 32-bit numbers that the key chooses: a Feistel network.
fn scramble(n: u32, key: u64) -> u32 {
    let (mut left, mut right) = (n >> 16, n & 0xffff);
    for round in 0..4 {
        let noise = mix(key ^ (u64::from(right) << 8 | round)) as u32 & 0xffff;
        (left, right) = (right, left ^ noise);
    }
    left << 16 | right
}

/// Requests of all peers that may wait for the owner, for each local GID.
pub(super) const MAX_PENDING: usize = 1024;
/// Connections that their owners have given up and whose peers have not answered the DREQ yet, for each local GID.
/// More than that, and nothing is repeated.
pub(super) const MAX_ORPHANS: usize = 1024;
/// Connections in time-wait. More than that, and the oldest ends early.
pub(super) const MAX_TIME_WAITS: usize = 32_768;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ids_are_fresh_and_in_no_order() {
        let mut table = Table::new(1);
        let ids: Vec<u32> = (0..10_000).map(|_| table.fresh_id()).collect();
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len());
        assert!(!ids.contains(&0));
        let rising = ids.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!((4_000..6_000).contains(&rising), "{rising}");
        assert_ne!(Table::new(2).fresh_id(), ids[0]);
    }
}
