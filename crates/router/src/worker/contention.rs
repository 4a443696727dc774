//! Processor contention: detection of other load on a router that serves the network, and the probe that detects its end.
//!
//! Threads that wait for work yield to each other. To a thread that computes, a yield gives a whole slice of the scheduler
//! away. So after one slow yield all waiting threads sleep instead, until they are woken: the scheduler lets a thread that has
//! slept run at once. Sleeping does not show when the contention ends, and a yield that found out would cost a thread that is
//! woken meanwhile a slice too. So a separate thread with the lowest priority, the probe, measures how late it is run after
//! short sleeps: late as long as others want all processors, at once when one has nothing to do.

use rdmesh_uverbs::page::WorkerFlags;
use rustix::io;
use rustix::process::setpriority_process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Whether the processors are contended, as far as the router knows.
pub(crate) struct Contention {
    is_contended: AtomicBool,
    /// Whether a thread has read the state since the last probe.
    is_used: AtomicBool,
    stop: AtomicBool,
    /// The word in which programs see it.
    flags: WorkerFlags,
    probe: OnceLock<Thread>,
}

/// The probe. Dropping it ends its thread.
pub(super) struct Probe {
    contention: Arc<Contention>,
    thread: Option<JoinHandle<()>>,
}

/// Decides when contention has ended.
#[derive(Debug)]
struct Calm {
    /// Quick probes in a row, and how many are enough.
    quick: u32,
    enough: u32,
    /// Consecutive probes before which no thread had read the state.
    unused: u32,
}

impl Contention {
    /// No contention; programs read the state in `flags`.
    pub(super) fn new(flags: WorkerFlags) -> Arc<Self> {
        Arc::new(Self {
            is_contended: AtomicBool::new(false),
            is_used: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            flags,
            probe: OnceLock::new(),
        })
    }

    /// Whether waiting threads should sleep.
    #[inline]
    pub(crate) fn is_present(&self) -> bool {
        let is_contended = self.is_contended.load(Ordering::Relaxed);
        if is_contended && !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
        is_contended
    }

    /// A yield, or a moment of spinning, took `time`. Returns whether that was contention.
    pub(crate) fn has_taken(&self, time: Duration) -> bool {
        let is_slow = time > SLOW;
        if is_slow && !self.is_contended.swap(true, Ordering::Relaxed) {
            self.publish(true);
            if let Some(probe) = self.probe.get() {
                probe.unpark();
            }
        }
        is_slow
    }

    fn end(&self) {
        self.is_contended.store(false, Ordering::Relaxed);
        self.publish(false);
    }

    fn publish(&self, is_contended: bool) {
        self.flags.set_contended(is_contended);
    }

    /// Waits for contention, and then for its end, until told to stop.
    fn probe(&self) {
        // Without it the probe would be run sooner than it should, and end contention too soon, now and then.
        let _ = setpriority_process(None, LOWEST);
        let mut calm = Calm { quick: 0, enough: FEW, unused: 0 };
        let mut ended: Option<Instant> = None;
        while !self.stop.load(Ordering::Acquire) {
            if !self.is_contended.load(Ordering::Relaxed) {
                std::thread::park();
                continue;
            }
            calm.begin(ended.is_some_and(|ended| ended.elapsed() < SOON));
            while !self.stop.load(Ordering::Acquire) {
                let begin = Instant::now();
                std::thread::park_timeout(INTERVAL);
                if calm.on_probe(begin.elapsed() > INTERVAL + SLOW, self.is_used.swap(false, Ordering::Relaxed)) {
                    self.end();
                    ended = Some(Instant::now());
                    break;
                }
            }
        }
    }
}

impl Probe {
    /// Starts the thread.
    pub(super) fn start(contention: Arc<Contention>) -> io::Result<Self> {
        let shared = Arc::clone(&contention);
        let builder = std::thread::Builder::new().name("rdmesh-probe".to_owned());
        let thread = builder.spawn(move || shared.probe()).map_err(|_| io::Errno::AGAIN)?;
        // There is one probe.
        let _ = contention.probe.set(thread.thread().clone());
        Ok(Self { contention, thread: Some(thread) })
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.contention.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic of the probe has been reported already.
            let _ = thread.join();
        }
    }
}

impl Calm {
    /// There is contention; `soon` after the last had seemed to end. Then it comes and goes, and more probes are needed.
    fn begin(&mut self, soon: bool) {
        let enough = if soon { (self.enough * 2).min(MANY) } else { FEW };
        *self = Self { quick: 0, enough, unused: 0 };
    }

    /// Takes the result of a probe; returns whether contention has ended, or no thread reads the state any more.
    fn on_probe(&mut self, is_slow: bool, is_used: bool) -> bool {
        self.quick = if is_slow { 0 } else { self.quick + 1 };
        self.unused = if is_used { 0 } else { self.unused + 1 };
        self.quick >= self.enough || self.unused >= UNUSED
    }
}

/// Pollers give the processor back sooner than this; threads that compute do not. And a processor that is free is given sooner.
pub(super) const SLOW: Duration = Duration::from_millis(1);
/// Between two probes.
const INTERVAL: Duration = Duration::from_millis(20);
/// Its nice value.
const LOWEST: i32 = 19;
/// Quick probes after which yielding is tried again, and most of them where it has failed before.
const FEW: u32 = 10;
const MANY: u32 = 128;
/// Contention that begins this soon after the last ended is taken for the same.
const SOON: Duration = Duration::from_secs(2);
/// Probes without use after which the probe rests.
const UNUSED: u32 = 50;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contention_that_comes_back_takes_longer_to_end() {
        let mut calm = Calm { quick: 0, enough: FEW, unused: 0 };
        calm.begin(false);
        let quick_probes = |calm: &mut Calm| (1..).find(|_| calm.on_probe(false, true));
        assert_eq!(quick_probes(&mut calm), Some(FEW));
        for enough in [2 * FEW, 4 * FEW, 8 * FEW] {
            calm.begin(true);
            assert!(!calm.on_probe(false, true) && !calm.on_probe(true, true), "a slow one begins the count anew");
            assert_eq!(quick_probes(&mut calm), Some(enough));
        }
        (0..10).for_each(|_| calm.begin(true));
        assert_eq!(quick_probes(&mut calm), Some(MANY));
        calm.begin(false);
        assert_eq!(quick_probes(&mut calm), Some(FEW));
    }

    #[test]
    fn the_probe_rests_when_no_thread_asks() {
        let mut calm = Calm { quick: 0, enough: MANY, unused: 0 };
        assert!((1..UNUSED).all(|_| !calm.on_probe(true, false)));
        assert!(calm.on_probe(true, false));
    }

    #[test]
    fn a_slow_yield_is_told_to_programs_until_the_probe_ends_it() {
        use rdmesh_uverbs::{page::WORKERS_LEN, shared::SharedMemory};
        let flags = WorkerFlags::new(SharedMemory::create("workers", WORKERS_LEN).unwrap().0).unwrap();
        let contention = Contention::new(flags.clone());
        assert!(!contention.has_taken(SLOW) && !contention.is_present() && !flags.is_contended());
        assert!(contention.has_taken(SLOW * 2) && contention.is_present() && flags.is_contended());
        let probe = Probe::start(Arc::clone(&contention)).unwrap();
        // Without further yields the probe ends the contention in time, independent of other load on this machine.
        while flags.is_contended() {
            std::thread::yield_now();
        }
        assert!(!contention.is_present());
        drop(probe);
    }
}
