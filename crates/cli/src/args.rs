//! The command line.

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use rdmesh_fabric::{DEFAULT_NETWORK, Name, Quota, api};
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

/// RDMA for unprivileged programs: a virtual device for every container, process and function of a host
#[derive(Parser)]
#[command(version, after_help = FIRST_STEPS)]
pub(crate) struct Args {
    /// Where the router keeps its files [default: $RDMESH_STATE; /run/rdmesh as root, else a directory of the user's own]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Start the router in the background
    Up(UpOptions),
    /// Be the router, in the foreground
    Router(RouterOptions),
    /// Stop the router; all endpoints are removed
    Down,
    /// Run a program on an endpoint of its own, which goes when the program ends
    Run(RunOptions),
    /// Endpoints that stay until they are removed, for containers
    #[command(subcommand)]
    Endpoint(EndpointCommand),
    /// Print the options that give a container an endpoint: `docker run $(rdmesh container-args a) IMAGE …`
    ContainerArgs(ContainerOptions),
    /// Write a CDI file, for container engines that read such files
    Cdi(CdiOptions),
    /// List endpoints, open devices and queue pairs
    Ps(OutputOptions),
    /// Watch what every program sends and receives
    Top(TopOptions),
    /// Show counters
    Stats(OutputOptions),
    /// Look for what is missing or misconfigured, and say how to fix it
    Doctor(OutputOptions),
}

#[derive(ClapArgs, Clone)]
pub(crate) struct RouterOptions {
    /// Make no network namespaces; needs no root
    #[arg(long)]
    pub(crate) rootless: bool,
    /// How workers wait for work
    #[arg(long, value_enum, default_value_t = Mode::Adaptive)]
    pub(crate) mode: Mode,
    /// Worker threads [default: chosen by the number of cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) workers: Option<u16>,
    /// Leave the terminal's session; set by `rdmesh up`
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
}

#[derive(ClapArgs)]
pub(crate) struct UpOptions {
    #[command(flatten)]
    pub(crate) router: RouterOptions,
    /// Stay in the foreground
    #[arg(long)]
    pub(crate) foreground: bool,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Mode {
    /// Never sleep: lowest latency, one core each
    Spin,
    /// Poll while there is work, sleep when there is none
    Adaptive,
    /// Sleep whenever there is nothing to do at once
    Sleep,
}

impl From<Mode> for api::Mode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Spin => Self::Spin,
            Mode::Adaptive => Self::Adaptive,
            Mode::Sleep => Self::Sleep,
        }
    }
}

/// What a new endpoint is to be like.
#[derive(ClapArgs, Clone)]
pub(crate) struct PlaceOptions {
    /// Its network, made on first use
    #[arg(long, value_name = "NETWORK", default_value = DEFAULT_NETWORK)]
    pub(crate) net: Name,
    /// Its address; may be given twice, for IPv4 and IPv6 [default: the next free one]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) ip: Vec<IpAddr>,
    #[command(flatten)]
    pub(crate) quota: QuotaOptions,
}

#[derive(ClapArgs, Clone, Default)]
#[command(next_help_heading = "Limits")]
pub(crate) struct QuotaOptions {
    /// Open devices
    #[arg(long, value_name = "N")]
    max_contexts: Option<u32>,
    /// Queue pairs
    #[arg(long, value_name = "N")]
    max_qps: Option<u32>,
    /// Completion queues
    #[arg(long, value_name = "N")]
    max_cqs: Option<u32>,
    /// Memory regions and windows
    #[arg(long, value_name = "N")]
    max_mrs: Option<u32>,
    /// Bytes of registered memory
    #[arg(long, value_name = "BYTES")]
    max_pinned: Option<u64>,
    /// Mappings that the router makes: queues, and pieces of memory regions
    #[arg(long, value_name = "N")]
    max_mappings: Option<u32>,
}

impl QuotaOptions {
    pub(crate) fn quota(&self) -> Quota {
        let default = Quota::default();
        Quota {
            contexts: self.max_contexts.unwrap_or(default.contexts),
            qps: self.max_qps.unwrap_or(default.qps),
            cqs: self.max_cqs.unwrap_or(default.cqs),
            mrs: self.max_mrs.unwrap_or(default.mrs),
            pinned_bytes: self.max_pinned.unwrap_or(default.pinned_bytes),
            mappings: self.max_mappings.unwrap_or(default.mappings),
        }
    }
}

#[derive(ClapArgs)]
pub(crate) struct RunOptions {
    /// Name of the endpoint [default: made from the process id]
    #[arg(long)]
    pub(crate) name: Option<Name>,
    #[command(flatten)]
    pub(crate) place: PlaceOptions,
    /// Stay in the present network namespace; needs no root with a router started by `rdmesh up --rootless`
    #[arg(long)]
    pub(crate) host_network: bool,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Subcommand)]
pub(crate) enum EndpointCommand {
    /// Make an endpoint
    Add(AddOptions),
    /// Remove an endpoint; programs that use it get errors
    Rm(RemoveOptions),
    /// List endpoints
    Ls(OutputOptions),
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

#[derive(ClapArgs)]
pub(crate) struct ContainerOptions {
    /// Name of the endpoint, made if there is none
    pub(crate) name: Name,
    #[command(flatten)]
    pub(crate) place: PlaceOptions,
}

#[derive(ClapArgs)]
pub(crate) struct CdiOptions {
    /// Names of the endpoints, made if there are none [default: all persistent endpoints of all networks]
    pub(crate) names: Vec<Name>,
    /// Network of the named endpoints
    #[arg(long, value_name = "NETWORK", default_value = DEFAULT_NETWORK)]
    pub(crate) net: Name,
    /// The file to write; `-` prints it
    #[arg(long, value_name = "FILE", default_value = "/etc/cdi/rdmesh.json")]
    pub(crate) output: PathBuf,
}

#[derive(ClapArgs)]
pub(crate) struct OutputOptions {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `rdmesh top`.
#[derive(Debug, clap::Args)]
pub(crate) struct TopOptions {
    /// Seconds between two looks
    #[arg(long, default_value_t = 1.0)]
    pub(crate) interval: f64,
    /// End after so many
    #[arg(long)]
    pub(crate) count: Option<u64>,
}

const FIRST_STEPS: &str = "\
First steps, as root:
  rdmesh up
  rdmesh run --name a -- ib_write_bw &
  rdmesh run --name b -- ib_write_bw 10.77.0.2

Without root:
  rdmesh up --rootless
  rdmesh run --host-network -- ibv_devinfo -v

When something does not work: rdmesh doctor";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn what_follows_the_dashes_is_the_programs_own() {
        let args = Args::parse_from(["rdmesh", "run", "--net", "blue", "--ip", "10.7.0.2", "--", "ls", "--ip", "-l"]);
        let Command::Run(options) = args.command else { panic!("not run") };
        assert_eq!(options.command, ["ls", "--ip", "-l"]);
        assert_eq!(options.place.ip.len(), 1);
    }
}
