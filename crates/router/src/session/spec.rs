//! Configuration of an endpoint.

use crate::endpoint::EndpointId;
use rdmesh_fabric::Quota;
use rdmesh_nic::policy::Policy;
use rdmesh_verbs::{Gid, Vni};
use std::net::IpAddr;
use std::path::PathBuf;

/// Configuration of an endpoint.
#[derive(Clone, Debug)]
pub struct EndpointSpec {
    /// Its name in this server.
    pub id: EndpointId,
    /// Its name in its network.
    pub name: String,
    /// The tenant network's name.
    pub network: String,
    /// The tenant network.
    pub vni: Vni,
    /// The GID table; empty slots are zero.
    pub gids: Vec<Gid>,
    /// Limits on the objects of its programs together.
    pub quota: Quota,
    /// Rates, priority and weight of its queue pairs.
    pub policy: Policy,
    /// The only user who may connect; anyone who can reach the socket where none is named.
    pub allowed_uid: Option<u32>,
    /// Its network namespace, where it has one of its own: its relay, a thread of this process, is taken to be there.
    pub namespace: Option<PathBuf>,
}

impl EndpointSpec {
    /// The addresses of its GIDs.
    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        self.gids.iter().filter(|gid| !gid.is_zero()).map(|gid| gid.ip()).collect()
    }

    /// The device's node GUID, big-endian: the interface identifier of the first GID, or, without one, a number made
    /// from the endpoint's name (RFC 4291, appendix A, with the bit of locally made identifiers). Never zero.
    pub fn node_guid(&self) -> [u8; 8] {
        let first = self.gids.first().map_or([0; 8], |gid| {
            let mut id = [0; 8];
            id.copy_from_slice(&gid.0[8..]);
            id
        });
        if first != [0; 8] {
            return first;
        }
        let names = self.network.bytes().chain([0]).chain(self.name.bytes());
        let hash = names.fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        (hash | 2 << 56).to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(gids: Vec<Gid>) -> EndpointSpec {
        EndpointSpec {
            id: EndpointId(1),
            name: "a".into(),
            network: "blue".into(),
            vni: Vni(1),
            gids,
            quota: Quota::default(),
            policy: Policy::default(),
            allowed_uid: None,
            namespace: None,
        }
    }

    #[test]
    fn node_guid_is_that_of_the_link_local_gid() {
        let gid = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(spec(vec![gid]).node_guid(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_ne!(spec(vec![]).node_guid(), [0; 8]);
    }
}
