//! Docker: two ordinary unprivileged containers and the traffic between them.

use rdmesh_tests::docker::Docker;
use rdmesh_tests::{Lab, bandwidth_rows, runtime_for};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
const PORT: u16 = 18515;
const PROGRAMS: [&str; 3] = ["/usr/bin/ib_write_bw", "/usr/bin/ibv_devinfo", "/usr/bin/ibv_rc_pingpong"];

/// `rdmesh container-args NAME`, split as the shell would.
fn container_args(lab: &Lab, name: &str) -> Vec<String> {
    lab.command(&["container-args", name]).ok().text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn unprivileged_containers_reach_each_other() {
    let docker = match Docker::start(&PROGRAMS) {
        Ok(docker) => docker,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    let lab = Lab::start();
    let (a, b) = (container_args(&lab, "a"), container_args(&lab, "b"));
    for arguments in [&a, &b] {
        let text = arguments.join(" ");
        for privilege in ["--privileged", "--cap-add", "--security-opt", "--device", "--pid", "--network"] {
            assert!(!text.contains(privilege), "no privilege may be asked for: {text}");
        }
    }
    let transfer = |more: &[&str], program: &str| {
        let with =
            |arguments: &[String]| [arguments, &more.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>()].concat();
        let server = docker.start_container("rdmesh-test-server", &with(&a), &format!("exec {program}"));
        server.wait_listening(PORT);
        let command = format!("exec {program} {}", server.address());
        let client = docker.run_container(&with(&b), &command, LIMIT);
        assert!(client.status.success(), "client:\n{}\nserver:\n{}", client.text, server.log());
        assert_eq!(server.wait(), "0", "{}", server.log());
        client.text
    };
    let text = transfer(&[], "ib_write_bw -F -n 1000 -a");
    assert_eq!(bandwidth_rows(&text).len(), 23, "{text}");
    let text = transfer(&["--user", "1234:1234", "--cap-drop", "ALL"], "ib_write_bw -F -n 1000 -q 4");
    assert!(!bandwidth_rows(&text).is_empty(), "{text}");
    transfer(&["--read-only"], "ibv_rc_pingpong -g 1 -c -e");
    lab.wait_until_empty();
}

/// `docker run --runtime rdmesh -e RDMESH_NETWORK=…`: device, address on the network, and faster sockets, by the environment alone.
#[test]
fn containers_of_the_runtime_have_what_their_environment_says() {
    let (lab, folder) = (Lab::start(), tempfile::tempdir().expect("a temporary folder"));
    let programs = [&PROGRAMS[..], &["/usr/bin/redis-server", "/usr/bin/redis-benchmark"]].concat();
    let docker = match Docker::start_with(&programs, Some(&runtime_for(&lab, folder.path(), "runc"))) {
        Ok(docker) => docker,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    let options = |more: &[&str]| {
        let all = [&["--runtime", "rdmesh", "-e", "RDMESH_NETWORK=blue"], more].concat();
        all.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let server_options = options(&["-e", "RDMESH_IP=10.7.0.2", "-e", "RDMESH_ACCEL=1"]);
    let client_options = options(&["-e", "RDMESH_IP=10.7.0.3", "-e", "RDMESH_ACCEL=1"]);
    let pair = |port: u16, serve: &str, ask: &str| {
        let server = docker.start_container("rdmesh-test-server", &server_options, &format!("exec {serve}"));
        server.wait_listening(port);
        let client = docker.run_container(&client_options, &format!("exec {ask}"), LIMIT);
        assert!(client.status.success(), "client: {}\n{}\nserver:\n{}", client.status, client.text, server.log());
        (server, client.text)
    };
    let (server, text) = pair(PORT, "ib_write_bw -F -n 1000", "ib_write_bw -F -n 1000 10.7.0.2");
    assert!(!bandwidth_rows(&text).is_empty(), "{text}");
    drop(server);
    let serve = "redis-server --port 7777 --save '' --protected-mode no";
    let (server, text) = pair(7777, serve, "redis-benchmark -h 10.7.0.2 -p 7777 -t set -n 20000 -c 20 --csv");
    assert!(text.contains("\"SET\""), "{text}");
    assert!(lab.metric("rdmesh_relay_sent_bytes_total") > 50_000.0);
    drop(server);
    lab.wait_until_empty();
    // A container that says nothing is runc's alone, and a mistake is explained where the user looks.
    let plain = docker.run_container(&["--runtime".to_owned(), "rdmesh".to_owned()], "echo plain", LIMIT);
    assert!(plain.status.success() && plain.text.contains("plain"), "{}", plain.text);
    let refused = docker.run_container(&options(&["-e", "RDMESH_IP=ten"]), "exec ibv_devinfo", LIMIT);
    assert!(
        !refused.status.success() && refused.text.contains("RDMESH_IP: `ten` is no IP address"),
        "{}",
        refused.text
    );
    let refused = docker.run_container(&options(&["-e", "RDMESH_IP=127.0.0.1"]), "exec ibv_devinfo", LIMIT);
    assert!(!refused.status.success() && refused.text.contains("rdmesh: "), "{}", refused.text);
    lab.wait_until_empty();
}
