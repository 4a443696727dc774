//! Groups and policies in the store: set on one host, they hold for programs on others, also for what is connected.

use crate::routers::router;
use rdmesh_tests::etcd::{Etcd, Security, in_network};
use rdmesh_tests::{Endpoint, Lab, Pair, Program, bandwidth_rows, helper, until};
use std::time::{Duration, Instant};

/// Runs a command, as soon as the router has joined.
fn command(lab: &Lab, arguments: &str) {
    let words: Vec<&str> = arguments.split_whitespace().collect();
    until(LIMIT, arguments, || {
        let output = lab.command(&words);
        let is_early = output.text.contains("not joined the cluster yet");
        (!is_early).then(|| output.ok())
    });
}

/// An endpoint of the tenant's network.
fn endpoint(name: &str) -> Endpoint {
    Endpoint::new(name).with(&["--net", "blue"])
}

/// A queue pair on `lab` that is connected to an address, and says what becomes of it.
fn watched(lab: &Lab, name: &str, address: &str) -> Program {
    lab.start_in(&endpoint(name), &[helper("watched").display().to_string(), address.to_owned()])
}

/// Waits until a new queue pair is connected to `address`, or refused, as `says`.
fn wait_for(lab: &Lab, address: &str, says: &str) -> Program {
    until(LIMIT, says, || {
        let mut program = watched(lab, "watcher", address);
        let is_as_wanted = program.next_line(LIMIT).starts_with(says);
        if !is_as_wanted {
            program.kill();
            lab.wait_until_empty();
        }
        is_as_wanted.then_some(program)
    })
}

/// The end of a queue pair, by the event that its program gets, after a command on `lab`.
fn ends_by(mut program: Program, lab: &Lab, arguments: &str) {
    let started = Instant::now();
    command(lab, arguments);
    let line = program.next_line(LIMIT);
    println!("{arguments}: in effect after {:?}, the command included", started.elapsed());
    assert!(line.contains("catastrophic") && line.ends_with("state 6"), "{line}");
    program.finish(LIMIT).ok();
}

#[test]
fn a_group_set_on_one_host_holds_on_the_others() {
    in_network(|| async {
        let etcd = Etcd::start(1, Security::None);
        let [a, b] = [0, 1].map(|number| router(number, &etcd.url()));
        command(&a, "tenant add acme --max-networks 1");
        command(&a, "network add blue --tenant acme --subnet 10.7.0.0/24");
        let refused = b.command(&["network", "add", "red", "--tenant", "acme", "--subnet", "10.7.0.0/24"]);
        assert!(refused.text.contains("as many networks as it may"), "{}", refused.text);
        command(&b, "endpoint add server --net blue --ip 10.7.0.9");
        command(&a, "endpoint add stays --net blue");
        // Set where the endpoint is not; the peer is on this host, and then on the other.
        ends_by(
            wait_for(&a, "10.7.0.9", "connected"),
            &a,
            "group set db --net blue --member server --from endpoint/other",
        );
        wait_for(&a, "10.7.0.9", "refused: Permission denied").finish(LIMIT).ok();
        assert!(a.metric("rdmesh_groups_refused_total") >= 1.0 && a.metric("rdmesh_groups_ended_total") >= 1.0);
        command(&b, "group set db --net blue --member server --from endpoint/watcher --from 10.7.0.77@1-2");
        one_direction(&a, &b);
        command(&b, "group set db --net blue --member server --from endpoint/watcher --to endpoint/watcher");
        ends_by(wait_for(&a, "10.7.0.9", "connected"), &b, "group set db --net blue --member server");
        let shown = a.command(&["group", "ls"]).ok().text;
        assert!(shown.contains("blue") && shown.contains("server"), "{shown}");
        command(&a, "group rm db --net blue");
        wait_for(&a, "10.7.0.9", "connected").kill();
        bandwidth_ends(&a, &b);
        command(&b, "group rm apart --net blue");
        rate_of_another_host(&a, &b);
    });
}

/// Where a rule lets an endpoint begin a connection to another, and not the other way round, one by rdma_cm carries both
/// directions, and nothing else does.
fn one_direction(a: &Lab, b: &Lab) {
    wait_for(a, "10.7.0.9", "refused: Permission denied").finish(LIMIT).ok();
    command(b, "group set one-way --net blue --member listener --from endpoint/caller@7471");
    let at = |number: u8| format!("10.7.0.{number}");
    let rping = |address: &str, more: &str| -> Vec<String> {
        format!("rping -a {address} -p 7471 -C 10 -V {more}").split_whitespace().map(str::to_owned).collect()
    };
    let [listener, caller] = [("listener", 21), ("caller", 22)].map(|(name, n)| Endpoint::at(name, "blue", &at(n)));
    let server = b.start_in(&listener, &rping(&at(21), "-s"));
    until(LIMIT, "one that may call is answered", || {
        a.run_in(&caller, LIMIT, &rping(&at(21), "-c")).status.success().then_some(())
    });
    server.finish(LIMIT).ok();
    let server = a.start_in(&caller, &rping(&at(22), "-s"));
    // Until the host has heard of it, there is no way to it.
    until(LIMIT, "one that may only be called is refused", || {
        let refused = b.run_in(&listener, LIMIT, &rping(&at(22), "-c"));
        assert!(!refused.status.success(), "{}", refused.text);
        refused.text.contains("REJECTED").then_some(())
    });
    drop(server);
    command(b, "group rm one-way --net blue");
}

/// A transfer between the hosts ends when its sides are kept apart.
fn bandwidth_ends(a: &Lab, b: &Lab) {
    let port = Pair::PORT.to_string();
    let options = ["ib_write_bw", "-x", "1", "-D", "60", "-p", &port].map(str::to_owned).to_vec();
    let mut server = b.start_in(&endpoint("bws"), &options);
    server.wait_listening(Pair::PORT);
    let client = a.start_in(&endpoint("bwc"), &[options, vec!["127.0.0.1".to_owned()]].concat());
    let sent = || a.metric("rdmesh_io_sent_datagrams_total");
    let before = sent();
    until(LIMIT, "the transfer goes on", || (sent() > before + 1000.0).then_some(()));
    let started = Instant::now();
    command(a, "group set apart --net blue --member bws");
    let output = client.finish(LIMIT);
    println!("ib_write_bw has ended after {:?}", started.elapsed());
    assert!(!output.status.success(), "{}", output.text);
    server.kill();
}

/// A rate that is set on one host limits a program on the other.
fn rate_of_another_host(a: &Lab, b: &Lab) {
    const RATE: f64 = 100e6;
    command(b, "policy set host/host0 --rate 100M");
    until(LIMIT, "the rate holds", || {
        let options =
            ["ib_write_bw", "-x", "1", "-n", "100", "-s", "65536", "-p", &Pair::PORT.to_string()].map(str::to_owned);
        let mut server = b.start_in(&endpoint("rs"), &options);
        server.wait_listening(Pair::PORT);
        let text = a.run_in(&endpoint("rc"), LIMIT, &[&options[..], &["127.0.0.1".to_owned()]].concat()).ok().text;
        server.finish(LIMIT).ok();
        let found = bandwidth_rows(&text)[0].figures[1] * 1024.0 * 1024.0 * 8.0;
        println!("{found} bits in a second");
        (found > 0.0 && found <= RATE * 1.03).then_some(())
    });
    assert!(a.command(&["policy", "ls"]).ok().text.contains("host/host0"));
}

const LIMIT: Duration = Duration::from_secs(60);
