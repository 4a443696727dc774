//! Objects of a program that a command makes or destroys, as far as the agent has to know them.

use rdmesh_uverbs::abi::{
    Command, CreateCq, CreateQp, CreateSrq, CreateXsrq, DeregMr, DestroyCq, DestroyQp, DestroySrq, ExCreateCq,
    ExCreateQp, MmapInfo, ModifySrq, ReregMr, ResizeCq, number,
};
use rdmesh_uverbs::ring::Extent;
use zerocopy::FromBytes;

/// Kind of an object with events.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Object {
    Cq,
    Qp,
    Srq,
}

/// Effect of a command, if it succeeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// Makes a memory region, whose handle the response begins with.
    Register,
    /// Changes a memory region.
    Reregister(u32),
    /// Destroys a memory region.
    Deregister(u32),
    /// Makes an object, whose handle the response begins with, and whose events have this element. Its queues are named in the
    /// response from this offset on.
    Create(Object, u64, usize),
    /// Gives an object another queue, which is named likewise; none is named where it keeps the one it has.
    Resize(Object, u32, usize),
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
        let rings = command.out_len;
        let create = |object, element| Self::Create(object, element, rings);
        Some(match (command.number, command.extended) {
            (number::REG_MR, false) => Self::Register,
            (number::REREG_MR, false) => Self::Reregister(command.request::<ReregMr>().ok()?.mr_handle),
            (number::DEREG_MR, false) => Self::Deregister(command.request::<DeregMr>().ok()?.mr_handle),
            (number::CREATE_CQ, false) => create(Object::Cq, command.request::<CreateCq>().ok()?.user_handle),
            (number::CREATE_CQ, true) => create(Object::Cq, command.request::<ExCreateCq>().ok()?.user_handle),
            (number::CREATE_QP, false) => create(Object::Qp, command.request::<CreateQp>().ok()?.user_handle),
            (number::CREATE_QP, true) => create(Object::Qp, command.request::<ExCreateQp>().ok()?.user_handle),
            (number::CREATE_SRQ, false) => create(Object::Srq, command.request::<CreateSrq>().ok()?.user_handle),
            (number::CREATE_XSRQ, false) => create(Object::Srq, command.request::<CreateXsrq>().ok()?.user_handle),
            (number::RESIZE_CQ, false) => {
                Self::Resize(Object::Cq, command.request::<ResizeCq>().ok()?.cq_handle, rings)
            }
            // Where the new queue is, the reply's head says.
            (number::MODIFY_SRQ, false) => {
                Self::Resize(Object::Srq, command.request::<ModifySrq>().ok()?.srq_handle, usize::MAX)
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

/// Queues named by the `mminfo`s that lie behind one another in these bytes: whole pages of the queue memory.
pub(super) fn queues(bytes: &[u8]) -> Vec<Extent> {
    let infos = bytes.chunks_exact(size_of::<MmapInfo>()).filter_map(|info| MmapInfo::read_from_bytes(info).ok());
    let named = infos.take(2).filter(|info| info.size != 0);
    named.map(|info| Extent { offset: info.offset, len: u64::from(info.size).next_multiple_of(PAGE) }).collect()
}

const PAGE: u64 = 4096;
