//! JSON types of a router's API: requests and responses.

mod chain;
mod event;
mod network;
mod policy;
mod pool;
mod probe;
mod tunnel;

pub use chain::{
    ChainAction, ChainDetail, ChainFault, ChainInfo, ChainQueue, ChainSlot, ChainState, ChainStep, ControlChain,
    SetChainSteps, TraceChain,
};
pub use event::{Event, EventLevel, Events, ORDER};
pub use network::CreateNetwork;
pub use policy::ScopePolicy;
pub use pool::{AcquireEndpoints, PoolInfo, ReleaseEndpoints};
pub use probe::{PathAnswer, PathProbe, ProbePath};
pub use tunnel::{Tunnel, TunnelCounters, TunnelHost, TunnelRefusal, TunnelState};

use crate::{Endpoint, InterfaceName, Isolation, Labels, Name, Network, Quota, TunnelKey};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// Waiting strategy of a router's workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// They never sleep.
    Spin,
    /// They poll while there is work and sleep when there is none.
    #[default]
    Adaptive,
    /// They sleep whenever nothing is to be done at once.
    Sleep,
}

/// A router as a whole (`GET /v1/status`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// Version of the program.
    pub version: String,
    /// Process id of the router.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_seconds: f64,
    /// Name of its host.
    pub host: Name,
    /// The address by which other hosts reach it; none: there are no others.
    pub underlay: Option<IpAddr>,
    /// Its state directory.
    pub state_dir: PathBuf,
    /// Whether it makes no network namespaces.
    pub rootless: bool,
    /// Waiting strategy of its workers.
    pub mode: Mode,
    /// Worker threads.
    pub workers: usize,
    /// The preload library that it gives to endpoints.
    pub library: PathBuf,
    /// Endpoints.
    pub endpoints: usize,
    /// Open device contexts.
    pub contexts: usize,
    /// The cluster's store; none: the host is in no cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreState>,
}

/// State of the cluster's store, as a router sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoreState {
    /// Way to it.
    #[serde(flatten)]
    pub access: StoreAccess,
    /// Whether the host has joined the cluster since the router started.
    pub has_joined: bool,
    /// Whether the store has answered the last renewal of the host's leases.
    pub answers: bool,
    /// Seconds until others may be given this host's addresses, where the store does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenure_left_s: Option<u64>,
    /// Hosts that the store has lost, of which endpoints are known here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<AbsentHost>,
}

/// A host whose session with the store has ended: it is lost, or the store is out of its reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AbsentHost {
    /// Name of the host: that of its `rdmesh up --host`.
    pub host: Name,
    /// A network on which it has endpoints.
    pub network: Name,
    /// Number of those.
    pub endpoints: usize,
    /// Seconds until they are forgotten, and others may be given their addresses.
    pub left_s: u64,
}

/// Way to the cluster's store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoreAccess {
    /// Addresses of its members, as URLs without credentials.
    pub members: Vec<String>,
    /// Whether it is asked over TLS.
    pub is_encrypted: bool,
    /// Whether the router proves to it who it is, by a password or a certificate.
    pub is_authenticated: bool,
}

/// A new endpoint (`POST /v1/endpoints`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateEndpoint {
    /// Its name.
    pub name: Name,
    /// Its network, made if there is none of that name.
    pub network: Name,
    /// The number of the network, the same on all hosts; where none is given, what it has, or a free one.
    #[serde(default)]
    pub vni: Option<u32>,
    /// Its addresses, at most one of each family; where empty, the next free ones.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
    /// Limits on the objects of its programs.
    #[serde(default)]
    pub quota: Quota,
    /// The only user that may open its device.
    #[serde(default)]
    pub allowed_uid: Option<u32>,
    /// The event at which it is removed.
    #[serde(default)]
    pub lifetime: Lifetime,
    /// Whether the caller gets the endpoint of this name that is left of a process of the same user, with the devices that outlive
    /// that process. Without it they are ended.
    #[serde(default)]
    pub take_over: bool,
    /// Whether it gets a network namespace.
    #[serde(default)]
    pub isolation: Isolation,
    /// The network namespace that it gets instead of a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<Netns>,
    /// Name of the interface that it gets in its network namespace; where none is given, `eth0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<InterfaceName>,
    /// Labels, which its owner gives it.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
}

impl CreateEndpoint {
    /// A request for the endpoint `name` of `network` that stays until it is removed, with defaults for everything else.
    pub fn new(network: Name, name: Name) -> Self {
        Self {
            name,
            network,
            vni: None,
            addresses: Vec::new(),
            quota: Quota::default(),
            allowed_uid: None,
            lifetime: Lifetime::default(),
            take_over: false,
            isolation: Isolation::default(),
            netns: None,
            interface: None,
            labels: Labels::default(),
        }
    }
}

