//! Accelerated connections between endpoints, on one host and on two: the endpoints' relays carry them.

use crate::{LIMIT, rounds};
use rdmesh_tests::{Endpoint, Hosts, Lab, Output, Program, until};
use serde_json::Value;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

const PORT: u16 = 7777;

/// The program of known bytes, with arguments.
fn streams(arguments: &[&str]) -> Vec<String> {
    script("streams.py", arguments)
}

/// The program that measures how evenly connections are served, with arguments.
fn shares(arguments: &[&str]) -> Vec<String> {
    script("shares.py", arguments)
}

fn script(name: &str, arguments: &[&str]) -> Vec<String> {
    let program = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("programs/sockets").join(name);
    let program = program.display().to_string();
    ["python3", &program].iter().chain(arguments).map(|word| (*word).to_owned()).collect()
}

/// Two endpoints whose programs are accelerated.
struct Ends<'a> {
    server: (&'a Lab, Endpoint),
    client: (&'a Lab, Endpoint),
}

impl<'a> Ends<'a> {
    fn of_hosts(hosts: &'a Hosts) -> Self {
        let end = |number| (hosts.lab(number), Hosts::endpoint(number, "blue").with(&["--accel"]));
        Self { server: end(0), client: end(1) }
    }

    fn of_one_host(lab: &'a Lab) -> Self {
        let end = |name, ip| (lab, Endpoint::at(name, "blue", ip).with(&["--accel"]));
        Self { server: end("server", "10.7.0.2"), client: end("client", "10.7.0.3") }
    }

    fn serve(&self, command: &[String]) -> Program {
        let mut server = self.server.0.start_in(&self.server.1, command);
        server.wait_listening(PORT);
        server
    }

    fn start_client(&self, command: &[String]) -> Program {
        self.client.0.start_in(&self.client.1, command)
    }

    fn ask(&self, command: &[String]) -> Output {
        self.start_client(command).finish(LIMIT)
    }

    /// Bytes that the server's host has sent to another one over RDMA: there are no programs that do but the relays.
    fn sent_bytes(&self) -> f64 {
        self.server.0.metric("rdmesh_io_sent_bytes_total")
    }

    /// Both ends exchange known bytes on so many connections; `meanwhile` is called while they do.
    fn exchange(&self, connections: u32, megabytes: u32, meanwhile: impl FnOnce()) {
        let (port, connections, megabytes) = (PORT.to_string(), connections.to_string(), megabytes.to_string());
        let server = self.serve(&streams(&["serve", &port, &connections, &megabytes]));
        let client = self.start_client(&streams(&["connect", "10.7.0.2", &port, &connections, &megabytes]));
        meanwhile();
        for end in [client, server] {
            let output = end.finish(LIMIT);
            assert!(output.status.success() && output.text.contains("streams are right"), "{}", output.text);
        }
    }
}

#[test]
fn every_byte_arrives_between_endpoints_of_one_host() {
    let lab = Lab::start();
    let ends = Ends::of_one_host(&lab);
    ends.exchange(10, rounds(20, 50) as u32, || {
        until(LIMIT, "bytes go over the device", || (lab.messages() > 50).then_some(()));
    });
}

#[test]
fn every_byte_arrives_between_hosts_also_where_packets_are_lost() {
    let hosts = Hosts::start();
    let ends = Ends::of_hosts(&hosts);
    // Where relays are slow to start, so much has gone by TCP before there are rings.
    let has_relayed = || {
        ends.exchange(10, rounds(4, 50) as u32, || ());
        ends.sent_bytes() > 10e6
    };
    assert!((0..5).any(|_| has_relayed()), "{} bytes of 200 million went over RDMA", ends.sent_bytes());
    hosts.set_faults("loss=1%,reorder=1%,duplicate=1%,seed=7");
    ends.exchange(5, 1, || ());
}

/// The router of either host is killed while bytes are on their way: both ends go on over TCP.
#[test]
fn connections_outlive_a_router() {
    for killed in [0, 1] {
        let hosts = Hosts::start();
        let ends = Ends::of_hosts(&hosts);
        let lab = hosts.lab(killed);
        ends.exchange(5, rounds(20, 200) as u32, || {
            until(LIMIT, "bytes go over RDMA", || (ends.sent_bytes() > 2e6).then_some(()));
            rdmesh_tests::system::kill(lab.router_pid());
        });
        lab.up_again();
    }
}

/// A router is killed at the moment at which many connections move to rings: of each direction both ends agree where its bytes are.
#[test]
fn connections_outlive_a_router_that_ends_as_they_move() {
    for killed in [0, 1] {
        let hosts = Hosts::start();
        let ends = Ends::of_hosts(&hosts);
        let lab = hosts.lab(killed);
        for _ in 0..rounds(2, 20) {
            let before = ends.sent_bytes();
            ends.exchange(60, 1, || {
                until(LIMIT, "bytes go over RDMA", || (ends.sent_bytes() > before + 1e5).then_some(()));
                rdmesh_tests::system::kill(lab.router_pid());
            });
            lab.up_again();
            hosts.wait_for_sessions();
        }
    }
}

/// A reader that pauses, with TCP's queue and the ring full of what it has not read, while its router is killed.
#[test]
fn a_connection_whose_reader_pauses_outlives_a_router() {
    let hosts = Hosts::start();
    let ends = Ends::of_hosts(&hosts);
    let port = PORT.to_string();
    let mut server = ends.serve(&streams(&["fill", &port, "8"]));
    let resume = hosts.lab(1).shared().join("resume");
    std::fs::create_dir_all(hosts.lab(1).shared()).expect("the folder is ours");
    let client = ends.start_client(&streams(&["pause", "10.7.0.2", &port, "8", &resume.display().to_string()]));
    assert_eq!(server.next_line(LIMIT), "full");
    assert!(ends.sent_bytes() > 1e4, "bytes go over RDMA");
    rdmesh_tests::system::kill(hosts.lab(0).router_pid());
    // Longer than anybody waits.
    std::thread::sleep(Duration::from_secs(3));
    std::fs::write(&resume, "").expect("the folder is ours");
    let output = client.finish(LIMIT);
    assert!(output.status.success() && output.text.contains("8 streams are right"), "{}", output.text);
    server.finish(LIMIT).ok();
    hosts.lab(0).up_again();
}

/// The router of either host is killed and started again, twice: connections go on over TCP, and come back to rings.
#[test]
fn connections_come_back_to_rings_with_the_router() {
    for killed in [0, 1] {
        let hosts = Hosts::start();
        let ends = Ends::of_hosts(&hosts);
        let stop = hosts.lab(1).shared().join("stop").display().to_string();
        let (port, number) = (PORT.to_string(), rounds(4, 30).to_string());
        let server = ends.serve(&streams(&["mirror", &port, &number]));
        let client = ends.start_client(&streams(&["quiz", "10.7.0.2", &port, &number, &stop]));
        let goes_by_rdma = |why: &str| {
            let before = ends.sent_bytes();
            until(LIMIT, why, || (ends.sent_bytes() > before + 1e6).then_some(()));
        };
        goes_by_rdma("bytes go over RDMA");
        for _ in 0..2 {
            rdmesh_tests::system::kill(hosts.lab(killed).router_pid());
            let socket = hosts.lab(killed).dir().join("api.sock");
            until(LIMIT, "the router is dead", || UnixStream::connect(&socket).is_err().then_some(()));
            hosts.lab(killed).up_again();
            hosts.wait_for_sessions();
            goes_by_rdma("bytes go over RDMA again");
        }
        std::fs::create_dir_all(hosts.lab(1).shared())
            .and_then(|()| std::fs::write(&stop, ""))
            .expect("the folder is ours");
        for (end, text) in [(client, "answers are right"), (server, "all ends have come")] {
            let output = end.finish(LIMIT);
            assert!(output.status.success() && output.text.contains(text), "{}", output.text);
        }
    }
}

#[test]
fn a_forked_child_and_another_program_go_on_with_a_connection() {
    let hosts = Hosts::start();
    let ends = Ends::of_hosts(&hosts);
    let port = PORT.to_string();
    for mode in ["echo", "cat"] {
        let mut server = ends.serve(&streams(&[mode, &port]));
        let output = ends.ask(&streams(&["ask", "10.7.0.2", &port, "2000"])).ok();
        assert!(output.text.contains("all answers are right"), "{}", output.text);
        server.terminate(Duration::from_secs(10));
    }
}

#[test]
fn what_a_killed_program_has_sent_arrives_before_the_end() {
    let hosts = Hosts::start();
    let ends = Ends::of_hosts(&hosts);
    let port = PORT.to_string();
    // At last so slowly that the endpoint's owner has long ended: the router delivers what is left first.
    for (bytes, rate) in [("100000", "1G"), ("3000000", "1G"), ("100000", "2M")] {
        for number in 0..2 {
            hosts.lab(number).command(&["policy", "set", "endpoint/blue/e", "--rate", rate]).ok();
        }
        let _server = ends.serve(&streams(&["give", &port, bytes]));
        let output = ends.ask(&streams(&["take", "10.7.0.2", &port, bytes])).ok();
        assert!(output.text.contains("all bytes are right"), "{}", output.text);
    }
}

/// One end has moved to a ring and back, the other one never has: its answer and its end arrive, and the end is no reset.
#[test]
fn an_end_that_has_read_all_closes_in_order() {
    let lab = Lab::start();
    let ends = Ends::of_one_host(&lab);
    let port = PORT.to_string();
    let mut server = ends.serve(&streams(&["gulp", &port, "8000000"]));
    let times = rounds(30, 1000).to_string();
    let output = ends.ask(&streams(&["pour", "10.7.0.2", &port, "8000000", &times])).ok();
    assert!(output.text.contains("all answers are right"), "{}", output.text);
    server.terminate(Duration::from_secs(10));
}

/// TCP's buffers have room for more than a ring.
#[test]
fn ends_that_send_before_they_read_do_not_wait_for_each_other() {
    let lab = Lab::start();
    let ends = Ends::of_one_host(&lab);
    let port = PORT.to_string();
    for bytes in ["200000", "1000000"] {
        let server = ends.serve(&streams(&["swap", &port, bytes]));
        let client = ends.start_client(&streams(&["swap", &port, bytes, "10.7.0.2"]));
        // Counted as long as the endpoints are there, which is until the readers go on.
        until(LIMIT, "a ring is full", || {
            let stats = lab.stats();
            let relayed = stats["metrics"].as_array()?.iter().filter(|m| m["name"] == "rdmesh_relay_sent_bytes_total");
            (relayed.filter_map(|m| m["value"].as_f64()).sum::<f64>() > 1e5).then_some(())
        });
        let client = client.finish(LIMIT).ok();
        for output in [client, server.finish(LIMIT).ok()] {
            assert!(output.text.contains(&format!("{bytes} bytes are right")), "{}", output.text);
        }
    }
}

/// As perftest's two ends do, which both write before they close.
#[test]
fn a_write_to_a_closed_end_is_taken_once_as_by_tcp() {
    let lab = Lab::start();
    let port = PORT.to_string();
    // Rounds of words until it is on rings, at most: where relays are slow to start, a connection stays on TCP.
    for (options, most) in [(&["--accel"][..], "300"), (&[], "3")] {
        let end = |name, ip| (&lab, Endpoint::at(name, "blue", ip).with(options));
        let ends = Ends { server: end("server", "10.7.0.2"), client: end("client", "10.7.0.3") };
        let mut on_rings = 0;
        for _ in 0..rounds(5, 100) {
            let mut server = ends.serve(&streams(&["part", &port]));
            let output = ends.ask(&streams(&["outlive", "10.7.0.2", &port, most]));
            let is_right = output.status.success() && output.text.contains("the end is right");
            assert!(is_right, "{options:?}: {}\nthe server: {}", output.text, server.text());
            on_rings += usize::from(output.text.contains("on rings"));
            server.terminate(Duration::from_secs(10));
        }
        assert_eq!(on_rings > 0, !options.is_empty(), "{options:?}: {on_rings} connections were on rings");
    }
}

#[test]
fn noise_at_the_relays_harms_only_its_own_endpoint() {
    let lab = Lab::start();
    let ends = Ends::of_one_host(&lab);
    let router = lab.router_pid();
    let seconds = rounds(3, 60).to_string();
    let stranger = Endpoint::at("stranger", "blue", "10.7.0.9");
    let noise = lab.start_in(&stranger, &streams(&["noise", &seconds]));
    ends.exchange(5, 2, || ());
    let output = noise.finish(LIMIT).ok();
    assert!(output.text.contains("messages were sent") && !output.text.starts_with("0 "), "{}", output.text);
    assert_eq!(lab.router_pid(), router, "another router");
    ends.exchange(5, 2, || ());
}

/// All connections between two endpoints go over one reliable connection, and none of them is left behind.
#[test]
fn many_connections_share_one_queue_pair_evenly() {
    let hosts = Hosts::start();
    let ends = Ends::of_hosts(&hosts);
    let (port, connections) = (PORT.to_string(), rounds(200, 1000));
    let number = connections.to_string();
    let server = ends.serve(&shares(&["serve", &port, &number, "6"]));
    let client = ends.start_client(&shares(&["pour", "10.7.0.2", &port, &number, "10"]));
    let relay = until(LIMIT, "all connections have rings", || {
        let contexts = hosts.lab(0).api("/v1/contexts");
        let of_all = |context: &Value| context["mrs"].as_u64().is_some_and(|regions| regions > connections as u64);
        contexts.as_array()?.iter().find(|context| of_all(context)).cloned()
    });
    assert_eq!(relay["qps"].as_array().map(Vec::len), Some(1), "{relay}");
    let output = server.finish(LIMIT).ok();
    client.finish(LIMIT).ok();
    let figures: Vec<f64> = output.text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [jain, megabytes, least, most] = figures[..] else { panic!("{}", output.text) };
    eprintln!("{connections} connections: Jain {jain}, {megabytes} MB, {least} to {most} kB each");
    assert!(jain > 0.8 && least > 0.0, "{}", output.text);
}

#[test]
fn redis_serves_another_host_by_rings() {
    let hosts = Hosts::start();
    let ends = Ends::of_hosts(&hosts);
    let port = PORT.to_string();
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let mut server = ends.serve(&words(&["redis-server", "--port", &port, "--save", "", "--protected-mode", "no"]));
    let cli = |arguments: &[&str]| {
        let command = [&["redis-cli", "-h", "10.7.0.2", "-p", &port], arguments].concat();
        ends.ask(&words(&command)).ok().text
    };
    let value = "v".repeat(100_000);
    assert!(cli(&["set", "key", &value]).contains("OK"));
    let before = ends.sent_bytes();
    let command = [
        "redis-benchmark",
        "-h",
        "10.7.0.2",
        "-p",
        &port,
        "-t",
        "set,get",
        "-n",
        "50000",
        "-c",
        "50",
        "-r",
        "1000",
        "--csv",
    ];
    let output = ends.ask(&words(&command)).ok();
    assert!(output.text.contains("\"SET\"") && output.text.contains("\"GET\""), "{}", output.text);
    assert!(ends.sent_bytes() - before > 1e6, "the requests went over the device");
    assert!(cli(&["get", "key"]).contains(&value));
    // One that is not accelerated is served, too.
    let plain = Hosts::endpoint(1, "blue");
    let command = ["redis-cli", "-h", "10.7.0.2", "-p", &port, "strlen", "key"];
    let output = hosts.lab(1).run_in(&plain, LIMIT, &command).ok();
    assert!(output.text.contains("100000"), "{}", output.text);
    server.terminate(Duration::from_secs(10));
}
