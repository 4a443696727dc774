//! Transport between the routers of two hosts: selective retransmission, several paths, and congestion control by HPCC.

use rdmesh_tests::{Hosts, Options, Peer, inside};
use serde_json::Value;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

/// Timeout 2^14 * 4.096 us = 67 ms, seven retries: losses are made good.
const MANY_RETRIES: [&str; 3] = ["rc", "14", "7"];
/// Bytes of a message: 64 packets on an Ethernet.
const MESSAGE: u64 = 65_536;
const MESSAGES: u64 = 40;

/// One end on each host, on network `blue`.
fn connected(hosts: &Hosts) -> (Peer, Peer) {
    let start = |number| Peer::start(hosts.lab(number), &Hosts::endpoint(number, "blue"), &MANY_RETRIES);
    let (mut a, mut b) = (start(0), start(1));
    Peer::connect(&mut a, &mut b);
    (a, b)
}

/// The queue pair of the endpoint on network `blue` of a host.
fn queue_pair(hosts: &Hosts, number: usize) -> Value {
    let contexts = hosts.lab(number).api("/v1/contexts");
    contexts[0]["qps"][0].clone()
}

fn count(qp: &Value, name: &str) -> u64 {
    qp[name].as_u64().unwrap_or_else(|| panic!("no {name} in {qp}"))
}

/// Messages of each kind, with their data checked.
fn exchange(a: &mut Peer, b: &mut Peer, kind: &str) {
    for seed in 0..MESSAGES {
        let (from, to) = if kind == "read" { (&mut *b, &mut *a) } else { (&mut *a, &mut *b) };
        from.ask(&format!("fill {seed} {MESSAGE}"));
        if kind == "send" {
            to.ask("recv");
        }
        a.ask(&format!("post {kind} {MESSAGE}"));
        assert_eq!(a.completion().0, "success", "{kind} {seed}");
        if kind == "send" {
            assert_eq!(b.completion().0, "success", "receive {seed}");
        }
        let to = if kind == "read" { &mut *a } else { &mut *b };
        assert_eq!(to.ask(&format!("check {seed} {MESSAGE}")), "match", "{kind} {seed}");
    }
}

#[test]
fn of_a_lossy_network_only_what_is_lost_is_sent_again() {
    let hosts = Hosts::start();
    for (loss, most) in [(0, 0.01), (1, 0.05), (5, 0.15)] {
        hosts.set_faults(&format!("loss={loss}%,seed=4"));
        for kind in ["write", "send", "read"] {
            let (mut a, mut b) = connected(&hosts);
            exchange(&mut a, &mut b, kind);
            let (asking, answering) = (queue_pair(&hosts, 0), queue_pair(&hosts, 1));
            let packets = MESSAGES * MESSAGE / 1024;
            let again = count(&asking, "retransmitted") as f64 / packets as f64;
            eprintln!(
                "{loss} % loss, {kind}: {:.3} of the packets sent again; at the responder {} behind a gap, {} duplicates",
                again,
                count(&answering, "out_of_order"),
                count(&answering, "duplicates")
            );
            assert!(again <= most, "{loss} % loss, {kind}: {again} of {packets} packets are sent again: {asking}");
            assert!(loss == 0 || again > 0.0 || kind == "read", "nothing was lost: {asking}");
            a.quit();
            b.quit();
            (0..2).for_each(|number| hosts.lab(number).wait_until_empty());
        }
    }
}

#[test]
fn a_router_that_goes_back_works_with_one_that_does_not() {
    let older = Options { up: ["--loss-recovery", "go-back-n"].map(str::to_owned).to_vec(), ..Options::default() };
    for older_host in [0, 1] {
        let mut options = [Options::default(), Options::default()];
        options[older_host] = older.clone();
        let hosts = Hosts::start_each(options);
        hosts.set_faults("loss=2%,reorder=1%,duplicate=1%,seed=5");
        for kind in ["write", "send", "read"] {
            let (mut a, mut b) = connected(&hosts);
            exchange(&mut a, &mut b, kind);
            let again = count(&queue_pair(&hosts, 0), "retransmitted");
            assert!(kind != "write" || again > MESSAGES * MESSAGE / 1024 / 10, "only {again} packets sent again");
            a.quit();
            b.quit();
            (0..2).for_each(|number| hosts.lab(number).wait_until_empty());
        }
    }
}

