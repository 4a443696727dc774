//! Options of the router.

use super::STORE;
use clap::{Args as ClapArgs, ValueEnum};
use rdmesh_fabric::cluster::Terms;
use rdmesh_fabric::{Name, api};
use rdmesh_router::io::{Faults, NativeConfig};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

#[derive(ClapArgs, Clone)]
pub(crate) struct RouterOptions {
    /// Options in TOML, as `underlay = "192.0.2.1"`; those on the command line override them
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Make no network namespaces; needs no root
    #[arg(long)]
    pub(crate) rootless: bool,
    /// How workers wait for work
    #[arg(long, value_enum, default_value_t = Mode::Adaptive)]
    pub(crate) mode: Mode,
    /// Worker threads [default: chosen by the number of cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=255))]
    pub(crate) workers: Option<u16>,
    /// Name of this host, by which others know it [default: the system's]
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Option<Name>,
    /// This host's address towards the other hosts: endpoints reach theirs through it
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) underlay: Option<IpAddr>,
    /// The other hosts and their endpoints, in JSON: `rdmesh peer ls --json` prints such a file
    #[arg(long, value_name = "FILE", requires = "underlay")]
    pub(crate) peers: Option<PathBuf>,
    /// The cluster's store, as etcd://USER:PASSWORD@HOST:PORT,HOST:PORT?OPTIONS: hosts that share it find each other and each
    /// other's endpoints
    ///
    /// Options are `tls`, `ca=FILE`, `cert=FILE`, `key=FILE`, `password-file=FILE` and `timeout=SECONDS`, joined by `&`; files are
    /// absolute paths. Hosts authenticate each other by key pairs, whose public halves are in the store, unless all have the same
    /// --key.
    #[arg(long, value_name = "URL", requires = "underlay", conflicts_with = "peers", env = STORE, hide_env_values = true)]
    pub(crate) store: Option<String>,
    /// Times in the cluster, in seconds: after `session` the endpoints of a dead host are gone on all hosts, after `tenure` its
    /// addresses are free again, and an address that was given back rests for `quarantine`. And the number of addresses of each
    /// of its networks that this host keeps in `reserve`, for while the store is away
    #[arg(long, value_name = "TERMS", requires = "store", default_value_t = Terms::default())]
    pub(crate) terms: Terms,
    /// A secret that all hosts have, of which the key of each two is made: `rdmesh peer key` makes one
    #[arg(long, value_name = "FILE", requires = "underlay")]
    pub(crate) key: Option<PathBuf>,
    /// Authentication of RDMA packets between hosts
    #[arg(long, value_enum, default_value_t = Security::Psk)]
    pub(crate) underlay_security: Security,
    /// Recovery from the loss of packets between hosts whose routers can do both
    #[arg(long, value_enum, default_value_t = LossRecovery::Selective)]
    pub(crate) loss_recovery: LossRecovery,
    /// UDP source ports over which each reliable connection to another host spreads its packets, so that a network with several
    /// equal paths (ECMP) carries them on all [default: 1]
    #[arg(long, value_name = "N", default_value_t = 1, hide_default_value = true, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) paths: u8,
    /// Congestion control of reliable connections to other hosts
    #[arg(long, value_enum, default_value_t = CongestionControl::Window)]
    pub(crate) congestion_control: CongestionControl,
    /// Rate in bits a second at which packets of other hosts can arrive, as the network or its provider allows: 10G. Hosts with
    /// `--congestion-control hpcc` stay just below it
    #[arg(long, value_name = "BITS", requires = "underlay", value_parser = super::policy::rate)]
    pub(crate) underlay_rate: Option<u64>,
    /// Let only the router and the kernel send to the ports of the tunnel and of VXLAN from this host (needs nftables)
    #[arg(long, requires = "underlay", conflicts_with = "rootless")]
    pub(crate) firewall: bool,
    /// On SIGTERM or SIGINT leave endpoints to the next router, as after a crash; `rdmesh down` removes them all the same
    #[arg(long)]
    pub(crate) keep_endpoints: bool,
    /// Former name of `--underlay-security none`
    #[arg(long, hide = true)]
    pub(crate) insecure: bool,
    /// TCP address at which /metrics can be read, by everybody who reaches it: 127.0.0.1:9469, or one of a network for that
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Faults to begin with, see `rdmesh faults`
    #[arg(long, value_name = "FAULTS")]
    pub(crate) faults: Option<Faults>,
    /// How endpoints of this host reach each other; anything but memory is for tests
    #[arg(long, value_enum, default_value_t = LocalPath::Memory)]
    pub(crate) local_path: LocalPath,
    /// Leave the terminal's session; set by `rdmesh up`
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
}

impl RouterOptions {
    /// Connections to other hosts.
    pub(crate) fn native(&self) -> NativeConfig {
        NativeConfig {
            recovery: self.loss_recovery.into(),
            lanes: self.paths,
            congestion: self.congestion_control.into(),
            link_rate: self.underlay_rate.map_or(0, |bits| bits.div_ceil(1_000_000).try_into().unwrap_or(u32::MAX)),
            ..NativeConfig::default()
        }
    }

    /// Whether packets of other hosts are believed without proof.
    pub(crate) fn is_insecure(&self) -> bool {
        self.insecure || matches!(self.underlay_security, Security::None)
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Security {
    /// Their sender, by a tag with a key that the hosts share: from --key, `rdmesh peer add --key`, or the store
    Psk,
    /// Nothing: every sender that uses the address of a host is believed
    None,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum LossRecovery {
    /// Only what is lost is sent again
    Selective,
    /// Everything from the lost packet on is sent again, as to external peers
    GoBackN,
}

impl From<LossRecovery> for rdmesh_router::io::LossRecovery {
    fn from(recovery: LossRecovery) -> Self {
        match recovery {
            LossRecovery::Selective => Self::Selective,
            LossRecovery::GoBackN => Self::GoBackN,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum CongestionControl {
    /// A window that narrows where many packets are lost, or wait for long
    Window,
    /// A window that follows the load of the links into hosts, as their routers report it, so that queues stay short
    Hpcc,
}

impl From<CongestionControl> for rdmesh_router::io::CongestionControl {
    fn from(control: CongestionControl) -> Self {
        match control {
            CongestionControl::Window => Self::Window,
            CongestionControl::Hpcc => Self::Hpcc,
        }
    }
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
pub(crate) enum LocalPath {
    /// Through shared memory
    Memory,
    /// Through the tunnel, as endpoints of two hosts; needs --underlay
    Tunnel,
    /// By plain RoCEv2, as external peers
    Plain,
}

impl From<LocalPath> for rdmesh_router::daemon::LocalPath {
    fn from(path: LocalPath) -> Self {
        match path {
            LocalPath::Memory => Self::Memory,
            LocalPath::Tunnel => Self::Tunnel,
            LocalPath::Plain => Self::Plain,
        }
    }
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
