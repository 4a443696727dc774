//! Measuring in `MPI_Init`: from which length on a message arrives earlier by RDMA than by MPI's own way.
//!
//! Pairs of ranks that the launcher chooses send each other messages of each length both ways; the others wait. It takes some
//! hundredths of a second, and happens only where all ranks of the world have joined: MPI is called on both sides, or not at all.

use super::receives::{posted, receive};
use super::sends::{message, send};
use crate::control::{Ready, Site, Start, Thresholds};
use crate::job::{Message, Order};
use crate::memory::Pages;
use crate::rank::Rank;
use crate::report::Way;
use crate::settings::{DEFAULT_THRESHOLD, MIN_THRESHOLD};
use libc::{c_int, c_void};
use std::time::{Duration, Instant};

/// Waits until all ranks of the world have joined, or some will not, and fixes the thresholds: these bytes, or what is measured.
pub(super) fn begin_with_thresholds(rank: &'static Rank, fixed: Option<u64>) {
    rank.job().be_ready(Some(Ready { site: Site::own(), is_fixed: fixed.is_some() }));
    let start = wait_for_start(rank);
    let thresholds = match fixed {
        Some(bytes) => Thresholds::all(bytes),
        None => start.thresholds.unwrap_or(Thresholds::all(DEFAULT_THRESHOLD)),
    };
    rank.set_thresholds(thresholds);
    rank.set_whole(start.is_whole);
}

/// Does what the launcher wants until it lets this rank go on.
fn wait_for_start(rank: &'static Rank) -> Start {
    let deadline = Instant::now() + PATIENCE;
    let mut is_patient = true;
    loop {
        let order = rank.job().next_order();
        match order {
            Some(Order::Measure { with, is_first: true }) => {
                let threshold = measure_with(rank, with);
                rank.job().tell_measured(threshold);
            }
            Some(Order::Measure { with, is_first: false }) => answer(rank, with),
            Some(Order::GoOn(start)) => return start,
            None => {
                // Others may need it to get out of MPI's own part of `MPI_Init`. And ranks that wait do not sleep, in MPI either: where
                // there are more of them than processors, what needs a router's thread is slower, and that is to be measured.
                rank.poll_mpi();
                std::thread::yield_now();
            }
        }
        if is_patient && Instant::now() >= deadline {
            is_patient = false;
            rank.job().be_ready(None);
        }
    }
}

/// Time within which all ranks of a world are ready; else nothing is measured, and collective operations stay MPI's.
const PATIENCE: Duration = Duration::from_secs(1);

/// One of a pair: the lengths and ways are the first one's choice, told to the other by a step before each message.
struct Pair {
    rank: &'static Rank,
    with: c_int,
    buffer: Pages,
}

/// The next message, and its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Step {
    len: u64,
    by: By,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    Mpi,
    Rdma,
}

impl Step {
    /// As it is told to the other: all zeros for the end.
    fn words(step: Option<Self>) -> Words {
        step.map_or([0, 0], |step| [step.len, step.by as u64])
    }

    fn parse([len, by]: Words) -> Option<Self> {
        (len > 0 && len <= LONGEST).then_some(Self { len, by: if by == By::Mpi as u64 { By::Mpi } else { By::Rdma } })
    }
}

type Words = [u64; 2];

impl Pair {
    fn new(rank: &'static Rank, with: u32) -> Option<Self> {
        Some(Self { rank, with: c_int::try_from(with).ok()?, buffer: Pages::new(LONGEST as usize).ok()? })
    }

    fn message(&self, address: *mut c_void, len: u64) -> Message {
        let (library, named) = (self.rank.library, self.rank.library.abi.named);
        message(library, address, len as c_int, named.byte, self.with, TAG, named.comm_world)
    }

    fn send(&self, Step { len, by }: Step) -> bool {
        let at = std::ptr::with_exposed_provenance_mut(self.buffer.address());
        let message = self.message(at, len);
        if by == By::Rdma
            && let Some(code) = send(&message)
        {
            return code == 0;
        }
        self.send_by_mpi(at, len)
    }

    fn send_by_mpi(&self, at: *mut c_void, len: u64) -> bool {
        let (library, named) = (self.rank.library, self.rank.library.abi.named);
        library.send(at, len as c_int, named.byte, self.with, TAG, named.comm_world) == 0
    }

    fn receive(&self, len: u64) -> bool {
        let at = std::ptr::with_exposed_provenance_mut(self.buffer.address());
        self.receive_at(at, len)
    }

    fn receive_at(&self, at: *mut c_void, len: u64) -> bool {
        let (library, named) = (self.rank.library, self.rank.library.abi.named);
        let (posted, from) = posted(library, at, len as c_int, named.byte, self.with, TAG, named.comm_world);
        let ignored = std::ptr::with_exposed_provenance_mut(library.abi.status_ignore);
        receive(self.rank, posted, from, ignored) == 0
    }

