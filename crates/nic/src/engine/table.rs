//! The queue pairs of an engine, by index; the groups that they are in, and packets for them.

use super::arrivals::Arrivals;
use super::free::Free;
use crate::device::{Context, Outputs, Slab};
use crate::packet::Packet;
use crate::path::NetworkGid;
use crate::platform::Platform;
use crate::schedule::Order;
use crate::transport::roce::TimeWait;
use crate::transport::{Env, Qp};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use rdmesh_verbs::{Gid, Qpn, Vni};

/// Queue pairs by index, which the host's table of numbers leads to.
pub(super) struct QueuePairs<P: Platform> {
    slots: Vec<Option<Box<Qp<P>>>>,
    free: Free,
    groups: BTreeMap<NetworkGid, Vec<u32>>,
    arrivals: Arrivals<P::Memory>,
    time_wait: TimeWait,
}

/// Error of a group that has no room for another member.
pub(super) struct GroupFull;

impl<P: Platform> QueuePairs<P> {
    pub(super) fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Free::default(),
            groups: BTreeMap::new(),
            arrivals: Arrivals::new(),
            time_wait: TimeWait::new(),
        }
    }

    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<&Qp<P>> {
        self.slots.get(index as usize)?.as_deref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut Qp<P>> {
        self.slots.get_mut(index as usize)?.as_deref_mut()
    }

    /// A queue pair, and what its work may touch.
    #[inline]
    pub(super) fn with<'a>(
        &'a mut self,
        index: u32,
        contexts: &'a mut Slab<Context<P>>,
        out: &'a mut Outputs<P::Memory>,
    ) -> Option<(&'a mut Qp<P>, Env<'a, P>)> {
        let qp = self.get_mut(index)?;
        let cx = contexts.get_mut(qp.core().made().context.0)?;
        Some((qp, Env { index, cx, out }))
    }

    /// Index and number of the next queue pair.
    pub(super) fn next(&self, out: &Outputs<P::Memory>) -> Option<(u32, Qpn)> {
        self.free.next(out.numbers(), out.shard(), self.slots.len() as u32)
    }

    /// Adds a queue pair with the index and the number that [`Self::next`] gave.
    pub(super) fn insert(&mut self, index: u32, qp: Box<Qp<P>>, out: &Outputs<P::Memory>) {
        let qpn = qp.core().made().qpn;
        self.free.take_number(qpn);
        self.free.take_place(index);
        self.time_wait.forget(qpn);
        self.enter(index, qp, out);
    }

    fn enter(&mut self, index: u32, qp: Box<Qp<P>>, out: &Outputs<P::Memory>) {
        out.numbers().enter(qp.core().made().qpn, out.shard(), index);
        match self.slots.get_mut(index as usize) {
            Some(slot) => *slot = Some(qp),
            None => self.slots.push(Some(qp)),
        }
    }

    /// Takes a queue pair out, and out of its groups.
    pub(super) fn remove(&mut self, index: u32, vni: Vni, out: &Outputs<P::Memory>) -> Option<Box<Qp<P>>> {
        let qp = self.slots.get_mut(index as usize)?.take()?;
        let qpn = qp.core().made().qpn;
        self.free.add_place(index);
        self.free.add_number(qpn);
        out.numbers().leave(qpn, out.shard());
        self.time_wait.add(&qp);
        for gid in qp.core().groups() {
            self.leave(vni, *gid, index);
        }
        Some(qp)
    }

    /// Takes a queue pair out that stays in use, and out of its groups: it moves to another engine.
    pub(super) fn take(&mut self, index: u32, vni: Vni) -> Option<Box<Qp<P>>> {
        let qp = self.slots.get_mut(index as usize)?.take()?;
        self.free.add_place(index);
        for gid in qp.core().groups() {
            self.leave(vni, *gid, index);
        }
        Some(qp)
    }

    /// Adds a queue pair that comes from another engine, with its number and to its groups. Returns its index.
    pub(super) fn put(&mut self, qp: Box<Qp<P>>, vni: Vni, out: &Outputs<P::Memory>) -> u32 {
        let index = self.free.next_place(self.slots.len() as u32);
        self.free.take_place(index);
        for gid in qp.core().groups() {
            self.groups.entry(NetworkGid::new(vni, *gid)).or_default().push(index);
        }
        self.enter(index, qp, out);
        index
    }

    /// The queue pair has gone: packets for it go to the inbox, where they are dropped, or to another member of their group.
    pub(super) fn drop_arrived(&mut self, index: u32, out: &mut Outputs<P::Memory>) {
        for packet in self.arrivals.take(index) {
            self.arrive(packet, out);
        }
    }

    /// Adds a member to a group.
    pub(super) fn join(&mut self, vni: Vni, gid: Gid, index: u32) -> Result<(), GroupFull> {
        let members = self.groups.entry(NetworkGid::new(vni, gid)).or_default();
        if members.len() >= GROUP_MEMBERS {
            return Err(GroupFull);
        }
        members.push(index);
        Ok(())
    }

    /// Takes a member out of a group.
    pub(super) fn leave(&mut self, vni: Vni, gid: Gid, index: u32) {
        let Some(members) = self.groups.get_mut(&NetworkGid::new(vni, gid)) else { return };
        members.retain(|member| *member != index);
        if members.is_empty() {
            self.groups.remove(&NetworkGid::new(vni, gid));
        }
    }

    /// Number of places: no queue pair has an index that is larger.
    pub(super) fn places(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Whether a group has members here.
    pub(super) fn has_members(&self, group: NetworkGid) -> bool {
        self.groups.contains_key(&group)
    }

    /// Does `work` with each member of a group.
    pub(super) fn for_members(
        &mut self,
        group: NetworkGid,
        contexts: &mut Slab<Context<P>>,
        out: &mut Outputs<P::Memory>,
        mut work: impl FnMut(&mut Qp<P>, Env<'_, P>),
    ) {
        let members = self.groups.get(&group).map_or(&[][..], Vec::as_slice);
        for &index in members {
            let Some(qp) = self.slots.get_mut(index as usize).and_then(Option::as_deref_mut) else { continue };
            if let Some(cx) = contexts.get_mut(qp.core().made().context.0) {
                work(qp, Env { index, cx, out });
            }
        }
    }

    /// Takes a packet from another engine of this host, which waits for a turn of the queue pair that it is for.
    pub(super) fn arrive(&mut self, packet: Packet<P::Memory>, out: &mut Outputs<P::Memory>) {
        match self.recipient(&packet, out) {
            Some(index) => {
                self.arrivals.push(index, packet);
                out.schedule.add(Order::Arrived, index);
            }
            None => out.keep(packet),
        }
    }

    /// The queue pair in whose turn the packet is executed: of a datagram to a group, its first member here.
    fn recipient(&self, packet: &Packet<P::Memory>, out: &Outputs<P::Memory>) -> Option<u32> {
        let head = &packet.head;
        let is_group = head.header.dest == Qpn::MULTICAST && !head.is_reply();
        let index = match is_group {
            true => {
                self.groups.get(&NetworkGid::new(head.vni, head.ip.dest)).and_then(|members| members.first().copied())
            }
            false => out.index_of(head.header.dest),
        };
        index.filter(|index| self.get(*index).is_some())
    }

    /// Packets that wait for turns of queue pairs.
    pub(super) fn arrivals(&mut self) -> &mut Arrivals<P::Memory> {
        &mut self.arrivals
    }

    /// Connections that have ended.
    pub(super) fn time_wait(&mut self) -> &mut TimeWait {
        &mut self.time_wait
    }

    /// Whether final ACKs are to be sent.
    pub(super) fn has_final_acks(&self) -> bool {
        self.time_wait.is_due()
    }
}

/// Most QPs of one group in one engine: every datagram to it is copied to each.
const GROUP_MEMBERS: usize = 1024;
