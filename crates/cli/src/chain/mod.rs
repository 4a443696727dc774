//! `rdmesh chain`: commands on groups of managed queues.

mod top;
mod trace;

use crate::args::{ChainCommand, ChainLimit, ChainOptions, OutputOptions, ShowChain};
use crate::failure::Failure;
use crate::show::{print_json, print_line};
use crate::table::Table;
use rdmesh_fabric::api::{ChainAction, ChainDetail, ChainFault, ChainInfo, ChainState, ControlChain, SetChainSteps};
use rdmesh_fabric::{Client, printable};

/// Executes a command on chains.
pub(crate) fn execute(command: ChainCommand, client: &Client) -> Result<(), Failure> {
    match command {
        ChainCommand::Ls(options) => list(&options, client),
        ChainCommand::Top(options) => top::top(&options, client),
        ChainCommand::Show(options) => show(&options, client),
        ChainCommand::Trace(options) => trace::trace(&options, client),
        ChainCommand::Stop(options) => control(&options, ChainAction::Stop, client),
        ChainCommand::Resume(options) => control(&options, ChainAction::Resume, client),
        ChainCommand::Kill(options) => control(&options, ChainAction::Kill, client),
        ChainCommand::Limit(options) => limit(&options, client),
    }
}

/// Lists chains.
fn list(options: &OutputOptions, client: &Client) -> Result<(), Failure> {
    let chains = client.chains()?;
    if options.json {
        return print_json(&chains);
    }
    if chains.is_empty() {
        return print_line("No chains: no program has made a queue pair managed.");
    }
    print_line(table(&chains))
}

/// Stops, resumes or ends a chain.
fn control(options: &ChainOptions, action: ChainAction, client: &Client) -> Result<(), Failure> {
    let order = ControlChain { device: options.device, group: options.group, action };
    client.control_chain(&options.net, &options.name, &order)?;
    Ok(())
}

/// Shows a chain.
fn show(options: &ShowChain, client: &Client) -> Result<(), Failure> {
    let ChainOptions { net, name, device, group } = &options.chain;
    let detail = client.chain(net, name, *device, *group)?;
    if options.output.json { print_json(&detail) } else { print_line(listing(&detail)) }
}

/// A chain's state, and each of its queues with its slots; the next one is marked.
fn listing(detail: &ChainDetail) -> String {
    let ChainDetail { chain, queues } = detail;
    let mut text = format!(
        "{} {} group {} of device {}: {}, {} steps, {} laps, {} soft faults, starved {} times for {:.3} s\n",
        chain.network,
        chain.endpoint,
        chain.group,
        chain.device,
        state(chain),
        chain.steps,
        chain.laps,
        chain.soft_faults,
        chain.starved,
        chain.starved_seconds
    );
    if let Some(found) = &chain.fault {
        text += &format!("ended by {}\n", fault(found));
    }
    for queue in queues {
        let side = if queue.is_receive { "receive" } else { "send" };
        let limit = if queue.limit == u64::MAX { "always".to_owned() } else { queue.limit.to_string() };
        text += &format!(
            "\n{side} queue of {:#08x} (handle {}): next {}, limit {limit}, lap of {}, waits for {}\n",
            queue.qpn,
            queue.handle,
            queue.next,
            queue.cycle,
            printable(&queue.waits_for)
        );
        for (number, slot) in (0..).zip(&queue.slots) {
            let mark = if queue.next % queue.cycle.max(1) == number { ">" } else { " " };
            let label = slot.label.as_ref().map_or(String::new(), |label| format!("{}: ", printable(label)));
            text += &format!("{mark} {number:4}  {label}{}\n", printable(&slot.request));
        }
    }
    text.trim_end().to_owned()
}

/// Sets the budget of steps of an endpoint's chains.
fn limit(options: &ChainLimit, client: &Client) -> Result<(), Failure> {
    client.set_chain_steps(&options.net, &options.name, &SetChainSteps { per_second: options.steps })?;
    Ok(())
}

