//! Test harness: a router, a virtual machine, and programs on either side of a network.

use rdmesh_tests::guest::{self, Guest, Job, Lan};
use rdmesh_tests::{Endpoint, Lab, Options, Output, Program, bandwidth_rows, helper, latency_rows, until};
use std::cell::OnceCell;
use std::net::IpAddr;
use std::time::{Duration, Instant};

pub(crate) const LIMIT: Duration = Duration::from_secs(60);
const PORT: u16 = 18600;
/// Interval between checks for a hanging program.
const TICK: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Family {
    V4,
    V6,
}

/// One end: something that runs programs with an RDMA device.
pub(crate) trait Machine {
    /// The address that its programs are reached at over TCP, or with RDMA.
    fn address(&self, family: Family) -> IpAddr;
    fn start(&self, family: Family, command: &[String]) -> Box<dyn Running + '_>;
    /// Path of our helper program `name` in it.
    fn helper(&self, name: &str) -> String;
    /// Learns the link address of `address`.
    fn resolve(&self, address: IpAddr);
    /// Whether one of its programs listens on `port` with rdma_cm.
    fn awaits_connections(&self, port: u16) -> bool;
    /// Diagnosis for a program of its that does not end.
    fn trouble(&self) -> String;
    /// Whether its device is the kernel's.
    fn is_kernels(&self) -> bool;

    fn gid_index(&self, family: Family) -> u32 {
        let text = self.start(family, &words("ibv_devinfo -v")).finish().ok().text;
        guest::gid_index(&text, self.address(family)).unwrap_or_else(|| panic!("no GID of {family:?}:\n{text}"))
    }
}

/// A program on a [`Machine`].
pub(crate) trait Running {
    fn wait_listening(&mut self, port: u16);
    fn has_ended(&mut self) -> bool;
    fn text(&self) -> String;
    fn finish(self: Box<Self>) -> Output;
    /// Kills it without a word of warning.
    fn kill(&mut self);
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

    fn awaits_connections(&self, port: u16) -> bool {
        let text = self.run(&words("rdma resource show cm_id"), LIMIT).ok().text;
        let address = format!(":{port} ");
        text.lines().any(|line| line.contains("state LISTEN") && line.contains(&address))
    }

    fn trouble(&self) -> String {
        let script = "for p in /proc/[0-9]*; do [ -s $p/cmdline ] && cat $p/comm $p/stack; done; dmesg | tail -20";
        self.run(&["sh", "-c", script], LIMIT).text
    }

    fn is_kernels(&self) -> bool {
        true
    }
}

impl Running for Job<'_> {
    fn wait_listening(&mut self, port: u16) {
        Job::wait_listening(self, port);
    }

    fn has_ended(&mut self) -> bool {
        Job::has_ended(self)
    }

    fn text(&self) -> String {
        Job::text(self)
    }

    fn finish(self: Box<Self>) -> Output {
        Job::finish(*self, LIMIT)
    }

    fn kill(&mut self) {
        Job::kill(self);
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

    fn awaits_connections(&self, port: u16) -> bool {
        let ids = self.api("/v1/connections");
        let address = format!(":{port}");
        ids.as_array()
            .expect("a list")
            .iter()
            .any(|id| id["state"] == "LISTEN" && id["address"].as_str().is_some_and(|at| at.ends_with(&address)))
    }

    fn trouble(&self) -> String {
        self.command(&["ps"]).text
    }

    fn is_kernels(&self) -> bool {
        false
    }
}

impl Running for Program {
    fn wait_listening(&mut self, port: u16) {
        Program::wait_listening(self, port);
    }

    fn has_ended(&mut self) -> bool {
        !self.is_running()
    }

    fn text(&self) -> String {
        Program::text(self)
    }

    fn finish(self: Box<Self>) -> Output {
        Program::finish(*self, LIMIT)
    }

    fn kill(&mut self) {
        Program::kill(self);
    }
}

/// Two machines in the roles that they have in a test.
pub(crate) struct Link<'a> {
    pub(crate) server: &'a dyn Machine,
    pub(crate) client: &'a dyn Machine,
    pub(crate) family: Family,
    gids: OnceCell<[u32; 2]>,
}

impl<'a> Link<'a> {
    pub(crate) fn new(server: &'a dyn Machine, client: &'a dyn Machine, family: Family) -> Self {
        server.resolve(client.address(family));
        client.resolve(server.address(family));
        Self { server, client, family, gids: OnceCell::new() }
    }

    /// The address that the client calls.
    pub(crate) fn address(&self) -> IpAddr {
        self.server.address(self.family)
    }

    /// Starts `server`; when it listens on `port` with rdma_cm, `client`.
    pub(crate) fn start(&self, port: u16, server: &str, client: &str) -> [Box<dyn Running + 'a>; 2] {
        let server_runs = self.server.start(self.family, &words(server));
        until(LIMIT, &format!("{server} listens"), || self.server.awaits_connections(port).then_some(()));
        [server_runs, self.client.start(self.family, &words(client))]
    }

