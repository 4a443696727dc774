//! nginx and HAProxy, Debian's own, each in an endpoint: files, proxied files, and many small requests.

use crate::LIMIT;
use rdmesh_tests::{Endpoint, Lab, Program, until};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;
use std::time::Duration;

const SERVER: &str = "10.7.0.2";
const PROXY: &str = "10.7.0.4";

/// The server with two workers and files, and the proxy before it, at ports 7777 and 8080.
struct Web<'a> {
    lab: &'a Lab,
    server: Program,
    proxy: Program,
    folder: tempfile::TempDir,
}

impl<'a> Web<'a> {
    fn start(lab: &'a Lab) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let at = |name: &str| folder.path().join(name).display().to_string();
        let write = |name: &str, text: &[u8]| fs::write(folder.path().join(name), text).expect("the folder is ours");
        let big: Vec<u8> = (0..3_000_000u32).flat_map(|n| n.to_le_bytes()).collect();
        fs::create_dir(folder.path().join("html")).expect("the folder is ours");
        write("html/big", &big);
        write("html/small", &big[..800]);
        let nginx = format!(
            "user root; worker_processes 2; daemon off; pid {}; error_log {} info;\n\
             events {{ use epoll; }}\n\
             http {{ access_log off; keepalive_requests 1000000; sendfile on; client_body_temp_path {};\n\
             server {{ listen 7777; root {}; }} }}\n",
            at("pid"),
            at("errors"),
            at("body"),
            at("html")
        );
        write("nginx.conf", nginx.as_bytes());
        let haproxy = format!(
            "defaults\n mode http\n timeout connect 5s\n timeout client 20s\n timeout server 20s\n\
             frontend f\n bind :8080\n default_backend b\n\
             backend b\n http-reuse always\n server s {SERVER}:7777\n"
        );
        write("haproxy.cfg", haproxy.as_bytes());
        let in_endpoint = |name, ip, command: &[&str], port| {
            let mut program = lab.start_in(&Endpoint::at(name, "blue", ip).with(&["--accel"]), command);
            program.wait_listening(port);
            program
        };
        let prefix = folder.path().display().to_string();
        let server = in_endpoint("server", SERVER, &["nginx", "-p", &prefix, "-c", &at("nginx.conf")], 7777);
        let proxy = in_endpoint("proxy", PROXY, &["haproxy", "-f", &at("haproxy.cfg")], 8080);
        Self { lab, server, proxy, folder }
    }

    fn client(&self, options: &[&str], command: &[&str]) -> String {
        let client = Endpoint::at("client", "blue", "10.7.0.3").with(options);
        self.lab.run_in(&client, LIMIT, command).ok().text
    }

    /// Gets the big file so many times.
    fn get(&self, options: &[&str], times: usize, address: &str) {
        let copy = self.folder.path().join("copy");
        let url = format!("http://{address}/big");
        for _ in 0..times {
            let path = copy.display().to_string();
            self.client(options, &["curl", "-sS", "--max-time", "20", "-o", &path, &url]);
            assert!(is_equal(&copy, &self.folder.path().join("html/big")), "{url} is another file");
        }
    }

    fn errors(&self) -> String {
        fs::read_to_string(self.folder.path().join("errors")).unwrap_or_default()
    }
}

fn is_equal(a: &Path, b: &Path) -> bool {
    fs::read(a).expect("a file") == fs::read(b).expect("a file")
}

#[test]
fn files_and_requests_are_right_by_a_server_and_a_proxy() {
    let lab = Lab::start();
    let mut web = Web::start(&lab);
    for options in [&["--accel"][..], &[]] {
        web.get(options, 4, &format!("{SERVER}:7777"));
        web.get(options, 4, &format!("{PROXY}:8080"));
        for address in [format!("{SERVER}:7777"), format!("{PROXY}:8080")] {
            let url = format!("http://{address}/small");
            let output = web.client(options, &["wrk", "-t", "2", "-c", "20", "-d", "1", &url]);
            assert!(output.contains("Requests/sec") && !output.contains("errors"), "{options:?} {url}: {output}");
        }
    }
    assert!(!web.errors().contains("exited on signal"), "{}", web.errors());
    web.proxy.terminate(Duration::from_secs(10));
    web.server.terminate(Duration::from_secs(10));
}

#[test]
fn a_server_takes_new_workers_under_load() {
    let lab = Lab::start();
    let mut web = Web::start(&lab);
    let client = Endpoint::at("client", "blue", "10.7.0.3").with(&["--accel"]);
    let url = format!("http://{SERVER}:7777/small");
    let load = lab.start_in(&client, &["wrk", "-t", "2", "-c", "20", "-d", "3", &url]);
    for reload in 1..=2 {
        let pid = fs::read_to_string(web.folder.path().join("pid")).expect("the server runs");
        let pid = Pid::from_raw(pid.trim().parse().expect("a number")).expect("a process");
        kill_process(pid, Signal::HUP).expect("the server runs");
        let ended = || web.errors().matches("gracefully shutting down").count();
        until(LIMIT, "both old workers have ended", || (ended() >= 2 * reload).then_some(()));
    }
    let output = load.finish(LIMIT).ok().text;
    assert!(output.contains("Requests/sec") && !output.contains("timeout 1"), "{output}");
    assert!(!web.errors().contains("exited on signal"), "{}", web.errors());
    web.get(&["--accel"], 1, &format!("{SERVER}:7777"));
    web.server.terminate(Duration::from_secs(10));
    web.proxy.terminate(Duration::from_secs(10));
}
