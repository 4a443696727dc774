//! Router restart: programs of a killed router get an error, and the next router restores its endpoints.

use rdmesh_tests::{Endpoint, Hosts, Lab, Options, Peer, Program, system, until};
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
/// `ibv_event_type_str(IBV_EVENT_DEVICE_FATAL)`.
const DEVICE_FATAL: &str = "local catastrophic error";
/// EIO, as every command and every later read of events says of a device that has gone.
const GONE: &str = "errno 5";
const OWN_KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// Kills the router as a fault would.
fn kill_router(lab: &Lab) {
    system::kill(lab.router_pid());
    until(LIMIT, "the router is dead", || UnixStream::connect(lab.dir().join("api.sock")).is_err().then_some(()));
}

fn up(lab: &Lab, options: &[&str]) -> String {
    lab.command(&[&["up"], options].concat()).ok().text
}

fn endpoints(lab: &Lab) -> Vec<Value> {
    serde_json::from_str(&lab.command(&["endpoint", "ls", "--json"]).ok().text).expect("JSON")
}

/// Waits until `peer` is told that its device has gone.
fn expect_fatal(peer: &mut Peer) {
    let events = until(LIMIT, "an event", || Some(peer.events()).filter(|events| !events.is_empty()));
    assert_eq!(events, [DEVICE_FATAL, GONE]);
    assert_eq!(peer.events(), [GONE], "told once");
    assert_eq!(peer.ask("alloc"), GONE);
}

fn exchange(a: &mut Peer, b: &mut Peer) {
    Peer::connect(a, b);
    a.ask("fill 7 4096");
    a.ask("post write 4096");
    assert_eq!(a.completion().0, "success");
    assert_eq!(b.ask("check 7 4096"), "match");
}

#[test]
fn programs_see_a_pulled_device_and_open_it_again() {
    let lab = Lab::start();
    let mut a = Peer::start(&lab, &Endpoint::at("a", "blue", "10.7.0.2"), &["rc"]);
    let mut b = Peer::start(&lab, &Endpoint::at("b", "blue", "10.7.0.3"), &["rc"]);
    let add = ["endpoint", "add", "kept", "--net", "blue", "--ip", "10.7.0.9", "--namespace", "--max-qps", "7"];
    lab.command(&add).ok();
    exchange(&mut a, &mut b);
    let before = endpoints(&lab);
    kill_router(&lab);
    expect_fatal(&mut a);
    expect_fatal(&mut b);
    let said = up(&lab, &[]);
    assert!(said.contains("3 endpoints are restored"), "{said}");
    assert_eq!(endpoints(&lab), before, "addresses, quotas, namespaces, owners");
    a.reopen();
    b.reopen();
    exchange(&mut a, &mut b);
    // The network, too, is what it was: a new endpoint finds the old ones on it, by verbs and by IP.
    let mut c = Peer::start(&lab, &Endpoint::at("c", "blue", "10.7.0.4"), &["rc"]);
    a.reopen();
    exchange(&mut c, &mut a);
    let target = "import socket; s = socket.socket(); s.settimeout(30)\ntry: s.connect(('10.7.0.9', 9))\nexcept ConnectionRefusedError: print('answered')";
    let ip = lab.run_in(&Endpoint::at("d", "blue", "10.7.0.5"), LIMIT, &["/usr/bin/python3", "-c", target]).ok().text;
    assert_eq!(ip.trim(), "answered");
    [a, b, c].into_iter().for_each(Peer::quit);
    until(LIMIT, "owned endpoints go with their programs", || (endpoints(&lab).len() == 1).then_some(()));
}

/// As in a container of the router's image.
#[test]
fn endpoints_are_restored_where_there_is_no_nft() {
    let lab = Lab::start();
    for n in 0..20 {
        lab.command(&["endpoint", "add", &format!("e{n}"), "--namespace"]).ok();
    }
    kill_router(&lab);
    let mut up = lab.rdmesh();
    // The router runs no other program.
    up.env("PATH", "/nonexistent").arg("up");
    let said = Program::start(up).finish(LIMIT).ok().text;
    assert!(said.contains("20 endpoints are restored"), "{said}");
    assert_eq!(endpoints(&lab).len(), 20);
}

