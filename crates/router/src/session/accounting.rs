//! Counts of objects, by kind.

/// What a context can hold.
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

/// How many objects of each kind are held.
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

    /// Takes away what another account holds.
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