/// A network namespace that there is already.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Netns {
    /// An open descriptor of the process that asks, by its number.
    Descriptor(u32),
    /// A file, such as `/run/netns/NAME` or `/proc/PID/ns/net`, as the router sees it.
    Path(PathBuf),
}

/// Lifetime of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Lifetime {
    /// Until it is removed.
    #[default]
    Persistent,
    /// Until the process that asks for it ends.
    Caller,
}

/// An endpoint and its directory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EndpointInfo {
    /// The endpoint.
    #[serde(flatten)]
    pub endpoint: Endpoint,
    /// Its directory, to be mounted into containers.
    pub directory: PathBuf,
    /// Its network namespace.
    pub namespace: Option<PathBuf>,
    /// The control group whose processes are held to its addresses, where it shares the namespace with others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<PathBuf>,
}

/// Holds the processes of a control group to the addresses of an acquired endpoint (`PUT /v1/endpoints/{network}/{name}/cgroup`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConfineEndpoint {
    /// Directory of the control group (version 2), as the router sees it, such as that of a container.
    pub path: PathBuf,
}

/// Moves the devices of an endpoint to another worker (`PUT /v1/endpoints/{network}/{name}/worker`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MoveDevices {
    /// The worker, from 0.
    pub worker: u32,
    /// The only process whose devices move.
    #[serde(default)]
    pub pid: Option<i32>,
}

/// Devices that a worker serves now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MovedDevices {
    /// Their number.
    pub devices: usize,
}

/// An open device context (`GET /v1/contexts`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ContextInfo {
    /// Name of its endpoint.
    pub endpoint: Name,
    /// Name of the endpoint's network.
    pub network: Name,
    /// The process that opened it.
    pub pid: i32,
    /// That process's user.
    pub uid: u32,
    /// That process's name.
    pub command: String,
    /// The router's worker that serves it, from 0.
    #[serde(default)]
    pub worker: u32,
    /// Protection domains.
    pub pds: u32,
    /// Completion queues.
    pub cqs: u32,
    /// Shared receive queues.
    pub srqs: u32,
    /// Memory regions.
    pub mrs: u32,
    /// Memory windows.
    pub mws: u32,
    /// Bytes of registered memory.
    pub pinned_bytes: u64,
    /// Time for which rates have held the queue pairs of its endpoint.
    #[serde(default)]
    pub held: HeldSeconds,
    /// Queue pairs.
    pub qps: Vec<QpInfo>,
    /// Number of the device: no other of the endpoint has it.
    #[serde(default)]
    pub device: u32,
    /// Its lease, by which it outlives its program.
    #[serde(default)]
    pub lease: Option<LeaseInfo>,
}

/// Seconds for which an endpoint's queue pairs waited for a rate, by the level of its policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HeldSeconds {
    /// The rate of the whole host.
    pub host: f64,
    /// Of the tenant.
    pub tenant: f64,
    /// Of the endpoint.
    pub endpoint: f64,
    /// Of single queue pairs.
    pub qp: f64,
}

/// The lease of a device context.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LeaseInfo {
    /// Seconds for which the context outlives its program.
    pub term_seconds: f64,
    /// Seconds that are left, once the program has gone.
    pub left_seconds: Option<f64>,
}

/// Ends devices that have outlived their programs (`POST /v1/endpoints/{network}/{name}/lingering/end`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EndLingering {
    /// Number of the only device that ends.
    #[serde(default)]
    pub device: Option<u32>,
}

/// Devices that have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EndedDevices {
    /// Their number.
    pub devices: usize,
}

/// An identifier of rdma_cm: a listener, a connection, or one on its way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConnectionInfo {
    /// Name of its endpoint.
    pub endpoint: Name,
    /// Name of the endpoint's network.
    pub network: Name,
    /// The process that opened its channel.
    pub pid: i32,
    /// TCP, UDP, IB or IPOIB.
    pub port_space: String,
    /// RC, UC or UD.
    pub kind: String,
    /// IDLE, BOUND, RESOLVING, RESOLVED, JOINED, LISTEN, CONNECTING, REQUESTED, CONNECTED, SERVICE, DISCONNECTED or FAILED.
    pub state: String,
    /// Its local address.
    pub address: Option<SocketAddr>,
    /// Its peer.
    pub peer: Option<SocketAddr>,
    /// Its queue pair.
    pub qpn: Option<u32>,
}

/// A failed request of a program (`GET /v1/failed-requests`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FailedRequest {
    /// Name of its endpoint, which may have gone.
    pub endpoint: Name,
    /// Name of the endpoint's network.
    pub network: Name,
    /// The process that asked last.
    pub pid: i32,
    /// That process's name.
    pub command: String,
    /// The failed request, and the reason why it cannot work.
    pub what: String,
    /// The remedy, where there is one.
    pub fix: Option<String>,
    /// Number of times it failed.
    pub count: u64,
    /// Seconds since the last time.
    pub seconds_ago: f64,
}

