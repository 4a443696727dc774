//! Redis, Debian's own: server and clients without a change.

use crate::{LIMIT, accelerated, run};
use rdmesh_tests::{Program, until};
use std::process::Command;
use std::time::Duration;

struct Redis {
    server: Program,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Redis {
    /// A server on a free port, accelerated.
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let port = free_port();
        let (port_text, dir) = (port.to_string(), folder.path().display().to_string());
        let command = ["redis-server", "--port", &port_text, "--dir", &dir, "--bind", "127.0.0.1", "--save", ""];
        let mut server = Program::start(accelerated(&command));
        server.wait_listening(port);
        Self { server, port, _folder: folder }
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let port = self.port.to_string();
        accelerated(&[&[program, "-p", &port], arguments].concat())
    }

    fn cli(&self, arguments: &[&str]) -> String {
        run(self.command("redis-cli", arguments)).ok().text.trim().to_owned()
    }

    /// System calls by which the server has read and written, on all descriptors (`syscr` and `syscw` of proc_pid_io(5)).
    fn calls(&self) -> u64 {
        let pid = self.server.pid();
        let io = std::fs::read_to_string(format!("/proc/{pid}/io")).expect("the server runs");
        let count = |name: &str| io.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        count("syscr:").unwrap_or_default() + count("syscw:").unwrap_or_default()
    }
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port()
}

#[test]
fn benchmark_and_values_are_right_on_rings() {
    let mut redis = Redis::start();
    let value = "v".repeat(100_000);
    assert_eq!(redis.cli(&["set", "key", &value]), "OK");
    assert_eq!(redis.cli(&["get", "key"]), value);
    let before = redis.calls();
    const REQUESTS: u64 = 100_000;
    let requests = REQUESTS.to_string();
    let options = ["-t", "set,get", "-n", &requests, "-c", "50", "--threads", "2", "-r", "1000", "--csv"];
    let output = run(redis.command("redis-benchmark", &options)).ok();
    assert!(output.text.contains("\"SET\"") && output.text.contains("\"GET\""), "{}", output.text);
    // On TCP a request costs the server a read and a write.
    let calls = redis.calls() - before;
    assert!(calls < REQUESTS, "{calls} calls for {} requests", 2 * REQUESTS);
    assert_eq!(redis.cli(&["get", "key"]), value);
    redis.server.terminate(Duration::from_secs(10));
}

#[test]
fn a_snapshot_by_fork_and_a_replica_leave_clients_alone() {
    let mut redis = Redis::start();
    let options = ["-t", "set", "-n", "300000", "-c", "20", "-r", "10000", "-q"];
    let load = Program::start(redis.command("redis-benchmark", &options));
    for _ in 0..3 {
        let answer = redis.cli(&["bgsave"]);
        assert!(answer.contains("started") || answer.contains("in progress"), "{answer}");
    }
    let mut replica = Redis::start();
    let master = redis.port.to_string();
    assert_eq!(replica.cli(&["replicaof", "127.0.0.1", &master]), "OK");
    load.finish(LIMIT).ok();
    assert_eq!(redis.cli(&["set", "last", "one"]), "OK");
    until(LIMIT, "the replica has all", || (replica.cli(&["get", "last"]) == "one").then_some(()));
    until(LIMIT, "both have the same", || (redis.cli(&["dbsize"]) == replica.cli(&["dbsize"])).then_some(()));
    replica.server.terminate(Duration::from_secs(10));
    redis.server.terminate(Duration::from_secs(10));
}

#[test]
fn a_client_without_the_library_is_served() {
    let mut redis = Redis::start();
    let mut plain = Command::new("redis-benchmark");
    plain.args(["-p", &redis.port.to_string(), "-t", "get", "-n", "20000", "-q"]);
    run(plain).ok();
    redis.server.terminate(Duration::from_secs(10));
}
