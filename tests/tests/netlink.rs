//! Netlink: the `rdma` tool of iproute2, and other programs that query the device by netlink.

use rdmesh_tests::{Endpoint, Lab, Options, Output, Program, until};
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const SERVER: &str = "10.7.0.2";

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// Output of `rdma` in an endpoint of its own.
fn rdma(lab: &Lab, arguments: &str) -> String {
    lab.run_in(&Endpoint::at("tool", "blue", "10.7.0.9"), LIMIT, &words(&format!("rdma {arguments}"))).ok().text
}

/// Its output, beside other programs, in an existing endpoint.
fn rdma_beside(lab: &Lab, endpoint: &Endpoint, arguments: &str) -> Value {
    try_rdma_beside(lab, endpoint, arguments).unwrap_or_else(|text| panic!("rdma -j {arguments}:\n{text}"))
}

/// The same; an error where it fails, as it does before there is the endpoint.
fn try_rdma_beside(lab: &Lab, endpoint: &Endpoint, arguments: &str) -> Result<Value, String> {
    let directory = endpoint.dir(lab);
    let mut command = Command::new("rdma");
    command.args(["-j"]).args(words(arguments));
    command.env("LD_PRELOAD", directory.join("librdmesh.so")).env("RDMESH_ENDPOINT", &directory);
    let Output { status, text, .. } = Program::start(command).finish(LIMIT);
    let value = serde_json::from_str(&text).ok().filter(|_| status.success());
    value.ok_or(text)
}

fn objects(list: &Value) -> Vec<&Value> {
    list.as_array().into_iter().flatten().collect()
}

#[test]
fn the_rdma_tool_shows_the_device() {
    let lab = Lab::start();
    for (arguments, expected) in [
        ("link show", "link rxe0/1 state ACTIVE physical_state LINK_UP netdev eth0"),
        ("link show rxe0/1 -d", "netdev_index"),
        ("dev show", "0: rxe0: node_type ca node_guid 0052:0aff:fe07:0009"),
        ("-d dev show rxe0", "MEM_WINDOW_TYPE_2B"),
        ("system show", "netns exclusive copy-on-fork on"),
        ("resource show", "0: rxe0: pd 0 cq 0 qp 0 cm_id 0 mr 0 ctx 0 srq 0"),
        ("statistic show", "link rxe0/1 duplicate_request 0"),
        // Which counters a program may switch off: none.
        ("statistic mode", ""),
        ("statistic qp mode", "link rxe0/1 mode qp auto off"),
        ("-p -j link show", "\"ifname\": \"rxe0\""),
    ] {
        let text = rdma(&lab, arguments);
        assert!(text.contains(expected), "rdma {arguments}: no {expected:?} in:\n{text}");
    }
    let links: Value = serde_json::from_str(&rdma(&lab, "link show -j")).expect("JSON");
    let link = &links[0];
    assert_eq!((&link["ifname"], &link["port"], &link["netdev"]), (&"rxe0".into(), &1.into(), &"eth0".into()));
}

#[test]
fn the_rdma_tool_works_for_an_ordinary_user() {
    let lab = Lab::start_with(Options::ordinary_user());
    let text = lab.run_in(&Endpoint::new("tool"), LIMIT, &["rdma", "link", "show"]).ok().text;
    assert!(text.contains("link rxe0/1 state ACTIVE physical_state LINK_UP"), "{text}");
}

#[test]
fn the_device_is_not_the_tools_to_change() {
    let lab = Lab::start();
    for arguments in [
        "link add rxe1 type rxe netdev eth0",
        "link delete rxe0",
        "dev set rxe0 name other",
        "dev set rxe0 adaptive-moderation on",
        "system set netns shared",
        "statistic qp set link rxe0/1 auto type on",
        "resource show qp lqpn 17 -r",
    ] {
        let endpoint = Endpoint::at("tool", "blue", "10.7.0.9");
        let Output { status, text, .. } = lab.run_in(&endpoint, LIMIT, &words(&format!("rdma {arguments}")));
        let refused = !status.success() && text.contains("Operation not permitted");
        // Of raw data the tool has nothing to show.
        assert!(refused || arguments.ends_with("-r"), "rdma {arguments}: {status}\n{text}");
    }
    assert!(rdma(&lab, "dev show").contains("0: rxe0: "), "it is as it was");
}

