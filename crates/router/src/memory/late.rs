//! Copies that take longer than a worker waits. Their results are kept for the packets that they belong to, which come again.

use crate::budget::Charge;
use rdmesh_nic::platform::{Fault, PacketId};
use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The late copies of one endpoint. Clones share them.
///
/// Nothing else is copied where one of them is under way: a late write would replace newer data. When it has ended, its result
/// waits for the packet: executing it again would take as long again where memory is always slow.
#[derive(Clone, Debug, Default)]
pub(super) struct Late(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Number of entries, to be read without the lock.
    count: AtomicUsize,
    entries: Mutex<Vec<Entry>>,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    copy: Copy,
    result: Option<Done>,
}

#[derive(Debug)]
struct Done {
    result: Result<(), Fault>,
    buffer: Buffer,
    at: Instant,
}

/// Data of a copy.
pub(super) type Buffer = Vec<u8>;

/// Held as long as a thread is left alone with a copy.
pub(super) trait Lease: Send {
    /// Takes the result.
    fn end(self: Box<Self>, result: Result<(), Fault>, buffer: Buffer);
}

/// A copy, as it is told from others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Copy {
    /// The process whose memory it is.
    pub(super) process: u64,
    pub(super) range: Range<u64>,
    pub(super) kind: Kind,
    /// None where it cannot be told from others, and the result is of no use.
    pub(super) packet: Option<PacketId>,
}

/// Direction of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Read,
    Write,
    Atomic,
}

/// State of a copy that is to be made.
pub(super) enum Found {
    /// Nothing.
    New,
    /// It, or another one in the same place, is under way.
    UnderWay,
    /// Its result; with the data that was read or written.
    Done(Result<(), Fault>, Buffer),
}

/// A copy under way, until it ends or this is dropped.
pub(super) struct UnderWay {
    late: Late,
    number: u64,
    _charge: Option<Charge>,
}

thread_local! {
    static PACKET: Cell<Option<PacketId>> = const { Cell::new(None) };
}

/// Sets the packet for which this thread copies.
pub(super) fn serve(packet: Option<PacketId>) {
    PACKET.set(packet);
}

/// The packet for which this thread copies.
pub(super) fn served() -> Option<PacketId> {
    PACKET.get()
}

impl Late {
    /// Maximum number of copies under way or kept.
    const MOST: usize = 16;
    /// For how long a result is kept: a queue pair tries for as long.
    const KEPT_FOR: Duration = Duration::from_secs(10);

    /// Looks for a copy. Results for earlier packets of the same queue pair are forgotten.
    pub(super) fn find(&self, wanted: &Copy) -> Found {
        if self.0.count.load(Ordering::Acquire) == 0 {
            return Found::New;
        }
        let mut entries = self.0.lock();
        entries.retain(|entry| entry.result.is_none() || !wanted.follows(&entry.copy));
        self.0.count.store(entries.len(), Ordering::Release);
        if entries.iter().any(|entry| entry.result.is_none() && wanted.overlaps(&entry.copy)) {
            return Found::UnderWay;
        }
        let mut done = entries.iter().filter(|entry| wanted.packet.is_some() && entry.copy == *wanted);
        // It stays: a packet of many pieces comes again from its beginning.
        let found = done.find_map(|entry| entry.result.as_ref());
        found.map_or(Found::New, |done| Found::Done(done.result, done.buffer.clone()))
    }

    /// Whether the result of another copy would be kept.
    pub(super) fn has_room(&self) -> bool {
        self.0.lock().iter().filter(|entry| entry.is_current()).count() < Self::MOST
    }

    /// Notes a copy that takes longer; returns whether its result will be kept, too.
    pub(super) fn begin(&self, copy: Copy, charge: Option<Charge>) -> (UnderWay, bool) {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut entries = self.0.lock();
        entries.retain(Entry::is_current);
        let is_kept = copy.packet.is_some() && entries.len() < Self::MOST;
        let packet = copy.packet.filter(|_| is_kept);
        entries.push(Entry { number, copy: Copy { packet, ..copy }, result: None });
        self.0.count.store(entries.len(), Ordering::Release);
        (UnderWay { late: self.clone(), number, _charge: charge }, is_kept)
    }
}

