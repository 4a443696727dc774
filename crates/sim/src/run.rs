//! Seed runner.

use crate::coverage::Coverage;
use crate::model::Violation;
use crate::plan::Plan;
use crate::world::{Summary, World};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// A seed that fails.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The violated property.
    pub violation: Violation,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.violation)?;
        write!(f, "replay it: cargo run -p rdmesh-sim -- replay {} --verbose", self.seed)
    }
}

/// Result of many seeds.
#[derive(Default)]
pub struct Outcome {
    /// Number of seeds.
    pub seeds: u64,
    /// Datagrams sent.
    pub sent: u64,
    /// Events that the runs have met.
    pub seen: Coverage,
    /// Failures, by seed.
    pub failures: Vec<Failure>,
}

/// Runs one seed.
pub fn run_seed(seed: u64, verbose: bool) -> Result<Summary, Failure> {
    let run = || World::new(Plan::of(seed), verbose).run();
    let result = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(Violation { property: "panic", text: text.unwrap_or_default() })
    });
    result.map_err(|violation| Failure { seed, violation })
}

/// Runs the seeds from `first` to `first + count - 1` on as many threads as there are processors. One of ten runs twice: both
/// runs must be the same.
pub fn run_many(first: u64, count: u64) -> Outcome {
    let next = AtomicU64::new(0);
    let outcome = Mutex::new(Outcome::default());
    let work = || {
        let mut mine = Outcome::default();
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= count {
                break;
            }
            mine.add(first + n, run_checked(first + n));
        }
        let mut all = outcome.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        all.merge(mine);
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let mut outcome = outcome.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    outcome.failures.sort_by_key(|failure| failure.seed);
    outcome
}

fn run_checked(seed: u64) -> Result<Summary, Failure> {
    let summary = run_seed(seed, false)?;
    if seed.is_multiple_of(TWICE) {
        let again = run_seed(seed, false)?;
        if again != summary {
            let text = "a second run was not the same".to_owned();
            return Err(Failure { seed, violation: Violation { property: "determinism", text } });
        }
    }
    Ok(summary)
}

impl Outcome {
    fn add(&mut self, _seed: u64, result: Result<Summary, Failure>) {
        self.seeds += 1;
        match result {
            Ok(summary) => {
                self.sent += summary.sent;
                self.seen.merge(&summary.seen);
            }
            Err(failure) => self.failures.push(failure),
        }
    }

    fn merge(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.sent += other.sent;
        self.seen.merge(&other.seen);
        self.failures.extend(other.failures);
    }
}

/// Every how manyth seed runs twice.
const TWICE: u64 = 10;
