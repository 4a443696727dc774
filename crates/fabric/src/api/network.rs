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
}

impl From<CreateNetwork> for Network {
    fn from(CreateNetwork { name, tenant, vni, subnets }: CreateNetwork) -> Self {
        Self { name, tenant, vni: vni.unwrap_or(0), subnets, mtu: None, is_complete: false }
    }
}
