//! Pools: endpoints that are made ahead, share a network namespace, and go from one program to the next.

use rdmesh_tests::{Cluster, Endpoint, Lab, Output, Program, all, system, until};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
/// Between the endpoints of one test.
const PORT: u16 = 18_760;

/// A program in an endpoint of a pool.
fn start(lab: &Lab, pool: &str, command: &[&str]) -> Program {
    let mut run = lab.rdmesh();
    run.args(["run", "--net", "blue", "--pool", pool, "--"]).args(command);
    Program::start(run)
}

fn create(lab: &Lab, pool: &str, size: u32, rest: u32) {
    let (size, rest) = (size.to_string(), rest.to_string());
    let mut command = vec!["pool", "create", pool, "--net", "blue", "--size", &size, "--rest", &rest];
    // Without control groups of version 2 no program can be held to its address: `confinement.rs` has the tests of that.
    command.extend(system::cgroup2().is_none().then_some("--share-addresses"));
    lab.command(&command).ok();
}

fn acquire(lab: &Lab, pool: &str, count: u32) -> Vec<Value> {
    let acquired =
        lab.command(&["endpoint", "acquire", pool, "--net", "blue", "--n", &count.to_string(), "--json"]).ok();
    serde_json::from_str(&acquired.text).expect("a list of endpoints")
}

fn release(lab: &Lab, names: &[String]) -> Output {
    let mut command = vec!["endpoint", "release", "--net", "blue"];
    command.extend(names.iter().map(String::as_str));
    lab.command(&command)
}

fn names(endpoints: &[Value]) -> Vec<String> {
    endpoints.iter().map(|endpoint| endpoint["name"].as_str().expect("a name").to_owned()).collect()
}

fn address(endpoint: &Value) -> String {
    endpoint["addresses"][0].as_str().expect("an address").to_owned()
}

/// Endpoints of the only pool that are ready, acquired and resting.
fn counts(lab: &Lab) -> [u64; 3] {
    let pools = lab.api("/v1/pools");
    ["ready", "acquired", "resting"].map(|state| pools[0][state].as_u64().expect("a number"))
}

#[test]
fn programs_of_a_pool_have_a_device_with_an_address_of_their_own() {
    let lab = Lab::start();
    create(&lab, "fn", 4, 600);
    let port = PORT.to_string();
    let bandwidth = ["ib_write_bw", "-F", "-p", &port, "-s", "4096", "-n", "300"];
    let mut server = start(&lab, "fn", &bandwidth);
    server.wait_listening(PORT);
    assert_eq!(counts(&lab), [3, 1, 0]);
    let endpoints = lab.api("/v1/endpoints");
    let owned = endpoints.as_array().and_then(|all| all.iter().find(|e| e["owner_pid"] == server.pid()));
    let server_address = address(owned.expect("the endpoint of the server"));
    // From an ordinary endpoint of the network, through the bridge and a device of its own.
    let client: Vec<&str> = bandwidth.iter().copied().chain([server_address.as_str()]).collect();
    lab.run_in(&Endpoint::new("outside").with(&["--net", "blue"]), LIMIT, &client).ok();
    server.finish(LIMIT).ok();
    // Two of one pool: each has its own address in its table of GIDs, and no other.
    let gids = "cat /sys/class/infiniband/*/ports/1/gids/1";
    let mut seen = BTreeSet::new();
    for _ in 0..2 {
        let gid = start(&lab, "fn", &["sh", "-c", gids]).finish(LIMIT).ok();
        assert!(seen.insert(gid.text.trim().to_owned()), "two endpoints have the GID {}", gid.text);
    }
    until(LIMIT, "what the programs had rests", || (counts(&lab) == [1, 0, 3]).then_some(()));
    let limited = lab.command(&["run", "--net", "blue", "--pool", "fn", "--max-qps", "1", "--", "true"]);
    assert!(!limited.status.success() && limited.text.contains("cannot be used with"), "{}", limited.text);
    let empty = lab.command(&["endpoint", "acquire", "fn", "--net", "blue", "--n", "2"]);
    assert!(!empty.status.success() && empty.text.contains("1 endpoints ready, and 3 that rest"), "{}", empty.text);
}

