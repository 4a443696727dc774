//! Messages on managed queues and their groups, of the library's own: bodies of [`RequestKind::Chain`](super::RequestKind).
//!
//! A body is a [`Call`] number, four zero bytes, and the struct of that call:
//! * `Manage`: [`Manage`]. Makes queues of a connected queue pair managed, before RTS. Reply: [`Managed`].
//! * `Register`: [`Register`]. Registers the ring of a managed queue; the region goes with the queue pair. Reply: [`RingKey`].
//! * `Enable`: [`Enable`], as the request ENABLE does. Reply: none.
//! * `Seal`: [`SealPart`], then [`SealPart::count`] slots: each its bytes, a bit for each of the bytes that may change (from the
//!   lowest bit of the first byte on), and eight bytes with a bit for the code of each operation that it may have, or all
//!   ones for any. Parts come in order, the first from slot 0 on, which begins anew; the one with the last slot of the
//!   lap seals the queue. Reply: none.
//! * `Label`: [`LabelPart`], then [`LabelPart::count`] labels of [`LABEL_LEN`] bytes: the author's names of the requests of these
//!   slots, in UTF-8, with zero bytes at the end. What fails is named by them. Reply: none.
//! * `List`: [`List`]. Reply: [`Group`]s in the order of their numbers, at most [`MAX_GROUPS`].
//! * `Stop`, `Resume`, `Kill`: [`Order`]. Reply: none.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// An operation on managed queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum Call {
    Manage = 1,
    Register = 2,
    Enable = 3,
    Seal = 4,
    List = 5,
    Stop = 6,
    Resume = 7,
    Kill = 8,
    Label = 9,
}

impl Call {
    /// All operations.
    pub const ALL: [Self; 9] = [
        Self::Manage,
        Self::Register,
        Self::Enable,
        Self::Seal,
        Self::List,
        Self::Stop,
        Self::Resume,
        Self::Kill,
        Self::Label,
    ];

    /// The body of a request.
    pub fn body(self, request: &(impl IntoBytes + Immutable)) -> Vec<u8> {
        [&(self as u32).to_ne_bytes()[..], &[0; 4], request.as_bytes()].concat()
    }
}

/// A queue of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum QueueSide {
    /// The send queue.
    Send = 0,
    /// The receive queue.
    Receive = 1,
}

impl QueueSide {
    /// The side with number `n`.
    pub fn from_number(n: u32) -> Option<Self> {
        [Self::Send, Self::Receive].into_iter().find(|side| *side as u32 == n)
    }
}

/// Request of [`Call::Manage`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Manage {
    /// The queue pair.
    pub qp: u32,
    /// Group whose queues may enable each other, and end together: any number of the program's choice.
    pub group: u32,
    /// Queues to be managed, as a sum of [`Manage::SEND`] and [`Manage::RECEIVE`].
    pub sides: u32,
    /// Slots of a lap of the send queue; 0 for all that there are.
    pub send_cycle: u32,
    /// Slots of a lap of the receive queue; 0 for all that there are.
    pub receive_cycle: u32,
    /// Zero.
    pub reserved: u32,
}

impl Manage {
    /// The send queue.
    pub const SEND: u32 = 1;
    /// The receive queue.
    pub const RECEIVE: u32 = 2;
}

/// Reply to [`Call::Manage`]: all zero for a queue that is not managed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Managed {
    /// Bytes of a slot of the send queue.
    pub send_stride: u32,
    /// Slots of a lap.
    pub send_cycle: u32,
    /// Bytes of a slot of the receive queue.
    pub receive_stride: u32,
    /// Slots of a lap.
    pub receive_cycle: u32,
    /// Offset of the send queue's first slot in the context's queue memory.
    pub send_offset: u64,
    /// Offset of the receive queue's first slot.
    pub receive_offset: u64,
}

