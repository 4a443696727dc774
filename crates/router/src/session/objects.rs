//! Objects of a device: kinds and counts.

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

impl ObjectKind {
    pub(super) const ALL: [Self; 8] =
        [Self::Pd, Self::Mr, Self::Mw, Self::Cq, Self::Qp, Self::Srq, Self::Ah, Self::Channel];

    /// Bytes of the router's memory that one takes, with what is kept of it in tables, but without its queues.
    pub(super) fn memory(self) -> u64 {
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

    /// Descriptors that one takes.
    pub(super) fn descriptors(self) -> u64 {
        if self == Self::Channel { 2 } else { 0 }
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

    pub(super) fn set(&mut self, kind: ObjectKind, count: u32) {
        *self.slot(kind) = count;
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
