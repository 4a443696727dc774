//! `rdmesh chain`: commands on groups of managed queues.

use crate::args::{ChainLimit, ChainOptions, OutputOptions};
use crate::failure::Failure;
use crate::show::{print_json, print_line};
use crate::table::Table;
use rdmesh_fabric::api::{ChainAction, ChainFault, ChainInfo, ChainState, ControlChain, SetChainSteps};
use rdmesh_fabric::{Client, printable};

/// Lists chains.
pub(crate) fn list(options: &OutputOptions, client: &Client) -> Result<(), Failure> {
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
pub(crate) fn control(options: &ChainOptions, action: ChainAction, client: &Client) -> Result<(), Failure> {
    let order = ControlChain { device: options.device, group: options.group, action };
    client.control_chain(&options.net, &options.name, &order)?;
    Ok(())
}

/// Sets the budget of steps of an endpoint's chains.
pub(crate) fn limit(options: &ChainLimit, client: &Client) -> Result<(), Failure> {
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
            state(chain.state).to_owned(),
            chain.qps.len().to_string(),
        ];
        row.extend(counts.map(|count| count.to_string()));
        row.push(chain.fault.as_ref().map_or("-".to_owned(), fault));
        table.row(row);
    }
    table
}

fn state(state: ChainState) -> &'static str {
    match state {
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
