//! Isolation: two tenant networks cannot reach each other, and a host's own devices are hidden.

use rdmesh_tests::{Endpoint, Lab, Peer};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// Timeout 2^12 * 4.096 us = 17 ms, three retries: an unreachable peer is noticed soon.
const SHORT: [&str; 3] = ["rc", "12", "3"];

#[test]
fn another_network_is_out_of_reach() {
    let lab = Lab::start();
    let mut victim = Peer::start(&lab, &Endpoint::at("victim", "red", "10.7.0.2"), &SHORT);
    let mut friend = Peer::start(&lab, &Endpoint::at("friend", "red", "10.7.0.3"), &SHORT);
    let mut intruder = Peer::start(&lab, &Endpoint::at("intruder", "blue", "10.7.0.3"), &SHORT);
    Peer::connect(&mut victim, &mut friend);
    victim.ask("fill 1 4096");
    // The intruder has the friend's address, knows QPN and rkey, and gets no answer.
    let secret = victim.local().to_owned();
    intruder.connect_to(&secret);
    intruder.ask("fill 2 4096");
    intruder.ask("post write 4096");
    assert_eq!(intruder.completion().0, "transport retry counter exceeded");
    assert_eq!(victim.ask("check 1 4096"), "match");
    assert_eq!(victim.ask("events"), "end", "the victim notices nothing");
    // Its own network still works.
    friend.ask("post read 4096");
    assert_eq!(friend.completion().0, "success");
    assert_eq!(friend.ask("check 1 4096"), "match");
}

#[test]
fn a_key_is_worth_nothing_in_another_network() {
    let lab = Lab::start();
    let victim = Peer::start(&lab, &Endpoint::at("victim", "red", "10.7.0.2"), &SHORT);
    let mut accomplice = Peer::start(&lab, &Endpoint::at("accomplice", "blue", "10.7.0.2"), &SHORT);
    let mut intruder = Peer::start(&lab, &Endpoint::at("intruder", "blue", "10.7.0.3"), &SHORT);
    // Connected to an accomplice in its own network, the intruder uses the victim's key and address there.
    let (own, of_victim) = (accomplice.local().to_owned(), victim.local().to_owned());
    let (own, of_victim): (Vec<_>, Vec<_>) = (own.split(' ').collect(), of_victim.split(' ').collect());
    accomplice.connect_to(intruder.local());
    intruder.connect_to(&[own[0], own[1], of_victim[2], of_victim[3]].join(" "));
    intruder.ask("post read 64");
    assert_eq!(intruder.completion().0, "remote access error");
}

#[test]
fn two_networks_may_use_the_same_addresses() {
    let lab = Lab::start();
    let mut pairs: Vec<_> = ["red", "blue"]
        .into_iter()
        .map(|net| {
            let mut a = Peer::start(&lab, &Endpoint::at("a", net, "10.7.0.2"), &["rc"]);
            let mut b = Peer::start(&lab, &Endpoint::at("b", net, "10.7.0.3"), &["rc"]);
            Peer::connect(&mut a, &mut b);
            (a, b)
        })
        .collect();
    for (seed, (a, _)) in pairs.iter_mut().enumerate() {
        a.ask(&format!("fill {seed} 1000"));
        a.ask("post write 1000");
        assert_eq!(a.completion().0, "success");
    }
    for (seed, (_, b)) in pairs.iter_mut().enumerate() {
        assert_eq!(b.ask(&format!("check {seed} 1000")), "match");
    }
    pairs.into_iter().for_each(|(a, b)| (a.quit(), b.quit()).0);
}

#[test]
fn the_hosts_own_devices_are_hidden() {
    let lab = Lab::start();
    let list = lab.run_in(&Endpoint::new("a"), LIMIT, &["ls", "/sys/class/infiniband"]).ok().text;
    assert_eq!(list.trim(), "rxe0");
    // libibverbs asks netlink first, where the host's devices would be listed.
    let devices = lab.run_in(&Endpoint::new("a"), LIMIT, &["rdma", "dev", "show"]).ok().text;
    let names: Vec<_> = devices.lines().filter_map(|line| line.split(": ").nth(1)?.split(':').next()).collect();
    assert_eq!(names, ["rxe0"], "{devices}");
}

#[test]
fn an_endpoint_of_one_network_sees_no_other_addresses() {
    let lab = Lab::start();
    let text = lab.run_in(&Endpoint::at("a", "red", "10.7.0.2"), LIMIT, &["ip", "-o", "-4", "address"]).ok().text;
    let addresses: Vec<_> = text.lines().filter(|l| !l.contains(" lo ")).collect();
    assert!(addresses.len() == 1 && addresses[0].contains("10.7.0.2/"), "{text}");
}
