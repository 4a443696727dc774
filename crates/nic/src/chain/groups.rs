//! Groups of managed queues: limits that they raise for each other, and their common end.

use super::audit::{Audit, Executed, Pace};
use super::{ChainEntry, ChainFault, ChainState};
use crate::command::CommandError;
use crate::timer::Time;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use rdmesh_verbs::Key;
use rdmesh_verbs::chain::Counts;

/// The managed queues of a context, by handle of their queue pair.
#[derive(Default)]
pub(crate) struct Chains {
    members: Vec<Option<Member>>,
    /// Queue pairs by the regions over their rings.
    by_region: BTreeMap<u32, u32>,
    groups: Vec<Option<Group>>,
}

/// A queue pair with managed queues.
struct Member {
    /// The engine's index of it.
    index: u32,
    group: usize,
    /// Indices up to which requests may be executed; none of a queue that is not managed.
    send: Option<u64>,
    receive: Option<u64>,
    has_failed: bool,
    /// Its receive queue has refused a message of this host, whose sender waits.
    has_refused: bool,
    pace: Pace,
    /// Regions over its rings.
    regions: Vec<(u32, Key)>,
}

struct Group {
    number: u32,
    members: Vec<u32>,
    state: ChainState,
    fault: Option<ChainFault>,
    audit: Audit,
}

/// A queue of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Send,
    Receive,
}

/// A managed queue: its queue pair's handle, and which of the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Target {
    pub(crate) qp: u32,
    pub(crate) side: Side,
}

/// Change of a queue's limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Enable {
    /// Up to an index, if that is further than before.
    To(u64),
    /// By so many requests more.
    More(u64),
}

impl Member {
    fn limit(&self, side: Side) -> Option<u64> {
        match side {
            Side::Send => self.send,
            Side::Receive => self.receive,
        }
    }
}

impl Chains {
    /// Adds a queue pair to the group with a number. Nothing of it is enabled.
    pub(crate) fn join(&mut self, qp: u32, index: u32, number: u32, sides: &[Side]) -> Result<(), CommandError> {
        let found = self.groups.iter().position(|group| group.as_ref().is_some_and(|group| group.number == number));
        let place = found.unwrap_or_else(|| self.add_group(number));
        let Some(Some(group)) = self.groups.get_mut(place) else { return Err(CommandError::NoSuchObject) };
        if group.state == ChainState::Poisoned {
            return Err(CommandError::Invalid);
        }
        group.members.push(qp);
        if self.members.len() <= qp as usize {
            self.members.resize_with(qp as usize + 1, || None);
        }
        let limit = |side| sides.contains(&side).then_some(0);
        let (send, receive) = (limit(Side::Send), limit(Side::Receive));
        let member = Member {
            index,
            group: place,
            send,
            receive,
            has_failed: false,
            has_refused: false,
            pace: Pace::default(),
            regions: Vec::new(),
        };
        self.members[qp as usize] = Some(member);
        Ok(())
    }

    fn add_group(&mut self, number: u32) -> usize {
        let state = ChainState::Running;
        let group = Some(Group { number, members: Vec::new(), state, fault: None, audit: Audit::default() });
        match self.groups.iter().position(Option::is_none) {
            Some(free) => {
                self.groups[free] = group;
                free
            }
            None => {
                self.groups.push(group);
                self.groups.len() - 1
            }
        }
    }

    /// A queue pair has another index now.
    pub(crate) fn place(&mut self, qp: u32, index: u32) {
        self.member_mut(qp).into_iter().for_each(|member| member.index = index);
    }

    /// A queue pair has gone. Returns the regions over its rings.
    pub(crate) fn leave(&mut self, qp: u32) -> Vec<(u32, Key)> {
        let Some(member) = self.members.get_mut(qp as usize).and_then(Option::take) else { return Vec::new() };
        if let Some(place) = self.groups.get_mut(member.group)
            && let Some(group) = place
        {
            group.members.retain(|other| *other != qp);
            if group.members.is_empty() {
                *place = None;
            }
        }
        for (region, _) in &member.regions {
            self.by_region.remove(region);
        }
        member.regions
    }

    /// Whether one more region may be over the rings of a queue pair.
    pub(crate) fn has_room_for_region(&self, qp: u32) -> bool {
        self.member(qp).is_some_and(|member| member.regions.len() < MOST_REGIONS)
    }

