//! Chains as queues of labelled work requests, before they have keys and addresses.

use crate::model::Model;
use rdmesh_verbs::chain::{Args, ChainFlags, ChainOp, Class, Control, Request, offset};
use rdmesh_verbs::{Access, Key, Sge};
use std::fmt;

/// Memory that a request names: of a region, or of another request's slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Place {
    /// Bytes of [`Chain::regions`]`[region]` from `at` on.
    Region {
        /// Its number.
        region: usize,
        /// The first byte.
        at: u64,
    },
    /// Bytes of the slot of [`Chain::slots`]`[slot]` from `at` on.
    Slot {
        /// Its number.
        slot: usize,
        /// The first byte; see [`offset`].
        at: usize,
    },
}

impl Place {
    /// The same, some bytes further.
    #[must_use]
    pub fn after(self, bytes: usize) -> Self {
        match self {
            Self::Region { region, at } => Self::Region { region, at: at + bytes as u64 },
            Self::Slot { slot, at } => Self::Slot { slot, at: at + bytes },
        }
    }
}

/// So many bytes at a place.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Span {
    /// Where.
    pub place: Place,
    /// Bytes.
    pub length: u32,
}

/// Meaning of the remote address and key of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Remote {
    /// Nothing.
    #[default]
    None,
    /// Memory of the chain itself.
    Own(Place),
    /// Memory of the client that the queue leads to.
    Client {
        /// Its address.
        addr: u64,
        /// Its key.
        rkey: u32,
    },
}

/// Which object a WAIT or ENABLE is about, and the count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Order {
    /// The number of the completion queue, queue or receive queue.
    pub object: usize,
    /// Completions, or requests.
    pub count: u64,
    /// Growth with each lap.
    pub step: u32,
    /// Adds to the present limit.
    pub relative: bool,
}

/// A work request with its label.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Slot {
    /// The author's name for it.
    pub label: String,
    /// Operation and operand at the start.
    pub control: Control,
    /// Other operations that the chain may make of it.
    pub may: Vec<Control>,
    /// Flags.
    pub flags: ChainFlags,
    /// Immediate data.
    pub imm: u32,
    /// The remote side.
    pub remote: Remote,
    /// Compare value or addend.
    pub compare: u64,
    /// Swap value.
    pub swap: u64,
    /// Masks of comparison and swap.
    pub masks: (u64, u64),
    /// Scatter/gather list.
    pub sges: Vec<Span>,
    /// Operands of WAIT and ENABLE.
    pub order: Option<Order>,
    /// Bytes that must be filled in before the slot is fetched: first byte and number.
    pub holes: Vec<(usize, usize)>,
}

impl Slot {
    /// A request without operands.
    pub fn new(label: impl Into<String>, op: ChainOp) -> Self {
        Self {
            label: label.into(),
            control: Control::new(op),
            may: Vec::new(),
            flags: ChainFlags::empty(),
            imm: 0,
            remote: Remote::None,
            compare: 0,
            swap: 0,
            masks: (0, 0),
            sges: Vec::new(),
            order: None,
            holes: Vec::new(),
        }
    }

    /// Its class for the cost: that of the operation it can become.
    pub fn class(&self) -> Class {
        let ops = std::iter::once(self.control).chain(self.may.iter().copied()).map(|control| control.op);
        ops.map(ChainOp::class).max().unwrap_or(Class::Copy)
    }

    /// The operation that it is declared for: the first that is not NOP, now or later.
    pub fn class_op(&self) -> ChainOp {
        let mut all = std::iter::once(self.control.op).chain(self.may.iter().map(|control| control.op));
        all.find(|op| *op != ChainOp::Nop).unwrap_or(ChainOp::Nop)
    }

    /// Whether it has ended when the next slot is fetched.
    pub fn is_local(&self) -> bool {
        self.flags.contains(ChainFlags::LOCAL)
    }

