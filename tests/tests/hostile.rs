//! Hostile tenants: the router survives, others are undisturbed, everything is reclaimed.

use rdmesh_tests::{Endpoint, Lab, Program, helper, until};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
const MODES: [&str; 5] = ["rings", "stream", "commands", "fds", "holes"];

fn honest(lab: &Lab, seconds: u32) -> (Program, Program) {
    let command = |address: &str| format!("exec ib_write_bw -F -p 18600 -D {seconds} -s 65536 -q 2 {address}");
    let mut server = lab.start_in(&Endpoint::at("server", "blue", "10.7.0.2"), &["sh", "-c", &command("")]);
    server.wait_listening(18600);
    let client = lab.start_in(&Endpoint::at("client", "blue", "10.7.0.3"), &["sh", "-c", &command("10.7.0.2")]);
    (server, client)
}

/// Attacks run on the victims' own network while an honest pair transfers and checks its data.
#[test]
fn hostile_tenants_hurt_only_themselves() {
    let lab = Lab::start();
    let router = lab.router_pid();
    let (server, client) = honest(&lab, 17);
    let hostile = helper("hostile").into_os_string().into_string().expect("a plain path");
    let verify = helper("verify").into_os_string().into_string().expect("a plain path");
    for (i, mode) in MODES.into_iter().enumerate() {
        let endpoint = Endpoint::at(&format!("evil{i}"), "blue", &format!("10.7.0.{}", 10 + i));
        let attack = lab.start_in(&endpoint, &[&hostile, mode, &i.to_string(), "3"]);
        let witness = Endpoint::at("witness", "blue", "10.7.0.9");
        lab.run_in(&witness, LIMIT, &[verify.as_str(), "random_soak"]).ok();
        let rounds = attack.finish(LIMIT).ok();
        println!("{mode}: {}", rounds.text.lines().last().unwrap_or_default());
        assert_eq!(lab.router_pid(), router, "after {mode}");
    }
    client.finish(LIMIT).ok();
    server.finish(LIMIT).ok();
    lab.wait_until_empty();
}

/// Processes that are killed at a random instant, one after the other.
#[test]
fn dying_at_any_point_leaves_nothing() {
    let lab = Lab::start();
    let router = lab.router_pid();
    let descriptors = || std::fs::read_dir(format!("/proc/{router}/fd")).expect("the router runs").count();
    let hostile = helper("hostile").into_os_string().into_string().expect("a plain path");
    let evil = Endpoint::new("evil");
    let die = |seed: &str, seconds: &str| lab.run_in(&evil, LIMIT, &[&hostile, "die", seed, seconds]).ok();
    // The endpoint goes a moment after its program, and has descriptors until then.
    let settle = || {
        lab.wait_until_empty();
        until(LIMIT, "the endpoint is gone", || (lab.status()["endpoints"].as_u64() == Some(0)).then_some(()));
    };
    die("1", "1");
    settle();
    let (before, reclaimed) = (descriptors(), lab.metric("rdmesh_objects_reclaimed_total"));
    die("2", "6");
    settle();
    assert!(descriptors() <= before + 2, "descriptors: {before} before, {} after", descriptors());
    assert_eq!(lab.router_pid(), router);
    let reclaimed = lab.metric("rdmesh_objects_reclaimed_total") - reclaimed;
    assert!(reclaimed > 100.0, "only {reclaimed} objects were reclaimed");
}

/// A program that takes all it can get runs into its quota; its neighbour works on.
#[test]
fn a_greedy_tenant_meets_its_quota() {
    let lab = Lab::start();
    let idle = helper("idle").into_os_string().into_string().expect("a plain path");
    let greedy = lab.run_in(&Endpoint::new("greedy"), LIMIT, &[idle.as_str(), "100000"]);
    assert!(!greedy.status.success(), "it may not have 100000 contexts");
    let verify = helper("verify").into_os_string().into_string().expect("a plain path");
    lab.run_in(&Endpoint::new("honest"), LIMIT, &[verify.as_str(), "rc_opcodes"]).ok();
    lab.wait_until_empty();
}
