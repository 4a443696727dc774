//! Command-line tests of the `rdmesh` program, with a harmless library in place of the preload library.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A running router in a state directory of its own.
struct Router {
    directory: TempDir,
}

impl Router {
    fn start(options: &[&str]) -> Self {
        let router = Self { directory: tempfile::tempdir().unwrap() };
        let up = router.rdmesh("up").args(options).output().unwrap();
        assert!(up.status.success(), "{}", text(&up.stderr));
        router
    }

    /// One that needs root; none (and a line that says why) without.
    fn start_as_root() -> Option<Self> {
        if rustix::process::geteuid().is_root() {
            return Some(Self::start(&[]));
        }
        eprintln!("skipped: network namespaces need root");
        None
    }

    fn rdmesh(&self, command: &str) -> Command {
        let mut rdmesh = Command::new(env!("CARGO_BIN_EXE_rdmesh"));
        rdmesh.arg("--state-dir").arg(self.directory.path()).arg(command).env("RDMESH_LIBRARY", harmless_library());
        rdmesh
    }

    fn output(&self, arguments: &[&str]) -> Output {
        let [command, rest @ ..] = arguments else { panic!("no command") };
        self.rdmesh(command).args(rest).output().unwrap()
    }

    fn endpoints(&self) -> Vec<Value> {
        serde_json::from_slice(&self.output(&["endpoint", "ls", "--json"]).stdout).unwrap()
    }

    fn wait_for_endpoints(&self, count: usize) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.endpoints().len() != count {
            assert!(Instant::now() < deadline, "{:?}", self.endpoints());
            thread::yield_now();
        }
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        let down = self.output(&["down"]);
        assert!(down.status.success(), "{}", text(&down.stderr));
        let mut left: Vec<_> = fs::read_dir(self.directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["lock", "router.log"]);
    }
}

/// A shared library that this program has loaded too.
fn harmless_library() -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps.lines().find_map(|line| line.split_whitespace().last().filter(|path| path.contains("libgcc_s")));
    path.unwrap().into()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_version_is_of_rdmesh() {
    let output = Command::new(env!("CARGO_BIN_EXE_rdmesh")).arg("--version").output().unwrap();
    assert_eq!(text(&output.stdout), format!("rdmesh {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn the_program_is_the_process_that_was_started() {
    let router = Router::start(&["--rootless"]);
    let run = |script: &str| router.output(&["run", "--host-network", "--name", "a", "--", "sh", "-c", script]);
    let output = run("echo $RDMESH_ENDPOINT $LD_PRELOAD; exit 7");
    let directory = router.directory.path().join("endpoints/default.a");
    let expected = format!("{0} {0}/librdmesh.so\n", directory.display());
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(7), expected), "{}", text(&output.stderr));
    assert_eq!(run("kill -TERM $$").status.signal(), Some(15));
    assert_eq!(router.output(&["run", "--host-network", "--", "/nonexistent"]).status.code(), Some(127));
    router.wait_for_endpoints(0);
}

#[test]
fn a_killed_program_takes_its_endpoint_with_it() {
    let router = Router::start(&["--rootless"]);
    let mut sleep: Child = router.rdmesh("run").args(["--host-network", "sleep", "1000"]).spawn().unwrap();
    router.wait_for_endpoints(1);
    assert_eq!(router.endpoints()[0]["owner_pid"], sleep.id());
    sleep.kill().unwrap();
    sleep.wait().unwrap();
    router.wait_for_endpoints(0);
}

