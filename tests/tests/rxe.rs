//! Against a stock kernel's rdma_rxe, which knows nothing of rdmesh: plain RoCEv2, each side as server and as client.

use rdmesh_tests::guest::{self, Guest, Job, Lan};
use rdmesh_tests::{Endpoint, Lab, Options, Output, Program, bandwidth_rows, helper, latency_rows};
use std::net::IpAddr;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const PORT: u16 = 18600;
/// What the kernel's device counts when packets are lost, or not understood.
const TROUBLE: [&str; 6] =
    ["out_of_seq_request", "rcvd_seq_err", "retry_exceeded_err", "retry_rnr_exceeded_err", "send_err", "link_downed"];
/// What it counts when there is no receive for a message.
const NOT_READY: [&str; 2] = ["rcvd_rnr_err", "send_rnr_err"];
/// Every case of the `exchange` program that works without a loss, but for the one whose receives come late.
const CASES: [&str; 5] = ["rc", "uc", "ud", "soak", "errors"];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Family {
    V4,
    V6,
}

/// One end: something that runs programs with an RDMA device.
trait Machine {
    /// The address that its programs are reached at over TCP, or with RDMA.
    fn address(&self, family: Family) -> IpAddr;
    fn start(&self, family: Family, command: &[String]) -> Box<dyn Running + '_>;
    /// Where it has our helper program `name`.
    fn helper(&self, name: &str) -> String;
    /// Learns the link address of `address`.
    fn resolve(&self, address: IpAddr);

    fn gid_index(&self, family: Family) -> u32 {
        let text = self.start(family, &words("ibv_devinfo -v")).finish().ok().text;
        guest::gid_index(&text, self.address(family)).unwrap_or_else(|| panic!("no GID of {family:?}:\n{text}"))
    }
}

/// A program on a [`Machine`].
trait Running {
    fn wait_listening(&mut self, port: u16);
    fn text(&self) -> String;
    fn finish(self: Box<Self>) -> Output;
}

impl Machine for Guest {
    fn address(&self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.ipv4().into(),
            Family::V6 => self.ipv6().into(),
        }
    }

    fn start(&self, _: Family, command: &[String]) -> Box<dyn Running + '_> {
        Box::new(self.start_command(command))
    }

    fn helper(&self, name: &str) -> String {
        name.to_owned()
    }

    // The kernel's RDMA gives up on an address sooner than its IPv6 resolves it.
    fn resolve(&self, address: IpAddr) {
        self.run(&["ping", "-c", "1", "-W", "5", &address.to_string()], LIMIT).ok();
    }
}

impl Running for Job<'_> {
    fn wait_listening(&mut self, port: u16) {
        Job::wait_listening(self, port);
    }

    fn text(&self) -> String {
        Job::text(self)
    }

    fn finish(self: Box<Self>) -> Output {
        Job::finish(*self, LIMIT)
    }
}

/// Our side: programs under a router that runs on the guest's network without privilege of its own.
impl Machine for Lab {
    fn address(&self, family: Family) -> IpAddr {
        match family {
            Family::V4 => Lan::ipv4(1).into(),
            Family::V6 => Lan::ipv6(1).into(),
        }
    }

    fn start(&self, family: Family, command: &[String]) -> Box<dyn Running + '_> {
        let endpoint = match family {
            Family::V4 => Endpoint::at("ours", "four", &self.address(family).to_string()),
            Family::V6 => Endpoint::at("ours", "six", &self.address(family).to_string()),
        };
        Box::new(self.start_in(&endpoint, command))
    }

    fn helper(&self, name: &str) -> String {
        helper(name).display().to_string()
    }

    fn resolve(&self, _: IpAddr) {}
}

impl Running for Program {
    fn wait_listening(&mut self, port: u16) {
        Program::wait_listening(self, port);
    }

    fn text(&self) -> String {
        Program::text(self)
    }

    fn finish(self: Box<Self>) -> Output {
        Program::finish(*self, LIMIT)
    }
}

/// Two machines in the roles that they have in a test.
struct Link<'a> {
    server: &'a dyn Machine,
    client: &'a dyn Machine,
    family: Family,
    gids: [u32; 2],
}

impl<'a> Link<'a> {
    fn new(server: &'a dyn Machine, client: &'a dyn Machine, family: Family) -> Self {
        server.resolve(client.address(family));
        client.resolve(server.address(family));
        let gids = [server.gid_index(family), client.gid_index(family)];
        Self { server, client, family, gids }
    }

