//! Attribute tables of the methods, as in the kernel (`uverbs_std_types_*.c`).

use super::{ExQueryPortResponse, GidEntry, QpCap, attr, ioctl_method as method, ioctl_object as object};
use crate::abi::{AdviseSge, DestroyCqResponse, DestroyQpResponse, DestroySrqResponse};

/// An attribute that a method knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttrSpec {
    /// See [`attr`].
    pub id: u16,
    /// Kind of its content.
    pub kind: AttrKind,
    /// Whether the attribute is mandatory.
    pub is_mandatory: bool,
}

/// Kind of an attribute's content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AttrKind {
    /// Bytes for the device; up to eight lie in the attribute itself.
    In(Size),
    /// Room for bytes of the device's.
    Out(Size),
    /// The handle of an object; no length.
    Handle,
    /// Place for the handle of the new object.
    NewHandle,
    /// A descriptor; no length.
    Descriptor,
    /// Place for the number of the new descriptor.
    NewDescriptor,
}

/// Permitted length of an attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    /// At least.
    pub min: u16,
    /// Maximum length, or the length that this device knows.
    pub max: u16,
    /// Longer ones are fine, where what is beyond [`Size::max`] is zero.
    pub may_grow: bool,
}

impl AttrSpec {
    /// Not mandatory.
    const fn optional(self) -> Self {
        Self { is_mandatory: false, ..self }
    }
}

/// The attributes of a method; none where the device has no such method.
pub fn find_method(object: u16, method: u16) -> Option<&'static [AttrSpec]> {
    Some(match (object, method) {
        (object::DEVICE, method::INVOKE_WRITE) => INVOKE_WRITE,
        (object::DEVICE, method::QUERY_PORT) => QUERY_PORT,
        (object::DEVICE, method::GET_CONTEXT) => GET_CONTEXT,
        (object::DEVICE, method::QUERY_CONTEXT) => QUERY_CONTEXT,
        (object::DEVICE, method::QUERY_GID_TABLE) => QUERY_GID_TABLE,
        (object::DEVICE, method::QUERY_GID_ENTRY) => QUERY_GID_ENTRY,
        (object::PD, method::PD_DESTROY)
        | (object::AH, method::AH_DESTROY)
        | (object::MR, method::MR_DESTROY)
        | (object::MW, method::MW_DESTROY) => DESTROY,
        (object::CQ, method::CQ_CREATE) => CREATE_CQ,
        (object::CQ, method::CQ_DESTROY) => DESTROY_CQ,
        (object::QP, method::QP_CREATE) => CREATE_QP,
        (object::QP, method::QP_DESTROY) => DESTROY_QP,
        (object::SRQ, method::SRQ_CREATE) => CREATE_SRQ,
        (object::SRQ, method::SRQ_DESTROY) => DESTROY_SRQ,
        (object::MR, method::ADVISE_MR) => ADVISE_MR,
        (object::MR, method::QUERY_MR) => QUERY_MR,
        (object::MR, method::REG_DMABUF_MR) => REG_DMABUF_MR,
        (object::MR, method::REG_MR) => REG_MR,
        (object::ASYNC_EVENT, method::ASYNC_EVENT_ALLOC) => ASYNC_EVENT_ALLOC,
        _ => return None,
    })
}

const ANY: u16 = u16::MAX;

const INVOKE_WRITE: &[AttrSpec] = {
    use attr::invoke_write::*;
    &[constant(WRITE_CMD), input(CORE_IN, 4, ANY).optional(), output(CORE_OUT, 0, ANY).optional(), UHW_IN, UHW_OUT]
};

const QUERY_PORT: &[AttrSpec] = {
    use attr::query_port::*;
    &[constant(PORT_NUM), growing_output::<ExQueryPortResponse>(RESP, 48)]
};

const GET_CONTEXT: &[AttrSpec] = {
    use attr::context::*;
    &[output(NUM_COMP_VECTORS, 4, 4).optional(), output(CORE_SUPPORT, 8, 8).optional(), UHW_IN, UHW_OUT]
};

const QUERY_CONTEXT: &[AttrSpec] = {
    use attr::context::*;
    &[output(NUM_COMP_VECTORS, 4, 4).optional(), output(CORE_SUPPORT, 8, 8).optional()]
};