#[test]
fn the_sandbox_shows_one_endpoint_and_its_network_only() {
    let Some(router) = Router::start_as_root() else { return };
    assert!(router.output(&["endpoint", "add", "other"]).status.success());
    let state = router.directory.path().display();
    let script =
        format!("ls {state}; ls /run/rdmesh; ls /sys/class/net; cat /proc/net/fib_trie | grep 10.7.0.2; ls /sys/fs");
    let run = ["run", "--net", "blue", "--ip", "10.7.0.2", "--", "sh", "-c", &script];
    let output = router.output(&run);
    let seen = text(&output.stdout);
    let mut lines = seen.split_whitespace();
    assert_eq!(lines.by_ref().take(3).collect::<Vec<_>>(), ["endpoint", "eth0", "lo"], "{seen}");
    assert!(seen.contains("10.7.0.2") && seen.contains("cgroup"), "{seen}");
    assert!(!seen.contains("api.sock") && !seen.contains("other"), "{seen}");
    // The same address on another network, at once: nothing of the first run is in the way.
    let red = ["run", "--net", "red", "--ip", "10.7.0.2", "--", "true"];
    assert!(router.output(&red).status.success());
    assert!(router.output(&run).status.success());
}

#[test]
fn containers_are_told_where_their_endpoint_is() {
    let router = Router::start(&["--rootless"]);
    let arguments = text(&router.output(&["container-args", "a"]).stdout);
    let directory = router.directory.path().join("endpoints/default.a");
    let directory = directory.display();
    let preload = "LD_PRELOAD=/run/rdmesh/endpoint/librdmesh.so";
    assert_eq!(arguments, format!("-v {directory}:/run/rdmesh/endpoint:ro -e {preload}\n"));
    assert_eq!(text(&router.output(&["container-args", "a"]).stdout), arguments);
    let cdi: Value = serde_json::from_slice(&router.output(&["cdi", "--output", "-"]).stdout).unwrap();
    assert_eq!(cdi["kind"], "rdmesh.dev/endpoint");
    let device = &cdi["devices"][0];
    assert_eq!(device["name"], "default.a");
    assert_eq!(device["containerEdits"]["env"][0], preload);
    assert_eq!(device["containerEdits"]["mounts"][0]["hostPath"], directory.to_string());
    assert!(router.output(&["endpoint", "rm", "a"]).status.success());
    assert!(!router.output(&["cdi", "--output", "-"]).status.success());
}

#[test]
fn a_second_up_finds_the_first_and_ps_is_json_on_request() {
    let router = Router::start(&["--rootless"]);
    assert!(text(&router.output(&["up", "--rootless"]).stdout).contains("already running"));
    let listed: Value = serde_json::from_slice(&router.output(&["ps", "--json"]).stdout).unwrap();
    assert_eq!(listed, serde_json::json!({ "connections": [], "contexts": [], "endpoints": [] }));
    let stats: Value = serde_json::from_slice(&router.output(&["stats", "--json"]).stdout).unwrap();
    assert_eq!(stats["metrics"][0]["name"], "rdmesh_endpoints");
    let top = router.output(&["top", "--interval", "0.1", "--count", "2"]);
    assert_eq!(text(&top.stdout).matches("SENT/s").count(), 2);
}

#[test]
fn without_a_router_the_way_to_one_is_shown() {
    let directory = tempfile::tempdir().unwrap();
    let rdmesh = |command: &str| {
        let mut rdmesh = Command::new(env!("CARGO_BIN_EXE_rdmesh"));
        rdmesh.arg("--state-dir").arg(directory.path()).arg(command).stdin(Stdio::null()).output().unwrap()
    };
    let ps = rdmesh("ps");
    assert_eq!(ps.status.code(), Some(1));
    assert!(text(&ps.stderr).contains("rdmesh up"));
    assert!(text(&rdmesh("down").stdout).contains("No router is running"));
    let doctor = rdmesh("doctor");
    assert_eq!(doctor.status.code(), Some(1));
    assert!(text(&doctor.stdout).contains("FAIL  router"));
}

#[test]
fn a_router_that_cannot_start_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let up = Command::new(env!("CARGO_BIN_EXE_rdmesh"))
        .arg("--state-dir")
        .arg(directory.path())
        .args(["up", "--rootless"])
        .env("RDMESH_LIBRARY", "/nonexistent.so")
        .output()
        .unwrap();
    assert_eq!(up.status.code(), Some(1));
    assert!(text(&up.stderr).contains("/nonexistent.so"), "{}", text(&up.stderr));
}

