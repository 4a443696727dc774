//! `rdmesh trace`: the path from an endpoint of this host to another endpoint, hop by hop, with the time that each takes.
//!
//! Probes are answered by the routers, so that the path can be looked at while no program uses it.

mod findings;
mod hops;
mod place;

use crate::args::PathOptions;
use crate::doctor::{Finding, path};
use crate::failure::Failure;
use crate::show::{print_json, print_line};
use crate::table::Table;
use hops::Hop;
use place::{Location, Place};
use rdmesh_fabric::Client;
use rdmesh_fabric::api::{PathProbe, ProbePath, QpInfo};
use serde::Serialize;
use std::process::ExitCode;

/// Ends, findings, hops and queue pairs of a path.
#[derive(Serialize)]
struct Report {
    from: String,
    to: String,
    findings: Vec<Finding>,
    hops: Vec<Hop>,
    queue_pairs: Vec<QueuePair>,
}

/// A queue pair of the endpoint that is connected to the other end.
#[derive(Serialize)]
struct QueuePair {
    pid: i32,
    command: String,
    #[serde(flatten)]
    state: QpInfo,
}

/// Traces a path; the exit status is 1 if nothing gets through.
pub(crate) fn trace(options: &PathOptions, client: &Client) -> Result<ExitCode, Failure> {
    let place = Place::find(options, client)?;
    let report = report(&place, options, client)?;
    if options.output.json {
        print_json(&report)?;
    } else {
        report.print()?;
    }
    let failed = report.findings.iter().any(Finding::is_failure);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn report(place: &Place, options: &PathOptions, client: &Client) -> Result<Report, Failure> {
    let mut report = Report {
        from: place.from.to_string(),
        to: place.to.clone(),
        findings: vec![place.finding()],
        hops: Vec::new(),
        queue_pairs: queue_pairs(place, client)?,
    };
    if !place.is_one_network() {
        return Ok(report);
    }
    if let Location::Unknown = place.location {
        report.findings.extend(path::check(&place.from.network, Some(&place.from.name), place.address, client)?);
        return Ok(report);
    }
    let probes = |count, is_full| -> Result<Vec<PathProbe>, Failure> {
        let order = ProbePath { to: place.address, count, is_full };
        Ok(client.probe_path(&place.from.network, &place.from.name, &order)?)
    };
    // Where nothing gets through the rest need not be waited for. One may be lost.
    let mut short = probes(FIRST, false)?;
    let (mut full, is_through) = (Vec::new(), short.iter().any(|probe| probe.answer.is_some()));
    if let (Location::Host(_), true) = (&place.location, is_through) {
        (short, full) = (probes(options.count, false)?, probes(options.count, true)?);
    }
    report.findings.extend(findings::of(place, &short, &full, client)?);
    if let Location::Host(host) = &place.location {
        report.hops = hops::of(&short, &host.name);
    }
    Ok(report)
}

/// The queue pairs of the endpoint's programs that are connected to the address.
fn queue_pairs(place: &Place, client: &Client) -> Result<Vec<QueuePair>, Failure> {
    let address = place.address.to_string();
    let contexts = client
        .contexts()?
        .into_iter()
        .filter(|context| context.endpoint == place.from.name && context.network == place.from.network);
    let pairs = contexts.flat_map(|context| {
        let (pid, command) = (context.pid, context.command);
        context.qps.into_iter().map(move |state| QueuePair { pid, command: command.clone(), state })
    });
    Ok(pairs.filter(|pair| pair.state.peer.as_deref() == Some(&address)).collect())
}

impl Report {
    fn print(&self) -> Result<(), Failure> {
        for finding in &self.findings {
            print_line(finding.text())?;
        }
        if !self.hops.is_empty() {
            print_line(format!("\n{}", hops::table(&self.hops)))?;
        }
        if !self.queue_pairs.is_empty() {
            print_line(format!("\n{}", self.queue_pair_table()))?;
        }
        Ok(())
    }

    fn queue_pair_table(&self) -> Table {
        let header = ["PID", "COMMAND", "QP", "TYPE", "STATE", "PATH", "WINDOW", "ROUND TRIP", "RESENT", "RNR"];
        let mut table = Table::new(&header);
        for QueuePair { pid, command, state } in &self.queue_pairs {
            let none = || "-".to_owned();
            let round_trip = state.congestion.and_then(|congestion| congestion.round_trip_seconds);
            table.row([
                pid.to_string(),
                command.clone(),
                format!("0x{:06x}", state.qpn),
                state.kind.clone(),
                state.state.clone(),
                state.path.clone().unwrap_or_else(none),
                state.congestion.map_or_else(none, |congestion| congestion.window.to_string()),
                round_trip.map_or_else(none, |time| format!("{:.1} us", time * 1e6)),
                state.retransmitted.to_string(),
                state.rnr_naks.to_string(),
            ]);
        }
        table
    }
}

/// Probes that show whether anything gets through.
const FIRST: u32 = 3;
