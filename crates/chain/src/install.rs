//! Installation of chains: their requests with keys and addresses, in a model.

use crate::model::Model;
use crate::program::{Chain, Content, Place, Queue, Region, Remote, Span};
use rdmesh_verbs::chain::{Args, ChainOp, Request, offset};
use rdmesh_verbs::{Access, Key, Sge};

/// The objects of a chain in a model.
#[derive(Clone, Debug)]
pub struct Installed {
    /// Handles of completion queues.
    pub cqs: Vec<u32>,
    /// Keys of regions.
    pub regions: Vec<u32>,
    /// Handles of send queues, and keys of their rings.
    pub queues: Vec<(u32, u32)>,
    /// Handles of receive queues.
    pub receives: Vec<u32>,
}

/// Site of an installation: its client, its neighbours and its first lap.
#[derive(Clone, Copy, Debug, Default)]
pub struct Site<'a> {
    /// The client that it serves.
    pub client: Option<u32>,
    /// Another installation, whose tables and shared memory it uses.
    pub beside: Option<&'a Installed>,
    /// The lap that comes next, as if the chain had run for a long time.
    pub lap: u64,
}

impl Chain {
    /// Makes the chain's objects in a model: all memory, rings and limits.
    pub fn install(&self, model: &mut Model, client: Option<u32>) -> Installed {
        self.install_at(model, &Site { client, ..Site::default() })
    }

    /// Makes the chain's objects in a model, at a site.
    pub fn install_at(&self, model: &mut Model, site: &Site<'_>) -> Installed {
        let Site { client, beside: other, lap } = *site;
        let cqs: Vec<u32> = self.cqs.iter().map(|_| model.create_cq()).collect();
        let queue = |(number, queue): (usize, &Queue)| {
            let client = if queue.to_client { client } else { None };
            model.create_queue(queue.slots.len(), self.stride(number), cqs[queue.cq], client)
        };
        let queues: Vec<(u32, u32)> = self.queues.iter().enumerate().map(queue).collect();
        let access = Access::REMOTE_READ;
        let all = access | Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let region = |(number, region): (usize, &Region)| {
            if let Some(other) = other.filter(|_| region.content.is_foreign()) {
                return other.regions[number];
            }
            let access = if region.content.is_writable() { all } else { access };
            let bytes = match &region.content {
                Content::Bytes(bytes) => bytes.clone(),
                other => vec![0; other.length() as usize],
            };
            model.register(0, bytes, access)
        };
        let regions: Vec<u32> = self.regions.iter().enumerate().map(region).collect();
        let mut receives = Vec::new();
        let rings: Vec<u32> = self
            .receives
            .iter()
            .map(|receive| {
                let (handle, ring) = model.create_receive_queue(receive.slots.len(), receive.stride(), cqs[receive.cq]);
                receives.push(handle);
                ring
            })
            .collect();
        let installed = Installed { cqs, regions, queues, receives };
        self.preset(model, &installed, lap);
        self.fill(model, &installed, &rings, lap);
        installed
    }

    /// All counts as after so many laps.
    fn preset(&self, model: &mut Model, installed: &Installed, lap: u64) {
        for slot in &self.slots {
            if let (ChainOp::Wait, Some(order)) = (slot.class_op(), slot.order) {
                model.preset_cq(installed.cqs[order.object], lap * u64::from(order.step));
            }
        }
        for (queue, (handle, _)) in self.queues.iter().zip(&installed.queues) {
            model.preset_queue(*handle, lap * queue.slots.len() as u64);
        }
        for (receive, handle) in self.receives.iter().zip(&installed.receives) {
            model.preset_receives(*handle, lap * receive.slots.len() as u64);
        }
    }

    fn fill(&self, model: &mut Model, installed: &Installed, rings: &[u32], lap: u64) {
        for (number, queue) in self.queues.iter().enumerate() {
            let (stride, (_, ring)) = (self.stride(number), installed.queues[number]);
            for (index, slot) in queue.slots.iter().enumerate() {
                let bytes = &mut model.bytes_mut(ring)[index * stride..(index + 1) * stride];
                self.encode(*slot, installed, bytes);
            }
        }
        for (number, region) in self.regions.iter().enumerate() {
            let Content::Pristine(parts) = &region.content else { continue };
            let mut bytes = Vec::new();
            for (slot, at, length) in parts {
                let Some((key, addr)) = self.resolve(Place::Slot { slot: *slot, at: *at }, installed) else { continue };
                bytes.extend_from_slice(&model.bytes(key)[addr as usize..addr as usize + length]);
            }
            model.bytes_mut(installed.regions[number]).copy_from_slice(&bytes);
        }
        for (receive, ring) in self.receives.iter().zip(rings) {
            for (slot, sges) in model.bytes_mut(*ring).chunks_mut(receive.stride()).zip(&receive.slots) {
                slot[offset::RECV_NUM_SGE] = sges.len() as u8;
                for (i, sge) in sges.iter().map(|span| self.sge(span, installed)).enumerate() {
                    let at = offset::RECV_SGES + i * offset::SGE_LEN;
                    slot[at..at + 8].copy_from_slice(&sge.addr.to_le_bytes());
                    slot[at + offset::SGE_LENGTH..][..4].copy_from_slice(&sge.length.to_le_bytes());
                    slot[at + offset::SGE_KEY..][..4].copy_from_slice(&sge.lkey.0.to_le_bytes());
                }
            }
        }
        for (receive, handle) in self.receives.iter().zip(&installed.receives) {
            model.enable_receives(*handle, receive.enabled + lap * receive.slots.len() as u64);
        }
        for (queue, (handle, _)) in self.queues.iter().zip(&installed.queues) {
            model.enable(*handle, queue.enabled.saturating_add(lap * queue.slots.len() as u64));
        }
    }

    /// Key and address of a place.
    pub fn resolve(&self, place: Place, installed: &Installed) -> Option<(u32, u64)> {
        match place {
            Place::Region { region, at } => Some((*installed.regions.get(region)?, at)),
            Place::Slot { slot, at } => {
                let (queue, index) = self.position(slot)?;
                Some((installed.queues[queue].1, (index * self.stride(queue) + at) as u64))
            }
        }
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
