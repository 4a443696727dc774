//! The `peer` program: one end of a connection, controlled by the test.

use crate::compile::helper;
use crate::lab::{Endpoint, Lab};
use crate::program::Program;
use std::time::Duration;

/// One end of a verbs connection, in a process of its own.
pub struct Peer {
    program: Program,
    local: String,
}

impl Peer {
    /// Starts one in `endpoint`. `arguments`: transport, local ACK timeout, retries.
    pub fn start(lab: &Lab, endpoint: &Endpoint, arguments: &[&str]) -> Self {
        let mut command = vec![helper("peer").into_os_string()];
        command.extend(arguments.iter().map(|a| (*a).into()));
        let program = lab.start_in(endpoint, &command);
        let mut peer = Self { program, local: String::new() };
        peer.local = peer.line().strip_prefix("local ").expect("its first line is its address").to_owned();
        peer
    }

    /// Joins two ends.
    pub fn connect(a: &mut Peer, b: &mut Peer) {
        let (at_a, at_b) = (a.local.clone(), b.local.clone());
        a.connect_to(&at_b);
        b.connect_to(&at_a);
    }

    /// "GID QPN RKEY ADDR" of this end.
    pub fn local(&self) -> &str {
        &self.local
    }

    /// Connects this end to an address, with or without a peer there.
    pub fn connect_to(&mut self, address: &str) {
        assert_eq!(self.ask(&format!("connect {address}")), "connected");
    }

    /// Lets it close the device, in any state, and open it again.
    pub fn reopen(&mut self) {
        let line = self.ask("reopen");
        self.local = line.strip_prefix("local ").expect("its address").to_owned();
    }

    /// The asynchronous events that it finds, by name; an error of the device as "errno N".
    pub fn events(&mut self) -> Vec<String> {
        let mut events = vec![self.ask("events")];
        while events.last().is_some_and(|event| event != "end") {
            events.push(self.line());
        }
        events.pop();
        events
    }

    /// Says a command and returns the line that answers it.
    pub fn ask(&mut self, command: &str) -> String {
        self.program.say(command);
        self.line()
    }

    /// Asks for the next completion: its status and the milliseconds that it took.
    pub fn completion(&mut self) -> (String, u64) {
        let answer = self.ask("wait");
        parse_completion(&answer)
    }

    /// The completion that ends a `flood`.
    pub fn end_of_flood(&mut self) -> (String, u64) {
        let answer = self.line();
        parse_completion(&answer)
    }

    /// Kills the process with SIGKILL.
    pub fn kill(&mut self) {
        let pid = crate::system::find(self.program.pid(), "peer").expect("the peer runs");
        crate::system::kill(pid);
    }

    /// Lets it destroy everything and end.
    pub fn quit(mut self) {
        self.program.say("quit");
        self.program.finish(Duration::from_secs(20)).ok();
    }

    /// Its next line.
    pub fn line(&mut self) -> String {
        self.program.next_line(Duration::from_secs(70))
    }
}

fn parse_completion(line: &str) -> (String, u64) {
    let rest = line.strip_prefix("wc ").unwrap_or_else(|| panic!("not a completion: {line}"));
    let (status, milliseconds) = rest.rsplit_once(' ').expect("a status and a time");
    (status.to_owned(), milliseconds.parse().expect("a number"))
}
