//! Failed requests of programs: a short list for diagnosis (`rdmesh doctor`).
//!
//! A program gets an errno, or no answer until a time-out. This list says more: the last distinct failures of each endpoint,
//! their count and the program. Only commands are recorded, and only those that fail or name a path.

mod chain;
mod names;

pub use chain::FailedChain;
pub(super) use names::{Subject, subject};

use crate::io::ExternalPathError;
use rdmesh_nic::{Path, QpInfo};
use rdmesh_verbs::{Gid, QpState, Qpn};
use rustix::io::Errno;
use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// A request that cannot work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailedRequest {
    /// A path that begins at an address of another family than the peer's.
    WrongGid {
        /// Index of the GID that it begins at.
        index: u8,
        /// That GID.
        gid: Gid,
        /// The index of a suitable one, where there is one.
        better: Option<u8>,
        /// The peer.
        peer: IpAddr,
    },
    /// A path to an address that no endpoint has, from an endpoint that cannot reach external peers.
    NoPath {
        /// The peer.
        peer: IpAddr,
        /// Reason why there is no external path, where that is known.
        external: Option<ExternalPathError>,
    },
    /// A connection or a datagram path that security groups do not allow.
    Forbidden {
        /// The peer.
        peer: IpAddr,
    },
    /// A connection whose peer never answered.
    NoAnswer {
        /// The peer.
        peer: IpAddr,
        /// Path by which it was looked for.
        path: Option<Path>,
        /// The number of its queue pair.
        qpn: Qpn,
    },
    /// A queue pair of an unknown type.
    QpType(u8),
    /// Memory with private pages, in a device that is to outlive its program.
    PrivatePages,
    /// A limit is reached.
    Limit(&'static str),
    /// A request of a chain, whose group it has ended.
    Chain(FailedChain),
    /// An index of a queue that lies beyond the queue's end.
    BadIndex,
    /// Anything else that was refused.
    Refused {
        /// The command, by the name of the function that issues it.
        what: &'static str,
        /// The error that the program got.
        errno: Errno,
    },
}

/// A failed request, with its program and count.
#[derive(Clone, Debug)]
pub struct FailedRequestInfo {
    /// The endpoint's name.
    pub name: String,
    /// The endpoint's network.
    pub network: String,
    /// The process that made it last.
    pub pid: i32,
    /// That process's name.
    pub comm: String,
    /// The failed request.
    pub request: FailedRequest,
    /// Number of times it failed.
    pub count: u64,
    /// Time since it failed last.
    pub age: Duration,
}

/// The last distinct failed requests of one endpoint, the latest at the end.
#[derive(Default)]
pub(super) struct FailedRequests(Vec<Entry>);

#[derive(Clone)]
struct Entry {
    request: FailedRequest,
    pid: i32,
    comm: String,
    count: u64,
    last: Instant,
}

impl FailedRequests {
    /// Records a failed request.
    pub(super) fn note(&mut self, request: FailedRequest, pid: i32, comm: impl FnOnce() -> String) {
        self.note_all(request, 1, pid, comm);
    }

    /// Records `count` failures of one kind.
    pub(super) fn note_all(&mut self, request: FailedRequest, count: u64, pid: i32, comm: impl FnOnce() -> String) {
        let known = self.0.iter().position(|entry| entry.request == request);
        let mut entry = match known {
            Some(at) => self.0.remove(at),
            None => Entry { request, pid: -1, comm: String::new(), count: 0, last: Instant::now() },
        };
        if entry.pid != pid {
            (entry.pid, entry.comm) = (pid, comm());
        }
        entry.count = entry.count.saturating_add(count);
        entry.last = Instant::now();
        if self.0.len() == MAX {
            self.0.remove(0);
        }
        self.0.push(entry);
    }

    /// All of them, with the names of their endpoint.
    pub(super) fn infos(&self, name: &str, network: &str) -> impl Iterator<Item = FailedRequestInfo> {
        self.0.iter().map(move |entry| FailedRequestInfo {
            name: name.to_owned(),
            network: network.to_owned(),
            pid: entry.pid,
            comm: entry.comm.clone(),
            request: entry.request,
            count: entry.count,
            age: entry.last.elapsed(),
        })
    }
}

/// Those of endpoints that are gone: a program's endpoint often goes with it.
#[derive(Default)]
pub(super) struct PastFailedRequests(Vec<(String, String, FailedRequests)>);

impl PastFailedRequests {
    /// Keeps those of an endpoint that is removed.
    pub(super) fn keep(&mut self, name: &str, network: &str, failed_requests: FailedRequests) {
        if failed_requests.0.is_empty() {
            return;
        }
        if self.0.len() == MAX {
            self.0.remove(0);
        }
        self.0.push((name.to_owned(), network.to_owned(), failed_requests));
    }

