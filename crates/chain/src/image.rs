//! Images of a chain's rings: its requests as bytes, with keys and addresses, and what may change of them.

use crate::install::Installed;
use crate::program::{Chain, Content, Place, Remote, Slot, Span};
use rdmesh_verbs::chain::{Args, ChainOp, Request, offset};
use rdmesh_verbs::{Key, Sge};

/// Proved content of a slot: what a NIC that seals a queue takes of it from the ring, and what it does not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SealedSlot {
    /// The bytes as they were proved.
    pub bytes: Vec<u8>,
    /// A bit for each byte that may change, from the lowest of the first byte on.
    pub holes: Vec<u8>,
    /// A bit for the code of each operation that it may have.
    pub allowed: u64,
}

impl Chain {
    /// The bytes of a send queue's slots.
    pub fn ring(&self, queue: usize, installed: &Installed) -> Vec<u8> {
        let stride = self.installed_stride(queue, installed);
        let slots = &self.queues[queue].slots;
        let mut bytes = vec![0; stride * slots.len()];
        for (slot, bytes) in slots.iter().zip(bytes.chunks_mut(stride)) {
            self.encode(*slot, installed, bytes);
        }
        bytes
    }

    /// The bytes of a receive queue's slots of `stride` bytes.
    pub fn receive_ring(&self, receive: usize, stride: usize, installed: &Installed) -> Vec<u8> {
        let slots = &self.receives[receive].slots;
        let mut bytes = vec![0; stride * slots.len()];
        for (slot, sges) in bytes.chunks_mut(stride).zip(slots) {
            slot[offset::RECV_NUM_SGE] = sges.len() as u8;
            for (i, sge) in sges.iter().map(|span| self.sge(span, installed)).enumerate() {
                let at = offset::RECV_SGES + i * offset::SGE_LEN;
                slot[at..at + 8].copy_from_slice(&sge.addr.to_le_bytes());
                slot[at + offset::SGE_LENGTH..][..4].copy_from_slice(&sge.length.to_le_bytes());
                slot[at + offset::SGE_KEY..][..4].copy_from_slice(&sge.lkey.0.to_le_bytes());
            }
        }
        bytes
    }

    /// The content of a region that never changes; zeros for others.
    pub fn constant(&self, region: usize, installed: &Installed) -> Vec<u8> {
        match &self.regions[region].content {
            Content::Bytes(bytes) => bytes.clone(),
            Content::Pristine(parts) => {
                let part = |(slot, at, length): &(usize, usize, usize)| {
                    let stride = self.position(*slot).map_or(0, |(queue, _)| self.installed_stride(queue, installed));
                    let mut bytes = vec![0; stride];
                    self.encode(*slot, installed, &mut bytes);
                    bytes[*at..at + length].to_vec()
                };
                parts.iter().flat_map(part).collect()
            }
            other => vec![0; other.length() as usize],
        }
    }

    /// The slots of a send queue as they are sealed: with holes where requests or messages of the chain write.
    pub fn sealed(&self, queue: usize, installed: &Installed) -> Vec<SealedSlot> {
        let stride = self.installed_stride(queue, installed);
        let slots = &self.queues[queue].slots;
        let slot = |(bytes, slot): (&[u8], &usize)| {
            let slot = &self.slots[*slot];
            let ops = std::iter::once(slot.control.op).chain(slot.may.iter().map(|control| control.op));
            let allowed = ops.fold(0, |set, op| set | 1 << op.code());
            SealedSlot { bytes: bytes.to_vec(), holes: vec![0; stride / 8], allowed }
        };
        let mut sealed: Vec<SealedSlot> = self.ring(queue, installed).chunks(stride).zip(slots).map(slot).collect();
        for span in self.written() {
            let Place::Slot { slot, at } = span.place else { continue };
            let index = self.position(slot).filter(|(number, _)| *number == queue).map(|(_, index)| index);
            let holes = index.and_then(|index| sealed.get_mut(index)).map(|slot| &mut slot.holes);
            if let Some(holes) = holes {
                (at..at + span.length as usize).filter(|at| *at < stride).for_each(|at| holes[at / 8] |= 1 << (at % 8));
            }
        }
        sealed
    }

