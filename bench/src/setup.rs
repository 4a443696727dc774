//! Set-up and tear-down cost of queue pairs and connections.

use crate::results::{Results, Unit};
use rdmesh_tests::{Endpoint, Lab, Options, Pair, helper};
use std::ffi::OsString;
use std::fs;
use std::time::Duration;

/// Groups of these figures.
pub(crate) const CONNECTIONS: &str = "rdmesh, rdma_cm";
pub(crate) const QUEUE_PAIRS: &str = "rdmesh, queue pairs";
/// Names of figures.
pub(crate) const RATE: &str = "connections made, used and ended";
pub(crate) const ESTABLISHED: &str = "from rdma_create_id to ESTABLISHED";
pub(crate) const LATENCY: &str = "SEND, half round trip, all of 10000 connected";
pub(crate) const FIRST_LATENCY: &str = "SEND, half round trip, 2 of 10000 connected";
pub(crate) const MEMORY: &str = "router's memory for each of 10000";

const PORT: &str = "18951";
const LIMIT: Duration = Duration::from_secs(120);

/// Connections per second with many at a time, and the time of one alone. `connections` is their total number.
pub(crate) fn connections(results: &mut Results, group: &str, pair: &Pair<'_>, connections: u64) {
    let text = connect(pair, connections, 32);
    results.add(group, RATE, Unit::PerSecond, figure(&text, "rate"));
    let time = established(pair, connections / 10);
    results.add(group, ESTABLISHED, Unit::Microseconds, time);
}

/// Time from the creation of an identifier to its connection, of `connections` one after another, in microseconds.
pub(crate) fn established(pair: &Pair<'_>, connections: u64) -> f64 {
    figure(&connect(pair, connections, 1), "established")
}

/// Makes, uses and ends connections, `flight` at a time; returns the client's report.
fn connect(pair: &Pair<'_>, connections: u64, flight: u64) -> String {
    let ((site, at), (client_site, client)) = (&pair.server, &pair.client);
    let mut server = site.start_in(at, &words("connections", &format!("server {PORT}")));
    assert_eq!(server.next_line(LIMIT), "listening");
    let arguments = format!("client {PORT} {} {connections} {flight}", pair.address);
    let text = client_site.run_in(client, LIMIT, &words("connections", &arguments)).ok().text;
    server.close_stdin();
    server.finish(LIMIT).ok();
    text
}

/// Memory of each of 10,000 queue pairs of one program, measured at a router of its own.
pub(crate) fn queue_pairs(results: &mut Results, up: Vec<String>) {
    const COUNT: u64 = 10_000;
    let lab = Lab::start_with(Options { up, ..Options::default() });
    let before = memory(&lab);
    let mut program = lab.start_in(&Endpoint::new("many"), &words("many", &COUNT.to_string()));
    while program.next_line(LIMIT) != "open" {}
    let each = (memory(&lab) - before) as f64 / COUNT as f64;
    program.close_stdin();
    let text = program.finish(LIMIT).ok().text;
    for (name, line) in [
        ("ibv_create_qp", "create"),
        ("ibv_modify_qp to INIT, RTR and RTS", "connect"),
        ("ibv_destroy_qp", "destroy"),
        (FIRST_LATENCY, "latency-first"),
        (LATENCY, "latency-all"),
    ] {
        results.add(QUEUE_PAIRS, name, Unit::Microseconds, figure(&text, line));
    }
    results.add(QUEUE_PAIRS, MEMORY, Unit::Kibibytes, each);
}

/// The router's memory in KiB: its own, and the rings that programs share with it.
fn memory(lab: &Lab) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", lab.router_pid())).expect("the router runs");
    let of =
        |name| status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse::<u64>().ok());
    ["RssAnon:", "RssShmem:"].into_iter().filter_map(of).sum()
}

fn words(program: &str, arguments: &str) -> Vec<OsString> {
    let mut words = vec![helper(program).into_os_string()];
    words.extend(arguments.split_whitespace().map(OsString::from));
    words
}

/// The number behind `name`, at the beginning of a line.
fn figure(text: &str, name: &str) -> f64 {
    let number = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    number.unwrap_or_else(|| panic!("no {name} in:\n{text}"))
}
