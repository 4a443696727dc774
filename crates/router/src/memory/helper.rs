//! Helper threads for copies that may block for ever.
//!
//! A tenant decides what lies behind its private pages: a file of a filesystem that it serves itself can make the router's
//! access wait as long as the tenant likes, and honest memory is out of reach while another thread of its program holds the
//! lock of the address space. So a worker never makes that access: a helper thread does, with a buffer of its own, and the
//! worker waits for it no longer than an ordinary copy takes. Then the helper is left alone with its copy, and the packet comes
//! again later (see [`super::late`]). A read is left to it also where the helper has found no processor until then: beside programs
//! that compute all the time it may wait for one longer than any worker should. A write is not: it could begin when its region is
//! gone.

use super::allowance::{Abandoned, WaitAllowance};
use super::late::{self, Buffer, Lease};
use super::yields::Yields;
use rdmesh_nic::platform::Fault;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

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
    abandoned: Mutex<Option<Abandoned>>,
    worker: Thread,
    yields: Arc<Yields>,
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
    /// The helper is still at it, or will be.
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
    /// Shared with all helpers of this thread.
    static YIELDS: Arc<Yields> = Arc::default();
}

/// Bytes of one copy.
pub(super) const CHUNK: usize = 64 * 1024;
/// Spin limit: how often either side looks, yielding in between, before it sleeps.
const LOOKS: u32 = 500;

