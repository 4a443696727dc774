//! Command numbers of the device, and the sizes of their structs.

use super::*;
use std::mem::offset_of;

/// `IB_USER_VERBS_CMD_*`.
#[allow(missing_docs, reason = "the names are those of the kernel's enum")]
pub mod number {
    pub const GET_CONTEXT: u8 = 0;
    pub const QUERY_DEVICE: u8 = 1;
    pub const QUERY_PORT: u8 = 2;
    pub const ALLOC_PD: u8 = 3;
    pub const DEALLOC_PD: u8 = 4;
    pub const CREATE_AH: u8 = 5;
    pub const DESTROY_AH: u8 = 8;
    pub const REG_MR: u8 = 9;
    pub const REREG_MR: u8 = 11;
    pub const DEREG_MR: u8 = 13;
    pub const ALLOC_MW: u8 = 14;
    pub const DEALLOC_MW: u8 = 16;
    pub const CREATE_COMP_CHANNEL: u8 = 17;
    pub const CREATE_CQ: u8 = 18;
    pub const RESIZE_CQ: u8 = 19;
    pub const DESTROY_CQ: u8 = 20;
    pub const REQ_NOTIFY_CQ: u8 = 23;
    pub const CREATE_QP: u8 = 24;
    pub const QUERY_QP: u8 = 25;
    pub const MODIFY_QP: u8 = 26;
    pub const DESTROY_QP: u8 = 27;
    pub const POST_SEND: u8 = 28;
    pub const ATTACH_MCAST: u8 = 30;
    pub const DETACH_MCAST: u8 = 31;
    pub const CREATE_SRQ: u8 = 32;
    pub const MODIFY_SRQ: u8 = 33;
    pub const QUERY_SRQ: u8 = 34;
    pub const DESTROY_SRQ: u8 = 35;
    pub const CREATE_XSRQ: u8 = 39;
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
