//! UCX between two processes: over shared memory, and over TCP on the loopback device.

use crate::SIZES;
use crate::copy::size_name;
use crate::results::{Results, Unit};
use rdmesh_tests::Program;
use std::process::Command;
use std::time::Duration;

/// Groups of figures, the transports that each allows UCX to use, and the test: one-sided puts, which the sender copies
/// by itself, and tagged messages, for which both sides work.
pub(crate) const GROUPS: [(&str, &str, &str); 3] = [
    ("UCX put, shared memory", "posix,sysv,cma,self", "ucp_put_bw"),
    ("UCX messages, shared memory", "posix,sysv,cma,self", "tag_bw"),
    ("UCX messages, TCP", "tcp,self", "tag_bw"),
];
/// Name of the latency figure.
pub(crate) const LATENCY: &str = "2 B half round trip";

const PORT: u16 = 18_950;
const LIMIT: Duration = Duration::from_secs(120);

/// Measures both, when `ucx_perftest` is installed.
pub(crate) fn measure(results: &mut Results, effort: f64) {
    if Command::new("ucx_perftest").arg("-h").output().is_err() {
        eprint!("(no ucx_perftest: UCX is left out) ");
        return;
    }
    for (group, transports, test) in GROUPS {
        let latency = if test == "tag_bw" { "tag_lat" } else { "ucp_put_lat" };
        let columns = run(transports, latency, 2, (50_000.0 * effort) as u64);
        results.add(group, LATENCY, Unit::Microseconds, columns[0]);
        for bytes in SIZES {
            let messages = (((2 << 30) as f64 * effort) as u64 / bytes).clamp(200, 100_000);
            // UCX counts in 2^20 bytes.
            let megabytes = run(transports, test, bytes, messages)[4] * 1.048_576;
            results.add(group, &size_name(bytes), Unit::MegabytesPerSecond, megabytes);
        }
    }
}

/// The columns of the final line but the first: typical, average and overall latency, average and overall bandwidth, and
/// message rate.
fn run(transports: &str, test: &str, bytes: u64, iterations: u64) -> Vec<f64> {
    let command = |more: &[&str]| {
        let mut command = Command::new("ucx_perftest");
        command
            .env("UCX_TLS", transports)
            .env("UCX_WARN_UNUSED_ENV_VARS", "n")
            .args(["-p", &PORT.to_string()])
            .args(more);
        command
    };
    let mut server = Program::start(command(&[]));
    server.wait_listening(PORT);
    let (bytes, iterations) = (bytes.to_string(), iterations.to_string());
    let client = Program::start(command(&["-t", test, "-s", &bytes, "-n", &iterations, "-w", "100", "127.0.0.1"]));
    let text = client.finish(LIMIT).ok().text;
    server.terminate(LIMIT);
    let last = text.lines().rev().find_map(|line| line.trim().strip_prefix("Final:"));
    let columns: Vec<f64> = last.unwrap_or_default().split_whitespace().filter_map(|c| c.parse().ok()).collect();
    assert!(columns.len() >= 8, "ucx_perftest said:\n{text}");
    columns[1..].to_vec()
}
