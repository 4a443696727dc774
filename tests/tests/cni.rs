//! The CNI plugin: as runtimes execute it, by the project's own tool, and beside its own plugins.

use rdmesh_tests::{Lab, Namespace, Program, all, product};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
/// Where Debian's `containernetworking-plugins` has the project's own plugins.
const PLUGINS: &str = "/usr/lib/cni";

/// A runtime with one network.
struct Runtime<'a> {
    lab: &'a Lab,
    config: Value,
}

/// An interface of a container.
struct Attachment<'a> {
    id: &'a str,
    netns: &'a str,
    interface: &'a str,
}

impl<'a> Attachment<'a> {
    fn new(id: &'a str, netns: &'a str) -> Self {
        Self { id, netns, interface: "eth0" }
    }
}

impl<'a> Runtime<'a> {
    fn new(lab: &'a Lab) -> Self {
        let config = json!({ "cniVersion": "1.1.0", "name": "blue", "type": "rdmesh-cni", "stateDir": lab.dir() });
        Self { lab, config }
    }

    fn with(mut self, key: &str, value: Value) -> Self {
        self.config[key] = value;
        self
    }

    fn execute(&self, command: &str, attachment: Option<&Attachment<'_>>, more: &[(&str, Value)]) -> Output {
        let mut config = self.config.clone();
        more.iter().for_each(|(key, value)| config[*key] = value.clone());
        let mut plugin = Command::new(product("rdmesh-cni"));
        plugin.env_clear().env("CNI_COMMAND", command).env("CNI_PATH", PLUGINS);
        if let Some(attachment) = attachment {
            plugin.env("CNI_CONTAINERID", attachment.id).env("CNI_IFNAME", attachment.interface);
            plugin.env("CNI_NETNS", attachment.netns);
        }
        let mut child = plugin.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the plugin starts");
        let mut input = child.stdin.take().expect("a pipe");
        input.write_all(config.to_string().as_bytes()).expect("the plugin reads");
        drop(input);
        child.wait_with_output().expect("the plugin ends")
    }

    fn ok(&self, command: &str, attachment: Option<&Attachment<'_>>, more: &[(&str, Value)]) -> Value {
        let output = self.execute(command, attachment, more);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{command}: {text}");
        if text.is_empty() { Value::Null } else { serde_json::from_str(&text).expect("a result") }
    }

    fn add(&self, attachment: &Attachment<'_>) -> Value {
        self.ok("ADD", Some(attachment), &[])
    }

    fn del(&self, attachment: &Attachment<'_>) {
        self.ok("DEL", Some(attachment), &[]);
    }

    /// Code and words of an error.
    fn error(&self, command: &str, attachment: Option<&Attachment<'_>>, more: &[(&str, Value)]) -> (u64, String) {
        let output = self.execute(command, attachment, more);
        assert!(!output.status.success());
        let error: Value = serde_json::from_slice(&output.stdout).expect("an error");
        (error["code"].as_u64().expect("a code"), error["msg"].as_str().expect("words").to_owned())
    }

    /// Directories of the network's endpoints.
    fn endpoints(&self) -> Vec<PathBuf> {
        let all = self.lab.api("/v1/endpoints");
        let mut directories: Vec<PathBuf> = all.as_array().into_iter().flatten().map(directory).collect();
        directories.sort();
        directories
    }
}

fn directory(endpoint: &Value) -> PathBuf {
    endpoint["directory"].as_str().expect("a path").into()
}

/// The first address of a result.
fn address(result: &Value) -> String {
    let address = result["ips"][0]["address"].as_str().expect("an address");
    address.split_once('/').expect("with its range").0.to_owned()
}

