//! The tunnel's keys, and the sessions with other hosts.

use super::workers::Workers;
use crate::io::{Sessions, StrangersSeen, Table};
use rdmesh_fabric::api::TunnelState;
use rdmesh_fabric::{Rotated, TunnelKey};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

impl Workers {
    /// The host at `address` shares these keys with this one. The one that it had before is accepted until it uses the newest.
    pub fn set_tunnel_key(&self, address: IpAddr, key: &Rotated<TunnelKey>) {
        if let Some(sessions) = &self.sessions {
            self.set_table(sessions.set_peer(address, key));
        }
    }

    /// Packets from the host at `address` are no longer accepted.
    pub fn remove_tunnel_key(&self, address: IpAddr) {
        if let Some(sessions) = &self.sessions {
            self.set_table(sessions.remove_peer(address));
        }
    }

    /// State of the tunnel to each host, by address; none where nothing is authenticated.
    pub fn tunnel_states(&self) -> Option<BTreeMap<IpAddr, TunnelState>> {
        self.sessions.as_ref().map(Sessions::states)
    }

    /// Packets from addresses that are not a host's.
    pub fn strangers(&self) -> StrangersSeen {
        self.sessions.as_ref().map_or_else(StrangersSeen::default, Sessions::strangers)
    }

    fn set_table(&self, table: Table) {
        let table = Arc::new(table);
        for shard in &self.shards {
            let table = Arc::clone(&table);
            shard.call(move |shard| shard.set_peers(&table));
        }
    }
}
