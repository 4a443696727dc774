//! Context page: doorbells, completion arming and queue pair states, shared between tenant and router.
//!
//! One per device context, in its own sealed memfd. The tenant sets doorbells and arms completion queues; the router
//! clears both, and publishes QP states so that a post in the wrong state fails at once, as the kernel's does. Threads that
//! have polled in vain sleep on a futex of the page, and the router wakes them.
//! Read-only pages of the router say which of its workers sleep, and whether the processors are contended.

use crate::shared::SharedMemory;
use rustix::net::{SendFlags, send};
use rustix::thread::futex;
use rustix::time::Timespec;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Most QPs, and most CQs, of one context: handles are below this.
pub const MAX_HANDLES: u32 = 16_384;
/// Bytes of a context page.
pub const CONTEXT_PAGE_LEN: usize = size_of::<Layout>();
/// Most workers of a router.
pub const MAX_WORKERS: u32 = 255;
/// Bytes of the workers' pages.
pub const WORKERS_LEN: usize = (1 + MAX_WORKERS as usize) * LINE;

const WORDS: usize = MAX_HANDLES as usize / 64;
const SUMMARY_WORDS: usize = WORDS / 64;
/// Bytes of a cache line. The contention flag has the first one of the workers' pages, and each worker's sleep flag another.
const LINE: usize = 64;
/// Most threads of one context that an arrival wakes; the next wakes more. A tenant may have any number.
const MOST_WOKEN: u32 = 16;

#[repr(C, align(64))]
struct Layout {
    summary: [AtomicU64; SUMMARY_WORDS],
    arrivals: AtomicU32,
    /// Odd while threads may sleep; each wake-up makes it the next even number. Threads sleep as long as it is what they
    /// saw, so that a wake-up between a thread's last look and its sleep is not undone by the next thread that goes to sleep.
    sleepers: AtomicU32,
    /// The worker does not poll the doorbells: ringing one takes a write to the eventfd. In the cache line that ringing
    /// writes.
    dormant: AtomicU32,
    /// The worker that serves the context.
    worker: AtomicU32,
    _pad: [u32; 4],
    doorbells: [AtomicU64; WORDS],
    cq_arm: [AtomicU32; MAX_HANDLES as usize],
    qp_state: [AtomicU8; MAX_HANDLES as usize],
}

/// Arming of a completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Arm {
    /// The next completion of any kind.
    Any = 1,
    /// The next solicited completion, or error.
    Solicited = 2,
}

/// A mapped context page; both sides use this type.
#[derive(Clone)]
pub struct ContextPage {
    memory: SharedMemory,
    /// Router: number of arrivals. The tenant may change the copy on the page.
    counted: Arc<Counted>,
}

#[derive(Default)]
struct Counted {
    count: AtomicU32,
    /// Called with each arrival.
    notice: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Of a program of another kernel, a guest's: the socket by which its threads are woken.
    waker: OnceLock<OwnedFd>,
}

impl ContextPage {
    /// Wraps a mapping of at least [`CONTEXT_PAGE_LEN`] bytes; none where it is shorter.
    pub fn new(memory: SharedMemory) -> Option<Self> {
        (memory.len() >= CONTEXT_PAGE_LEN).then(|| Self { memory, counted: Arc::default() })
    }

    /// Tenant: marks send queue `qp` as having new work. Handles out of range are ignored.
    pub fn ring(&self, qp: u32) {
        if qp >= MAX_HANDLES {
            return;
        }
        let word = qp as usize / 64;
        let layout = self.layout();
        layout.doorbells[word].fetch_or(1 << (qp % 64), Ordering::Release);
        layout.summary[word / 64].fetch_or(1 << (word % 64), Ordering::Release);
    }

    /// Tenant: whether the worker must be woken through the context's eventfd. To be called after the doorbell is set.
    pub fn must_wake(&self, workers: &WorkerFlags) -> bool {
        let layout = self.layout();
        // Before all looks: either this sees what the router has written, or the router sees the doorbell.
        fence(Ordering::SeqCst);
        workers.is_sleeping(layout.worker.load(Ordering::Relaxed)) || layout.dormant.load(Ordering::Relaxed) != 0
    }

