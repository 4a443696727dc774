//! Third-party software on verbs: one row for each program, with its commands, expected output and figure.
//!
//! The same rows are run between endpoints of one host and of two, and make the page `docs/software.md`.

mod figures;
mod libraries;
mod manager;
mod mpi;
mod page;
mod sockets;

pub use figures::{Figure, Unit};
pub use page::{Measured, page};

use crate::lab::Lab;
use crate::pair::Pair;
use crate::program::{Output, Program};
use crate::wait::TICK;
use std::time::{Duration, Instant};

/// Two commands that talk to each other: the first is started in endpoint `a`, at 10.7.0.2, the second in endpoint `b`, at
/// 10.7.0.3, both in the repository.
#[derive(Clone, Debug)]
pub struct Row {
    /// Heading under which it stands.
    pub theme: &'static str,
    /// Of the program and what it does; no other row has it.
    pub name: String,
    /// The command in endpoint `a`.
    pub server: String,
    /// The command in endpoint `b`.
    pub client: String,
    /// Condition under which the client may be started.
    pub ready: Ready,
    /// Whether the server ends when its client has ended.
    pub ends: bool,
    /// Expected output of the client.
    pub expected: Vec<String>,
    /// The figure that it prints, if any.
    pub figure: Option<Figure>,
    /// Number of runs before it counts as failed.
    pub attempts: u32,
}

/// Sign that a server is ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ready {
    /// It listens on this TCP port.
    Port(u16),
    /// It receives on this UDP port, as a datagram socket of rsocket's does before a client calls it.
    Datagrams(u16),
    /// It listens through rdma_cm, or has joined a multicast group there.
    Manager,
}

/// All rows, in the order of the page.
pub fn rows() -> Vec<Row> {
    [manager::rows(), libraries::rows(), mpi::rows(), sockets::rows()].concat()
}

impl Row {
    /// A row whose server listens through rdma_cm and ends with its client.
    fn new(theme: &'static str, name: &str, server: &str, client: &str) -> Self {
        let [name, server, client] = [name, server, client].map(str::to_owned);
        Self {
            theme,
            name,
            server,
            client,
            ready: Ready::Manager,
            ends: true,
            expected: Vec::new(),
            figure: None,
            attempts: 1,
        }
    }

    fn port(mut self, port: u16) -> Self {
        self.ready = Ready::Port(port);
        self
    }

    fn datagrams(mut self, port: u16) -> Self {
        self.ready = Ready::Datagrams(port);
        self
    }

    fn runs_on(mut self) -> Self {
        self.ends = false;
        self
    }

    fn prints(mut self, text: &str) -> Self {
        self.expected.push(text.to_owned());
        self
    }

    fn figure(mut self, unit: Unit, read: fn(&str) -> Option<f64>) -> Self {
        self.figure = Some(Figure { unit, read });
        self
    }

    /// A program that hangs by itself now and then, on any device, may be run several times.
    fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    /// Runs both commands; returns the figure, or what went wrong.
    pub fn run(&self, pair: &Pair<'_>) -> Result<Option<f64>, String> {
        let mut result = self.run_once(pair);
        for _ in 1..self.attempts {
            if let Err(why) = &result
                && why.contains(HANGS)
            {
                println!("{}: once more: {why}", self.name);
                result = self.run_once(pair);
            }
        }
        result
    }

    fn run_once(&self, pair: &Pair<'_>) -> Result<Option<f64>, String> {
        let ((at, a), (other, b)) = (&pair.server, &pair.client);
        let mut server = at.start_in(a, &shell(&self.server));
        let said = |server: &Program| format!("{}: the server had printed:\n{}", self.name, server.text());
        if !self.await_server(at, &mut server) {
            return Err(format!("{}\nand was not ready within {READY_LIMIT:?}", said(&server)));
        }
        let client = finish(other.start_in(b, &shell(&self.client)), "the client").map_err(|e| said(&server) + &e)?;
        if !client.status.success() {
            return Err(format!("{}\nthe client ended with {}:\n{}", said(&server), client.status, client.text));
        }
        if self.ends {
            let server = finish(server, "the server").map_err(|e| self.name.clone() + &e)?;
            if !server.status.success() {
                return Err(format!("{}: the server ended with {}:\n{}", self.name, server.status, server.text));
            }
        } else {
            server.terminate(READY_LIMIT);
        }
        self.judge(&client.text)
    }

    /// Whether the server is ready before long.
    fn await_server(&self, lab: &Lab, server: &mut Program) -> bool {
        let deadline = Instant::now() + READY_LIMIT;
        while server.is_running() && Instant::now() < deadline {
            let ready = match self.ready {
                Ready::Port(port) => server.listens(port),
                Ready::Datagrams(port) => server.receives(port),
                Ready::Manager => lab.has_listener(server),
            };
            if ready {
                return true;
            }
            std::thread::sleep(TICK);
        }
        false
    }

    fn judge(&self, text: &str) -> Result<Option<f64>, String> {
        if let Some(missing) = self.expected.iter().find(|expected| !text.contains(*expected)) {
            return Err(format!("{}: {missing:?} is missing:\n{text}", self.name));
        }
        let Some(figure) = &self.figure else { return Ok(None) };
        let value = (figure.read)(text).filter(|value| *value > 0.0);
        value.map(Some).ok_or_else(|| format!("{}: no figure in:\n{text}", self.name))
    }
}

/// Waits for the end of a program, which must come before long.
fn finish(mut program: Program, who: &str) -> Result<Output, String> {
    let deadline = Instant::now() + LIMIT;
    while program.is_running() {
        if Instant::now() > deadline {
            return Err(format!("\n{who}{HANGS}, having printed:\n{}", program.text()));
        }
        std::thread::sleep(TICK);
    }
    Ok(program.finish(LIMIT))
}

/// The command as a user types it in the repository.
fn shell(command: &str) -> [String; 3] {
    let line = format!("cd '{}' && exec {command}", crate::root().display());
    ["sh".to_owned(), "-c".to_owned(), line]
}

const HANGS: &str = " hangs";
const LIMIT: Duration = Duration::from_secs(60);
const READY_LIMIT: Duration = Duration::from_secs(20);
