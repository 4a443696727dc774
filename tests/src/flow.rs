//! The `flow` program: queue pairs that send as much as they may, controlled by the test.

use crate::compile::helper;
use crate::lab::{Endpoint, Lab};
use crate::program::Program;
use std::time::Duration;

/// Some queue pairs of one process.
pub struct Flow {
    program: Program,
    local: String,
}

/// Kind and number of the queue pairs of a [`Flow`], and what they send.
#[derive(Clone, Copy, Debug)]
pub struct FlowOptions {
    /// `rc`, `uc` or `ud`.
    pub kind: &'static str,
    /// Queue pairs.
    pub pairs: u32,
    /// Messages under way on each.
    pub depth: u32,
    /// Bytes of a message.
    pub len: u64,
}

/// Amount that was sent.
#[derive(Clone, Copy, Debug)]
pub struct Poured {
    /// Bytes that were completed while the time was taken.
    pub bytes: f64,
    /// This time, in seconds.
    pub seconds: f64,
    /// Bytes in all, those before and after that time too.
    pub all: f64,
}

impl Flow {
    /// Starts one in `endpoint`.
    pub fn start(lab: &Lab, endpoint: &Endpoint, options: FlowOptions) -> Self {
        let FlowOptions { kind, pairs, depth, len } = options;
        let mut command = vec![helper("flow").into_os_string(), kind.into()];
        command.extend([pairs.into(), depth.into(), len].map(|number: u64| number.to_string().into()));
        let mut flow = Self { program: lab.start_in(endpoint, &command), local: String::new() };
        flow.local = flow.line().strip_prefix("local ").expect("its first line is its address").to_owned();
        flow
    }

    /// Joins two with the same options.
    pub fn connect(a: &mut Flow, b: &mut Flow) {
        let (at_a, at_b) = (a.local.clone(), b.local.clone());
        for (flow, to) in [(a, at_b), (b, at_a)] {
            flow.program.say(&format!("connect {to}"));
            assert_eq!(flow.line(), "connected");
        }
    }

    /// Begins to send with `op` (`send`, `write` or `read`) for so many seconds; at most `bytes` a second, or as many as it may.
    pub fn begin(&mut self, op: &str, seconds: f64, bytes: Option<f64>) {
        self.program.say(&format!("pour {op} {seconds} {:.0}", bytes.unwrap_or(0.0)));
    }

    /// Amount that it has sent, at the end.
    pub fn end(&mut self) -> Poured {
        let line = self.line();
        let words = line.strip_prefix("poured ").unwrap_or_else(|| panic!("not what was poured: {line}"));
        let figures: Vec<f64> = words.split(' ').map(|word| word.parse().expect("a number")).collect();
        let [bytes, seconds, all] = figures[..] else { panic!("three figures: {line}") };
        Poured { bytes, seconds, all }
    }

    /// Begins to receive.
    pub fn sink(&mut self) {
        self.program.say("sink");
        assert_eq!(self.line(), "sinking");
    }

    /// Ends to receive; returns the bytes.
    pub fn stop(&mut self) -> f64 {
        self.program.say("stop");
        let line = self.line();
        line.strip_prefix("sunk ").and_then(|bytes| bytes.parse().ok()).expect("bytes")
    }

    fn line(&mut self) -> String {
        self.program.next_line(Duration::from_secs(120))
    }
}

impl Poured {
    /// Bits in a second.
    pub fn bits(&self) -> f64 {
        self.bytes * 8.0 / self.seconds
    }
}
