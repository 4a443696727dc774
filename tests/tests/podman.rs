//! podman: containers on a network of the CNI plugin, and containers that join an endpoint's network namespace.

use rdmesh_tests::podman::Podman;
use rdmesh_tests::{Lab, bandwidth_rows};
use serde_json::json;
use std::time::Duration;

const PROGRAMS: [&str; 5] = [
    "/usr/bin/ib_write_bw",
    "/usr/bin/ibv_rc_pingpong",
    "/usr/bin/redis-server",
    "/usr/bin/redis-benchmark",
    "/usr/bin/ip",
];

/// `rdmesh container-args`, split as the shell would.
fn container_args(lab: &Lab, arguments: &[&str]) -> Vec<String> {
    let output = lab.command(&[&["container-args"], arguments].concat()).ok();
    output.text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn containers_on_a_network_of_the_plugin_reach_each_other() {
    let lab = Lab::start();
    let list = json!({
        "cniVersion": "0.4.0",
        "name": "blue",
        "plugins": [{ "type": "rdmesh-cni", "stateDir": lab.dir() }],
    });
    let podman = match Podman::start(&PROGRAMS, &[("blue", list.to_string())]) {
        Ok(podman) => podman,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    let network = ["--network".to_owned(), "blue".to_owned()];
    let serve = "exec redis-server --port 7777 --save '' --protected-mode no";
    let mut server = podman.start_container("server", &network, serve);
    podman.wait_listening("server", 7777);
    let format = "{{.NetworkSettings.Networks.blue.IPAddress}}";
    let ip = podman.run(&["inspect", "--format", format, "server"]).ok().text.trim().to_owned();
    assert!(lab.command(&["endpoint", "ls"]).ok().text.contains(&ip), "{ip}");
    let ask = format!("exec redis-benchmark -h {ip} -p 7777 -t set -n 2000 --csv");
    let output = podman.run_container("client", &network, &ask).ok();
    assert!(output.text.contains("\"SET\""), "{}", output.text);
    podman.run(&["stop", "--time", "1", "server"]).ok();
    server.terminate(Duration::from_secs(20));
    lab.wait_until_empty();
}

#[test]
fn containers_that_join_endpoints_have_device_address_and_faster_sockets() {
    let lab = Lab::start();
    let podman = match Podman::start(&PROGRAMS, &[]) {
        Ok(podman) => podman,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    lab.command(&["endpoint", "add", "bare", "--net", "blue", "--ip", "10.7.0.9"]).ok();
    let refused = lab.command(&["container-args", "bare", "--net", "blue", "--podman"]);
    assert!(!refused.status.success() && refused.text.contains("no network namespace"), "{}", refused.text);
    let args = |name, ip| container_args(&lab, &[name, "--net", "blue", "--ip", ip, "--podman", "--accel"]);
    let (server_args, client_args) = (args("server", "10.7.0.2"), args("client", "10.7.0.3"));
    let pair = |port: u16, serve: &str, ask: &str| {
        let server = podman.start_container("server", &server_args, &format!("exec {serve}"));
        podman.wait_listening("server", port);
        (server, podman.run_container("client", &client_args, &format!("exec {ask}")).ok().text)
    };
    let (server, text) = pair(18515, "ib_write_bw -F -n 1000", "ib_write_bw -F -n 1000 10.7.0.2");
    assert_eq!(bandwidth_rows(&text).len(), 1, "{text}");
    server.finish(Duration::from_secs(20)).ok();
    let serve = "redis-server --port 7777 --save '' --protected-mode no";
    let (mut server, text) = pair(7777, serve, "redis-benchmark -h 10.7.0.2 -p 7777 -t set -n 20000 -c 20 --csv");
    assert!(text.contains("\"SET\""), "{text}");
    assert!(lab.metric("rdmesh_relay_sent_bytes_total") > 50_000.0);
    podman.run(&["stop", "--time", "1", "server"]).ok();
    server.terminate(Duration::from_secs(20));
}
