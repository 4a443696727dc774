//! Platform of the engine in the router: rings and tenant memory.

use super::{TenantMemory, late};
use rdmesh_nic::platform::{BadEntry, CompletionQueue, Overrun, PacketId, Platform, RecvQueue, SendQueue};
use rdmesh_uverbs::page::ContextPage;
use rdmesh_uverbs::ring::{CompletionRing, Extent, RecvRing, RingSlots, SendRing};
use rdmesh_verbs::{Completion, Precedence, QpType, RecvWr, SendWr};

/// Platform of the engine in the router.
pub struct HostPlatform;

impl Platform for HostPlatform {
    type Memory = TenantMemory;
    type SendQueue = HostSendQueue;
    type RecvQueue = HostRecvQueue;
    type CompletionQueue = HostCompletionQueue;

    fn serve(packet: Option<PacketId>) {
        late::serve(packet);
    }
}

/// A send ring.
pub struct HostSendQueue(SendRing);

impl HostSendQueue {
    /// Wraps the device's end of a ring.
    pub fn new(ring: SendRing) -> Self {
        Self(ring)
    }

    /// Its extent in the queue memory, as the program maps it.
    pub fn extent(&self) -> Extent {
        self.0.extent()
    }

    /// The elements, as memory.
    pub fn slots(&self) -> RingSlots {
        self.0.slots()
    }
}

impl SendQueue for HostSendQueue {
    type Memory = TenantMemory;

    fn is_ready(&self) -> bool {
        self.0.is_ready()
    }

    fn precedence(&self) -> Precedence {
        self.0.precedence()
    }

    fn fetch(&mut self, qp_type: QpType, wr: &mut SendWr) -> Option<Result<(), BadEntry>> {
        self.0.fetch(qp_type, wr).map(|fetched| fetched.map_err(|bad| BadEntry { wr_id: bad.wr_id }))
    }

    fn inline_data(&self) -> (TenantMemory, u64) {
        let (memory, offset) = self.0.inline_data();
        (TenantMemory::Ring(memory.clone()), offset)
    }

    fn release(&mut self, n: u32) {
        self.0.release(n);
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

/// A receive ring.
pub struct HostRecvQueue(RecvRing);

impl HostRecvQueue {
    /// Wraps the device's end of a ring.
    pub fn new(ring: RecvRing) -> Self {
        Self(ring)
    }

    /// Its extent in the queue memory, as the program maps it.
    pub fn extent(&self) -> Extent {
        self.0.extent()
    }

    /// The elements, as memory.
    pub fn slots(&self) -> RingSlots {
        self.0.slots()
    }
}

impl RecvQueue for HostRecvQueue {
    fn take(&mut self, wr: &mut RecvWr) -> Option<Result<(), BadEntry>> {
        self.0.take(wr).map(|taken| taken.map_err(|bad| BadEntry { wr_id: bad.wr_id }))
    }

    fn len(&self) -> u32 {
        self.0.len()
    }

    fn move_into(&mut self, to: &mut Self) -> Result<(), Overrun> {
        if self.0.move_into(&mut to.0) { Ok(()) } else { Err(Overrun) }
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

/// A completion ring, with the page on which the program arms it.
pub struct HostCompletionQueue {
    ring: CompletionRing,
    page: ContextPage,
}

impl HostCompletionQueue {
    /// Wraps the device's end of a ring.
    pub fn new(ring: CompletionRing, page: ContextPage) -> Self {
        Self { ring, page }
    }

    /// Its extent in the queue memory, as the program maps it.
    pub fn extent(&self) -> Extent {
        self.ring.extent()
    }
}

impl CompletionQueue for HostCompletionQueue {
    fn push(&mut self, completion: &Completion) -> Result<(), Overrun> {
        if self.ring.push(completion) { Ok(()) } else { Err(Overrun) }
    }

    fn take_arm(&mut self, cq: u32, solicited: bool) -> bool {
        self.page.take_arm(cq, solicited)
    }

    fn on_write(&mut self) {
        self.page.count_arrival();
    }

    fn len(&self) -> u32 {
        self.ring.len()
    }

    fn move_into(&mut self, to: &mut Self) -> Result<(), Overrun> {
        if self.ring.move_into(&mut to.ring) { Ok(()) } else { Err(Overrun) }
    }
}
