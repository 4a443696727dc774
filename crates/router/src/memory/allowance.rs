//! Time allowance for slow memory: time-outs of waits for a tenant, what they cost it, and threads that were abandoned.

use super::late::{Buffer, Late, Lease};
use rdmesh_nic::platform::Fault;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time that the programs of one endpoint may let threads wait. Clones share it.
///
/// A wait takes at most half of the rest, so that a tenant that is slow again and again delays its own commands less and less;
/// a worker's wait for a copy is short. The allowance is refilled over time. The number of abandoned threads has a limit of
/// its own.
#[derive(Clone, Debug, Default)]
pub struct WaitAllowance(Arc<State>);

#[derive(Debug, Default)]
struct State {
    spent: Mutex<Spent>,
    /// Number of abandoned threads.
    abandoned: AtomicU32,
    late: Late,
    /// Held during an atomic on private memory of the endpoint's programs.
    atomics: Mutex<()>,
}

/// Spent part of the allowance, at a moment.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    time: Duration,
    as_of: Option<Instant>,
}

/// An abandoned thread, counted until this is dropped.
pub(super) struct Abandoned {
    state: Arc<State>,
    lease: Option<Box<dyn Lease>>,
}

impl WaitAllowance {
    const ALLOWANCE: Duration = Duration::from_secs(1);
    /// The refill is this fraction of the time that passes.
    const REFILL: u32 = 8;
    /// Minimum wait: with less left, accesses are refused.
    const MIN_TIMEOUT: Duration = Duration::from_millis(8);
    /// Maximum number of abandoned threads.
    pub(super) const MOST_ABANDONED: u32 = 4;
    /// A worker's wait for a copy: its other queue pairs wait too.
    pub(super) const COPY_TIMEOUT: Duration = Duration::from_micros(500);
    /// The same where the packet does not come again, as a datagram: without its memory it is lost.
    pub(super) const LAST_COPY_TIMEOUT: Duration = Duration::from_millis(4);
    /// A further wait of this kind where no processor was free: some time slices of other programs.
    pub(super) const PROCESSOR_TIMEOUT: Duration = Duration::from_millis(16);
    /// Cost of a copy, in its duration.
    const COPY_COST: u32 = 4;
    /// Copies up to this duration cost nothing.
    pub(super) const SHORT_COPY: Duration = Duration::from_micros(100);

    /// Whether accesses to private memory are refused at present.
    pub(crate) fn is_used_up(&self) -> bool {
        self.is_used_up_at(Instant::now())
    }

    /// Spends the time of an access that has timed out.
    pub(crate) fn strike(&self) {
        self.spend_at(Instant::now(), self.timeout());
    }

    /// Time-out of an access to tenant memory: longer than any disk, shorter than the retries of any peer.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout_at(Instant::now())
    }

    /// Whether threads are abandoned.
    pub(super) fn has_abandoned(&self) -> bool {
        self.0.abandoned.load(Ordering::Relaxed) != 0
    }

    /// The copies for which no worker waits.
    pub(super) fn late(&self) -> &Late {
        &self.0.late
    }

    /// Excludes other atomics on private memory of the endpoint's programs.
    pub(super) fn exclude_atomics(&self) -> MutexGuard<'_, ()> {
        lock(&self.0.atomics)
    }

    fn timeout_at(&self, now: Instant) -> Duration {
        Self::ALLOWANCE.saturating_sub(lock(&self.0.spent).at(now)) / 2
    }

    fn is_used_up_at(&self, now: Instant) -> bool {
        self.0.abandoned.load(Ordering::Relaxed) >= Self::MOST_ABANDONED || self.timeout_at(now) < Self::MIN_TIMEOUT
    }

    /// A copy has taken `time`, or was waited for so long in vain.
    pub(super) fn spend_copy(&self, time: Duration) {
        if time > Self::SHORT_COPY {
            self.spend_at(Instant::now(), time * Self::COPY_COST);
        }
    }

    fn spend_at(&self, now: Instant, time: Duration) {
        let mut spent = lock(&self.0.spent);
        let total = spent.at(now) + time;
        *spent = Spent { time: total.min(Self::ALLOWANCE), as_of: Some(now) };
        let left = Self::ALLOWANCE.saturating_sub(total);
        tracing::debug!(?time, ?left, "a tenant's private memory or namespace was slow");
    }

    /// Counts a thread that no worker waits for any more; `lease` takes its result.
    pub(super) fn abandon(&self, lease: Box<dyn Lease>) -> Abandoned {
        let abandoned = self.0.abandoned.fetch_add(1, Ordering::Relaxed) + 1;
        tracing::debug!(abandoned, of = Self::MOST_ABANDONED, "a tenant's private memory is slow");
        Abandoned { state: self.0.clone(), lease: Some(lease) }
    }
}

impl Spent {
    fn at(&self, now: Instant) -> Duration {
        let passed = self.as_of.map_or(Duration::ZERO, |then| now.saturating_duration_since(then));
        self.time.saturating_sub(passed / WaitAllowance::REFILL)
    }
}

impl Abandoned {
    /// The thread has done its work after all.
    pub(super) fn end(mut self, result: Result<(), Fault>, buffer: Buffer) {
        if let Some(lease) = self.lease.take() {
            lease.end(result, buffer);
        }
    }
}

impl Drop for Abandoned {
    fn drop(&mut self) {
        self.state.abandoned.fetch_sub(1, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lease of a thread whose result is not looked at.
    struct Ignored;

    impl Lease for Ignored {
        fn end(self: Box<Self>, _: Result<(), Fault>, _: Buffer) {}
    }

    #[test]
    fn the_allowance_is_refilled_and_abandoned_threads_are_not_forgotten() {
        let (allowance, start) = (WaitAllowance::default(), Instant::now());
        let first = allowance.timeout_at(start);
        let mut strikes = 0;
        while !allowance.is_used_up_at(start) {
            allowance.spend_at(start, allowance.timeout_at(start));
            strikes += 1;
        }
        assert_eq!((strikes, first), (6, WaitAllowance::ALLOWANCE / 2));
        assert!(!allowance.is_used_up_at(start + WaitAllowance::MIN_TIMEOUT * 2 * WaitAllowance::REFILL));
        let later = start + WaitAllowance::ALLOWANCE * WaitAllowance::REFILL;
        assert_eq!(allowance.timeout_at(later), first);
        let mut abandoned: Vec<Abandoned> =
            (0..WaitAllowance::MOST_ABANDONED).map(|_| allowance.abandon(Box::new(Ignored))).collect();
        assert!(allowance.is_used_up_at(later));
        abandoned.pop();
        assert!(!allowance.is_used_up_at(later));
    }
}