#[test]
fn containers_are_connected_checked_and_disconnected() {
    let lab = Lab::start();
    let runtime = Runtime::new(&lab);
    let (a, b) = (Namespace::new(), Namespace::new());
    let (a_file, b_file) = (a.file(), b.file());
    let (first, second) = (Attachment::new("0123456789abcdef", &a_file), Attachment::new("pod/b", &b_file));
    runtime.ok("STATUS", None, &[]);
    let versions = runtime.ok("VERSION", None, &[]);
    assert!(
        versions["supportedVersions"].as_array().is_some_and(|known| known.contains(&json!("1.1.0"))),
        "{versions}"
    );
    let results = [runtime.add(&first), runtime.add(&second)];
    assert_eq!(results[0]["interfaces"][0]["name"], "eth0");
    assert_eq!(results[0]["interfaces"][0]["sandbox"], a_file.as_str());
    assert!(results[0]["interfaces"][0]["mtu"].as_u64().is_some_and(|mtu| mtu > 1000), "{}", results[0]);
    assert_eq!((a.interfaces(), b.interfaces()), (vec!["eth0".into(), "lo".into()], vec!["eth0".into(), "lo".into()]));
    let pingpong = |namespace: &Namespace, index: usize, more: &[&str]| {
        let names = runtime.endpoints();
        let is_first = |path: &&PathBuf| path.display().to_string().contains("0123456789ab");
        let of = |index: usize| names.iter().find(|path| is_first(path) == (index == 0)).expect("two endpoints");
        let command = [&["ibv_rc_pingpong", "-g", "1", "-c"], more].concat();
        namespace.start_on(of(index), &["librdmesh.so"], &command)
    };
    let mut server = pingpong(&a, 0, &[]);
    server.wait_listening(18515);
    pingpong(&b, 1, &[&address(&results[0])]).finish(LIMIT).ok();
    server.finish(LIMIT).ok();
    runtime.ok("CHECK", Some(&first), &[("prevResult", results[0].clone())]);
    let (_, words) = runtime.error("ADD", Some(&first), &[]);
    assert!(words.contains("there is an endpoint") || words.contains("already"), "{words}");
    let mut lost = a.command(&["ip", "address", "flush", "dev", "eth0"]);
    assert!(lost.status().expect("ip starts").success());
    let (code, words) = runtime.error("CHECK", Some(&first), &[("prevResult", results[0].clone())]);
    assert!(code == 100 && words.contains("has lost its address"), "{code} {words}");
    // Twice: a runtime may not know whether the first has succeeded; and without a namespace, which may have gone.
    runtime.del(&first);
    runtime.del(&Attachment { netns: "", ..first });
    assert_eq!((a.interfaces(), b.interfaces()), (vec!["lo".into()], vec!["eth0".into(), "lo".to_owned()]));
    let gone = Attachment::new("0123456789abcdef", &a_file);
    let (code, _) = runtime.error("CHECK", Some(&gone), &[("prevResult", results[0].clone())]);
    assert_eq!(code, 3);
    runtime.del(&second);
    assert_eq!(runtime.endpoints(), [] as [PathBuf; 0]);
}

#[test]
fn stale_attachments_are_collected_and_others_stay() {
    let lab = Lab::start();
    let runtime = Runtime::new(&lab);
    let other = Runtime::new(&lab).with("name", json!("other")).with("network", json!("blue"));
    lab.command(&["endpoint", "add", "mine", "--net", "blue"]).ok();
    let namespaces: Vec<Namespace> = (0..3).map(|_| Namespace::new()).collect();
    let files: Vec<String> = namespaces.iter().map(Namespace::file).collect();
    runtime.add(&Attachment::new("kept", &files[0]));
    runtime.add(&Attachment::new("stale", &files[1]));
    other.add(&Attachment::new("stale", &files[2]));
    let valid = json!([{ "containerID": "kept", "ifname": "eth0" }]);
    runtime.ok("GC", None, &[("cni.dev/valid-attachments", valid)]);
    let up = |namespace: &Namespace| namespace.interfaces().contains(&"eth0".to_owned());
    assert_eq!(namespaces.iter().map(up).collect::<Vec<_>>(), [true, false, true]);
    assert_eq!(runtime.endpoints().len(), 3, "the other configuration's and the operator's stay");
}

