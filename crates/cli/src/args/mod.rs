//! Command-line arguments.

mod chain;
mod declare;
mod endpoint;
mod file;
mod group;
mod policy;
mod pool;
mod router;
mod run;
mod serve;
mod trace;

pub(crate) use chain::{ChainCommand, ChainLimit, ChainOptions, ShowChain, TraceOptions};
use clap::{Args as ClapArgs, Parser, Subcommand};
pub(crate) use declare::{ApplyOptions, Format, GetOptions, Kind};
pub(crate) use endpoint::{AddOptions, EndpointCommand, MoveOptions, RemoveOptions};
pub(crate) use file::expand;
pub(crate) use group::{AddNetwork, GroupCommand, GroupName, TenantCommand};
pub(crate) use policy::PolicyCommand;
pub(crate) use pool::{
    AcquireOptions, ConfineOptions, PoolCommand, PoolKey, PoolOptions, ReleaseOptions, ResizeOptions,
};
use rdmesh_fabric::{DEFAULT_NETWORK, Name, Quota};
pub(crate) use router::{RouterOptions, UpOptions};
pub(crate) use run::{AccelOptions, MpiOptions, RunOptions, VmOptions};
pub(crate) use serve::{GatewayOptions, PageOptions};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;
pub(crate) use trace::{EndpointPath, PathOptions, Target};

