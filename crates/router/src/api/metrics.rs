//! Counters and gauges, as JSON and as a page for Prometheus.

use crate::daemon::{BadIndices, CmTotals, ContextInfo, HeldEndpoint, Host, IoStats, SessionTotals, WorkerStats};
use rdmesh_fabric::api::{Metric, TunnelRefusal};
use rdmesh_nic::policy::Level;
use rdmesh_nic::{AccessCounters, ChainEntry, Path, QpCounters, WireCounters};
use rdmesh_relay::Totals;
use std::collections::BTreeMap;
use std::fmt::Write;

/// All metrics, by family.
pub(super) fn collect(host: &Host) -> Vec<Metric> {
    families(host).into_iter().flat_map(|family| family.metrics).collect()
}

/// All metrics, in Prometheus' text format.
pub(super) fn page(host: &Host) -> String {
    families(host).iter().fold(String::new(), |mut page, family| {
        family.write(&mut page);
        page
    })
}

/// Numbers of one name.
struct Family {
    name: String,
    kind: &'static str,
    help: &'static str,
    metrics: Vec<Metric>,
}

impl Family {
    fn new(name: String, kind: &'static str, help: &'static str) -> Self {
        Self { name, kind, help, metrics: Vec::new() }
    }

    fn push(&mut self, labels: &[(&str, &str)], value: f64) {
        let labels = labels.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
        self.metrics.push(Metric { name: self.name.clone(), labels, value });
    }

    fn write(&self, page: &mut String) {
        // Writing to a string cannot fail.
        let _ = writeln!(page, "# HELP {} {}\n# TYPE {} {}", self.name, self.help, self.name, self.kind);
        for metric in &self.metrics {
            let _ = writeln!(page, "{}{} {}", metric.name, labels(&metric.labels), metric.value);
        }
    }
}

fn families(host: &Host) -> Vec<Family> {
    let contexts = host.sessions().snapshot();
    let mut families = endpoints(host, &contexts);
    let totals = host.sessions().totals();
    families.extend(SESSIONS.iter().map(|(name, kind, help, value)| {
        let mut family = Family::new(format!("rdmesh_{name}"), kind, help);
        family.push(&[], value(&totals) as f64);
        family
    }));
    let totals = host.sessions().cm_totals();
    families.extend(CM.iter().map(|(name, kind, help, value)| {
        let mut family = Family::new(format!("rdmesh_cm_{name}"), kind, help);
        family.push(&[], value(&totals) as f64);
        family
    }));
    let mut rejected =
        Family::new("rdmesh_cm_rejected_total".to_owned(), "counter", "Refusals told to programs, by reason of IBA");
    totals.rejected.iter().for_each(|(reason, count)| rejected.push(&[("reason", &reason.to_string())], *count as f64));
    families.push(rejected);
    let workers = host.worker_stats();
    families.extend(WORKERS.iter().map(|(name, help, value)| {
        let mut family = Family::new(format!("rdmesh_worker_{name}"), "counter", help);
        for (index, stats) in workers.iter().enumerate() {
            family.push(&[("worker", &index.to_string())], value(stats));
        }
        family
    }));
    families.extend(tunnel(host));
    families.extend(IO.iter().map(|(name, help, value)| {
        let mut family = Family::new(format!("rdmesh_io_{name}_total"), "counter", help);
        for (index, stats) in workers.iter().enumerate() {
            family.push(&[("worker", &index.to_string())], value(&stats.io) as f64);
        }
        family
    }));
    let wires = host.wire_counters();
    families.extend(WIRE.iter().map(|(name, help, value)| {
        let mut family = Family::new(format!("rdmesh_wire_{name}"), "counter", help);
        for (index, counters) in wires.iter().enumerate() {
            family.push(&[("worker", &index.to_string())], value(counters) as f64);
        }
        family
    }));
    let refusals = host.access_counters();
    families.extend(ACCESS.iter().map(|(name, help, value)| {
        let mut family = Family::new(format!("rdmesh_groups_{name}_total"), "counter", help);
        family.push(&[], refusals.iter().map(value).sum::<u64>() as f64);
        family
    }));
    families
}