#[test]
fn mistakes_are_answered_by_the_specifications_codes() {
    let lab = Lab::start();
    let (runtime, namespace) = (Runtime::new(&lab), Namespace::new());
    let file = namespace.file();
    let attachment = Attachment::new("a", &file);
    let nowhere = Attachment { netns: "/run/netns/no-such-namespace", ..Attachment::new("a", "") };
    assert_eq!(runtime.error("ADD", Some(&nowhere), &[]).0, 3);
    assert_eq!(runtime.error("ADD", Some(&attachment), &[("cniVersion", json!("2.0.0"))]).0, 1);
    assert_eq!(runtime.error("ADD", Some(&attachment), &[("name", json!("no name"))]).0, 7);
    assert_eq!(runtime.error("ADD", None, &[]).0, 4);
    let ask = |ip: &str| json!({ "ips": [ip] });
    let result = runtime.ok("ADD", Some(&attachment), &[("runtimeConfig", ask("10.7.0.9/24"))]);
    assert_eq!(address(&result), "10.7.0.9");
    let again = Attachment { interface: "net1", ..Attachment::new("a", &file) };
    let (code, words) = runtime.error("ADD", Some(&again), &[("runtimeConfig", ask("10.7.0.9"))]);
    assert!(code == 100 && words.contains("10.7.0.9"), "{code} {words}");
    assert_eq!(namespace.interfaces(), ["eth0", "lo"], "nothing is left of an ADD that fails");
    lab.command(&["down"]).ok();
    assert_eq!(runtime.error("STATUS", None, &[]).0, 50);
    assert_eq!(runtime.error("DEL", Some(&attachment), &[]).0, 11);
}

#[test]
fn a_burst_of_containers_is_refused_nothing() {
    let lab = Lab::start();
    let runtime = Runtime::new(&lab);
    let count = if all() { 250 } else { 40 };
    let namespaces: Vec<Namespace> = (0..count).map(|_| Namespace::new()).collect();
    let attached: Vec<(String, String)> =
        namespaces.iter().enumerate().map(|(n, namespace)| (format!("container-{n}"), namespace.file())).collect();
    let begin = std::time::Instant::now();
    let addresses: Vec<String> = std::thread::scope(|scope| {
        let add = |(id, file): &'_ (String, String)| address(&runtime.add(&Attachment::new(id, file)));
        let threads: Vec<_> = attached.iter().map(|one| scope.spawn(move || add(one))).collect();
        threads.into_iter().map(|thread| thread.join().expect("an ADD")).collect()
    });
    println!("{count} ADDs at once: {:?}", begin.elapsed());
    assert_eq!(addresses.iter().collect::<HashSet<_>>().len(), count);
    let ping = namespaces[0].command(&["ping", "-c", "1", "-W", "10", &addresses[count - 1]]);
    Program::start(ping).finish(LIMIT).ok();
    std::thread::scope(|scope| {
        attached.iter().for_each(|(id, file)| drop(scope.spawn(|| runtime.del(&Attachment::new(id, file)))));
    });
    assert_eq!(runtime.endpoints(), [] as [PathBuf; 0]);
}

/// `host-local` hands the addresses out, as the runtime's configuration says.
#[test]
fn another_plugin_hands_out_addresses() {
    let lab = Lab::start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let ipam = json!({
        "type": "host-local",
        "dataDir": folder.path(),
        "ranges": [[{ "subnet": "10.7.0.0/24", "rangeStart": "10.7.0.100", "rangeEnd": "10.7.0.101" }]],
    });
    let runtime = Runtime::new(&lab).with("cniVersion", json!("1.0.0")).with("ipam", ipam);
    let leased = || {
        let files = fs::read_dir(folder.path().join("blue")).expect("its folder").filter_map(Result::ok);
        files.filter(|file| file.file_name().to_string_lossy().starts_with("10.")).count()
    };
    let namespaces: Vec<Namespace> = (0..3).map(|_| Namespace::new()).collect();
    let files: Vec<String> = namespaces.iter().map(Namespace::file).collect();
    assert_eq!(address(&runtime.add(&Attachment::new("a", &files[0]))), "10.7.0.100");
    assert_eq!(address(&runtime.add(&Attachment::new("b", &files[1]))), "10.7.0.101");
    let (_, words) = runtime.error("ADD", Some(&Attachment::new("c", &files[2])), &[]);
    assert!(words.contains("no IP addresses available"), "{words}");
    // What the router refuses is given back.
    runtime.del(&Attachment::new("b", &files[1]));
    lab.command(&["endpoint", "add", "taken", "--net", "blue", "--ip", "10.7.0.101"]).ok();
    runtime.error("ADD", Some(&Attachment::new("c", &files[2])), &[]);
    assert_eq!(leased(), 1);
    runtime.del(&Attachment::new("a", &files[0]));
    assert_eq!(leased(), 0);
}

