//! PostgreSQL, memcached, Node.js and a JVM: a process for each connection, threads, libuv, and selectors.

use crate::{LIMIT, rounds};
use rdmesh_tests::{Endpoint, Lab, Program, system};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::time::Duration;

const PORT: u16 = 7777;
const SERVER: &str = "10.7.0.2";

/// A server in an endpoint of one host, and its clients in another endpoint.
struct Served<'a> {
    server: Program,
    lab: &'a Lab,
}

impl<'a> Served<'a> {
    fn start<S: AsRef<OsStr>>(lab: &'a Lab, command: &[S]) -> Self {
        let mut server = lab.start_in(&Endpoint::at("server", "blue", SERVER).with(&["--accel"]), command);
        server.wait_listening(PORT);
        Self { server, lab }
    }

    fn ask(&self, options: &[&str], command: &[&str]) -> String {
        let client = Endpoint::at("client", "blue", "10.7.0.3").with(options);
        self.lab.run_in(&client, LIMIT, command).ok().text
    }

    /// Asks with and without acceleration; only with it the server's relay carries answers.
    fn ask_both_ways(&self, command: &[&str], expected: &str) {
        for options in [&["--accel"][..], &[]] {
            let before = self.answered();
            let output = self.ask(options, command);
            assert!(output.contains(expected), "{options:?} {command:?}: {output}");
            self.expect_answers(before, options);
        }
    }

    /// Bytes that the server has sent by RDMA: a client's endpoint, with what it has sent, may outlive the client for a moment.
    fn answered(&self) -> f64 {
        let stats = self.lab.stats();
        let metrics = stats["metrics"].as_array().expect("a list of metrics");
        let of_server =
            |m: &&Value| m["name"] == "rdmesh_relay_sent_bytes_total" && m["labels"]["endpoint"] == "server";
        metrics.iter().filter(of_server).filter_map(|m| m["value"].as_f64()).sum()
    }

    fn expect_answers(&self, before: f64, options: &[&str]) {
        let bytes = self.answered() - before;
        assert!(if options.is_empty() { bytes == 0.0 } else { bytes > 10_000.0 }, "{options:?}: {bytes} bytes");
    }

    fn end(mut self) {
        self.server.terminate(Duration::from_secs(20));
    }
}

fn program(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("programs/sockets/servers").join(name);
    path.display().to_string()
}

#[test]
fn node_serves_and_asks() {
    let lab = Lab::start();
    let (server, requests) = (program("server.js"), rounds(10_000, 50_000).to_string());
    let served = Served::start(&lab, &["node", &server, "serve", &PORT.to_string()]);
    served.ask_both_ways(&["node", &server, "ask", SERVER, &PORT.to_string(), &requests], "all answers are right");
    served.end();
}

#[test]
fn a_jvm_serves_and_asks() {
    let lab = Lab::start();
    let (server, requests) = (program("Server.java"), rounds(1000, 50_000).to_string());
    // Without it each answer on TCP waits for a delayed acknowledgement.
    let option = "-Dsun.net.httpserver.nodelay=true";
    let served = Served::start(&lab, &["java", option, &server, "serve", &PORT.to_string()]);
    served.ask_both_ways(&["java", &server, "ask", SERVER, &PORT.to_string(), &requests], "all answers are right");
    served.end();
}

#[test]
fn memcached_serves_with_threads() {
    let lab = Lab::start();
    let port = PORT.to_string();
    let served = Served::start(&lab, &["memcached", "-u", "nobody", "-p", &port, "-l", SERVER, "-t", "2"]);
    let servers = format!("--servers={SERVER}:{PORT}");
    let number = format!("--execute-number={}", rounds(10_000, 50_000));
    for test in ["--test=set", "--test=get"] {
        served.ask_both_ways(&["memcslap", &servers, "--concurrency=4", &number, test], "keys by");
    }
    served.end();
}

/// PostgreSQL in a folder of its own, run by its user.
struct Postgres {
    folder: tempfile::TempDir,
    bin: PathBuf,
}

impl Postgres {
    fn new() -> Self {
        let newest = || {
            let versions = fs::read_dir("/usr/lib/postgresql").ok()?.filter_map(Result::ok);
            versions.map(|version| version.path().join("bin")).filter(|bin| bin.join("postgres").exists()).max()
        };
        let bin = newest().expect("PostgreSQL is installed");
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("the folder is ours");
        let postgres = Self { folder, bin };
        let data = postgres.data();
        fs::create_dir(&data).expect("the folder is ours");
        let id = |flag: &str| -> u32 {
            let id = std::process::Command::new("id").args([flag, "postgres"]).output().expect("id runs").stdout;
            String::from_utf8_lossy(&id).trim().parse().expect("the package has made its user")
        };
        chown(&data, Some(id("-u")), Some(id("-g"))).expect("root may");
        let mut init = std::process::Command::new("setpriv");
        init.args(postgres.command("initdb", &["-D", &data.display().to_string(), "-A", "trust", "-N"]).split_off(1));
        Program::start(init).finish(LIMIT).ok();
        let rule = "host all all all trust\nlocal all all trust\n";
        fs::write(data.join("pg_hba.conf"), rule).expect("root may");
        postgres
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// One of its programs, as its user.
    fn command(&self, program: &str, arguments: &[&str]) -> Vec<String> {
        let program = self.bin.join(program).display().to_string();
        let by = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", &program];
        by.iter().chain(arguments).map(|word| (*word).to_owned()).collect()
    }

    fn server(&self) -> Vec<String> {
        let data = self.data().display().to_string();
        let port = PORT.to_string();
        self.command(
            "postgres",
            &["-D", &data, "-p", &port, "-c", "listen_addresses=*", "-k", &data, "-c", "fsync=off"],
        )
    }
}

#[test]
fn postgresql_serves_by_a_process_for_each_connection() {
    if !system::is_root() {
        println!("skipped: PostgreSQL runs as its own user, which needs root");
        return;
    }
    let lab = Lab::start();
    let postgres = Postgres::new();
    let mut served = Served::start(&lab, &postgres.server());
    let port = PORT.to_string();
    let ask = |program: &str, arguments: &[&str]| {
        postgres.command(program, &[&["-h", SERVER, "-p", &port][..], arguments].concat())
    };
    let run = |served: &Served<'_>, options: &[&str], command: &[String]| {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        served.ask(options, &words)
    };
    run(&served, &["--accel"], &ask("pgbench", &["-i", "-q", "postgres"]));
    let transactions = rounds(500, 20_000).to_string();
    let load = ask("pgbench", &["-c", "4", "-j", "2", "-t", &transactions, "postgres"]);
    for options in [&["--accel"][..], &[]] {
        let before = served.answered();
        let output = run(&served, options, &load);
        assert!(output.contains("failed transactions: 0 "), "{output}");
        served.expect_answers(before, options);
    }
    // A connection for each transaction, and 4 MB in one answer.
    let output = run(&served, &["--accel"], &ask("pgbench", &["-C", "-S", "-c", "4", "-t", "20", "postgres"]));
    assert!(output.contains("failed transactions: 0 "), "{output}");
    let select = "select length(x) from (select repeat('y', 4000000) as x) as one";
    let wide = ask("psql", &["-At", "-c", select, "-c", "select repeat('z', 4000000)", "postgres"]);
    let output = run(&served, &["--accel"], &wide);
    assert!(output.contains("4000000") && output.matches('z').count() >= 4_000_000, "{} bytes", output.len());
    served.server.terminate(Duration::from_secs(20));
}
