//! rdmesh itself: perftest's programs, unmodified, between two endpoints.

use crate::SIZES;
use crate::copy::size_name;
use crate::results::{Results, Unit};
use crate::tcp;
use rdmesh_tests::{Endpoint, Lab, Options, bandwidth_rows, helper, latency_rows, system, trace};
use std::ffi::OsString;
use std::time::{Duration, Instant};

/// Groups of these figures.
pub(crate) const LATENCY: &str = "rdmesh, latency, 2 B";
pub(crate) const EVENTS: &str = "rdmesh, latency with events, 2 B";
pub(crate) const WRITE: &str = "rdmesh WRITE";
pub(crate) const SEND: &str = "rdmesh SEND";
pub(crate) const READ: &str = "rdmesh READ";
pub(crate) const RATE: &str = "rdmesh, message rate, 2 B";
pub(crate) const PAIRS: &str = "rdmesh WRITE, 8 KB, by queue pairs";
pub(crate) const COST: &str = "rdmesh, cost";

const SERVER: &str = "10.7.0.2";
const PORT: u16 = 18_515;
const LIMIT: Duration = Duration::from_secs(120);

struct Bench {
    lab: Lab,
    server: Endpoint,
    client: Endpoint,
    effort: f64,
}

/// Measures everything once, with a fresh router.
pub(crate) fn measure(results: &mut Results, effort: f64, mode: &str) {
    let lab = Lab::start_with(Options { up: up(mode), ..Options::default() });
    let (server, client) = (Endpoint::at("server", "bench", SERVER), Endpoint::at("client", "bench", "10.7.0.3"));
    let bench = Bench { lab, server, client, effort };
    bench.tcp(results);
    bench.latencies(results);
    bench.bandwidths(results);
    bench.queue_pairs(results);
    bench.system_calls(results, mode);
    bench.idle(results);
}

fn up(mode: &str) -> Vec<String> {
    vec!["--mode".to_owned(), mode.to_owned()]
}

impl Bench {
    /// Runs a perftest program on both sides with about `messages` iterations, less in a quick run.
    fn perftest(&self, program: &str, messages: u64, options: &str) -> String {
        // In whole rounds of 100, after which perftest asks for a completion: with several queue pairs it counts wrongly
        // and may wait for ever when the last round is shorter.
        let messages = ((messages as f64 * self.effort) as u64 / 100).max(1) * 100;
        let command = |address: &str| format!("exec {program} -F -p {PORT} -n {messages} {options} {address}");
        let (server, client) = (command(""), command(SERVER));
        let (server, client) = (["sh", "-c", server.as_str()], ["sh", "-c", client.as_str()]);
        self.lab.pair((&self.server, &server), (&self.client, &client), PORT, LIMIT).1.text
    }

    /// MB/s and million messages per second.
    fn bandwidth(&self, program: &str, messages: u64, options: &str) -> (f64, f64) {
        let text = self.perftest(program, messages, &format!("-N {options}"));
        let rows = bandwidth_rows(&text);
        let row = rows.first().unwrap_or_else(|| panic!("no figures of {program} {options}:\n{text}"));
        // perftest counts in 2^20 bytes.
        (row.figures[1] * 1.048_576, row.figures[2])
    }

    /// The typical figure in microseconds.
    fn latency(&self, program: &str, messages: u64, options: &str) -> f64 {
        let text = self.perftest(program, messages, options);
        let rows = latency_rows(&text);
        rows.first().unwrap_or_else(|| panic!("no figures of {program} {options}:\n{text}")).figures[2]
    }

    fn tcp(&self, results: &mut Results) {
        let program = std::env::current_exe().expect("this program has a path").display().to_string();
        let port = tcp::PORT.to_string();
        let mut server = self.lab.start_in(&self.server, &[program.as_str(), "tcp-server", &port]);
        server.wait_listening(tcp::PORT);
        tcp::measure_with(results, tcp::VETH, self.effort, |size, seconds| {
            let client = [program.as_str(), "tcp-client", &format!("{SERVER}:{port}"), &size, &seconds];
            self.lab.run_in(&self.client, LIMIT, &client).ok().text
        });
        server.kill();
    }