    /// Notes a region over a queue pair's ring, which goes with it.
    pub(crate) fn add_region(&mut self, qp: u32, mr: u32, key: Key) {
        if let Some(member) = self.member_mut(qp) {
            member.regions.push((mr, key));
            self.by_region.insert(mr, qp);
        }
    }

    /// A region has gone before its queue pair, if it was one over a ring: another may have its handle and its key.
    pub(crate) fn forget_region(&mut self, mr: u32) {
        let of = self.by_region.remove(&mr).and_then(|qp| self.member_mut(qp));
        of.into_iter().for_each(|member| member.regions.retain(|(region, _)| *region != mr));
    }

    /// Whether request `index` of a queue may be started.
    #[inline]
    pub(crate) fn may_start(&self, target: Target, index: u64) -> bool {
        let Some(member) = self.member(target.qp) else { return false };
        member.limit(target.side).is_some_and(|limit| index < limit) && self.state(member) == ChainState::Running
    }

    /// Whether nothing of a queue was ever enabled.
    pub(crate) fn is_fresh(&self, target: Target) -> bool {
        self.member(target.qp).is_some_and(|member| member.limit(target.side) == Some(0))
    }

    /// Raises the limit of a queue, for a request of `from` if that is given: only of the same group. Returns the engine's
    /// index of the queue pair.
    pub(crate) fn enable(&mut self, from: Option<u32>, target: Target, enable: Enable) -> Result<u32, CommandError> {
        let from = match from.map(|from| self.member(from).map(|member| member.group)) {
            Some(None) => return Err(CommandError::Invalid),
            Some(group) => group,
            None => None,
        };
        let member = self.member(target.qp).ok_or(CommandError::NoSuchObject)?;
        let is_foreign = from.is_some_and(|group| group != member.group);
        if is_foreign || member.has_failed || self.state(member) == ChainState::Poisoned {
            return Err(CommandError::Invalid);
        }
        let member = self.member_mut(target.qp).ok_or(CommandError::NoSuchObject)?;
        let limit = match target.side {
            Side::Send => &mut member.send,
            Side::Receive => &mut member.receive,
        };
        let limit = limit.as_mut().ok_or(CommandError::Invalid)?;
        *limit = match enable {
            Enable::To(index) => index.max(*limit),
            Enable::More(requests) => limit.saturating_add(requests),
        };
        Ok(member.index)
    }

    /// The receive queue of a queue pair has refused a message of this host.
    pub(crate) fn refuse(&mut self, qp: u32) {
        self.member_mut(qp).into_iter().for_each(|member| member.has_refused = true);
    }

    /// Whether the sender of a refused message is to be told that the receive queue of `qp` takes it now; asked once.
    pub(crate) fn must_tell(&mut self, qp: u32) -> bool {
        self.member_mut(qp).is_some_and(|member| core::mem::take(&mut member.has_refused))
    }

    /// Counts a request that has started, and returns the steps that it costs.
    pub(crate) fn count(&mut self, step: Executed) -> u64 {
        self.audited(step.qp).map_or(0, |(audit, pace)| audit.count(pace, step))
    }

    /// A receive request has ended: it is recorded, and costs no steps.
    pub(crate) fn on_message(&mut self, step: Executed) {
        self.audited(step.qp).into_iter().for_each(|(audit, _)| audit.record(step));
    }

    /// A queue stands still, because the endpoint's budget of steps is spent.
    pub(crate) fn starve(&mut self, qp: u32, now: Time) {
        self.audited(qp).into_iter().for_each(|(audit, pace)| audit.starve(pace, now));
    }

    /// A queue has executed all that is enabled.
    pub(crate) fn rest(&mut self, qp: u32) {
        self.member_mut(qp).into_iter().for_each(|member| member.pace.rest());
    }

    /// Records the requests of a group until then, and returns those that were recorded from number `from` on.
    pub(crate) fn trace(&mut self, number: u32, from: u64, until: Time) -> Option<Vec<Executed>> {
        let group = self.groups.iter_mut().flatten().find(|group| group.number == number)?;
        Some(group.audit.trace(from, until))
    }

    /// Limit of a queue, and whether it stands still for want of steps.
    pub(crate) fn outlook(&self, target: Target) -> Option<(u64, bool)> {
        let member = self.member(target.qp)?;
        Some((member.limit(target.side)?, member.pace.is_starved()))
    }

