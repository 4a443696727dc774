//! This process as a rank: whether it has joined a job, and how its threads wait for messages.

use crate::control::Thresholds;
use crate::helper::Helper;
use crate::job::{Job, Leaving, are_none_pending};
use crate::library::{Library, library};
use crate::report::Traffic;
use crate::settings::Settings;
use libc::c_int;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// A rank that has joined.
pub(crate) struct Rank {
    pub(crate) library: &'static Library,
    /// Length in bytes of the shortest message that may be announced.
    lowest: AtomicU64,
    job: Mutex<Job>,
    helper: Helper,
    is_on: AtomicBool,
    /// All ranks of the world have joined, and know that all have.
    is_whole: AtomicBool,
    small: Small,
}

/// Messages that are too short: counted without the lock.
#[derive(Default)]
struct Small {
    messages: AtomicU64,
    bytes: AtomicU64,
}

static RANK: OnceLock<&'static Rank> = OnceLock::new();

/// The rank that this process is, between `MPI_Init` and `MPI_Finalize`; none where it has not joined.
pub(crate) fn rank() -> Option<&'static Rank> {
    let rank = *RANK.get()?;
    rank.is_on.load(Ordering::Relaxed).then_some(rank)
}

/// Joins the job that the environment names. MPI was initialised, for calls from several threads.
pub(crate) fn join(settings: &Settings) -> Result<&'static Rank, String> {
    let library = library().ok_or("no MPI library")?;
    let world = library.abi.named.comm_world;
    let (mut own, mut parent) = (0, 0_u64);
    library.comm_rank(world, &mut own);
    library.comm_get_parent((&raw mut parent).cast());
    if library.handle_at((&raw const parent).cast(), 0) != library.abi.named.comm_null {
        return Err("started by MPI_Comm_spawn".to_owned());
    }
    let (job, reader) = Job::join(settings, library, own.unsigned_abs())?;
    let helper = Helper::new().map_err(|error| error.to_string())?;
    let rank = Rank {
        library,
        lowest: AtomicU64::new(0),
        job: Mutex::new(job),
        helper,
        is_on: AtomicBool::new(true),
        is_whole: AtomicBool::new(false),
        small: Small::default(),
    };
    // It stays: threads of ours and of the program use it until the process ends.
    let rank: &'static Rank = Box::leak(Box::new(rank));
    RANK.set(rank).map_err(|_| "joined twice")?;
    rank.helper.start(rank, reader).map_err(|error| format!("cannot start a thread: {error}"))?;
    Ok(rank)
}

impl Rank {
    /// The job, for calls that wait for no other rank.
    pub(crate) fn job(&self) -> MutexGuard<'_, Job> {
        self.job.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces messages of these lengths from now on.
    pub(crate) fn set_thresholds(&self, thresholds: Thresholds) {
        self.job().set_thresholds(thresholds);
        self.lowest.store(thresholds.lowest(), Ordering::Relaxed);
    }

    /// All ranks of the world have joined, or not.
    pub(crate) fn set_whole(&self, is_whole: bool) {
        self.is_whole.store(is_whole, Ordering::Relaxed);
    }