const QUERY_GID_TABLE: &[AttrSpec] = {
    use attr::gid_table::*;
    &[constant(ENTRY_SIZE), flags(FLAGS), output(RESP_ENTRIES, 0, ANY), output(RESP_NUM_ENTRIES, 8, 8)]
};

const QUERY_GID_ENTRY: &[AttrSpec] = {
    use attr::gid_entry::*;
    &[
        constant(PORT),
        constant(GID_INDEX),
        AttrSpec { is_mandatory: true, ..flags(FLAGS) },
        growing_output::<GidEntry>(RESP_ENTRY, 32),
    ]
};

const DESTROY: &[AttrSpec] = &[handle(attr::DESTROY_HANDLE)];

const DESTROY_CQ: &[AttrSpec] = &[handle(attr::DESTROY_HANDLE), exact_output::<DestroyCqResponse>(attr::DESTROY_RESP)];

const DESTROY_QP: &[AttrSpec] = &[handle(attr::DESTROY_HANDLE), exact_output::<DestroyQpResponse>(attr::DESTROY_RESP)];

const DESTROY_SRQ: &[AttrSpec] =
    &[handle(attr::DESTROY_HANDLE), exact_output::<DestroySrqResponse>(attr::DESTROY_RESP)];

const CREATE_CQ: &[AttrSpec] = {
    use attr::create_cq::*;
    &[
        NEW_HANDLE,
        input(CQE, 4, 4),
        input(USER_HANDLE, 8, 8),
        descriptor(COMP_CHANNEL),
        input(COMP_VECTOR, 4, 4),
        flags(FLAGS),
        output(RESP_CQE, 4, 4),
        descriptor(EVENT_FD),
        UHW_IN,
        UHW_OUT,
    ]
};

const CREATE_QP: &[AttrSpec] = {
    use attr::create_qp::*;
    &[
        NEW_HANDLE,
        handle(XRCD_HANDLE).optional(),
        handle(PD_HANDLE).optional(),
        handle(SRQ_HANDLE).optional(),
        handle(SEND_CQ_HANDLE).optional(),
        handle(RECV_CQ_HANDLE).optional(),
        handle(IND_TABLE_HANDLE).optional(),
        input(USER_HANDLE, 8, 8),
        growing_input::<QpCap>(CAP, 20),
        constant(TYPE),
        flags(FLAGS),
        input(SOURCE_QPN, 4, 4).optional(),
        descriptor(EVENT_FD),
        growing_output::<QpCap>(RESP_CAP, 20),
        output(RESP_QP_NUM, 4, 4),
        UHW_IN,
        UHW_OUT,
    ]
};

const CREATE_SRQ: &[AttrSpec] = {
    use attr::create_srq::*;
    &[
        NEW_HANDLE,
        handle(PD_HANDLE),
        handle(XRCD_HANDLE).optional(),
        handle(CQ_HANDLE).optional(),
        input(USER_HANDLE, 8, 8),
        input(MAX_WR, 4, 4),
        input(MAX_SGE, 4, 4),
        input(LIMIT, 4, 4),
        input(MAX_NUM_TAGS, 4, 4).optional(),
        constant(TYPE),
        descriptor(EVENT_FD),
        output(RESP_MAX_WR, 4, 4),
        output(RESP_MAX_SGE, 4, 4),
        output(RESP_SRQ_NUM, 4, 4).optional(),
        UHW_IN,
        UHW_OUT,
    ]
};

const ADVISE_MR: &[AttrSpec] = {
    use attr::advise_mr::*;
    &[
        handle(PD_HANDLE),
        constant(ADVICE),
        AttrSpec { is_mandatory: true, ..flags(FLAGS) },
        input(SGE_LIST, size_of::<AdviseSge>() as u16, ANY),
    ]
};

const QUERY_MR: &[AttrSpec] = {
    use attr::query_mr::*;
    &[
        handle(HANDLE),
        output(RESP_LKEY, 4, 4),
        output(RESP_RKEY, 4, 4),
        output(RESP_LENGTH, 8, 8),
        output(RESP_IOVA, 8, 8).optional(),
    ]
};