/// Request of [`Call::Register`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Register {
    /// The queue pair.
    pub qp: u32,
    /// A [`QueueSide`].
    pub side: u32,
    /// Protection domain of the region; [`Register::OWN_PD`] for the queue pair's.
    pub pd: u32,
    /// `IBV_ACCESS_*`.
    pub access: u32,
}

impl Register {
    /// The protection domain of the queue pair.
    pub const OWN_PD: u32 = u32::MAX;
}

/// Reply to [`Call::Register`]: slot `n` lies at address `n` times the stride.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RingKey {
    /// Handle of the region.
    pub mr: u32,
    /// Its key.
    pub key: u32,
    /// Bytes of a slot.
    pub stride: u32,
    /// Slots that there are.
    pub slots: u32,
}

/// Request of [`Call::Enable`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Enable {
    /// The queue pair.
    pub qp: u32,
    /// A [`QueueSide`].
    pub side: u32,
    /// Requests before this index may be executed.
    pub limit: u64,
}

/// Head of a request of [`Call::Seal`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SealPart {
    /// The queue pair.
    pub qp: u32,
    /// A [`QueueSide`].
    pub side: u32,
    /// The first slot of this part.
    pub first: u32,
    /// Slots that follow.
    pub count: u32,
}

impl SealPart {
    /// Bytes of what is said of a slot of `stride` bytes.
    pub fn record_len(stride: usize) -> usize {
        stride + stride / 8 + size_of::<u64>()
    }
}

/// Head of a request of [`Call::Label`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LabelPart {
    /// The queue pair.
    pub qp: u32,
    /// A [`QueueSide`].
    pub side: u32,
    /// The first slot that is named.
    pub first: u32,
    /// Labels that follow.
    pub count: u32,
}

/// Bytes of a label; a longer one is cut.
pub const LABEL_LEN: usize = 32;

/// Request of [`Call::List`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct List {
    /// The first number of a group that is of interest.
    pub from: u32,
    /// Zero.
    pub reserved: u32,
}

/// Request of [`Call::Stop`], [`Call::Resume`] and [`Call::Kill`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Order {
    /// The group.
    pub group: u32,
    /// Zero.
    pub reserved: u32,
}

/// A group of managed queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Group {
    /// Its number.
    pub group: u32,
    /// 0: running, 1: stopped, 2: ended.
    pub state: u32,
    /// Its queue pairs.
    pub qps: u32,
    /// Whether an error has ended it; the fields of the fault are zero where not.
    pub has_fault: u32,
    /// The fault: the queue pair, by handle.
    pub fault_qp: u32,
    /// The fault: a [`QueueSide`].
    pub fault_side: u32,
    /// The fault: `enum ibv_wc_status`.
    pub fault_status: u32,
    /// The fault: the key that the request named.
    pub fault_key: u32,
    /// The fault: the request, counted from the queue's first.
    pub fault_index: u64,
    /// The fault: the address that the request named.
    pub fault_addr: u64,
    /// Executed requests that move data, and NOPs.
    pub copies: u64,
    /// Executed atomic operations.
    pub atomics: u64,
    /// Executed WAITs and ENABLEs.
    pub orders: u64,
    /// Charged steps.
    pub steps: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Failed checks of SOFT reads.
    pub soft_faults: u64,
    /// Times that a queue stood still because the endpoint's budget of steps was spent.
    pub starved: u64,
}

/// Most groups in a reply.
pub const MAX_GROUPS: usize = 200;