/// As service managers and Kubernetes end a router whose next version is to follow.
#[test]
fn a_router_that_keeps_endpoints_leaves_them_to_the_next() {
    let lab = Lab::start_with(Options { up: vec!["--keep-endpoints".to_owned()], ..Options::default() });
    let mut a = Peer::start(&lab, &Endpoint::at("a", "blue", "10.7.0.2"), &["rc"]);
    lab.command(&["endpoint", "add", "kept", "--net", "blue", "--namespace"]).ok();
    let before = endpoints(&lab);
    terminate(&lab);
    expect_fatal(&mut a);
    let said = up(&lab, &[]);
    assert!(said.contains("2 endpoints are restored"), "{said}");
    assert_eq!(endpoints(&lab), before);
    a.reopen();
    a.quit();
    until(LIMIT, "its endpoint goes with it", || (endpoints(&lab).len() == 1).then_some(()));
    // The next one does not: it was not told to.
    terminate(&lab);
    let said = up(&lab, &["--keep-endpoints"]);
    assert!(!said.contains("restored") && endpoints(&lab).is_empty(), "{said}");
    lab.command(&["endpoint", "add", "kept", "--net", "blue", "--namespace"]).ok();
    lab.command(&["down"]).ok();
    up(&lab, &[]);
    assert!(endpoints(&lab).is_empty(), "`rdmesh down` removes them");
}

/// Ends the router as a service manager does.
fn terminate(lab: &Lab) {
    // Its lock is free when it has ended.
    let lock = File::open(lab.dir().join("lock")).expect("a router's lock");
    system::terminate(lab.router_pid());
    until(LIMIT, "the router has ended", || flock(&lock, FlockOperation::NonBlockingLockShared).ok());
}

#[test]
fn what_ended_while_there_was_no_router_is_not_restored() {
    let lab = Lab::start();
    let mut a = Peer::start(&lab, &Endpoint::at("a", "blue", "10.7.0.2"), &["rc"]);
    kill_router(&lab);
    a.kill();
    drop(a);
    up(&lab, &[]);
    assert_eq!(endpoints(&lab), Vec::<Value>::new());
    let namespaces = std::fs::read_dir(lab.dir().join("netns")).expect("the router has namespaces");
    assert_eq!(namespaces.count(), 0);
}

#[test]
fn a_container_finds_the_next_router_in_the_directory_that_it_has_mounted() {
    let lab = Lab::start();
    lab.command(&["endpoint", "add", "c"]).ok();
    let (directory, inside) = (Endpoint::new("c").dir(&lab), lab.shared());
    std::fs::create_dir_all(&inside).expect("the folder is ours");
    let script = format!(
        "mount --bind {} {inside} && echo mounted && read go && LD_PRELOAD={inside}/librdmesh.so ibv_devinfo",
        directory.display(),
        inside = inside.display()
    );
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--propagation", "slave", "sh", "-c", &script]);
    let mut container = Program::start(unshare);
    assert_eq!(container.next_line(LIMIT), "mounted");
    kill_router(&lab);
    up(&lab, &[]);
    container.say("go");
    let text = container.finish(LIMIT).ok().text;
    assert!(text.contains("PORT_ACTIVE"), "{text}");
}

#[test]
fn an_ordinary_users_router_is_restored_too() {
    let lab = Lab::start_with(Options::ordinary_user());
    let mut a = Peer::start(&lab, &Endpoint::new("a"), &["rc"]);
    lab.command(&["endpoint", "add", "kept"]).ok();
    let before = endpoints(&lab);
    kill_router(&lab);
    expect_fatal(&mut a);
    up(&lab, &["--rootless"]);
    assert_eq!(endpoints(&lab), before);
    a.reopen();
    let mut b = Peer::start(&lab, &Endpoint::new("b"), &["rc"]);
    exchange(&mut a, &mut b);
}

/// Two hosts that share a key of their own, and the file in which the first one's router keeps it.
fn hosts_with_an_own_key() -> (Hosts, PathBuf) {
    let mut hosts = Hosts::start();
    let key = hosts.key_file(OWN_KEY);
    for (number, other) in [(0, "host1"), (1, "host0")] {
        hosts.lab(number).command(&["peer", "rotate", other, "--key", &key]).ok();
    }
    for number in [0, 1] {
        until(LIMIT, "the new key is used", || {
            let tunnel = hosts.lab(number).api("/v1/tunnel");
            (tunnel["hosts"][0]["is_changing_key"] == false).then_some(())
        });
    }
    let file = hosts.lab(0).dir().join("keys");
    (hosts, file)
}

