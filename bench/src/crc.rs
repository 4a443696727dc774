//! Cost of the invariant CRC, which is computed on both sides of plain RoCEv2 and of an insecure tunnel.

use crate::results::{Results, Unit};
use rdmesh_nic::wire::{IpUdp, icrc};
use rdmesh_verbs::Gid;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Group of these figures.
pub(crate) const GROUP: &str = "rdmesh, invariant CRC";
/// Bytes of payload.
pub(crate) const PACKETS: [u64; 2] = [1024, 4096];

/// Name of the figure of packets with so many bytes of payload.
pub(crate) fn name(packet: u64) -> String {
    format!("{packet} B")
}

/// Measures packets of both sizes, whose bytes are in the processor's cache, as they are where they were just copied.
pub(crate) fn measure(results: &mut Results, effort: f64) {
    let endpoint = |host: u8| Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 7, 0, host]);
    let (source, dest) = (endpoint(2), endpoint(3));
    let ip = IpUdp { source, dest, traffic_class: 2, hop_limit: 64, flow_label: 0, id: 0, source_port: 50_000 };
    for packet in PACKETS {
        let bytes: Vec<u8> = (0..packet as usize + BTH).map(|i| i as u8).collect();
        let limit = Duration::from_secs_f64(0.3 * effort);
        let begin = Instant::now();
        let mut done = 0;
        while begin.elapsed() < limit {
            for _ in 0..ROUND {
                black_box(icrc::icrc(black_box(&ip), black_box(&bytes)));
            }
            done += ROUND;
        }
        let nanoseconds = begin.elapsed().as_secs_f64() * 1e9 / f64::from(done);
        results.add(GROUP, &name(packet), Unit::Nanoseconds, nanoseconds);
    }
}

/// Bytes of the base transport header, all that a packet in the middle of a message has.
const BTH: usize = 12;
/// Packets between two looks at the clock.
const ROUND: u32 = 256;
