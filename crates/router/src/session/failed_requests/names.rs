//! Names of commands, in the terms of the verbs API.

use crate::cm::peer_of_resolution;
use rdmesh_uverbs::abi::{Attributes, CmHeader, Command, CreateQp, ExCreateQp, cm_command, number};
use rdmesh_uverbs::session::RequestKind;
use rdmesh_uverbs::session::linger::LingerRequest;
use std::net::IpAddr;
use zerocopy::FromBytes;

/// Subject of a command.
pub(in crate::session) enum Subject {
    /// The creation of a queue pair of this type.
    QueuePair(u8),
    /// The registration of memory, or a lease of what was registered.
    Registration,
    /// The path to a peer.
    Resolution(Option<IpAddr>),
    /// Something else, by its function's name.
    Other(&'static str),
}

impl Subject {
    pub(in crate::session) fn name(&self) -> &'static str {
        match self {
            Self::QueuePair(_) => "ibv_create_qp",
            Self::Registration => "ibv_reg_mr",
            Self::Resolution(_) => "rdma_resolve_addr",
            Self::Other(name) => name,
        }
    }
}

/// The subject of a program's message.
pub(in crate::session) fn subject(kind: RequestKind, body: &[u8]) -> Subject {
    match kind {
        RequestKind::Open | RequestKind::OpenGuest => Subject::Other("ibv_open_device"),
        RequestKind::OpenCm => Subject::Other("rdma_create_event_channel"),
        RequestKind::Attach | RequestKind::AttachCm => Subject::Other("the device of the parent process"),
        RequestKind::Verbs => verbs(body),
        RequestKind::Ioctl => Subject::Other(method(body)),
        RequestKind::Cm | RequestKind::CmUnlessEvents => connection(body),
        RequestKind::Chain => Subject::Other("a command on managed queues"),
        RequestKind::Linger
            if LingerRequest::parse(body).is_some_and(|request| matches!(request, LingerRequest::Ask(_))) =>
        {
            Subject::Registration
        }
        RequestKind::Linger => Subject::Other("a command on leases"),
        RequestKind::GuestPages | RequestKind::GuestSegments => Subject::Other("pages of a guest's memory"),
        RequestKind::Counter => Subject::Other("a counter of the port"),
        RequestKind::Netlink => Subject::Other("a question to the device's netlink socket"),
    }
}

fn verbs(body: &[u8]) -> Subject {
    let Ok(command) = Command::parse(body) else { return Subject::Other("a command without sense") };
    let qp_type = match (command.number, command.extended) {
        (number::CREATE_QP, false) => command.request::<CreateQp>().map(|request| request.qp_type),
        (number::CREATE_QP, true) => command.request::<ExCreateQp>().map(|request| request.qp_type),
        (number::REG_MR, false) => return Subject::Registration,
        _ => return Subject::Other(verb(command.number)),
    };
    qp_type.map_or(Subject::Other("ibv_create_qp"), Subject::QueuePair)
}

fn method(body: &[u8]) -> &'static str {
    use rdmesh_uverbs::abi::{ioctl_method, ioctl_object};
    let Some(attributes) = Attributes::parse(body) else { return "an ioctl without sense" };
    match (attributes.object, attributes.method) {
        (ioctl_object::MR, ioctl_method::ADVISE_MR) => "ibv_advise_mr",
        (ioctl_object::MR, ioctl_method::QUERY_MR) => "ibv_import_mr",
        (ioctl_object::DEVICE, _) => "ibv_query_gid_ex",
        _ => "an ioctl of a kind that is not supported",
    }
}

fn connection(body: &[u8]) -> Subject {
    let Ok((header, rest)) = CmHeader::read_from_prefix(body) else { return Subject::Other("a command without sense") };
    match header.cmd {
        cm_command::RESOLVE_IP | cm_command::RESOLVE_ADDR => Subject::Resolution(peer_of_resolution(header.cmd, rest)),
        other => Subject::Other(function(other)),
    }
}

fn verb(command: u8) -> &'static str {
    match command {
        number::GET_CONTEXT => "ibv_open_device",
        number::QUERY_DEVICE => "ibv_query_device",
        number::QUERY_PORT => "ibv_query_port",
        number::ALLOC_PD => "ibv_alloc_pd",
        number::DEALLOC_PD => "ibv_dealloc_pd",
        number::CREATE_AH => "ibv_create_ah",
        number::DESTROY_AH => "ibv_destroy_ah",
        number::REREG_MR => "ibv_rereg_mr",
        number::DEREG_MR => "ibv_dereg_mr",
        number::ALLOC_MW => "ibv_alloc_mw",
        number::DEALLOC_MW => "ibv_dealloc_mw",
        number::CREATE_COMP_CHANNEL => "ibv_create_comp_channel",
        number::CREATE_CQ => "ibv_create_cq",
        number::RESIZE_CQ => "ibv_resize_cq",
        number::DESTROY_CQ => "ibv_destroy_cq",
        number::REQ_NOTIFY_CQ => "ibv_req_notify_cq",
        number::QUERY_QP => "ibv_query_qp",
        number::MODIFY_QP => "ibv_modify_qp",
        number::DESTROY_QP => "ibv_destroy_qp",
        number::POST_SEND => "ibv_post_send",
        number::ATTACH_MCAST => "ibv_attach_mcast",
        number::DETACH_MCAST => "ibv_detach_mcast",
        number::CREATE_SRQ | number::CREATE_XSRQ => "ibv_create_srq",
        number::MODIFY_SRQ => "ibv_modify_srq",
        number::QUERY_SRQ => "ibv_query_srq",
        number::DESTROY_SRQ => "ibv_destroy_srq",
        _ => "a command that is not supported",
    }
}

fn function(command: u32) -> &'static str {
    match command {
        cm_command::CREATE_ID => "rdma_create_id",
        cm_command::DESTROY_ID => "rdma_destroy_id",
        cm_command::BIND_IP | cm_command::BIND => "rdma_bind_addr",
        cm_command::RESOLVE_ROUTE => "rdma_resolve_route",
        cm_command::CONNECT => "rdma_connect",
        cm_command::LISTEN => "rdma_listen",
        cm_command::ACCEPT => "rdma_accept",
        cm_command::REJECT => "rdma_reject",
        cm_command::DISCONNECT => "rdma_disconnect",
        cm_command::INIT_QP_ATTR => "rdma_init_qp_attr",
        cm_command::SET_OPTION => "rdma_set_option",
        cm_command::NOTIFY => "rdma_notify",
        cm_command::JOIN_IP_MCAST | cm_command::JOIN_MCAST => "rdma_join_multicast",
        cm_command::LEAVE_MCAST => "rdma_leave_multicast",
        cm_command::MIGRATE_ID => "rdma_migrate_id",
        cm_command::RESOLVE_IB_SERVICE => "rdma_resolve_addrinfo",
        cm_command::WRITE_CM_EVENT => "rdma_write_cm_event",
        _ => "a command of rdma_cm",
    }
}

/// The name of a number of `enum ibv_qp_type`.
pub(in crate::session) fn qp_type(number: u8) -> &'static str {
    match number {
        8 => "RAW_PACKET",
        9 => "XRC_SEND",
        10 => "XRC_RECV",
        255 => "DRIVER",
        _ => "of an unknown number",
    }
}
