//! The hops of a path, and the time that probes took on each.

use crate::table::Table;
use rdmesh_fabric::Name;
use rdmesh_fabric::api::{PathAnswer, PathProbe};
use serde::Serialize;

/// A hop, with the times of the probes that were answered, in µs.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Hop {
    name: String,
    p50_us: f64,
    max_us: f64,
}

impl Hop {
    fn of(name: String, mut times: Vec<f64>) -> Option<Self> {
        times.sort_by(f64::total_cmp);
        let (p50, max) = (*times.get(times.len() / 2)?, *times.last()?);
        Some(Self { name, p50_us: p50, max_us: max })
    }
}

/// The hops to `host` and back, in their order.
pub(super) fn of(probes: &[PathProbe], host: &Name) -> Vec<Hop> {
    let answered: Vec<(&PathProbe, &PathAnswer)> =
        probes.iter().filter_map(|probe| Some((probe, probe.answer.as_ref()?))).collect();
    let hop = |name: &str, time: &dyn Fn(&PathProbe, &PathAnswer) -> Option<f64>| {
        Hop::of(name.to_owned(), answered.iter().filter_map(|(probe, answer)| time(probe, answer)).collect())
    };
    [
        hop("this host: worker makes the packet", &|probe, _| Some(probe.worker_us + probe.send_us?)),
        hop("wire, seal and system calls, there and back", &|_, answer| Some(on_the_way(answer))),
        hop(&format!("{host}: packet waits for the worker"), &|_, answer| answer.peer_socket_us),
        hop(&format!("{host}: worker answers"), &|_, answer| Some(answer.peer_worker_us)),
        hop("this host: answer waits for the worker", &|_, answer| answer.socket_us),
        hop("there and back, in all", &|_, answer| Some(answer.round_trip_us)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Time on the wire, in the seal and in system calls: the round trip without the other hops.
fn on_the_way(answer: &PathAnswer) -> f64 {
    let elsewhere =
        answer.peer_socket_us.unwrap_or_default() + answer.peer_worker_us + answer.socket_us.unwrap_or_default();
    (answer.round_trip_us - elsewhere).max(0.0)
}

/// The hops as a table.
pub(super) fn table(hops: &[Hop]) -> Table {
    let mut table = Table::new(&["HOP", "P50", "MAX"]);
    for Hop { name, p50_us, max_us } in hops {
        table.row([name.clone(), format!("{p50_us:.1} us"), format!("{max_us:.1} us")]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hops_sum_up_to_the_round_trip() {
        let answer = PathAnswer {
            round_trip_us: 100.0,
            peer_socket_us: Some(20.0),
            peer_worker_us: 1.0,
            socket_us: Some(10.0),
            is_endpoint: true,
            is_allowed: true,
            version: "0.1.0".to_owned(),
        };
        let probe =
            PathProbe { bytes: 256, worker_us: 3.0, send_us: Some(2.0), is_allowed: true, answer: Some(answer) };
        let lost = PathProbe { answer: None, ..probe.clone() };
        let hops = of(&[probe, lost.clone()], &"b".parse().unwrap());
        let times: Vec<f64> = hops.iter().map(|hop| hop.p50_us).collect();
        assert_eq!(times, [5.0, 69.0, 20.0, 1.0, 10.0, 100.0]);
        assert!(table(&hops).to_string().contains("b: worker answers"));
        assert_eq!(of(&[lost], &"b".parse().unwrap()), []);
    }
}