    /// Runs `programs`, the server's and the client's, with `options`; returns what the client printed.
    fn run(&self, programs: [&str; 2], gid_option: &str, options: &str) -> String {
        let [server, client] = [0, 1].map(|side| {
            let (program, gid) = (programs[side], self.gids[side]);
            words(&format!("{program} {gid_option} {gid} -p {PORT} {options}"))
        });
        let mut server = self.server.start(self.family, &server);
        server.wait_listening(PORT);
        // Many servers listen on IPv4 alone, whatever RDMA is to use.
        let to = self.server.address(Family::V4).to_string();
        let output = self.client.start(self.family, &[client, vec![to.clone()]].concat()).finish();
        let what = format!("{} {options} ({:?}) with its server at {to}", programs[1], self.family);
        assert!(output.status.success(), "{what}\nthe server:\n{}\nthe client:\n{}", server.text(), output.text);
        server.finish().ok();
        output.text
    }

    fn pingpong(&self, program: &str, options: &str) {
        let text = self.run([program, program], "-g", options);
        assert!(text.contains(" iters in "), "no result of {program} {options}:\n{text}");
    }

    fn perftest(&self, program: &str, options: &str) {
        let text = self.run([program, program], "-F -x", options);
        let rows = if program.ends_with("_bw") { bandwidth_rows(&text) } else { latency_rows(&text) };
        assert!(!rows.is_empty(), "no figures of {program} {options}:\n{text}");
    }

    /// Our program that looks at every byte.
    fn exchange(&self, case: &str, options: &str) {
        let programs = [self.server.helper("exchange"), self.client.helper("exchange")];
        self.run([&programs[0], &programs[1]], "-g", &format!("{options} {case}"));
    }
}

/// A router and a guest.
struct World {
    lab: Lab,
    guest: Guest,
    _lan: Lan,
}

impl World {
    /// Nothing where there can be no guest, which is said.
    fn start() -> Option<Self> {
        if let Some(why) = guest::unavailable() {
            println!("skipped: {why}");
            return None;
        }
        let lan = Lan::start();
        lan.enter();
        let guest = Guest::boot(2);
        let lab = Lab::start_with(Options { rootless: true, ..Options::default() });
        guest.wait_ready();
        Some(Self { lab, guest, _lan: lan })
    }

    /// Does `work` with the guest as server, then with the guest as client.
    fn both_ways(&self, family: Family, work: impl Fn(&Link)) {
        work(&Link::new(&self.guest, &self.lab, family));
        work(&Link::new(&self.lab, &self.guest, family));
    }

    /// Neither side has seen a packet go astray, nor one that it did not understand.
    fn assert_clean(&self, zero: &[&str]) {
        let counters = self.guest.rxe_counters();
        for name in zero {
            assert_eq!(counters.get(*name), Some(&0), "{name} of {counters:?}");
        }
        assert!(counters["rcvd_pkts"] > 100, "the packets must have come from us: {counters:?}");
        for name in ["rdmesh_wire_bad_icrc_total", "rdmesh_wire_malformed_total", "rdmesh_wire_wrong_source_total"] {
            assert_eq!(self.lab.metric(name), 0.0, "{name}");
        }
    }

    /// Loses that share of the RoCE packets in either direction: ours for the guest there, the guest's here.
    fn lose(&self, percent: u32) {
        self.lab.command(&["faults", &format!("loss={percent}%")]).ok();
        // RoCE alone: UDP port 4791 is 12b7 in hexadecimal.
        let filter = format!(
            "tc filter add dev eth0 ingress protocol ip u32 match ip dport 0x12b7 0xffff \
             action pass random netrand drop {}",
            100 / percent
        );
        self.guest.run(&words("tc qdisc del dev eth0 ingress"), LIMIT);
        for command in ["tc qdisc add dev eth0 ingress", &filter] {
            self.guest.run(&words(command), LIMIT).ok();
        }
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// The harness itself: the kernel's device against the kernel's device.
#[test]
fn two_kernels_agree() {
    if let Some(why) = guest::unavailable() {
        println!("skipped: {why}");
        return;
    }
    let lan = Lan::start();
    lan.enter();
    let (a, b) = (Guest::boot(2), Guest::boot(3));
    a.wait_ready();
    b.wait_ready();
    let link = Link::new(&a, &b, Family::V6);
    link.perftest("ib_write_bw", "-n 20");
    for case in CASES {
        link.exchange(case, "-n 4");
    }
    for guest in [&a, &b] {
        let counters = guest.rxe_counters();
        assert!(TROUBLE.iter().chain(&NOT_READY).all(|name| counters[*name] == 0), "{counters:?}");
    }
}

#[test]
fn every_byte_arrives() {
    let Some(world) = World::start() else { return };
    for family in [Family::V4, Family::V6] {
        world.both_ways(family, |link| CASES.iter().for_each(|case| link.exchange(case, "")));
    }
    world.assert_clean(&[&TROUBLE[..], &NOT_READY].concat());
    world.both_ways(Family::V4, |link| link.exchange("rnr", ""));
    let counters = world.guest.rxe_counters();
    assert!(
        NOT_READY.iter().all(|name| counters[*name] > 0),
        "both have answered that no receive is there: {counters:?}"
    );
}

#[test]
fn pingpong_programs_work() {
    let Some(world) = World::start() else { return };
    world.both_ways(Family::V4, |link| {
        for program in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"] {
            link.pingpong(program, "-c -n 100");
            link.pingpong(program, "-s 1 -n 100 -e");
        }
        // All 16 at once would ask too much of an emulated machine.
        for program in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_srq_pingpong -q 2"] {
            link.pingpong(program, "-s 1000001 -n 4 -c");
            link.pingpong(program, "-m 256 -s 8191 -n 20 -c");
        }
    });
    world.both_ways(Family::V6, |link| {
        for program in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"] {
            link.pingpong(program, "-c -n 50");
        }
    });
    world.assert_clean(&[&TROUBLE[..], &NOT_READY].concat());
}

