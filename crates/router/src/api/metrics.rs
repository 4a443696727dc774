//! Counters and gauges, as JSON and as a page for Prometheus.

use crate::daemon::Host;
use crate::session::{ContextInfo, SessionTotals};
use crate::worker::WorkerStats;
use rdmesh_fabric::api::Metric;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Everything that is counted, family by family.
pub(super) fn collect(host: &Host) -> Vec<Metric> {
    families(host).into_iter().flat_map(|family| family.metrics).collect()
}

/// Everything that is counted, in Prometheus' text format.
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
    let contexts = host.contexts();
    let mut families = endpoints(host, &contexts);
    let totals = host.session_totals();
    families.extend(SESSIONS.iter().map(|(name, kind, help, value)| {
        let mut family = Family::new(format!("rdmesh_{name}"), kind, help);
        family.push(&[], value(&totals) as f64);
        family
    }));
    let workers = host.worker_stats();
    families.extend(WORKERS.iter().map(|(name, help, value)| {
        let mut family = Family::new(format!("rdmesh_worker_{name}"), "counter", help);
        for (index, stats) in workers.iter().enumerate() {
            family.push(&[("worker", &index.to_string())], value(stats));
        }
        family
    }));
    families
}

fn endpoints(host: &Host, contexts: &[ContextInfo]) -> Vec<Family> {
    let endpoints = host.endpoints();
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
    let mut count = Family::new("rdmesh_endpoints".to_owned(), "gauge", "Endpoints");
    count.push(&[], endpoints.len() as f64);
    families.insert(0, count);
    families
}

/// `{key="value",…}`. Values are names and numbers: nothing in them needs escaping.
fn labels(labels: &BTreeMap<String, String>) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let pairs: Vec<String> = labels.iter().map(|(key, value)| format!("{key}=\"{value}\"")).collect();
    format!("{{{}}}", pairs.join(","))
}

/// What an endpoint's contexts hold.
type Held = (&'static str, &'static str, fn(&ContextInfo) -> u64);
const HELD: [Held; 6] = [
    ("contexts", "Open device contexts", |_| 1),
    ("qps", "Queue pairs", |c| c.objects.qps.into()),
    ("cqs", "Completion queues", |c| c.objects.cqs.into()),
    ("srqs", "Shared receive queues", |c| c.objects.srqs.into()),
    ("mrs", "Memory regions", |c| c.objects.mrs.into()),
    ("pinned_bytes", "Bytes of registered memory", |c| c.pinned_bytes),
];

/// What the session thread counts.
type Session = (&'static str, &'static str, &'static str, fn(&SessionTotals) -> u64);
const SESSIONS: [Session; 12] = [
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
];

/// What each worker counts.
type Worker = (&'static str, &'static str, fn(&WorkerStats) -> f64);
const WORKERS: [Worker; 6] = [
    ("polls_total", "Passes over the doorbells", |w| w.polls as f64),
    ("busy_polls_total", "Passes that found work", |w| w.busy_polls as f64),
    ("sleeps_total", "Times it went to sleep", |w| w.sleeps as f64),
    ("wakeups_total", "Times it was woken", |w| w.wakeups as f64),
    ("packets_total", "Packets sent to other workers", |w| w.packets as f64),
    ("awake_seconds_total", "Time awake", |w| w.busy_ns as f64 / 1e9),
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