#[test]
fn many_are_reachable_at_once_and_go_back() {
    let count = if all() { 1000 } else { 150 };
    let lab = Lab::start();
    create(&lab, "fn", count, 0);
    let acquired = acquire(&lab, "fn", count);
    let addresses: BTreeSet<String> = acquired.iter().map(address).collect();
    assert_eq!((addresses.len(), counts(&lab)), (count as usize, [0, u64::from(count), 0]));
    // A server in the namespace that they share, and a client that asks at each address.
    let namespace = acquired[0]["namespace"].as_str().expect("a namespace").to_owned();
    let server = "import socket\ns = socket.create_server(('0.0.0.0', 18761), backlog=4096)\nwhile True:\n    c, _ = s.accept()\n    \
                  c.sendall(c.getsockname()[0].encode()); c.close()";
    let mut inside = std::process::Command::new("nsenter");
    inside.arg(format!("--net={namespace}")).args(["python3", "-c", server]);
    let mut server = Program::start(inside);
    server.wait_listening(18761);
    let list: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let client = format!(
        "import socket\nfor a in {list:?}:\n    s = socket.create_connection((a, 18761), 20)\n    assert s.recv(64).decode() == a\nprint('all')"
    );
    let asked = lab.run_in(&Endpoint::new("outside").with(&["--net", "blue"]), LIMIT, &["python3", "-c", &client]).ok();
    assert!(asked.text.contains("all"), "{}", asked.text);
    server.kill();
    // A pool in use stays; each endpoint is released once.
    let busy = lab.command(&["pool", "rm", "fn", "--net", "blue"]);
    assert!(!busy.status.success() && busy.text.contains("are acquired"), "{}", busy.text);
    let all_names = names(&acquired);
    // One of them is named twice.
    release(&lab, &[&all_names[..], &all_names[..1]].concat()).ok();
    assert_eq!(acquire(&lab, "fn", count).iter().map(address).collect::<BTreeSet<_>>(), addresses);
    release(&lab, &all_names).ok();
    let twice = release(&lab, &all_names[..1]);
    assert!(!twice.status.success() && twice.text.contains("is not acquired"), "{}", twice.text);
    let alone = lab.command(&["endpoint", "rm", &all_names[0], "--net", "blue"]);
    assert!(!alone.status.success() && alone.text.contains("rdmesh endpoint release"), "{}", alone.text);
    // It shrinks and grows, and leaves nothing behind.
    lab.command(&["pool", "resize", "fn", "--net", "blue", "--size", "3"]).ok();
    assert_eq!(counts(&lab), [3, 0, 0]);
    let mut listing = std::process::Command::new("nsenter");
    listing.arg(format!("--net={namespace}")).args(["ip", "-4", "-o", "address", "show", "dev", "eth0"]);
    assert_eq!(Program::start(listing).finish(LIMIT).ok().text.lines().count(), 3);
    lab.command(&["pool", "resize", "fn", "--net", "blue", "--size", "5"]).ok();
    assert_eq!(counts(&lab), [5, 0, 0]);
    lab.command(&["pool", "rm", "fn", "--net", "blue"]).ok();
    assert_eq!(lab.api("/v1/endpoints"), Value::Array(Vec::new()));
    let left = |folder: &str| fs::read_dir(lab.dir().join(folder)).map(Iterator::count).unwrap_or_default();
    assert_eq!((left("netns"), left("endpoints")), (0, 0));
}

