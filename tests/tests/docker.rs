//! Docker: two ordinary unprivileged containers and the traffic between them.

use rdmesh_tests::docker::Docker;
use rdmesh_tests::{Lab, Program, SharedFolder, bandwidth_rows, product, root, runtime_for, until};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
const PORT: u16 = 18515;
const PROGRAMS: [&str; 3] = ["/usr/bin/ib_write_bw", "/usr/bin/ibv_devinfo", "/usr/bin/ibv_rc_pingpong"];

/// The service of packaging/compose.yaml, whose folder is `run`.
fn service(run: &str) -> Value {
    let text = fs::read_to_string(root().join("packaging/compose.yaml")).expect("the file is there");
    let file: Value = serde_saphyr::from_str(&text.replace("/run/rdmesh", run)).expect("it is YAML");
    file["services"]["router"].clone()
}

/// Options of `docker run` for the service; then image and arguments.
fn words_of(service: &Value, run: &str) -> Vec<String> {
    let list = |name: &str| -> Vec<String> {
        let words = service[name].as_array().unwrap_or_else(|| panic!("{name} is a list"));
        words.iter().map(|word| word.as_str().expect("a word").to_owned()).collect()
    };
    let word = |name: &str| service[name].as_str().unwrap_or_else(|| panic!("{name} is a word")).to_owned();
    let mut options = vec![
        format!("--network={}", word("network_mode")),
        format!("--pid={}", word("pid")),
        format!("--cgroupns={}", word("cgroup")),
    ];
    for (name, option) in
        [("cap_drop", "cap-drop"), ("cap_add", "cap-add"), ("security_opt", "security-opt"), ("volumes", "volume")]
    {
        options.extend(list(name).into_iter().map(|word| format!("--{option}={word}")));
    }
    // Where this host has less, more cannot be had.
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let descriptors = service["ulimits"]["nofile"].as_u64().expect("a number").min(most);
    options.push(format!("--ulimit=nofile={descriptors}"));
    options.push(word("image"));
    options.extend(["--state-dir".to_owned(), run.to_owned()]);
    options.extend(list("command"));
    options
}

/// Nothing of rdmesh is installed on the host.
#[test]
fn the_router_runs_in_a_container() {
    let Some(docker) = Docker::with_routers_image(&PROGRAMS) else { return };
    let shared = SharedFolder::mount();
    let run = shared.path();
    let service = service(&run);
    let words = words_of(&service, &run);
    let router = docker.start_image("rdmesh-test-router", &words);
    until(LIMIT, "the router serves", || router.log().contains("serving socket").then_some(()));
    let health: Vec<&str> =
        service["healthcheck"]["test"].as_array().expect("words").iter().filter_map(Value::as_str).collect();
    assert_eq!(health[0], "CMD", "there is no shell in the image");
    router.execute(&[&health[1..], &["--state-dir", &run]].concat()).ok();
    let rdmesh = |words: &[&str]| router.execute(&[&["rdmesh", "--state-dir", &run], words].concat());
    let arguments = |name: &str| -> Vec<String> {
        rdmesh(&["container-args", name]).ok().text.split_whitespace().map(str::to_owned).collect()
    };
    let server = docker.start_container("rdmesh-test-server", &arguments("a"), "exec ib_write_bw -F -n 1000");
    server.wait_listening(PORT);
    let command = format!("exec ib_write_bw -F -n 1000 {}", server.address());
    let client = docker.run_container(&arguments("b"), &command, LIMIT);
    assert!(client.status.success(), "client:\n{}\nserver:\n{}", client.text, server.log());
    assert_eq!(bandwidth_rows(&client.text).len(), 1, "{}", client.text);
    assert_eq!(server.wait(), "0", "{}", server.log());
    // A program of the host, in a network namespace that the container's router has made.
    let mut inside = Command::new(product("rdmesh"));
    inside.args(["--state-dir", &run, "run", "--net", "blue", "--", "ip", "-brief", "address"]);
    let seen = Program::start(inside).finish(LIMIT).ok().text;
    assert!(seen.contains("eth0") && seen.contains("UP"), "{seen}");
    // The next router goes on with the endpoints of one that was killed.
    router.crash();
    until(LIMIT, "the next router serves", || rdmesh(&["ps"]).status.success().then_some(()));
    let kept: Value = serde_json::from_str(&rdmesh(&["endpoint", "ls", "--json"]).ok().text).expect("JSON");
    assert!(kept.as_array().is_some_and(|all| all.iter().any(|endpoint| endpoint["name"] == "a")), "{kept}");
    router.stop();
    assert!(!Path::new(&run).join("netns").exists(), "a router that is stopped removes its endpoints");
}

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