    fn audited(&mut self, qp: u32) -> Option<(&mut Audit, &mut Pace)> {
        let member = self.members.get_mut(qp as usize)?.as_mut()?;
        let group = self.groups.get_mut(member.group)?.as_mut()?;
        Some((&mut group.audit, &mut member.pace))
    }

    /// Counts of the group of a queue pair.
    pub(crate) fn counts(&mut self, qp: u32) -> Option<&mut Counts> {
        self.group_of(qp).map(|group| &mut group.audit.counts)
    }

    /// Notes the error that is about to end a group, if it is the first.
    pub(crate) fn blame(&mut self, fault: ChainFault) {
        if let Some(group) = self.group_of(fault.qp) {
            group.fault.get_or_insert(fault);
        }
    }

    /// A queue pair has failed. Returns the others of its group, by the engine's index, if it is the first; none if it
    /// belongs to no group, or to one that has ended before.
    pub(crate) fn fail(&mut self, qp: u32) -> Option<Vec<u32>> {
        self.member_mut(qp)?.has_failed = true;
        let group = self.group_of(qp)?;
        if core::mem::replace(&mut group.state, ChainState::Poisoned) == ChainState::Poisoned {
            return None;
        }
        let others: Vec<u32> = group.members.iter().copied().filter(|other| *other != qp).collect();
        Some(others.into_iter().filter_map(|other| Some(self.member(other)?.index)).collect())
    }

    /// A queue pair is reset: nothing of it is enabled. A group that has ended may be used again when all are.
    pub(crate) fn reset(&mut self, qp: u32) {
        let Some(member) = self.member_mut(qp) else { return };
        member.has_failed = false;
        for limit in [&mut member.send, &mut member.receive] {
            *limit = limit.map(|_| 0);
        }
        let Some(group) = self.group_of(qp) else { return };
        let (state, members) = (group.state, group.members.clone());
        let has_failed = |qp: &u32| self.member(*qp).is_some_and(|member| member.has_failed);
        if state == ChainState::Poisoned
            && !members.iter().any(has_failed)
            && let Some(group) = self.group_of(qp)
        {
            (group.state, group.fault) = (ChainState::Running, None);
        }
    }

    /// Stops a group, or lets it go on. Returns its queue pairs, by the engine's index.
    pub(crate) fn set_stopped(&mut self, number: u32, is_stopped: bool) -> Result<Vec<u32>, CommandError> {
        let group = self.groups.iter_mut().flatten().find(|group| group.number == number);
        let group = group.ok_or(CommandError::NoSuchObject)?;
        if group.state == ChainState::Poisoned {
            return Err(CommandError::Invalid);
        }
        group.state = if is_stopped { ChainState::Stopped } else { ChainState::Running };
        let members = group.members.clone();
        Ok(members.into_iter().filter_map(|qp| Some(self.member(qp)?.index)).collect())
    }

    /// All groups, in the order of their numbers. Laps are not known here.
    pub(crate) fn list(&self, now: Time) -> Vec<ChainEntry> {
        let mut entries: Vec<ChainEntry> = self.groups.iter().flatten().map(|group| self.entry(group, now)).collect();
        entries.sort_unstable_by_key(|entry| entry.group);
        entries
    }

    fn entry(&self, group: &Group, now: Time) -> ChainEntry {
        let Group { number, ref members, state, fault, ref audit } = *group;
        let paces = || members.iter().filter_map(|qp| Some(&self.member(*qp)?.pace));
        ChainEntry {
            group: number,
            qps: members.clone(),
            state,
            fault,
            counts: audit.counts,
            is_spinning: state == ChainState::Running && paces().any(Pace::is_spinning),
            laps: 0,
            starved: audit.starved,
            starved_for: audit.starved_for(paces(), now),
        }
    }

    fn state(&self, member: &Member) -> ChainState {
        let group = self.groups.get(member.group).and_then(Option::as_ref);
        group.map_or(ChainState::Poisoned, |group| group.state)
    }

    fn member(&self, qp: u32) -> Option<&Member> {
        self.members.get(qp as usize)?.as_ref()
    }

    fn member_mut(&mut self, qp: u32) -> Option<&mut Member> {
        self.members.get_mut(qp as usize)?.as_mut()
    }

    fn group_of(&mut self, qp: u32) -> Option<&mut Group> {
        let group = self.member(qp)?.group;
        self.groups.get_mut(group)?.as_mut()
    }
}

/// Most regions over the rings of one queue pair, which goes at once and takes them with it.
const MOST_REGIONS: usize = 256;
