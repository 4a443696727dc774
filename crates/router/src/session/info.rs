//! Status information of the session server: contexts, queue pairs and endpoints.

use super::held_times::HeldTimes;
use super::label::Label;
use super::managed::ManagedQueues;
use super::objects::ObjectCounts;
use crate::cm::ConnectionRow;
use crate::endpoint::EndpointId;
use crate::io::ExternalPathError;
use crate::memory::HostPlatform;
use rdmesh_nic::{ChainEntry, CongestionState, Device, LaneCounts, Path, QpCounters, QpInfo};
use rdmesh_verbs::{Gid, Psn, QpState, QpType, Qpn};
use std::time::Duration;

/// An open context.
#[derive(Clone, Debug)]
pub struct ContextInfo {
    /// The endpoint that it was opened at.
    pub endpoint: EndpointId,
    /// The endpoint's name.
    pub name: String,
    /// The endpoint's network.
    pub network: String,
    /// The process that opened it, as the router sees its number.
    pub pid: i32,
    /// That process's user.
    pub uid: u32,
    /// That process's name when it opened the device.
    pub comm: String,
    /// The worker that serves it.
    pub shard: usize,
    /// Counts of its objects.
    pub objects: ObjectCounts,
    /// Bytes registered.
    pub pinned_bytes: u64,
    /// Time for which rates have held the queue pairs of its endpoint.
    pub held: HeldTimes,
    /// Whether it reaches external peers, and if not, why.
    pub external: Result<(), ExternalPathError>,
    /// Its queue pairs.
    pub qps: Vec<QpRow>,
    /// Its number: no other of the endpoint has it.
    pub number: u32,
    /// Its groups of managed queues.
    pub chains: Vec<ChainRow>,
    /// Its lease, by which it outlives its program.
    pub lease: Option<LeaseInfo>,
}

/// The lease of a context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseInfo {
    /// Its term.
    pub term: Duration,
    /// The rest of its term, while the context lingers.
    pub left: Option<Duration>,
}

/// A group of managed queues in a listing.
#[derive(Clone, Debug)]
pub struct ChainRow {
    /// The group; its queue pairs are named by handle.
    pub entry: ChainEntry,
    /// Numbers of its queue pairs.
    pub qpns: Vec<Qpn>,
    /// Number of the queue pair that failed, while there is one.
    pub failed: Option<Qpn>,
    /// Label of the request that failed.
    pub label: Option<Label>,
}

impl ChainRow {
    /// The rows of a device.
    pub(super) fn all(device: &mut Device<'_, HostPlatform>) -> Vec<Self> {
        let entries = device.chains().list();
        let qpn = |qp: u32| device.query_qp(qp).ok().map(|info| info.qpn);
        let row = |entry: ChainEntry| Self {
            qpns: entry.qps.iter().filter_map(|qp| qpn(*qp)).collect(),
            failed: entry.fault.and_then(|fault| qpn(fault.qp)),
            label: None,
            entry,
        };
        entries.into_iter().map(row).collect()
    }
}

impl ChainRow {
    /// The same, with the label of the request that failed.
    pub(super) fn labelled(self, queues: &ManagedQueues) -> Self {
        let label = self.entry.fault.and_then(|fault| queues.label_of(fault.qp, fault.is_receive, fault.index));
        Self { label, ..self }
    }
}

/// A queue pair in a listing.
#[derive(Clone, Copy, Debug)]
pub struct QpRow {
    /// Its number.
    pub qpn: Qpn,
    /// Its transport.
    pub qp_type: QpType,
    /// Its state.
    pub state: QpState,
    /// The peer's number, where connected.
    pub dest_qpn: Qpn,
    /// The peer's address, where connected.
    pub dgid: Gid,
    /// Path of its packets.
    pub path: Option<Path>,
    /// The next PSN that it sends.
    pub next_psn: Psn,
    /// The oldest PSN that its peer has not acknowledged.
    pub unacked_psn: Psn,
    /// Lanes that its requests leave by.
    pub lanes: LaneCounts,
    /// Congestion control of its requests to another host.
    pub congestion: Option<CongestionState>,
    /// The next PSN that it expects.
    pub expected_psn: Psn,
    /// Its counters.
    pub counters: QpCounters,
}

