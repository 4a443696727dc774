//! Netlink attributes of the device, its port and its objects, as the kernel reports them to users without privilege.

use super::{DEVICE, Message};
use crate::endpoint::DEVICE_NAME;
use rdmesh_uverbs::abi::netlink::{nldev, nldev_attr as attr};
use rdmesh_uverbs::session::{CM_DEVICE, DeviceNumber, VERBS_DEVICE};
use rdmesh_verbs::{QpState, QpType};
use std::net::SocketAddr;

/// Attributes of the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Device {
    /// `enum ib_device_cap_flags`.
    pub(crate) capabilities: u64,
    /// Big-endian.
    pub(crate) node_guid: [u8; 8],
    /// Number of ports.
    pub(crate) ports: u32,
}

/// Attributes of its port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Port {
    /// Its number.
    pub(crate) number: u32,
    /// `enum ib_port_state`.
    pub(crate) state: u8,
    /// `enum ib_port_phys_state`.
    pub(crate) phys_state: u8,
    /// Index and name of its network interface, where the requester's namespace has it too.
    pub(crate) interface: Option<(u32, String)>,
}

/// A kind of objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Pd,
    Cq,
    Qp,
    CmId,
    Mr,
    Ctx,
    Srq,
}

impl Kind {
    /// All kinds, in the kernel's order.
    pub(crate) const ALL: [Self; 7] = [Self::Pd, Self::Cq, Self::Qp, Self::CmId, Self::Mr, Self::Ctx, Self::Srq];

    pub(super) fn of_command(command: u16) -> Option<Self> {
        Some(match command {
            nldev::RES_PD_GET => Self::Pd,
            nldev::RES_CQ_GET => Self::Cq,
            nldev::RES_QP_GET => Self::Qp,
            nldev::RES_CM_ID_GET => Self::CmId,
            nldev::RES_MR_GET => Self::Mr,
            nldev::RES_CTX_GET => Self::Ctx,
            nldev::RES_SRQ_GET => Self::Srq,
            _ => return None,
        })
    }

    /// The attribute by which one is asked for.
    pub(super) fn number_attribute(self) -> u16 {
        match self {
            Self::Pd => attr::RES_PDN,
            Self::Cq => attr::RES_CQN,
            Self::Qp => attr::RES_LQPN,
            Self::CmId => attr::RES_CM_IDN,
            Self::Mr => attr::RES_MRN,
            Self::Ctx => attr::RES_CTXN,
            Self::Srq => attr::RES_SRQN,
        }
    }

    /// Whether they belong to a port, not to the device.
    pub(super) fn is_of_port(self) -> bool {
        matches!(self, Self::Qp | Self::CmId)
    }

    /// The attributes that hold a list of them, and one of the list.
    pub(crate) fn list_attributes(self) -> (u16, u16) {
        match self {
            Self::Pd => (attr::RES_PD, attr::RES_PD_ENTRY),
            Self::Cq => (attr::RES_CQ, attr::RES_CQ_ENTRY),
            Self::Qp => (attr::RES_QP, attr::RES_QP_ENTRY),
            Self::CmId => (attr::RES_CM_ID, attr::RES_CM_ID_ENTRY),
            Self::Mr => (attr::RES_MR, attr::RES_MR_ENTRY),
            Self::Ctx => (attr::RES_CTX, attr::RES_CTX_ENTRY),
            Self::Srq => (attr::RES_SRQ, attr::RES_SRQ_ENTRY),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Pd => "pd",
            Self::Cq => "cq",
            Self::Qp => "qp",
            Self::CmId => "cm_id",
            Self::Mr => "mr",
            Self::Ctx => "ctx",
            Self::Srq => "srq",
        }
    }
}

/// An object. Numbers of protection domains, queues, regions and contexts are those of lists like this only.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Resource {
    Pd {
        number: u32,
        users: u64,
        context: u32,
    },
    Cq {
        number: u32,
        cqe: u32,
        users: u64,
        context: u32,
    },
    Qp {
        qpn: u32,
        qp_type: QpType,
        state: QpState,
        port: u8,
        pd: u32,
        peer: u32,
        rq_psn: u32,
        sq_psn: u32,
        migration: u8,
    },
    CmId(CmId),
    Mr {
        number: u32,
        len: u64,
        pd: u32,
    },
    Ctx {
        number: u32,
    },
    Srq {
        number: u32,
        pd: u32,
        qps: Vec<u32>,
    },
}

/// An `rdma_cm_id`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CmId {
    /// Its number.
    pub(crate) number: u32,
    /// Its queue pair's number, and the kind of that.
    pub(crate) qp: Option<(u32, QpType)>,
    /// `enum rdma_ucm_port_space`.
    pub(crate) space: u32,
    /// `enum rdma_cm_state`.
    pub(crate) state: u8,
    /// Its local address.
    pub(crate) source: Option<SocketAddr>,
    /// Its peer.
    pub(crate) dest: Option<SocketAddr>,
}

