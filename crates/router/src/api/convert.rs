//! Conversion of the router's own types to those of the API.

use crate::daemon::{ConnectionInfo, ContextInfo, FailedRequestInfo, HeldTimes, Host, QpRow};
use rdmesh_fabric::api;
use rdmesh_fabric::{InvalidName, Name};
use rdmesh_nic::policy::Level;
use rdmesh_nic::{CongestionControl, CongestionState, Path};
use rdmesh_verbs::QpType;

/// Every open context.
pub(super) fn contexts(host: &Host) -> Vec<api::ContextInfo> {
    let known = host.sessions().snapshot().into_iter().map(context);
    // Names come from endpoints, whose names were checked when they were made.
    known.filter_map(Result::ok).collect()
}

/// Every `rdma_cm_id`.
pub(super) fn connections(host: &Host) -> Vec<api::ConnectionInfo> {
    host.sessions().connections().into_iter().map(connection).filter_map(Result::ok).collect()
}

/// Recent failed requests of programs.
pub(super) fn failed_requests(host: &Host) -> Vec<api::FailedRequest> {
    host.sessions().failed_requests().into_iter().map(failed_request).filter_map(Result::ok).collect()
}

fn failed_request(info: FailedRequestInfo) -> Result<api::FailedRequest, InvalidName> {
    Ok(api::FailedRequest {
        endpoint: Name::try_from(info.name)?,
        network: Name::try_from(info.network)?,
        pid: info.pid,
        command: info.comm,
        what: info.request.to_string(),
        fix: info.request.fix(),
        count: info.count,
        seconds_ago: info.age.as_secs_f64(),
    })
}

fn connection(info: ConnectionInfo) -> Result<api::ConnectionInfo, InvalidName> {
    let row = info.row;
    Ok(api::ConnectionInfo {
        endpoint: Name::try_from(info.name)?,
        network: Name::try_from(info.network)?,
        pid: row.pid,
        port_space: row.space.to_owned(),
        kind: format!("{:?}", row.qp_type).to_uppercase(),
        state: row.state.to_owned(),
        address: row.source,
        peer: row.dest,
        qpn: row.qpn.map(|qpn| qpn.value()),
    })
}

fn context(context: ContextInfo) -> Result<api::ContextInfo, InvalidName> {
    Ok(api::ContextInfo {
        endpoint: Name::try_from(context.name)?,
        network: Name::try_from(context.network)?,
        pid: context.pid,
        uid: context.uid,
        command: context.comm,
        worker: context.shard as u32,
        pds: context.objects.pds,
        cqs: context.objects.cqs,
        srqs: context.objects.srqs,
        mrs: context.objects.mrs,
        mws: context.objects.mws,
        pinned_bytes: context.pinned_bytes,
        held: held(&context.held),
        qps: context.qps.iter().map(qp).collect(),
        device: context.number,
        lease: context.lease.map(|lease| api::LeaseInfo {
            term_seconds: lease.term.as_secs_f64(),
            left_seconds: lease.left.map(|left| left.as_secs_f64()),
        }),
    })
}

fn held(times: &HeldTimes) -> api::HeldSeconds {
    let seconds = |level| times.by(level).as_secs_f64();
    api::HeldSeconds {
        host: seconds(Level::Host),
        tenant: seconds(Level::Tenant),
        endpoint: seconds(Level::Endpoint),
        qp: seconds(Level::Qp),
    }
}

fn qp(row: &QpRow) -> api::QpInfo {
    let is_connected = row.qp_type != QpType::Ud && !row.dgid.is_zero();
    api::QpInfo {
        qpn: row.qpn.value(),
        kind: format!("{:?}", row.qp_type).to_uppercase(),
        state: format!("{:?}", row.state).to_uppercase(),
        peer_qpn: is_connected.then_some(row.dest_qpn.value()),
        peer: is_connected.then(|| row.dgid.to_string()),
        sent_messages: row.counters.tx_messages,
        sent_bytes: row.counters.tx_bytes,
        received_messages: row.counters.rx_messages,
        received_bytes: row.counters.rx_bytes,
        retries: row.counters.retries,
        path: row.path.map(path),
        next_psn: row.next_psn.value(),
        unacked_psn: row.unacked_psn.value(),
        lanes: row.lanes.all,
        resting_lanes: row.lanes.resting,
        congestion: row.congestion.map(|state| congestion(state, row.path)),
        expected_psn: row.expected_psn.value(),
        retransmitted: row.counters.retransmitted,
        rnr_naks: row.counters.rnr_naks,
        duplicates: row.counters.duplicates,
        out_of_order: row.counters.out_of_order,
        cnps_sent: row.counters.cnps_sent,
        cnps_received: row.counters.cnps_received,
    }
}

fn congestion(state: CongestionState, path: Option<Path>) -> api::CongestionInfo {
    let control = match (state.control, path) {
        (_, Some(Path::External)) => api::CongestionControl::Dcqcn,
        (CongestionControl::Hpcc, _) => api::CongestionControl::Hpcc,
        (CongestionControl::Window, _) => api::CongestionControl::Window,
    };
    let round_trip_seconds = state.round_trip.map(|time| time.as_secs_f64());
    api::CongestionInfo { control, window: state.window, round_trip_seconds }
}

fn path(path: Path) -> String {
    match path {
        Path::Local => "local".to_owned(),
        Path::Host(address) => format!("host {address}"),
        Path::External => "external".to_owned(),
    }
}