/// A parsed request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChainRequest<'a> {
    /// See [`Call::Manage`].
    Manage(Manage),
    /// See [`Call::Register`].
    Register(Register, QueueSide),
    /// See [`Call::Enable`].
    Enable(Enable, QueueSide),
    /// See [`Call::Seal`]; with the slots.
    Seal(SealPart, QueueSide, &'a [u8]),
    /// See [`Call::List`].
    List(List),
    /// See [`Call::Label`]; with the labels.
    Label(LabelPart, QueueSide, &'a [[u8; LABEL_LEN]]),
    /// See [`Call::Stop`]; the group.
    Stop(u32),
    /// See [`Call::Resume`]; the group.
    Resume(u32),
    /// See [`Call::Kill`]; the group.
    Kill(u32),
}

impl<'a> ChainRequest<'a> {
    /// Parses a body; none where it is malformed. Fields without a meaning have to be zero.
    pub fn parse(body: &'a [u8]) -> Option<Self> {
        let ([number, reserved], rest) = <[u32; 2]>::read_from_prefix(body).ok()?;
        let call = Call::ALL.into_iter().find(|call| *call as u32 == number && reserved == 0)?;
        Some(match call {
            Call::Manage => Self::Manage(exactly(rest, |manage: &Manage| {
                manage.reserved == 0 && (1..=Manage::SEND | Manage::RECEIVE).contains(&manage.sides)
            })?),
            Call::Register => {
                let register: Register = exactly(rest, |_| true)?;
                Self::Register(register, QueueSide::from_number(register.side)?)
            }
            Call::Enable => {
                let enable: Enable = exactly(rest, |_| true)?;
                Self::Enable(enable, QueueSide::from_number(enable.side)?)
            }
            Call::Seal => {
                let (part, slots) = SealPart::read_from_prefix(rest).ok()?;
                Self::Seal(part, QueueSide::from_number(part.side)?, slots)
            }
            Call::Label => {
                let (part, labels) = LabelPart::read_from_prefix(rest).ok()?;
                let (labels, []) = labels.as_chunks() else { return None };
                if labels.len() != part.count as usize {
                    return None;
                }
                Self::Label(part, QueueSide::from_number(part.side)?, labels)
            }
            Call::List => Self::List(exactly(rest, |list: &List| list.reserved == 0)?),
            Call::Stop => Self::Stop(order(rest)?),
            Call::Resume => Self::Resume(order(rest)?),
            Call::Kill => Self::Kill(order(rest)?),
        })
    }
}

fn order(bytes: &[u8]) -> Option<u32> {
    exactly(bytes, |order: &Order| order.reserved == 0).map(|order| order.group)
}

fn exactly<T: FromBytes>(bytes: &[u8], is_valid: impl Fn(&T) -> bool) -> Option<T> {
    T::read_from_bytes(bytes).ok().filter(is_valid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_exactly_its_struct() {
        let body = Call::Kill.body(&Order { group: 7, reserved: 0 });
        assert_eq!(ChainRequest::parse(&body), Some(ChainRequest::Kill(7)));
        assert_eq!(ChainRequest::parse(&body[..body.len() - 1]), None);
        assert_eq!(ChainRequest::parse(&[&body[..], &[0]].concat()), None);
        assert_eq!(ChainRequest::parse(&Call::Kill.body(&Order { group: 7, reserved: 1 })), None);
        assert_eq!(ChainRequest::parse(&[10, 0, 0, 0, 0, 0, 0, 0]), None);
    }

    #[test]
    fn labels_are_as_many_as_there_are_said_to_be() {
        let labels = |count| {
            let head = Call::Label.body(&LabelPart { qp: 1, side: 1, first: 2, count });
            [&head[..], &[b'a'; 2 * LABEL_LEN]].concat()
        };
        assert!(matches!(ChainRequest::parse(&labels(2)), Some(ChainRequest::Label(_, QueueSide::Receive, [_, _]))));
        assert_eq!(ChainRequest::parse(&labels(1)), None);
        assert_eq!(ChainRequest::parse(&labels(2)[1..]), None);
    }

    #[test]
    fn sides_are_those_that_there_are() {
        let is_valid = |body: Vec<u8>| ChainRequest::parse(&body).is_some();
        let manage = |sides| is_valid(Call::Manage.body(&Manage { sides, ..Manage::default() }));
        assert!(!manage(0) && !manage(4));
        assert!((1..4).all(manage));
        let enable = |side| is_valid(Call::Enable.body(&Enable { side, ..Enable::default() }));
        assert!(enable(0) && enable(1) && !enable(2));
    }
}
