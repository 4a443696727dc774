//! Accelerated sockets: Redis and iperf3, unmodified, beside kernel TCP and Unix sockets.
//!
//! The ways take turns within a round, each with processes of its own. The runs of redis-benchmark are long, because it rounds its
//! time to quarters of a second.

use crate::goals::{Goal, goal};
use crate::report::number;
use crate::results::{Results, Unit};
use rdmesh_tests::{Hosts, Program, product};
use std::fmt::Write;
use std::process::Command;
use std::time::Duration;

/// A way from client to server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Tcp,
    Unix,
    /// Accelerated; threads look for data before they sleep.
    Rings,
    /// Accelerated; threads sleep at once.
    RingsNoSpin,
    /// The library is loaded, and connections stay on TCP.
    Loaded,
}

const WAYS: [Way; 5] = [Way::Tcp, Way::Unix, Way::Rings, Way::RingsNoSpin, Way::Loaded];

/// Groups of figures.
const MANY: &str = "Redis, 100 connections of 4 threads";
const ONE: &str = "Redis, 1 connection";
const SHORT: &str = "Redis, a connection for each request";
const BULK: &str = "iperf3";
/// Of programs in endpoints of two hosts.
const FAR_MANY: &str = "Redis between two hosts, 100 connections of 4 threads";
const FAR_ONE: &str = "Redis between two hosts, 1 connection";
const FAR_BULK: &str = "iperf3 between two hosts";

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "kernel TCP",
            Self::Unix => "Unix sockets",
            Self::Rings => "accelerated",
            Self::RingsNoSpin => "accelerated, without polling",
            Self::Loaded => "library loaded, on TCP",
        }
    }

    fn command(self, words: &[&str]) -> Command {
        let is_plain = matches!(self, Self::Tcp | Self::Unix);
        let mut command = if is_plain { Command::new(words[0]) } else { Command::new(product("rdmesh")) };
        let rest = if is_plain { &words[1..] } else { words };
        if !is_plain {
            command.args(["accel", "--"]);
        }
        match self {
            Self::RingsNoSpin => command.env("RDMESH_SPIN", "0"),
            Self::Loaded => command.env("RDMESH_UPGRADE", "never"),
            _ => &mut command,
        };
        command.args(rest);
        command
    }
}

/// Measures all ways.
pub(crate) fn measure(results: &mut Results, effort: f64) {
    for way in WAYS {
        redis(results, way, effort);
    }
    for way in [Way::Tcp, Way::Rings] {
        for (name, options) in [("1 stream", vec![]), ("1 stream, reverse", vec!["-R"]), ("4 streams", vec!["-P", "4"])]
        {
            let found = iperf(way, effort, &options);
            results.add(BULK, &format!("{name}, {}", way.name()), Unit::GigabitsPerSecond, found);
        }
    }
    measure_far(results, effort);
}

/// Programs in endpoints of two hosts: over VXLAN, where they are not accelerated.
fn measure_far(results: &mut Results, effort: f64) {
    let hosts = Hosts::start();
    for way in [Way::Tcp, Way::Rings] {
        let far = Far { hosts: &hosts, way, effort };
        let redis = ["redis-server", "--port", Far::PORT, "--save", "", "--protected-mode", "no"];
        let mut server = far.serve(&redis);
        let many = if way == Way::Tcp { 300_000.0 } else { 1_000_000.0 };
        for row in far.redis(&["-c", "100", "--threads", "4"], many) {
            row.add(results, FAR_MANY, way);
        }
        for row in far.redis(&["-c", "1"], many / 10.0) {
            row.add(results, FAR_ONE, way);
        }
        server.terminate(Duration::from_secs(10));
        for (name, options) in [("1 stream", vec![]), ("1 stream, reverse", vec!["-R"]), ("4 streams", vec!["-P", "4"])]
        {
            let server = far.serve(&["iperf3", "-s", "-1", "-p", Far::PORT]);
            let seconds = (4.0 * effort).max(1.0).to_string();
            let words = ["iperf3", "-c", Far::SERVER, "-p", Far::PORT, "-t", &seconds, "-J"];
            let output = far.ask(&[&words[..], &options].concat());
            server.finish(LIMIT);
            results.add(FAR_BULK, &format!("{name}, {}", way.name()), Unit::GigabitsPerSecond, received(&output));
        }
    }
}