/// Lets this thread's helper run `job` on a buffer that `fill` prepares, and `drain` look at it when it is done. After a
/// time-out, `lease` makes the lease that takes the result when the job has ended, and that of this call is [`Fault::Slow`]; a job
/// that has not begun is left so only if it `may_begin_late`.
pub(super) fn run(
    allowance: &WaitAllowance,
    may_begin_late: bool,
    lease: impl FnOnce() -> Box<dyn Lease>,
    fill: impl FnOnce(&mut Buffer) -> Result<(), Fault>,
    job: impl FnOnce(&mut Buffer) -> Result<(), Fault> + Send + 'static,
    drain: impl FnOnce(&Buffer) -> Result<(), Fault>,
) -> Result<(), Fault> {
    if allowance.is_used_up() {
        return Err(Fault::Slow);
    }
    HELPER.with_borrow_mut(|helper| {
        let Some(mut present) = helper.take().or_else(Helper::start) else { return Err(Fault::Slow) };
        let result = match fill(&mut present.buffer) {
            Ok(()) => present.execute(Box::new(job), may_begin_late, lease, allowance),
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
        let shared = Arc::new(Shared::new());
        let theirs = shared.clone();
        let thread = std::thread::Builder::new().name("rdmesh-copy".into()).spawn(move || theirs.serve()).ok()?;
        Some(Self { shared, thread: thread.thread().clone(), buffer: Vec::with_capacity(CHUNK) })
    }

    /// Runs `job` on the buffer. An abandoned helper must not be used again.
    fn execute(
        &mut self,
        job: Job,
        may_begin_late: bool,
        lease: impl FnOnce() -> Box<dyn Lease>,
        allowance: &WaitAllowance,
    ) -> Outcome {
        let shared = &self.shared;
        *lock(&shared.work) = Some((job, std::mem::take(&mut self.buffer)));
        shared.turn.store(WORK, Ordering::Release);
        self.thread.unpark();
        let comes_again = late::served().is_some();
        let wait = if comes_again { WaitAllowance::COPY_TIMEOUT } else { WaitAllowance::LAST_COPY_TIMEOUT };
        let is_done = shared.wait_for(DONE, Some(wait)) || !comes_again && shared.wait_for_processor(allowance);
        if !is_done {
            let may_begin_late = may_begin_late && comes_again && allowance.late().has_room();
            // One of the exchanges succeeds, unless the job ends in this moment.
            if !may_begin_late && shared.pass(WORK, IDLE) {
                self.buffer = lock(&shared.work).take().map_or_else(Buffer::new, |(_, buffer)| buffer);
                return Outcome::NotBegun;
            }
            // It is there before the helper can know that it was abandoned.
            *lock(&shared.abandoned) = Some(allowance.abandon(lease()));
            if shared.pass(WORK, GIVEN_UP) {
                return Outcome::Left;
            }
            if shared.pass(BUSY, GIVEN_UP) {
                allowance.spend_copy(wait);
                return Outcome::Left;
            }
            *lock(&shared.abandoned) = None;
        }
        let Some(done) = lock(&shared.done).take() else { return Outcome::NotBegun };
        self.buffer = done.buffer;
        allowance.spend_copy(done.took);
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
    /// Nothing to do; the calling thread is the worker.
    fn new() -> Self {
        Self {
            turn: AtomicU32::new(IDLE),
            work: Mutex::new(None),
            done: Mutex::new(None),
            abandoned: Mutex::new(None),
            worker: std::thread::current(),
            yields: YIELDS.with(Arc::clone),
        }
    }

    /// Main loop of the helper.
    fn serve(&self) {
        while self.wait_for(WORK, None) {
            if !self.pass(WORK, BUSY) {
                continue;
            }
            if !self.work() {
                return;
            }
            // Fails where the worker has abandoned it meanwhile.
            if !self.pass(BUSY, DONE) {
                return self.end_late();
            }
            self.worker.unpark();
        }
        // Given up: the worker may have left work that had not begun.
        if self.work() {
            self.end_late();
        }
    }

    /// Does the work, if there is some.
    fn work(&self) -> bool {
        let Some((job, mut buffer)) = lock(&self.work).take() else { return false };
        let start = Instant::now();
        let result = job(&mut buffer);
        *lock(&self.done) = Some(Done { result, buffer, took: start.elapsed() });
        true
    }

    /// Hands on a result that no worker waits for.
    fn end_late(&self) {
        let (done, abandoned) = (lock(&self.done).take(), lock(&self.abandoned).take());
        if let (Some(Done { result, buffer, .. }), Some(abandoned)) = (done, abandoned) {
            abandoned.end(result, buffer);
        }
    }

    /// Waits longer for work that is not given again, where the helper has found no processor until now. That costs the endpoint:
    /// it may be its programs that compute.
    fn wait_for_processor(&self, allowance: &WaitAllowance) -> bool {
        if self.turn.load(Ordering::Acquire) != WORK {
            return false;
        }
        let start = Instant::now();
        let is_done = self.wait_for(DONE, Some(WaitAllowance::PROCESSOR_TIMEOUT));
        allowance.spend_copy(start.elapsed());
        is_done
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
                _ if look < LOOKS.into()
                    && limit.is_none_or(|limit| start.elapsed() < limit)
                    && self.yields.try_yield() => {}
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
    use rdmesh_nic::platform::PacketId;
    use rdmesh_verbs::{Psn, Qpn};
    use std::sync::mpsc::{Sender, channel};

    /// Hands the result on.
    struct Report(Sender<Result<(), Fault>>);

    impl Lease for Report {
        fn end(self: Box<Self>, result: Result<(), Fault>, _: Buffer) {
            let _ = self.0.send(result);
        }
    }

    fn lease() -> Box<dyn Lease> {
        Box::new(Report(channel().0))
    }

    /// A copy that is tried again while no helper finds a processor.
    fn copy(allowance: &WaitAllowance) -> Result<(), Fault> {
        let mut tries = std::iter::repeat_with(|| run(allowance, true, lease, |_| Ok(()), |_| Ok(()), |_| Ok(())));
        tries.find(|result| *result != Err(Fault::Slow)).unwrap()
    }

    /// A job that ends when its sender is dropped.
    fn stuck() -> (Sender<()>, impl FnOnce(&mut Buffer) -> Result<(), Fault> + Send + 'static) {
        let (release, wait) = channel::<()>();
        (release, move |_: &mut Buffer| wait.recv().map_err(|_| Fault::Gone))
    }

    #[test]
    fn what_never_ends_is_given_up_and_then_not_tried_again() {
        let allowance = WaitAllowance::default();
        let mut releases = Vec::new();
        while !allowance.is_used_up() {
            let (release, never) = stuck();
            releases.push(release);
            assert_eq!(run(&allowance, true, lease, |_| Ok(()), never, |_| panic!("nothing came")), Err(Fault::Slow));
        }
        // More where a helper found no processor.
        assert!(releases.len() >= WaitAllowance::MOST_ABANDONED as usize);
        assert_eq!(run(&allowance, true, lease, |_| panic!("not tried"), |_| Ok(()), |_| Ok(())), Err(Fault::Slow));
        // Another endpoint is served.
        assert_eq!(copy(&WaitAllowance::default()), Ok(()));
    }

    #[test]
    fn what_comes_late_is_handed_to_its_lease() {
        let allowance = WaitAllowance::default();
        let (report, reports) = channel();
        let mut releases = Vec::new();
        while !allowance.has_abandoned() {
            let (release, slow) = stuck();
            releases.push(release);
            let lease = || Box::new(Report(report.clone())) as Box<dyn Lease>;
            assert_eq!(run(&allowance, true, lease, |_| Ok(()), slow, |_| Ok(())), Err(Fault::Slow));
        }
        assert!(reports.try_recv().is_err());
        drop(releases);
        assert_eq!(reports.recv(), Ok(Err(Fault::Gone)));
        while allowance.has_abandoned() {
            std::thread::yield_now();
        }
        assert_eq!(copy(&allowance), Ok(()));
    }

    /// Gives work to a helper that finds no processor until the sender is dropped.
    fn work_too_early(
        allowance: &WaitAllowance,
        may_begin_late: bool,
        report: &Sender<Result<(), Fault>>,
    ) -> (Sender<()>, Outcome) {
        let (begin, wait) = channel::<()>();
        let shared = Arc::new(Shared::new());
        let theirs = shared.clone();
        let thread = std::thread::spawn(move || {
            assert!(wait.recv().is_err());
            theirs.serve();
        });
        let mut helper = Helper { shared, thread: thread.thread().clone(), buffer: Buffer::new() };
        let (done, lease) = (report.clone(), Box::new(Report(report.clone())));
        let job = Box::new(move |_: &mut Buffer| {
            let _ = done.send(Err(Fault::Gone));
            Ok(())
        });
        (begin, helper.execute(job, may_begin_late, || lease, allowance))
    }

    #[test]
    fn work_that_has_not_begun_is_done_later_where_it_is_asked_for_again() {
        let (allowance, (report, reports)) = (WaitAllowance::default(), channel());
        late::serve(Some(PacketId { qpn: Qpn::new(17), connection: 1, is_response: false, psn: Psn::new(5) }));
        let (begin, outcome) = work_too_early(&allowance, true, &report);
        assert!(matches!(outcome, Outcome::Left) && allowance.has_abandoned() && reports.try_recv().is_err());
        drop(begin);
        // The work itself, and then its lease.
        assert_eq!([reports.recv(), reports.recv()], [Ok(Err(Fault::Gone)), Ok(Ok(()))]);
        // Not a write,
        let (begin, outcome) = work_too_early(&allowance, false, &report);
        assert!(matches!(outcome, Outcome::NotBegun));
        drop(begin);
        // nor what is not asked for again.
        late::serve(None);
        let before = allowance.timeout();
        let (begin, outcome) = work_too_early(&allowance, true, &report);
        assert!(matches!(outcome, Outcome::NotBegun) && allowance.timeout() < before);
        drop((begin, report));
        assert!(reports.recv().is_err(), "neither was done");
    }

    #[test]
    fn slow_copies_that_end_well_cost_their_time() {
        let allowance = WaitAllowance::default();
        let before = allowance.timeout();
        let job = |_: &mut Buffer| {
            let start = Instant::now();
            while start.elapsed() < 2 * WaitAllowance::SHORT_COPY {
                std::thread::yield_now();
            }
            Ok(())
        };
        while run(&allowance, true, lease, |_| Ok(()), job, |_| Ok(())) == Err(Fault::Slow) {}
        assert!(allowance.timeout() < before);
    }

    #[test]
    fn every_copy_gets_its_own_result() {
        let allowance = WaitAllowance::default();
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
                run(&allowance, true, lease, fill, job, |buffer| {
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
