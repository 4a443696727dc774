//! Servers and clients of the tests.

use rdmesh_tests::{Endpoint, Hosts, Lab, Program, chain_program};
use std::time::Duration;

pub(crate) const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const SERVER: &str = "10.7.0.2";

/// Two endpoints that reach each other.
pub(crate) struct Ends<'a> {
    server: (&'a Lab, Endpoint),
    client: (&'a Lab, Endpoint),
}

/// Runs a test between endpoints of one host, and of two.
pub(crate) fn on_one_host_and_two(test: impl Fn(&Ends<'_>)) {
    let lab = Lab::start();
    let at = |name, ip| (&lab, Endpoint::at(name, "blue", ip));
    test(&Ends { server: at("server", SERVER), client: at("client", "10.7.0.3") });
    lab.wait_until_empty();
    drop(lab);
    let hosts = Hosts::start();
    let pair = hosts.pair();
    test(&Ends { server: pair.server, client: pair.client });
    [0, 1].iter().for_each(|number| hosts.lab(*number).wait_until_empty());
}

impl Ends<'_> {
    /// Starts a server and waits until it listens.
    pub(crate) fn serve(&self, program: &str, arguments: &[&str]) -> Program {
        let mut server = self.server.0.start_in(&self.server.1, &command(program, arguments));
        while server.next_line(LIMIT) != "listening" {}
        server
    }

    /// Starts a client.
    pub(crate) fn start_client<S: AsRef<str>>(&self, command: &[S]) -> Program {
        let command: Vec<&str> = command.iter().map(AsRef::as_ref).collect();
        self.client.0.start_in(&self.client.1, &command)
    }

    /// Runs a client to its end; returns what it printed.
    pub(crate) fn ask(&self, program: &str, arguments: &[&str]) -> String {
        self.start_client(&command(program, arguments)).finish(LIMIT).ok().text
    }
}

/// A compiled program and its arguments.
pub(crate) fn command(program: &str, arguments: &[&str]) -> Vec<String> {
    let mut words = vec![chain_program(program).display().to_string()];
    words.extend(arguments.iter().map(|word| (*word).to_owned()));
    words
}
