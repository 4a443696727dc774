//! Pools of endpoints.

use super::Lifetime;
use crate::{Name, Pool};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A pool and the state of its endpoints (`GET /v1/pools`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PoolInfo {
    /// The pool.
    #[serde(flatten)]
    pub pool: Pool,
    /// Endpoints that may be acquired.
    pub ready: u32,
    /// Endpoints that are in use.
    pub acquired: u32,
    /// Endpoints that have been released a moment ago.
    pub resting: u32,
    /// The network namespace that they share.
    pub namespace: PathBuf,
}

/// Endpoints of a pool for a program (`POST /v1/pools/{network}/{name}/acquire`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AcquireEndpoints {
    /// How many: all of them, or the request is refused.
    #[serde(default = "one")]
    pub count: u32,
    /// The event at which they are released.
    #[serde(default)]
    pub lifetime: Lifetime,
    /// Whether the process that asks becomes the program of the one endpoint that it asks for, with lifetime `caller`. Unless the pool
    /// shares its addresses, it is moved into a control group then, held to the endpoint's address, and killed when the endpoint
    /// is released.
    #[serde(default)]
    pub enters: bool,
}

/// Endpoints that are no longer needed (`POST /v1/pools/{network}/{name}/release`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseEndpoints {
    /// Their names.
    pub names: Vec<Name>,
}

fn one() -> u32 {
    1
}
