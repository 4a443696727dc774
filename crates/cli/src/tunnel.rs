//! Tunnel state as `rdmesh ps --wide` shows it: sessions with other hosts, and packets that were not delivered.

use crate::table::Table;
use rdmesh_fabric::api::{Tunnel, TunnelRefusal, TunnelState};

/// State of the tunnel to each host, and undelivered packets, without empty lines; none where there is nothing to show.
pub(crate) fn text(tunnel: &Tunnel) -> Option<String> {
    let mut lines = Vec::new();
    if !tunnel.is_authenticated {
        lines.push("The tunnel to other hosts is insecure: no packet proves its sender.".to_owned());
    }
    if !tunnel.hosts.is_empty() {
        lines.push(table(tunnel).to_string());
    }
    if let Some(last) = tunnel.last_stranger {
        let count = tunnel.stranger_packets;
        lines.push(format!("Refused from addresses that are no host's: {count} packets, the last from {last}."));
    }
    if tunnel.unread_messages > 0 {
        lines.push(format!("Not read, because too many came at once: {} handshakes.", tunnel.unread_messages));
    }
    (!lines.is_empty()).then(|| lines.join("\n"))
}

fn table(tunnel: &Tunnel) -> Table {
    let mut table = Table::new(&["HOST", "AT", "TUNNEL", "DROPPED"]);
    for host in &tunnel.hosts {
        let counts = counts(&host.state);
        let first = counts.first().map_or("-", String::as_str).to_owned();
        table.row([host.name.to_string(), host.address.to_string(), state(&host.state), first]);
        for count in counts.into_iter().skip(1) {
            table.row([String::new(), String::new(), String::new(), count]);
        }
    }
    table
}

fn state(state: &TunnelState) -> String {
    let way = match (state.sends, state.receives) {
        (true, true) => "open",
        (true, false) => "open to it only",
        (false, true) => "open from it only",
        (false, false) => "closed",
    };
    if state.is_changing_key { format!("{way}, new key waits") } else { way.to_owned() }
}

/// Counters that are not zero, one a line.
fn counts(state: &TunnelState) -> Vec<String> {
    let refused = state.counters.refusals().into_iter().filter(|refusal| refusal.count > 0);
    let mut counts: Vec<_> =
        refused.map(|TunnelRefusal { count, text, .. }| format!("{count} refused, {text}")).collect();
    if state.counters.unsent > 0 {
        counts.push(format!("{} not sent, as it had not proven itself", state.counters.unsent));
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmesh_fabric::api::{TunnelCounters, TunnelHost};

    fn host(name: &str, state: TunnelState) -> TunnelHost {
        TunnelHost { name: name.parse().unwrap(), address: [255, 255, 255, 255].into(), state }
    }

    #[test]
    fn what_is_not_zero_is_told_in_plain_words() {
        assert_eq!(text(&Tunnel { is_authenticated: true, ..Tunnel::default() }), None);
        let counters =
            TunnelCounters { unsealed: 3, wrong_tag: 10_u64.pow(12), unsent: 5, ..TunnelCounters::default() };
        let all = TunnelState { sends: false, receives: true, is_changing_key: true, counters };
        let fine = TunnelState { sends: true, receives: true, ..TunnelState::default() };
        let tunnel = Tunnel {
            is_authenticated: true,
            hosts: vec![host("fine", fine), host("twelve-chars", all)],
            stranger_packets: 2,
            last_stranger: Some([192, 0, 2, 77].into()),
            unread_messages: 4,
        };
        let text = text(&tunnel).unwrap();
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split("  ").map(str::trim).collect()).collect();
        let row = |words: &[&str]| {
            let is_it = |cells: &&Vec<&str>| cells.iter().filter(|cell| !cell.is_empty()).eq(words);
            assert!(rows.iter().any(|cells| is_it(&cells)), "{words:?} in\n{text}");
        };
        row(&["fine", "255.255.255.255", "open", "-"]);
        row(&["twelve-chars", "255.255.255.255", "open from it only, new key waits", "3 refused, without a tag"]);
        row(&["1000000000000 refused, with a wrong tag"]);
        row(&["5 not sent, as it had not proven itself"]);
        assert_eq!(rows.len(), 1 + 1 + 3 + 2, "{text}");
        assert!(text.contains("2 packets, the last from 192.0.2.77") && text.contains("4 handshakes"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
    }
}
