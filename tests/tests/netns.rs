//! Network namespaces that are given to endpoints, as orchestrators do.

use rdmesh_tests::{Endpoint, Lab, Namespace, Program, system, until};
use std::fs;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
/// The port of `ibv_rc_pingpong`.
const PORT: u16 = 18515;

fn add(lab: &Lab, name: &str, address: &str, netns: &str) {
    lab.command(&["endpoint", "add", name, "--net", "blue", "--ip", address, "--netns", netns]).ok();
}

/// Programs in both namespaces reach each other, by plain IP and by RDMA.
fn exchange(lab: &Lab, a: &Namespace, b: &Namespace) {
    let pingpong = ["ibv_rc_pingpong", "-g", "1", "-c", "-n", "100"];
    let mut server = a.start(lab, "a", &pingpong);
    server.wait_listening(PORT);
    let client = b.start(lab, "b", &[&pingpong[..], &["10.7.0.2"]].concat());
    client.finish(LIMIT).ok();
    server.finish(LIMIT).ok();
}

#[test]
fn a_given_namespace_is_used_and_only_the_interface_goes() {
    let lab = Lab::start();
    let (a, b) = (Namespace::new(), Namespace::new());
    let before = fs::read_link(a.file()).expect("a namespace");
    add(&lab, "a", "10.7.0.2", &a.file());
    // By a descriptor that the command has open.
    let mut by_descriptor = Command::new("sh");
    by_descriptor.args(["-c", "exec \"$@\" 3<\"$0\"", &b.file()]).arg(lab.rdmesh().get_program());
    by_descriptor.args(["endpoint", "add", "b", "--net", "blue", "--ip", "10.7.0.3", "--netns", "/dev/fd/3"]);
    by_descriptor.env("RDMESH_STATE", lab.dir());
    Program::start(by_descriptor).finish(LIMIT).ok();
    assert_eq!(a.interfaces(), ["eth0", "lo"]);
    exchange(&lab, &a, &b);
    lab.command(&["endpoint", "rm", "a", "--net", "blue"]).ok();
    assert_eq!(a.interfaces(), ["lo"]);
    assert_eq!(fs::read_link(a.file()).expect("a namespace"), before);
    lab.command(&["down"]).ok();
    assert_eq!(b.interfaces(), ["lo"]);
    assert!(!lab.dir().join("netns").exists());
}

/// For plain IP, and for queue pairs, whose packets are whole powers of two with their headers.
#[test]
fn a_network_has_the_mtu_that_it_is_given() {
    let lab = Lab::start();
    let small = lab.command(&["network", "add", "blue", "--subnet", "10.7.0.0/24", "--mtu", "1000"]);
    assert!(!small.status.success() && small.text.contains("at least 1280"), "{}", small.text);
    lab.command(&["network", "add", "blue", "--subnet", "10.7.0.0/24", "--mtu", "1400"]).ok();
    let listed = lab.command(&["network", "ls"]).ok().text;
    assert!(listed.contains("1400"), "{listed}");
    let end = Endpoint::new("a").with(&["--net", "blue"]);
    let shown = lab.run_in(&end, LIMIT, &["sh", "-c", "cat /sys/class/net/*/mtu; ibv_devinfo"]).ok().text;
    assert!(shown.lines().any(|line| line == "1400"), "{shown}");
    let active = shown.lines().find(|line| line.contains("active_mtu")).expect("a port");
    assert!(active.contains("1024"), "{active}");
}

#[test]
fn a_namespace_with_such_an_interface_is_refused_and_stays_as_it_is() {
    let lab = Lab::start();
    let (a, b) = (Namespace::new(), Namespace::new());
    add(&lab, "a", "10.7.0.2", &a.file());
    add(&lab, "b", "10.7.0.3", &b.file());
    let again = ["endpoint", "add", "c", "--net", "blue", "--netns", &a.file()];
    let refused = lab.command(&again);
    let remedy = "it has an interface `eth0` already: choose another name with --interface";
    assert!(!refused.status.success() && refused.text.contains(remedy), "{}", refused.text);
    lab.command(&[&again[..], &["--interface", "net1", "--ip", "10.7.0.4"]].concat()).ok();
    assert_eq!(a.interfaces(), ["eth0", "lo", "net1"]);
    let device = lab.dir().join("endpoints/blue.c/sys/class/infiniband/rxe0/parent");
    assert_eq!(fs::read_to_string(device).expect("an endpoint's tree"), "net1\n");
    let no_place = lab.command(&["endpoint", "add", "d", "--net", "blue", "--interface", "net1"]);
    assert!(!no_place.status.success() && no_place.text.contains("add --netns"), "{}", no_place.text);
    lab.command(&["endpoint", "rm", "c", "--net", "blue"]).ok();
    assert_eq!(a.interfaces(), ["eth0", "lo"]);
    let no_namespace = lab.command(&["endpoint", "add", "c", "--net", "blue", "--netns", "/dev/null"]);
    assert!(!no_namespace.status.success() && no_namespace.text.contains("no namespace"), "{}", no_namespace.text);
    exchange(&lab, &a, &b);
}

#[test]
fn the_next_router_goes_on_with_a_given_namespace() {
    let lab = Lab::start();
    let (a, b) = (Namespace::new(), Namespace::new());
    add(&lab, "a", "10.7.0.2", &a.file());
    add(&lab, "b", "10.7.0.3", &b.file());
    system::kill(lab.router_pid());
    until(LIMIT, "the router is dead", || UnixStream::connect(lab.dir().join("api.sock")).is_err().then_some(()));
    lab.up_again();
    assert_eq!(a.interfaces(), ["eth0", "lo"]);
    exchange(&lab, &a, &b);
}
