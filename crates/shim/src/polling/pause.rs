//! Back-off of threads that poll in vain: a thread yields, and where the processors are contended, or it has waited for long, it
//! sleeps until a completion wakes it.
//!
//! A sleep is short in any case, because a program may wait for something else too, and a thread sleeps only if it has just
//! polled twice in a row as often as it would before a yield, queues of one context only, with nothing in between: what it does
//! between its polls is not delayed.
//!
//! A program may also poll memory for what a peer writes, in loops of its own. Under contention such a loop uses up the
//! thread's share of the processor, which is then missing when the data comes. So a thread that was seen to do so sleeps when it
//! takes the completion of its last request, until something arrives ([`before_memory`]).

use crate::polled::Polled;
use rdmesh_preload::settings::settings;
use rustix::thread::nanosleep;
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Polling state of a thread.
struct Polling {
    /// Empty polls since the last pause.
    empty: Cell<u32>,
    /// Time at which the first pause was since something was found; 0 for none.
    since: Cell<u64>,
    /// The context that it polled last, and whether it polled another since the last pause.
    context: Cell<usize>,
    is_mixed: Cell<bool>,
    /// At the last pause: the context, its completions, and when that was.
    seen: Cell<(usize, u32, u64)>,
    /// State of its polling of memory.
    memory: Cell<MemoryPolling>,
    /// Remaining pauses that this thread is spared because it waits by events.
    armed: Cell<u32>,
    /// Time at which it began to poll, after something else, and when it polled last.
    moment: Cell<(u64, u64)>,
}

/// State of a thread that may poll memory for data that a peer writes.
#[derive(Clone, Copy)]
struct MemoryPolling {
    /// Arrivals when it posted its last request.
    posted: u32,
    /// Time at which it took completions since, and the arrivals then.
    taken: Option<(u64, u32)>,
    /// Whether it slept then, until something arrived.
    slept: bool,
    /// Consecutive times that data arrived while it was busy between taking a completion and posting; negative after it was
    /// busy with something else, by as many as are needed to trust it again.
    trust: i32,
    doubt: i32,
}

thread_local! {
    static POLLING: Polling = const {
        Polling {
            empty: Cell::new(0),
            since: Cell::new(0),
            context: Cell::new(0),
            is_mixed: Cell::new(false),
            seen: Cell::new((0, 0, 0)),
            memory: Cell::new(MemoryPolling { posted: 0, taken: None, slept: false, trust: 0, doubt: FIRST_DOUBT }),
            armed: Cell::new(0),
            moment: Cell::new((0, 0)),
        }
    };
}

/// Whether this process found the processors contended at its last pause.
static CONTENDED: AtomicBool = AtomicBool::new(false);
/// Yields are not tried before that time, after one that was slow, and for how long not.
static NO_YIELD_UNTIL: AtomicU64 = AtomicU64::new(0);
static NO_YIELD_FOR: AtomicU64 = AtomicU64::new(0);

/// Whether the poll functions are to be wrapped at all.
pub(super) fn is_wanted() -> bool {
    yield_after() != u32::MAX
}

/// A poll has found something.
#[inline]
pub(super) fn found() {
    POLLING.with(|polling| {
        polling.empty.set(0);
        polling.since.set(0);
    });
}

/// A poll of a queue of the context at `context` has found nothing. Returns whether it is time for a [`pause`].
#[inline]
pub(super) fn is_due(context: usize) -> bool {
    POLLING.with(|polling| {
        let empty = polling.empty.get() + 1;
        if polling.context.get() != context {
            polling.context.set(context);
            polling.is_mixed.set(true);
        }
        let limit = if CONTENDED.load(Ordering::Relaxed) { SCARCE } else { yield_after() };
        let is_due = empty >= limit;
        polling.empty.set(if is_due { 0 } else { empty });
        is_due
    })
}

/// Whether the processors were contended at the last pause.
#[inline]
pub(super) fn is_contended() -> bool {
    CONTENDED.load(Ordering::Relaxed)
}

/// The thread is about to post a request.
#[cold]
pub(super) fn posts(device: &Polled) {
    POLLING.with(|polling| {
        let mut memory = polling.memory.get();
        memory.on_post(now(), device.arrivals());
        polling.memory.set(memory);
    });
}

/// The thread has taken so many completions, and will poll memory if it behaves as before: it sleeps until something arrives,
/// unless something else than these has arrived since it posted.
#[cold]
pub(super) fn before_memory(device: Option<&Polled>, found: u32) {
    let Some(device) = device else { return };
    POLLING.with(|polling| {
        let mut memory = polling.memory.get();
        let expected = memory.posted.wrapping_add(found);
        memory.slept = memory.is_trusted() && device.arrivals() == expected;
        if memory.slept {
            device.wait_arrival(expected, LONGEST_SLEEP);
        }
        let arrivals = device.arrivals();
        memory.slept &= arrivals != expected;
        memory.taken = Some((now(), arrivals));
        polling.memory.set(memory);
    });
}

impl MemoryPolling {
    fn is_trusted(&self) -> bool {
        self.trust >= TRUSTED
    }

    /// A request is posted at `now`, after so many arrivals.
    fn on_post(&mut self, now: u64, arrivals: u32) {
        if let Some((since, taken)) = self.taken.take() {
            let is_prompt = now - since < PROMPT;
            if self.slept && is_prompt {
                self.doubt = (self.doubt / 2).max(FIRST_DOUBT);
            } else if self.slept {
                // It was busy with something else than waiting for the data.
                self.trust = -self.doubt;
                self.doubt = (self.doubt * 2).min(MOST_DOUBT);
            } else if !is_prompt && arrivals != taken {
                self.trust = (self.trust + 1).min(TRUSTED);
            }
        }
        self.posted = arrivals;
    }
}