/// `cnitool`, the project's own runtime, with a list of plugins: the project's `bridge` makes `eth0`, ours adds an interface.
#[test]
fn the_projects_tool_chains_it_behind_another_plugin() {
    let tool = match cnitool() {
        Ok(tool) => tool,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    let (lab, folder, namespace) = (Lab::start(), tempfile::tempdir().expect("a temporary folder"), Namespace::new());
    let bridge = json!({
        "type": "bridge",
        "bridge": "rdmeshcni0",
        "ipam": {
            "type": "host-local",
            "dataDir": folder.path(),
            "ranges": [[{ "subnet": "172.30.9.0/24" }]],
        },
    });
    let own = json!({ "type": "rdmesh-cni", "network": "blue", "stateDir": lab.dir() });
    let list = json!({ "cniVersion": "1.0.0", "name": "chain", "plugins": [bridge, own] });
    fs::write(folder.path().join("10-chain.conflist"), list.to_string()).expect("the folder is ours");
    // The bridge is made in a namespace of the test.
    let host = Namespace::new();
    let run = |command: &str| {
        let mut tool = host.command(&[&tool.display().to_string(), command, "chain", &namespace.file()]);
        let plugins = product("rdmesh-cni");
        let path = format!("{PLUGINS}:{}", plugins.parent().expect("a folder").display());
        tool.env("CNI_PATH", path).env("NETCONFPATH", folder.path());
        Program::start(tool).finish(LIMIT)
    };
    let added = run("add").ok().text;
    let result: Value = serde_json::from_str(&added).unwrap_or_else(|error| panic!("{error}: {added}"));
    assert_eq!(
        result["interfaces"].as_array().and_then(|all| all.last()?["name"].as_str()),
        Some("rdmesh0"),
        "{added}"
    );
    assert_eq!(namespace.interfaces(), ["eth0", "lo", "rdmesh0"]);
    run("check").ok();
    run("del").ok();
    assert_eq!(namespace.interfaces(), ["lo"]);
    run("del").ok();
}

/// Containers with the library for sockets, on an orchestrator's network: their connections go by RDMA.
#[test]
fn redis_in_one_container_serves_another_by_rings() {
    let lab = Lab::start();
    let runtime = Runtime::new(&lab);
    let (a, b) = (Namespace::new(), Namespace::new());
    let (a_file, b_file) = (a.file(), b.file());
    let ip = address(&runtime.add(&Attachment::new("server", &a_file)));
    runtime.add(&Attachment::new("client", &b_file));
    let of = |id: &str| {
        let is_it = |path: &PathBuf| path.display().to_string().contains(&format!("-{id}-"));
        runtime.endpoints().into_iter().find(is_it).expect("an endpoint")
    };
    let libraries = ["librdmesh.so", "librdmesh-sockets.so"];
    let start = |namespace: &Namespace, id: &str, command: &[&str]| namespace.start_on(&of(id), &libraries, command);
    let server = ["redis-server", "--port", "7777", "--save", "", "--protected-mode", "no"];
    let mut server = start(&a, "server", &server);
    server.wait_listening(7777);
    let benchmark = ["redis-benchmark", "-h", &ip, "-p", "7777", "-t", "set,get", "-n", "20000", "-c", "20", "--csv"];
    let output = start(&b, "client", &benchmark).finish(LIMIT).ok();
    assert!(output.text.contains("\"SET\"") && output.text.contains("\"GET\""), "{}", output.text);
    assert!(lab.metric("rdmesh_relay_sent_bytes_total") > 100_000.0);
    server.terminate(Duration::from_secs(10));
}

/// The tool, built from the Go module proxy once, or why there is none.
fn cnitool() -> Result<PathBuf, String> {
    let folder = rdmesh_tests::root().join("target/test-programs");
    let tool = folder.join("cnitool");
    if tool.exists() {
        return Ok(tool);
    }
    let mut build = Command::new("go");
    build.args(["install", "github.com/containernetworking/cni/cnitool@v1.3.0"]).env("GOBIN", &folder);
    let output = build.output().map_err(|error| format!("cnitool cannot be built: go: {error}"))?;
    let words = || String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned();
    if output.status.success() { Ok(tool) } else { Err(format!("cnitool cannot be built: {}", words())) }
}