/// RDMA for unprivileged programs: a virtual device for every container, process and function of a host
#[derive(Parser)]
#[command(name = "rdmesh", version, after_help = FIRST_STEPS)]
pub(crate) struct Args {
    /// Directory of the router's files [default: $RDMESH_STATE; /run/rdmesh as root, else a directory of the user's own]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) router: Router,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The router that is asked.
#[derive(ClapArgs)]
pub(crate) struct Router {
    /// Ask the router behind this gateway, such as https://host1.example:7443, instead of the one of this host [default: $RDMESH_GATEWAY]
    #[arg(long, value_name = "URL")]
    pub(crate) gateway: Option<String>,
    /// Directory with cert.pem, key.pem and ca.pem for --gateway [default: $RDMESH_CREDENTIALS, or rdmesh in the user's configuration]
    #[arg(long, value_name = "DIR")]
    pub(crate) credentials: Option<PathBuf>,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Start the router in the background
    #[command(args_override_self = true)]
    Up(UpOptions),
    /// Run the router in the foreground
    #[command(args_override_self = true)]
    Router(RouterOptions),
    /// Stop the router; all endpoints are removed
    Down,
    /// Run a program on an endpoint of its own, which goes when the program ends
    Run(RunOptions),
    /// Run a virtual machine on an endpoint of its own: its programs see the RDMA device, its interface has the endpoint's addresses
    ///
    /// Example: rdmesh vm --name a --memory 2G -- qemu-system-x86_64 -enable-kvm -drive file=debian.qcow2
    Vm(VmOptions),
    /// Run a program whose TCP connections to other such programs of this host and user go over shared memory
    Accel(AccelOptions),
    /// Run an MPI launcher whose ranks send large messages by RDMA, from the sender's buffer into the receiver's, whatever MPI
    /// itself uses
    ///
    /// Example: rdmesh run --name a -- rdmesh mpi -- mpirun --host 10.7.0.2,10.7.0.3 ./program
    Mpi(MpiOptions),
    /// Endpoints that stay until they are removed, for containers
    #[command(subcommand)]
    Endpoint(EndpointCommand),
    /// Endpoints made ahead of their use, a thousand at about the cost of one
    #[command(subcommand)]
    Pool(PoolCommand),
    /// The other hosts, and their endpoints
    #[command(subcommand)]
    Peer(PeerCommand),
    /// The key pair by which the hosts of a store know this one
    #[command(subcommand)]
    Key(KeyCommand),
    /// Chains: groups of queues whose requests change requests, and go on without their program
    #[command(subcommand)]
    Chain(ChainCommand),
    /// Devices that outlive their programs: `rdmesh run --linger`
    #[command(subcommand)]
    Linger(LingerCommand),
    /// Owners of networks, and their limits
    #[command(subcommand)]
    Tenant(TenantCommand),
    /// Security groups: who may connect to whom within a network
    #[command(subcommand)]
    Group(GroupCommand),
    /// Rates, priorities and weights of hosts, tenants and endpoints
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Networks, and interfaces of the host that are part of one
    #[command(subcommand)]
    Network(NetworkCommand),
    /// Make tenants, networks, groups, policies, pools and endpoints what a file says; what is not in it stays as it is
    ///
    /// Example: rdmesh apply -f site.yaml --dry-run
    Apply(ApplyOptions),
    /// Print tenants, networks, groups, policies, pools and endpoints in the form that `rdmesh apply` reads
    ///
    /// Example: rdmesh get networks groups > site.yaml
    Get(GetOptions),
    /// Capture an endpoint's RDMA packets in a pcap file, packets within the host included
    Capture(CaptureOptions),
    /// Inject loss, duplicates, reordering and corruption into traffic from other hosts
    Faults(FaultsOptions),
    /// Print the options that give a container an endpoint: `docker run $(rdmesh container-args a) IMAGE …`
    ContainerArgs(ContainerOptions),
    /// Write a CDI file, for container engines that read such files
    Cdi(CdiOptions),
    /// List endpoints, open devices and queue pairs
    Ps(PsOptions),
    /// Show the path from an endpoint of this host to another endpoint, hop by hop: what lets packets through, and the time that each hop takes
    ///
    /// The routers answer the probes: no program has to run at the other end. The exit status is 1 if nothing gets through.
    ///
    /// Example: rdmesh trace blue/a blue/b
    Trace(PathOptions),
    /// List connections of accelerated programs: the path of their bytes, and the reason for it
    Sockets(OutputOptions),
    /// Show live throughput of every program
    ///
    /// On a terminal a view of the whole screen, which keys sort, filter and pause; with --count, or to a file, a table after each interval.
    ///
    /// Example: rdmesh top --interval 0.5
    Top(TopOptions),
    /// Print what has happened on this host: endpoints, hosts, faults, and who has asked the router for which change
    ///
    /// Example: rdmesh events --follow
    Events(EventsOptions),
    /// Show counters
    Stats(OutputOptions),
    /// Serve a page about the router to a browser on this host: endpoints, queue pairs, traffic, limits and events, live
    ///
    /// Prints the page's address, whose key keeps other users of the host out, and serves it until it is ended. From another machine:
    /// ssh -L 8080:127.0.0.1:8080 HOST, with the same port as in --listen.
    ///
    /// Example: rdmesh page --listen 127.0.0.1:8080
    Page(PageOptions),
    /// Serve the router's API to other machines by mutual TLS, with roles
    ///
    /// Callers need a certificate of --client-ca. Its organization (O) is their role: rdmesh:admin, rdmesh:reader or rdmesh:tenant:NAME;
    /// its common name (CN) is in the log beside what they order. Serves until it is ended.
    ///
    /// Example: rdmesh gateway --listen 0.0.0.0:7443 --cert host.pem --key host.key --client-ca ca.pem
    Gateway(GatewayOptions),
    /// Check the host and the router for faults, and list programs' failed requests, each with its remedy
    Doctor(DoctorOptions),
    /// Write an archive for a bug report: the router's log, state and counters, and the host's settings, without secrets
    ///
    /// Example: rdmesh diagnose --output report.tar.gz
    Diagnose(DiagnoseOptions),
    /// Print the completion script of a shell
    ///
    /// Example: rdmesh completion bash > /etc/bash_completion.d/rdmesh
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
}

impl Command {
    /// Whether it has to do with processes, files or namespaces of the host on which it runs.
    pub(crate) fn is_for_own_host(&self) -> bool {
        matches!(
            self,
            Self::Up(_)
                | Self::Router(_)
                | Self::Down
                | Self::Run(_)
                | Self::Vm(_)
                | Self::Accel(_)
                | Self::Mpi(_)
                | Self::ContainerArgs(_)
                | Self::Cdi(_)
                | Self::Sockets(_)
                | Self::Gateway(_)
                | Self::Doctor(_)
                | Self::Diagnose(_)
        )
    }
}

/// Options of a new endpoint.
#[derive(ClapArgs, Clone)]
pub(crate) struct PlaceOptions {
    /// Its network, made on first use
    #[arg(long, value_name = "NETWORK", default_value = DEFAULT_NETWORK)]
    pub(crate) net: Name,
    /// Its address; may be given twice, for IPv4 and IPv6 [default: the next free one]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) ip: Vec<IpAddr>,
    /// Number of its network, which must be the same on all hosts [default: what it has, or a free one]
    #[arg(long, value_name = "N")]
    pub(crate) vni: Option<u32>,
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
    /// Seconds for which a device may outlive its program [default: none, or what --linger asks for]
    #[arg(long, value_name = "SECONDS")]
    max_linger: Option<u32>,
    /// Bytes of registered memory that devices which outlive their programs may keep
    #[arg(long, value_name = "BYTES")]
    max_linger_bytes: Option<u64>,
    /// Steps of chains in a second; `rdmesh chain limit` changes it
    #[arg(long, value_name = "N")]
    max_chain_steps: Option<u64>,
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
            linger_seconds: self.max_linger.unwrap_or(default.linger_seconds),
            linger_bytes: self.max_linger_bytes.unwrap_or(default.linger_bytes),
            chain_steps: self.max_chain_steps.unwrap_or(default.chain_steps),
        }
    }

    /// The same, where a term that is asked for is granted unless another limit is named.
    pub(crate) fn with_linger(&self, term: Option<Duration>) -> Quota {
        let seconds = |term: Duration| u32::try_from(term.as_millis().div_ceil(1000)).unwrap_or(u32::MAX);
        let granted = self.max_linger.or(term.map(seconds));
        let quota = self.quota();
        Quota { linger_seconds: granted.unwrap_or(quota.linger_seconds), ..quota }
    }
}