/// Metrics of the tunnel: sessions with other hosts, and refused packets.
fn tunnel(host: &Host) -> [Family; 7] {
    let family = |name: &str, kind, help| Family::new(format!("rdmesh_tunnel_{name}"), kind, help);
    let mut refused = family("refused_total", "counter", "Packets refused, by the host whose address they came from");
    let mut unsent = family("unsent_total", "counter", "Packets not sent because the host has not proven itself");
    let mut hosts = family("hosts_authenticated", "gauge", "Hosts that have proven who they are");
    let mut open = family("open", "gauge", "Whether there is a session to a host, and from it");
    let mut changing = family("key_changing", "gauge", "Whether a new key waits until the host has it too");
    let mut strangers = family("stranger_packets_total", "counter", "Packets from addresses that are no host's");
    let mut unread = family("unread_messages_total", "counter", "Handshakes not read because too many came at once");
    // Without a tunnel, or with a failing store, there is nothing to tell.
    let tunnel = host.tunnel_keys().tunnel().unwrap_or_default();
    for host in &tunnel.hosts {
        let (name, state) = (("host", host.name.as_str()), &host.state);
        for TunnelRefusal { reason, count, .. } in state.counters.refusals() {
            refused.push(&[name, ("reason", reason)], count as f64);
        }
        unsent.push(&[name], state.counters.unsent as f64);
        for (direction, is_open) in [("to", state.sends), ("from", state.receives)] {
            open.push(&[name, ("direction", direction)], f64::from(is_open));
        }
        changing.push(&[name], f64::from(state.is_changing_key));
    }
    hosts.push(&[], tunnel.hosts.iter().filter(|host| host.state.is_open()).count() as f64);
    strangers.push(&[], tunnel.stranger_packets as f64);
    unread.push(&[], tunnel.unread_messages as f64);
    [refused, unsent, hosts, open, changing, strangers, unread]
}

fn endpoints(host: &Host, contexts: &[ContextInfo]) -> Vec<Family> {
    let endpoints = host.endpoints().all();
    let mut families: Vec<Family> = HELD
        .iter()
        .map(|(name, help, held)| {
            let mut family = Family::new(format!("rdmesh_endpoint_{name}"), "gauge", help);
            for info in &endpoints {
                let (network, name) = (info.endpoint.network.as_str(), info.endpoint.name.as_str());
                let of_endpoint = contexts.iter().filter(|c| c.network == network && c.name == name);
                let sum: u64 = of_endpoint.map(held).sum();
                family.push(&[("network", network), ("endpoint", name)], sum as f64);
            }
            family
        })
        .collect();
    let mut labels = Family::new("rdmesh_endpoint_label".to_owned(), "gauge", "A label of an endpoint; always 1");
    for info in &endpoints {
        let (network, name) = (info.endpoint.network.as_str(), info.endpoint.name.as_str());
        for (label, value) in info.endpoint.labels.iter() {
            labels.push(&[("network", network), ("endpoint", name), ("label", label), ("value", value)], 1.0);
        }
    }
    families.push(labels);
    let mut count = Family::new("rdmesh_endpoints".to_owned(), "gauge", "Endpoints");
    count.push(&[], endpoints.len() as f64);
    families.insert(0, count);
    families.push(bad_indices(host));
    families.push(held(host));
    families.extend(relays(host));
    families
}

fn relays(host: &Host) -> impl Iterator<Item = Family> {
    let relayed = host.endpoints().relayed();
    RELAYS.iter().map(move |(name, help, value)| {
        let mut family = Family::new(format!("rdmesh_relay_{name}_total"), "counter", help);
        for endpoint in &relayed {
            let labels = [("network", endpoint.network.as_str()), ("endpoint", endpoint.name.as_str())];
            family.push(&labels, value(&endpoint.totals) as f64);
        }
        family
    })
}