#[test]
fn bandwidth_programs_work() {
    let Some(world) = World::start() else { return };
    world.both_ways(Family::V4, |link| {
        for program in ["ib_send_bw", "ib_write_bw", "ib_read_bw"] {
            for options in ["-s 1 -n 100", "-s 1025 -n 100", "-s 65537 -n 10", "-s 1048576 -n 5", "-q 4 -n 20 -b"] {
                link.perftest(program, options);
            }
        }
        for options in ["-c UC -n 100 -s 4097", "-c UD -n 100 -s 1024"] {
            link.perftest("ib_send_bw", options);
        }
        link.perftest("ib_write_bw", "-c UC -n 100 -s 4097");
        for options in ["-A FETCH_AND_ADD -n 100", "-A CMP_AND_SWAP -n 100 -q 2"] {
            link.perftest("ib_atomic_bw", options);
        }
    });
    world.both_ways(Family::V6, |link| {
        for program in ["ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_atomic_bw"] {
            link.perftest(program, "-n 20");
        }
        link.perftest("ib_send_bw", "-c UD -n 100 -s 1024");
    });
    world.assert_clean(&TROUBLE);
}

#[test]
fn latency_programs_work() {
    let Some(world) = World::start() else { return };
    world.both_ways(Family::V4, |link| {
        for program in ["ib_send_lat", "ib_write_lat", "ib_read_lat"] {
            link.perftest(program, "-s 8 -n 100");
            link.perftest(program, "-s 5000 -n 50");
        }
        for options in ["-c UC -n 100", "-c UD -n 100"] {
            link.perftest("ib_send_lat", options);
        }
        link.perftest("ib_write_lat", "-c UC -n 100");
        for options in ["-A FETCH_AND_ADD -n 100", "-A CMP_AND_SWAP -n 100"] {
            link.perftest("ib_atomic_lat", options);
        }
    });
    world.both_ways(Family::V6, |link| link.perftest("ib_send_lat", "-n 100"));
    world.assert_clean(&TROUBLE);
}

#[test]
fn every_byte_arrives_in_spite_of_losses() {
    let Some(world) = World::start() else { return };
    // With requests behind it, the kernel's device may complete a READ or an atomic whose answer was lost without its
    // data: a negative acknowledgement of a later packet is enough. So in the soak it sends and writes only.
    let kernel_sends =
        |link: &Link, is_server: bool| link.exchange("soak", if is_server { "-n 4 -s" } else { "-n 4 -c" });
    for percent in [1, 5] {
        world.lose(percent);
        kernel_sends(&Link::new(&world.guest, &world.lab, Family::V4), true);
        kernel_sends(&Link::new(&world.lab, &world.guest, Family::V4), false);
        world.both_ways(Family::V4, |link| {
            link.exchange("rc", "-l 5000");
            for program in ["ib_send_bw", "ib_write_bw", "ib_read_bw"] {
                link.perftest(program, "-s 20000 -n 10");
            }
            link.perftest("ib_atomic_bw", "-n 100");
        });
    }
    let counters = world.guest.rxe_counters();
    assert!(counters["rcvd_seq_err"] > 0 && counters["out_of_seq_request"] > 0, "packets were lost: {counters:?}");
    assert_eq!(counters["retry_exceeded_err"], 0);
}
