//! Chains: gets of a value and walks of a list that the server's NIC executes, beside other ways to the same end.
//!
//! The program `measure` of the tests takes the times: all ways of a figure by turns, with the same client.

use crate::device;
use crate::goals::{Goal, goal};
use crate::hosts::ETHERNET;
use crate::report::number;
use crate::results::{Results, Unit};
use rdmesh_tests::{Endpoint, Hosts, Lab, Options, chain_program};
use std::ffi::OsString;
use std::fmt::Write;
use std::process::Command;
use std::time::Duration;

/// Groups of figures.
pub(crate) const ONE_HOST: &str = "chains, one host";
pub(crate) const TWO_HOSTS: &str = "chains, two hosts";
const PARTITIONED: &str = "chains, one host, the server on a processor of its own";
const ORDERS: &str = "chains of NOPs";

/// Ways to get a value.
pub(crate) const WAYS: [&str; 6] =
    ["one READ", "chain, LOCAL", "chain, portable", "one-sided", "two-sided, polling", "two-sided, events"];
/// Ways to find a value in a list.
const WALKS: [&str; 4] = ["chain, unrolled", "chain, break", "chain, loop", "one-sided"];
const SIZES: [u32; 6] = [64, 256, 1024, 4096, 16384, 65536];
const WRITERS: &str = "beside writers, 64 B";
const P99: &str = ", p99";

/// Measures on one host, with fresh routers.
pub(crate) fn measure_one_host(results: &mut Results, effort: f64, mode: &str) {
    let start = || Lab::start_with(Options { up: device::up(mode), ..Options::default() });
    let lab = start();
    let ends = [(&lab, endpoint("server", SERVER)), (&lab, endpoint("client", "10.7.0.3"))];
    let orders = lab.run_in(&ends[0].1, LIMIT, &words(&["orders", &samples(effort)])).ok().text;
    add(results, ORDERS, &orders);
    compare(results, ONE_HOST, &ends, &[], effort, false);
    drop(lab);
    // The client and its NIC on one processor, the server's program on the other: the paper's client is another machine.
    let lab = start();
    let router = lab.router_pid().to_string();
    let pinned =
        Command::new("taskset").args(["-a", "-p", "-c", "0", &router]).output().expect("taskset of util-linux");
    assert!(pinned.status.success(), "{}", String::from_utf8_lossy(&pinned.stderr));
    let ends = [(&lab, endpoint("server", SERVER)), (&lab, endpoint("client", "10.7.0.3"))];
    compare(results, PARTITIONED, &ends, &["1", "0"], effort, true);
}

/// Measures between two hosts.
pub(crate) fn measure_two_hosts(results: &mut Results, effort: f64, mode: &str) {
    let hosts = Hosts::start_with(ETHERNET.mtu(), Options { up: device::up(mode), ..Options::default() });
    let pair = hosts.pair();
    compare(results, TWO_HOSTS, &[pair.server, pair.client], &[], effort, false);
}

/// Has the program compare all ways, or only those beside writers.
fn compare(
    results: &mut Results,
    group: &str,
    [(server, at), (client, from)]: &[(&Lab, Endpoint); 2],
    processors: &[&str],
    effort: f64,
    only_writers: bool,
) {
    let on = |number: usize, mut command: Vec<OsString>| {
        if let Some(processor) = processors.get(number) {
            command.splice(0..0, ["taskset", "-c", processor].map(OsString::from));
        }
        command
    };
    let mut running = server.start_in(at, &on(0, words(&[])));
    assert_eq!(running.next_line(LIMIT), "listening");
    let samples = samples(effort);
    let mut arguments = vec!["client", SERVER, &samples];
    arguments.extend(only_writers.then_some("writers"));
    let output = client.run_in(from, LIMIT, &on(1, words(&arguments)));
    assert!(output.status.success(), "the client:\n{}\nthe server:\n{}", output.text, running.text());
    add(results, group, &output.text);
    running.kill();
}

/// Adds the program's figures: a name, the median and the 99th percentile in each line.
fn add(results: &mut Results, group: &str, text: &str) {
    for line in text.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [name, median, p99] = fields[..] else { panic!("no figure: {line}") };
        let [median, p99] = [median, p99].map(|figure| figure.parse().expect("a number"));
        results.add(group, name, Unit::Microseconds, median);
        results.add(group, &format!("{name}{P99}"), Unit::Microseconds, p99);
    }
}