fn held(host: &Host) -> Family {
    let mut family = Family::new(
        "rdmesh_endpoint_held_seconds_total".to_owned(),
        "counter",
        "Time for which a rate held the queue pairs, by the level of its policy",
    );
    for HeldEndpoint { name, network, times } in host.sessions().held_by_rates() {
        for (level, text) in LEVELS {
            let labels = [("network", network.as_str()), ("endpoint", &name), ("level", text)];
            family.push(&labels, times.by(level).as_secs_f64());
        }
    }
    family
}

fn bad_indices(host: &Host) -> Family {
    let mut family = Family::new(
        "rdmesh_endpoint_bad_indices_total".to_owned(),
        "counter",
        "Indices beyond the ends of their queues that programs wrote",
    );
    for BadIndices { name, network, count } in host.sessions().bad_indices() {
        family.push(&[("network", &network), ("endpoint", &name)], count as f64);
    }
    family
}

/// `{key="value",…}`. Values are names and numbers: nothing in them needs escaping.
fn labels(labels: &BTreeMap<String, String>) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let pairs: Vec<String> = labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escaped(value))).collect();
    format!("{{{}}}", pairs.join(","))
}

/// A label's value as the text format wants it.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

const LEVELS: [(Level, &str); Level::ALL.len()] =
    [(Level::Host, "host"), (Level::Tenant, "tenant"), (Level::Endpoint, "endpoint"), (Level::Qp, "qp")];

/// Metric of an endpoint's contexts: name, help text, value.
type Held = (&'static str, &'static str, fn(&ContextInfo) -> u64);
const HELD: [Held; 20] = [
    ("contexts", "Open device contexts", |_| 1),
    ("qps", "Queue pairs", |c| c.objects.qps.into()),
    ("cqs", "Completion queues", |c| c.objects.cqs.into()),
    ("srqs", "Shared receive queues", |c| c.objects.srqs.into()),
    ("mrs", "Memory regions", |c| c.objects.mrs.into()),
    ("pinned_bytes", "Bytes of registered memory", |c| c.pinned_bytes),
    ("qps_local", "Queue pairs connected on this host", |c| connected(c, |path| path == Path::Local)),
    ("qps_host", "Queue pairs connected to other hosts", |c| connected(c, |path| matches!(path, Path::Host(_)))),
    ("qps_external", "Queue pairs connected to external peers", |c| connected(c, |path| path == Path::External)),
    ("qp_retransmitted", "Packets that the queue pairs sent again", |c| of_qps(c, |q| q.retransmitted)),
    ("qp_rnr_naks", "Times a receiver of the queue pairs was not ready", |c| of_qps(c, |q| q.rnr_naks)),
    ("qp_duplicates", "Packets that the queue pairs received again", |c| of_qps(c, |q| q.duplicates)),
    ("qp_out_of_order", "Packets that the queue pairs received before their turn", |c| of_qps(c, |q| q.out_of_order)),
    ("qp_cnps_sent", "Congestion notifications that the queue pairs sent", |c| of_qps(c, |q| q.cnps_sent)),
    ("chains", "Groups of managed queues", |c| c.chains.len() as u64),
    ("chains_spinning", "Groups of managed queues that go on without a WAIT", |c| {
        of_chains(c, |e| e.is_spinning.into())
    }),
    ("chain_steps", "Steps that the chains have executed", |c| of_chains(c, |e| e.counts.steps)),
    ("chain_starved", "Times that a chain stood still for want of steps", |c| of_chains(c, |e| e.starved)),
    ("chain_faults", "Chains that an error has ended", |c| of_chains(c, |e| e.fault.is_some().into())),
    ("qp_cnps_received", "Congestion notifications that the queue pairs received", |c| of_qps(c, |q| q.cnps_received)),
];