#[test]
fn a_single_hosts_key_is_there_after_a_routers_death() {
    let (hosts, file) = hosts_with_an_own_key();
    kill_router(hosts.lab(0));
    hosts.lab(0).up_again();
    hosts.wait_for_sessions();
    let start = |number| Peer::start(hosts.lab(number), &Hosts::endpoint(number, "blue"), &["rc", "14", "7"]);
    exchange(&mut start(0), &mut start(1));
    assert_eq!(fs::metadata(&file).expect("it is there").permissions().mode() & 0o7777, 0o600);
    // A host that is no more has no key any more, and neither has a router that ended well.
    hosts.lab(0).command(&["peer", "rm", "host1"]).ok();
    assert_eq!(fs::read_to_string(&file).expect("it is there"), "{}");
    hosts.lab(0).command(&["down"]).ok();
    assert!(!file.exists());
    hosts.lab(0).up_again();
}

#[test]
fn keys_that_others_could_have_read_or_written_are_not_used() {
    let (hosts, file) = hosts_with_an_own_key();
    let lab = hosts.lab(0);
    kill_router(lab);
    let expect_refusal = |why: &str| {
        let output = lab.command(&["up"]);
        assert!(!output.status.success() && output.text.contains(why), "{}", output.text);
    };
    let set_mode = |mode| fs::set_permissions(&file, Permissions::from_mode(mode)).expect("it is ours");
    set_mode(0o644);
    expect_refusal("`chmod 600` it");
    set_mode(0o600);
    chown(&file, Some(65_533), None).expect("root gives away what it likes");
    expect_refusal("not a regular file of this user's own: remove it");
    chown(&file, Some(0), None).expect("root takes what it likes");
    let keys = fs::read_to_string(&file).expect("it is ours");
    fs::write(&file, keys.replace(OWN_KEY, "no key")).expect("it is ours");
    expect_refusal("rdmesh peer rotate HOST --key FILE");
    fs::write(&file, keys).expect("it is ours");
    lab.up_again();
    hosts.wait_for_sessions();
}

#[test]
fn down_removes_what_a_dead_router_left() {
    let lab = Lab::start();
    lab.command(&["endpoint", "add", "a", "--namespace"]).ok();
    kill_router(&lab);
    let said = lab.command(&["down"]).ok().text;
    assert!(said.contains("it had died"), "{said}");
    let mut left: Vec<_> =
        std::fs::read_dir(lab.dir()).expect("it is there").flatten().map(|e| e.file_name()).collect();
    left.sort();
    assert_eq!(left, ["lock", "router.log"]);
    up(&lab, &[]);
    assert_eq!(endpoints(&lab), Vec::<Value>::new());
}

#[test]
fn a_removed_endpoint_is_a_pulled_device() {
    let lab = Lab::start();
    let mut a = Peer::start(&lab, &Endpoint::new("a"), &["rc"]);
    lab.command(&["endpoint", "rm", "a"]).ok();
    expect_fatal(&mut a);
}

/// A network namespace with a name, which stands for a host.
struct Host(String);

impl Host {
    fn new() -> Self {
        let host = Self(format!("rdmesh-restart-{}", std::process::id()));
        host.ip(&["netns", "add", &host.0]);
        host.ip(&["-n", &host.0, "link", "set", "lo", "up"]);
        host.ip(&["-n", &host.0, "link", "add", "nic0", "type", "veth", "peer", "name", "cable0"]);
        host
    }

    fn ip(&self, arguments: &[&str]) {
        assert!(Command::new("ip").args(arguments).status().expect("ip(8)").success(), "{arguments:?}");
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

#[test]
fn attached_interfaces_stay_attached() {
    let host = Host::new();
    let lab = Lab::start_with(Options { netns: Some(host.0.clone()), ..Options::default() });
    lab.command(&["network", "attach", "blue", "nic0"]).ok();
    kill_router(&lab);
    up(&lab, &[]);
    let networks: Value = serde_json::from_str(&lab.command(&["network", "ls", "--json"]).ok().text).expect("JSON");
    assert_eq!((&networks[0]["name"], &networks[0]["interfaces"][0]), (&"blue".into(), &"nic0".into()));
    lab.command(&["network", "detach", "blue", "nic0"]).ok();
    host.ip(&["-n", &host.0, "link", "show", "nic0"]);
}