    /// Tells the other what comes.
    fn tell(&self, step: Option<Step>) -> bool {
        let mut words = Step::words(step);
        self.send_by_mpi(words.as_mut_ptr().cast(), size_of::<Words>() as u64)
    }

    /// Half the time of a message and its answer: the median of some.
    fn time(&self, len: u64, by: By) -> Option<Duration> {
        let step = Step { len, by };
        let mut times = Vec::new();
        for round in 0..=ROUNDS {
            if !self.tell(Some(step)) {
                return None;
            }
            let start = Instant::now();
            if !self.send(step) || !self.receive(len) {
                return None;
            }
            // The first one registers memory, and has MPI connect.
            if round > 0 {
                times.push(start.elapsed() / 2);
            }
        }
        times.sort_unstable();
        times.get(times.len() / 2).copied()
    }
}

/// The first of a pair: measures, and decides.
fn measure_with(rank: &'static Rank, with: u32) -> u64 {
    let is_reached = rank.wait(|job| match job.reach(with) {
        Ok(()) => Some(true),
        Err(Way::Early) => None,
        Err(_) => Some(false),
    });
    let Some(pair) = Pair::new(rank, with) else { return DEFAULT_THRESHOLD };
    let start = Instant::now();
    let mut times = Vec::new();
    for len in LENGTHS.into_iter().take_while(|_| is_reached) {
        if start.elapsed() > ENOUGH {
            break;
        }
        let (Some(mpi), Some(rdma)) = (pair.time(len, By::Mpi), pair.time(len, By::Rdma)) else { break };
        times.push(Times { len, mpi, rdma });
    }
    pair.tell(None);
    decide(&times)
}

/// The second of a pair: answers each message by one of the same length, the same way.
fn answer(rank: &'static Rank, with: u32) {
    let Some(pair) = Pair::new(rank, with) else { return };
    loop {
        let mut words = Step::words(None);
        let is_told = pair.receive_at(words.as_mut_ptr().cast(), size_of::<Words>() as u64);
        match Step::parse(words) {
            Some(step) if is_told && pair.receive(step.len) && pair.send(step) => {}
            _ => return,
        }
    }
}

/// Times of messages of one length.
#[derive(Clone, Copy, Debug)]
struct Times {
    len: u64,
    mpi: Duration,
    rdma: Duration,
}

/// The threshold with which messages of all these lengths together take the least time, each weighed alike: one of them that was
/// disturbed decides nothing. RDMA must be clearly faster: a message that MPI takes from a socket needs less of other processes.
fn decide(times: &[Times]) -> u64 {
    let gains = times.iter().map(|times| (times.mpi.as_secs_f64() / times.rdma.as_secs_f64() / CLEARLY).ln());
    let gains: Vec<f64> = gains.collect();
    let mut best = (u64::MAX, 0.0);
    for (index, times) in times.iter().enumerate() {
        let gain: f64 = gains[index..].iter().sum();
        if gain > best.1 {
            best = (times.len, gain);
        }
    }
    best.0
}

/// Times by which a message is to arrive earlier.
const CLEARLY: f64 = 1.2;
/// From the shortest that is worth an announcement to one at which no set-up counts.
const LENGTHS: [u64; 8] = [2 * MIN_THRESHOLD, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, LONGEST];
const LONGEST: u64 = 1 << 20;
const ROUNDS: u32 = 7;
/// After this time no longer messages are measured: the network is slow.
const ENOUGH: Duration = Duration::from_millis(100);
/// Not that of [`Rank::poll_mpi`], which would find it.
const TAG: c_int = 32_766;

#[cfg(test)]
mod tests {
    use super::*;

    fn times(microseconds: &[(u64, u64, u64)]) -> Vec<Times> {
        let times = microseconds.iter().map(|&(len, mpi, rdma)| {
            let [mpi, rdma] = [mpi, rdma].map(Duration::from_micros);
            Times { len, mpi, rdma }
        });
        times.collect()
    }

    #[test]
    fn the_threshold_is_where_rdma_begins_to_be_faster() {
        assert_eq!(decide(&times(&[(4, 10, 20), (8, 15, 21), (16, 28, 22), (32, 40, 25)])), 16);
        assert_eq!(decide(&times(&[(16, 24, 22), (32, 40, 25)])), 32, "a little is not enough");
        assert_eq!(decide(&times(&[(4, 30, 20), (8, 30, 21)])), 4);
    }

    #[test]
    fn one_disturbed_time_decides_nothing() {
        assert_eq!(decide(&times(&[(4, 10, 20), (8, 40, 20), (16, 80, 22), (32, 160, 25), (64, 320, 900)])), 8);
        assert_eq!(decide(&times(&[(4, 90, 20), (8, 15, 21), (16, 20, 40), (32, 40, 80)])), u64::MAX);
    }

    #[test]
    fn nothing_goes_by_rdma_where_it_is_slower_or_was_not_measured() {
        assert_eq!(decide(&times(&[(4, 10, 20), (8, 15, 21)])), u64::MAX);
        assert_eq!(decide(&[]), u64::MAX);
    }
}