#[test]
fn an_endpoint_of_a_pool_has_nothing_of_its_last_user() {
    let lab = Lab::start();
    create(&lab, "fn", 1, 1);
    let holding = "ibv_rc_pingpong -p 18762 & echo started; wait";
    let mut first = start(&lab, "fn", &["sh", "-c", holding]);
    first.next_line(LIMIT);
    until(LIMIT, "it has a device", || (!lab.api("/v1/contexts").as_array()?.is_empty()).then_some(()));
    let before = lab.api("/v1/endpoints")[0].clone();
    first.kill();
    until(LIMIT, "its devices are closed", || lab.api("/v1/contexts").as_array()?.is_empty().then_some(()));
    until(LIMIT, "the endpoint is given back", || (counts(&lab)[1] == 0).then_some(()));
    // It rests for a second, and then the next one has the same address and a fresh device.
    let next = until(LIMIT, "it is given again", || {
        let next = start(&lab, "fn", &["ibv_devices"]).finish(LIMIT);
        next.status.success().then_some(next)
    });
    assert!(next.text.contains("rxe0"), "{}", next.text);
    assert_eq!(lab.api("/v1/endpoints")[0]["addresses"], before["addresses"]);
}

#[test]
fn a_pool_outlives_its_router() {
    let lab = Lab::start();
    create(&lab, "fn", 3, 1);
    let kept = acquire(&lab, "fn", 1);
    let mut owner = start(&lab, "fn", &["sh", "-c", "echo started; sleep 1000"]);
    owner.next_line(LIMIT);
    let mut gone = start(&lab, "fn", &["sh", "-c", "echo started; sleep 1000"]);
    gone.next_line(LIMIT);
    system::kill(lab.router_pid());
    gone.kill();
    lab.up_again();
    // What was acquired is, but for the endpoint of a program that has ended meanwhile.
    until(LIMIT, "one is ready again", || (counts(&lab) == [1, 2, 0]).then_some(()));
    release(&lab, &names(&kept)).ok();
    owner.kill();
    until(LIMIT, "all are ready", || (counts(&lab) == [3, 0, 0]).then_some(()));
    start(&lab, "fn", &["ibv_devinfo"]).finish(LIMIT).ok();
}

#[test]
fn other_hosts_reach_the_endpoints_of_a_pool() {
    let cluster = Cluster::start(2, "session=3,tenure=60,quarantine=2");
    let mut outside = cluster.site(1, "blue", "outside", None);
    until(LIMIT, "the pool is made", || {
        let mut create = vec!["pool", "create", "fn", "--net", "blue", "--size", "20"];
        create.extend(system::cgroup2().is_none().then_some("--share-addresses"));
        let made = cluster.lab(0).command(&create);
        made.status.success().then_some(())
    });
    let acquired = acquire(cluster.lab(0), "fn", 20);
    let wanted: Vec<(String, usize)> = acquired.iter().map(|endpoint| (address(endpoint), 0)).collect();
    let wanted: Vec<(&str, usize)> = wanted.iter().map(|(address, host)| (address.as_str(), *host)).collect();
    cluster.wait_for(1, "blue", &wanted);
    for (address, _) in &wanted {
        outside.run(&format!("ping -c 1 -W 5 {address}"));
    }
    release(cluster.lab(0), &names(&acquired[..1])).ok();
    let early = cluster.lab(0).command(&["endpoint", "acquire", "fn", "--net", "blue"]);
    assert!(early.text.contains("0 endpoints ready, and 1 that rest"), "{}", early.text);
    cluster.lab(0).command(&["pool", "resize", "fn", "--net", "blue", "--size", "21"]).ok();
    let mut server = start(cluster.lab(0), "fn", &["ib_write_bw", "-F", "-p", "18763", "-s", "4096", "-n", "300"]);
    server.wait_listening(18763);
    let endpoints = cluster.lab(0).api("/v1/endpoints");
    let own = endpoints.as_array().and_then(|all| all.iter().find(|e| e["owner_pid"] == server.pid())).cloned();
    let ip = address(&own.expect("the server's endpoint"));
    let client = format!("timeout 60 ib_write_bw -F -p 18763 -s 4096 -n 300 {ip}");
    until(LIMIT, "the new endpoint is reached", || outside.try_run(&format!("ping -c 1 -W 1 {ip}")).0.then_some(()));
    outside.run(&client);
    server.finish(LIMIT).ok();
}
