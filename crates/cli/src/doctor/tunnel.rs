//! Tunnel checks: the hosts that have authenticated themselves, and the packets that were refused.

use super::Finding;
use rdmesh_fabric::Client;
use rdmesh_fabric::api::{Status, Tunnel, TunnelHost, TunnelRefusal, TunnelState};
use rdmesh_overlay::{Firewall, FirewallError};

const SUBJECT: &str = "tunnel";

pub(super) fn check(status: &Status, client: &Client) -> Vec<Finding> {
    if status.underlay.is_none() {
        return Vec::new();
    }
    let mut found = match client.tunnel() {
        Ok(tunnel) => findings(&tunnel),
        Err(error) => vec![Finding::fail(SUBJECT, error.to_string(), "rdmesh down && rdmesh up")],
    };
    if !status.rootless {
        found.push(Finding::ok("plain IP", "goes to other hosts over VXLAN, outside the seal: it proves no sender"));
        found.push(firewall());
    }
    found
}

/// Plain IP between hosts goes over VXLAN, which proves no sender.
fn firewall() -> Finding {
    let fix = "rdmesh down && rdmesh up --firewall";
    match Firewall::is_active() {
        Ok(true) => {
            Finding::ok("firewall", "only the router and the kernel of this host send to UDP ports 4789 and 6081")
        }
        Ok(false) => Finding::warn(
            "firewall",
            "users and containers of this host can send to other hosts' VXLAN: plain IP there believes its address",
            fix,
        ),
        Err(FirewallError::NoProgram) => Finding::warn(
            "firewall",
            "not known, for want of the `nft` program, whether others than the router can send to other hosts' VXLAN",
            format!("apt install nftables, and {fix}"),
        ),
        Err(error) => Finding::warn("firewall", error.to_string(), fix),
    }
}

fn findings(tunnel: &Tunnel) -> Vec<Finding> {
    if !tunnel.is_authenticated {
        return vec![Finding::warn(
            SUBJECT,
            "--underlay-security none: a machine that can send with another host's address gets into every tenant network",
            "rdmesh down, and on all hosts `rdmesh up --key FILE`, or --store, without that option",
        )];
    }
    let mut findings: Vec<_> = tunnel.hosts.iter().map(agreement).collect();
    findings.extend(tunnel.hosts.iter().filter_map(intruders));
    if let Some(last) = tunnel.last_stranger {
        findings.push(Finding::warn(
            SUBJECT,
            format!("packets from addresses that are no host's: {}, the last from {last}", tunnel.stranger_packets),
            "is that a host? `rdmesh peer add` makes it known; else keep it from UDP port 6081",
        ));
    }
    if tunnel.unread_messages > 0 {
        findings.push(Finding::warn(
            SUBJECT,
            format!("{} messages about new sessions came too fast to be read", tunnel.unread_messages),
            "who sends them in a host's name? `rdmesh up --firewall` on every host lets only the routers there send",
        ));
    }
    findings
}

/// Whether the host has proven itself.
pub(crate) fn agreement(host: &TunnelHost) -> Finding {
    let (place, TunnelState { is_changing_key, counters, .. }) = (place(host), host.state);
    if has_other_key(host) {
        return Finding::fail(
            SUBJECT,
            format!("{place} signs with another key ({} messages)", counters.other_key),
            format!("the same key on both hosts: rdmesh peer rotate {} --key FILE", host.name),
        );
    }
    if !host.state.is_open() {
        return Finding::warn(
            SUBJECT,
            format!("{place} does not prove who it is: {} packets to it were not sent", counters.unsent),
            "is its router running, with --key and with this host among its peers? (`rdmesh peer ls` there)",
        );
    }
    if is_changing_key {
        let fix = format!("the new key there too: rdmesh peer rotate {} --key FILE", host.name);
        return Finding::warn(SUBJECT, format!("{place} has not got the new key yet: the old one is still used"), fix);
    }
    Finding::ok(SUBJECT, format!("{place} is authenticated"))
}

/// Whether a key is why the host is not heard, or still heard by an old one only.
fn has_other_key(host: &TunnelHost) -> bool {
    host.state.counters.other_key > 0 && (!host.state.is_open() || host.state.is_changing_key)
}

/// Senders of refused packets.
fn intruders(host: &TunnelHost) -> Option<Finding> {
    let counters = &host.state.counters;
    let counts: Vec<_> = counters
        .refusals()
        .into_iter()
        .filter(|refusal| refusal.count > 0 && (refusal.reason != "other_key" || !has_other_key(host)))
        .map(|TunnelRefusal { count, text, .. }| format!("{count} {text}"))
        .collect();
    if counts.is_empty() {
        return None;
    }
    let message = format!(
        "tunnel packets from the address of {} ({}) were refused: {}",
        host.name,
        host.address,
        counts.join(", ")
    );
    // Networks double packets, some are on their way when a router restarts, and a key may have been another one once.
    if counters.wrong_tag == 0 && counters.unsealed == 0 {
        return Some(Finding::ok(SUBJECT, message));
    }
    let fix = format!("who sends them? `rdmesh up --firewall` on {} lets only the router there send", host.name);
    Some(Finding::warn(SUBJECT, message, fix))
}

fn place(host: &TunnelHost) -> String {
    format!("host {} at {}", host.name, host.address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;
    use rdmesh_fabric::api::TunnelCounters;

    fn levels(change: impl Fn(&mut TunnelState, &mut TunnelCounters)) -> Vec<Level> {
        let (mut state, mut counters) =
            (TunnelState { sends: true, receives: true, ..TunnelState::default() }, TunnelCounters::default());
        change(&mut state, &mut counters);
        let state = TunnelState { counters, ..state };
        let host = TunnelHost { name: "b".parse().unwrap(), address: [192, 0, 2, 2].into(), state };
        let tunnel = Tunnel { is_authenticated: true, hosts: vec![host], ..Tunnel::default() };
        findings(&tunnel).iter().map(|finding| finding.level).collect()
    }

    #[test]
    fn each_state_has_its_line() {
        assert_eq!(levels(|_, _| {}), [Level::Ok]);
        assert_eq!(levels(|_, counted| (counted.replayed, counted.unknown_session) = (3, 1)), [Level::Ok, Level::Ok]);
        assert_eq!(levels(|_, counted| counted.wrong_tag = 3), [Level::Ok, Level::Warn]);
        assert_eq!(levels(|state, _| state.sends = false), [Level::Warn]);
        assert_eq!(levels(|state, counted| (state.sends, counted.other_key) = (false, 2)), [Level::Fail]);
        // One that was wrong once, and is right now.
        assert_eq!(levels(|_, counted| counted.other_key = 2), [Level::Ok, Level::Ok]);
        assert_eq!(levels(|state, _| state.is_changing_key = true), [Level::Warn]);
        assert_eq!(findings(&Tunnel::default())[0].level, Level::Warn);
        let flooded = Tunnel { is_authenticated: true, unread_messages: 7, ..Tunnel::default() };
        assert_eq!(findings(&flooded)[0].level, Level::Warn);
    }
}
