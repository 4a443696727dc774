//! Installation of chains: their requests with keys and addresses, in a model.

use crate::model::Model;
use crate::program::{Chain, Content, Queue, Region};
use rdmesh_verbs::Access;
use rdmesh_verbs::chain::ChainOp;

/// The objects of a chain in a NIC, or in a model of one.
#[derive(Clone, Debug, Default)]
pub struct Installed {
    /// Handles of completion queues.
    pub cqs: Vec<u32>,
    /// Keys of regions.
    pub regions: Vec<u32>,
    /// Handles of send queues, and keys of their rings.
    pub queues: Vec<(u32, u32)>,
    /// Handles of receive queues.
    pub receives: Vec<u32>,
    /// The first address of each region under its key; 0 where there is none here.
    pub bases: Vec<u64>,
    /// Bytes of a slot of each send queue; where there is none here, as few as it needs.
    pub strides: Vec<usize>,
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
        let installed = Installed { cqs, regions, queues, receives, ..Installed::default() };
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
        for (number, (_, ring)) in installed.queues.iter().enumerate() {
            model.bytes_mut(*ring).copy_from_slice(&self.ring(number, installed));
        }
        for (number, region) in self.regions.iter().enumerate() {
            if let Content::Pristine(_) = &region.content {
                model.bytes_mut(installed.regions[number]).copy_from_slice(&self.constant(number, installed));
            }
        }
        for (number, (receive, ring)) in self.receives.iter().zip(rings).enumerate() {
            model.bytes_mut(*ring).copy_from_slice(&self.receive_ring(number, receive.stride(), installed));
        }
        for (receive, handle) in self.receives.iter().zip(&installed.receives) {
            model.enable_receives(*handle, receive.enabled + lap * receive.slots.len() as u64);
        }
        for (queue, (handle, _)) in self.queues.iter().zip(&installed.queues) {
            model.enable(*handle, queue.enabled.saturating_add(lap * queue.slots.len() as u64));
        }
    }
}