    /// Router: announces which worker serves the context from now on. That worker must look at the doorbells after this.
    pub fn set_worker(&self, worker: u32) {
        self.layout().worker.store(worker, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Router: announces that the doorbells are polled no more, or are polled again. After the former the worker must look at
    /// them once more.
    pub fn set_dormant(&self, dormant: bool) {
        self.layout().dormant.store(u32::from(dormant), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Router: whether any doorbell is set.
    pub fn has_rung(&self) -> bool {
        self.layout().summary.iter().any(|w| w.load(Ordering::Relaxed) != 0)
    }

    /// Router: clears all doorbells that are set and reports their handles.
    pub fn take_doorbells(&self, mut on_doorbell: impl FnMut(u32)) {
        let layout = self.layout();
        for (s, summary) in layout.summary.iter().enumerate() {
            if summary.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut words = summary.swap(0, Ordering::AcqRel);
            while words != 0 {
                let word = s * 64 + words.trailing_zeros() as usize;
                words &= words - 1;
                let mut bits = layout.doorbells[word].swap(0, Ordering::AcqRel);
                while bits != 0 {
                    on_doorbell((word * 64) as u32 + bits.trailing_zeros());
                    bits &= bits - 1;
                }
            }
        }
    }

    /// Tenant: asks for an event at the next completion of `cq` (`ibv_req_notify_cq`).
    pub fn arm_cq(&self, cq: u32, arm: Arm) {
        if let Some(word) = self.layout().cq_arm.get(cq as usize) {
            word.store(arm as u32, Ordering::Release);
            fence(Ordering::SeqCst);
        }
    }

    /// Router: counts a completion that was added to `cq`; returns whether an event is due, and disarms the queue if so.
    pub fn take_arm(&self, cq: u32, solicited: bool) -> bool {
        self.count_arrival();
        fence(Ordering::SeqCst);
        let Some(word) = self.layout().cq_arm.get(cq as usize) else { return false };
        match word.load(Ordering::Relaxed) {
            0 => false,
            armed if armed == Arm::Solicited as u32 && !solicited => false,
            _ => {
                word.store(0, Ordering::Relaxed);
                true
            }
        }
    }

    /// Router: counts an arrival, for which a thread may wait: a completion, which [`ContextPage::take_arm`] counts, or data
    /// that a peer has written. To be called when it is visible.
    pub fn count_arrival(&self) {
        // Only the thread that serves the context counts.
        let counted = self.counted().wrapping_add(1);
        self.counted.count.store(counted, Ordering::Relaxed);
        self.layout().arrivals.store(counted, Ordering::Release);
        if let Some(notice) = self.counted.notice.get() {
            notice();
        }
    }

    /// Router: has `notice` called with each arrival that this page or a clone of it counts. Only the first call counts.
    pub fn on_arrival(&self, notice: impl Fn() + Send + Sync + 'static) {
        let _ = self.counted.notice.set(Box::new(notice));
    }

    /// Router: number of counted arrivals, modulo 2^32.
    pub fn counted(&self) -> u32 {
        self.counted.count.load(Ordering::Relaxed)
    }

    /// Router: the program belongs to another kernel, which cannot wake its threads from here: `waker`, a socket, gets a byte
    /// instead, upon which the other side calls [`ContextPage::wake_here`].
    pub fn set_waker(&self, waker: OwnedFd) {
        let _ = self.counted.waker.set(waker);
    }

    /// Router: whether the program belongs to another kernel.
    pub fn is_in_guest(&self) -> bool {
        self.counted.waker.get().is_some()
    }

    /// Wakes all threads of this kernel in [`ContextPage::wait_arrival`].
    pub fn wake_here(&self) {
        let _ = futex::wake(&self.layout().sleepers, futex::Flags::empty(), i32::MAX.cast_unsigned());
    }

    /// Router: wakes threads in [`ContextPage::wait_arrival`]. To be called after arrivals were counted. Returns whether
    /// there may have been some.
    pub fn wake_sleepers(&self) -> bool {
        let sleepers = &self.layout().sleepers;
        fence(Ordering::SeqCst);
        let seen = sleepers.load(Ordering::Relaxed);
        if seen & ASLEEP == 0 {
            return false;
        }
        sleepers.store(seen.wrapping_add(1), Ordering::Relaxed);
        if let Some(waker) = self.counted.waker.get() {
            // A full socket wakes it as well. Never waits, whatever the other side does to its end.
            let _ = send(waker, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        } else if futex::wake(sleepers, futex::Flags::empty(), MOST_WOKEN) == Ok(MOST_WOKEN as usize) {
            // There may be more; the next arrival wakes them.
            sleepers.fetch_or(ASLEEP, Ordering::Relaxed);
        }
        true
    }

    /// Tenant: number of arrivals that the router has counted, modulo 2^32. Counted completions and data are visible.
    pub fn arrivals(&self) -> u32 {
        self.layout().arrivals.load(Ordering::Acquire)
    }

    /// Tenant: sleeps until the router has counted other than `seen` arrivals, but not longer than `limit`.
    pub fn wait_arrival(&self, seen: u32, limit: Duration) {
        let layout = self.layout();
        let sleepers = layout.sleepers.fetch_or(ASLEEP, Ordering::Relaxed) | ASLEEP;
        // Either the count is new here, or the router sees that a thread sleeps (`wake_sleepers` has the other fence).
        fence(Ordering::SeqCst);
        if layout.arrivals.load(Ordering::Relaxed) == seen {
            let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
            // Woken, interrupted or at its limit: the caller polls in any case.
            let _ = futex::wait(&layout.sleepers, futex::Flags::empty(), sleepers, Some(&limit));
        }
    }

    /// Router: publishes the state of QP `qp` (`enum ibv_qp_state`).
    pub fn set_qp_state(&self, qp: u32, state: u8) {
        if let Some(cell) = self.layout().qp_state.get(qp as usize) {
            cell.store(state, Ordering::Release);
        }
    }

    /// Tenant: the state that the router last published.
    pub fn qp_state(&self, qp: u32) -> u8 {
        self.layout().qp_state.get(qp as usize).map_or(0, |cell| cell.load(Ordering::Acquire))
    }

    #[allow(unsafe_code)]
    fn layout(&self) -> &Layout {
        // SAFETY: the mapping is page-aligned, at least CONTEXT_PAGE_LEN long (checked in `new`), lives as long as
        // `self.memory`, and every field is an atomic, for which any bytes are valid.
        unsafe { &*self.memory.as_ptr().cast::<Layout>() }
    }
}

/// State of the router's workers, on pages that the router writes and tenants map read-only.
#[derive(Clone)]
pub struct WorkerFlags {
    memory: SharedMemory,
}

impl WorkerFlags {
    /// Wraps a mapping of at least [`WORKERS_LEN`] bytes; none where it is shorter.
    pub fn new(memory: SharedMemory) -> Option<Self> {
        (memory.len() >= WORKERS_LEN).then_some(Self { memory })
    }

    /// Router: announces that a worker is about to sleep, or is awake again. Before sleeping the worker must look at every
    /// doorbell once more after this call.
    pub fn set_sleeping(&self, worker: u32, sleeping: bool) {
        if let Some(flag) = self.flag(worker) {
            flag.store(u32::from(sleeping), Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
    }

    /// Whether a worker sleeps. To be called after what it is to be woken for is visible, and a fence. One that there cannot be
    /// is never awake.
    pub fn is_sleeping(&self, worker: u32) -> bool {
        self.flag(worker).is_none_or(|flag| flag.load(Ordering::Relaxed) != 0)
    }

    /// Router: sets the contention flag: waiting threads should sleep rather than yield, because other programs want the
    /// processors.
    pub fn set_contended(&self, contended: bool) {
        self.word(0).store(u32::from(contended), Ordering::Relaxed);
    }

    /// Tenant: the contention flag.
    pub fn is_contended(&self) -> bool {
        self.word(0).load(Ordering::Relaxed) != 0
    }

    #[inline]
    fn flag(&self, worker: u32) -> Option<&AtomicU32> {
        (worker < MAX_WORKERS).then(|| self.word((1 + worker as usize) * LINE))
    }

    #[allow(unsafe_code)]
    fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= WORKERS_LEN);
        // SAFETY: in bounds and aligned (asserted; the mapping is page-aligned), and it lives as long as `self.memory`. A
        // tenant's mapping is read-only; the tenant side only loads.
        unsafe { &*self.memory.as_ptr().add(at).cast::<AtomicU32>() }
    }
}

/// Set in `sleepers` while threads may sleep.
const ASLEEP: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> ContextPage {
        ContextPage::new(SharedMemory::create("test", CONTEXT_PAGE_LEN).unwrap().0).unwrap()
    }

    fn workers() -> WorkerFlags {
        WorkerFlags::new(SharedMemory::create("workers", WORKERS_LEN).unwrap().0).unwrap()
    }

    #[test]
    fn every_doorbell_is_reported_once() {
        let page = page();
        let rung = [0, 1, 63, 64, 4095, 4096, MAX_HANDLES - 1];
        rung.iter().for_each(|&qp| page.ring(qp));
        page.ring(MAX_HANDLES);
        let mut seen = Vec::new();
        assert!(page.has_rung());
        page.take_doorbells(|qp| seen.push(qp));
        assert_eq!(seen, rung);
        assert!(!page.has_rung());
        page.take_doorbells(|_| panic!("nothing rang"));
    }

    #[test]
    fn arming_is_good_for_one_event() {
        let page = page();
        assert!(!page.take_arm(3, true));
        page.arm_cq(3, Arm::Solicited);
        assert!(!page.take_arm(3, false));
        assert!(page.take_arm(3, true));
        assert!(!page.take_arm(3, true));
        page.arm_cq(3, Arm::Any);
        assert!(page.take_arm(3, false));
    }

    /// The states of the two sides while a context falls dormant and its program rings, as the processor may see them: a store
    /// waits in a buffer of its processor until a fence, or until the processor pleases.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    struct Model {
        tenant_at: u8,
        worker_at: u8,
        /// Stores that the other side does not see yet.
        buffered: [bool; 2],
        bell: bool,
        dormant: bool,
        tenant_saw_dormant: bool,
        is_event_sent: bool,
        is_served: bool,
    }

    impl Model {
        /// All states that can follow; with fences or, to see that they matter, without.
        fn next(self, with_fences: bool) -> Vec<Self> {
            let mut next = Vec::new();
            // A buffered store becomes visible.
            if self.buffered[0] {
                next.push(Self { buffered: [false, self.buffered[1]], bell: true, ..self });
            }
            if self.buffered[1] {
                next.push(Self { buffered: [self.buffered[0], false], dormant: true, ..self });
            }
            match self.tenant_at {
                0 => next.push(Self { tenant_at: 1, buffered: [true, self.buffered[1]], ..self }),
                1 if !with_fences || !self.buffered[0] => {
                    next.push(Self { tenant_at: 2, tenant_saw_dormant: self.dormant, ..self });
                }
                2 => next.push(Self { tenant_at: 3, is_event_sent: self.tenant_saw_dormant, ..self }),
                _ => {}
            }
            match self.worker_at {
                0 => next.push(Self { worker_at: 1, buffered: [self.buffered[0], true], ..self }),
                1 if !with_fences || !self.buffered[1] => {
                    next.push(Self { worker_at: 2, is_served: self.bell, ..self });
                }
                _ => {}
            }
            next
        }

        fn is_lost(&self) -> bool {
            let is_over = self.tenant_at == 3 && self.worker_at == 2 && self.buffered == [false; 2];
            is_over && !self.is_event_sent && !self.is_served
        }
    }

    fn loses_a_doorbell(with_fences: bool) -> bool {
        let mut seen = std::collections::HashSet::from([Model::default()]);
        let mut open = vec![Model::default()];
        while let Some(state) = open.pop() {
            open.extend(state.next(with_fences).into_iter().filter(|state| seen.insert(*state)));
        }
        seen.iter().any(Model::is_lost)
    }

    #[test]
    fn no_doorbell_is_lost_while_a_context_falls_dormant() {
        assert!(!loses_a_doorbell(true));
        assert!(loses_a_doorbell(false), "the model knows what the fences are for");
    }

    #[test]
    fn a_dormant_context_takes_a_write_to_its_eventfd() {
        let (page, workers) = (page(), workers());
        assert!(!page.must_wake(&workers));
        page.set_dormant(true);
        assert!(page.must_wake(&workers));
    }

    #[test]
    fn the_worker_that_serves_a_context_is_the_one_to_be_woken() {
        let (page, workers) = (page(), workers());
        workers.set_sleeping(0, true);
        assert!(page.must_wake(&workers));
        page.set_worker(7);
        assert!(!page.must_wake(&workers));
        workers.set_sleeping(7, true);
        workers.set_sleeping(0, false);
        assert!(page.must_wake(&workers));
        page.set_worker(MAX_WORKERS - 1);
        assert!(!page.must_wake(&workers) && !workers.is_contended());
        // The program can write any number there.
        page.set_worker(u32::MAX);
        assert!(page.must_wake(&workers));
    }

    #[test]
    fn every_clone_tells_of_its_arrivals() {
        let page = page();
        let count = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&count);
        page.on_arrival(move || {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        page.clone().count_arrival();
        page.take_arm(0, true);
        assert_eq!((count.load(Ordering::Relaxed), page.counted()), (2, 2));
    }
}
