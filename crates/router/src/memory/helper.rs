//! Helper threads for copies that may block for ever.
//!
//! A tenant decides what lies behind its private pages: a file of a filesystem that it serves itself can make the router's
//! access wait as long as the tenant likes, and honest memory is out of reach while another thread of its program holds the
//! lock of the address space. So a worker never makes that access: a helper thread does, with a buffer of its own, and the
//! worker waits for it no longer than an ordinary copy takes. Then the helper is left alone with its copy, and the packet comes
//! again later (see [`super::late`]).

use super::late::{self, Buffer, Late, Lease};
use rdmesh_nic::platform::Fault;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Time allowance for slow memory: how long the programs of one endpoint may let threads wait. Clones share it.
///
/// A wait takes at most half of the rest, so that a tenant that is slow again and again delays its own commands less and less;
/// a worker's wait for a copy is short. The allowance is refilled over time. The number of abandoned threads has a limit of
/// its own.
#[derive(Clone, Debug, Default)]
pub struct Patience(Arc<State>);

#[derive(Debug, Default)]
struct State {
    spent: Mutex<Spent>,
    /// Abandoned threads.
    away: AtomicU32,
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
struct Away {
    state: Arc<State>,
    lease: Option<Box<dyn Lease>>,
}

impl Patience {
    const ALLOWANCE: Duration = Duration::from_secs(1);
    /// The refill is this fraction of the time that passes.
    const REFILL: u32 = 8;
    /// Minimum wait: with less left, accesses are refused.
    const LEAST: Duration = Duration::from_millis(8);
    /// Maximum number of abandoned threads.
    const AWAY: u32 = 4;
    /// A worker's wait for a copy: its other queue pairs wait too.
    const WAIT: Duration = Duration::from_micros(500);
    /// The same where the packet does not come again, as a datagram: without its memory it is lost.
    const LAST_WAIT: Duration = Duration::from_millis(4);
    /// Cost of a copy, in its duration.
    const COPY: u32 = 4;
    /// Copies up to this duration cost nothing.
    const SHORT: Duration = Duration::from_micros(100);

    /// Whether accesses to private memory are refused at present.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.is_exhausted_at(Instant::now())
    }

    /// Spends the time of an access that has timed out.
    pub(crate) fn strike(&self) {
        self.spend_at(Instant::now(), self.deadline());
    }

    /// Time-out of an access to tenant memory: longer than any disk, shorter than the retries of any peer.
    pub(crate) fn deadline(&self) -> Duration {
        self.deadline_at(Instant::now())
    }

    /// Whether threads are abandoned.
    pub(super) fn has_away(&self) -> bool {
        self.0.away.load(Ordering::Relaxed) != 0
    }

    /// The copies for which no worker waits.
    pub(super) fn late(&self) -> &Late {
        &self.0.late
    }

    /// Excludes other atomics on private memory of the endpoint's programs.
    pub(super) fn exclude_atomics(&self) -> MutexGuard<'_, ()> {
        lock(&self.0.atomics)
    }

    fn deadline_at(&self, now: Instant) -> Duration {
        Self::ALLOWANCE.saturating_sub(lock(&self.0.spent).at(now)) / 2
    }

    fn is_exhausted_at(&self, now: Instant) -> bool {
        self.0.away.load(Ordering::Relaxed) >= Self::AWAY || self.deadline_at(now) < Self::LEAST
    }

    /// A copy has taken `time`, or was waited for so long in vain.
    fn spend_copy(&self, time: Duration) {
        if time > Self::SHORT {
            self.spend_at(Instant::now(), time * Self::COPY);
        }
    }

    fn spend_at(&self, now: Instant, time: Duration) {
        let mut spent = lock(&self.0.spent);
        let total = spent.at(now) + time;
        *spent = Spent { time: total.min(Self::ALLOWANCE), as_of: Some(now) };
        let left = Self::ALLOWANCE.saturating_sub(total);
        tracing::debug!(?time, ?left, "a tenant's private memory or namespace was slow");
    }

    fn leave(&self, lease: Box<dyn Lease>) -> Away {
        let away = self.0.away.fetch_add(1, Ordering::Relaxed) + 1;
        tracing::debug!(away, of = Self::AWAY, "a tenant's private memory is slow");
        Away { state: self.0.clone(), lease: Some(lease) }
    }
}

