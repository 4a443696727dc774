//! The tunnel to other hosts: who has proven himself, and who tried to get in without.

use super::Finding;
use rdmesh_fabric::Client;
use rdmesh_fabric::api::{Status, Tunnel, TunnelHost};
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
            "it is insecure: whoever can send with another host's address gets into every tenant network",
            "rdmesh down, and on all hosts `rdmesh up --key FILE` instead of --insecure",
        )];
    }
    let mut findings: Vec<_> = tunnel.hosts.iter().map(agreement).collect();
    findings.extend(tunnel.hosts.iter().filter_map(intruders));
    if let Some(last) = tunnel.last_stranger {
        findings.push(Finding::warn(
            SUBJECT,
            format!("{} packets from addresses that are no host's, the last from {last}", tunnel.stranger_packets),
            "is that a host? `rdmesh peer add` makes it known; else keep it from UDP port 6081",
        ));
    }
    findings
}

/// Whether the host has proven itself.
fn agreement(host: &TunnelHost) -> Finding {
    let place = format!("host {} at {}", host.name, host.address);
    let is_agreed = host.sends && host.receives;
    if host.other_key > 0 && (!is_agreed || host.is_changing_key) {
        return Finding::fail(
            SUBJECT,
            format!("{place} signs with another key ({} messages)", host.other_key),
            format!("the same key on both hosts: rdmesh peer rotate {} --key FILE", host.name),
        );
    }
    if !is_agreed {
        return Finding::warn(
            SUBJECT,
            format!("{place} does not prove who it is: {} packets to it were not sent", host.unsent),
            "is its router running, with --key and with this host among its peers? (`rdmesh peer ls` there)",
        );
    }
    if host.is_changing_key {
        let fix = format!("the new key there too: rdmesh peer rotate {} --key FILE", host.name);
        return Finding::warn(SUBJECT, format!("{place} has not got the new key yet: the old one is still used"), fix);
    }
    Finding::ok(SUBJECT, format!("{place} is authenticated"))
}

/// Senders of refused packets.
fn intruders(host: &TunnelHost) -> Option<Finding> {
    let reasons = [
        (host.wrong_tag, "with a wrong tag"),
        (host.unsealed, "without a tag"),
        (host.unknown_session, "in no session"),
        (host.replayed, "for the second time"),
    ];
    let counts: Vec<_> =
        reasons.iter().filter(|(count, _)| *count > 0).map(|(count, why)| format!("{count} {why}")).collect();
    // Networks double packets, and some are on their way when a router restarts.
    let is_harmless = host.wrong_tag == 0 && host.unsealed == 0;
    let message = format!(
        "tunnel packets from the address of {} ({}) were refused: {}",
        host.name,
        host.address,
        counts.join(", ")
    );
    (!counts.is_empty()).then(|| {
        if is_harmless {
            return Finding::ok(SUBJECT, message);
        }
        let fix = format!("who sends them? `rdmesh up --firewall` on {} lets only the router there send", host.name);
        Finding::warn(SUBJECT, message, fix)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;

    fn host() -> TunnelHost {
        TunnelHost {
            name: "b".parse().unwrap(),
            address: "192.0.2.2".parse().unwrap(),
            sends: true,
            receives: true,
            is_changing_key: false,
            unsealed: 0,
            unknown_session: 0,
            wrong_tag: 0,
            replayed: 0,
            other_key: 0,
            unsent: 0,
        }
    }

    fn levels(host: TunnelHost) -> Vec<Level> {
        let tunnel = Tunnel { is_authenticated: true, hosts: vec![host], ..Tunnel::default() };
        findings(&tunnel).iter().map(|finding| finding.level).collect()
    }

    #[test]
    fn each_state_has_its_line() {
        assert_eq!(levels(host()), [Level::Ok]);
        assert_eq!(levels(TunnelHost { replayed: 3, unknown_session: 1, ..host() }), [Level::Ok, Level::Ok]);
        assert_eq!(levels(TunnelHost { wrong_tag: 3, ..host() }), [Level::Ok, Level::Warn]);
        assert_eq!(levels(TunnelHost { sends: false, ..host() }), [Level::Warn]);
        assert_eq!(levels(TunnelHost { sends: false, other_key: 2, ..host() }), [Level::Fail]);
        // One that was wrong once, and is right now.
        assert_eq!(levels(TunnelHost { other_key: 2, ..host() }), [Level::Ok]);
        assert_eq!(levels(TunnelHost { is_changing_key: true, ..host() }), [Level::Warn]);
        assert_eq!(findings(&Tunnel::default())[0].level, Level::Warn);
    }
}