#[derive(Subcommand)]
pub(crate) enum LingerCommand {
    /// List devices that outlive their programs, and what is left of their terms
    Ls(OutputOptions),
    /// End devices that have outlived their programs
    End(LingerOptions),
}

#[derive(ClapArgs)]
pub(crate) struct LingerOptions {
    /// Name of their endpoint
    pub(crate) name: Name,
    /// The endpoint's network
    #[arg(long, value_name = "NETWORK", default_value = DEFAULT_NETWORK)]
    pub(crate) net: Name,
    /// Number of the only one, as `rdmesh linger ls` shows it
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<u32>,
}

#[derive(Subcommand)]
pub(crate) enum KeyCommand {
    /// Replace this host's key pair, whose public half is in the store; the one before is accepted until all hosts know the new one
    Rotate,
}

#[derive(Subcommand)]
pub(crate) enum PeerCommand {
    /// Add another host, or change its address or its key
    Add {
        /// Its name: that of its `rdmesh up --host`
        host: Name,
        /// Its router's address: that of its `rdmesh up --underlay`
        address: IpAddr,
        /// The key that both hosts have, in a file that only its owner can read, or `-` for the standard input [default:
        /// what `rdmesh up --key` gave to all]
        #[arg(long, value_name = "FILE")]
        key: Option<PathBuf>,
    },
    /// Print a new key, for a file that is given to both hosts, or to all
    Key,
    /// Replace a key; the one before is accepted until the other host has the new one
    Rotate {
        /// The host whose key it is [default: the secret of all hosts, see `rdmesh up --key`]
        host: Option<Name>,
        /// The new key, in a file that only its owner can read, or `-` for the standard input
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
    },
    /// Add an endpoint of another host
    Endpoint(PeerEndpointOptions),
    /// Remove another host, or one of its endpoints
    Rm {
        /// Its name
        host: Name,
        /// Only the endpoint with this address
        address: Option<IpAddr>,
        /// That endpoint's network
        #[arg(long, value_name = "NETWORK", default_value = DEFAULT_NETWORK, requires = "address")]
        net: Name,
    },
    /// List the other hosts and their endpoints
    Ls(OutputOptions),
}

#[derive(ClapArgs)]
pub(crate) struct PeerEndpointOptions {
    /// Name of its host
    pub(crate) host: Name,
    /// Its network
    #[arg(long, value_name = "NETWORK", default_value = DEFAULT_NETWORK)]
    pub(crate) net: Name,
    /// Number of its network, which must be the same on all hosts; needed where the network is not known yet
    #[arg(long, value_name = "N")]
    pub(crate) vni: Option<u32>,
    /// Its addresses, in the order that they have there
    #[arg(required = true, num_args = 1..=2, value_name = "ADDRESS")]
    pub(crate) addresses: Vec<IpAddr>,
}

#[derive(Subcommand)]
pub(crate) enum NetworkCommand {
    /// Make a network, for a tenant or with ranges of one's own; others are made when they are first named
    Add(AddNetwork),
    /// Remove a network that nothing is on: no endpoint, pool or interface, on any host
    ///
    /// Its security groups go with it, and the policies of its endpoints.
    Rm {
        /// Name of the network; `rdmesh network ls` lists them
        network: Name,
    },
    /// Move an interface of the host (a NIC, tap or veth) into a network: endpoints reach what is behind it
    Attach {
        /// The network, made if there is none of that name
        network: Name,
        /// The interface; the addresses that it has on the host are lost
        interface: String,
        /// Number of the network, if it is new
        #[arg(long, value_name = "N")]
        vni: Option<u32>,
    },
    /// Move an interface back to the host
    Detach {
        /// The network
        network: Name,
        /// The interface
        interface: String,
    },
    /// List networks
    Ls(OutputOptions),
}

#[derive(ClapArgs)]
pub(crate) struct FaultsOptions {
    /// Faults, comma-separated: `loss=1%,burst=0.1%/5,duplicate=0.1%,reorder=0.5%,corrupt=0.1%,ce=1%,seed=7`; or `off`
    /// [default: print the present faults]
    #[arg(value_name = "FAULTS")]
    pub(crate) faults: Option<String>,
}

#[derive(ClapArgs)]
pub(crate) struct PsOptions {
    #[command(flatten)]
    pub(crate) output: OutputOptions,
    /// Show more: sequence numbers of the queue pairs, what the network did to their packets, and the tunnel to other hosts
    #[arg(long)]
    pub(crate) wide: bool,
}