#[test]
fn a_relative_state_directory_is_the_callers_and_works() {
    let directory = tempfile::tempdir().unwrap();
    let rdmesh = |arguments: &[&str]| {
        let mut rdmesh = Command::new(env!("CARGO_BIN_EXE_rdmesh"));
        rdmesh.current_dir(directory.path()).args(["--state-dir", "here/state"]).args(arguments);
        let output = rdmesh.env("RDMESH_LIBRARY", harmless_library()).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let up = rdmesh(&["up", "--rootless"]);
    let state = directory.path().canonicalize().unwrap().join("here/state");
    assert!(up.contains(&state.join("router.log").display().to_string()), "{up}");
    assert_eq!(rdmesh(&["run", "--host-network", "--", "echo", "ran"]), "ran\n");
    assert!(rdmesh(&["down"]).contains("has ended"));
    let left: BTreeSet<_> = fs::read_dir(state).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["lock", "router.log"].map(OsString::from).into());
}

#[test]
fn a_state_directory_without_room_for_a_sockets_address_is_refused_at_once() {
    let long = format!("/tmp/{}", "x".repeat(100));
    let up =
        Command::new(env!("CARGO_BIN_EXE_rdmesh")).args(["--state-dir", &long, "up", "--rootless"]).output().unwrap();
    assert_eq!(up.status.code(), Some(1));
    assert!(text(&up.stderr).contains("too long") && text(&up.stderr).contains("--state-dir"), "{}", text(&up.stderr));
}

/// Runs every subcommand that prints, from the start of a router to its end, with `stdout`.
fn print_everything(stdout: impl Fn() -> Stdio, check: impl Fn(&[&str], Output)) {
    let directory = tempfile::tempdir().unwrap();
    let verbs: [&[&str]; 17] = [
        &["up", "--rootless"],
        &["up", "--rootless"],
        &["ps"],
        &["ps", "--json"],
        &["stats"],
        &["endpoint", "ls"],
        &["endpoint", "add", "a"],
        &["peer", "ls"],
        &["peer", "ls", "--json"],
        &["network", "ls"],
        &["faults"],
        &["container-args", "a"],
        &["cdi", "--output", "-"],
        &["top", "--count", "1", "--interval", "0.1"],
        &["capture", "a"],
        &["doctor"],
        &["down"],
    ];
    for verb in verbs {
        let mut rdmesh = Command::new(env!("CARGO_BIN_EXE_rdmesh"));
        rdmesh.arg("--state-dir").arg(directory.path()).args(verb).env("RDMESH_LIBRARY", harmless_library());
        let child = rdmesh.stdout(stdout()).stderr(Stdio::piped()).spawn().unwrap();
        check(verb, child.wait_with_output().unwrap());
    }
    assert!(!directory.path().join("api.sock").exists(), "the router was started, and has ended");
}

#[test]
fn a_reader_that_has_seen_enough_ends_the_program_quietly() {
    let closed = || std::io::pipe().unwrap().1.into();
    print_everything(closed, |verb, output| {
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(141), "{verb:?}: {said}");
        assert!(said.is_empty() || verb[0] == "capture", "{verb:?}: {said}");
    });
}

#[test]
fn a_full_disk_is_told() {
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").unwrap().into();
    print_everything(full, |verb, output| {
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{verb:?}: {said}");
        assert!(said.contains("No space left"), "{verb:?}: {said}");
    });
}

#[test]
fn the_routers_files_are_closed_to_other_users() {
    let mode = |path: PathBuf| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777;
    let rootless = Router::start(&["--rootless"]);
    let file = |router: &Router, name: &str| router.directory.path().join(name);
    for (name, expected) in [("lock", 0o600), ("router.log", 0o600), ("api.sock", 0o600), ("endpoints", 0o700)] {
        assert_eq!(mode(file(&rootless, name)), expected, "{name}");
    }
    let Some(root) = Router::start_as_root() else { return };
    for (name, expected) in [("lock", 0o600), ("router.log", 0o640), ("api.sock", 0o600), ("endpoints", 0o700)] {
        assert_eq!(mode(file(&root, name)), expected, "{name}");
    }
}