/// A queue pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QpInfo {
    /// Its number.
    pub qpn: u32,
    /// RC, UC or UD.
    pub kind: String,
    /// Its state.
    pub state: String,
    /// The number of the queue pair that it is connected to.
    pub peer_qpn: Option<u32>,
    /// The address that it is connected to.
    pub peer: Option<String>,
    /// Messages sent.
    pub sent_messages: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Messages received.
    pub received_messages: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Retries.
    pub retries: u64,
    /// Path of its packets: `local`, `host ADDRESS` or `external`; none before it is connected, and for datagrams.
    pub path: Option<String>,
    /// The packet sequence number that it sends next.
    pub next_psn: u32,
    /// The oldest one that its peer has not acknowledged.
    pub unacked_psn: u32,
    /// The one that it expects next.
    pub expected_psn: u32,
    /// UDP source ports that its requests to another router leave by (`rdmesh up --paths`); 0 where it has none of its own.
    #[serde(default)]
    pub lanes: u8,
    /// Those of them that rest, because too much is lost there.
    #[serde(default)]
    pub resting_lanes: u8,
    /// Congestion control of its requests; none on this host, and for datagrams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion: Option<CongestionInfo>,
    /// Packets sent again.
    pub retransmitted: u64,
    /// Times a receiver was not ready.
    pub rnr_naks: u64,
    /// Packets received again.
    pub duplicates: u64,
    /// Packets received before their turn.
    pub out_of_order: u64,
    /// Congestion notifications sent.
    pub cnps_sent: u64,
    /// Congestion notifications received.
    pub cnps_received: u64,
}

/// Congestion control of a queue pair's requests to another host, as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CongestionInfo {
    /// The algorithm, which sets the window.
    pub control: CongestionControl,
    /// Packets that may be on their way.
    pub window: u32,
    /// Smoothed round trip, with the time in queues and until the peer's router answers; none before one was measured.
    pub round_trip_seconds: Option<f64>,
}

/// Congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CongestionControl {
    /// A window that narrows where many packets are lost, or wait for long.
    Window,
    /// HPCC: a window that follows the load that routers report (`rdmesh up --congestion-control hpcc`).
    Hpcc,
    /// The window, and a rate that follows congestion notifications: towards external peers.
    Dcqcn,
}

impl CongestionControl {
    /// Name in listings, as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Window => "window",
            Self::Hpcc => "hpcc",
            Self::Dcqcn => "dcqcn",
        }
    }
}

/// Address and key of another host (`PUT /v1/peers/{host}`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetPeer {
    /// Its router's address.
    pub address: IpAddr,
    /// The key that this host shares with it alone; none: the one that it has, or the one made of the mesh's secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<TunnelKey>,
}

/// All hosts without a key of their own have this secret (`PUT /v1/tunnel/key`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetMeshKey {
    /// The secret.
    pub key: TunnelKey,
}

/// An interface of the host becomes part of a network (`POST /v1/networks/{network}/interfaces`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AttachInterface {
    /// Its name.
    pub interface: String,
    /// The number of the network, if it is new.
    #[serde(default)]
    pub vni: Option<u32>,
}

/// Faults that the router injects into datagrams from other hosts (`/v1/faults`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FaultsText {
    /// The faults, as `loss=1%,duplicate=0.1%`; none: no faults.
    pub faults: Option<String>,
}

/// Endpoint whose packets are to be captured (`POST /v1/captures`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StartCapture {
    /// The endpoint's network.
    pub network: Name,
    /// The endpoint.
    pub endpoint: Name,
    /// Most bytes of each packet.
    pub snap_len: u32,
}

/// A capture that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Capture {
    /// Its number: `/v1/captures/{id}` is read again and again, and deleted at the end.
    pub id: u32,
}

/// A capture that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CaptureEnd {
    /// Packets that were lost because the capture was not read in time.
    pub lost: u64,
}

/// Counters of the router (`GET /v1/stats`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stats {
    /// Every counter and gauge, in the order of the metrics page.
    pub metrics: Vec<Metric>,
}

/// One number with its labels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Metric {
    /// Name, as on the metrics page.
    pub name: String,
    /// Labels.
    pub labels: std::collections::BTreeMap<String, String>,
    /// Value.
    pub value: f64,
}

/// Header of a request that another process passes on to the router: the name of who has asked. Those who reach the router's socket are
/// trusted with it.
pub const CALLER_HEADER: &str = "rdmesh-caller";

/// Error response of the API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ApiError {
    /// The error, and the remedy.
    pub error: String,
}

/// The networks of the router (`GET /v1/networks`).
pub type Networks = Vec<Network>;
