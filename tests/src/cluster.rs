//! A cluster on one machine: hosts on one Ethernet, an etcd that they share, and endpoints in which commands are run.

use crate::etcd::Etcd;
use crate::hosts::Hosts;
use crate::lab::{Endpoint, Lab, Options};
use crate::program::Program;
use crate::wait::until;
use crate::wire::{Wire, ip};
use serde_json::Value;
use std::time::Duration;
use tempfile::NamedTempFile;

/// Hosts `host0`, `host1` and so on at 192.0.2.1 and so on.
pub struct Cluster {
    /// Before the others: routers end before what they need.
    labs: Vec<Lab>,
    etcd: Etcd,
    wire: Wire,
    _key: NamedTempFile,
}

/// An endpoint with a shell in it.
pub struct Site {
    shell: Program,
    address: String,
}

impl Cluster {
    /// Hosts whose routers are started with `--terms`, as soon as all have joined.
    pub fn start(count: usize, terms: &str) -> Self {
        let mut wire = Wire::new(1500);
        wire.set_address(STORE);
        let etcd = Etcd::start_at(STORE, &wire.name);
        let key = NamedTempFile::new().expect("a temporary file");
        std::fs::write(key.path(), Hosts::KEY).expect("the file is ours");
        let lab = |number| {
            let (name, address) = (format!("host{number}"), Hosts::address(number));
            let (store, key) = (etcd.url(), key.path().display().to_string());
            let host = ["--host", &name, "--underlay", &address, "--key", &key, "--store", &store, "--terms", terms];
            Lab::start_with(Options {
                up: host.map(str::to_owned).to_vec(),
                netns: Some(wire.connect(&address)),
                ..Options::default()
            })
        };
        let labs: Vec<Lab> = (0..count).map(lab).collect();
        Self { labs, etcd, wire, _key: key }
    }

    /// The router of a host.
    pub fn lab(&self, number: usize) -> &Lab {
        &self.labs[number]
    }

    /// Ends the store.
    pub fn stop_store(&mut self) {
        self.etcd.kill(0);
    }

    /// Starts the store again, with all that it had.
    pub fn start_store(&mut self) {
        self.etcd.restart(0);
    }

    /// Kills a router, as a loss of its host would.
    pub fn kill_router(&self, number: usize) {
        crate::system::kill(self.labs[number].router_pid());
    }

    /// Keeps a host from the store, and from nothing else.
    pub fn cut_from_store(&self, number: usize) {
        ip(&format!("-n {} route add blackhole {STORE}/32", self.netns(number)));
    }

    /// Ends [`Cluster::cut_from_store`].
    pub fn join_to_store(&self, number: usize) {
        ip(&format!("-n {} route del blackhole {STORE}/32", self.netns(number)));
    }

    /// The namespace that stands for a host.
    pub fn netns(&self, number: usize) -> &str {
        &self.wire.machines[number]
    }

    /// An endpoint `name` of a network, with a shell in it, on a host; with the address that it is to have.
    pub fn site(&self, number: usize, net: &str, name: &str, address: Option<&str>) -> Site {
        let mut options = vec!["--net", net];
        options.extend(address.into_iter().flat_map(|address| ["--ip", address]));
        let endpoint = Endpoint::new(name).with(&options);
        let lab = self.lab(number);
        let shell = until(LIMIT, &format!("{name} is on host{number}"), || {
            let mut shell = lab.start_in(&endpoint, &["sh"]);
            shell.say("echo ready");
            let is_there = until(LIMIT, "the shell starts or fails", || {
                let is_there = shell.text().contains("ready");
                (is_there || !shell.is_running()).then_some(is_there)
            });
            // The router may not have joined yet, or the address may still rest.
            is_there.then(|| shell.next_line(LIMIT)).map(|_| shell)
        });
        let endpoints = lab.api("/v1/endpoints");
        let is_it = |endpoint: &&Value| endpoint["name"] == name && endpoint["network"] == net;
        let made = endpoints.as_array().and_then(|all| all.iter().find(is_it)).expect("the endpoint is listed");
        Site { shell, address: made["addresses"][0].as_str().expect("an address").to_owned() }
    }

    /// The addresses on `net` that a host knows on other hosts, each with its host's name.
    pub fn known(&self, number: usize, net: &str) -> Vec<(String, String)> {
        let peers = self.lab(number).api("/v1/peers");
        let hosts = peers["hosts"].as_array().cloned().unwrap_or_default();
        let mut known = Vec::new();
        for host in &hosts {
            for endpoint in host["endpoints"].as_array().into_iter().flatten().filter(|e| e["network"] == net) {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                known.push((text(&endpoint["addresses"][0]), text(&host["name"])));
            }
        }
        known.sort_unstable();
        known
    }

    /// Waits until a host knows exactly these addresses of other hosts on `net`, on the hosts with these numbers.
    pub fn wait_for(&self, number: usize, net: &str, wanted: &[(&str, usize)]) {
        let mut wanted: Vec<_> = wanted.iter().map(|(ip, host)| ((*ip).to_owned(), format!("host{host}"))).collect();
        wanted.sort_unstable();
        let what = format!("host{number} knows {wanted:?} on {net}");
        until(LIMIT, &what, || (self.known(number, net) == wanted).then_some(()));
    }
}

impl Site {
    /// Its address.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Runs a command in it; returns whether it succeeded, and what it printed.
    pub fn try_run(&mut self, command: &str) -> (bool, String) {
        self.read_outcome(&format!("( {command} ) 2>&1 </dev/null"))
    }

    /// Runs a command in it, which must succeed; returns what it printed.
    pub fn run(&mut self, command: &str) -> String {
        let (is_ok, text) = self.try_run(command);
        assert!(is_ok, "{command}, at {}:\n{text}", self.address);
        text
    }

    /// Starts a server in it, and waits until it listens.
    pub fn serve(&mut self, command: &str, port: u16) {
        self.start(command);
        self.shell.wait_listening(port);
    }

    /// Starts a server in it that listens by rdma_cm at `lab`, and waits until it does.
    pub fn serve_connections(&mut self, command: &str, lab: &Lab) {
        self.start(command);
        until(LIMIT, command, || lab.has_listener(&self.shell).then_some(()));
    }

    /// Starts a command in it, whose output is lost.
    pub fn start(&mut self, command: &str) {
        self.shell.say(&format!("{command} >/dev/null 2>&1 </dev/null &"));
    }

    /// Starts a command in it and returns at once; [`Site::outcome`] waits for its end.
    pub fn start_job(&mut self, command: &str) {
        self.shell.say(&format!("( {command} ) 2>&1 </dev/null & job=$!"));
    }

    /// Outcome of [`Site::start_job`]'s command.
    pub fn outcome(&mut self) -> (bool, String) {
        self.read_outcome("wait $job")
    }

    /// Ends what it runs, and the endpoint with it.
    pub fn end(mut self) {
        self.shell.kill();
    }

    fn read_outcome(&mut self, command: &str) -> (bool, String) {
        self.shell.say(&format!("{command}; status=$?; echo; echo \"{END} $status\""));
        let mut text = String::new();
        loop {
            let line = self.shell.next_line(LIMIT);
            if let Some(status) = line.strip_prefix(END) {
                return (status.trim() == "0", text);
            }
            text.push_str(&line);
            text.push('\n');
        }
    }
}

/// The store's address, which all hosts reach.
const STORE: &str = "192.0.2.100";
const END: &str = "--- ended:";
const LIMIT: Duration = Duration::from_secs(120);