#[derive(ClapArgs)]
pub(crate) struct ContainerOptions {
    /// Name of the endpoint, made if there is none
    pub(crate) name: Name,
    /// Let programs load the library for faster sockets, too
    #[arg(long)]
    pub(crate) accel: bool,
    /// For podman: the container joins the endpoint's own network namespace, so that it has the endpoint's address for IP, too
    #[arg(long)]
    pub(crate) podman: bool,
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
    /// Let programs load the library for faster sockets, too
    #[arg(long)]
    pub(crate) accel: bool,
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

/// Options of `rdmesh doctor`.
#[derive(ClapArgs)]
pub(crate) struct DoctorOptions {
    /// Check the path to this address instead
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) to: Option<IpAddr>,
    /// Endpoint at the beginning of the path
    #[arg(long, value_name = "NAME", requires = "to")]
    pub(crate) endpoint: Option<Name>,
    /// Network of that endpoint
    #[arg(long, value_name = "NETWORK", default_value = DEFAULT_NETWORK, requires = "to")]
    pub(crate) net: Name,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// Options of `rdmesh diagnose`.
#[derive(Debug, clap::Args)]
pub(crate) struct DiagnoseOptions {
    /// The archive, which must not exist yet [default: rdmesh-diagnosis-HOST-TIME.tar.gz]
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// Options of `rdmesh capture`.
#[derive(Debug, clap::Args)]
pub(crate) struct CaptureOptions {
    /// The endpoint
    pub(crate) name: Name,
    /// Its network
    #[arg(long, default_value = DEFAULT_NETWORK)]
    pub(crate) net: Name,
    /// The file; without it, or for `-`, the standard output, as `wireshark -k -i -` reads it
    #[arg(long, short, value_name = "FILE")]
    pub(crate) write: Option<PathBuf>,
    /// Most bytes of each packet
    #[arg(long, value_name = "BYTES", default_value_t = 256)]
    pub(crate) snap_len: u32,
    /// Duration of the capture [default: until interrupted]
    #[arg(long)]
    pub(crate) seconds: Option<f64>,
}

/// Options of `rdmesh events`.
#[derive(Debug, clap::Args)]
pub(crate) struct EventsOptions {
    /// Go on, and print events as they happen
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// One JSON object for each event, on a line of its own
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `rdmesh top`.
#[derive(Debug, clap::Args)]
pub(crate) struct TopOptions {
    /// Seconds between two updates
    #[arg(long, default_value_t = 1.0)]
    pub(crate) interval: f64,
    /// Number of updates, as tables [default: until interrupted]
    #[arg(long)]
    pub(crate) count: Option<u64>,
}

/// A time such as `30s`, `5m`, `250ms` or `2h`; a number alone is seconds.
fn term(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let millis = match unit {
        "ms" => 1,
        "s" | "" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err("a time has a unit of ms, s, m or h".to_owned()),
    };
    let number = number.parse::<u64>().ok().and_then(|number| number.checked_mul(millis));
    number.map(Duration::from_millis).ok_or_else(|| "no time: try 30s".to_owned())
}

/// Environment variable with the URL of the cluster's store.
pub(crate) const STORE: &str = "RDMESH_STORE";
const FIRST_STEPS: &str = "\
First steps, as root:
  rdmesh up
  rdmesh run --name a -- ib_write_bw &
  rdmesh run --name b -- ib_write_bw 10.77.0.2

On two hosts, 192.0.2.1 and 192.0.2.2, the same with the names exchanged on the other one:
  (umask 077; rdmesh peer key > mesh.key)   # on one of them; give the file to both
  rdmesh up --host a --underlay 192.0.2.1 --key mesh.key
  rdmesh peer add b 192.0.2.2
  rdmesh peer endpoint b --net blue --vni 7 10.7.0.3
  rdmesh run --net blue --vni 7 --ip 10.7.0.2 -- ib_write_bw

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
    fn a_term_has_a_unit() {
        let millis = |text| term(text).map(|term| term.as_millis());
        assert_eq!(["250ms", "30s", "5m", "2h", "7"].map(millis), [250, 30_000, 300_000, 7_200_000, 7000].map(Ok));
        assert!(["", "s", "3d", "-1s", "1.5s", "99999999999999999999h"].map(term).iter().all(Result::is_err));
    }

    #[test]
    fn what_follows_the_dashes_is_the_programs_own() {
        let args = Args::parse_from(["rdmesh", "run", "--net", "blue", "--ip", "10.7.0.2", "--", "ls", "--ip", "-l"]);
        let Command::Run(options) = args.command else { panic!("not run") };
        assert_eq!(options.command, ["ls", "--ip", "-l"]);
        assert_eq!(options.place.ip.len(), 1);
    }
}
