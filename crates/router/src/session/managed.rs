//! Managed queues of a context: regions over their rings, images that arrive in parts, and charges.

use super::account::Account;
use super::failed_requests::FailedChain;
use super::label::Label;
use crate::budget::{Charge, Exhausted, Resource, Share};
use rdmesh_nic::{ChainEntry, ChainFault, Image, TRACE_BYTES};
use rdmesh_uverbs::session::chain::{LABEL_LEN, Managed, QueueSide, SealPart};
use rustix::io::Errno;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// The managed queues of a context, by handle of their queue pair.
#[derive(Default)]
pub(super) struct ManagedQueues {
    queues: BTreeMap<u32, ManagedQueue>,
    /// Groups whose errors have been recorded.
    recorded: BTreeSet<u32>,
    /// Charges for the requests that the NIC records of groups, as long as their device is open.
    traces: BTreeMap<u32, Charge>,
}

/// The managed queues of a queue pair.
pub(super) struct ManagedQueue {
    shape: Managed,
    /// Bytes of the ring of each side; none where it is not managed.
    lens: [Option<u64>; 2],
    /// Handles of the regions over its rings.
    regions: Vec<u32>,
    /// Of each side, the image that is not complete yet.
    images: [Option<Parts>; 2],
    /// Labels of the slots of each side.
    labels: [Option<Labels>; 2],
    /// Charge for what the NIC keeps of them but images.
    _charge: Charge,
    /// Charges for the images of each side that are in use.
    sealed: [Option<Charge>; 2],
}

/// Labels of a queue's slots.
struct Labels {
    slots: Box<[Option<Label>]>,
    _charge: Charge,
}

/// The first slots of an image.
struct Parts {
    image: Image,
    charge: Charge,
}

impl ManagedQueues {
    /// Queues of a queue pair are managed now.
    pub(super) fn insert(&mut self, qp: u32, shape: Managed, lens: [Option<u64>; 2], charge: Charge) {
        let (regions, images, labels, sealed) = (Vec::new(), [None, None], [None, None], [None, None]);
        self.queues.insert(qp, ManagedQueue { shape, lens, regions, images, labels, _charge: charge, sealed });
    }

    /// Those of a queue pair.
    pub(super) fn get(&self, qp: u32) -> Option<&ManagedQueue> {
        self.queues.get(&qp)
    }

    /// Those of a queue pair, to be changed.
    pub(super) fn get_mut(&mut self, qp: u32) -> Option<&mut ManagedQueue> {
        self.queues.get_mut(&qp)
    }

    /// A queue pair has gone.
    pub(super) fn remove(&mut self, qp: u32) -> Option<ManagedQueue> {
        self.queues.remove(&qp)
    }

    /// Label of a request of a queue pair, counted from the queue's first.
    pub(super) fn label_of(&self, qp: u32, is_receive: bool, index: u64) -> Option<Label> {
        let side = if is_receive { QueueSide::Receive } else { QueueSide::Send };
        self.get(qp)?.label_of(side, index)
    }

    /// Charges for the record of a group's requests, once.
    pub(super) fn charge_trace(&mut self, group: u32, share: &Share) -> Result<(), Exhausted> {
        if let Entry::Vacant(entry) = self.traces.entry(group) {
            entry.insert(share.take(Resource::Memory, TRACE_BYTES as u64)?);
        }
        Ok(())
    }

    /// A group has no record.
    pub(super) fn forget_trace(&mut self, group: u32) {
        self.traces.remove(&group);
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// The errors of groups that have not been taken yet: of a group that runs again, the next one is new.
    pub(super) fn take_new_faults(&mut self, entries: &[ChainEntry]) -> Vec<FailedChain> {
        let failed: BTreeMap<u32, ChainFault> =
            entries.iter().filter_map(|entry| Some((entry.group, entry.fault?))).collect();
        self.recorded.retain(|group| failed.contains_key(group));
        let mut taken = Vec::new();
        for (group, fault) in failed {
            if self.recorded.insert(group) {
                let label = self.label_of(fault.qp, fault.is_receive, fault.index);
                taken.push(FailedChain { group, fault, label });
            }
        }
        taken
    }
}

impl ManagedQueue {
    /// Bytes of the ring of a managed queue.
    pub(super) fn ring_len(&self, side: QueueSide) -> Option<u64> {
        self.lens[side as usize]
    }

    /// Its regions.
    pub(super) fn regions(&self) -> &[u32] {
        &self.regions
    }

    /// Its ring was registered.
    pub(super) fn add_region(&mut self, mr: u32) {
        self.regions.push(mr);
    }

    /// A region has gone before its queue pair.
    pub(super) fn forget_region(&mut self, mr: u32) {
        self.regions.retain(|region| *region != mr);
    }

    /// An image is in use, instead of that before it.
    pub(super) fn set_sealed(&mut self, side: QueueSide, charge: Charge) {
        self.sealed[side as usize] = Some(charge);
    }

