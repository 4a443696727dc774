//! Summary of an open device, for rdma_cm.

use rdmesh_nic::ExternalPort;
use rdmesh_verbs::Mtu;

/// A device, as far as rdma_cm needs to know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OpenDevice {
    /// Its number in lists: no other of the endpoint has it.
    pub(super) number: u32,
    /// The port's active MTU.
    pub(super) mtu: Mtu,
    pub(super) external: Option<ExternalPort>,
}