impl Spent {
    fn at(&self, now: Instant) -> Duration {
        let passed = self.as_of.map_or(Duration::ZERO, |then| now.saturating_duration_since(then));
        self.time.saturating_sub(passed / Patience::REFILL)
    }
}

impl Away {
    fn end(mut self, done: Done) {
        if let Some(lease) = self.lease.take() {
            lease.end(done.result, done.buffer);
        }
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        self.state.away.fetch_sub(1, Ordering::Relaxed);
    }
}

type Job = Box<dyn FnOnce(&mut Buffer) -> Result<(), Fault> + Send>;

/// A thread that makes copies for one worker.
///
/// The two hand work over by a word that both poll for a while: a transfer is many copies one after the other, and
/// going to sleep between them would cost more than they do.
struct Helper {
    shared: Arc<Shared>,
    thread: Thread,
    buffer: Buffer,
}

/// State shared by the worker and its helper.
struct Shared {
    turn: AtomicU32,
    work: Mutex<Option<(Job, Buffer)>>,
    done: Mutex<Option<Done>>,
    /// The helper was abandoned: counts until it returns.
    away: Mutex<Option<Away>>,
    worker: Thread,
}

/// Result of a helper.
struct Done {
    result: Result<(), Fault>,
    buffer: Buffer,
    /// Duration of the work itself, without the time in which the helper did not run.
    took: Duration,
}

/// Result of a worker's wait for its helper.
enum Outcome {
    Done(Result<(), Fault>),
    /// The helper found no processor. The work is not done, and never will be.
    NotBegun,
    /// The helper is still at it.
    Left,
}

/// Nothing to do; the helper may sleep.
const IDLE: u32 = 0;
/// There is work for the helper.
const WORK: u32 = 1;
/// The helper is at work.
const BUSY: u32 = 2;
/// There is a result for the worker.
const DONE: u32 = 3;
/// The worker no longer waits for the helper.
const GIVEN_UP: u32 = 4;

thread_local! {
    static HELPER: RefCell<Option<Helper>> = const { RefCell::new(None) };
}

/// Bytes of one copy.
pub(super) const CHUNK: usize = 64 * 1024;
/// Spin limit: how often either side looks, yielding in between, before it sleeps.
const LOOKS: u32 = 500;

/// Lets this thread's helper run `job` on a buffer that `fill` prepares, and `drain` look at it when it is done. After a
/// time-out, `lease` makes the lease that takes the result when the job has ended, and that of this call is [`Fault::Slow`].
pub(super) fn run(
    patience: &Patience,
    lease: impl FnOnce() -> Box<dyn Lease>,
    fill: impl FnOnce(&mut Buffer) -> Result<(), Fault>,
    job: impl FnOnce(&mut Buffer) -> Result<(), Fault> + Send + 'static,
    drain: impl FnOnce(&Buffer) -> Result<(), Fault>,
) -> Result<(), Fault> {
    if patience.is_exhausted() {
        return Err(Fault::Slow);
    }
    HELPER.with_borrow_mut(|helper| {
        let Some(mut present) = helper.take().or_else(Helper::start) else { return Err(Fault::Slow) };
        let result = match fill(&mut present.buffer) {
            Ok(()) => present.execute(Box::new(job), lease, patience),
            Err(fault) => Outcome::Done(Err(fault)),
        };
        let result = match result {
            Outcome::Done(result) => result.and_then(|()| drain(&present.buffer)),
            Outcome::NotBegun => Err(Fault::Slow),
            Outcome::Left => return Err(Fault::Slow),
        };
        *helper = Some(present);
        result
    })
}

impl Helper {
    /// None where there cannot be another thread.
    fn start() -> Option<Self> {
        let shared = Arc::new(Shared {
            turn: AtomicU32::new(IDLE),
            work: Mutex::new(None),
            done: Mutex::new(None),
            away: Mutex::new(None),
            worker: std::thread::current(),
        });
        let theirs = shared.clone();
        let thread = std::thread::Builder::new().name("rdmesh-copy".into()).spawn(move || theirs.serve()).ok()?;
        Some(Self { shared, thread: thread.thread().clone(), buffer: Vec::with_capacity(CHUNK) })
    }