fn connected(context: &ContextInfo, is_meant: fn(Path) -> bool) -> u64 {
    context.qps.iter().filter(|qp| qp.path.is_some_and(is_meant)).count() as u64
}

fn of_qps(context: &ContextInfo, count: fn(&QpCounters) -> u64) -> u64 {
    context.qps.iter().map(|qp| count(&qp.counters)).sum()
}

fn of_chains(context: &ContextInfo, count: fn(&ChainEntry) -> u64) -> u64 {
    context.chains.iter().map(|row| count(&row.entry)).sum()
}

/// Metric of an engine's datagrams: name, help text, value.
type Wire = (&'static str, &'static str, fn(&WireCounters) -> u64);
const WIRE: [Wire; 6] = [
    ("sent_total", "Datagrams sent to other hosts and external peers", |w| w.sent),
    ("received_total", "Datagrams received from there", |w| w.received),
    ("malformed_total", "Datagrams that are no RoCEv2 packets", |w| w.malformed),
    ("bad_icrc_total", "Datagrams with a wrong check sum", |w| w.bad_icrc),
    ("unknown_qp_total", "Datagrams for queue pairs that there are not", |w| w.unknown_qp),
    ("wrong_source_total", "Datagrams that are not from the queue pair's peer", |w| w.wrong_source),
];

/// Metric of security groups: name, help text, value.
type Refusals = (&'static str, &'static str, fn(&AccessCounters) -> u64);
const ACCESS: [Refusals; 3] = [
    ("refused", "Peers that queue pairs and address handles were refused by security groups", |a| a.refused),
    ("dropped", "Datagrams dropped by security groups", |a| a.dropped),
    ("ended", "Queue pairs ended because security groups changed", |a| a.ended),
];

/// Metric of an endpoint's relay: name, help text, value.
type OfRelay = (&'static str, &'static str, fn(&Totals) -> u64);
const RELAYS: [OfRelay; 4] = [
    ("streams", "TCP connections to other endpoints that moved to shared memory and RDMA", |t| t.streams),
    ("lost", "Such connections whose way to the other endpoint broke", |t| t.lost),
    ("sent_bytes", "Bytes of TCP connections sent to other endpoints by RDMA", |t| t.sent),
    ("received_bytes", "Bytes of TCP connections received from there", |t| t.received),
];