    /// Bytes of its scatter/gather list.
    pub fn length(&self) -> u64 {
        self.sges.iter().map(|span| u64::from(span.length)).sum()
    }
}

/// A managed send queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// The completion queue of its requests.
    pub cq: usize,
    /// Whether it leads to the client, or back to the chain's own memory.
    pub to_client: bool,
    /// Requests that are enabled from the start; [`ALWAYS`] for all.
    pub enabled: u64,
    /// Its slots, as numbers in [`Chain::slots`].
    pub slots: Vec<usize>,
}

/// Enabled for ever.
pub const ALWAYS: u64 = u64::MAX;

/// A managed receive queue of one slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Receive {
    /// Its name.
    pub name: String,
    /// The completion queue of its messages.
    pub cq: usize,
    /// Messages that are taken without an ENABLE.
    pub enabled: u64,
    /// Scatter list for the bytes of a message.
    pub sges: Vec<Span>,
}

/// Content of a region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    /// Memory that the chain may read and write.
    Scratch(u64),
    /// Memory of the program that the chain may only read.
    Table(u64),
    /// Constant bytes.
    Bytes(Vec<u8>),
    /// A copy of slots' bytes as they are at the start.
    Pristine(Vec<(usize, usize, usize)>),
}

impl Content {
    /// Bytes.
    pub fn length(&self) -> u64 {
        match self {
            Self::Scratch(length) | Self::Table(length) => *length,
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Pristine(parts) => parts.iter().map(|(_, _, length)| *length as u64).sum(),
        }
    }

    /// Whether the chain may write it.
    pub fn is_writable(&self) -> bool {
        matches!(self, Self::Scratch(_))
    }

    /// Whether it never changes.
    pub fn is_constant(&self) -> bool {
        matches!(self, Self::Bytes(_) | Self::Pristine(_))
    }
}

/// A region of memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Region {
    /// Its name.
    pub name: String,
    /// Its content.
    pub content: Content,
}

/// A whole chain.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Chain {
    /// Its name.
    pub name: String,
    /// Names of the completion queues.
    pub cqs: Vec<String>,
    /// Memory.
    pub regions: Vec<Region>,
    /// All work requests.
    pub slots: Vec<Slot>,
    /// Send queues.
    pub queues: Vec<Queue>,
    /// Receive queues.
    pub receives: Vec<Receive>,
}

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

impl Chain {
    /// Bytes of a slot of a queue: a power of two.
    pub fn stride(&self, queue: usize) -> usize {
        let most = self.queues[queue].slots.iter().map(|slot| self.slots[*slot].sges.len()).max().unwrap_or(0);
        (offset::SGES + most.max(1) * offset::SGE_LEN).next_power_of_two()
    }

    /// The queue that has a slot, and its index there.
    pub fn position(&self, slot: usize) -> Option<(usize, usize)> {
        let at = |queue: &Queue| queue.slots.iter().position(|s| *s == slot);
        self.queues.iter().enumerate().find_map(|(number, queue)| Some((number, at(queue)?)))
    }

    /// The number of the slot with a label.
    pub fn labelled(&self, label: &str) -> Option<usize> {
        self.slots.iter().position(|slot| slot.label == label)
    }

    /// The label of a request of a queue by its index.
    pub fn label(&self, queue: usize, index: u64) -> &str {
        let slots = &self.queues[queue].slots;
        let slot = slots.get((index % (slots.len() as u64).max(1)) as usize);
        slot.map_or("", |slot| &self.slots[*slot].label)
    }