/// The program has asked for an event of a completion queue.
#[inline]
pub(super) fn armed() {
    POLLING.with(|polling| polling.armed.set(ARMED_POLLS));
}

/// Yields or sleeps. `device` is the context that was polled last.
#[cold]
pub(super) fn pause(device: Option<&Polled>) {
    POLLING.with(|polling| {
        let now = now();
        if polling.sleeps_soon(now) {
            return;
        }
        if polling.since.get() == 0 {
            polling.since.set(now);
        }
        let is_mixed = polling.is_mixed.replace(false);
        let contended = device.is_some_and(Polled::is_contended) || now < NO_YIELD_UNTIL.load(Ordering::Relaxed);
        if CONTENDED.load(Ordering::Relaxed) != contended {
            CONTENDED.store(contended, Ordering::Relaxed);
        }
        let is_long = now - polling.since.get() > SPIN_LIMIT;
        match device {
            Some(device) if !is_mixed && (contended || is_long && yield_after() <= SCARCE) => {
                polling.sleep(device, now)
            }
            _ if is_long && (contended || yield_after() <= SCARCE) => nap(),
            _ if contended => {}
            _ => give_way(now),
        }
    });
}

impl Polling {
    /// Whether this thread waits by events: then it polls only briefly before it sleeps. It must not be delayed meanwhile:
    /// rsocket, which polls for 10 µs, mistakes a longer poll for the end of its caller's time-out, which it handles badly.
    fn sleeps_soon(&self, now: u64) -> bool {
        let budget = self.armed.get();
        if budget == 0 {
            return false;
        }
        self.armed.set(budget - 1);
        let (begin, last) = self.moment.get();
        let begin = if now - last > MOMENT_GAP { now } else { begin };
        self.moment.set((begin, now));
        now - begin < LONGEST_MOMENT
    }

    /// Sleeps until there is a completion, if there was none since the last pause, which was just before. All queues of the
    /// context that the program polls in turn, it has polled since then.
    fn sleep(&self, device: &Polled, now: u64) {
        let (context, completions) = (self.context.get(), device.arrivals());
        let (last_context, last_completions, last) = self.seen.replace((context, completions, now));
        if last_context == context && last_completions == completions && now - last < WITHOUT_PAUSE {
            device.wait_arrival(completions, LONGEST_SLEEP);
            self.seen.set((0, 0, 0));
        }
    }
}

fn nap() {
    let _ = nanosleep(&Timespec { tv_sec: 0, tv_nsec: NAP });
}

/// Yields. Where that takes a slice of the scheduler, it is not tried again for a while.
fn give_way(before: u64) {
    rustix::thread::sched_yield();
    let after = now();
    if after - before < SLOW_YIELD {
        return;
    }
    let recent = after.saturating_sub(NO_YIELD_UNTIL.load(Ordering::Relaxed)) < SOON;
    let time = if recent { (NO_YIELD_FOR.load(Ordering::Relaxed) * 2).min(SOON) } else { NO_YIELD_AT_FIRST };
    NO_YIELD_FOR.store(time, Ordering::Relaxed);
    NO_YIELD_UNTIL.store(after + time, Ordering::Relaxed);
}

fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Empty polls after which a thread yields.
#[inline]
fn yield_after() -> u32 {
    static AFTER: OnceLock<u32> = OnceLock::new();
    *AFTER.get_or_init(|| match settings().yield_after() {
        Some(0) => u32::MAX,
        Some(polls) => polls,
        None => for_processors(std::thread::available_parallelism().map_or(1, |number| number.get())),
    })
}

/// With two ends and a router to run, up to three processors are scarce. With more, a yield now and then costs a spinning
/// thread nothing and saves the others when it was one too many all the same.
fn for_processors(processors: usize) -> u32 {
    match processors {
        0..=3 => SCARCE,
        4..=7 => 256,
        _ => 16_384,
    }
}

/// Empty polls before a pause where processors are scarce, or contended.
const SCARCE: u32 = 8;
/// Nanoseconds of empty polls before a thread sleeps even if yields are quick: longer than any round trip within a data
/// centre. Every yield delays the thread that it waits for.
const SPIN_LIMIT: u64 = 100_000;
/// Maximum sleep of a thread that waits for a completion.
const LONGEST_SLEEP: Duration = Duration::from_micros(100);
/// Nanoseconds between two pauses of a thread that does nothing but poll.
const WITHOUT_PAUSE: u64 = 20_000;
/// Nanoseconds of a yield to threads that compute; pollers give the processor back sooner.
const SLOW_YIELD: u64 = 1_000_000;
/// Nanoseconds without yields after a slow one; twice as long each time, up to [`SOON`].
const NO_YIELD_AT_FIRST: u64 = 20_000_000;
const SOON: u64 = 2_000_000_000;
/// Nanoseconds within which a thread that has waited for data posts again.
const PROMPT: u64 = 10_000;
/// See [`MemoryPolling`].
const TRUSTED: i32 = 2;
const FIRST_DOUBT: i32 = 4;
const MOST_DOUBT: i32 = 1024;
/// Number of times that a thread which has asked for an event reaches the yield limit before it counts as one that polls.
const ARMED_POLLS: u32 = 512;
/// Nanoseconds that a thread polls before it sleeps.
const LONGEST_MOMENT: u64 = 15_000;
/// Nanoseconds without a poll between two such moments.
const MOMENT_GAP: u64 = 100_000;
/// Nanoseconds of a sleep where no completion would wake the thread; the kernel's timers add some.
const NAP: i64 = 20_000;