    /// The same to the end of both, which must end with success; returns what the server and the client printed.
    pub(crate) fn run_connected(&self, port: u16, server: &str, client: &str) -> [String; 2] {
        let [server_runs, client_runs] = self.start(port, server, client);
        let client_ended = client_runs.finish();
        let what = format!("{server} and {client} ({:?})", self.family);
        let success = client_ended.status.success();
        assert!(success, "{what}\nthe server:\n{}\nthe client:\n{}", server_runs.text(), client_ended.text);
        [server_runs.finish().ok().text, client_ended.text]
    }

    /// Runs `programs`, the server's and the client's, with `options`; returns what the client printed.
    fn run(&self, programs: [&str; 2], gid_option: &str, options: &str) -> String {
        let gids = self.gids.get_or_init(|| [self.server, self.client].map(|side| side.gid_index(self.family)));
        let [server, client] = [0, 1].map(|side| {
            let (program, gid) = (programs[side], gids[side]);
            words(&format!("{program} {gid_option} {gid} -p {PORT} {options}"))
        });
        let mut server = self.server.start(self.family, &server);
        server.wait_listening(PORT);
        // Many servers listen on IPv4 alone, even if RDMA is to use IPv6.
        let to = self.server.address(Family::V4).to_string();
        let what = format!("{} {options} ({:?}) with its server at {to}", programs[1], self.family);
        let mut client = self.client.start(self.family, &[client, vec![to]].concat());
        let end = Instant::now() + LIMIT;
        while !client.has_ended() {
            if Instant::now() > end {
                let is_kernels = self.client.is_kernels() && server.has_ended();
                let has_passed = is_kernels && programs[1].ends_with("/exchange");
                let [server_says, client_says] = [(self.server, &server), (self.client, &client)]
                    .map(|(machine, program)| format!("{}\n{}", program.text(), machine.trouble()));
                let state = format!("{what} hangs\nthe server:\n{server_says}\nthe client:\n{client_says}");
                assert!(has_passed, "{state}");
                // Ours has heard that the guest found everything right: what is left is how the guest's own side ends.
                println!("{state}");
                return server.finish().ok().text;
            }
            std::thread::sleep(TICK);
        }
        let output = client.finish();
        assert!(output.status.success(), "{what}\nthe server:\n{}\nthe client:\n{}", server.text(), output.text);
        server.finish().ok();
        output.text
    }

    pub(crate) fn pingpong(&self, program: &str, options: &str) {
        let text = self.run([program, program], "-g", options);
        assert!(text.contains(" iters in "), "no result of {program} {options}:\n{text}");
    }

    pub(crate) fn perftest(&self, program: &str, options: &str) {
        // An ACK time-out of 1 s. When rxe of Linux 6.1 sends again although nothing was lost, it may put an empty SEND between two
        // messages, and the connection ends: and 67 ms, perftest's choice, are sometimes too short for an emulated machine.
        let text = self.run([program, program], "-F -u 18 -x", options);
        let rows = if program.ends_with("_bw") { bandwidth_rows(&text) } else { latency_rows(&text) };
        assert!(!rows.is_empty(), "no figures of {program} {options}:\n{text}");
    }

    /// Our program that looks at every byte.
    pub(crate) fn exchange(&self, case: &str, options: &str) {
        let programs = [self.server.helper("exchange"), self.client.helper("exchange")];
        self.run([&programs[0], &programs[1]], "-g", &format!("{options} {case}"));
    }
}

/// A router and a guest.
pub(crate) struct World {
    pub(crate) lab: Lab,
    pub(crate) guest: Guest,
    _lan: Lan,
}

impl World {
    /// Nothing where there can be no guest, which is said.
    pub(crate) fn start() -> Option<Self> {
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
    pub(crate) fn both_ways(&self, family: Family, work: impl Fn(&Link)) {
        work(&Link::new(&self.guest, &self.lab, family));
        work(&Link::new(&self.lab, &self.guest, family));
    }

    /// Neither side has seen a packet go astray, nor one that it did not understand.
    pub(crate) fn assert_clean(&self, zero: &[&str]) {
        let counters = self.guest.rxe_counters();
        for name in zero {
            assert_eq!(counters.get(*name), Some(&0), "{name} of {counters:?}");
        }
        assert!(counters["rcvd_pkts"] > 20, "the packets must have come from us: {counters:?}");
        for name in ["rdmesh_wire_bad_icrc_total", "rdmesh_wire_malformed_total", "rdmesh_wire_wrong_source_total"] {
            assert_eq!(self.lab.metric(name), 0.0, "{name}");
        }
    }

    /// Loses that share of the RoCE packets in either direction: ours for the guest there, the guest's here.
    pub(crate) fn lose(&self, percent: u32) {
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

pub(crate) fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}
