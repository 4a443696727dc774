//! The structs of the kernel's uapi headers (`ib_user_verbs.h`, `rdma_user_rxe.h`, `rdma_user_cm.h`), and the framing of commands.
//!
//! Field names are those of the headers. Every struct has no implicit padding, and its size is asserted against that of a C
//! compiler; reading one from a tenant's bytes copies it out.

/// Declares structs with the layout of C, all bytes of which are valid, and asserts their sizes.
macro_rules! uapi {
    ($($(#[$meta:meta])* struct $name:ident: $size:literal { $($field:ident: $type:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)]
        #[repr(C)]
        #[allow(missing_docs, reason = "the fields are those of the kernel's struct")]
        pub struct $name { $(pub $field: $type,)* }

        const _: () = assert!(size_of::<$name>() == $size);

        impl Default for $name {
            fn default() -> Self {
                zerocopy::FromZeros::new_zeroed()
            }
        }
    )*};
}

mod address;
mod cm;
mod command;
mod cq;
mod device;
mod ioctl;
mod memory;
mod method;
pub mod netlink;
mod qp;
mod rxe;
mod srq;

pub use address::{AhAttr, AttachMcast, CreateAh, CreateAhResponse, DestroyAh, GlobalRoute};
pub use cm::{
    Accept, Bind, BindIp, CM_ABI_VERSION, CM_PRIVATE_DATA, CmHeader, ConnParam, Connect, CreateId, CreateIdResponse,
    DestroyId, DestroyIdResponse, Disconnect, Ece, EventResponse, GetEvent, InitQpAttr, JoinIpMcast, JoinMcast, Listen,
    MigrateId, MigrateResponse, Notify, PathRecordData, Query, QueryAddrResponse, QueryIbServiceResponse,
    QueryPathResponse, QueryRouteResponse, Reject, ResolveAddr, ResolveIbService, ResolveIp, ResolveRoute, SetOption,
    UdParam, UserPathRecord, UverbsQpAttr, WriteCmEvent, cm_command, cm_option, cm_port_space, cm_query,
};
pub use command::{Command, CommandHeader, ExtendedCommandHeader, ParseError};
pub use cq::{
    CreateCompChannel, CreateCompChannelResponse, CreateCq, CreateCqResponse, DestroyCq, DestroyCqResponse, ExCreateCq,
    ExCreateCqResponse, ReqNotifyCq, ResizeCq, ResizeCqResponse,
};
pub use device::{
    CqModerationCaps, ExQueryDevice, ExQueryDeviceResponse, GetContext, GetContextResponse, OdpCaps, QueryDevice,
    QueryDeviceResponse, QueryPort, QueryPortResponse, RssCaps, TmCaps,
};
pub use ioctl::{
    Advice, AdviseSge, AttrKind, AttrSpec, Attributes, CHANNEL_ATTR, DRIVER_RXE, ExQueryPortResponse, GID_TYPE_ROCE_V2,
    GidEntry, MrInfo, QpCap, attr as ioctl_attr, find_method, ioctl_method, ioctl_object,
};
pub use memory::{
    AllocMw, AllocMwResponse, AllocPd, AllocPdResponse, DeallocMw, DeallocPd, DeregMr, RegMr, RegMrResponse, ReregMr,
    ReregMrResponse,
};
pub use method::{Method, number};
pub use qp::{
    CreateQp, CreateQpResponse, DestroyQp, DestroyQpResponse, ExCreateQp, ExCreateQpResponse, ExModifyQp,
    ExModifyQpResponse, ModifyQp, PostSend, PostSendResponse, QpDest, QueryQp, QueryQpResponse,
};
pub use rxe::{
    MmapInfo, RxeCreateAhResponse, RxeCreateCqResponse, RxeCreateQpResponse, RxeCreateSrqResponse, RxeModifySrq,
};
pub use srq::{
    CreateSrq, CreateSrqResponse, CreateXsrq, DestroySrq, DestroySrqResponse, ModifySrq, QuerySrq, QuerySrqResponse,
};