    /// Whether requests on the chain's own memory go by way of queue pairs that are looped back, as RDMA NICs need it.
    pub fn is_looped_back(&self) -> bool {
        let acts = |slot: &Slot| matches!(slot.remote, Remote::Own(_)) && !slot.is_local();
        self.slots.iter().any(acts)
    }

    /// Places that messages or requests of the chain write.
    fn written(&self) -> Vec<Span> {
        let mut spans: Vec<Span> = self.receives.iter().flat_map(|receive| &receive.slots).flatten().copied().collect();
        for slot in &self.slots {
            let op = slot.class_op();
            if op.returns_data() {
                spans.extend(&slot.sges);
            }
            if let (Remote::Own(place), false) = (slot.remote, op == ChainOp::Read) {
                let length = if op.is_atomic() { op.width() as u32 } else { slot.length() as u32 };
                spans.push(Span { place, length });
            }
        }
        spans
    }

    /// Key and address of a place.
    pub fn resolve(&self, place: Place, installed: &Installed) -> Option<(u32, u64)> {
        match place {
            Place::Region { region, at } => {
                let base = installed.bases.get(region).copied().unwrap_or_default();
                Some((*installed.regions.get(region)?, base + at))
            }
            Place::Slot { slot, at } => {
                let (queue, index) = self.position(slot)?;
                Some((installed.queues[queue].1, (index * self.installed_stride(queue, installed) + at) as u64))
            }
        }
    }

    fn installed_stride(&self, queue: usize, installed: &Installed) -> usize {
        installed.strides.get(queue).copied().unwrap_or_else(|| self.stride(queue))
    }

    fn sge(&self, span: &Span, installed: &Installed) -> Sge {
        let (key, addr) = self.resolve(span.place, installed).unwrap_or_default();
        Sge { addr, length: span.length, lkey: Key(key) }
    }

    /// Writes a slot's bytes. A request that does nothing yet has its operands where those of what it becomes lie.
    pub fn encode(&self, slot: usize, installed: &Installed, bytes: &mut [u8]) {
        let mut request = self.request(slot, installed);
        request.control.op = self.slots[slot].class_op();
        request.encode(bytes);
        let control = self.slots[slot].control.encode();
        bytes[offset::CONTROL..offset::CONTROL + 8].copy_from_slice(&control.to_le_bytes());
    }

    /// A slot as a work request with keys and addresses.
    pub fn request(&self, slot: usize, installed: &Installed) -> Request {
        let slot = &self.slots[slot];
        let (rkey, remote_addr) = match slot.remote {
            Remote::None => (0, 0),
            Remote::Own(place) => self.resolve(place, installed).unwrap_or_default(),
            Remote::Client { addr, rkey } => (rkey, addr),
        };
        let mut request = Request::new(slot.control);
        request.flags = slot.flags;
        request.imm = slot.imm;
        let (compare_mask, swap_mask) = slot.masks;
        let (compare_add, swap) = (slot.compare, slot.swap);
        request.args = Args { remote_addr, rkey, compare_add, swap, compare_mask, swap_mask };
        request.wide = slot.wide;
        request.sges.extend(slot.sges.iter().map(|span| self.sge(span, installed)));
        if let Some(order) = slot.order {
            let object = match slot.class_op() {
                ChainOp::Wait => installed.cqs[order.object],
                ChainOp::RecvEnable => installed.receives[order.object],
                _ => installed.queues[order.object].0,
            };
            request.sges.clear();
            request.sges.push(Sge { addr: order.count, length: order.step, lkey: Key(object) });
            request.imm = u32::from(order.relative);
        }
        request
    }
}