#[test]
fn a_program_that_drops_its_privileges_keeps_its_endpoint() {
    let Some(router) = Router::start_as_root() else { return };
    let script = "cat $RDMESH_ENDPOINT/sys/class/infiniband/rxe0/node_type; ls /run/rdmesh; cat $LD_PRELOAD | wc -c";
    let drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script];
    let output = router.output(&[&["run", "--host-network", "--"], &drop[..]].concat());
    let seen = text(&output.stdout);
    let lines: Vec<_> = seen.lines().collect();
    assert_eq!(lines[..2], ["1: CA", "endpoint"], "{seen}{}", text(&output.stderr));
    assert!(lines[2].parse::<usize>().unwrap() > 0);
    // The others' are out of reach all the same, and so is the router.
    let state = router.directory.path().display().to_string();
    let listed = router.output(&["run", "--host-network", "--", "ls", "-A", &state]);
    assert_eq!((listed.status.code(), text(&listed.stdout)), (Some(0), String::new()));
}

#[test]
fn the_peers_of_one_router_are_listed_as_another_reads_them() {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let own = format!("127.{high}.{low}.1");
    let router = Router::start(&["--rootless", "--host", "a", "--underlay", &own, "--underlay-security", "none"]);
    let done = |arguments: &[&str]| {
        let output = router.output(arguments);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    done(&["peer", "add", "b", "192.0.2.2"]);
    done(&["peer", "endpoint", "b", "--net", "blue", "--vni", "7", "10.7.0.3", "fd00::3"]);
    assert!(done(&["peer", "ls"]).contains("10.7.0.3, fd00::3"));
    assert!(done(&["network", "ls"]).contains("blue"));
    let file = router.directory.path().join("peers.json");
    fs::write(&file, done(&["peer", "ls", "--json"])).unwrap();
    done(&["down"]);
    let wrong = router.output(&["up", "--rootless", "--underlay", &own, "--peers", "/nonexistent"]);
    assert!(text(&wrong.stderr).contains("/nonexistent"));
    let up = router
        .rdmesh("up")
        .args(["--rootless", "--underlay-security", "none", "--underlay", &own, "--peers"])
        .arg(&file)
        .output()
        .unwrap();
    assert!(up.status.success(), "{}", text(&up.stderr));
    assert_eq!(done(&["peer", "ls", "--json"]), fs::read_to_string(&file).unwrap());
    let differs = router.output(&["endpoint", "add", "a", "--net", "blue", "--vni", "8"]);
    assert!(text(&differs.stderr).contains("number 7, not 8"), "{}", text(&differs.stderr));
    done(&["peer", "rm", "b", "10.7.0.3", "--net", "blue"]);
    done(&["peer", "rm", "b"]);
    fs::remove_file(&file).unwrap();
}

#[test]
fn faults_are_said_and_taken_back() {
    let router = Router::start(&["--rootless", "--faults", "loss=1%"]);
    let faults = |arguments: &[&str]| text(&router.rdmesh("faults").args(arguments).output().unwrap().stdout);
    assert!(faults(&[]).starts_with("loss=1%"));
    assert_eq!(faults(&["off"]), "off\n");
    assert_eq!(faults(&[]), "off\n");
}

#[test]
fn chains_that_there_are_not_cannot_be_ended() {
    let router = Router::start(&["--rootless"]);
    assert!(text(&router.output(&["chain", "ls"]).stdout).starts_with("No chains"));
    assert_eq!(text(&router.output(&["chain", "ls", "--json"]).stdout).trim(), "[]");
    assert!(router.output(&["endpoint", "add", "a"]).status.success());
    for action in ["stop", "resume", "kill"] {
        let refused = router.output(&["chain", action, "a", "7"]);
        assert!(!refused.status.success());
        assert!(text(&refused.stderr).contains("`rdmesh chain ls`"), "{}", text(&refused.stderr));
    }
}
