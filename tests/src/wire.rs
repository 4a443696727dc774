//! Machines on one Ethernet: a network namespace each, and a bridge.

use crate::program::Program;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A bridge in a namespace of its own, and the namespaces of the machines at it.
pub(crate) struct Wire {
    pub(crate) name: String,
    pub(crate) machines: Vec<String>,
    /// Machines that are not at it.
    pub(crate) strangers: Vec<String>,
    mtu: u32,
}

impl Wire {
    pub(crate) fn new(mtu: u32) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("rdmesh-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let wire = Self { name, machines: Vec::new(), strangers: Vec::new(), mtu };
        ip(&format!("netns add {}", wire.name));
        ip(&format!("-n {} link add br0 mtu {mtu} type bridge", wire.name));
        ip(&format!("-n {} link set br0 up", wire.name));
        wire
    }

    /// Gives the bridge an address, for a service that all machines reach.
    pub(crate) fn set_address(&self, address: &str) {
        ip(&format!("-n {} address add {address}/24 dev br0", self.name));
        ip(&format!("-n {} link set lo up", self.name));
    }

    /// A new machine with `address`; returns the name of its namespace.
    pub(crate) fn connect(&mut self, address: &str) -> String {
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

pub(crate) fn ip(arguments: &str) {
    let mut ip = Command::new("ip");
    ip.args(arguments.split(' '));
    Program::start(ip).finish(LIMIT).ok();
}

/// Runs a command in a network namespace with a name; its output.
pub fn inside(netns: &str, command: &[&str]) -> String {
    let mut enter = Command::new("ip");
    enter.args(["netns", "exec", netns]).args(command);
    Program::start(enter).finish(LIMIT).ok().text
}

const LIMIT: Duration = Duration::from_secs(20);
