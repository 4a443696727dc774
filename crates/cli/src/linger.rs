//! `rdmesh linger`: devices that outlive their programs.

use crate::args::{LingerOptions, OutputOptions};
use crate::failure::Failure;
use crate::show::{bytes, print_json, print_line};
use crate::table::Table;
use rdmesh_fabric::Client;
use rdmesh_fabric::api::{ContextInfo, EndLingering, LeaseInfo};

/// Lists devices with a lease.
pub(crate) fn list(options: &OutputOptions, client: &Client) -> Result<(), Failure> {
    let leased: Vec<ContextInfo> = client.contexts()?.into_iter().filter(|context| context.lease.is_some()).collect();
    if options.json {
        return print_json(&leased);
    }
    match table(&leased) {
        Some(table) => print_line(table),
        None => print_line("No device outlives its program: no program has asked for a lease."),
    }
}

/// Ends devices that linger.
pub(crate) fn end(options: &LingerOptions, client: &Client) -> Result<(), Failure> {
    let ended = client.end_lingering(&options.net, &options.name, &EndLingering { device: options.device })?;
    print_line(format!(
        "{} ended",
        if ended.devices == 1 { "1 device".into() } else { format!("{} devices", ended.devices) }
    ))
}

fn lease(lease: LeaseInfo) -> String {
    match lease {
        LeaseInfo { term_seconds, left_seconds: None } => format!("{term_seconds:.0} s"),
        LeaseInfo { left_seconds: Some(left), .. } => format!("{left:.0} s left"),
    }
}

/// The devices with a lease; none where there is none.
pub(crate) fn table(contexts: &[ContextInfo]) -> Option<Table> {
    let leased = contexts.iter().filter_map(|context| context.lease.map(|lease| (context, lease)));
    let mut leased = leased.peekable();
    leased.peek()?;
    let mut table =
        Table::new(&["NETWORK", "ENDPOINT", "DEVICE", "PID", "COMMAND", "LEASE", "CQS", "QPS", "MRS", "PINNED"]);
    for (context, info) in leased {
        table.row([
            context.network.to_string(),
            context.endpoint.to_string(),
            context.device.to_string(),
            context.pid.to_string(),
            context.command.clone(),
            lease(info),
            context.cqs.to_string(),
            context.qps.len().to_string(),
            context.mrs.to_string(),
            bytes(context.pinned_bytes),
        ]);
    }
    Some(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_says_whether_its_term_runs() {
        let of = |left_seconds| lease(LeaseInfo { term_seconds: 30.0, left_seconds });
        assert_eq!([of(None), of(Some(12.3))], ["30 s", "12 s left"]);
    }
}