#[test]
fn each_endpoint_sees_its_own_objects() {
    let lab = Lab::start();
    let (a, b) = (Endpoint::at("a", "blue", SERVER), Endpoint::at("b", "blue", "10.7.0.3"));
    let port = "18710";
    let mut server = lab.start_in(&a, &words(&format!("ib_write_bw -F -q 4 -D 600 -p {port}")));
    server.wait_listening(18710);
    let mut client = lab.start_in(&b, &words(&format!("ib_write_bw -F -q 4 -D 600 -p {port} {SERVER}")));
    // The side that is written to never sends.
    let is_connected = |qp: &Value| qp["state"] == "RTR" || qp["state"] == "RTS";
    let mut running = |endpoint: &Endpoint| {
        until(LIMIT, "four queue pairs are connected", || {
            assert!(server.is_running() && client.is_running(), "{}\n{}", server.text(), client.text());
            let list = try_rdma_beside(&lab, endpoint, "resource show qp").ok()?;
            (objects(&list).iter().filter(|qp| is_connected(qp)).count() == 4).then_some(list)
        })
    };
    let lists = [running(&a), running(&b)];
    let numbers = |list: &Value, what: &str| -> BTreeSet<u64> {
        objects(list).iter().filter_map(|object| object[what].as_u64()).collect()
    };
    assert_eq!(
        (numbers(&lists[0], "lqpn"), numbers(&lists[1], "lqpn")),
        (numbers(&lists[1], "rqpn"), numbers(&lists[0], "rqpn"))
    );
    assert!(numbers(&lists[0], "lqpn").is_disjoint(&numbers(&lists[1], "lqpn")));
    for qp in lists.iter().flat_map(objects) {
        assert_eq!((&qp["comm"], &qp["type"], &qp["ifname"]), (&"ib_write_bw".into(), &"RC".into(), &"rxe0".into()));
    }
    let pids = [numbers(&lists[0], "pid"), numbers(&lists[1], "pid")];
    assert!(pids.iter().all(|pids| pids.len() == 1) && pids[0] != pids[1], "{pids:?}");
    for (endpoint, pids) in [(&a, &pids[0]), (&b, &pids[1])] {
        for kind in ["pd", "cq", "mr", "ctx"] {
            let list = rdma_beside(&lab, endpoint, &format!("resource show {kind}"));
            assert!(!objects(&list).is_empty() && numbers(&list, "pid") == *pids, "{kind} of {pids:?}: {list}");
        }
        let counts = &rdma_beside(&lab, endpoint, "resource show")[0];
        assert_eq!((&counts["qp"], &counts["ctx"], &counts["srq"]), (&4.into(), &1.into(), &0.into()), "{counts}");
    }
    client.kill();
    server.kill();
    lab.wait_until_empty();
}

#[test]
fn connections_are_shown_with_their_addresses() {
    let lab = Lab::start();
    let (a, b) = (Endpoint::at("a", "blue", SERVER), Endpoint::at("b", "blue", "10.7.0.3"));
    let mut server = lab.start_in(&a, &words("ib_write_bw -F -R -D 600 -p 18711"));
    until(LIMIT, "the server listens", || lab.has_listener(&server).then_some(()));
    let listening = rdma_beside(&lab, &a, "resource show cm_id");
    assert!(objects(&listening).iter().any(|id| id["state"] == "LISTEN" && id["ps"] == "TCP"), "{listening}");
    let mut client = lab.start_in(&b, &words(&format!("ib_write_bw -F -R -D 600 -p 18711 {SERVER}")));
    let connected = until(LIMIT, "they are connected", || {
        assert!(server.is_running() && client.is_running(), "{}\n{}", server.text(), client.text());
        let list = try_rdma_beside(&lab, &b, "resource show cm_id").ok()?;
        objects(&list).into_iter().find(|id| id["state"] == "CONNECT" && id["comm"] == "ib_write_bw").cloned()
    });
    let source = connected["src-addr"].as_str().unwrap_or_default();
    assert!(source.starts_with("10.7.0.3:"), "{connected}");
    assert_eq!(
        (&connected["dst-addr"], &connected["qp-type"]),
        (&"10.7.0.2:18711".into(), &"RC".into()),
        "{connected}"
    );
    assert_eq!(connected["comm"], "ib_write_bw");
    client.kill();
    server.kill();
    lab.wait_until_empty();
}

/// libibverbs asks by netlink first, and looks through the tree for `/sys` only where that fails.
#[test]
fn libibverbs_finds_the_device_by_netlink() {
    let lab = Lab::start();
    let endpoint = Endpoint::at("tool", "blue", SERVER);
    let traced = lab.run_in(&endpoint, LIMIT, &words("strace -f -e trace=openat,open ibv_devices")).ok().text;
    assert!(traced.contains("rxe0            \t00520afffe"), "{traced}");
    assert!(!traced.contains("class/infiniband_verbs"), "it looked through the tree:\n{traced}");
    let text = lab.run_in(&endpoint, LIMIT, &["ibv_devinfo", "-v"]).ok().text;
    assert!(text.contains("PORT_ACTIVE") && text.contains("::ffff:10.7.0.2, RoCE v2"), "{text}");
}

/// Correct and incorrect uses of such a socket.
#[test]
fn a_netlink_socket_behaves_as_one_whatever_it_is_sent() {
    let lab = Lab::start();
    let script = rdmesh_tests::root().join("tests/programs/netlink.py");
    let script = lab.share(&script);
    let command = ["/usr/bin/python3".as_ref(), script.as_os_str()];
    let text = lab.run_in(&Endpoint::at("tool", "blue", SERVER), LIMIT, &command).ok().text;
    assert!(text.contains("all is as it should be"), "{text}");
    lab.wait_until_empty();
    assert!(rdma(&lab, "dev show").contains("0: rxe0: "), "the router goes on");
}