    /// Runs `job` on the buffer. An abandoned helper must not be used again.
    fn execute(&mut self, job: Job, lease: impl FnOnce() -> Box<dyn Lease>, patience: &Patience) -> Outcome {
        let shared = &self.shared;
        *lock(&shared.work) = Some((job, std::mem::take(&mut self.buffer)));
        shared.turn.store(WORK, Ordering::Release);
        self.thread.unpark();
        let wait = if late::served().is_some() { Patience::WAIT } else { Patience::LAST_WAIT };
        if !shared.wait_for(DONE, Some(wait)) {
            // One of the two succeeds, unless the job ends in this moment.
            if shared.pass(WORK, IDLE) {
                self.buffer = lock(&shared.work).take().map_or_else(Buffer::new, |(_, buffer)| buffer);
                return Outcome::NotBegun;
            }
            // It is there before the helper can know that it was abandoned.
            *lock(&shared.away) = Some(patience.leave(lease()));
            if shared.pass(BUSY, GIVEN_UP) {
                patience.spend_copy(wait);
                return Outcome::Left;
            }
            *lock(&shared.away) = None;
        }
        let Some(done) = lock(&shared.done).take() else { return Outcome::NotBegun };
        self.buffer = done.buffer;
        patience.spend_copy(done.took);
        Outcome::Done(done.result)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.shared.turn.store(GIVEN_UP, Ordering::Release);
        self.thread.unpark();
    }
}

impl Shared {
    /// Main loop of the helper.
    fn serve(&self) {
        while self.wait_for(WORK, None) {
            if !self.pass(WORK, BUSY) {
                continue;
            }
            let Some((job, mut buffer)) = lock(&self.work).take() else { return };
            let start = Instant::now();
            let result = job(&mut buffer);
            *lock(&self.done) = Some(Done { result, buffer, took: start.elapsed() });
            // Fails where the worker has abandoned it meanwhile.
            if !self.pass(BUSY, DONE) {
                let (done, away) = (lock(&self.done).take(), lock(&self.away).take());
                if let (Some(done), Some(away)) = (done, away) {
                    away.end(done);
                }
                return;
            }
            self.worker.unpark();
        }
    }

