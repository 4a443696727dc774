//! Multicast groups of a context's queue pairs.

use rdmesh_verbs::Gid;
use std::collections::HashMap;

/// A group, as a program joins it: its address and its LID, which Ethernet does not use.
pub(super) type Group = (Gid, u16);

/// The groups of each queue pair that has some.
#[derive(Default)]
pub(super) struct Groups(HashMap<u32, Vec<Group>>);

impl Groups {
    /// Whether a queue pair is in a group.
    pub(super) fn has_any(&self, qp: u32) -> bool {
        self.0.contains_key(&qp)
    }

    /// The groups of a queue pair.
    pub(super) fn of(&self, qp: u32) -> &[Group] {
        self.0.get(&qp).map_or(&[][..], Vec::as_slice)
    }

    /// Adds a queue pair to a group.
    pub(super) fn join(&mut self, qp: u32, group: Group) {
        self.0.entry(qp).or_default().push(group);
    }

    /// Removes a queue pair from a group. Returns whether it was the last with that address; none where it was not in it.
    pub(super) fn leave(&mut self, qp: u32, group: Group) -> Option<bool> {
        let groups = self.0.get_mut(&qp)?;
        let found = groups.iter().position(|other| *other == group)?;
        groups.swap_remove(found);
        let is_last = groups.iter().all(|(other, _)| *other != group.0);
        if groups.is_empty() {
            self.0.remove(&qp);
        }
        Some(is_last)
    }
}
