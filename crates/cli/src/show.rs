//! `rdmesh ps` and `rdmesh stats`: lists of endpoints, contexts and queue pairs, and all counters.

use crate::args::{OutputOptions, PsOptions};
use crate::endpoint;
use crate::failure::Failure;
use crate::linger;
use crate::table::Table;
use crate::tunnel;
use rdmesh_fabric::Client;
use rdmesh_fabric::api::{CongestionInfo, ConnectionInfo, ContextInfo, EndpointInfo, Metric, QpInfo};
use serde::Serialize;
use serde_json::json;
use std::fmt::Display;
use std::io::{ErrorKind, Write, stderr, stdout};
use std::net::SocketAddr;

/// Lists endpoints, contexts and queue pairs.
pub(crate) fn ps(options: &PsOptions, client: &Client) -> Result<(), Failure> {
    let (endpoints, contexts, connections) = (client.endpoints()?, client.contexts()?, client.connections()?);
    // Without an address for other hosts there is none.
    let has_tunnel = options.wide && client.status()?.underlay.is_some();
    let tunnel = has_tunnel.then(|| client.tunnel()).transpose()?;
    if options.output.json {
        let mut all = json!({ "endpoints": endpoints, "contexts": contexts, "connections": connections });
        tunnel.into_iter().for_each(|tunnel| all["tunnel"] = json!(tunnel));
        return print_json(&all);
    }
    print_used(&endpoints, &contexts, &connections, options.wide)?;
    tunnel.as_ref().and_then(tunnel::text).map_or(Ok(()), |text| print_line(format!("\n{text}")))
}

/// Prints the objects of programs.
fn print_used(
    endpoints: &[EndpointInfo],
    contexts: &[ContextInfo],
    connections: &[ConnectionInfo],
    is_wide: bool,
) -> Result<(), Failure> {
    if endpoints.is_empty() {
        return print_line("No endpoints: `rdmesh run -- COMMAND` makes one.");
    }
    print_line(endpoint::table(endpoints))?;
    if contexts.is_empty() && connections.is_empty() {
        return print_line("\nNo program has opened a device.");
    }
    if !contexts.is_empty() {
        print_line(format!("\n{}", context_table(contexts, is_wide)))?;
    }
    if let Some(leases) = linger::table(contexts) {
        print_line(format!("\n{leases}"))?;
    }
    if !connections.is_empty() {
        print_line(format!("\n{}", connection_table(connections)))?;
    }
    if contexts.iter().all(|context| context.qps.is_empty()) {
        return Ok(());
    }
    print_line(format!("\n{}", qp_table(contexts)))?;
    if is_wide {
        print_line(format!("\n{}", wire_table(contexts)))?;
        if let Some(table) = congestion_table(contexts) {
            print_line(format!("\n{table}"))?;
        }
    }
    Ok(())
}

/// Shows all counters.
pub(crate) fn stats(options: &OutputOptions, client: &Client) -> Result<(), Failure> {
    let stats = client.stats()?;
    if options.json {
        return print_json(&stats);
    }
    let mut table = Table::new(&["COUNTER", "OF", "VALUE"]);
    for metric in &stats.metrics {
        table.row([metric.name.clone(), labels(metric), metric.value.to_string()]);
    }
    print_line(table)
}

/// Prints `value` as JSON.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    print_line(serde_json::to_string_pretty(value)?)
}

/// Prints a line. Where its reader has closed the pipe (`| head`), the program ends without a message.
pub(crate) fn print_line(text: impl Display) -> Result<(), Failure> {
    writeln!(stdout(), "{text}").map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::unread(),
        _ => Failure::new(format!("the standard output: {error}")),
    })
}

/// Writes a message to the standard error. A failure to do so is ignored.
pub(crate) fn say(text: impl Display) {
    let _ = writeln!(stderr(), "{text}");
}

