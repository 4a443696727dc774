//! Scale: many connections, one after the other and at once; they work, and nothing of them stays behind.

use rdmesh_tests::{Endpoint, Hosts, Lab, Program, TICK, helper, system, until};
use std::ffi::OsString;
use std::fs;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(120);
const SERVER: &str = "10.7.0.2";
const PORT: &str = "7471";

fn words(program: &str, arguments: &str) -> Vec<OsString> {
    let mut words = vec![helper(program).into_os_string()];
    words.extend(arguments.split_whitespace().map(OsString::from));
    words
}

/// Resources of a router, as its system counts them and as it reports them.
#[derive(Clone, Copy, Debug)]
struct Holdings {
    descriptors: usize,
    mappings: usize,
    /// Private memory, in KiB.
    memory: u64,
}

impl Holdings {
    fn of(lab: &Lab) -> Self {
        let proc = format!("/proc/{}", lab.router_pid());
        let read = |file: &str| fs::read_to_string(format!("{proc}/{file}")).expect("the router runs");
        let status = read("status");
        let memory =
            status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.split_whitespace().next()?.parse().ok());
        Self {
            descriptors: fs::read_dir(format!("{proc}/fd")).expect("the router runs").count(),
            mappings: read("maps").lines().count(),
            memory: memory.expect("a number"),
        }
    }

    /// Waits until the router holds no more than it did when it held this.
    fn expect_again(&self, lab: &Lab) {
        lab.wait_until_empty();
        for gauge in GAUGES {
            until(LIMIT, gauge, || (lab.metric(gauge) == 0.0).then_some(()));
        }
        // Memory that the allocator and the threads of the API keep for reuse.
        let (spare_mappings, spare_memory) = (24, 6 << 10);
        let mut now = Self::of(lab);
        let begin = Instant::now();
        // Descriptors are closed by a thread of the endpoint's.
        while now.descriptors > self.descriptors && begin.elapsed() < LIMIT {
            std::thread::sleep(TICK);
            now = Self::of(lab);
        }
        println!("before: {self:?}, now: {now:?}");
        assert!(now.descriptors <= self.descriptors, "{now:?}, not {self:?}");
        assert!(now.mappings <= self.mappings + spare_mappings, "{now:?}, not {self:?}");
        assert!(now.memory <= self.memory + spare_memory, "{now:?}, not {self:?}");
    }
}

/// Gauges that are zero without programs.
const GAUGES: [&str; 7] = [
    "rdmesh_objects",
    "rdmesh_cm_channels",
    "rdmesh_cm_ids",
    "rdmesh_cm_listeners",
    "rdmesh_cm_waiting_events",
    "rdmesh_cm_connections",
    "rdmesh_cm_time_wait",
];

fn start_server(lab: &Lab, endpoint: &Endpoint) -> Program {
    let mut server = lab.start_in(endpoint, &words("connections", &format!("server {PORT}")));
    assert_eq!(server.next_line(LIMIT), "listening");
    server
}

/// Ends a server; returns how many connections it had.
fn end_server(mut server: Program) -> u64 {
    server.close_stdin();
    let text = server.finish(LIMIT).ok().text;
    figure(&text, "served") as u64
}

/// The number behind `name`, at the beginning of a line.
fn figure(text: &str, name: &str) -> f64 {
    let number = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    number.unwrap_or_else(|| panic!("no {name} in:\n{text}"))
}

#[test]
fn thousands_of_connections_leave_nothing_behind() {
    let lab = Lab::start();
    let (a, b) = (Endpoint::at("a", "blue", SERVER), Endpoint::at("b", "blue", "10.7.0.3"));
    let run = |count: u64, how: &str| {
        let server = start_server(&lab, &a);
        let client = lab.run_in(&b, LIMIT, &words("connections", &how.replace("COUNT", &count.to_string()))).ok();
        assert_eq!(end_server(server), count, "{}", client.text);
        println!("{count} connections, {} a second", figure(&client.text, "rate"));
    };
    let (asynchronous, synchronous) =
        (format!("client {PORT} {SERVER} COUNT 32"), format!("sync {PORT} {SERVER} COUNT"));
    // The first ones show what the router keeps once and for all.
    run(200, &asynchronous);
    run(50, &synchronous);
    lab.wait_until_empty();
    let before = Holdings::of(&lab);
    run(5000, &asynchronous);
    run(500, &synchronous);
    before.expect_again(&lab);
    assert_eq!(lab.metric("rdmesh_objects_reclaimed_total"), 0.0, "the programs destroyed all that they made");
}