fn table(chains: &[ChainInfo]) -> Table {
    let titles = [
        "NETWORK",
        "ENDPOINT",
        "PID",
        "COMMAND",
        "DEVICE",
        "GROUP",
        "STATE",
        "QPS",
        "COPIES",
        "ATOMICS",
        "ORDERS",
        "BYTES",
        "SOFT FAULTS",
        "STARVED",
        "FAULT",
    ];
    let mut table = Table::new(&titles);
    for chain in chains {
        let counts = [chain.copies, chain.atomics, chain.orders, chain.bytes, chain.soft_faults, chain.starved];
        let mut row = vec![
            chain.network.to_string(),
            chain.endpoint.to_string(),
            chain.pid.to_string(),
            chain.command.clone(),
            chain.device.to_string(),
            chain.group.to_string(),
            state(chain).to_owned(),
            chain.qps.len().to_string(),
        ];
        row.extend(counts.map(|count| count.to_string()));
        row.push(chain.fault.as_ref().map_or("-".to_owned(), fault));
        table.row(row);
    }
    table
}

fn state(chain: &ChainInfo) -> &'static str {
    match chain.state {
        ChainState::Running if chain.spinning => "spinning",
        ChainState::Running => "running",
        ChainState::Stopped => "stopped",
        ChainState::Ended => "ended",
    }
}

fn fault(fault: &ChainFault) -> String {
    let ChainFault { qpn, is_receive, index, label, reason, addr, key, .. } = fault;
    let queue = if *is_receive { "receive" } else { "request" };
    let name = label.as_ref().map_or(String::new(), |label| format!(" `{}`", printable(label)));
    let qpn = qpn.map_or(String::new(), |qpn| format!(" of {qpn:#08x}"));
    format!("{queue}{name} {index}{qpn}: {}, address {addr:#x}, key {key:#x}", printable(reason))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmesh_fabric::api::{ChainQueue, ChainSlot};

    /// A chain that has done nothing.
    pub(super) fn info(group: u32) -> ChainInfo {
        ChainInfo {
            endpoint: "a".parse().unwrap(),
            network: "blue".parse().unwrap(),
            pid: 7,
            command: "kv".to_owned(),
            device: 0,
            group,
            state: ChainState::Running,
            qps: vec![0x11],
            fault: None,
            copies: 0,
            atomics: 0,
            orders: 0,
            steps: 0,
            bytes: 0,
            soft_faults: 0,
            spinning: false,
            laps: 0,
            starved: 0,
            starved_seconds: 0.0,
        }
    }

    #[test]
    fn the_next_slot_is_marked() {
        let slot = |label: Option<&str>| ChainSlot { label: label.map(str::to_owned), request: "NOP".to_owned() };
        let queue = ChainQueue {
            qpn: 0x11,
            handle: 3,
            is_receive: false,
            next: 5,
            limit: u64::MAX,
            cycle: 2,
            waits_for: "2 completions of CQ 1, which has 1".to_owned(),
            slots: vec![slot(None), slot(Some("hit\u{1b}"))],
        };
        let shown = listing(&ChainDetail { chain: info(1), queues: vec![queue] });
        let expected =
            "blue a group 1 of device 0: running, 0 steps, 0 laps, 0 soft faults, starved 0 times for 0.000 s

send queue of 0x000011 (handle 3): next 5, limit always, lap of 2, waits for 2 completions of CQ 1, which has 1
     0  NOP
>    1  hit\\x1b: NOP";
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_fault_names_the_request() {
        let found = ChainFault {
            qpn: Some(0x11),
            is_receive: false,
            index: 3,
            label: Some("hit".to_owned()),
            status: 4,
            reason: "local protection error".to_owned(),
            addr: 64,
            key: 0x200,
        };
        assert_eq!(fault(&found), "request `hit` 3 of 0x000011: local protection error, address 0x40, key 0x200");
        let gone = ChainFault { qpn: None, label: None, is_receive: true, ..found };
        assert_eq!(fault(&gone), "receive 3: local protection error, address 0x40, key 0x200");
    }
}
