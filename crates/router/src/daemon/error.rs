//! Errors of the host's operations.

use crate::endpoint::{EndpointError, LibraryError};
use crate::session::{ChainError, MoveError};
use crate::worker::StartError;
use rdmesh_fabric::cluster::ClusterError;
use rdmesh_fabric::{Name, PolicyScope, RegistryError, StateError};
use rdmesh_overlay::{ConfineError, Errors, FirewallError, OverlayError, UnderlayError};
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

/// Error of an operation on the host.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Names and addresses.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The store of this router, or that of an earlier one.
    #[error("{}: {source}", .path.display())]
    Store {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file of single hosts' keys.
    #[error(transparent)]
    State(#[from] StateError),
    /// It is not what a router writes.
    #[error("{} holds no keys: remove it, and give the hosts theirs again with `rdmesh peer rotate HOST --key FILE`", .0.display())]
    Keys(PathBuf),
    /// Network namespaces.
    #[error(transparent)]
    Overlay(#[from] OverlayError),
    /// The endpoint's directory.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The cluster.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// It has not been reached since the router was started.
    #[error("this host has not joined the cluster yet: the store may be out of reach, and the router's log says why")]
    NotJoined,
    /// It does not answer, and nothing that this host has in reserve would do.
    #[error("the cluster's store does not answer: traffic goes on, but this needs it (the router's log says why)")]
    StoreAway,
    /// The preload library.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// Devices were to move to another worker.
    #[error(transparent)]
    Move(#[from] MoveError),
    /// A chain was given an order.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// An endpoint with devices that outlive their programs cannot be taken over.
    #[error(
        "endpoint `{name}` of network `{network}` cannot be taken over: {why}. End its devices with `rdmesh linger end {name} \
         --net {network}`, or leave out --take-over"
    )]
    Lingering {
        /// Its name.
        name: Name,
        /// Its network.
        network: Name,
        /// The cause.
        why: NotTakenOver,
    },
    /// It is taken from a pool, and made with one.
    #[error(
        "an endpoint of a pool is not made alone: `rdmesh pool create` makes a pool, `rdmesh endpoint acquire` takes one from it"
    )]
    MissingPool,
    /// It goes back to its pool, or with it.
    #[error(
        "endpoint `{name}` is one of pool `{pool}`: `rdmesh endpoint release {name}` gives it back, `rdmesh pool resize` and \
         `rdmesh pool rm` remove endpoints"
    )]
    OfPool {
        /// The endpoint.
        name: Name,
        /// Its pool.
        pool: Name,
    },
    /// There is no such pool on this host.
    #[error("there is no pool `{name}` on network `{network}` here: `rdmesh pool ls` lists those there are")]
    NoSuchPool {
        /// The name that was asked for.
        name: Name,
        /// The network that was asked for.
        network: Name,
    },
    /// A pool that has fewer endpoints to give.
    #[error(
        "pool `{name}` has {ready} endpoints ready, and {resting} that rest: {asked} were asked for; `rdmesh pool resize` makes more"
    )]
    PoolEmpty {
        /// The pool.
        name: Name,
        /// Endpoints that it could give.
        ready: usize,
        /// Endpoints that were released a moment ago.
        resting: usize,
        /// Endpoints that were asked for.
        asked: usize,
    },
    /// A pool whose endpoints are in use.
    #[error("{acquired} endpoints of pool `{name}` are acquired: `rdmesh endpoint release` gives them back")]
    PoolInUse {
        /// The pool.
        name: Name,
        /// Endpoints in use.
        acquired: usize,
    },
    /// Limits of a pool that is there do not change.
    #[error("pool `{0}` has other limits or another user: remove it with `rdmesh pool rm`, and make it anew")]
    PoolDiffers(Name),
    /// Programs of a pool's endpoints cannot be held to their addresses.
    #[error(
        "programs cannot be held to the addresses of `{name}`: {source}; `rdmesh pool create --share-addresses` makes a pool whose programs may use each other's"
    )]
    Unconfined {
        /// The pool, or the endpoint.
        name: Name,
        /// Prerequisite that the host lacks.
        source: ConfineError,
    },
    /// A process is the program of one endpoint at most.
    #[error("`enters` is for one endpoint with lifetime `caller`")]
    EntersOne,
    /// An endpoint with a namespace of its own needs no discipline.
    #[error("endpoint `{0}` is of no pool: no other endpoint's programs are in its network namespace")]
    OfNoPool(Name),
    /// An endpoint has one control group.
    #[error("endpoint `{name}` has a control group already: {}", path.display())]
    Confined {
        /// The endpoint.
        name: Name,
        /// Directory of the control group that it has.
        path: PathBuf,
    },
    /// It is not in use.
    #[error("endpoint `{name}` of pool `{pool}` is not acquired")]
    NotAcquired {
        /// The endpoint.
        name: Name,
        /// The pool.
        pool: Name,
    },
    /// There is no policy of that scope.
    #[error("there is no policy of `{0}`: `rdmesh policy ls` lists those there are")]
    NoSuchPolicy(PolicyScope),
    /// There is no such security group.
    #[error("there is no group `{name}` on network `{network}`: `rdmesh group ls` lists those there are")]
    NoSuchGroup {
        /// Its name.
        name: Name,
        /// Its network.
        network: Name,
    },
    /// A namespace was asked for that this router cannot make.
    #[error("this router runs without root and makes no network namespaces: add --host-network")]
    Rootless,
    /// A namespace was given that cannot be used.
    #[error(transparent)]
    Given(OverlayError),
    /// A namespace was given to an endpoint whose programs keep theirs.
    #[error("isolation is `none`: leave it out, or leave out `netns`")]
    NeedlessNetns,
    /// An interface was named for an endpoint without a namespace of its own.
    #[error("isolation is `none`: leave it out, or leave out `interface`")]
    NeedlessInterface,
    /// None was given.
    #[error("isolation is `given`, but no namespace is: name it in `netns`")]
    MissingNetns,
    /// An interface was to be moved by a router that has no namespaces.
    #[error("this router runs without root and cannot move interfaces: start it with `sudo rdmesh up`")]
    NoNamespaces,
    /// Rules that keep others from sending as this host.
    #[error(transparent)]
    Firewall(#[from] FirewallError),
    /// The address towards the other hosts.
    #[error(transparent)]
    Underlay(#[from] UnderlayError),
    /// The router has no address towards other hosts.
    #[error("this router has no address for other hosts: start it with `rdmesh up --underlay ADDRESS`")]
    NoUnderlay,
    /// The other host has the name of this one.
    #[error(
        "`{0}` is this host: the other one is called as its `rdmesh up --host` says (`rdmesh peer ls` there shows it)"
    )]
    OwnHost(Name),
    /// The peers' file has another address for this host.
    #[error("the peers file says that this host, `{name}`, has the address {address}, but --underlay says another one")]
    OwnAddress {
        /// This host's name.
        name: Name,
        /// Its address in the file.
        address: IpAddr,
    },
    /// There is no key for the other host.
    #[error(
        "host `{0}` has no key: `rdmesh peer key > FILE` makes one, which both hosts are given with `rdmesh peer add --key FILE`, \
         or all hosts with `rdmesh up --key FILE` (`rdmesh up --underlay-security none` believes every sender that uses its address); \
         a host of the same store publishes one, unless it was started with --key or is of an earlier version"
    )]
    NoKey(Name),
    /// Keys were given, but the tunnel is insecure.
    #[error(
        "this router was started with --underlay-security none and uses no keys: `rdmesh down`, and `rdmesh up` without it"
    )]
    Insecure,
    /// A secret was given where the hosts have key pairs.
    #[error(
        "the hosts have key pairs, whose public halves are in their store: `rdmesh key rotate` replaces this host's"
    )]
    KeysInStore,
    /// The host has no key pair.
    #[error(
        "this router has its keys from the operator, not from a store: `rdmesh peer rotate --key FILE` replaces one"
    )]
    NoKeysInStore,
    /// No random numbers.
    #[error("making a key: {0}")]
    Random(io::Error),
    /// It cannot be probed.
    #[error("{0} is not the address of an endpoint, on this host or on those that it knows: no router answers there")]
    NoRouterAt(IpAddr),
    /// None of the endpoint's addresses can send to it.
    #[error("the endpoint has no address of the family of {0}")]
    NoAddressFor(IpAddr),
    /// Too few, or too many.
    #[error("the number of probes is from 1 to {0}")]
    ProbeCount(u32),
    /// Others are on their way.
    #[error("too many probes are on their way: try again in a second")]
    TooManyProbes,
    /// IPv4 here, IPv6 there.
    #[error("{address} is not of the same family as this host's address {own}: use one that is")]
    Family {
        /// The other host's address.
        address: IpAddr,
        /// This host's.
        own: IpAddr,
    },
    /// The owner is no more.
    #[error("process {pid}, which the endpoint was to go with: {source}")]
    Owner {
        /// Its process id.
        pid: i32,
        /// The cause.
        source: io::Error,
    },
    /// Of several operations that were all tried.
    #[error(transparent)]
    Several(#[from] Errors<Self>),
    /// The workers.
    #[error(transparent)]
    Workers(#[from] StartError),
    /// Threads.
    #[error("starting the {what}: {source}")]
    Start {
        /// Their name.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
}

/// Reason why an endpoint that lingers is not taken over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTakenOver {
    /// The request names an address that it does not have.
    #[error("it has other addresses than the request names")]
    Addresses,
    /// The request names another isolation.
    #[error("its programs have another isolation than the request names")]
    Isolation,
    /// The request names other limits than it was made with.
    #[error("its limits are not those of the request")]
    Quota,
    /// The process that made it ran as another user.
    #[error("it belonged to another user")]
    User,
    /// Processes are still in its network namespace.
    #[error("processes are still in it ({0})")]
    Processes(String),
}