    /// Passes the turn on, if it is `from`'s.
    fn pass(&self, from: u32, to: u32) -> bool {
        self.turn.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Waits until it is the turn of `wanted`; false where it was given up, or the time is over.
    fn wait_for(&self, wanted: u32, limit: Option<Duration>) -> bool {
        let start = Instant::now();
        for look in 0u64.. {
            match self.turn.load(Ordering::Acquire) {
                turn if turn == wanted => return true,
                GIVEN_UP => return false,
                _ if look < LOOKS.into() && limit.is_none_or(|limit| start.elapsed() < limit) => {
                    std::thread::yield_now();
                }
                _ => match limit.map(|limit| limit.saturating_sub(start.elapsed())) {
                    None => std::thread::park(),
                    Some(Duration::ZERO) => return false,
                    Some(left) => std::thread::park_timeout(left),
                },
            }
        }
        false
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// Hands the result on.
    struct Report(std::sync::mpsc::Sender<Result<(), Fault>>);

    impl Lease for Report {
        fn end(self: Box<Self>, result: Result<(), Fault>, _: Buffer) {
            let _ = self.0.send(result);
        }
    }

    fn lease() -> Box<dyn Lease> {
        Box::new(Report(channel().0))
    }

    /// A copy that is tried again while no helper finds a processor.
    fn copy(patience: &Patience) -> Result<(), Fault> {
        let mut tries = std::iter::repeat_with(|| run(patience, lease, |_| Ok(()), |_| Ok(()), |_| Ok(())));
        tries.find(|result| *result != Err(Fault::Slow)).unwrap()
    }

    /// A job that ends when its sender is dropped.
    fn stuck() -> (std::sync::mpsc::Sender<()>, impl FnOnce(&mut Buffer) -> Result<(), Fault> + Send + 'static) {
        let (release, wait) = channel::<()>();
        (release, move |_: &mut Buffer| wait.recv().map_err(|_| Fault::Gone))
    }

    #[test]
    fn what_never_ends_is_given_up_and_then_not_tried_again() {
        let patience = Patience::default();
        let mut releases = Vec::new();
        while !patience.is_exhausted() {
            let (release, never) = stuck();
            releases.push(release);
            assert_eq!(run(&patience, lease, |_| Ok(()), never, |_| panic!("nothing came")), Err(Fault::Slow));
        }
        // More where a helper found no processor.
        assert!(releases.len() >= Patience::AWAY as usize);
        assert_eq!(run(&patience, lease, |_| panic!("not tried"), |_| Ok(()), |_| Ok(())), Err(Fault::Slow));
        // Another endpoint is served.
        assert_eq!(copy(&Patience::default()), Ok(()));
    }

    #[test]
    fn what_comes_late_is_handed_to_its_lease() {
        let patience = Patience::default();
        let (report, reports) = channel();
        let mut releases = Vec::new();
        while !patience.has_away() {
            let (release, slow) = stuck();
            releases.push(release);
            let lease = || Box::new(Report(report.clone())) as Box<dyn Lease>;
            assert_eq!(run(&patience, lease, |_| Ok(()), slow, |_| Ok(())), Err(Fault::Slow));
        }
        assert!(reports.try_recv().is_err());
        drop(releases);
        assert_eq!(reports.recv(), Ok(Err(Fault::Gone)));
        while patience.has_away() {
            std::thread::yield_now();
        }
        assert_eq!(copy(&patience), Ok(()));
    }

    #[test]
    fn the_allowance_is_refilled_and_threads_that_are_away_are_not_forgotten() {
        let (patience, start) = (Patience::default(), Instant::now());
        let first = patience.deadline_at(start);
        let mut strikes = 0;
        while !patience.is_exhausted_at(start) {
            patience.spend_at(start, patience.deadline_at(start));
            strikes += 1;
        }
        assert_eq!((strikes, first), (6, Patience::ALLOWANCE / 2));
        assert!(!patience.is_exhausted_at(start + Patience::LEAST * 2 * Patience::REFILL));
        let later = start + Patience::ALLOWANCE * Patience::REFILL;
        assert_eq!(patience.deadline_at(later), first);
        let mut away: Vec<Away> = (0..Patience::AWAY).map(|_| patience.leave(lease())).collect();
        assert!(patience.is_exhausted_at(later));
        away.pop();
        assert!(!patience.is_exhausted_at(later));
    }

    #[test]
    fn slow_copies_that_end_well_cost_their_time() {
        let patience = Patience::default();
        let before = patience.deadline();
        let job = |_: &mut Buffer| {
            let start = Instant::now();
            while start.elapsed() < 2 * Patience::SHORT {
                std::thread::yield_now();
            }
            Ok(())
        };
        while run(&patience, lease, |_| Ok(()), job, |_| Ok(())) == Err(Fault::Slow) {}
        assert!(patience.deadline() < before);
    }

    #[test]
    fn every_copy_gets_its_own_result() {
        let patience = Patience::default();
        for i in 0..20_000u32 {
            let fill = |buffer: &mut Buffer| {
                buffer.clear();
                buffer.extend(i.to_ne_bytes());
                Ok(())
            };
            let job = move |buffer: &mut Buffer| {
                buffer.reverse();
                if i % 7 == 0 { Err(Fault::Gone) } else { Ok(()) }
            };
            let mut seen = Vec::new();
            let mut once = || {
                run(&patience, lease, fill, job, |buffer| {
                    seen = buffer.clone();
                    Ok(())
                })
            };
            let result = std::iter::repeat_with(&mut once).find(|result| *result != Err(Fault::Slow)).unwrap();
            assert_eq!(result.is_err(), i % 7 == 0);
            assert_eq!(seen, if i % 7 == 0 { vec![] } else { i.swap_bytes().to_ne_bytes().to_vec() });
        }
    }
}
