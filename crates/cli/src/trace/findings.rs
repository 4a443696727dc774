//! Findings of a path: what lets packets through, or what stops them, with a remedy.

use super::place::{Location, Place};
use crate::doctor::{Finding, path, rates, tunnel};
use crate::failure::Failure;
use rdmesh_fabric::api::PathProbe;
use rdmesh_fabric::{Client, Peer};

/// Findings from the probes of both sizes; `full` is empty where no short one was answered, and within a host.
pub(super) fn of(
    place: &Place,
    short: &[PathProbe],
    full: &[PathProbe],
    client: &Client,
) -> Result<Vec<Finding>, Failure> {
    let mut findings = match &place.location {
        Location::Host(host) if answered(short) == 0 => silence(place, host, client)?,
        Location::Host(host) => vec![sizes(short, full, host)],
        Location::Here | Location::Unknown => vec![Finding::ok("path", "within this host, by its router")],
    };
    findings.extend(presence(place, short));
    findings.push(groups(place, short));
    findings.extend(rates::of(&place.from.to_string(), client));
    Ok(findings)
}

fn answered(probes: &[PathProbe]) -> usize {
    probes.iter().filter(|probe| probe.answer.is_some()).count()
}

/// Nothing came back: why not.
fn silence(place: &Place, host: &Peer, client: &Client) -> Result<Vec<Finding>, Failure> {
    let mut findings = path::between_hosts(&client.status()?, host, place.address);
    let known = client.tunnel()?;
    let its = known.hosts.iter().find(|known| known.name == host.name).filter(|_| known.is_authenticated);
    findings.extend(its.map(tunnel::agreement));
    // What is found already explains it.
    if findings.iter().any(Finding::is_failure) {
        return Ok(findings);
    }
    findings.push(Finding::fail(
        "probes",
        format!("the router of host {} has answered none", host.name),
        format!(
            "does it know {own} (`rdmesh peer ls` on {host}, where hosts are told of each other by hand)? Does a firewall drop UDP \
             port 6081 between the hosts (`rdmesh doctor` there says what arrives)? A router of an older version answers no probes",
            own = place.own,
            host = host.name
        ),
    ));
    Ok(findings)
}

/// Probes of each size that were answered.
fn sizes(short: &[PathProbe], full: &[PathProbe], host: &Peer) -> Finding {
    let (some, all) = (answered(full), full.len());
    let bytes = full.first().map_or(0, |probe| probe.bytes);
    let text = format!(
        "{} of {} probes of 256 bytes were answered, {some} of {all} of {bytes}, as full packets have",
        answered(short),
        short.len()
    );
    if some == 0 && all > 0 {
        return Finding::fail(
            "probes",
            format!("{text}: the network between the hosts does not carry packets of this host's MTU"),
            format!("the MTU of the interface towards {}, on both hosts, to what the network carries", host.address),
        );
    }
    if answered(short) < short.len() || some < all {
        return Finding::warn("probes", text, "`rdmesh ps --wide` shows what is lost and sent again");
    }
    Finding::ok("probes", text)
}

/// Whether the other router has the endpoint.
fn presence(place: &Place, probes: &[PathProbe]) -> Option<Finding> {
    let answer = probes.iter().find_map(|probe| probe.answer.as_ref())?;
    let Location::Host(host) = &place.location else { return None };
    let lost = || {
        Finding::fail(
            "endpoint",
            format!("host {} has no endpoint with {}", host.name, place.address),
            format!(
                "has it ended, or moved? `rdmesh endpoint ls` on {}; `rdmesh peer ls` says what is known here",
                host.name
            ),
        )
    };
    (!answer.is_endpoint).then(lost)
}

/// Verdict of security groups on a connection, on this host and, where it has answered, on the other.
fn groups(place: &Place, probes: &[PathProbe]) -> Finding {
    let here = probes.iter().all(|probe| probe.is_allowed);
    let answer = probes.iter().find_map(|probe| probe.answer.as_ref());
    let there = answer.is_none_or(|answer| answer.is_allowed || !answer.is_endpoint);
    let (from, to) = (&place.from, &place.to);
    let fix = format!("`rdmesh group ls` lists them; `rdmesh group set --help` shows how {from} is let in");
    match (here, there) {
        (true, true) if answer.is_none() => {
            Finding::ok("groups", format!("{from} may begin connections to {to}, as far as this host knows"))
        }
        (true, true) => Finding::ok("groups", format!("{from} may begin connections to {to}")),
        (false, _) => Finding::fail("groups", format!("no rule lets {from} begin a connection to {to}"), fix),
        (true, false) => Finding::fail(
            "groups",
            format!("the other host knows no rule that lets {from} begin a connection to {to}"),
            fix,
        ),
    }
}