/// Ratios against their bounds.
pub(crate) fn judge(results: &Results) -> Vec<Option<Goal>> {
    let of = |group: &str, name: &str| results.median(group, name);
    let way = |group, size: u32, way: usize| of(group, &format!("get, {size} B: {}", WAYS[way]));
    let ratio = |a: Option<f64>, b: Option<f64>| Some(a? / b?);
    let mut goals = Vec::new();
    for size in [4096, 16384, 65536] {
        let text = format!("two hosts: get of {size} B by a LOCAL chain / one READ");
        goals.push(goal(&text, ratio(way(TWO_HOSTS, size, 1), way(TWO_HOSTS, size, 0)), 1.05, false));
    }
    let text = "two hosts: get of 64 B one-sided / by a LOCAL chain";
    goals.push(goal(text, ratio(way(TWO_HOSTS, 64, 3), way(TWO_HOSTS, 64, 1)), 1.5, true));
    let text = "two hosts: get of 64 B by a LOCAL chain / two-sided, polling";
    goals.push(goal(text, ratio(way(TWO_HOSTS, 64, 1), way(TWO_HOSTS, 64, 4)), 1.0, false));
    let p99 = |way: usize| of(PARTITIONED, &format!("{WRITERS}: {}{P99}", WAYS[way]));
    let text = "server busy with writing: p99 of a get of 64 B two-sided, events / by a LOCAL chain";
    goals.push(goal(text, ratio(p99(5), p99(1)), 35.0, true));
    goals
}

/// Tables for the page.
pub(crate) fn page(results: &Results) -> String {
    let mut text = String::from("\n![Gets by chain and by other ways](chains.svg)\n");
    for group in [ONE_HOST, TWO_HOSTS] {
        let sizes = SIZES.map(|size| (format!("get, {size} B"), format!("{size} B")));
        table(&mut text, results, group, "get, µs: median (p99)", &WAYS, &sizes);
        let walks: Vec<_> = (1..=8).map(|key| (format!("list, key {key} of 8"), format!("key {key} of 8"))).collect();
        table(&mut text, results, group, "list of 8, µs: median (p99)", &WALKS, &walks);
        table(&mut text, results, group, "µs: median (p99)", &WAYS, &[(WRITERS.to_owned(), WRITERS.to_owned())]);
    }
    let writers = [(WRITERS.to_owned(), WRITERS.to_owned())];
    table(&mut text, results, PARTITIONED, "µs: median (p99)", &WAYS, &writers);
    let counts: Vec<_> = [1, 4, 16, 64].map(|count| (format!("{count} NOPs"), format!("{count} NOPs"))).into();
    let orders = ["queue order", "completion order", "doorbell order"];
    table(&mut text, results, ORDERS, "µs: median (p99)", &orders, &counts);
    let slope = |order: &str| {
        let [few, many] = [1, 64].map(|count| results.median(ORDERS, &format!("{count} NOPs: {order}")));
        Some((many? - few?) / 63.0)
    };
    if let [Some(queue), Some(completion), Some(doorbell)] = orders.map(slope) {
        let [a, b] = [completion / queue, doorbell / queue].map(number);
        let _ = writeln!(text, "\nSlopes, from 1 to 64: {} µs a NOP in queue order; 1 : {a} : {b}.", number(queue));
    }
    text
}

fn table(text: &mut String, results: &Results, group: &str, what: &str, ways: &[&str], rows: &[(String, String)]) {
    let _ = writeln!(text, "\n| {group}: {what} | {} |\n|---{}|", ways.join(" | "), "|---".repeat(ways.len()));
    for (figure, row) in rows {
        let cell = |way: &&str| {
            let name = format!("{figure}: {way}");
            let [median, p99] = [results.median(group, &name), results.median(group, &format!("{name}{P99}"))];
            median.zip(p99).map_or_else(String::new, |(median, p99)| format!("{} ({})", number(median), number(p99)))
        };
        let cells: Vec<String> = ways.iter().map(cell).collect();
        let _ = writeln!(text, "| {row} | {} |", cells.join(" | "));
    }
}

fn words(arguments: &[&str]) -> Vec<OsString> {
    std::iter::once(chain_program("measure").into_os_string()).chain(arguments.iter().map(OsString::from)).collect()
}

fn endpoint(name: &str, ip: &str) -> Endpoint {
    Endpoint::at(name, "bench", ip)
}

fn samples(effort: f64) -> String {
    ((3000.0 * effort) as u32).max(60).to_string()
}

const SERVER: &str = "10.7.0.2";
const LIMIT: Duration = Duration::from_secs(300);
