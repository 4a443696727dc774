//! Pools: endpoints that are made before they are needed, and share a network namespace.

use crate::invalid::{InvalidField, Validate};
use crate::{Name, Quota};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Endpoints of one tenant on one host that are ready before a program needs one (`PUT /v1/pools`).
///
/// They share one network namespace and one interface, so that a thousand cost about what one costs; each has its own address, its
/// own device and its own limits. A program that is started in one is held to its address, unless the pool shares them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// Its network, made if there is none of that name.
    pub network: Name,
    /// Its name, unique on its network and host; its endpoints are called `<name>-<number>`.
    pub name: Name,
    /// Number of endpoints, up to 4,096: acquired, ready and resting ones.
    pub size: u32,
    /// Seconds for which an endpoint rests between two users, so that nothing sent to the first reaches the second.
    #[serde(default = "default_rest")]
    pub rest_seconds: u32,
    /// Limits of each endpoint.
    #[serde(default)]
    pub quota: Quota,
    /// The only user that may open the endpoints' devices.
    #[serde(default)]
    pub allowed_uid: Option<u32>,
    /// Whether programs may use the addresses of the pool's other endpoints too. If not, the host needs control groups of version 2.
    #[serde(default)]
    pub shares_addresses: bool,
}

/// The pool of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PoolMember {
    /// Name of the pool.
    pub name: Name,
    /// The address from which the link-layer address of the pool's interface follows.
    pub link: IpAddr,
}

impl PoolMember {
    /// The name of what a pool's endpoints share, `<network>.<pool>.pool`: no endpoint's, whose names hold one dot.
    pub(crate) fn directory_name(network: &Name, pool: &Name) -> String {
        format!("{network}.{pool}.pool")
    }
}

/// The longest name of a pool: its endpoints' names must be names too.
const LONGEST_NAME: usize = Name::MAX_LEN - 5;
/// The kernel walks an interface's addresses: more take too long to change.
const LARGEST: u32 = 4096;

/// As long as TIME-WAIT of TCP (RFC 9293, 3.4.1) lasts in Linux.
fn default_rest() -> u32 {
    60
}

impl Validate for Pool {
    fn validate(&self) -> Result<(), InvalidField> {
        if self.size == 0 || self.size > LARGEST {
            return Err(InvalidField::new("size", format!("{} is not from 1 to {LARGEST}", self.size)));
        }
        if self.name.as_str().len() > LONGEST_NAME {
            return Err(InvalidField::new(
                "name",
                format!("a pool's name has at most {LONGEST_NAME} characters, which leaves room for a number"),
            ));
        }
        Ok(())
    }
}
