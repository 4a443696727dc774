//! Arguments of `rdmesh pool` and of what takes endpoints from one.

use super::{OutputOptions, QuotaOptions};
use clap::{Args as ClapArgs, Subcommand};
use rdmesh_fabric::{DEFAULT_NETWORK, Name, Pool};
use std::path::PathBuf;

/// Commands on pools.
#[derive(Subcommand)]
pub(crate) enum PoolCommand {
    /// Make endpoints that share one network namespace and are ready before a program needs one
    Create(PoolOptions),
    /// Change the number of a pool's endpoints
    Resize(ResizeOptions),
    /// List pools
    Ls(OutputOptions),
    /// Remove a pool of which no endpoint is acquired
    Rm(PoolKey),
}

/// The name of a pool.
#[derive(ClapArgs, Clone)]
pub(crate) struct PoolKey {
    /// Its name
    pub(crate) name: Name,
    /// Its network
    #[arg(long, value_name = "NETWORK", default_value = DEFAULT_NETWORK)]
    pub(crate) net: Name,
}

/// A new pool.
#[derive(ClapArgs)]
pub(crate) struct PoolOptions {
    #[command(flatten)]
    pub(crate) key: PoolKey,
    /// Number of its endpoints, up to 4096
    #[arg(long, value_name = "N")]
    size: u32,
    /// Seconds for which an endpoint rests between two users
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    rest: u32,
    /// The only user that may open the endpoints' devices, by number
    #[arg(long, value_name = "UID")]
    uid: Option<u32>,
    /// Let programs use the addresses of the pool's other endpoints too
    #[arg(long)]
    share_addresses: bool,
    #[command(flatten)]
    quota: QuotaOptions,
}

impl PoolOptions {
    /// The pool that is asked for.
    pub(crate) fn pool(&self) -> Pool {
        let PoolKey { name, net } = self.key.clone();
        Pool {
            network: net,
            name,
            size: self.size,
            rest_seconds: self.rest,
            quota: self.quota.quota(),
            allowed_uid: self.uid,
            shares_addresses: self.share_addresses,
        }
    }
}

/// A pool and its new size.
#[derive(ClapArgs)]
pub(crate) struct ResizeOptions {
    #[command(flatten)]
    pub(crate) key: PoolKey,
    /// Number of its endpoints, up to 4096; those that are acquired stay
    #[arg(long, value_name = "N")]
    pub(crate) size: u32,
}

/// Endpoints that are taken from a pool.
#[derive(ClapArgs)]
pub(crate) struct AcquireOptions {
    #[command(flatten)]
    pub(crate) key: PoolKey,
    /// How many: all of them are given, or none
    #[arg(long = "n", value_name = "N", default_value_t = 1)]
    pub(crate) count: u32,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// An acquired endpoint and a control group.
#[derive(ClapArgs)]
pub(crate) struct ConfineOptions {
    /// Name of the endpoint
    pub(crate) name: Name,
    /// Its network
    #[arg(long, value_name = "NETWORK", default_value = DEFAULT_NETWORK)]
    pub(crate) net: Name,
    /// Directory of the control group (version 2)
    #[arg(long, value_name = "DIR")]
    pub(crate) cgroup: PathBuf,
}

/// Endpoints that go back to their pools.
#[derive(ClapArgs)]
pub(crate) struct ReleaseOptions {
    /// Their names
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<Name>,
    /// Their network
    #[arg(long, value_name = "NETWORK", default_value = DEFAULT_NETWORK)]
    pub(crate) net: Name,
}
