//! Arguments of `rdmesh chain`.

use super::{OutputOptions, TopOptions};
use clap::{Args as ClapArgs, Subcommand};
use rdmesh_fabric::{DEFAULT_NETWORK, Name};

#[derive(Subcommand)]
pub(crate) enum ChainCommand {
    /// List chains, with counts of the requests that they have executed
    Ls(OutputOptions),
    /// Show live rates of the requests that chains execute
    Top(TopOptions),
    /// Show a chain: its queues, what each waits for, and the requests in their slots
    Show(ShowChain),
    /// Record the requests that a chain executes, and show the last ones
    Trace(TraceOptions),
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
pub(crate) struct ShowChain {
    #[command(flatten)]
    pub(crate) chain: ChainOptions,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

#[derive(ClapArgs)]
pub(crate) struct TraceOptions {
    #[command(flatten)]
    pub(crate) chain: ChainOptions,
    /// Go on, until interrupted
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Seconds for which requests are recorded before they are shown
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, conflicts_with = "follow")]
    pub(crate) time: f64,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
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
