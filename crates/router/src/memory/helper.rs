//! Copies that may take for ever, made by another thread.
//!
//! A tenant decides what lies behind its private pages: a file of a filesystem that it serves itself can make the
//! router's access wait as long as the tenant likes. So a worker never makes that access: a helper thread does, with a
//! buffer of its own, and the worker waits for it for a bounded time. A helper that does not come back is left to itself,
//! and what it reads late goes nowhere.

use rdmesh_nic::platform::Fault;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// How often, lately, the programs of one endpoint may have let a thread wait in vain. Clones share the count.
///
/// A strike is forgotten after a while: memory that was slow once, because its program was busy with it, is reached again.
/// A thread that has not come back counts for as long as it is away. Each strike halves the time that is waited, and that
/// is made up for much later: a tenant that is slow all the time delays its neighbours less and less.
#[derive(Clone, Debug, Default)]
pub struct Patience(Arc<State>);

#[derive(Debug, Default)]
struct State {
    /// Those that count for the time that is waited; the last ones are not forgotten yet.
    strikes: Mutex<Vec<Instant>>,
    /// Threads that were left to themselves.
    away: AtomicU32,
}

/// A thread that is away, until it is dropped.
#[derive(Debug)]
struct Away(Arc<State>);

impl Patience {
    const STRIKES: usize = 4;
    /// After that time a strike is forgotten.
    const FORGET: Duration = Duration::from_secs(10);
    /// After that time it is made up for.
    const MAKE_UP: Duration = Duration::from_secs(600);
    /// How often the time that is waited is halved at most.
    const HALVINGS: usize = 7;

    /// Whether nothing of the tenant's is waited for at present.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.is_exhausted_at(Instant::now())
    }

    /// Something of the tenant's took too long.
    pub(crate) fn strike(&self) {
        self.strike_at(Instant::now());
    }

    /// How long something of the tenant's may take: longer than any disk, shorter than anybody's retries.
    pub(crate) fn deadline(&self) -> Duration {
        self.deadline_at(Instant::now())
    }

    fn deadline_at(&self, now: Instant) -> Duration {
        let strikes = lock(&self.0.strikes);
        DEADLINE / (1 << Self::since(&strikes, now, Self::MAKE_UP).min(Self::HALVINGS))
    }

    fn is_exhausted_at(&self, now: Instant) -> bool {
        let away = self.0.away.load(Ordering::Relaxed) as usize;
        away >= Self::STRIKES || Self::since(&lock(&self.0.strikes), now, Self::FORGET) >= Self::STRIKES
    }

    fn strike_at(&self, now: Instant) {
        let mut strikes = lock(&self.0.strikes);
        strikes.retain(|strike| now.saturating_duration_since(*strike) < Self::MAKE_UP);
        strikes.push(now);
        let present = Self::since(&strikes, now, Self::FORGET);
        tracing::warn!(
            strikes = present,
            of = Self::STRIKES,
            "a tenant's private memory or namespace could not be reached in time: no more of its endpoint for a while after the last"
        );
    }

    /// How many are younger than `age`.
    fn since(strikes: &[Instant], now: Instant, age: Duration) -> usize {
        strikes.iter().filter(|strike| now.saturating_duration_since(**strike) < age).count()
    }

    fn leave(&self) -> Away {
        self.0.away.fetch_add(1, Ordering::Relaxed);
        Away(self.0.clone())
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        self.0.away.fetch_sub(1, Ordering::Relaxed);
    }
}

type Buffer = Vec<u8>;
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

/// What the worker and its helper hand to each other.
struct Shared {
    turn: AtomicU32,
    work: Mutex<Option<(Job, Buffer)>>,
    done: Mutex<Option<(Result<(), Fault>, Buffer)>>,
    /// The helper was left to itself: counts until it comes back.
    away: Mutex<Option<Away>>,
    worker: Thread,
}

/// Nothing to do; the helper may sleep.
const IDLE: u32 = 0;
/// There is work for the helper.
const WORK: u32 = 1;
/// There is a result for the worker.
const DONE: u32 = 2;
/// Nobody waits for the helper any more.
const GIVEN_UP: u32 = 3;

thread_local! {
    static HELPER: RefCell<Option<Helper>> = const { RefCell::new(None) };
}

/// Bytes of one copy.
pub(super) const CHUNK: usize = 64 * 1024;
/// How long a copy may take where none was slow before.
const DEADLINE: Duration = Duration::from_millis(500);
/// How often either side looks, yielding in between, before it sleeps.
const LOOKS: u32 = 500;

