//! Time of memory registration and deregistration.

use crate::results::{Results, Unit};
use rdmesh_tests::{Endpoint, Lab, helper};
use std::ffi::OsString;
use std::time::Duration;

/// Group of these figures.
pub(crate) const REGISTRATION: &str = "rdmesh, registration";

const LIMIT: Duration = Duration::from_secs(120);
/// Bytes of the ranges, and their names.
const SIZES: [(u64, &str); 4] = [(4 << 10, "4 KB"), (64 << 10, "64 KB"), (1 << 20, "1 MB"), (64 << 20, "64 MB")];
/// Names of the program's figures, and of the rows that they become.
const KINDS: [(&str, &str); 3] =
    [("first", "ibv_reg_mr, new memory"), ("again", "ibv_reg_mr, known memory"), ("end", "ibv_dereg_mr")];

/// Measures all sizes in a program with four more threads, which wait.
pub(crate) fn measure(results: &mut Results, lab: &Lab) {
    let program = [helper("registration").into_os_string(), OsString::from("4")];
    let text = lab.run_in(&Endpoint::new("registration"), LIMIT, &program).ok().text;
    for (kind, what) in KINDS {
        for (bytes, size) in SIZES {
            let line = format!("{kind}-{bytes} ");
            let figure = text.lines().find_map(|text| text.strip_prefix(&line)?.trim().parse().ok());
            let figure = figure.unwrap_or_else(|| panic!("no {line}in:\n{text}"));
            results.add(REGISTRATION, &name(what, size), Unit::Microseconds, figure);
        }
    }
}

/// Name of a figure.
fn name(what: &str, size: &str) -> String {
    format!("{what}, {size}")
}

/// Microseconds that a register of new memory takes, for each megabyte.
pub(crate) fn new(results: &Results) -> Option<f64> {
    Some(results.median(REGISTRATION, &name(KINDS[0].1, "64 MB"))? / 64.0)
}

/// The same of known memory beside what it may take: 20 µs, and 1 µs for each megabyte. The worst of all sizes.
pub(crate) fn known(results: &Results) -> Option<f64> {
    let ratio = |(bytes, size): (u64, &str)| {
        let allowed = 20.0 + (bytes >> 20) as f64;
        Some(results.median(REGISTRATION, &name(KINDS[1].1, size))? / allowed)
    };
    SIZES.into_iter().map(ratio).try_fold(0.0, |worst, ratio| Some(f64::max(worst, ratio?)))
}

/// Microseconds that deregistration takes, at the size where it takes longest.
pub(crate) fn end(results: &Results) -> Option<f64> {
    let figure = |(_, size): (u64, &str)| results.median(REGISTRATION, &name(KINDS[2].1, size));
    SIZES.into_iter().map(figure).try_fold(0.0, |worst, figure| Some(f64::max(worst, figure?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_size_counts() {
        let mut results = Results::new("spin", 1);
        assert_eq!((known(&results), end(&results)), (None, None));
        for (at, (_, size)) in SIZES.into_iter().enumerate() {
            results.add(REGISTRATION, &name(KINDS[1].1, size), Unit::Microseconds, 21.0);
            results.add(REGISTRATION, &name(KINDS[2].1, size), Unit::Microseconds, at as f64);
        }
        assert_eq!(known(&results), Some(21.0 / 20.0));
        assert_eq!(end(&results), Some(3.0));
    }
}
