//! Arguments of `rdmesh chain`.

use super::OutputOptions;
use clap::{Args as ClapArgs, Subcommand};
use rdmesh_fabric::{DEFAULT_NETWORK, Name};

#[derive(Subcommand)]
pub(crate) enum ChainCommand {
    /// List chains, with counts of the requests that they have executed
    Ls(OutputOptions),
    /// Let a chain start no request, and receive no message, until it is resumed
    Stop(ChainOptions),
    /// Let a chain go on that was stopped
    Resume(ChainOptions),
    /// End a chain: its queue pairs are in error at once
    Kill(ChainOptions),
    /// Set how many steps the chains of an endpoint may execute in a second
    Limit(ChainLimit),
}

#[derive(ClapArgs)]
pub(crate) struct ChainOptions {
    /// Name of its endpoint
    pub(crate) name: Name,
    /// Number of its group, as `rdmesh chain ls` shows it
    pub(crate) group: u32,
    /// The endpoint's network
    #[arg(long, value_name = "NETWORK", default_value = DEFAULT_NETWORK)]
    pub(crate) net: Name,
    /// Number of its device, as `rdmesh chain ls` shows it
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) device: u32,
}

#[derive(ClapArgs)]
pub(crate) struct ChainLimit {
    /// Name of the endpoint
    pub(crate) name: Name,
    /// Steps in a second: a step is a request, or 4096 bytes that it moves. With 0 no chain goes on
    pub(crate) steps: u64,
    /// The endpoint's network
    #[arg(long, value_name = "NETWORK", default_value = DEFAULT_NETWORK)]
    pub(crate) net: Name,
}
