//! Memory copy bandwidth (one memcpy): the upper bound for bandwidth.

use crate::SIZES;
use crate::results::{Results, Unit};
use crate::shared::Mapping;
use std::time::{Duration, Instant};

/// Group of the figures between two pieces of shared memory, as the router copies.
pub(crate) const SHARED: &str = "memcpy, shared memory";
/// Group of the figures between two pieces of private memory.
pub(crate) const PRIVATE: &str = "memcpy, private memory";

/// Name of a figure of messages of `bytes`.
pub(crate) fn size_name(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{} MB", bytes >> 20) } else { format!("{} KB", bytes >> 10) }
}

/// Measures both at all sizes.
pub(crate) fn measure(results: &mut Results, effort: f64) {
    for bytes in SIZES {
        let shared = [Mapping::shared(bytes as usize), Mapping::shared(bytes as usize)];
        let private = [Mapping::private(bytes as usize), Mapping::private(bytes as usize)];
        for (group, pair) in [(SHARED, shared), (PRIVATE, private)] {
            let [from, to] = pair.map(|mapping| mapping.expect("memory"));
            results.add(group, &size_name(bytes), Unit::MegabytesPerSecond, copies(&from, &to, bytes, effort));
        }
    }
}

/// MB/s of copying the same `bytes` again and again, as perftest sends the same buffer again and again.
fn copies(from: &Mapping, to: &Mapping, bytes: u64, effort: f64) -> f64 {
    from.touch();
    to.touch();
    let limit = Duration::from_secs_f64(0.5 * effort);
    let begin = Instant::now();
    let mut copied = 0;
    while begin.elapsed() < limit {
        for _ in 0..64 {
            from.copy_to(to, bytes as usize);
        }
        copied += 64 * bytes;
    }
    copied as f64 / begin.elapsed().as_secs_f64() / 1e6
}
