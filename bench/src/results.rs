//! Figures of a benchmark run.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Unit of a figure, which also says whether more is better.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Unit {
    /// Half a round trip, or the like.
    #[serde(rename = "µs")]
    Microseconds,
    /// 10^6 bytes per second.
    #[serde(rename = "MB/s")]
    MegabytesPerSecond,
    /// 10^9 bits per second.
    #[serde(rename = "Gb/s")]
    GigabitsPerSecond,
    /// 10^6 messages per second.
    #[serde(rename = "M/s")]
    MillionPerSecond,
    /// Of many together.
    #[serde(rename = "ms")]
    Milliseconds,
    /// Of a packet.
    #[serde(rename = "ns")]
    Nanoseconds,
    /// Of the quantity in the figure's name.
    #[serde(rename = "%")]
    Percent,
    /// Events in a second.
    #[serde(rename = "1/s")]
    PerSecond,
    /// 1024 bytes.
    #[serde(rename = "KiB")]
    Kibibytes,
    /// Seconds of processors for 10^9 bytes.
    #[serde(rename = "s/GB")]
    SecondsPerGigabyte,
    /// Events for each message.
    #[serde(rename = "1/message")]
    PerMessage,
}

impl Unit {
    /// As printed behind a figure.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Microseconds => "µs",
            Self::Milliseconds => "ms",
            Self::Nanoseconds => "ns",
            Self::MegabytesPerSecond => "MB/s",
            Self::GigabitsPerSecond => "Gb/s",
            Self::MillionPerSecond => "M/s",
            Self::Percent => "%",
            Self::PerSecond => "/s",
            Self::Kibibytes => "KiB",
            Self::PerMessage => "/message",
            Self::SecondsPerGigabyte => "s/GB",
        }
    }
}

/// One kind of figure, taken once a round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// Heading that it is shown under.
    pub(crate) group: String,
    /// Name of the measurement, unique in its group.
    pub(crate) name: String,
    /// Unit of all values.
    pub(crate) unit: Unit,
    /// Middle value.
    pub(crate) median: f64,
    /// One value a round.
    pub(crate) samples: Vec<f64>,
}

/// All figures, in the order in which they first came.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Results {
    /// Version of rdmesh.
    pub(crate) version: String,
    /// Waiting strategy of the router's workers.
    pub(crate) mode: String,
    /// Processor, cores and kernel.
    pub(crate) machine: BTreeMap<String, String>,
    /// Rounds.
    pub(crate) rounds: usize,
    /// The figures.
    pub(crate) figures: Vec<Figure>,
    /// Parts that failed.
    #[serde(default)]
    pub(crate) failures: Vec<Failure>,
}

/// A part that was not measured to its end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Failure {
    /// Name of the part.
    pub(crate) part: String,
    /// In which round.
    pub(crate) round: usize,
    /// The reason.
    pub(crate) reason: String,
}

impl Results {
    /// No figures yet.
    pub(crate) fn new(mode: &str, rounds: usize) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            mode: mode.to_owned(),
            machine: machine(),
            rounds,
            figures: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// Measures a part. If it panics, the message is recorded and earlier figures are kept.
    pub(crate) fn part(&mut self, round: usize, part: &str, measure: impl FnOnce(&mut Self)) {
        // It adds whole figures only, so nothing is half done.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| measure(self))) {
            let text = panic.downcast_ref::<String>().cloned();
            let reason = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned())).unwrap_or_default();
            eprintln!("\n{part} failed; the other parts go on");
            self.failures.push(Failure { part: part.to_owned(), round, reason });
        }
    }

    /// Adds a value to the figure `name` of `group`.
    pub(crate) fn add(&mut self, group: &str, name: &str, unit: Unit, value: f64) {
        eprint!(".");
        let index = self.figures.iter().position(|f| f.group == group && f.name == name).unwrap_or_else(|| {
            let (group, name) = (group.to_owned(), name.to_owned());
            let figure = Figure { group, name, unit, median: 0.0, samples: Vec::new() };
            self.figures.push(figure);
            self.figures.len() - 1
        });
        let figure = &mut self.figures[index];
        figure.samples.push(value);
        figure.median = median(&figure.samples);
    }

    /// The value of the figure `name` of `group` that was added last.
    pub(crate) fn last(&self, group: &str, name: &str) -> Option<f64> {
        self.figure(group, name)?.samples.last().copied()
    }

    /// Median of the figure `name` of `group`.
    pub(crate) fn median(&self, group: &str, name: &str) -> Option<f64> {
        self.figure(group, name).map(|f| f.median)
    }

    fn figure(&self, group: &str, name: &str) -> Option<&Figure> {
        self.figures.iter().find(|f| f.group == group && f.name == name)
    }
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

fn machine() -> BTreeMap<String, String> {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find(|l| l.starts_with("model name")).and_then(|l| l.split(": ").nth(1));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let parts = [
        ("processor", model.unwrap_or("unknown").to_owned()),
        ("cores", cores.to_string()),
        ("kernel", kernel.trim().to_owned()),
    ];
    parts.map(|(what, value)| (what.to_owned(), value)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_part_measured_before_it_failed_is_kept() {
        let mut results = Results::new("spin", 1);
        results.part(1, "first", |results| {
            results.add("g", "n", Unit::Microseconds, 1.0);
            panic!("no {}", "header");
        });
        results.part(1, "second", |results| results.add("g", "m", Unit::Microseconds, 2.0));
        assert_eq!((results.median("g", "n"), results.median("g", "m")), (Some(1.0), Some(2.0)));
        let [failure] = &results.failures[..] else { panic!("one part failed") };
        assert_eq!((failure.part.as_str(), failure.reason.as_str()), ("first", "no header"));
    }

    #[test]
    fn the_median_is_the_middle_of_the_samples() {
        let mut results = Results::new("spin", 3);
        for value in [9.0, 1.0, 3.0] {
            results.add("g", "n", Unit::Microseconds, value);
        }
        assert_eq!(results.median("g", "n"), Some(3.0));
        results.add("g", "n", Unit::Microseconds, 5.0);
        assert_eq!(results.median("g", "n"), Some(4.0));
        assert_eq!(results.median("g", "other"), None);
    }
}
