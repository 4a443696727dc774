//! Routers of one store: they find each other, go on when it is away, and replace each other.

use rdmesh_tests::etcd::{Etcd, Proxy, Security, in_network};
use rdmesh_tests::{Endpoint, Lab, Options, Peer, Program, until};
use serde_json::Value;
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A router without privilege at a loopback address of its own.
pub(crate) fn router(number: usize, store: &str) -> Lab {
    let (host, address) = (format!("host{number}"), format!("127.0.0.{}", 11 + number));
    let up = ["--host", &host, "--underlay", &address, "--store", store].map(str::to_owned).to_vec();
    Lab::start_with(Options { up, rootless: true, ..Options::default() })
}

/// Makes an endpoint, as soon as the router has joined; returns its address.
fn add(lab: &Lab, name: &str, options: &[&str]) -> String {
    let add = ["endpoint", "add", name, "--net", "blue"];
    until(LIMIT, "the endpoint is added", || {
        let added = lab.command(&[&add, options].concat());
        let is_early = added.text.contains("not joined the cluster yet");
        (!is_early).then(|| added.ok())
    });
    address_of(lab, name)
}

/// The address of an endpoint, as soon as it is there.
fn address_of(lab: &Lab, name: &str) -> String {
    until(LIMIT, &format!("there is an endpoint {name}"), || {
        let endpoints = lab.api("/v1/endpoints");
        let made = endpoints.as_array()?.iter().find(|endpoint| endpoint["name"] == name)?;
        Some(made["addresses"][0].as_str()?.to_owned())
    })
}

fn remove(lab: &Lab, name: &str) {
    lab.command(&["endpoint", "rm", name, "--net", "blue"]).ok();
}

/// Waits until the endpoints of other hosts that `lab` knows have these addresses.
fn wait_for(lab: &Lab, addresses: &[&str]) {
    let mut wanted: Vec<&str> = addresses.to_vec();
    wanted.sort_unstable();
    let mut seen = Vec::new();
    until(LIMIT, &format!("{wanted:?} are known"), || {
        let peers = lab.api("/v1/peers");
        let hosts = peers["hosts"].as_array().cloned().unwrap_or_default();
        let endpoints = hosts.iter().flat_map(|host| host["endpoints"].as_array().cloned().unwrap_or_default());
        seen =
            endpoints.map(|endpoint: Value| endpoint["addresses"][0].as_str().unwrap_or_default().to_owned()).collect();
        seen.sort_unstable();
        (seen == wanted).then_some(())
    });
}

#[test]
fn routers_of_one_store_carry_traffic_and_go_on_without_it() {
    in_network(|| async {
        let mut etcd = Etcd::start(1, Security::TlsAndPassword);
        let [a, b, c] = [0, 1, 2].map(|number| router(number, &etcd.url()));
        let (on_a, on_b) = (add(&a, "a", &[]), add(&b, "b", &["--label", "app=db"]));
        wait_for(&a, &[&on_b]);
        wait_for(&b, &[&on_a]);
        // A host without endpoints on the network has no part in it.
        wait_for(&c, &[]);
        // But can tell what is there.
        let listed = c.api("/v1/networks/blue/endpoints");
        assert_eq!((&listed[0]["host"], &listed[1]["host"]), (&"host0".into(), &"host1".into()), "{listed}");
        assert_eq!(listed[1]["labels"], serde_json::json!({ "app": "db" }), "{listed}");
        let programs = Waiting::start(&a, &b, "");
        let (server, client) = (address_of(&a, "server"), address_of(&b, "client"));
        wait_for(&a, &[&on_b, &client]);
        wait_for(&b, &[&on_a, &server]);
        etcd.kill(0);
        // Addresses of a block that the host has, and connections between endpoints that know each other.
        let offline = add(&a, "offline", &[]);
        programs.begin().end();
        let doctor = |lab: &Lab| lab.command(&["doctor"]).text;
        until(LIMIT, "the store is missed", || doctor(&a).contains("FAIL  store: it does not answer").then_some(()));
        etcd.restart(0);
        until(LIMIT, "the store answers", || doctor(&a).contains("ok    store: answers at https://").then_some(()));
        wait_for(&b, &[&on_a, &offline]);
        remove(&a, "offline");
        wait_for(&b, &[&on_a]);
        // An endpoint that is made again on another host has the address that it had.
        remove(&b, "b");
        wait_for(&a, &[]);
        assert_eq!(add(&c, "b", &["--ip", &on_b]), on_b);
        wait_for(&a, &[&on_b]);
        // A router that is killed is replaced, and its endpoints are there again.
        let killed = Command::new("kill").args(["-9", &c.router_pid().to_string()]).status().expect("kill");
        assert!(killed.success());
        c.up_again();
        let second = add(&c, "second", &[]);
        wait_for(&a, &[&on_b, &second]);
    });
}