    /// Whether all ranks of the world have joined, which all of them answer alike.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole.load(Ordering::Relaxed)
    }

    /// Length in bytes of the shortest message that may be announced.
    pub(crate) fn lowest(&self) -> u64 {
        self.lowest.load(Ordering::Relaxed)
    }

    /// Whether a message is announced to nobody, so short is it.
    pub(crate) fn is_small(&self, len: u64) -> bool {
        len < self.lowest()
    }

    /// Whether no rank announces messages: all have the same thresholds, and have measured that RDMA is faster for no length.
    pub(crate) fn expects_none(&self) -> bool {
        self.lowest() == u64::MAX
    }

    /// Counts a message that is too short to be announced.
    pub(crate) fn count_small(&self, len: u64) {
        self.small.messages.fetch_add(1, Ordering::Relaxed);
        self.small.bytes.fetch_add(len, Ordering::Relaxed);
    }

    /// An operation is pending now: the helper sees to it while the program is elsewhere.
    pub(crate) fn wake_helper(&self) {
        self.helper.wake();
    }

    /// Waits until `step` has an answer. Between its calls messages make progress, announced ones and MPI's own.
    pub(crate) fn wait<T>(&self, mut step: impl FnMut(&mut Job) -> Option<T>) -> T {
        let mut pause = Pause::default();
        loop {
            {
                let mut job = self.job();
                job.progress();
                if let Some(answer) = step(&mut job) {
                    return answer;
                }
            }
            if pause.is_for_mpi() {
                self.poll_mpi();
                if !are_none_pending() {
                    self.job().advance_operations();
                }
            }
            pause.wait();
        }
    }

    /// One look at all that is pending, for a loop of the caller's.
    pub(crate) fn wait_a_little(&self) {
        self.poll_mpi();
        let mut job = self.job();
        job.progress();
        job.advance_operations();
        drop(job);
        std::thread::yield_now();
    }

    /// Lets MPI make progress.
    pub(crate) fn poll_mpi(&self) {
        let (abi, mut flag) = (&self.library.abi, 0);
        let ignored = std::ptr::with_exposed_provenance_mut(abi.status_ignore);
        // A probe takes no message. MPICH looks into the network for no communicator of this process alone, and not where it has
        // found something: so it is of the world, with a tag of nobody's.
        self.library.iprobe(abi.any_source, RARE_TAG, abi.named.comm_world, &mut flag, ignored);
    }

    /// Waits for what the helper hears.
    fn wait_without_mpi(&self, is_there: impl Fn(&Job) -> bool) {
        let mut pause = Pause::default();
        while !is_there(&self.job()) {
            pause.wait();
        }
    }

    /// Leaves the job: what others wait for is done, and the launcher is told.
    ///
    /// No rank goes on into MPI's own end before all have come, and none calls MPI from then on: MPICH 4.0 over UCX stands still where
    /// one rank makes progress while another is in its `MPI_Finalize`.
    pub(crate) fn leave(&self) {
        let deadline = Instant::now() + LEAVE_LIMIT;
        self.wait(|job| {
            job.advance_operations();
            let is_done = job.is_quiet() && are_none_pending();
            (is_done || Instant::now() >= deadline).then_some(())
        });
        let small = &self.small;
        let traffic =
            Traffic { messages: small.messages.load(Ordering::Relaxed), bytes: small.bytes.load(Ordering::Relaxed) };
        self.job().say_goodbye(traffic);
        self.job().leave(Leaving::Done);
        // Ranks that have not joined may be in MPI's end already.
        self.wait_without_mpi(Job::is_answered);
        self.wait(|job| job.have_all(Leaving::Done).then_some(()));
        self.job().leave(Leaving::Silent);
        self.wait_without_mpi(|job| job.have_all(Leaving::Silent));
        self.is_on.store(false, Ordering::Release);
        self.helper.end();
    }
}

/// Limit for what is still under way when the program ends.
const LEAVE_LIMIT: Duration = Duration::from_secs(10);
/// The largest tag that every MPI has (MPI 4.1, 9.1.2).
const RARE_TAG: c_int = 32_767;

/// Rest between two looks: none at first, then the processor is given to others, at last for a while.
#[derive(Default)]
struct Pause {
    looks: u32,
}

impl Pause {
    /// Whether MPI is to make progress this time.
    fn is_for_mpi(&self) -> bool {
        self.looks % 4 == 3
    }

    fn wait(&mut self) {
        self.looks = self.looks.saturating_add(1);
        if self.looks > SLEEP_AFTER {
            std::thread::sleep(SLEEP);
        } else if self.looks > YIELD_AFTER {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

const YIELD_AFTER: u32 = 16;
/// Some milliseconds.
const SLEEP_AFTER: u32 = 10_000;
const SLEEP: Duration = Duration::from_micros(50);