    /// Makes the chain's objects in a model: all memory, rings and limits.
    pub fn install(&self, model: &mut Model, client: Option<u32>) -> Installed {
        let cqs: Vec<u32> = self.cqs.iter().map(|_| model.create_cq()).collect();
        let queue = |(number, queue): (usize, &Queue)| {
            let client = if queue.to_client { client } else { None };
            model.create_queue(queue.slots.len(), self.stride(number), cqs[queue.cq], client)
        };
        let queues: Vec<(u32, u32)> = self.queues.iter().enumerate().map(queue).collect();
        let access = Access::REMOTE_READ;
        let all = access | Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let region = |region: &Region| {
            let access = if region.content.is_writable() { all } else { access };
            let bytes = match &region.content {
                Content::Bytes(bytes) => bytes.clone(),
                other => vec![0; other.length() as usize],
            };
            model.register(0, bytes, access)
        };
        let regions: Vec<u32> = self.regions.iter().map(region).collect();
        let mut receives = Vec::new();
        let rings: Vec<u32> = self
            .receives
            .iter()
            .map(|receive| {
                let stride = (offset::RECV_SGES + receive.sges.len() * offset::SGE_LEN).next_power_of_two();
                let (handle, ring) = model.create_receive_queue(1, stride, cqs[receive.cq]);
                receives.push(handle);
                ring
            })
            .collect();
        let installed = Installed { cqs, regions, queues, receives };
        self.fill(model, &installed, &rings);
        installed
    }

    fn fill(&self, model: &mut Model, installed: &Installed, rings: &[u32]) {
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
            let slot = model.bytes_mut(*ring);
            slot[offset::RECV_NUM_SGE] = receive.sges.len() as u8;
            for (i, sge) in receive.sges.iter().map(|span| self.sge(span, installed)).enumerate() {
                let at = offset::RECV_SGES + i * offset::SGE_LEN;
                slot[at..at + 8].copy_from_slice(&sge.addr.to_le_bytes());
                slot[at + offset::SGE_LENGTH..][..4].copy_from_slice(&sge.length.to_le_bytes());
                slot[at + offset::SGE_KEY..][..4].copy_from_slice(&sge.lkey.0.to_le_bytes());
            }
        }
        for (receive, handle) in self.receives.iter().zip(&installed.receives) {
            model.enable_receives(*handle, receive.enabled);
        }
        for (queue, (handle, _)) in self.queues.iter().zip(&installed.queues) {
            model.enable(*handle, queue.enabled);
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

    /// Cost of the chain, lap by lap.
    pub fn cost(&self) -> Cost {
        let mut cost = Cost::default();
        let slots = self.queues.iter().flat_map(|queue| &queue.slots).map(|slot| &self.slots[*slot]);
        for slot in slots {
            match slot.class() {
                Class::Copy => cost.copies += 1,
                Class::Atomic => cost.atomics += 1,
                Class::Order => cost.orders += 1,
            }
            cost.requests += 1;
            let bytes = if slot.order.is_some() { 0 } else { self.longest(slot) };
            cost.bytes += bytes;
            cost.steps += 1 + bytes / 4096;
        }
        cost
    }

    /// The most bytes that a request can move: a length that is filled in is bounded by its region.
    fn longest(&self, slot: &Slot) -> u64 {
        let is_filled = |i: usize| {
            let at = offset::SGES + i * offset::SGE_LEN + offset::SGE_LENGTH;
            slot.holes.iter().any(|(first, length)| *first < at + 4 && at < first + length)
        };
        let bound = |(i, span): (usize, &Span)| match span.place {
            Place::Region { region, .. } if is_filled(i) => self.regions[region].content.length(),
            _ => u64::from(span.length),
        };
        slot.sges.iter().enumerate().map(bound).sum()
    }
}

/// Maximum cost of one lap of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// Requests that move data.
    pub copies: u64,
    /// Atomic operations.
    pub atomics: u64,
    /// WAITs and ENABLEs.
    pub orders: u64,
    /// Work requests.
    pub requests: u64,
    /// Charged steps.
    pub steps: u64,
    /// Bytes moved.
    pub bytes: u64,
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { copies, atomics, orders, requests, steps, bytes } = self;
        write!(f, "{copies}C + {atomics}A + {orders}E: {requests} work requests, at most {steps} steps, {bytes} bytes")
    }
}
