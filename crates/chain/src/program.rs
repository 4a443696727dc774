//! Chains as queues of labelled work requests, before they have keys and addresses.

use rdmesh_verbs::chain::{ChainFlags, ChainOp, Class, Control, Wide, offset};
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
    /// The place.
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

/// The object that a WAIT or ENABLE is about, and the count.
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
    /// Operands of a COMPARE_SWAP of sixteen bytes.
    pub wide: Wide,
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
            wide: Wide::default(),
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

/// A managed receive queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Receive {
    /// Its name.
    pub name: String,
    /// The completion queue of its messages.
    pub cq: usize,
    /// Messages that are taken without an ENABLE.
    pub enabled: u64,
    /// Scatter lists for the bytes of messages: one for each slot.
    pub slots: Vec<Vec<Span>>,
}

impl Receive {
    /// Bytes of a slot: a power of two.
    pub fn stride(&self) -> usize {
        let most = self.slots.iter().map(Vec::len).max().unwrap_or(0);
        (offset::RECV_SGES + most * offset::SGE_LEN).next_power_of_two()
    }

    /// Bytes of the message that a slot takes.
    pub fn message(&self, slot: usize) -> u64 {
        self.slots.get(slot).into_iter().flatten().map(|span| u64::from(span.length)).sum()
    }
}

/// Content of a region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    /// Memory that the chain may read and write.
    Scratch(u64),
    /// Memory of the program that the chain may only read.
    Table(u64),
    /// Memory of the program that it, this chain and others read and write; a word changes at once.
    Shared(u64),
    /// Constant bytes.
    Bytes(Vec<u8>),
    /// A copy of slots' bytes as they are at the start.
    Pristine(Vec<(usize, usize, usize)>),
}

impl Content {
    /// Bytes.
    pub fn length(&self) -> u64 {
        match self {
            Self::Scratch(length) | Self::Table(length) | Self::Shared(length) => *length,
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Pristine(parts) => parts.iter().map(|(_, _, length)| *length as u64).sum(),
        }
    }

    /// Whether the chain may write it.
    pub fn is_writable(&self) -> bool {
        matches!(self, Self::Scratch(_) | Self::Shared(_))
    }

    /// Whether others read or write it too.
    pub fn is_foreign(&self) -> bool {
        matches!(self, Self::Table(_) | Self::Shared(_))
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