/// Lets this thread's helper run `job` on a buffer that `fill` prepares, and `drain` look at it when it is done.
pub(super) fn run(
    patience: &Patience,
    fill: impl FnOnce(&mut Buffer) -> Result<(), Fault>,
    job: impl FnOnce(&mut Buffer) -> Result<(), Fault> + Send + 'static,
    drain: impl FnOnce(&Buffer) -> Result<(), Fault>,
) -> Result<(), Fault> {
    if patience.is_exhausted() {
        return Err(Fault);
    }
    HELPER.with_borrow_mut(|helper| {
        let Some(mut present) = helper.take().or_else(Helper::start) else { return Err(Fault) };
        let result = match fill(&mut present.buffer) {
            Ok(()) => present.execute(Box::new(job), patience.deadline()),
            Err(fault) => Some(Err(fault)),
        };
        let Some(result) = result else {
            patience.strike();
            present.shared.leave(patience.leave());
            return Err(Fault);
        };
        let result = result.and_then(|()| drain(&present.buffer));
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

    /// Has `job` run on the buffer; none where that takes too long, and then the helper must not be used again.
    fn execute(&mut self, job: Job, deadline: Duration) -> Option<Result<(), Fault>> {
        let shared = &self.shared;
        *lock(&shared.work) = Some((job, std::mem::take(&mut self.buffer)));
        shared.turn.store(WORK, Ordering::Release);
        self.thread.unpark();
        if !shared.wait_for(DONE, Some(deadline)) {
            shared.turn.store(GIVEN_UP, Ordering::Release);
            self.thread.unpark();
            return None;
        }
        let (result, buffer) = lock(&shared.done).take()?;
        self.buffer = buffer;
        Some(result)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.shared.turn.store(GIVEN_UP, Ordering::Release);
        self.thread.unpark();
    }
}

impl Shared {
    /// Leaves a helper that is late to itself.
    fn leave(&self, away: Away) {
        let mut place = lock(&self.away);
        // It may have come back in this moment.
        if lock(&self.done).is_none() {
            *place = Some(away);
        }
    }

    /// The helper's life.
    fn serve(&self) {
        while self.wait_for(WORK, None) {
            let Some((job, mut buffer)) = lock(&self.work).take() else { return };
            let result = job(&mut buffer);
            *lock(&self.done) = Some((result, buffer));
            *lock(&self.away) = None;
            // Too late where it was given up meanwhile.
            if self.turn.compare_exchange(WORK, DONE, Ordering::AcqRel, Ordering::Acquire).is_err() {
                return;
            }
            self.worker.unpark();
        }
    }

    /// Waits until it is the turn of `wanted`; false where it was given up, or the time is over.
    fn wait_for(&self, wanted: u32, limit: Option<Duration>) -> bool {
        let start = Instant::now();
        for look in 0u64.. {
            match self.turn.load(Ordering::Acquire) {
                turn if turn == wanted => return true,
                GIVEN_UP => return false,
                _ if look < LOOKS.into() => std::thread::yield_now(),
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

    #[test]
    fn what_never_ends_is_given_up_and_then_not_tried_again() {
        let patience = Patience::default();
        let mut stuck = Vec::new();
        for _ in 0..Patience::STRIKES {
            let (release, wait) = channel::<()>();
            stuck.push(release);
            let never = move |_: &mut Buffer| wait.recv().map_err(|_| Fault);
            assert_eq!(run(&patience, |_| Ok(()), never, |_| panic!("nothing came")), Err(Fault));
        }
        let start = Instant::now();
        assert_eq!(run(&patience, |_| Ok(()), |_| Ok(()), |_| Ok(())), Err(Fault));
        assert!(start.elapsed() < DEADLINE);
        // Another endpoint is served.
        assert_eq!(run(&Patience::default(), |_| Ok(()), |_| Ok(()), |_| Ok(())), Ok(()));
    }

    #[test]
    fn strikes_are_forgotten_and_threads_that_are_away_are_not() {
        let (patience, start) = (Patience::default(), Instant::now());
        (0..Patience::STRIKES).for_each(|_| patience.strike_at(start));
        assert!(patience.is_exhausted_at(start) && patience.is_exhausted_at(start + Patience::FORGET / 2));
        assert!(!patience.is_exhausted_at(start + Patience::FORGET));
        assert_eq!(patience.deadline_at(start + Patience::FORGET), DEADLINE / 16);
        assert_eq!(patience.deadline_at(start + Patience::MAKE_UP), DEADLINE);
        let mut away: Vec<Away> = (0..Patience::STRIKES).map(|_| patience.leave()).collect();
        assert!(patience.is_exhausted_at(start + 100 * Patience::FORGET));
        away.pop();
        assert!(!patience.is_exhausted_at(start + 100 * Patience::FORGET));
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
                if i % 7 == 0 { Err(Fault) } else { Ok(()) }
            };
            let mut seen = Vec::new();
            let result = run(&patience, fill, job, |buffer| {
                seen = buffer.clone();
                Ok(())
            });
            assert_eq!(result.is_err(), i % 7 == 0);
            assert_eq!(seen, if i % 7 == 0 { vec![] } else { i.swap_bytes().to_ne_bytes().to_vec() });
        }
    }
}