/// A server on host 0, its clients on host 1.
struct Far<'a> {
    hosts: &'a Hosts,
    way: Way,
    effort: f64,
}

impl Far<'_> {
    const SERVER: &'static str = "10.7.0.2";
    const PORT: &'static str = "7777";

    fn start(&self, host: usize, words: &[&str]) -> Program {
        let endpoint = Hosts::endpoint(host, "blue");
        let endpoint = if self.way == Way::Rings { endpoint.with(&["--accel"]) } else { endpoint };
        self.hosts.lab(host).start_in(&endpoint, words)
    }

    fn serve(&self, words: &[&str]) -> Program {
        let mut server = self.start(0, words);
        server.wait_listening(Self::PORT.parse().expect("a port"));
        server
    }

    fn ask(&self, words: &[&str]) -> String {
        self.start(1, words).finish(LIMIT).ok().text
    }

    fn redis(&self, options: &[&str], requests: f64) -> Vec<Row> {
        let requests = ((requests * self.effort) as u64).max(1000).to_string();
        let words =
            ["redis-benchmark", "-h", Self::SERVER, "-p", Self::PORT, "--csv", "-t", "set,get", "-n", &requests];
        rows(&self.ask(&[&words[..], options].concat()))
    }
}

fn redis(results: &mut Results, way: Way, effort: f64) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (directory, socket) = (folder.path().display().to_string(), folder.path().join("redis").display().to_string());
    let port = free_port().to_string();
    let server = ["redis-server", "--port", &port, "--unixsocket", &socket, "--dir", &directory, "--save", ""];
    let mut server = Program::start(way.command(&server));
    server.wait_listening(port.parse().expect("a port"));
    let place = if way == Way::Unix { ["-s", &socket] } else { ["-p", &port] };
    let run = |options: &[&str], requests: f64| {
        let requests = ((requests * effort) as u64).max(1000).to_string();
        let words = [&["redis-benchmark", "--csv", "-t", "set,get", "-n", &requests], &place[..], options].concat();
        rows(&Program::start(way.command(&words)).finish(LIMIT).ok().text)
    };
    // As many requests as take some seconds.
    let many = if way == Way::Tcp || way == Way::Loaded { 400_000.0 } else { 3_000_000.0 };
    for row in run(&["-c", "100", "--threads", "4"], many) {
        row.add(results, MANY, way);
    }
    for row in run(&["-c", "1"], many / 10.0) {
        row.add(results, ONE, way);
    }
    if way != Way::Unix {
        for row in run(&["-c", "50", "-k", "0"], 50_000.0) {
            row.add(results, SHORT, way);
        }
    }
    server.terminate(Duration::from_secs(10));
}

/// A row of redis-benchmark.
struct Row {
    test: String,
    rate: f64,
    p50: f64,
    p99: f64,
}

impl Row {
    fn add(&self, results: &mut Results, group: &str, way: Way) {
        let name = |what: &str| format!("{}{what}, {}", self.test, way.name());
        results.add(group, &name(""), Unit::PerSecond, self.rate);
        results.add(group, &name(" p50"), Unit::Microseconds, self.p50 * 1000.0);
        results.add(group, &name(" p99"), Unit::Microseconds, self.p99 * 1000.0);
    }
}

/// Rows of the CSV: test, requests a second, and in milliseconds average, least, p50, p95, p99, most.
fn rows(text: &str) -> Vec<Row> {
    let row = |line: &str| {
        let fields: Vec<&str> = line.split(',').map(|field| field.trim_matches('"')).collect();
        let [test, rate, _, _, p50, _, p99, _] = fields[..] else { return None };
        Some(Row { test: test.into(), rate: rate.parse().ok()?, p50: p50.parse().ok()?, p99: p99.parse().ok()? })
    };
    text.lines().filter_map(row).collect()
}