impl Entry {
    /// Whether it is under way, or its result may still be asked for.
    fn is_current(&self) -> bool {
        self.result.as_ref().is_none_or(|done| done.at.elapsed() < Late::KEPT_FOR)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Copy {
    fn overlaps(&self, other: &Self) -> bool {
        self.process == other.process && other.range.start < self.range.end && self.range.start < other.range.end
    }

    /// Whether this is for a later packet than `other`, of the same queue pair and direction.
    fn follows(&self, other: &Self) -> bool {
        let ends = |copy: &Self| copy.packet.map(|packet| (packet.qpn, packet.is_response));
        self.packet.is_some() && ends(self) == ends(other) && self.packet != other.packet
    }
}

impl Lease for UnderWay {
    fn end(self: Box<Self>, result: Result<(), Fault>, buffer: Buffer) {
        let mut entries = self.late.0.lock();
        if let Some(entry) = entries.iter_mut().find(|entry| entry.number == self.number)
            && entry.copy.packet.is_some()
        {
            entry.result = Some(Done { result, buffer, at: Instant::now() });
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut entries = self.late.0.lock();
        entries.retain(|entry| entry.number != self.number || entry.result.is_some());
        self.late.0.count.store(entries.len(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmesh_verbs::{Psn, Qpn};

    fn copy(psn: u32) -> Copy {
        let packet = PacketId { qpn: Qpn::new(17), connection: 1, is_response: false, psn: Psn::new(psn) };
        Copy { process: 1, range: 4096..8192, kind: Kind::Read, packet: Some(packet) }
    }

    fn is_new(late: &Late, copy: &Copy) -> bool {
        matches!(late.find(copy), Found::New)
    }

    #[test]
    fn a_result_waits_for_its_own_packet_only() {
        let late = Late::default();
        let (under_way, is_kept) = late.begin(copy(5), None);
        assert!(is_kept && matches!(late.find(&copy(5)), Found::UnderWay));
        assert!(matches!(late.find(&Copy { packet: None, range: 8000..8001, ..copy(5) }), Found::UnderWay));
        assert!(
            is_new(&late, &Copy { range: 8192..9000, ..copy(5) }) && is_new(&late, &Copy { process: 2, ..copy(5) })
        );
        Box::new(under_way).end(Ok(()), vec![7]);
        for others in [Copy { packet: None, ..copy(5) }, Copy { kind: Kind::Write, ..copy(5) }] {
            assert!(is_new(&late, &others));
        }
        // More than once: a packet of many pieces comes again as a whole.
        for _ in 0..2 {
            assert!(matches!(late.find(&copy(5)), Found::Done(Ok(()), buffer) if buffer == [7]));
        }
        // Nor for a later connection of the queue pair that begins with the same number.
        let packet = copy(5).packet.map(|packet| PacketId { connection: 2, ..packet });
        assert!(is_new(&late, &Copy { packet, ..copy(5) }) && is_new(&late, &copy(5)));
        Box::new(late.begin(copy(5), None).0).end(Ok(()), vec![7]);
        // The queue pair goes on: what was kept is of no use.
        assert!(is_new(&late, &copy(6)) && is_new(&late, &copy(5)));
        assert_eq!(late.0.count.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn results_are_bounded_and_copies_without_a_packet_leave_none() {
        let late = Late::default();
        let (nameless, is_kept) = late.begin(Copy { packet: None, ..copy(0) }, None);
        assert!(!is_kept);
        Box::new(nameless).end(Ok(()), vec![]);
        assert_eq!(late.0.count.load(Ordering::Relaxed), 0);
        let mut begun: Vec<_> = (0..=Late::MOST as u32).map(|i| late.begin(copy(i), None)).collect();
        let refused = begun.pop().unwrap();
        assert!(begun.iter().all(|(_, is_kept)| *is_kept) && !refused.1);
        drop((begun, refused));
        assert_eq!(late.0.count.load(Ordering::Relaxed), 0);
    }
}