fn context_table(contexts: &[ContextInfo], is_wide: bool) -> Table {
    let mut titles = vec!["NETWORK", "ENDPOINT", "PID", "UID", "COMMAND", "PDS", "CQS", "QPS", "SRQS", "MRS", "PINNED"];
    titles.extend(is_wide.then_some("WORKER"));
    let mut table = Table::new(&titles);
    for c in contexts {
        let mut row = vec![
            c.network.to_string(),
            c.endpoint.to_string(),
            c.pid.to_string(),
            c.uid.to_string(),
            c.command.clone(),
            c.pds.to_string(),
            c.cqs.to_string(),
            c.qps.len().to_string(),
            c.srqs.to_string(),
            c.mrs.to_string(),
            bytes(c.pinned_bytes),
        ];
        row.extend(is_wide.then(|| c.worker.to_string()));
        table.row(row);
    }
    table
}

fn connection_table(connections: &[ConnectionInfo]) -> Table {
    let mut table = Table::new(&["NETWORK", "ENDPOINT", "PID", "PORT SPACE", "TYPE", "STATE", "ADDRESS", "PEER", "QP"]);
    let address = |address: Option<SocketAddr>| address.map_or("-".to_owned(), |address| address.to_string());
    for c in connections {
        table.row([
            c.network.to_string(),
            c.endpoint.to_string(),
            c.pid.to_string(),
            c.port_space.clone(),
            c.kind.clone(),
            c.state.clone(),
            address(c.address),
            address(c.peer),
            c.qpn.map_or("-".to_owned(), |qpn| format!("{qpn:#08x}")),
        ]);
    }
    table
}

fn qp_table(contexts: &[ContextInfo]) -> Table {
    let mut table = Table::new(&["PID", "QP", "TYPE", "STATE", "PATH", "PEER", "SENT", "", "RECEIVED", ""]);
    for (pid, qp) in contexts.iter().flat_map(|c| c.qps.iter().map(|qp| (c.pid, qp))) {
        let peer = match (&qp.peer, qp.peer_qpn) {
            (Some(address), Some(qpn)) => format!("{address} {qpn:#08x}"),
            _ => "-".to_owned(),
        };
        table.row([
            pid.to_string(),
            format!("{:#08x}", qp.qpn),
            qp.kind.clone(),
            qp.state.clone(),
            qp.path.as_deref().map_or("-", |path| path.trim_start_matches("host ")).to_owned(),
            peer,
            count(qp.sent_messages),
            bytes(qp.sent_bytes),
            count(qp.received_messages),
            bytes(qp.received_bytes),
        ]);
    }
    table
}

fn wire_table(contexts: &[ContextInfo]) -> Table {
    let mut table = Table::new(&[
        "PID",
        "QP",
        "NEXT PSN",
        "UNACKED",
        "EXPECTED",
        "LANES",
        "RETRIES",
        "RESENT",
        "RNR",
        "DUPS",
        "EARLY",
        "CNPS SENT",
        "RECEIVED",
    ]);
    for (pid, qp) in contexts.iter().flat_map(|c| c.qps.iter().map(|qp| (c.pid, qp))) {
        table.row([
            pid.to_string(),
            format!("{:#08x}", qp.qpn),
            format!("{:#08x}", qp.next_psn),
            format!("{:#08x}", qp.unacked_psn),
            format!("{:#08x}", qp.expected_psn),
            lanes(qp),
            qp.retries.to_string(),
            qp.retransmitted.to_string(),
            qp.rnr_naks.to_string(),
            qp.duplicates.to_string(),
            qp.out_of_order.to_string(),
            qp.cnps_sent.to_string(),
            qp.cnps_received.to_string(),
        ]);
    }
    table
}

/// Queue pairs with congestion control; none where nothing goes to other hosts.
fn congestion_table(contexts: &[ContextInfo]) -> Option<Table> {
    let controlled = |c: &ContextInfo| -> Vec<(i32, u32, CongestionInfo)> {
        c.qps.iter().filter_map(|qp| Some((c.pid, qp.qpn, qp.congestion?))).collect()
    };
    let controlled: Vec<_> = contexts.iter().flat_map(controlled).collect();
    let mut table = Table::new(&["PID", "QP", "CONGESTION CONTROL", "WINDOW", "ROUND TRIP"]);
    for (pid, qpn, CongestionInfo { control, window, round_trip_seconds }) in &controlled {
        table.row([
            pid.to_string(),
            format!("{qpn:#08x}"),
            control.name().to_owned(),
            format!("{window} packets"),
            round_trip_seconds.map_or_else(|| "-".to_owned(), |time| format!("{:.1} us", time * 1e6)),
        ]);
    }
    (!controlled.is_empty()).then_some(table)
}

