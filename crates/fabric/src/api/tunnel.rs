//! JSON types of the tunnel's state: sessions with other hosts, and counters of refused packets.

use crate::Name;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// State of the tunnel to other hosts, and refused senders (`GET /v1/tunnel`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tunnel {
    /// Whether packets prove their sender. If not, every sender that uses another host's address is believed.
    pub is_authenticated: bool,
    /// The other hosts.
    pub hosts: Vec<TunnelHost>,
    /// Packets from addresses that are not a host's.
    pub stranger_packets: u64,
    /// Source of the last of them.
    pub last_stranger: Option<IpAddr>,
    /// Messages from hosts' addresses about new sessions that were not read, because too many came at once.
    #[serde(default)]
    pub unread_messages: u64,
}

/// The tunnel to another host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TunnelHost {
    /// Its name.
    pub name: Name,
    /// Its address.
    pub address: IpAddr,
    /// State of the tunnel to it.
    #[serde(flatten)]
    pub state: TunnelState,
}

/// The state of the tunnel to another host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TunnelState {
    /// Whether there is a session to it: it has proven that it can open its packets.
    pub sends: bool,
    /// Whether there is a session from it.
    pub receives: bool,
    /// Whether a new key waits until the host has it too.
    pub is_changing_key: bool,
    /// Packets and messages that were not delivered.
    #[serde(flatten)]
    pub counters: TunnelCounters,
}

impl TunnelState {
    /// Whether packets go both ways.
    pub fn is_open(&self) -> bool {
        self.sends && self.receives
    }
}

/// Packets and messages that were not delivered through the tunnel to another host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TunnelCounters<N = u64> {
    /// Packets from its address without a tag.
    pub unsealed: N,
    /// Packets from its address in unknown or expired sessions.
    pub unknown_session: N,
    /// Packets from its address with a wrong tag.
    pub wrong_tag: N,
    /// Replayed packets from its address.
    pub replayed: N,
    /// Messages from its address that were signed with another key.
    pub other_key: N,
    /// Packets to it that could not be sent, because it has not proven itself.
    pub unsent: N,
}

/// Number of refused packets for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelRefusal {
    /// The reason's name, as that of the counter.
    pub reason: &'static str,
    /// The reason, to follow the word "packets".
    pub text: &'static str,
    /// Their number.
    pub count: u64,
}

impl<N> TunnelCounters<N> {
    /// The same counters in another form.
    pub fn map<M>(&self, of: impl Fn(&N) -> M) -> TunnelCounters<M> {
        let Self { unsealed, unknown_session, wrong_tag, replayed, other_key, unsent } = self;
        TunnelCounters {
            unsealed: of(unsealed),
            unknown_session: of(unknown_session),
            wrong_tag: of(wrong_tag),
            replayed: of(replayed),
            other_key: of(other_key),
            unsent: of(unsent),
        }
    }
}

impl TunnelCounters {
    /// Refused packets, by reason, including those with a count of zero.
    pub fn refusals(&self) -> [TunnelRefusal; 5] {
        let Self { unsealed, unknown_session, wrong_tag, replayed, other_key, unsent: _ } = *self;
        [
            ("unsealed", "without a tag", unsealed),
            ("unknown_session", "in no session", unknown_session),
            ("wrong_tag", "with a wrong tag", wrong_tag),
            ("replayed", "for the second time", replayed),
            ("other_key", "signed with another key", other_key),
        ]
        .map(|(reason, text, count)| TunnelRefusal { reason, text, count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_host_is_one_flat_object() {
        let counters =
            TunnelCounters { unsealed: 1, unknown_session: 2, wrong_tag: 3, replayed: 4, other_key: 5, unsent: 6 };
        let state = TunnelState { sends: true, receives: false, is_changing_key: true, counters };
        let host = TunnelHost { name: "b".parse().unwrap(), address: [192, 0, 2, 2].into(), state };
        let told = json!({
            "name": "b", "address": "192.0.2.2", "sends": true, "receives": false, "is_changing_key": true,
            "unsealed": 1, "unknown_session": 2, "wrong_tag": 3, "replayed": 4, "other_key": 5, "unsent": 6,
        });
        assert_eq!(serde_json::to_value(&host).unwrap(), told);
        assert_eq!(serde_json::from_value::<TunnelHost>(told.clone()).unwrap(), host);
        for TunnelRefusal { reason, count, .. } in counters.refusals() {
            assert_eq!(told[reason], count, "{reason}");
        }
    }
}