/// Gb/s.
fn iperf(way: Way, effort: f64, options: &[&str]) -> f64 {
    let (port, seconds) = (free_port().to_string(), (4.0 * effort).max(1.0).to_string());
    let mut server = Program::start(way.command(&["iperf3", "-s", "-1", "-p", &port]));
    server.wait_listening(port.parse().expect("a port"));
    let words = [&["iperf3", "-c", "127.0.0.1", "-p", &port, "-t", &seconds, "-J"], options].concat();
    let output = Program::start(way.command(&words)).finish(LIMIT).ok();
    server.finish(LIMIT);
    received(&output.text)
}

/// Gb/s, of an output of iperf3.
fn received(text: &str) -> f64 {
    let report: serde_json::Value = serde_json::from_str(text).expect("iperf3 writes JSON");
    report["end"]["sum_received"]["bits_per_second"].as_f64().expect("a rate") / 1e9
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port()
}

/// Figures against their bounds.
pub(crate) fn judge(results: &Results) -> Vec<Option<Goal>> {
    let of = |group: &str, what: &str, way: Way| results.median(group, &format!("{what}, {}", way.name()));
    let over_tcp = |group: &str, what: &str, way| Some(of(group, what, way)? / of(group, what, Way::Tcp)?);
    let latency = Some(()).and_then(|()| Some(of(MANY, "SET p99", Way::Rings)? / of(MANY, "SET p50", Way::Tcp)?));
    let faster = over_tcp(ONE, "SET p50", Way::Rings).map(|ratio| 1.0 / ratio);
    vec![
        goal("SET, 100 connections, accelerated / kernel TCP", over_tcp(MANY, "SET", Way::Rings), 8.0, true),
        goal(
            "SET, 100 connections, accelerated without polling / kernel TCP",
            over_tcp(MANY, "SET", Way::RingsNoSpin),
            6.0,
            true,
        ),
        goal("SET, 100 connections, p99 accelerated / p50 of kernel TCP", latency, 1.0, false),
        goal("SET, 1 connection, kernel TCP's p50 / accelerated", faster, 3.0, true),
        goal("a connection for each SET, accelerated / kernel TCP", over_tcp(SHORT, "SET", Way::Rings), 0.98, true),
        goal("SET, 100 connections, library loaded / kernel TCP", over_tcp(MANY, "SET", Way::Loaded), 0.99, true),
        goal("iperf3, 1 stream, accelerated / kernel TCP", over_tcp(BULK, "1 stream", Way::Rings), 2.0, true),
        goal(
            "two hosts: SET, 100 connections, accelerated / kernel TCP",
            over_tcp(FAR_MANY, "SET", Way::Rings),
            2.5,
            true,
        ),
        goal(
            "two hosts: SET, 100 connections, p99 accelerated / kernel TCP",
            over_tcp(FAR_MANY, "SET p99", Way::Rings),
            1.0,
            false,
        ),
    ]
}

/// Tables for the page.
pub(crate) fn page(results: &Results) -> String {
    let mut text = String::new();
    for group in [MANY, ONE, SHORT, BULK, FAR_MANY, FAR_ONE, FAR_BULK] {
        let _ = writeln!(text, "\n| {group} | median | of the rounds |\n|---|---|---|");
        for figure in results.figures.iter().filter(|figure| figure.group == group) {
            let [least, most] =
                [f64::min, f64::max].map(|pick| figure.samples.iter().copied().reduce(pick).unwrap_or(0.0));
            let unit = figure.unit.name();
            let _ = writeln!(
                text,
                "| {} | {} {unit} | {} to {} |",
                figure.name,
                number(figure.median),
                number(least),
                number(most)
            );
        }
    }
    text
}

const LIMIT: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_redis_benchmark_are_understood() {
        let text = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"\n\
                    \"SET\",\"75000.00\",\"1.2\",\"0.1\",\"1.271\",\"2.0\",\"3.5\",\"9.0\"\n";
        let rows = rows(text);
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].test.as_str(), rows[0].rate, rows[0].p50, rows[0].p99), ("SET", 75000.0, 1.271, 3.5));
    }
}