/// Metric of the session thread: name, kind, help text, value.
type Session = (&'static str, &'static str, &'static str, fn(&SessionTotals) -> u64);
const SESSIONS: [Session; 15] = [
    ("connections_accepted_total", "counter", "Connections let in", |t| t.connections_accepted),
    ("connections_refused_total", "counter", "Connections turned away", |t| t.connections_refused),
    ("connections_dropped_total", "counter", "Connections closed because of what came over them", |t| {
        t.connections_dropped
    }),
    ("contexts_opened_total", "counter", "Contexts opened", |t| t.contexts_opened),
    ("contexts_closed_total", "counter", "Contexts closed", |t| t.contexts_closed),
    ("objects_created_total", "counter", "Objects created", |t| t.objects_created),
    ("objects_destroyed_total", "counter", "Objects destroyed by their program", |t| t.objects_destroyed),
    ("objects_reclaimed_total", "counter", "Objects taken back when their context closed", |t| t.objects_reclaimed),
    ("objects", "gauge", "Objects that open contexts hold", |t| t.objects_live),
    ("commands_total", "counter", "Commands executed", |t| t.commands),
    ("commands_failed_total", "counter", "Commands that failed", |t| t.commands_failed),
    ("refused_by_quota_total", "counter", "Commands refused by a quota or a limit", |t| t.refused_by_quota),
    ("held_descriptors", "gauge", "Descriptors of the router charged to endpoints", |t| t.held_descriptors),
    ("held_mappings", "gauge", "Mappings of the router charged to endpoints", |t| t.held_mappings),
    ("held_memory_bytes", "gauge", "Own memory of the router charged to endpoints", |t| t.held_memory),
];

/// Metric of rdma_cm: name, kind, help text, value.
type Cm = (&'static str, &'static str, &'static str, fn(&CmTotals) -> u64);
const CM: [Cm; 13] = [
    ("channels", "gauge", "Open event channels", |t| t.channels),
    ("ids", "gauge", "Identifiers", |t| t.ids),
    ("listeners", "gauge", "Identifiers that listen", |t| t.listeners),
    ("waiting_events", "gauge", "Events that no program has read yet", |t| t.waiting_events),
    ("connections", "gauge", "Connections, those in time-wait too", |t| t.connections),
    ("time_wait", "gauge", "Connections in time-wait", |t| t.time_wait),
    ("sent_total", "counter", "Messages sent, those within this host too", |t| t.sent),
    ("received_total", "counter", "Messages received", |t| t.received),
    ("retried_total", "counter", "Messages sent again for want of an answer", |t| t.retried),
    ("duplicates_total", "counter", "Messages received again", |t| t.duplicates),
    ("unexpected_total", "counter", "Datagrams that are no messages, or fit no connection", |t| t.unexpected),
    ("overflow_total", "counter", "Requests dropped because too many waited", |t| t.overflow),
    ("forbidden_total", "counter", "Connections refused by security groups", |t| t.forbidden),
];

/// Metric of a worker: name, help text, value.
type Worker = (&'static str, &'static str, fn(&WorkerStats) -> f64);
const WORKERS: [Worker; 8] = [
    ("polls_total", "Passes over the doorbells", |w| w.polls as f64),
    ("busy_polls_total", "Passes that found work", |w| w.busy_polls as f64),
    ("sleeps_total", "Times it went to sleep", |w| w.sleeps as f64),
    ("wakeups_total", "Times it was woken", |w| w.wakeups as f64),
    ("packets_total", "Packets sent to other workers", |w| w.packets as f64),
    ("mads_total", "Management datagrams handed to rdma_cm", |w| w.mads as f64),
    ("mads_dropped_total", "Management datagrams that were not, for want of room", |w| w.mads_dropped as f64),
    ("awake_seconds_total", "Time awake", |w| w.busy_ns as f64 / 1e9),
];

/// Metric of a worker's sockets: name, help text, value.
type Io = (&'static str, &'static str, fn(&IoStats) -> u64);
const IO: [Io; 12] = [
    ("received_datagrams", "Datagrams received", |s| s.received_datagrams),
    ("received_bytes", "Bytes of datagrams received", |s| s.received_bytes),
    ("received_trains", "Messages in which datagrams were received", |s| s.received_trains),
    ("sent_datagrams", "Datagrams sent", |s| s.sent_datagrams),
    ("sent_bytes", "Bytes of datagrams sent", |s| s.sent_bytes),
    ("sent_trains", "Messages in which datagrams were sent", |s| s.sent_trains),
    ("kernel_drops", "Messages for which a socket's buffer had no room", |s| s.kernel_drops),
    ("send_errors", "Datagrams that the kernel did not take", |s| s.send_errors),
    ("blocked", "Times that a socket had no room for more to be sent", |s| s.blocked),
    ("forwarded", "Datagrams handed to the worker that they were for", |s| s.forwarded),
    ("forward_drops", "Datagrams that were not, for want of room", |s| s.forward_drops),
    ("faults", "Faults put into what was received", |s| s.faults),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_what_prometheus_reads() {
        let mut family = Family::new("rdmesh_x".into(), "gauge", "Things");
        family.push(&[("network", "blue"), ("endpoint", "a")], 3.0);
        family.push(&[], 0.5);
        let mut page = String::new();
        family.write(&mut page);
        let expected = "# HELP rdmesh_x Things\n# TYPE rdmesh_x gauge\nrdmesh_x{endpoint=\"a\",network=\"blue\"} 3\nrdmesh_x 0.5\n";
        assert_eq!(page, expected);
    }
}
