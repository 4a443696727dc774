//! Messages on leases, by which a context outlives its program: bodies of [`RequestKind::Linger`](super::RequestKind).
//!
//! A body is a [`Call`] number, four zero bytes, and the struct of that call:
//! * `Ask`: [`Ask`], on a connection of the context; descriptor: the program's arena, or none. When the context's last connection
//!   ends, it stays for the term. Asked again, the term changes, and the token stays. Reply: [`Granted`]. ENOMEM where the
//!   term exceeds the endpoint's limit, EOPNOTSUPP where a region has private pages, which go with their process.
//! * `GiveUp`: nothing more. The context ends with its last connection again. Reply: none.
//! * `Attach`: a [`Token`], as the first message of a connection, which is the context's from then on. Reply: [`Attached`];
//!   descriptors: the queue memory and, if one was given, the arena. EACCES where there is no such lease.
//! * `List`: [`List`]. Reply: at most [`MAX_RECORDS`] records in the order of their handles: [`LeasedRegion`], [`LeasedCq`] or
//!   [`LeasedQp`].

use super::Token;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// An operation on leases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum Call {
    Ask = 1,
    GiveUp = 2,
    Attach = 3,
    List = 4,
}

impl Call {
    /// The body of a request.
    pub fn body(self, request: &(impl IntoBytes + Immutable + ?Sized)) -> Vec<u8> {
        [&(self as u32).to_ne_bytes()[..], &[0; 4], request.as_bytes()].concat()
    }
}

/// Request of [`Call::Ask`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Ask {
    /// Milliseconds for which the context stays.
    pub term: u64,
}

/// Reply to [`Call::Ask`].
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Granted {
    /// A secret, for [`Call::Attach`].
    pub token: Token,
}

/// Reply to [`Call::Attach`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Attached {
    /// Milliseconds of the term.
    pub term: u64,
    /// Milliseconds that were left of it.
    pub left: u64,
    /// The context's number in lists.
    pub device: u32,
    /// Regions.
    pub mrs: u32,
    /// Completion queues.
    pub cqs: u32,
    /// Queue pairs.
    pub qps: u32,
}

/// Kind of the objects in a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum ObjectKind {
    /// Memory regions.
    Region = 0,
    /// Completion queues.
    Cq = 1,
    /// Queue pairs.
    Qp = 2,
}

/// Request of [`Call::List`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct List {
    /// An [`ObjectKind`].
    pub kind: u32,
    /// The first handle that is of interest.
    pub from: u32,
}

/// A memory region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LeasedRegion {
    /// Its handle.
    pub mr: u32,
    /// Its key.
    pub key: u32,
    /// Handle of its protection domain.
    pub pd: u32,
    /// `IBV_ACCESS_*`.
    pub access: u32,
    /// The first address, as peers name it.
    pub iova: u64,
    /// Bytes.
    pub len: u64,
    /// Offset of its first byte in the arena; [`LeasedRegion::ELSEWHERE`] where it is not one piece of it.
    pub place: u64,
}

impl LeasedRegion {
    /// A region over a ring, or of several pieces.
    pub const ELSEWHERE: u64 = u64::MAX;
}

/// A ring in the queue memory, as `mmap` takes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RingPlace {
    /// Its offset.
    pub offset: u64,
    /// Bytes; 0 where there is none.
    pub len: u64,
}

/// A completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LeasedCq {
    /// Its handle.
    pub cq: u32,
    /// Entries that it holds.
    pub cqe: u32,
    /// Its ring.
    pub ring: RingPlace,
}

/// A queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LeasedQp {
    /// Its handle.
    pub qp: u32,
    /// Its number.
    pub qpn: u32,
    /// `enum ibv_qp_state`.
    pub state: u32,
    /// Its peer's number.
    pub dest_qpn: u32,
    /// Its send queue.
    pub send: RingPlace,
    /// Its receive queue; none where that is shared.
    pub receive: RingPlace,
}

/// Most records in a reply.
pub const MAX_RECORDS: usize = 500;

/// A parsed request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum LingerRequest {
    /// See [`Call::Ask`].
    Ask(Ask),
    /// See [`Call::GiveUp`].
    GiveUp,
    /// See [`Call::Attach`].
    Attach(Token),
    /// See [`Call::List`]; the first handle.
    List(ObjectKind, u32),
}

impl LingerRequest {
    /// Parses a body; none where it is malformed.
    pub fn parse(body: &[u8]) -> Option<Self> {
        let ([number, reserved], rest) = <[u32; 2]>::read_from_prefix(body).ok()?;
        if reserved != 0 {
            return None;
        }
        match number {
            n if n == Call::Ask as u32 => Ask::read_from_bytes(rest).ok().map(Self::Ask),
            n if n == Call::GiveUp as u32 => rest.is_empty().then_some(Self::GiveUp),
            n if n == Call::Attach as u32 => Token::read_from_bytes(rest).ok().map(Self::Attach),
            n if n == Call::List as u32 => {
                let List { kind, from } = List::read_from_bytes(rest).ok()?;
                let kinds = [ObjectKind::Region, ObjectKind::Cq, ObjectKind::Qp];
                kinds.into_iter().find(|known| *known as u32 == kind).map(|kind| Self::List(kind, from))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_exactly_its_struct() {
        let is_valid = |body: &[u8]| LingerRequest::parse(body).is_some();
        let ask = Call::Ask.body(&Ask { term: 7 });
        assert!(LingerRequest::parse(&ask) == Some(LingerRequest::Ask(Ask { term: 7 })));
        assert!(!is_valid(&ask[..ask.len() - 1]) && !is_valid(&[&ask[..], &[0]].concat()));
        let nothing: [u8; 0] = [];
        assert!(is_valid(&Call::GiveUp.body(&nothing)) && !is_valid(&Call::GiveUp.body(&[0u8])));
        assert!(is_valid(&Call::Attach.body(&[0u8; 16])) && !is_valid(&Call::Attach.body(&[0u8; 15])));
        assert!(!is_valid(&[9, 0, 0, 0, 0, 0, 0, 0]) && !is_valid(&[2, 0, 0, 0, 1, 0, 0, 0]));
        assert!((0..3).all(|kind| is_valid(&Call::List.body(&List { kind, from: 0 }))));
        assert!(!is_valid(&Call::List.body(&List { kind: 3, from: 0 })));
    }
}