#[test]
fn a_host_replaces_its_key_pair_under_traffic() {
    in_network(|| async {
        let etcd = Etcd::start(1, Security::TlsAndPassword);
        let [a, b] = [0, 1].map(|number| router(number, &etcd.url()));
        let (on_a, on_b) = (add(&a, "a", &[]), add(&b, "b", &[]));
        wait_for(&a, &[&on_b]);
        wait_for(&b, &[&on_a]);
        let programs = Waiting::start(&a, &b, "-n 20000");
        let (server, client) = (address_of(&a, "server"), address_of(&b, "client"));
        wait_for(&a, &[&on_b, &client]);
        wait_for(&b, &[&on_a, &server]);
        [&a, &b].into_iter().for_each(wait_until_agreed);
        let programs = programs.begin();
        let mut private = [&a, &b].map(private_keys).concat();
        for lab in [&a, &b, &a] {
            let before = private_keys(lab);
            lab.command(&["key", "rotate"]).ok();
            // Only where the other host has the public half of the new one.
            [&a, &b].into_iter().for_each(wait_until_agreed);
            let now = private_keys(lab);
            assert_eq!((now.len(), &now[1]), (2, &before[0]), "two are kept");
            private.push(now[0].clone());
        }
        programs.end();
        let stored = etcd.contents();
        assert!(stored.contains("public_keys"), "{stored}");
        assert!(!private.iter().any(|key| stored.contains(key)), "no private key leaves its host: {stored}");
        for lab in [&a, &b] {
            let counters = &lab.api("/v1/tunnel")["hosts"][0];
            for lost in ["unsealed", "unknown_session", "wrong_tag", "replayed", "unsent"] {
                assert_eq!(counters[lost], 0, "{lost} in {counters}");
            }
        }
        let refused = a.command(&["peer", "rotate", "--key", "/dev/null"]);
        assert!(!refused.status.success(), "hosts of a store have key pairs: {}", refused.text);
    });
}

#[test]
fn an_address_is_free_when_its_program_has_ended() {
    in_network(|| async {
        let etcd = Etcd::start(1, Security::None);
        let lab = router(0, &etcd.url());
        add(&lab, "other", &["--ip", "10.7.0.9"]);
        let doctor = lab.command(&["doctor"]).text;
        assert!(doctor.contains("warn  store: it asks for no user"), "{doctor}");
        // Under one name, whose endpoint may have the resting address again, at once each time.
        let endpoint = Endpoint::at("job", "blue", "10.7.0.8");
        for _ in 0..30 {
            lab.run_in(&endpoint, LIMIT, &["true"]).ok();
        }
        let other = lab.run_in(&Endpoint::at("else", "blue", "10.7.0.8"), LIMIT, &["true"]);
        assert!(other.text.contains("which is gone since a moment"), "{}", other.text);
        let taken = lab.run_in(&Endpoint::at("job", "blue", "10.7.0.9"), LIMIT, &["true"]);
        assert!(taken.text.contains("an endpoint of this host"), "{}", taken.text);
    });
}