pub(crate) fn describe_device(message: &mut Message, device: &Device) {
    const IB_CA: u8 = 1;
    // The name was chosen when the device was made, as an rxe device's is.
    const NAMED_BY_USER: u8 = 1;
    let guid = u64::from_be_bytes(device.node_guid);
    handle(message);
    message.u32(attr::PORT_INDEX, device.ports);
    message.u64(attr::CAP_FLAGS, device.capabilities);
    message.u64(attr::NODE_GUID, guid);
    message.u64(attr::SYS_IMAGE_GUID, guid);
    message.u8(attr::DEV_NODE_TYPE, IB_CA);
    message.u8(attr::DEV_DIM, 0);
    message.u8(attr::NAME_ASSIGN_TYPE, NAMED_BY_USER);
    message.text(attr::DEV_PROTOCOL, "roce");
}

pub(crate) fn describe_port(message: &mut Message, port: &Port) {
    handle(message);
    message.u32(attr::PORT_INDEX, port.number);
    message.u8(attr::PORT_STATE, port.state);
    message.u8(attr::PORT_PHYS_STATE, port.phys_state);
    if let Some((index, name)) = &port.interface {
        message.u32(attr::NDEV_INDEX, *index);
        message.text(attr::NDEV_NAME, name);
    }
}

/// The device is in the endpoint's network namespace only; registered memory stays registered over a fork, whose child
/// gets a copy.
pub(crate) fn describe_system(message: &mut Message) {
    const EXCLUSIVE: u8 = 0;
    message.u8(attr::SYS_NETNS_MODE, EXCLUSIVE);
    message.u8(attr::SYS_PRIVILEGED_QKEY_MODE, 0);
    message.u8(attr::SYS_COPY_ON_FORK, 1);
}

pub(crate) fn describe_summary(message: &mut Message, counts: &[(Kind, u64)]) {
    handle(message);
    message.nest(attr::RES_SUMMARY, |message| {
        for (kind, count) in counts {
            message.nest(attr::RES_SUMMARY_ENTRY, |message| {
                message.text(attr::RES_SUMMARY_ENTRY_NAME, kind.name());
                message.u64(attr::RES_SUMMARY_ENTRY_CURR, *count);
            });
        }
    });
}

/// Writes what the character device of `kind` is; false where there is none.
pub(crate) fn describe_chardev(message: &mut Message, kind: &[u8], of_device: bool) -> bool {
    // `RDMA_DRIVER_RXE`: the provider that drives the device.
    const RXE: u32 = 14;
    let (DeviceNumber { major, minor }, abi, name) = match (kind, of_device) {
        (b"uverbs", true) => (VERBS_DEVICE, RXE_ABI, "uverbs0"),
        (b"rdma_cm", false) => (CM_DEVICE, u64::from(rdmesh_uverbs::abi::CM_ABI_VERSION), "rdma_cm"),
        _ => return false,
    };
    if of_device {
        message.u32(attr::UVERBS_DRIVER_ID, RXE);
    }
    // As `huge_encode_dev` of the kernel writes it.
    message.u64(attr::CHARDEV, u64::from(minor & 0xff | major << 8 | (minor & !0xff) << 12));
    message.u64(attr::CHARDEV_ABI, abi);
    message.text(attr::CHARDEV_NAME, name);
    true
}

