//! Several hosts: a network namespace each, a wire between them, and a router in each.

use crate::lab::{Endpoint, Lab, Options};
use crate::pair::Pair;
use crate::program::Program;
use serde_json::{Value, json};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Hosts 0, 1, …, called `host0` and so on, at 192.0.2.1 and so on. Each has an endpoint on network `blue` and one on network
/// `red`, both with address 10.7.0.2 for host 0 and so on.
pub struct Hosts {
    /// Before the wire: routers end before their hosts do.
    labs: Vec<Lab>,
    wire: Wire,
    options: Options,
}

impl Hosts {
    /// Two hosts, as machines on an Ethernet are.
    pub fn start() -> Self {
        Self::start_with(1500, Options::default())
    }

    /// Two hosts with an MTU between them, whose routers are started with `options`.
    pub fn start_with(mtu: u32, options: Options) -> Self {
        let mut hosts = Self { labs: Vec::new(), wire: Wire::new(mtu), options };
        let peers = json!({ "hosts": [Self::description(0), Self::description(1)] });
        for _ in 0..2 {
            hosts.add(&peers);
        }
        hosts
    }

    /// Adds a host that is told of `peers`, in the form of `rdmesh up --peers`.
    pub fn add(&mut self, peers: &Value) {
        let number = self.labs.len();
        let mut options = self.options.clone();
        let address = Self::address(number);
        options.netns = Some(self.wire.connect(&address));
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), peers.to_string()).expect("the file is ours");
        let name = format!("host{number}");
        let path = file.path().display().to_string();
        options.up.extend(["--host", &name, "--underlay", &address, "--peers", &path].map(str::to_owned));
        self.labs.push(Lab::start_with(options));
    }

    /// What others are told of a host.
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

    /// Lets the routers of all hosts make faults; `off` ends them.
    pub fn set_faults(&self, faults: &str) {
        self.labs.iter().for_each(|lab| drop(lab.command(&["faults", faults]).ok()));
    }

    /// Sum of a metric over all hosts.
    pub fn metric(&self, name: &str) -> f64 {
        self.labs.iter().map(|lab| lab.metric(name)).sum()
    }

    fn address(number: usize) -> String {
        format!("192.0.2.{}", number + 1)
    }
}

/// A bridge in a namespace of its own, and the namespaces of the machines at it.
struct Wire {
    name: String,
    machines: Vec<String>,
    /// Machines that are not at it.
    strangers: Vec<String>,
    mtu: u32,
}

impl Wire {
    fn new(mtu: u32) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("rdmesh-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let wire = Self { name, machines: Vec::new(), strangers: Vec::new(), mtu };
        ip(&format!("netns add {}", wire.name));
        ip(&format!("-n {} link add br0 mtu {mtu} type bridge", wire.name));
        ip(&format!("-n {} link set br0 up", wire.name));
        wire
    }

    /// A new machine with `address`; returns the name of its namespace.
    fn connect(&mut self, address: &str) -> String {
        let (wire, mtu, number) = (&self.name, self.mtu, self.machines.len());
        let machine = format!("{wire}-{number}");
        ip(&format!("netns add {machine}"));
        ip(&format!("-n {wire} link add port{number} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {machine}"));
        ip(&format!("-n {wire} link set port{number} master br0 up"));
        ip(&format!("-n {machine} address add {address}/24 dev eth0"));
        ip(&format!("-n {machine} link set eth0 up"));
        ip(&format!("-n {machine} link set lo up"));
        self.machines.push(machine.clone());
        machine
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        for name in self.machines.iter().chain(&self.strangers).chain([&self.name]) {
            let mut delete = Command::new("ip");
            delete.args(["netns", "delete", name]);
            Program::start(delete).finish(LIMIT);
        }
    }
}

fn ip(arguments: &str) {
    let mut ip = Command::new("ip");
    ip.args(arguments.split(' '));
    Program::start(ip).finish(LIMIT).ok();
}

const LIMIT: Duration = Duration::from_secs(20);
