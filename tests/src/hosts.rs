//! Several hosts on one machine: a network namespace each, a wire between them, and a router in each.

use crate::lab::{Endpoint, Lab, Options};
use crate::pair::Pair;
use crate::wait::until;
use crate::wire::{Wire, ip};
use serde_json::{Value, json};
use std::time::Duration;
use tempfile::NamedTempFile;

/// Hosts 0, 1, …, called `host0` and so on, at 192.0.2.1 and so on. Each has an endpoint on network `blue` and one on network
/// `red`, both with address 10.7.0.2 for host 0 and so on.
pub struct Hosts {
    /// Before the wire: routers end before their hosts do.
    labs: Vec<Lab>,
    wire: Wire,
    options: Options,
    /// Files that routers read when they start.
    files: Vec<NamedTempFile>,
}

impl Hosts {
    /// The secret of all hosts, unless another is said.
    pub const KEY: &str = "6b1f0ce2a9d34785b0c1d2e3f4a5968778695a4b3c2d1e0f9e8d7c6b5a493827";

    /// Two hosts, as machines on an Ethernet are.
    pub fn start() -> Self {
        Self::start_with(1500, Options::default())
    }

    /// Two hosts with an MTU between them, whose routers are started with `options`.
    pub fn start_with(mtu: u32, options: Options) -> Self {
        let hosts = Self::start_with_keys(mtu, options, [Self::KEY; 2]);
        hosts.wait_for_sessions();
        hosts
    }

    /// The same with a secret of each, which need not be the same; does not wait until they have a session.
    pub fn start_with_keys(mtu: u32, options: Options, keys: [&str; 2]) -> Self {
        let mut hosts = Self { labs: Vec::new(), wire: Wire::new(mtu), options, files: Vec::new() };
        let peers = json!({ "hosts": [Self::description(0), Self::description(1)] });
        for key in keys {
            hosts.add_with_key(&peers, key);
        }
        hosts
    }

    /// Two hosts on an Ethernet, each with options of its own.
    pub fn start_each(options: [Options; 2]) -> Self {
        let peers = json!({ "hosts": [Self::description(0), Self::description(1)] });
        let mut hosts =
            Self { labs: Vec::new(), wire: Wire::new(1500), options: Options::default(), files: Vec::new() };
        for options in options {
            hosts.options = options;
            hosts.add(&peers);
        }
        hosts.wait_for_sessions();
        hosts
    }

    /// Waits until the first two hosts have sessions with each other.
    pub fn wait_for_sessions(&self) {
        for lab in &self.labs[..2] {
            until(LIMIT, "the tunnel is authenticated", || {
                let tunnel = lab.api("/v1/tunnel");
                let is_open = |host: &Value| host["sends"] == true && host["receives"] == true;
                let hosts = tunnel["hosts"].as_array().expect("a list of hosts");
                (tunnel["is_authenticated"] == false || hosts.iter().all(is_open)).then_some(())
            });
        }
    }

    /// A file with a secret.
    pub fn key_file(&mut self, key: &str) -> String {
        let file = NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), key).expect("the file is ours");
        let path = file.path().display().to_string();
        self.files.push(file);
        path
    }

    /// Adds a host that is told of `peers`, in the form of `rdmesh up --peers`.
    pub fn add(&mut self, peers: &Value) {
        self.add_with_key(peers, Self::KEY);
    }

    fn add_with_key(&mut self, peers: &Value, key: &str) {
        if !self.options.up.iter().any(|option| option == "--underlay-security") {
            let path = self.key_file(key);
            return self.add_with(peers, &["--key", &path]);
        }
        self.add_with(peers, &[]);
    }

    fn add_with(&mut self, peers: &Value, up: &[&str]) {
        let number = self.labs.len();
        let mut options = self.options.clone();
        let address = Self::address(number);
        options.netns = Some(self.wire.connect(&address));
        options.up.extend(up.iter().copied().map(str::to_owned));
        let file = NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), peers.to_string()).expect("the file is ours");
        let name = format!("host{number}");
        let path = file.path().display().to_string();
        options.up.extend(["--host", &name, "--underlay", &address, "--peers", &path].map(str::to_owned));
        self.files.push(file);
        self.labs.push(Lab::start_with(options));
    }

    /// Description of a host for the others.
    pub fn description(number: usize) -> Value {
        let endpoint =
            |network: &str, vni: u32| json!({ "network": network, "vni": vni, "addresses": [Self::ip(number)] });
        let (name, address) = (format!("host{number}"), Self::address(number));
        json!({ "name": name, "address": address, "endpoints": [endpoint("blue", 7), endpoint("red", 8)] })
    }

    /// Joins a machine with `address`, which knows nothing of rdmesh, to a new interface of a host; returns the name of the
    /// machine's namespace.
    pub fn plug_in(&mut self, number: usize, interface: &str, address: &str) -> String {
        let host = self.wire.machines[number].clone();
        let machine = format!("{}-{interface}", self.wire.name);
        ip(&format!("netns add {machine}"));
        self.wire.strangers.push(machine.clone());
        ip(&format!("-n {host} link add {interface} type veth peer name eth0 netns {machine}"));
        ip(&format!("-n {machine} address add {address}/24 dev eth0"));
        ip(&format!("-n {machine} link set eth0 up"));
        machine
    }

    /// The router of a host.
    pub fn lab(&self, number: usize) -> &Lab {
        &self.labs[number]
    }

    /// The endpoint of a host on network `blue` or `red`.
    pub fn endpoint(number: usize, net: &str) -> Endpoint {
        Endpoint::at("e", net, &Self::ip(number))
    }

    /// The address of a host's endpoints.
    pub fn ip(number: usize) -> String {
        format!("10.7.0.{}", number + 2)
    }

    /// A server on host 0 and a client on host 1, both on network `blue`.
    pub fn pair(&self) -> Pair<'_> {
        let site = |number| (self.lab(number), Self::endpoint(number, "blue"));
        Pair { server: site(0), client: site(1), address: Self::ip(0) }
    }

    /// The namespace that stands for a host.
    pub fn netns(&self, number: usize) -> &str {
        &self.wire.machines[number]
    }

    /// The namespace of the switch between the hosts, in which the link to host N is `portN`.
    pub fn switch(&self) -> &str {
        &self.wire.name
    }

    /// Lets the routers of all hosts make faults; `off` ends them.
    pub fn set_faults(&self, faults: &str) {
        self.labs.iter().for_each(|lab| drop(lab.command(&["faults", faults]).ok()));
    }

    /// Sum of a metric over all hosts.
    pub fn metric(&self, name: &str) -> f64 {
        self.labs.iter().map(|lab| lab.metric(name)).sum()
    }

    /// The address of a host itself.
    pub fn address(number: usize) -> String {
        format!("192.0.2.{}", number + 1)
    }
}

const LIMIT: Duration = Duration::from_secs(20);