const PATHS: usize = 4;

/// Links between the two hosts, each a path of its own: the kernel chooses by addresses and ports (ECMP).
struct Paths<'a> {
    hosts: &'a Hosts,
}

impl<'a> Paths<'a> {
    fn new(hosts: &'a Hosts) -> Self {
        let [a, b] = [hosts.netns(0), hosts.netns(1)];
        let ip = |netns: &str, arguments: &str| {
            let words: Vec<&str> = ["ip"].into_iter().chain(arguments.split(' ')).collect();
            inside(netns, &words);
        };
        for n in 0..PATHS {
            ip(a, &format!("link add path{n} type veth peer name path{n} netns {b}"));
            for (host, end) in [(a, 1), (b, 2)] {
                ip(host, &format!("address add 198.51.{n}.{end}/24 dev path{n}"));
                ip(host, &format!("link set path{n} up"));
            }
        }
        for (host, other, gateway) in [(a, Hosts::address(1), 2), (b, Hosts::address(0), 1)] {
            let hops: Vec<String> =
                (0..PATHS).map(|n| format!("nexthop via 198.51.{n}.{gateway} dev path{n}")).collect();
            for setting in ["fib_multipath_hash_policy=1", "conf.all.rp_filter=0", "conf.default.rp_filter=0"] {
                let (name, value) = setting.split_once('=').expect("a setting");
                let path = format!("/proc/sys/net/ipv4/{}", name.replace('.', "/"));
                inside(host, &["sh", "-c", &format!("echo {value} > {path}")]);
            }
            ip(host, &format!("route add {other}/32 {}", hops.join(" ")));
        }
        Self { hosts }
    }

    /// Bytes that host 0 has sent by each path.
    fn sent(&self) -> [u64; PATHS] {
        let table = inside(self.hosts.netns(0), &["cat", "/proc/net/dev"]);
        std::array::from_fn(|n| {
            let line = table.lines().find_map(|line| line.trim().strip_prefix(&format!("path{n}:")).map(str::to_owned));
            line.and_then(|line| line.split_whitespace().nth(8)?.parse().ok()).expect("a counter")
        })
    }

    /// From now on everything on path `n` is lost, both ways, and nobody is told.
    fn cut(&self, n: usize) {
        for number in 0..2 {
            let rules = format!(
                "add table inet cut; add chain inet cut in {{ type filter hook prerouting priority -300; }}; \
                 add rule inet cut in iifname path{n} drop"
            );
            inside(self.hosts.netns(number), &["nft", &rules]);
        }
    }
}

#[test]
fn a_connection_spreads_over_paths_and_outlives_one() {
    let options = Options { up: ["--paths", "16"].map(str::to_owned).to_vec(), ..Options::default() };
    let hosts = Hosts::start_with(1500, options);
    let paths = Paths::new(&hosts);
    let before = paths.sent();
    let (mut a, mut b) = connected(&hosts);
    for kind in ["write", "send", "read"] {
        exchange(&mut a, &mut b, kind);
    }
    let sent = paths.sent();
    let shares: Vec<u64> = sent.iter().zip(before).map(|(after, before)| after - before).collect();
    let total: u64 = shares.iter().sum();
    assert!(total > 2 * MESSAGES * MESSAGE, "{shares:?}");
    // Sixteen ports leave a path out once in a hundred times.
    let used = shares.iter().filter(|share| **share > total / 20).count();
    assert!(used >= 2, "{shares:?}");
    let again = count(&queue_pair(&hosts, 0), "retransmitted");
    let packets = 2 * MESSAGES * MESSAGE / 1024;
    assert!(again <= packets / 50, "{again} of {packets} packets were sent again although nothing was lost");
    // The path that carries most is cut: the connection goes on by the others.
    let busiest = (0..PATHS).max_by_key(|n| shares[*n]).expect("there are some");
    paths.cut(busiest);
    for kind in ["write", "send", "read"] {
        exchange(&mut a, &mut b, kind);
    }
    let lost = count(&queue_pair(&hosts, 0), "retransmitted") - again;
    eprintln!("bytes by path: {shares:?}; {lost} packets sent again after path {busiest} was cut");
    assert!(lost > 0 && lost <= packets / 4, "{lost} of {packets}");
    let qp = queue_pair(&hosts, 0);
    let (lanes, resting) = (count(&qp, "lanes"), count(&qp, "resting_lanes"));
    assert!(lanes == 16 && (1..16).contains(&resting), "{resting} of {lanes} lanes rest");
    let round_trip = qp["congestion"]["round_trip_seconds"].as_f64().expect("answers were timed");
    assert!(qp["congestion"]["control"] == "window" && round_trip > 0.0 && round_trip < 10.0, "{qp}");
    let shown = hosts.lab(0).command(&["ps", "--wide"]).ok().text;
    assert!(shown.contains("ROUND TRIP") && shown.contains("window"), "{shown}");
    a.quit();
    b.quit();
}