#[test]
fn a_host_whose_store_stands_still_refuses_at_once_when_it_knows() {
    in_network(|| async {
        let etcd = Etcd::start(1, Security::None);
        let proxy = Proxy::start(etcd.port(0)).await;
        let url = format!("etcd://127.0.0.1:{}?timeout=2&insecure", proxy.port());
        let aside = async |work: fn(&Lab), lab: Lab| {
            // The proxy goes on beside it.
            let done = tokio::task::spawn_blocking(move || {
                work(&lab);
                lab
            });
            done.await.expect("no panic")
        };
        let lab = aside(|lab| drop(add(lab, "first", &[])), router(0, &url)).await;
        proxy.swallow(true);
        let refused = |lab: &Lab| {
            until(LIMIT * 2, "the host has noticed", || {
                let started = Instant::now();
                let refused = lab.command(&["endpoint", "add", "new", "--net", "unheard-of"]);
                assert!(!refused.status.success());
                println!("refused after {:?}: {}", started.elapsed(), refused.text.trim());
                refused.text.contains("store does not answer").then_some(())
            });
            // Of the addresses in reserve it still gives.
            add(lab, "second", &[]);
        };
        drop(aside(refused, lab).await);
    });
}

#[test]
fn what_lingers_is_taken_over_or_makes_room() {
    in_network(|| async {
        let etcd = Etcd::start(1, Security::None);
        let lab = router(0, &etcd.url());
        add(&lab, "other", &["--ip", "10.7.0.9"]);
        let mut kept = Endpoint::at("kept", "blue", "10.7.0.8").with(&["--linger", "10m"]);
        let lingers = || {
            let contexts = lab.api("/v1/contexts");
            contexts.as_array().is_some_and(|all| all.iter().any(|context| context["lease"]["left_seconds"].is_f64()))
        };
        Peer::start(&lab, &kept, &[]).kill();
        until(LIMIT, "the device lingers", || lingers().then_some(()));
        kept = kept.with(&["--take-over"]);
        lab.run_in(&kept, LIMIT, &["true"]).ok();
        assert!(lingers(), "the device is there, with its endpoint");
        let anywhere = Endpoint::new("kept").with(&["--net", "blue", "--linger", "10m", "--take-over"]);
        lab.run_in(&anywhere, LIMIT, &["true"]).ok();
        assert_eq!(address_of(&lab, "kept"), "10.7.0.8");
        lab.run_in(&Endpoint::at("kept", "blue", "10.7.0.8"), LIMIT, &["true"]).ok();
        assert!(!lingers(), "who does not take over ends it");
    });
}

/// Private keys of a router's host, the newest first.
fn private_keys(lab: &Lab) -> Vec<String> {
    let kept = std::fs::read(lab.dir().join("identity")).expect("a file of keys");
    let kept: Value = serde_json::from_slice(&kept).expect("JSON");
    [&kept["newest"], &kept["older"]].into_iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Waits until the tunnel to the other host is open in both directions, with the newest key.
fn wait_until_agreed(lab: &Lab) {
    let mut tunnel = Value::Null;
    until(LIMIT, "the tunnel is open", || {
        tunnel = lab.api("/v1/tunnel");
        let state = &tunnel["hosts"][0];
        (state["sends"] == true && state["receives"] == true && state["is_changing_key"] == false).then_some(())
    });
}

/// A server and its client on two hosts, each in an endpoint of its own on the default network, which wait for a word.
struct Waiting {
    folder: TempDir,
    server: Program,
    client: Program,
}

impl Waiting {
    fn start(a: &Lab, b: &Lab, options: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let wait = |name: &str, host: &str| {
            let word = folder.path().join(name).display().to_string();
            let program = format!("exec ibv_rc_pingpong -g 1 -p {PORT} {options} {host}");
            ["sh", "-c", &format!("until [ -e {word} ]; do sleep 0.05; done; {program}")].map(str::to_owned)
        };
        let server = a.start_in(&Endpoint::new("server"), &wait("server", ""));
        let client = b.start_in(&Endpoint::new("client"), &wait("client", "127.0.0.1"));
        Self { folder, server, client }
    }

    fn begin(mut self) -> Self {
        let say = |name: &str| std::fs::write(self.folder.path().join(name), "").expect("a file");
        say("server");
        self.server.wait_listening(PORT);
        say("client");
        self
    }

    fn end(self) {
        let client = self.client.finish(LIMIT).ok();
        assert!(client.text.contains(" iters in "), "{}", client.text);
        self.server.finish(LIMIT).ok();
    }
}

const LIMIT: Duration = Duration::from_secs(30);
const PORT: u16 = 18_700;
