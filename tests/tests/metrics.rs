//! `rdmesh up --metrics`: counters on a TCP port, for Prometheus.

use rdmesh_tests::{Lab, Options, until};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// A router with a free port for its metrics.
fn start() -> (Lab, String) {
    let up = ["--metrics", "127.0.0.1:0"].map(str::to_owned).to_vec();
    let lab = Lab::start_with(Options { rootless: true, up, ..Options::default() });
    let log = lab.dir().join("router.log");
    let address = until(LIMIT, "the metrics are served", || {
        let said = fs::read_to_string(&log).ok()?;
        let rest = said.split_once("serving metrics address=")?.1;
        Some(rest.lines().next()?.to_owned())
    });
    (lab, address)
}

/// Status and body of the answer to a request.
fn ask(address: &str, method: &str, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(LIMIT))?;
    write!(stream, "{method} {path} HTTP/1.1\r\nhost: {address}\r\ncontent-length: 0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn metrics_and_nothing_else_are_read_at_a_port() {
    let (lab, address) = start();
    lab.command(&["endpoint", "add", "a", "--net", "blue"]).ok();
    let page = ask(&address, "GET", "/metrics").expect("an answer");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("\nrdmesh_endpoints 1\n"), "{page}");
    assert!(page.contains("rdmesh_endpoint_qps{endpoint=\"a\",network=\"blue\"} 0"), "{page}");
    for (method, path) in [("GET", "/v1/status"), ("POST", "/v1/shutdown"), ("DELETE", "/v1/endpoints/blue/a")] {
        let answer = ask(&address, method, path).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 404"), "{method} {path}: {answer}");
    }
    let answer = ask(&address, "POST", "/metrics").expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
    assert_eq!(lab.status()["endpoints"], 1);
}

#[test]
fn readers_that_say_nothing_keep_nobody_out_for_long() {
    let (lab, address) = start();
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", lab.router_pid())).expect("a process").count();
    let before = descriptors();
    let silent: Vec<TcpStream> = (0..24).map(|_| TcpStream::connect(&address).expect("a backlog")).collect();
    // Nobody else's requests wait.
    lab.command(&["endpoint", "add", "a", "--net", "blue"]).ok();
    assert!(descriptors() < before + 16, "{} descriptors, {before} before", descriptors());
    let page = ask(&address, "GET", "/metrics").expect("an answer");
    assert!(page.contains("\nrdmesh_endpoints 1\n"), "{page}");
    drop(silent);
}

#[test]
fn an_address_that_cannot_be_had_is_an_error() {
    let lab = Lab::start_with(Options { rootless: true, ..Options::default() });
    lab.command(&["down"]).ok();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let output = lab.command(&["up", "--rootless", "--metrics", &address]);
    assert!(!output.status.success() && output.text.contains("the address of --metrics"), "{}", output.text);
    lab.up_again();
}
