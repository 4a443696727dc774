//! Port counters of the device.
//!
//! Only figures that the engine has, under the names by which the kernel's drivers show the same. Data is payload: within the
//! host there are no headers.

use rdmesh_nic::QpCounters;

/// A figure of all of an endpoint's queue pairs together.
pub(crate) type Counter = fn(&QpCounters) -> u64;

/// The unit of the port's data (IBA 16.1.3.5).
const WORD: u64 = 4;

/// Every counter, by its path below the port's.
pub(super) const COUNTERS: [(&str, Counter); 7] = [
    ("counters/port_xmit_data", |sum| (sum.tx_bytes - sum.read_bytes + sum.served_bytes) / WORD),
    ("counters/port_rcv_data", |sum| (sum.rx_bytes - sum.served_bytes + sum.read_bytes) / WORD),
    ("hw_counters/duplicate_request", |sum| sum.duplicates),
    ("hw_counters/out_of_seq_request", |sum| sum.out_of_order),
    ("hw_counters/local_ack_timeout_err", |sum| sum.retries),
    ("hw_counters/np_cnp_sent", |sum| sum.cnps_sent),
    ("hw_counters/rp_cnp_handled", |sum| sum.cnps_received),
];

/// The counters that NETLINK_RDMA tells of too, by their names there.
pub(crate) fn hw_counters() -> impl Iterator<Item = (&'static str, Counter)> {
    COUNTERS.iter().filter_map(|(path, counter)| Some((path.strip_prefix("hw_counters/")?, *counter)))
}

/// The counter with this path.
pub(crate) fn counter(path: &[u8]) -> Option<Counter> {
    COUNTERS.iter().find(|(name, _)| name.as_bytes() == path).map(|(_, counter)| *counter)
}