impl From<QpInfo> for QpRow {
    fn from(info: QpInfo) -> Self {
        Self {
            qpn: info.qpn,
            qp_type: info.qp_type,
            state: info.attr.state,
            dest_qpn: info.attr.dest_qpn,
            dgid: info.attr.av.dgid,
            path: info.path,
            next_psn: info.next_psn,
            unacked_psn: info.unacked_psn,
            lanes: info.lanes,
            congestion: info.congestion,
            expected_psn: info.expected_psn,
            counters: info.counters,
        }
    }
}

/// An `rdma_cm_id`, with the names of its endpoint.
#[derive(Clone, Debug)]
pub struct ConnectionInfo {
    /// Its endpoint's name.
    pub name: String,
    /// The endpoint's network.
    pub network: String,
    /// Its description.
    pub row: ConnectionRow,
}

/// Time for which rates have held an endpoint's queue pairs since it was opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeldEndpoint {
    /// The endpoint's name.
    pub name: String,
    /// The endpoint's network.
    pub network: String,
    /// The time.
    pub times: HeldTimes,
}

/// Indices beyond the ends of their queues that the programs of an endpoint wrote.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadIndices {
    /// The endpoint's name.
    pub name: String,
    /// The endpoint's network.
    pub network: String,
    /// Their number since the endpoint was opened.
    pub count: u64,
}

/// Objects of rdma_cm, and counts of its messages since the start.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CmTotals {
    /// Open channels.
    pub channels: u64,
    /// Identifiers.
    pub ids: u64,
    /// Those that listen.
    pub listeners: u64,
    /// Events that no program has read yet.
    pub waiting_events: u64,
    /// Connections of the protocol, with those in time-wait.
    pub connections: u64,
    /// Those in time-wait.
    pub time_wait: u64,
    /// Messages sent, those between endpoints of this host too.
    pub sent: u64,
    /// Messages received.
    pub received: u64,
    /// Messages sent again for want of an answer.
    pub retried: u64,
    /// Messages received again.
    pub duplicates: u64,
    /// Datagrams that are no messages, or fit no connection.
    pub unexpected: u64,
    /// Requests dropped because too many waited for an answer.
    pub overflow: u64,
    /// Connections that security groups have refused.
    pub forbidden: u64,
    /// Rejections reported to programs, by reason (IBA 12.6.7.2).
    pub rejected: Vec<(u16, u64)>,
}

impl SessionTotals {
    /// The same with the commands of other connections too.
    pub(super) fn with_commands_of(self, other: &Self) -> Self {
        Self {
            connections_dropped: self.connections_dropped + other.connections_dropped,
            commands: self.commands + other.commands,
            commands_failed: self.commands_failed + other.commands_failed,
            refused_by_quota: self.refused_by_quota + other.refused_by_quota,
            ..self
        }
    }
}

/// Counters since the start. Every created object is destroyed by its program, reclaimed from a program that has ended, or
/// live: `objects_created == objects_destroyed + objects_reclaimed + objects_live`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SessionTotals {
    /// Accepted connections.
    pub connections_accepted: u64,
    /// Refused connections: the wrong user, or too many.
    pub connections_refused: u64,
    /// Connections closed by the router because of their messages.
    pub connections_dropped: u64,
    /// Contexts opened.
    pub contexts_opened: u64,
    /// Contexts closed.
    pub contexts_closed: u64,
    /// Objects created.
    pub objects_created: u64,
    /// Objects destroyed on the program's command.
    pub objects_destroyed: u64,
    /// Objects reclaimed when their context closed.
    pub objects_reclaimed: u64,
    /// Objects that open contexts hold at this moment.
    pub objects_live: u64,
    /// Commands executed, with or without success.
    pub commands: u64,
    /// Commands that failed.
    pub commands_failed: u64,
    /// Commands refused because a quota or a limit of the device was reached.
    pub refused_by_quota: u64,
    /// Descriptors of the router that are charged to endpoints at this moment.
    pub held_descriptors: u64,
    /// Mappings likewise.
    pub held_mappings: u64,
    /// Bytes of the router's own memory likewise.
    pub held_memory: u64,
}
