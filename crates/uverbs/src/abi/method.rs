//! Command numbers of the device, and the sizes of their structs.

use super::*;
use std::mem::offset_of;

numbers! {
    /// `IB_USER_VERBS_CMD_*`.
    pub mod number("IB_USER_VERBS_CMD_"): u8 {
        GET_CONTEXT = 0,
        QUERY_DEVICE = 1,
        QUERY_PORT = 2,
        ALLOC_PD = 3,
        DEALLOC_PD = 4,
        CREATE_AH = 5,
        DESTROY_AH = 8,
        REG_MR = 9,
        REREG_MR = 11,
        DEREG_MR = 13,
        ALLOC_MW = 14,
        DEALLOC_MW = 16,
        CREATE_COMP_CHANNEL = 17,
        CREATE_CQ = 18,
        RESIZE_CQ = 19,
        DESTROY_CQ = 20,
        REQ_NOTIFY_CQ = 23,
        CREATE_QP = 24,
        QUERY_QP = 25,
        MODIFY_QP = 26,
        DESTROY_QP = 27,
        POST_SEND = 28,
        ATTACH_MCAST = 30,
        DETACH_MCAST = 31,
        CREATE_SRQ = 32,
        MODIFY_SRQ = 33,
        QUERY_SRQ = 34,
        DESTROY_SRQ = 35,
        CREATE_XSRQ = 39,
    }
}

/// Division of a command's buffers: core struct and provider's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Method {
    /// Bytes that the request must have at least.
    pub request: usize,
    /// Bytes that the response must have room for at least.
    pub response: usize,
    /// Whether bytes beyond these belong to the provider. Extended commands say so themselves.
    pub has_driver: bool,
}

impl Method {
    /// The command with this number; none where the device has no such command.
    pub fn find(number: u8, extended: bool) -> Option<Self> {
        if extended { Self::find_extended(number) } else { Self::find_plain(number) }
    }

    fn find_plain(number: u8) -> Option<Self> {
        Some(match number {
            number::GET_CONTEXT => Self::driver::<GetContext, GetContextResponse>(),
            number::QUERY_DEVICE => Self::plain::<QueryDevice, QueryDeviceResponse>(),
            number::QUERY_PORT => Self::plain::<QueryPort, QueryPortResponse>(),
            number::ALLOC_PD => Self::driver::<AllocPd, AllocPdResponse>(),
            number::DEALLOC_PD => Self::plain::<DeallocPd, ()>(),
            number::CREATE_AH => Self::driver::<CreateAh, CreateAhResponse>(),
            number::DESTROY_AH => Self::plain::<DestroyAh, ()>(),
            number::REG_MR => Self::driver::<RegMr, RegMrResponse>(),
            number::REREG_MR => Self::driver::<ReregMr, ReregMrResponse>(),
            number::DEREG_MR => Self::plain::<DeregMr, ()>(),
            number::ALLOC_MW => Self::driver::<AllocMw, AllocMwResponse>(),
            number::DEALLOC_MW => Self::plain::<DeallocMw, ()>(),
            number::CREATE_COMP_CHANNEL => Self::plain::<CreateCompChannel, CreateCompChannelResponse>(),
            number::CREATE_CQ => Self::driver::<CreateCq, CreateCqResponse>(),
            number::RESIZE_CQ => Self::driver::<ResizeCq, ResizeCqResponse>(),
            number::DESTROY_CQ => Self::plain::<DestroyCq, DestroyCqResponse>(),
            number::REQ_NOTIFY_CQ => Self::plain::<ReqNotifyCq, ()>(),
            number::CREATE_QP => Self::driver::<CreateQp, CreateQpResponse>(),
            number::QUERY_QP => Self::plain::<QueryQp, QueryQpResponse>(),
            number::MODIFY_QP => Self::plain::<ModifyQp, ()>(),
            number::DESTROY_QP => Self::plain::<DestroyQp, DestroyQpResponse>(),
            number::POST_SEND => Self::plain::<PostSend, PostSendResponse>(),
            number::ATTACH_MCAST | number::DETACH_MCAST => Self::plain::<AttachMcast, ()>(),
            number::CREATE_SRQ => Self::driver::<CreateSrq, CreateSrqResponse>(),
            number::MODIFY_SRQ => Self::driver::<ModifySrq, ()>(),
            number::QUERY_SRQ => Self::plain::<QuerySrq, QuerySrqResponse>(),
            number::DESTROY_SRQ => Self::plain::<DestroySrq, DestroySrqResponse>(),
            number::CREATE_XSRQ => Self::driver::<CreateXsrq, CreateSrqResponse>(),
            _ => return None,
        })
    }

    /// Extended structs may grow: the sizes are those up to the last field that the kernel insists on.
    fn find_extended(number: u8) -> Option<Self> {
        Some(match number {
            number::QUERY_DEVICE => {
                let response = offset_of!(ExQueryDeviceResponse, odp_caps);
                Self { response, ..Self::plain::<ExQueryDevice, ()>() }
            }
            number::CREATE_CQ => Self::plain::<ExCreateCq, ExCreateCqResponse>(),
            number::CREATE_QP => {
                let request = offset_of!(ExCreateQp, create_flags);
                Self { request, ..Self::plain::<ExCreateQp, ExCreateQpResponse>() }
            }
            number::MODIFY_QP => Self::plain::<ModifyQp, ExModifyQpResponse>(),
            _ => return None,
        })
    }

    fn plain<Request, Response>() -> Self {
        Self { request: size_of::<Request>(), response: size_of::<Response>(), has_driver: false }
    }

    fn driver<Request, Response>() -> Self {
        Self { has_driver: true, ..Self::plain::<Request, Response>() }
    }
}
