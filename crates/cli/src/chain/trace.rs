//! `rdmesh chain trace`: the requests that a chain has executed last.

use crate::args::{ChainOptions, TraceOptions};
use crate::failure::Failure;
use crate::show::{print_json, print_line};
use rdmesh_fabric::api::{ChainStep, TraceChain};
use rdmesh_fabric::{Client, printable};
use std::time::Duration;

/// Records the requests of a chain, and shows them.
pub(crate) fn trace(options: &TraceOptions, client: &Client) -> Result<(), Failure> {
    let ChainOptions { net, name, device, group } = &options.chain;
    let mut trace = TraceChain { device: *device, group: *group, seconds: AHEAD, from: 0 };
    let wait = if options.follow { INTERVAL } else { Duration::try_from_secs_f64(options.time).unwrap_or(INTERVAL) };
    trace.seconds = trace.seconds.saturating_add(wait.as_secs().try_into().unwrap_or(u32::MAX));
    // What an earlier trace has left is not of interest.
    let old = client.trace_chain(net, name, &trace)?;
    trace.from = next(&old, trace.from);
    let mut printer = Printer { expected: trace.from, last: None };
    loop {
        std::thread::sleep(wait);
        let steps = client.trace_chain(net, name, &trace)?;
        trace.from = next(&steps, trace.from);
        if options.output.json {
            print_json(&steps)?;
        } else {
            steps.iter().try_for_each(|step| print_line(printer.line(step)))?;
        }
        if !options.follow {
            return Ok(());
        }
    }
}

/// The number that the next recorded request will have.
fn next(steps: &[ChainStep], from: u64) -> u64 {
    steps.last().map_or(from, |step| step.number + 1)
}

/// Lines of a trace.
struct Printer {
    expected: u64,
    last: Option<u64>,
}

impl Printer {
    /// The line of a request: the time since the one before it, its queue, its place there, its label and what it was.
    fn line(&mut self, step: &ChainStep) -> String {
        let missing = step.number.saturating_sub(self.expected);
        self.expected = step.number + 1;
        let since = step.nanoseconds.saturating_sub(self.last.replace(step.nanoseconds).unwrap_or(step.nanoseconds));
        let label = step.label.as_ref().map_or(String::new(), |label| format!("{}: ", printable(label)));
        let bytes = if step.bytes == 0 { String::new() } else { format!(", {} bytes", step.bytes) };
        let gap = if missing == 0 { String::new() } else { format!("… {missing} more\n") };
        let micros = since as f64 / 1000.0;
        let (qpn, index) = (step.qpn, step.index);
        format!("{gap}{micros:+10.1} us  {qpn:#08x} {index:6}  {label}{}{bytes}", printable(&step.operation))
    }
}

/// Seconds for which recording goes on when the command ends.
const AHEAD: u32 = 2;
const INTERVAL: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_what_is_missing_before_it() {
        let mut printer = Printer { expected: 5, last: None };
        let step = |number, nanoseconds| ChainStep {
            number,
            nanoseconds,
            qpn: 0x11,
            index: 40,
            label: Some("hit".to_owned()),
            operation: "WRITE_IMM".to_owned(),
            bytes: 64,
        };
        assert_eq!(printer.line(&step(5, 1000)), "      +0.0 us  0x000011     40  hit: WRITE_IMM, 64 bytes");
        let line = printer.line(&step(9, 3500));
        assert_eq!(line, "… 3 more\n      +2.5 us  0x000011     40  hit: WRITE_IMM, 64 bytes");
        assert_eq!(next(&[step(9, 0)], 0), 10);
    }
}