    /// All of them.
    pub(super) fn infos(&self) -> impl Iterator<Item = FailedRequestInfo> {
        self.0.iter().flat_map(|(name, network, failed_requests)| failed_requests.infos(name, network))
    }
}

impl FailedRequest {
    /// The failure of a queue pair in this state at its end, if any.
    pub(super) fn of_queue_pair(info: &QpInfo) -> Option<Self> {
        let is_unanswered = info.unacked_psn == info.attr.sq_psn && info.counters.rx_messages == 0;
        let has_failed = info.state() == QpState::Error && info.counters.retries != 0 && info.counters.rnr_naks == 0;
        (is_unanswered && has_failed).then_some(Self::NoAnswer {
            peer: info.attr.av.dgid.ip(),
            path: info.path,
            qpn: info.attr.dest_qpn,
        })
    }

    /// The remedy, where there is one.
    pub fn fix(&self) -> Option<String> {
        match self {
            Self::WrongGid { better: Some(index), .. } => {
                Some(format!("use GID index {index} (perftest and UCX: -x {index}, UCX_IB_GID_INDEX={index})"))
            }
            Self::WrongGid { better: None, peer, .. } => Some(format!(
                "give the endpoint an address of the family of {peer} too: rdmesh run --ip ADDRESS --ip ADDRESS"
            )),
            Self::NoPath { peer, .. } => Some(format!(
                "is the address right? `rdmesh endpoint ls` and `rdmesh peer ls` list those that are known; for a machine outside rdmesh, see `rdmesh doctor --to {peer}`"
            )),
            Self::NoAnswer { path: Some(Path::Local), .. } => {
                Some("did the peer connect its queue pair to this one, and from the same address?".to_owned())
            }
            Self::NoAnswer { peer, .. } => Some(format!("see `rdmesh doctor --to {peer}`")),
            Self::Forbidden { .. } => Some(
                "`rdmesh group ls` shows the rules, `rdmesh group set` changes them; a queue pair that is not connected by rdma_cm needs rules for both directions (--from and --to), on all ports"
                    .to_owned(),
            ),
            Self::QpType(_) => Some(
                "there are RC, UC and UD; tell the program to use one of them (UCX: UCX_TLS=rc_verbs,ud_verbs)"
                    .to_owned(),
            ),
            Self::PrivatePages => Some(
                "register memory of rdmesh_malloc, or other anonymous memory that is writable; or give the lease up (no --linger)"
                    .to_owned(),
            ),
            Self::Limit(_) => {
                Some("raise the quota when the endpoint is made (`rdmesh run --help`, Limits)".to_owned())
            }
            Self::Chain(failed) => Some(chain::fix(failed)),
            Self::BadIndex => Some(
                "the program overwrites its own queues, by a fault or on purpose: run it with valgrind or AddressSanitizer"
                    .to_owned(),
            ),
            Self::Refused { .. } => None,
        }
    }
}

impl fmt::Display for FailedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WrongGid { index, gid, peer, .. } => {
                write!(f, "a path from GID index {index}, which is {gid}, does not lead to {peer}")
            }
            Self::NoPath { peer, external } => {
                write!(
                    f,
                    "no path to {peer}: no endpoint of its network has the address, and the program has no external path"
                )?;
                external.iter().try_for_each(|error| write!(f, " ({error})"))
            }
            Self::Forbidden { peer } => write!(f, "security groups keep the endpoint from {peer}"),
            Self::NoAnswer { peer, path, qpn } => {
                let place = match path {
                    Some(Path::Local) => "an endpoint of this host".to_owned(),
                    Some(Path::Host(address)) => format!("an endpoint of the host at {address}"),
                    Some(Path::External) | None => {
                        "outside rdmesh: no endpoint of its network has the address".to_owned()
                    }
                };
                write!(f, "queue pair {} of {peer} never answered; the address is {place}", qpn.value())
            }
            Self::QpType(number) => write!(f, "ibv_create_qp: type {} is not supported", names::qp_type(*number)),
            Self::PrivatePages => {
                write!(f, "ibv_reg_mr: memory with private pages cannot outlive its process, as a lease asks for")
            }
            Self::Limit(what) => write!(f, "no more {what}"),
            Self::Chain(failed) => chain::describe(failed, f),
            Self::BadIndex => write!(f, "an index of a queue lay beyond the queue's end"),
            Self::Refused { what, errno } => write!(f, "{what} was refused: {errno}"),
        }
    }
}

/// Distinct failures that are kept of an endpoint, and removed endpoints of which they are kept.
const MAX: usize = 16;

#[cfg(test)]
mod tests;