/// Rate of the link into host 0, and how long its queue may get, in ms.
const RATE: u64 = 1_000_000_000;
const QUEUE: u64 = 16;

/// A switch that sends no faster than that to host 0.
fn limit_link(hosts: &Hosts) {
    let shape = format!("tc qdisc replace dev port0 root tbf rate {RATE}bit burst 64k latency {QUEUE}ms");
    inside(hosts.switch(), &shape.split(' ').collect::<Vec<_>>());
}

/// Bytes that wait at the switch.
fn backlog(hosts: &Hosts) -> u64 {
    let text = inside(hosts.switch(), &["tc", "-s", "-j", "qdisc", "show", "dev", "port0"]);
    let qdiscs: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    count(&qdiscs[0], "backlog")
}

/// Gb/s of a program's payload into host 0, and the median of the bytes that wait before the link meanwhile.
fn through_the_link(hosts: &Hosts, program: &str) -> (f64, u64) {
    let (sender, done) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let sampler = scope.spawn(move || {
            let mut samples = Vec::new();
            while done.recv_timeout(Duration::from_millis(20)) == Err(RecvTimeoutError::Timeout) {
                samples.push(backlog(hosts));
            }
            samples.sort_unstable();
            samples[samples.len() / 2]
        });
        let row = &hosts.pair().bandwidth(program, "-s 65536 -D 2")[0];
        drop(sender);
        // Payload in MiB/s.
        (row.figures[1] * 1_048_576.0 * 8.0 / 1e9, sampler.join().expect("it has sampled"))
    })
}

#[test]
fn with_hpcc_a_full_link_has_a_short_queue() {
    let hpcc = ["--congestion-control", "hpcc", "--underlay-rate", "1G"].map(str::to_owned).to_vec();
    let [plain, hpcc] = [Vec::new(), hpcc].map(|up| {
        let hosts = Hosts::start_with(1500, Options { up, ..Options::default() });
        limit_link(&hosts);
        let measured = ["ib_write_bw", "ib_send_bw"].map(|program| through_the_link(&hosts, program));
        let (mut a, mut b) = connected(&hosts);
        ["write", "send", "read"].iter().for_each(|kind| exchange(&mut a, &mut b, kind));
        a.quit();
        b.quit();
        measured
    });
    eprintln!("Gb/s, and bytes waiting: {plain:?}, with HPCC {hpcc:?}");
    for ((_, long), (rate, short)) in plain.into_iter().zip(hpcc) {
        // On a machine that is too busy to fill the link nothing waits with either.
        assert!(short <= long / 2, "{short} bytes wait with HPCC, {long} without");
        // All but what HPCC leaves free is 0.83; a busy machine may keep it from that.
        assert!((0.05..1.0).contains(&rate), "{rate} Gb/s");
    }
}

#[test]
fn with_hpcc_routers_stay_below_the_rate_that_they_are_told() {
    let up = ["--congestion-control", "hpcc", "--underlay-rate", "500M"].map(str::to_owned).to_vec();
    let hosts = Hosts::start_with(1500, Options { up, ..Options::default() });
    for program in ["ib_write_bw", "ib_read_bw", "ib_send_bw"] {
        let row = &hosts.pair().bandwidth(program, "-s 65536 -D 2")[0];
        let rate = row.figures[1] * 1_048_576.0 * 8.0 / 1e9;
        eprintln!("{program}: {rate:.2} Gb/s");
        // A machine that is busy otherwise may keep it far below.
        assert!((0.01..0.5).contains(&rate), "{program}: {rate} Gb/s");
    }
}
