//! Third-party programs, in pairs of server and client.

use crate::lab::{Endpoint, Lab};
use crate::perftest::{Row, bandwidth_rows, latency_rows};
use crate::wait::until;
use std::time::Duration;

/// Two endpoints, at one router or two, on which programs talk to each other.
pub struct Pair<'a> {
    /// The server's router and endpoint.
    pub server: (&'a Lab, Endpoint),
    /// The client's.
    pub client: (&'a Lab, Endpoint),
    /// The server's address.
    pub address: String,
}

impl<'a> Pair<'a> {
    /// Two endpoints of a network of one router.
    pub fn of(lab: &'a Lab) -> Self {
        const SERVER: &str = "10.7.0.2";
        let server = (lab, Endpoint::at("server", "blue", SERVER));
        Self { server, client: (lab, Endpoint::at("client", "blue", "10.7.0.3")), address: SERVER.to_owned() }
    }

    /// The port of the programs' own connection.
    pub const PORT: u16 = 18600;
    /// Time-out of one of them.
    pub const LIMIT: Duration = Duration::from_secs(120);

    /// Runs `program` with `options` on both sides, the client with the server's address; returns the client's output.
    pub fn run(&self, program: &str, options: &str) -> String {
        self.run_command(&[program], options)
    }

    /// The same for a program with words before its options.
    pub fn run_command(&self, program: &[&str], options: &str) -> String {
        let port = Self::PORT.to_string();
        let mut command = program.to_vec();
        command.extend(["-p", &port]);
        command.extend(options.split_whitespace());
        let server = command.clone();
        command.push(&self.address);
        self.run_both(&server, &command)
    }

    /// Runs two commands; returns the client's output.
    pub fn run_both(&self, server: &[&str], client: &[&str]) -> String {
        let ((at, a), (other, b)) = (&self.server, &self.client);
        at.pair_with((a, server), other, (b, client), Self::PORT, Self::LIMIT).1.text
    }

    /// Has `helper` post messages and end the connection at once, in each way that it knows; none may be lost.
    pub fn end_at_once(&self, helper: &str, rounds: u32) {
        for how in ["disconnect", "error", "destroy", "exit"] {
            let command = |role| format!("{helper} -n {rounds} -e {how} {role} {}", self.address);
            self.run_connected(&command("server"), &command("client"));
        }
    }

    /// Runs a server that waits at rdma_cm, and its client.
    fn run_connected(&self, server: &str, client: &str) {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let ((at, a), (other, b)) = (&self.server, &self.client);
        let mut running = at.start_in(a, &words(server));
        until(Self::LIMIT, "the server listens", || at.has_listener(&running).then_some(()));
        let client = other.run_in(b, Self::LIMIT, &words(client));
        if !client.status.success() {
            running.kill();
            panic!("{}\nthe server had printed:\n{}", client.text, running.text());
        }
        running.finish(Self::LIMIT).ok();
    }

    /// An `ibv_*_pingpong` program.
    pub fn pingpong(&self, program: &str, options: &str) {
        // RoCE needs a GID index: 1 is the IPv4 address.
        let text = self.run(program, &format!("-g 1 {options}"));
        assert!(text.contains(" iters in "), "no result of {program} {options}:\n{text}");
    }

    /// A perftest program that measures bandwidth.
    pub fn bandwidth(&self, program: &str, options: &str) -> Vec<Row> {
        let text = self.run(program, &format!("-F {options}"));
        let rows = bandwidth_rows(&text);
        assert!(!rows.is_empty(), "no figures of {program} {options}:\n{text}");
        // On a busy machine perftest may fail to find out the processor's clock, says so, and writes zeros.
        let has_clock = !text.contains("Correlation coefficient");
        // Of short messages on a busy machine the megabytes are rounded to none.
        let is_some = |row: &Row| row.figures[2] > 0.0 && (row.bytes < 1024 || row.figures[1] > 0.0);
        assert!(!has_clock || rows.iter().all(is_some), "{program} {options}:\n{text}");
        rows
    }

    /// A perftest program that measures latency.
    pub fn latency(&self, program: &str, options: &str) -> Vec<Row> {
        let text = self.run(program, &format!("-F {options}"));
        let rows = latency_rows(&text);
        assert!(!rows.is_empty(), "no figures of {program} {options}:\n{text}");
        assert!(rows.iter().all(|r| r.figures[2] > 0.0), "{program} {options}:\n{text}");
        rows
    }
}