const REG_DMABUF_MR: &[AttrSpec] = {
    use attr::reg_dmabuf_mr::*;
    &[
        NEW_HANDLE,
        handle(PD_HANDLE),
        input(OFFSET, 8, 8),
        input(LENGTH, 8, 8),
        input(IOVA, 8, 8),
        input(FD, 4, 4),
        flags(ACCESS_FLAGS),
        output(RESP_LKEY, 4, 4),
        output(RESP_RKEY, 4, 4),
    ]
};

const REG_MR: &[AttrSpec] = {
    use attr::reg_mr::*;
    &[
        NEW_HANDLE,
        handle(PD_HANDLE),
        input(IOVA, 8, 8),
        input(ADDR, 8, 8).optional(),
        input(LENGTH, 8, 8),
        flags(ACCESS_FLAGS),
        descriptor(FD),
        input(FD_OFFSET, 8, 8).optional(),
        output(RESP_LKEY, 4, 4),
        output(RESP_RKEY, 4, 4),
        UHW_IN,
        UHW_OUT,
    ]
};

const ASYNC_EVENT_ALLOC: &[AttrSpec] =
    &[AttrSpec { id: attr::NEW_HANDLE, kind: AttrKind::NewDescriptor, is_mandatory: true }];

const NEW_HANDLE: AttrSpec = AttrSpec { id: attr::NEW_HANDLE, kind: AttrKind::NewHandle, is_mandatory: true };
const UHW_IN: AttrSpec = input(attr::UHW_IN, 0, ANY).optional();
const UHW_OUT: AttrSpec = output(attr::UHW_OUT, 0, ANY).optional();

const fn input(id: u16, min: u16, max: u16) -> AttrSpec {
    AttrSpec { id, kind: AttrKind::In(Size { min, max, may_grow: false }), is_mandatory: true }
}

/// A struct to which newer versions may add fields, of which `min` bytes are mandatory.
const fn growing_input<T>(id: u16, min: u16) -> AttrSpec {
    let size = Size { min, max: size_of::<T>() as u16, may_grow: true };
    AttrSpec { id, kind: AttrKind::In(size), is_mandatory: true }
}

const fn output(id: u16, min: u16, max: u16) -> AttrSpec {
    AttrSpec { id, kind: AttrKind::Out(Size { min, max, may_grow: false }), is_mandatory: true }
}

const fn exact_output<T>(id: u16) -> AttrSpec {
    output(id, size_of::<T>() as u16, size_of::<T>() as u16)
}

const fn growing_output<T>(id: u16, min: u16) -> AttrSpec {
    let size = Size { min, max: size_of::<T>() as u16, may_grow: true };
    AttrSpec { id, kind: AttrKind::Out(size), is_mandatory: true }
}

/// A number out of an enum, always of eight bytes.
const fn constant(id: u16) -> AttrSpec {
    input(id, 8, 8)
}

/// A set of flags, of four bytes or eight; without it no flag is set.
const fn flags(id: u16) -> AttrSpec {
    input(id, 4, 8).optional()
}

const fn handle(id: u16) -> AttrSpec {
    AttrSpec { id, kind: AttrKind::Handle, is_mandatory: true }
}

const fn descriptor(id: u16) -> AttrSpec {
    AttrSpec { id, kind: AttrKind::Descriptor, is_mandatory: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn methods() -> impl Iterator<Item = &'static [AttrSpec]> {
        (0..20).flat_map(|object| (0..8).filter_map(move |method| find_method(object, method)))
    }

    #[test]
    fn no_method_names_an_attribute_twice() {
        assert_eq!(methods().count(), 21);
        for specs in methods() {
            let mut ids: Vec<_> = specs.iter().map(|spec| spec.id).collect();
            ids.sort_unstable();
            ids.dedup();
            assert_eq!(ids.len(), specs.len());
        }
    }

    #[test]
    fn sizes_make_sense() {
        for spec in methods().flatten() {
            if let AttrKind::In(size) | AttrKind::Out(size) = spec.kind {
                assert!(size.min <= size.max, "{spec:?}");
            }
        }
    }
}
