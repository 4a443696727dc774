//! The structs of the kernel's uapi headers (`ib_user_verbs.h`, `rdma_user_rxe.h`, `rdma_user_cm.h`), and the framing of commands.
//!
//! Field names are those of the headers, except where another one stands beside the field. No struct has implicit padding.
//! Sizes and offsets are asserted here, and a test compares them, and the numbers of commands, with the installed headers
//! (`layout`). Reading a struct from a tenant's bytes copies it out.

/// Declares structs with the layout of C, all bytes of which are valid, and asserts their sizes and the offsets of their fields.
///
/// * `struct Name("c_name"): size` names the struct in C, or a member of one (`"c_name.member"`).
/// * `size of whole` describes the first `size` bytes of a longer struct.
/// * `[offset] field("c_field"): type` names the field in C where that is another name; `("")` is a field that the headers do
///   not name, or not all by the same name.
macro_rules! uapi {
    ($(
        $(#[$meta:meta])*
        struct $name:ident($c_name:literal): $size:literal $(of $whole:literal)? {
            $([$offset:literal] $field:ident $(($c_field:literal))?: $type:ty,)*
        }
    )*) => {
        $(
            #[doc = concat!("`", $c_name, "`.")]
            #[doc = ""]
            $(#[$meta])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)]
            #[repr(C)]
            #[allow(missing_docs, reason = "the fields are those of the kernel's struct")]
            pub struct $name { $(pub $field: $type,)* }

            const _: () = {
                assert!(size_of::<$name>() == $size);
                $(assert!(core::mem::offset_of!($name, $field) == $offset);)*
            };

            impl Default for $name {
                fn default() -> Self {
                    zerocopy::FromZeros::new_zeroed()
                }
            }
        )*

        #[cfg(test)]
        pub(super) const LAYOUTS: &[$crate::abi::layout::Layout] = &[$(
            $crate::abi::layout::Layout {
                name: stringify!($name),
                c_name: $c_name,
                c_size: $crate::abi::layout::last(&[$size $(, $whole)?]),
                fields: &[$(
                    $crate::abi::layout::Field {
                        c_name: $crate::abi::layout::last(&[stringify!($field) $(, $c_field)?]),
                        offset: $offset,
                        size: size_of::<$type>(),
                    },
                )*],
            },
        )*];
    };
}

/// Declares modules of numbers; `pub mod name("PREFIX_"): type` names what their names in C begin with.
///
/// `NAME("C_NAME") = value` is for a number whose name in C is another one; `("")` is one that only router and library know.
macro_rules! numbers {
    ($(
        $(#[$meta:meta])*
        pub mod $module:ident($prefix:literal): $type:ty {
            $($(#[$doc:meta])* $name:ident $(($c_name:literal))? = $value:literal,)*
        }
    )*) => {
        $(
            $(#[$meta])*
            #[allow(missing_docs, reason = "the names are those of the kernel's enums")]
            pub mod $module {
                $($(#[$doc])* pub const $name: $type = $value;)*
            }
        )*

        #[cfg(test)]
        pub(super) const NUMBERS: &[(&str, u64)] = &[$($(
            ($crate::abi::layout::last(&[concat!($prefix, stringify!($name)) $(, $c_name)?]), $value),
        )*)*];
    };
}

mod address;
mod cm;
mod command;
mod cq;
mod device;
mod event;
mod ioctl;
#[cfg(test)]
mod layout;
mod memory;
mod method;
pub mod netlink;
mod qp;
mod rxe;
mod sockaddr;
mod srq;

pub use address::{AhAttr, AttachMcast, CreateAh, CreateAhResponse, DestroyAh, GlobalRoute};
pub use cm::{
    Accept, Bind, BindIp, CM_ABI_VERSION, CM_PRIVATE_DATA, CmHeader, ConnParam, Connect, CreateId, CreateIdResponse,
    DestroyId, DestroyIdResponse, Disconnect, Ece, EventResponse, GetEvent, InitQpAttr, JoinIpMcast, JoinMcast, Listen,
    MigrateId, MigrateResponse, Notify, PathRecordData, Query, QueryAddrResponse, QueryIbServiceResponse,
    QueryPathResponse, QueryRouteResponse, Reject, ResolveAddr, ResolveIbService, ResolveIp, ResolveRoute, SetOption,
    UdParam, UserPathRecord, UverbsQpAttr, WriteCmEvent, cm_command, cm_option, cm_port_space, cm_query,
};
pub use command::{Command, CommandHeader, EXTENDED, ExtendedCommandHeader, NUMBER_MASK, ParseError};
pub use cq::{
    CreateCompChannel, CreateCompChannelResponse, CreateCq, CreateCqResponse, DestroyCq, DestroyCqResponse, ExCreateCq,
    ExCreateCqResponse, ReqNotifyCq, ResizeCq, ResizeCqResponse, WorkCompletion,
};
pub use device::{
    CqModerationCaps, ExQueryDevice, ExQueryDeviceResponse, GetContext, GetContextResponse, OdpCaps, QueryDevice,
    QueryDeviceResponse, QueryPort, QueryPortResponse, RssCaps, TmCaps,
};
pub use event::{AsyncEventDesc, CompEventDesc};
pub use ioctl::{
    Advice, AdviseSge, AttrKind, AttrSpec, Attributes, CHANNEL_ATTR, DRIVER_RXE, ExQueryPortResponse, GID_TYPE_ROCE_V2,
    GidEntry, QpCap, VERBS_IOCTL, VerbsIoctl, VerbsIoctlAttr, attr as ioctl_attr, find_method, ioctl_method,
    ioctl_object,
};
pub use memory::{
    AllocMw, AllocMwResponse, AllocPd, AllocPdResponse, DeallocMw, DeallocPd, DeregMr, RegMr, RegMrResponse, ReregMr,
    ReregMrResponse,
};
pub use method::{Method, number};
pub use qp::{
    CreateQp, CreateQpResponse, DestroyQp, DestroyQpResponse, ExCreateQp, ExCreateQpResponse, ExModifyQp,
    ExModifyQpResponse, ModifyQp, PostSend, PostSendResponse, QpDest, QueryQp, QueryQpResponse, wr_opcode,
};
pub use rxe::{
    MmapInfo, RxeAtomicArgs, RxeCreateAhResponse, RxeCreateCqResponse, RxeCreateQpResponse, RxeCreateSrqResponse,
    RxeDmaInfo, RxeFlushArgs, RxeModifySrq, RxeMwArgs, RxeQueueBuf, RxeRdmaArgs, RxeRecvWqe, RxeSendWqe, RxeSendWr,
    RxeSge, RxeUdArgs,
};
pub use sockaddr::{SaPathRecord, SockaddrIb, SockaddrIn, SockaddrIn6, address_family};
pub use srq::{
    CreateSrq, CreateSrqResponse, CreateXsrq, DestroySrq, DestroySrqResponse, ModifySrq, QuerySrq, QuerySrqResponse,
};