/// Lanes that work, of all.
fn lanes(qp: &QpInfo) -> String {
    match qp.lanes {
        0 => "-".into(),
        all => format!("{}/{all}", all.saturating_sub(qp.resting_lanes)),
    }
}

fn labels(metric: &Metric) -> String {
    let labels: Vec<String> = metric.labels.iter().map(|(key, value)| format!("{key} {value}")).collect();
    labels.join(", ")
}

/// `1234567`, but `12.3 M`.
fn count(count: u64) -> String {
    let (divisor, unit) = match count.max(1).ilog10() {
        ..7 => return count.to_string(),
        7..9 => (1e6, "M"),
        9..12 => (1e9, "G"),
        _ => (1e12, "T"),
    };
    format!("{:.1} {unit}", count as f64 / divisor)
}

/// `1.5 MiB`.
pub(crate) fn bytes(count: u64) -> String {
    let unit = (63 - (count | 1).leading_zeros()) / 10;
    match UNITS.get(unit as usize) {
        Some(name) if unit > 0 => format!("{:.1} {name}", count as f64 / (1u64 << (10 * unit)) as f64),
        _ => format!("{count} B"),
    }
}

const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

#[cfg(test)]
mod tests {
    use super::*;
    use rdmesh_fabric::api::{CongestionControl, LeaseInfo, QpInfo};

    #[test]
    fn bytes_have_a_readable_unit() {
        let shown: Vec<String> = [0, 1023, 1024, 1_572_864, u64::MAX].map(bytes).into();
        assert_eq!(shown, ["0 B", "1023 B", "1.0 KiB", "1.5 MiB", "16.0 EiB"]);
    }

    #[test]
    fn counts_are_exact_while_they_are_short() {
        let shown: Vec<String> = [0, 9_999_999, 12_345_678, 2_500_000_000, 10_u64.pow(13)].map(count).into();
        assert_eq!(shown, ["0", "9999999", "12.3 M", "2.5 G", "10.0 T"]);
    }

    #[test]
    fn tables_fit_into_120_columns() {
        let qp = QpInfo {
            qpn: 0xff_ffff,
            kind: "RC".into(),
            state: "ERROR".into(),
            peer_qpn: Some(0xff_ffff),
            peer: Some("255.255.255.255".into()),
            sent_messages: 10_u64.pow(12),
            sent_bytes: 1 << 49,
            received_messages: 10_u64.pow(12),
            received_bytes: 1 << 49,
            retries: 10_u64.pow(6),
            path: Some("host 255.255.255.255".into()),
            next_psn: 0xff_ffff,
            unacked_psn: 0xff_ffff,
            expected_psn: 0xff_ffff,
            lanes: 16,
            resting_lanes: 0,
            congestion: Some(CongestionInfo {
                control: CongestionControl::Window,
                window: 100_000,
                round_trip_seconds: Some(9.999_999_9),
            }),
            retransmitted: 10_u64.pow(6),
            rnr_naks: 10_u64.pow(6),
            duplicates: 10_u64.pow(6),
            out_of_order: 10_u64.pow(6),
            cnps_sent: 10_u64.pow(6),
            cnps_received: 10_u64.pow(6),
        };
        let context = ContextInfo {
            endpoint: "twelve-chars".parse().unwrap(),
            network: "twelve-chars".parse().unwrap(),
            pid: 4_194_303,
            uid: 65_534,
            command: "fifteen-letters".into(),
            worker: 0,
            pds: 1000,
            cqs: 10_000,
            srqs: 1000,
            mrs: 100_000,
            mws: 0,
            pinned_bytes: 1 << 45,
            held: Default::default(),
            qps: vec![qp],
            device: 0,
            lease: Some(LeaseInfo { term_seconds: 3600.0, left_seconds: Some(3600.0) }),
        };
        let contexts = [context];
        let leases = linger::table(&contexts).unwrap();
        let congestion = congestion_table(&contexts).unwrap();
        for table in [context_table(&contexts, true), leases, qp_table(&contexts), wire_table(&contexts), congestion] {
            assert!(table.to_string().lines().all(|line| line.chars().count() <= 120), "{table}");
        }
    }
}
