//! Options of commands for endpoints that stay until they are removed.

use super::{AcquireOptions, ConfineOptions, OutputOptions, PlaceOptions, ReleaseOptions};
use clap::{Args as ClapArgs, Subcommand};
use rdmesh_fabric::{DEFAULT_NETWORK, InterfaceName, Name};
use std::path::PathBuf;

#[derive(Subcommand)]
pub(crate) enum EndpointCommand {
    /// Make an endpoint
    Add(AddOptions),
    /// Remove an endpoint; programs that use it get errors
    Rm(RemoveOptions),
    /// Move the devices of its programs to another worker of the router, while they go on
    Move(MoveOptions),
    /// Take endpoints from a pool: they are ready at once
    Acquire(AcquireOptions),
    /// Hold the processes of a control group, such as a container's, to the address of an acquired endpoint
    Confine(ConfineOptions),
    /// Give endpoints back to their pool
    Release(ReleaseOptions),
    /// List endpoints
    Ls(OutputOptions),
}

#[derive(ClapArgs)]
pub(crate) struct MoveOptions {
    /// Name of the endpoint
    pub(crate) name: Name,
    /// Its network
    #[arg(long, value_name = "NETWORK", default_value = DEFAULT_NETWORK)]
    pub(crate) net: Name,
    /// Number of the worker, from 0
    #[arg(long, value_name = "N")]
    pub(crate) worker: u32,
    /// The only process whose devices move
    #[arg(long)]
    pub(crate) pid: Option<i32>,
}

#[derive(ClapArgs)]
pub(crate) struct AddOptions {
    /// Name of the endpoint
    pub(crate) name: Name,
    #[command(flatten)]
    pub(crate) place: PlaceOptions,
    /// The only user that may open its device [default: everybody to whom the directory is mounted]
    #[arg(long)]
    pub(crate) uid: Option<u32>,
    /// Make a network namespace for it too; containers have their own
    #[arg(long)]
    pub(crate) namespace: bool,
    /// Give this network namespace an interface with its address: /run/netns/NAME, /proc/PID/ns/net, or /dev/fd/N for an open
    /// descriptor. The namespace stays when the endpoint is removed, the interface goes
    #[arg(long, value_name = "FILE", conflicts_with = "namespace")]
    pub(crate) netns: Option<PathBuf>,
    /// Name of that interface, which the namespace must not have yet [default: eth0]
    #[arg(long, value_name = "NAME")]
    pub(crate) interface: Option<InterfaceName>,
    /// A label, by which others find it; may be given several times
    #[arg(long = "label", value_name = "KEY=VALUE")]
    pub(crate) labels: Vec<String>,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

#[derive(ClapArgs)]
pub(crate) struct RemoveOptions {
    /// Name of the endpoint
    pub(crate) name: Name,
    /// Its network
    #[arg(long, value_name = "NETWORK", default_value = DEFAULT_NETWORK)]
    pub(crate) net: Name,
}