#[test]
fn a_client_that_is_killed_leaves_nothing_behind() {
    let lab = Lab::start();
    let (a, b) = (Endpoint::at("a", "blue", SERVER), Endpoint::at("b", "blue", "10.7.0.3"));
    let client = words("connections", &format!("client {PORT} {SERVER} 1000000 32"));
    let kill_one = || {
        let accepted = || lab.metric("rdmesh_objects_created_total");
        let begin = accepted();
        let mut client = lab.start_in(&b, &client);
        until(LIMIT, "connections come and go", || (accepted() > begin + 1000.0).then_some(()));
        client.kill();
    };
    let server = start_server(&lab, &a);
    kill_one();
    end_server(server);
    lab.wait_until_empty();
    let before = Holdings::of(&lab);
    let server = start_server(&lab, &a);
    (0..3).for_each(|_| kill_one());
    // The server is told of each of them, and goes on.
    let last = lab.run_in(&b, LIMIT, &words("connections", &format!("client {PORT} {SERVER} 100 8")));
    last.ok();
    end_server(server);
    before.expect_again(&lab);
}

#[test]
fn connections_between_hosts_leave_nothing_behind() {
    let hosts = Hosts::start();
    let (a, b) = (Hosts::endpoint(0, "blue"), Hosts::endpoint(1, "blue"));
    let run = |count: u64| {
        let server = start_server(hosts.lab(0), &a);
        let client = words("connections", &format!("client {PORT} {} {count} 16", Hosts::ip(0)));
        let text = hosts.lab(1).run_in(&b, LIMIT, &client).ok().text;
        assert_eq!(end_server(server), count);
        println!("{count} connections, {} a second", figure(&text, "rate"));
    };
    run(100);
    (0..2).for_each(|number| hosts.lab(number).wait_until_empty());
    let before = [0, 1].map(|number| Holdings::of(hosts.lab(number)));
    run(1000);
    (0..2).for_each(|number| before[number].expect_again(hosts.lab(number)));
}

#[test]
fn ten_thousand_queue_pairs_are_open_at_once() {
    const COUNT: usize = 10_000;
    let lab = Lab::start();
    let run = |count: usize| {
        let mut program = lab.start_in(&Endpoint::at("a", "blue", SERVER), &words("many", &count.to_string()));
        wait_open(&mut program);
        program
    };
    let end = |mut program: Program| {
        program.close_stdin();
        let text = program.finish(LIMIT).ok().text;
        println!("{}", text.lines().collect::<Vec<_>>().join(", "));
        text
    };
    end(run(COUNT));
    lab.wait_until_empty();
    let before = Holdings::of(&lab);
    let program = run(COUNT);
    let open = Holdings::of(&lab);
    println!("before: {before:?}, with {COUNT} queue pairs: {open:?}");
    assert!(open.descriptors < before.descriptors + 20, "none for each queue pair");
    assert!(open.mappings < before.mappings + COUNT / 50, "none for each queue pair");
    assert!(open.memory < before.memory + COUNT as u64 * 8, "8 KiB for each queue pair");
    let idle = idle_share(&lab);
    println!("idle: {:.3} % of a core", idle * 100.0);
    assert!(idle < 0.01, "{:.2} % of a core for {COUNT} idle queue pairs", idle * 100.0);
    let text = end(program);
    let (first, all) = (figure(&text, "latency-first"), figure(&text, "latency-all"));
    // As far as a busy machine shows it.
    assert!(all < first * 10.0 + 50.0, "{all} us with {COUNT} queue pairs, {first} us with two");
    before.expect_again(&lab);
}

#[test]
fn ten_thousand_queue_pairs_of_several_endpoints_are_connected() {
    const EACH: usize = 2500;
    let lab = Lab::start();
    let before = Holdings::of(&lab);
    let at = |number: usize| Endpoint::at(&format!("e{number}"), "blue", &format!("10.7.0.{}", number + 2));
    let mut programs = Vec::new();
    for pair in 0..2 {
        let port = 7400 + pair;
        programs.push(lab.start_in(&at(2 * pair), &words("many", &format!("{EACH} listen {port}"))));
        let address = format!("10.7.0.{}", 2 * pair + 2);
        programs.push(lab.start_in(&at(2 * pair + 1), &words("many", &format!("{EACH} connect {port} {address}"))));
    }
    programs.iter_mut().for_each(wait_open);
    println!("before: {before:?}, with {} queue pairs: {:?}", 4 * EACH, Holdings::of(&lab));
    // Killed together: all is taken back.
    programs.iter_mut().for_each(Program::kill);
    lab.wait_until_empty();
    assert_eq!(lab.metric("rdmesh_objects"), 0.0);
    assert!(lab.metric("rdmesh_objects_reclaimed_total") >= 4.0 * EACH as f64);
}

fn wait_open(program: &mut Program) {
    while program.next_line(LIMIT) != "open" {}
}

/// Fraction of a processor that an idle router uses.
fn idle_share(lab: &Lab) -> f64 {
    let router = lab.router_pid();
    // It falls asleep a moment after the last message.
    std::thread::sleep(Duration::from_millis(500));
    let (before, begin) = (system::cpu_seconds(router), Instant::now());
    std::thread::sleep(Duration::from_secs(2));
    (system::cpu_seconds(router) - before) / begin.elapsed().as_secs_f64()
}