    /// Names the requests of slots from `first` on.
    pub(super) fn label(
        &mut self,
        account: &Account,
        side: QueueSide,
        first: u32,
        names: &[[u8; LABEL_LEN]],
    ) -> Result<(), Errno> {
        let (first, cycle) = (first as usize, self.slots(side).1);
        let fits = first.checked_add(names.len()).is_some_and(|end| end <= cycle);
        if !fits || names.is_empty() {
            return Err(Errno::INVAL);
        }
        let labels = &mut self.labels[side as usize];
        if labels.is_none() {
            let charge = account.share().take(Resource::Memory, (cycle * size_of::<Option<Label>>()) as u64)?;
            *labels = Some(Labels { slots: vec![None; cycle].into(), _charge: charge });
        }
        let slots = labels.iter_mut().flat_map(|labels| &mut labels.slots[first..]);
        slots.zip(names).for_each(|(slot, name)| *slot = Label::new(*name));
        Ok(())
    }

    /// Label of a request, counted from the queue's first.
    pub(super) fn label_of(&self, side: QueueSide, index: u64) -> Option<Label> {
        let labels = self.labels[side as usize].as_ref()?;
        labels.slots[(index % labels.slots.len() as u64) as usize]
    }

    /// Bytes of a slot, and slots of a lap.
    fn slots(&self, side: QueueSide) -> (usize, usize) {
        let (stride, cycle) = match side {
            QueueSide::Send => (self.shape.send_stride, self.shape.send_cycle),
            QueueSide::Receive => (self.shape.receive_stride, self.shape.receive_cycle),
        };
        (stride as usize, cycle as usize)
    }

    /// Takes a part of an image. Returns the image, and the charge for it, where it is complete.
    pub(super) fn seal(
        &mut self,
        account: &Account,
        side: QueueSide,
        part: &SealPart,
        slots: &[u8],
    ) -> Result<Option<(Image, Charge)>, Errno> {
        let (stride, cycle) = self.slots(side);
        let record = SealPart::record_len(stride);
        let (first, count) = (part.first as usize, part.count as usize);
        let fits = first.checked_add(count).is_some_and(|end| end <= cycle);
        if !fits || count == 0 || slots.len() != count * record {
            return Err(Errno::INVAL);
        }
        let image = &mut self.images[side as usize];
        if first == 0 {
            *image = None;
            let charge = account.share().take(Resource::Memory, Image::bytes_of(stride, cycle) as u64)?;
            *image = Some(Parts { image: Image::new(stride, cycle).ok_or(Errno::INVAL)?, charge });
        }
        let parts = image.as_mut().filter(|parts| parts.image.slots() == first).ok_or(Errno::INVAL)?;
        // Each part costs what it is long: a large image must not keep others waiting at its end.
        if !slots.chunks_exact(record).all(|record| push(&mut parts.image, record, stride)) {
            *image = None;
            return Err(Errno::INVAL);
        }
        Ok(image.take_if(|parts| parts.image.slots() == cycle).map(|Parts { image, charge }| (image, charge)))
    }
}

/// Adds the slot of a record to an image; false where it is not right.
fn push(image: &mut Image, record: &[u8], stride: usize) -> bool {
    let (bytes, rest) = record.split_at(stride);
    let Some((holes, allowed)) = rest.split_last_chunk() else { return false };
    image.push(bytes, holes, u64::from_ne_bytes(*allowed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::{Budget, Limits};

    #[test]
    fn the_record_of_a_group_is_charged_once_and_given_back() {
        let budget = Budget::new(Limits::of_this_process());
        let share = budget.share(1);
        let held = || budget.held(Resource::Memory);
        let mut queues = ManagedQueues::default();
        [5, 5, 6].into_iter().for_each(|group| queues.charge_trace(group, &share).unwrap());
        assert_eq!(held(), 2 * TRACE_BYTES as u64);
        queues.forget_trace(6);
        assert_eq!(held(), TRACE_BYTES as u64);
        drop(queues);
        assert_eq!(held(), 0);
    }

    #[test]
    fn an_image_takes_the_place_of_that_before_it() {
        let budget = Budget::new(Limits::of_this_process());
        let share = budget.share(1);
        let charge = |bytes| share.take(Resource::Memory, bytes).unwrap();
        let mut queues = ManagedQueues::default();
        queues.insert(1, Managed::default(), [Some(64), None], charge(100));
        let queue = queues.get_mut(1).unwrap();
        (0..10).for_each(|_| queue.set_sealed(QueueSide::Send, charge(1000)));
        queue.set_sealed(QueueSide::Receive, charge(10));
        assert_eq!(budget.held(Resource::Memory), 1110);
        drop(queues);
        assert_eq!(budget.held(Resource::Memory), 0);
    }

    #[test]
    fn an_image_has_whole_slots() {
        let record = vec![0xff; SealPart::record_len(64)];
        let mut image = Image::new(64, 2).unwrap();
        assert!(push(&mut image, &record, 64));
        let mut of_no_operation = record.clone();
        of_no_operation[64 + 8..].copy_from_slice(&(1u64 << 40).to_ne_bytes());
        assert!(!push(&mut image, &of_no_operation, 64) && image.slots() == 1);
    }
}
