//! Networks that are made, in the API.

use crate::tenant::default_tenant;
use crate::{Name, Network};
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A new network (`POST /v1/networks`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateNetwork {
    /// Its name.
    pub name: Name,
    /// The tenant that it belongs to.
    #[serde(default = "default_tenant")]
    pub tenant: Name,
    /// Its number; where none is given, a free one.
    #[serde(default)]
    pub vni: Option<u32>,
    /// Its address ranges, at most one of each family. They may be those of other networks.
    #[schemars(with = "Vec<String>")]
    pub subnets: Vec<IpNet>,
    /// The largest IP packet of its endpoints, at least 1280; none: what the hosts' underlay leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
}

impl From<CreateNetwork> for Network {
    fn from(CreateNetwork { name, tenant, vni, subnets, mtu }: CreateNetwork) -> Self {
        Self { name, tenant, vni: vni.unwrap_or(0), subnets, mtu, is_complete: false }
    }
}
