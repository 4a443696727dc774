//! rdma_cm connections with the kernel's rdma_cm as the peer.

use crate::world::{Family, LIMIT, Link, Machine, Running, World, words};
use rdmesh_tests::until;

const PORT: u16 = 18700;
/// A port without a listener that matters to the test.
const OTHER_PORT: u16 = 18701;
/// `IB_CM_REJ_INVALID_SERVICE_ID`: there is no listener.
const NOBODY: u32 = 8;
/// `IB_CM_REJ_CONSUMER_DEFINED`: the program refuses.
const REFUSED: u32 = 28;

impl<'a> Link<'a> {
    /// Runs `program` at both ends, with options in which ADDRESS stands for the server's, and checks that both said that
    /// they were content.
    fn content(&self, port: u16, program: &str, server: &str, client: &str) {
        let line = |options: &str| format!("{program} {}", options.replace("ADDRESS", &self.address().to_string()));
        for text in self.run_connected(port, &line(server), &line(client)) {
            assert!(text.contains("data transfers complete") && text.contains("return status 0"), "{program}:\n{text}");
        }
    }

    /// Our program that looks at every byte of private data and messages, as server and as client.
    fn commands(&self, server: &str, client: &str) -> [String; 2] {
        [(self.server, "server", server), (self.client, "client", client)]
            .map(|(side, role, options)| format!("{} {options} {role} {}", side.helper("connect"), self.address()))
    }

    fn connect(&self, server: &str, client: &str) {
        let [server, client] = self.commands(server, client);
        self.run_connected(PORT, &server, &client);
    }

    /// Two ends that are connected and wait for that to end.
    fn connected(&self) -> [Box<dyn Running + 'a>; 2] {
        let [server, client] = self.commands("-n 3 -d nobody", "-n 3 -d nobody");
        let both = self.start(PORT, &server, &client);
        until(LIMIT, "both are connected", || both.iter().all(|end| has_line(&**end, "connected")).then_some(()));
        both
    }
}

fn has_line(end: &dyn Running, wanted: &str) -> bool {
    end.text().lines().any(|line| line == wanted)
}

/// A listener for other connections on `machine`, so that its rdma_cm answers requests without a listener of their own.
fn stay(machine: &dyn Machine, family: Family) -> Box<dyn Running + '_> {
    let command = format!("{} -p {OTHER_PORT} server {}", machine.helper("connect"), machine.address(family));
    let program = machine.start(family, &words(&command));
    until(LIMIT, "it listens", || machine.awaits_connections(OTHER_PORT).then_some(()));
    program
}

impl World {
    /// Nothing is left of any connection.
    fn assert_nothing_left(&self) {
        self.lab.wait_until_empty();
        for name in ["ids", "listeners", "waiting_events", "channels"] {
            assert_eq!(self.lab.metric(&format!("rdmesh_cm_{name}")), 0.0, "{name}");
        }
    }

    /// The same, and no message about one was out of place. The last message of a program that has ended may be repeated: the
    /// answer to it can come after its address has gone.
    fn assert_quiet(&self) {
        self.assert_nothing_left();
        for name in ["unexpected_total", "overflow_total"] {
            assert_eq!(self.lab.metric(&format!("rdmesh_cm_{name}")), 0.0, "{name}");
        }
        self.assert_clean(&[]);
    }
}

#[test]
fn rping_works() {
    let Some(world) = World::start() else { return };
    for family in [Family::V4, Family::V6] {
        world.both_ways(family, |link| {
            for options in ["-V -C 1", "-V -C 50 -S 1000", "-V -C 10 -S 65000"] {
                let options = format!("{options} -p {PORT} -a {}", link.address());
                let [server, _] =
                    link.run_connected(PORT, &format!("rping -s {options}"), &format!("rping -c {options}"));
                assert!(server.contains("server DISCONNECT EVENT"), "the server:\n{server}");
            }
        });
    }
    world.assert_quiet();
}

#[test]
fn programs_of_rdmacm_utils_work() {
    let Some(world) = World::start() else { return };
    for family in [Family::V4, Family::V6] {
        world.both_ways(family, |link| {
            for options in ["-c 1 -C 1 -S 100", "-c 8 -C 10 -S 5000", "-c 2 -C 3 -m"] {
                let options = format!("ADDRESS -p {PORT} {options}");
                link.content(PORT, "ucmatose", &format!("-b {options}"), &format!("-s {options}"));
            }
            link.content(7174, "udaddy", "-b ADDRESS -c 3 -C 10 -S 100", "-s ADDRESS -c 3 -C 10 -S 100");
            let options = format!("-p {PORT} -s {}", link.address());
            let [server, client] =
                link.run_connected(PORT, &format!("rdma_server {options}"), &format!("rdma_client {options}"));
            assert!(server.contains("rdma_server: end 0") && client.contains("rdma_client: end 0"), "{server}{client}");
        });
    }
    world.assert_quiet();
}

#[test]
fn private_data_arrives_and_either_side_disconnects() {
    let Some(world) = World::start() else { return };
    for family in [Family::V4, Family::V6] {
        world.both_ways(family, |link| {
            for options in ["-d server", "-d client", "-d server -n 8", "-d client -n 8"] {
                link.connect(options, options);
            }
        });
    }
    world.assert_quiet();
}

#[test]
fn refusals_arrive() {
    let Some(world) = World::start() else { return };
    for family in [Family::V4, Family::V6] {
        world.both_ways(family, |link| {
            link.connect("-r", &format!("-x {REFUSED}"));
            link.connect("-r -n 4", &format!("-n 4 -x {REFUSED}"));
            let _there = stay(link.server, family);
            let [_, client] = link.commands("", &format!("-x {NOBODY}"));
            let output = link.client.start(family, &words(&client)).finish();
            assert!(output.status.success(), "no program listens ({family:?}):\n{}", output.text);
        });
    }
    world.assert_quiet();
}

#[test]
fn the_peer_of_a_dead_program_is_disconnected() {
    let Some(world) = World::start() else { return };
    world.both_ways(Family::V4, |link| {
        for victim in [0, 1] {
            let mut both = link.connected();
            both[victim].kill();
            let [server, client] = both;
            let survivor = if victim == 0 { client } else { server };
            let output = survivor.finish().ok();
            assert!(output.text.contains("disconnected"), "{}", output.text);
        }
    });
    world.assert_nothing_left();
}

/// The side that does not end the connections stays, as a machine does: an answer of its may be lost.
fn connect_with_losses(link: &Link, ending: usize) {
    let roles = ["server", "client"];
    let options = |side: usize| format!("-n 24 -d {}{}", roles[ending], if side == ending { "" } else { " -w" });
    let [server, client] = link.commands(&options(0), &options(1));
    let [server, client] = link.start(PORT, &server, &client);
    let (ends, mut stays) = if ending == 0 { (server, client) } else { (client, server) };
    let output = ends.finish();
    assert!(output.status.success(), "the {} ends:\n{}\nthe other:\n{}", roles[ending], output.text, stays.text());
    until(LIMIT, "all are disconnected", || has_line(&*stays, "disconnected").then_some(()));
    stays.kill();
}

#[test]
fn connections_come_up_in_spite_of_losses() {
    let Some(world) = World::start() else { return };
    for percent in [1, 5] {
        world.lose(percent);
        world.both_ways(Family::V4, |link| [0, 1].into_iter().for_each(|ending| connect_with_losses(link, ending)));
    }
    assert!(world.lab.metric("rdmesh_cm_retried_total") > 0.0, "messages were lost");
    world.assert_nothing_left();
}
