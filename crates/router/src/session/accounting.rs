//! Object accounting: counts by kind, and their charges to the budget.

use crate::budget::{Charge, Exhausted, Resource, Share};

/// Kind of an object in a context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ObjectKind {
    Pd,
    Mr,
    Mw,
    Cq,
    Qp,
    Srq,
    Ah,
    Channel,
}

/// Charge for an object, until it is destroyed.
pub(super) struct Admission {
    memory: Charge,
    descriptors: Charge,
}

impl ObjectKind {
    /// Charges for one more.
    pub(super) fn admit(self, share: &Share) -> Result<Admission, Exhausted> {
        Admission::new(share, self.memory(), self.descriptors())
    }

    /// Bytes of the router's memory that one takes, with what is kept of it in tables, but without its queues.
    fn memory(self) -> u64 {
        match self {
            Self::Pd => 128,
            Self::Mr => 640,
            Self::Mw => 384,
            Self::Cq => 1024,
            Self::Qp => 8192,
            Self::Srq => 1024,
            Self::Ah => 384,
            Self::Channel => 20 << 10,
        }
    }

    fn descriptors(self) -> u64 {
        if self == Self::Channel { 2 } else { 0 }
    }
}

impl Admission {
    /// Charges for something that takes so many bytes and descriptors.
    pub(super) fn new(share: &Share, memory: u64, descriptors: u64) -> Result<Self, Exhausted> {
        let memory = share.take(Resource::Memory, memory)?;
        Ok(Self { memory, descriptors: share.take(Resource::Descriptors, descriptors)? })
    }

    /// One more object of the same account.
    pub(super) fn add(&self, other: Self) {
        self.memory.absorb(other.memory);
        self.descriptors.absorb(other.descriptors);
    }

    /// An object has been destroyed.
    pub(super) fn remove(&self, kind: ObjectKind) {
        self.memory.shrink(kind.memory());
        self.descriptors.shrink(kind.descriptors());
    }
}

/// Number of objects of each kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ObjectCounts {
    /// Protection domains.
    pub pds: u32,
    /// Memory regions.
    pub mrs: u32,
    /// Memory windows.
    pub mws: u32,
    /// Completion queues.
    pub cqs: u32,
    /// Queue pairs.
    pub qps: u32,
    /// Shared receive queues.
    pub srqs: u32,
    /// Address handles.
    pub ahs: u32,
    /// Completion channels.
    pub channels: u32,
}

impl ObjectCounts {
    /// All kinds together.
    pub fn total(&self) -> u64 {
        [self.pds, self.mrs, self.mws, self.cqs, self.qps, self.srqs, self.ahs, self.channels]
            .into_iter()
            .map(u64::from)
            .sum()
    }

    pub(super) fn get(mut self, kind: ObjectKind) -> u32 {
        *self.slot(kind)
    }

    pub(super) fn add(&mut self, kind: ObjectKind) {
        *self.slot(kind) += 1;
    }

    pub(super) fn remove(&mut self, kind: ObjectKind) {
        *self.slot(kind) -= 1;
    }

    /// Subtracts the counts of another account.
    pub(super) fn subtract(&mut self, other: &Self) {
        self.pds -= other.pds;
        self.mrs -= other.mrs;
        self.mws -= other.mws;
        self.cqs -= other.cqs;
        self.qps -= other.qps;
        self.srqs -= other.srqs;
        self.ahs -= other.ahs;
        self.channels -= other.channels;
    }

    fn slot(&mut self, kind: ObjectKind) -> &mut u32 {
        match kind {
            ObjectKind::Pd => &mut self.pds,
            ObjectKind::Mr => &mut self.mrs,
            ObjectKind::Mw => &mut self.mws,
            ObjectKind::Cq => &mut self.cqs,
            ObjectKind::Qp => &mut self.qps,
            ObjectKind::Srq => &mut self.srqs,
            ObjectKind::Ah => &mut self.ahs,
            ObjectKind::Channel => &mut self.channels,
        }
    }
}
