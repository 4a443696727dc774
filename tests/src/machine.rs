//! Virtual machine on an endpoint of a lab, whose programs use the router's device: a stock kernel, and the host's own files,
//! read-only, so that every program of the host is there.

use crate::guest::{self, Guest, Job};
use crate::{Lab, Output, product};
use std::process::Command;
use std::time::Duration;

/// A running virtual machine.
pub struct Machine {
    guest: Guest,
    number: u8,
}

/// An agent that serves a machine's programs.
pub struct Agent<'a>(Job<'a>);

impl Machine {
    /// Begins to boot one on endpoint `name` of network `blue`, with the address that ends in `number`.
    pub fn boot(lab: &Lab, name: &str, number: u8) -> Self {
        let folder = guest::folder();
        let mut command = limited(&lab.rdmesh());
        command.args(["vm", "--name", name, "--net", NETWORK, "--ip", &address(number), "--memory", "512M", "--"]);
        let initramfs = guest::files().join("vm-initramfs");
        command.arg("qemu-system-x86_64");
        command.args(guest::machine_arguments(&initramfs, &format!("IP4={}/24", address(number)), folder.path()));
        command.args(["-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap"]);
        command.args(["-device", "virtio-9p-pci,fsdev=root,mount_tag=root"]);
        Self { guest: Guest::start(command, number, folder), number }
    }

    /// Two that have booted, with their agents.
    pub fn pair(lab: &Lab) -> [Self; 2] {
        let machines = [Self::boot(lab, "a", 2), Self::boot(lab, "b", 3)];
        machines.iter().for_each(Self::wait_ready);
        machines
    }

    /// Waits until it can be told what to do.
    pub fn wait_ready(&self) {
        self.guest.wait_ready();
    }

    /// The machine without its endpoint.
    pub fn guest(&self) -> &Guest {
        &self.guest
    }

    /// Its address.
    pub fn address(&self) -> String {
        address(self.number)
    }

    /// Starts its agent, and waits until that has the device.
    pub fn serve(&self) -> Agent<'_> {
        let job = self.guest.start_command(&[program(), "serve".into()]);
        crate::until(LIMIT, "the agent has the device", || {
            assert!(!job.has_ended(), "the agent has ended:\n{}", job.text());
            job.text().contains("the device is at").then_some(())
        });
        Agent(job)
    }

    /// Starts a program that sees the device. No argument may contain a tab or a line's end.
    pub fn start(&self, command: &[&str]) -> Job<'_> {
        self.start_with(&[], command)
    }

    /// Starts a program whose connections are accelerated.
    pub fn start_accelerated(&self, command: &[&str]) -> Job<'_> {
        self.start_with(&["--accel"], command)
    }

    fn start_with(&self, options: &[&str], command: &[&str]) -> Job<'_> {
        let mut words = vec![program(), "run".into()];
        words.extend(options.iter().chain(command).map(|word| (*word).to_owned()));
        self.guest.start_command(&words)
    }

    /// Runs a program that sees the device to its end.
    pub fn run(&self, command: &[&str]) -> Output {
        self.start(command).finish(LIMIT)
    }

    /// Runs any program to its end.
    pub fn run_plain(&self, command: &[&str]) -> Output {
        self.guest.run(command, LIMIT)
    }
}

impl Agent<'_> {
    /// Its output so far.
    pub fn text(&self) -> String {
        self.0.text()
    }

    /// Kills it, without a word of warning.
    pub fn kill(self) {
        self.0.kill();
    }
}

/// A command that ends in any case, so that none outlives a test that was killed.
fn limited(command: &Command) -> Command {
    let mut limited = Command::new("timeout");
    limited.arg(guest::LIFETIME.to_string()).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        limited.current_dir(folder);
    }
    limited
}

/// The agent's program, which is where it is on the host.
pub fn program() -> String {
    product("rdmesh-guest").display().to_string()
}

/// The address on the network that ends in `number`.
pub fn address(number: u8) -> String {
    format!("10.7.0.{number}")
}

/// Network of the endpoints of machines.
pub const NETWORK: &str = "blue";
/// For anything that an emulated processor does.
const LIMIT: Duration = Duration::from_secs(90);
