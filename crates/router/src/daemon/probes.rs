//! Probes of the path from an endpoint of this host to another endpoint.

use super::error::HostError;
use crate::worker::ShardHandle;
use rdmesh_fabric::api::{PathAnswer, PathProbe, ProbePath};
use rdmesh_fabric::{Endpoint, Network};
use rdmesh_nic::{ProbeError, ProbeReply, ProbeRequest, ProbeState, Time};
use rdmesh_overlay::Underlay;
use rdmesh_verbs::{Gid, Mtu, Vni};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Sends probes from `endpoint`, one after the other.
pub(super) fn run(
    shards: &[ShardHandle],
    endpoint: &Endpoint,
    network: &Network,
    underlay: Option<IpAddr>,
    order: &ProbePath,
) -> Result<Vec<PathProbe>, HostError> {
    if !(1..=MOST_PROBES).contains(&order.count) {
        return Err(HostError::ProbeCount(MOST_PROBES));
    }
    let dest = Gid::from_ip(order.to);
    let own = endpoint.addresses.iter().find(|own| own.is_ipv4() == order.to.is_ipv4());
    let source = Gid::from_ip(*own.ok_or(HostError::NoAddressFor(order.to))?);
    let room = underlay.map(Underlay::find).transpose()?.map_or(u32::MAX, |underlay| underlay.tenant_mtu());
    let room = network.mtu.map_or(room, |mtu| room.min(mtu.into()));
    let len = if order.is_full { Mtu::for_interface(room) } else { Mtu::B256 };
    let vni = Vni(network.vni);
    let request = || ProbeRequest { tid: NEXT_TID.fetch_add(1, Ordering::Relaxed), vni, source, dest, len };
    (0..order.count).map(|_| probe(shards, request(), order.to)).collect()
}

/// Sends one probe from the first worker, as other management datagrams, and waits for the answer, which any may get.
fn probe(shards: &[ShardHandle], request: ProbeRequest, to: IpAddr) -> Result<PathProbe, HostError> {
    let asked = Instant::now();
    let (taken, waited, sent) = shards[0].call(move |shard| {
        let (now, waited) = (shard.now(), asked.elapsed());
        (now, waited, shard.engine().probes(now).send(&request))
    });
    sent.map_err(|error| match error {
        ProbeError::External => HostError::NoRouterAt(to),
        ProbeError::Full => HostError::TooManyProbes,
    })?;
    let mut known = ProbeState::default();
    while known.answer.is_none() && asked.elapsed() < SILENCE {
        sleep(LOOK);
        for shard in shards {
            let found = shard.call(move |shard| {
                let now = shard.now();
                shard.engine().probes(now).take(&request)
            });
            known = ProbeState { sent: known.sent.or(found.sent), answer: known.answer.or(found.answer) };
        }
    }
    Ok(PathProbe {
        bytes: request.len.bytes(),
        worker_us: micros(waited),
        send_us: known.sent.map(|sent| micros(between(taken, sent))),
        is_allowed: shards[0].routes().current().access().may_begin(request.vni, request.source, request.dest),
        answer: known.sent.zip(known.answer).map(|(sent, reply)| answer(sent, &reply)),
    })
}

fn answer(sent: Time, reply: &ProbeReply) -> PathAnswer {
    PathAnswer {
        round_trip_us: micros(between(sent, reply.at)),
        peer_socket_us: reply.answer.waited.map(micros),
        peer_worker_us: micros(reply.answer.held),
        socket_us: reply.waited.map(micros),
        is_endpoint: reply.answer.is_here,
        is_allowed: reply.answer.is_allowed,
        version: reply.answer.version.to_string(),
    }
}

fn between(from: Time, to: Time) -> Duration {
    Duration::from_nanos(to.0.saturating_sub(from.0))
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1000.0
}

/// Transaction ID of the router's next probe: only the host that was asked can answer with it.
static NEXT_TID: AtomicU64 = AtomicU64::new(1);

/// Probes of one order.
const MOST_PROBES: u32 = 100;
/// Time for which an answer is waited for.
const SILENCE: Duration = Duration::from_millis(500);
/// Time between two looks: the times that count are the engine's.
const LOOK: Duration = Duration::from_millis(1);