    fn latencies(&self, results: &mut Results) {
        // perftest halves the round trip of SEND and WRITE; READ and atomics have none to halve.
        for (name, program, options) in [
            ("SEND, half round trip", "ib_send_lat", "-s 2"),
            ("WRITE, half round trip", "ib_write_lat", "-s 2"),
            ("READ", "ib_read_lat", "-s 2"),
            ("FETCH_ADD", "ib_atomic_lat", "-A FETCH_AND_ADD"),
        ] {
            results.add(LATENCY, name, Unit::Microseconds, self.latency(program, 100_000, options));
        }
        for (name, program) in [("SEND, half round trip", "ib_send_lat"), ("READ", "ib_read_lat")] {
            results.add(EVENTS, name, Unit::Microseconds, self.latency(program, 20_000, "-e -s 2"));
        }
    }

    fn bandwidths(&self, results: &mut Results) {
        for (group, program) in [(WRITE, "ib_write_bw"), (SEND, "ib_send_bw"), (READ, "ib_read_bw")] {
            for bytes in SIZES {
                // Enough for about half a second: what the scheduler does in some milliseconds must not count.
                let messages = ((32 << 30) / bytes).min(2_000_000);
                let megabytes = self.bandwidth(program, messages, &format!("-s {bytes}")).0;
                results.add(group, &size_name(bytes), Unit::MegabytesPerSecond, megabytes);
            }
        }
        for (name, program) in [("WRITE", "ib_write_bw"), ("SEND", "ib_send_bw"), ("READ", "ib_read_bw")] {
            results.add(RATE, name, Unit::MillionPerSecond, self.bandwidth(program, 2_000_000, "-s 2").1);
        }
    }

    fn queue_pairs(&self, results: &mut Results) {
        for pairs in [1, 8, 64, 512] {
            let megabytes = self.bandwidth("ib_write_bw", 1_024_000 / pairs, &format!("-s 8192 -q {pairs}")).0;
            results.add(PAIRS, &pairs.to_string(), Unit::MegabytesPerSecond, megabytes);
        }
    }

    /// With a router of its own, which strace slows down.
    fn system_calls(&self, results: &mut Results, mode: &str) {
        // Many even in a quick run, since setting up counts too.
        let messages = 300_000;
        let mut lab = Lab::start_with(Options { up: up(mode), traced: true, ..Options::default() });
        let table = lab.dir().with_file_name("strace.client");
        let program = format!("ib_write_bw -F -N -p {PORT} -s 2048 -n {messages}");
        let server: Vec<OsString> = program.split(' ').map(OsString::from).collect();
        let mut client: Vec<OsString> = trace::strace(&table);
        client.extend(server.iter().cloned().chain([SERVER.into()]));
        lab.pair((&self.server, &server), (&self.client, &client), PORT, LIMIT);
        for (name, calls) in
            [("system calls, client", trace::total(&table)), ("system calls, router", lab.end_traced())]
        {
            results.add(COST, name, Unit::PerMessage, calls as f64 / f64::from(messages));
        }
    }

    fn idle(&self, results: &mut Results) {
        let mut idle = self.lab.start_in(&Endpoint::new("idle"), &[helper("idle").into_os_string(), "64".into()]);
        assert_eq!(idle.next_line(LIMIT), "idle");
        let router = self.lab.router_pid();
        // It falls asleep a moment after the last message.
        std::thread::sleep(Duration::from_millis(500));
        let (before, begin) = (system::cpu_seconds(router), Instant::now());
        std::thread::sleep(Duration::from_secs_f64(4.0 * self.effort.max(0.25)));
        let share = (system::cpu_seconds(router) - before) / begin.elapsed().as_secs_f64() * 100.0;
        results.add(COST, "router with 64 idle contexts", Unit::PercentOfCore, share);
        idle.close_stdin();
        idle.finish(LIMIT).ok();
    }
}
