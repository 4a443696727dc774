//! Managed queues of a context: regions over their rings, images that arrive in parts, and charges.

use super::account::Account;
use crate::budget::{Charge, Resource};
use rdmesh_nic::Image;
use rdmesh_uverbs::session::chain::{Managed, QueueSide, SealPart};
use rdmesh_verbs::chain::ChainOp;
use rustix::io::Errno;
use std::collections::BTreeMap;

/// The managed queues of a context, by handle of their queue pair.
#[derive(Default)]
pub(super) struct ManagedQueues(BTreeMap<u32, ManagedQueue>);

/// The managed queues of a queue pair.
pub(super) struct ManagedQueue {
    shape: Managed,
    /// Bytes of the ring of each side; none where it is not managed.
    lens: [Option<u64>; 2],
    /// Handles of the regions over its rings.
    regions: Vec<u32>,
    /// Of each side, the image that is not complete yet.
    images: [Option<Parts>; 2],
    /// Charges for what the NIC keeps of them.
    charges: Vec<Charge>,
}

/// The first slots of an image, as they were sent.
struct Parts {
    bytes: Vec<u8>,
    charge: Charge,
}

impl ManagedQueues {
    /// Queues of a queue pair are managed now.
    pub(super) fn insert(&mut self, qp: u32, shape: Managed, lens: [Option<u64>; 2], charge: Charge) {
        let (regions, images, charges) = (Vec::new(), [None, None], vec![charge]);
        self.0.insert(qp, ManagedQueue { shape, lens, regions, images, charges });
    }

    /// Those of a queue pair.
    pub(super) fn get(&self, qp: u32) -> Option<&ManagedQueue> {
        self.0.get(&qp)
    }

    /// Those of a queue pair, to be changed.
    pub(super) fn get_mut(&mut self, qp: u32) -> Option<&mut ManagedQueue> {
        self.0.get_mut(&qp)
    }

    /// A queue pair has gone.
    pub(super) fn remove(&mut self, qp: u32) -> Option<ManagedQueue> {
        self.0.remove(&qp)
    }

    /// A region has gone before its queue pair, if it was one over a ring.
    pub(super) fn forget_region(&mut self, mr: u32) {
        self.0.values_mut().for_each(|queue| queue.regions.retain(|region| *region != mr));
    }

    /// Whether a region is one over a ring.
    pub(super) fn has_region(&self, mr: u32) -> bool {
        self.0.values().any(|queue| queue.regions.contains(&mr))
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

    /// An image is in use.
    pub(super) fn add_charge(&mut self, charge: Charge) {
        self.charges.push(charge);
    }

    /// Takes a part of an image. Returns the image, and the charge for it, where it is complete.
    pub(super) fn seal(
        &mut self,
        account: &Account,
        side: QueueSide,
        part: &SealPart,
        slots: &[u8],
    ) -> Result<Option<(Image, Charge)>, Errno> {
        let (stride, cycle) = match side {
            QueueSide::Send => (self.shape.send_stride as usize, self.shape.send_cycle as usize),
            QueueSide::Receive => (self.shape.receive_stride as usize, self.shape.receive_cycle as usize),
        };
        let record = SealPart::record_len(stride);
        let (first, count) = (part.first as usize, part.count as usize);
        let fits = first.checked_add(count).is_some_and(|end| end <= cycle);
        if !fits || count == 0 || slots.len() != count * record {
            return Err(Errno::INVAL);
        }
        let image = &mut self.images[side as usize];
        if first == 0 {
            *image = None;
            // As it is sent, and as the NIC keeps it.
            let charge = account.share.take(Resource::Memory, (cycle * 3 * record) as u64)?;
            *image = Some(Parts { bytes: Vec::with_capacity(cycle * record), charge });
        }
        let parts = image.as_mut().filter(|parts| parts.bytes.len() == first * record).ok_or(Errno::INVAL)?;
        parts.bytes.extend_from_slice(slots);
        if parts.bytes.len() != cycle * record {
            return Ok(None);
        }
        let Some(Parts { bytes, charge }) = image.take() else { return Err(Errno::INVAL) };
        let image = assemble(&bytes, stride).ok_or(Errno::INVAL)?;
        Ok(Some((image, charge)))
    }
}

/// The image that is made of these slots; none where they are not right.
fn assemble(records: &[u8], stride: usize) -> Option<Image> {
    let record_len = SealPart::record_len(stride);
    let records = || records.chunks_exact(record_len);
    let bytes: Vec<u8> = records().flat_map(|record| &record[..stride]).copied().collect();
    let mut image = Image::new(stride, &bytes)?;
    for (slot, record) in records().enumerate() {
        let (holes, allowed) = record[stride..].split_at(stride / 8);
        let is_hole = |at: &usize| holes[at / 8] >> (at % 8) & 1 != 0;
        if !(0..stride).filter(is_hole).all(|at| image.open(slot, at, 1)) {
            return None;
        }
        let allowed = u64::from_ne_bytes(allowed.try_into().ok()?);
        if allowed != u64::MAX && !image.allow(slot, &operations(allowed)?) {
            return None;
        }
    }
    Some(image)
}

/// The operations of a set of codes; none where a code is of no operation.
fn operations(codes: u64) -> Option<Vec<ChainOp>> {
    let ops: Vec<ChainOp> = ChainOp::ALL.into_iter().filter(|op| codes >> op.code() & 1 != 0).collect();
    (ops.len() == codes.count_ones() as usize).then_some(ops)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_codes_is_of_operations() {
        let nop = 1 << ChainOp::Nop.code();
        assert_eq!(operations(nop | 1), Some(vec![ChainOp::Write, ChainOp::Nop]));
        assert_eq!(operations(nop | 1 << 63), None);
        assert_eq!(operations(0), Some(Vec::new()));
    }

    #[test]
    fn an_image_has_whole_slots() {
        let record = vec![0xff; SealPart::record_len(64)];
        assert!(assemble(&record, 64).is_some());
        let mut of_no_operation = record.clone();
        of_no_operation[64 + 8..].copy_from_slice(&(1u64 << 40).to_ne_bytes());
        assert!(assemble(&of_no_operation, 64).is_none());
    }
}
