//! Objects of a program that a command makes or destroys, as far as the agent has to know them.

use rdmesh_uverbs::abi::{
    Command, CreateCq, CreateQp, CreateSrq, CreateXsrq, DeregMr, DestroyCq, DestroyQp, DestroySrq, ExCreateCq,
    ExCreateQp, ReregMr, number,
};

/// Kind of an object with events.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Object {
    Cq,
    Qp,
    Srq,
}

/// What a command does, if it succeeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// Makes a memory region, whose handle the response begins with.
    Register,
    /// Changes a memory region.
    Reregister(u32),
    /// Destroys a memory region.
    Deregister(u32),
    /// Makes an object, whose handle the response begins with, and whose events have this element.
    Create(Object, u64),
    /// Destroys an object; the response has the numbers of its events.
    Destroy(Object, u32),
    /// Nothing of these.
    Other,
}

impl Change {
    /// The change that the bytes of a `write()` make.
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self::parse(bytes).unwrap_or(Self::Other)
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let command = Command::parse(bytes).ok()?;
        let command = &command;
        Some(match (command.number, command.extended) {
            (number::REG_MR, false) => Self::Register,
            (number::REREG_MR, false) => Self::Reregister(command.request::<ReregMr>().ok()?.mr_handle),
            (number::DEREG_MR, false) => Self::Deregister(command.request::<DeregMr>().ok()?.mr_handle),
            (number::CREATE_CQ, false) => Self::Create(Object::Cq, command.request::<CreateCq>().ok()?.user_handle),
            (number::CREATE_CQ, true) => Self::Create(Object::Cq, command.request::<ExCreateCq>().ok()?.user_handle),
            (number::CREATE_QP, false) => Self::Create(Object::Qp, command.request::<CreateQp>().ok()?.user_handle),
            (number::CREATE_QP, true) => Self::Create(Object::Qp, command.request::<ExCreateQp>().ok()?.user_handle),
            (number::CREATE_SRQ, false) => Self::Create(Object::Srq, command.request::<CreateSrq>().ok()?.user_handle),
            (number::CREATE_XSRQ, false) => {
                Self::Create(Object::Srq, command.request::<CreateXsrq>().ok()?.user_handle)
            }
            (number::DESTROY_CQ, false) => Self::Destroy(Object::Cq, command.request::<DestroyCq>().ok()?.cq_handle),
            (number::DESTROY_QP, false) => Self::Destroy(Object::Qp, command.request::<DestroyQp>().ok()?.qp_handle),
            (number::DESTROY_SRQ, false) => {
                Self::Destroy(Object::Srq, command.request::<DestroySrq>().ok()?.srq_handle)
            }
            _ => return None,
        })
    }
}