pub(crate) fn describe_statistic(
    message: &mut Message,
    port: u32,
    counters: impl Iterator<Item = (&'static str, u64)>,
) {
    handle(message);
    message.u32(attr::PORT_INDEX, port);
    message.nest(attr::STAT_HWCOUNTERS, |message| {
        for (name, value) in counters {
            message.nest(attr::STAT_HWCOUNTER_ENTRY, |message| {
                message.text(attr::STAT_HWCOUNTER_ENTRY_NAME, name);
                message.u64(attr::STAT_HWCOUNTER_ENTRY_VALUE, value);
            });
        }
    });
}

/// The list of counters, none of which a program can switch on or off. Without counters, the mode of their binding to queue
/// pairs: none.
pub(crate) fn describe_status(message: &mut Message, port: u32, counters: Option<impl Iterator<Item = &'static str>>) {
    const UNBOUND: u32 = 0;
    handle(message);
    message.u32(attr::PORT_INDEX, port);
    let Some(counters) = counters else { return message.u32(attr::STAT_MODE, UNBOUND) };
    message.nest(attr::STAT_HWCOUNTERS, |message| {
        for (index, name) in (0..).zip(counters) {
            message.nest(attr::STAT_HWCOUNTER_ENTRY, |message| {
                message.text(attr::STAT_HWCOUNTER_ENTRY_NAME, name);
                message.u32(attr::STAT_HWCOUNTER_INDEX, index);
            });
        }
    });
}

/// Writes an object, with its process `pid` where the requester may know it.
pub(crate) fn describe_resource(message: &mut Message, resource: &Resource, pid: Option<u32>) {
    match resource {
        Resource::Pd { number, users, context } => {
            message.u64(attr::RES_USECNT, *users);
            message.u32(attr::RES_PDN, *number);
            message.u32(attr::RES_CTXN, *context);
        }
        Resource::Cq { number, cqe, users, context } => {
            message.u32(attr::RES_CQE, *cqe);
            message.u64(attr::RES_USECNT, *users);
            message.u8(attr::DEV_DIM, 0);
            message.u32(attr::RES_CQN, *number);
            message.u32(attr::RES_CTXN, *context);
        }
        Resource::Qp { .. } => queue_pair(message, resource),
        Resource::CmId(id) => cm_id(message, id),
        Resource::Mr { number, len, pd } => {
            message.u64(attr::RES_MRLEN, *len);
            message.u32(attr::RES_MRN, *number);
            message.u32(attr::RES_PDN, *pd);
        }
        Resource::Ctx { number } => message.u32(attr::RES_CTXN, *number),
        Resource::Srq { number, pd, qps } => {
            const BASIC: u8 = 0;
            message.u32(attr::RES_SRQN, *number);
            message.u8(attr::RES_TYPE, BASIC);
            message.u32(attr::RES_PDN, *pd);
            message.nest(attr::RES_QP, |message| ranges(message, qps));
        }
    }
    if let Some(pid) = pid {
        message.u32(attr::RES_PID, pid);
    }
}

/// Writes the device to which an object belongs.
pub(crate) fn handle(message: &mut Message) {
    message.u32(attr::DEV_INDEX, DEVICE);
    message.text(attr::DEV_NAME, DEVICE_NAME);
}

fn queue_pair(message: &mut Message, qp: &Resource) {
    let Resource::Qp { qpn, qp_type, state, port, pd, peer, rq_psn, sq_psn, migration } = qp else { return };
    if *port != 0 {
        message.u32(attr::PORT_INDEX, (*port).into());
    }
    message.u32(attr::RES_LQPN, *qpn);
    message.u32(attr::RES_PDN, *pd);
    if *qp_type != QpType::Ud {
        message.u32(attr::RES_RQPN, *peer);
        message.u32(attr::RES_RQ_PSN, *rq_psn);
    }
    message.u32(attr::RES_SQ_PSN, *sq_psn);
    if *qp_type != QpType::Ud {
        message.u8(attr::RES_PATH_MIG_STATE, *migration);
    }
    message.u8(attr::RES_TYPE, *qp_type as u8);
    message.u8(attr::RES_STATE, *state as u8);
}

fn cm_id(message: &mut Message, id: &CmId) {
    message.u32(attr::PORT_INDEX, crate::endpoint::PORT.into());
    if let Some((qpn, qp_type)) = id.qp {
        message.u32(attr::RES_LQPN, qpn);
        message.u8(attr::RES_TYPE, qp_type as u8);
    }
    message.u32(attr::RES_PS, id.space);
    message.u8(attr::RES_STATE, id.state);
    for (kind, address) in [(attr::RES_SRC_ADDR, id.source), (attr::RES_DST_ADDR, id.dest)] {
        if let Some(address) = address {
            message.bytes(kind, &storage(address));
        }
    }
    message.u32(attr::RES_CM_IDN, id.number);
}

/// An address as a `sockaddr_storage`.
fn storage(address: SocketAddr) -> [u8; 128] {
    let mut bytes = [0; 128];
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address {
        SocketAddr::V4(v4) => {
            bytes[..2].copy_from_slice(&AF_INET.to_ne_bytes());
            bytes[4..8].copy_from_slice(&v4.ip().octets());
        }
        SocketAddr::V6(v6) => {
            bytes[..2].copy_from_slice(&AF_INET6.to_ne_bytes());
            bytes[8..24].copy_from_slice(&v6.ip().octets());
            bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
        }
    }
    bytes
}

/// Writes numbers of queue pairs, ascending, with those that follow each other as one range. Of very many ranges, those
/// that one message has room for.
fn ranges(message: &mut Message, qps: &[u32]) {
    for range in qps.chunk_by(|a, b| a + 1 == *b).take(MAX_RANGES) {
        let [first, .., last] = range else {
            range.iter().for_each(|qpn| message.nest(attr::RES_QP_ENTRY, |message| message.u32(attr::RES_LQPN, *qpn)));
            continue;
        };
        message.nest(attr::RES_QP_ENTRY, |message| {
            message.u32(attr::MIN_RANGE, *first);
            message.u32(attr::MAX_RANGE, *last);
        });
    }
}

/// `RXE_UVERBS_ABI_VERSION`.
const RXE_ABI: u64 = 2;
const AF_INET: u16 = libc::AF_INET as u16;
const AF_INET6: u16 = libc::AF_INET6 as u16;
/// Each takes twenty bytes: that many fit beside all else.
const MAX_RANGES: usize = 150;
