//! Network namespaces that rdmesh did not make.

use crate::lab::Lab;
use crate::program::Program;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A network namespace of a process, as a container's.
pub struct Namespace(Program);

impl Namespace {
    /// One with no interface but its own loopback.
    pub fn new() -> Self {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "echo made; exec sleep infinity"]);
        let mut holder = Program::start(command);
        assert_eq!(holder.next_line(LIMIT), "made");
        Self(holder)
    }

    /// Path under /proc by which it can be entered, as long as this lives.
    pub fn file(&self) -> String {
        format!("/proc/{}/ns/net", self.0.pid())
    }

    /// Names of its interfaces, in order.
    pub fn interfaces(&self) -> Vec<String> {
        let table = fs::read_to_string(format!("/proc/{}/net/dev", self.0.pid())).expect("the holder lives");
        let names = table.lines().filter_map(|line| line.split_once(':'));
        let mut names: Vec<_> = names.map(|(name, _)| name.trim().to_owned()).collect();
        names.sort();
        names
    }

    /// A command in it.
    pub fn command(&self, command: &[&str]) -> Command {
        let mut inside = Command::new("nsenter");
        inside.arg(format!("--net={}", self.file())).arg("--").args(command);
        inside
    }

    /// Starts a program in it, on the endpoint `name` of network `blue`.
    pub fn start(&self, lab: &Lab, name: &str, command: &[&str]) -> Program {
        self.start_on(&lab.dir().join(format!("endpoints/blue.{name}")), &["librdmesh.so"], command)
    }

    /// Starts a program in it, with these libraries of an endpoint's directory.
    pub fn start_on(&self, directory: &Path, libraries: &[&str], command: &[&str]) -> Program {
        let mut inside = self.command(command);
        let paths: Vec<String> = libraries.iter().map(|name| directory.join(name).display().to_string()).collect();
        inside.env("RDMESH_ENDPOINT", directory).env("LD_PRELOAD", paths.join(":"));
        Program::start(inside)
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self::new()
    }
}

const LIMIT: Duration = Duration::from_secs(60);
