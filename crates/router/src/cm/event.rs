//! rdma_cm events, as programs read them.

use rdmesh_uverbs::abi::{AhAttr, CM_PRIVATE_DATA, ConnParam, EventResponse, UdParam};
use zerocopy::IntoBytes;

/// `enum rdma_cm_event_type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Kind {
    AddressResolved = 0,
    AddressError = 1,
    RouteResolved = 2,
    ConnectRequest = 4,
    ConnectResponse = 5,
    Unreachable = 7,
    Rejected = 8,
    Established = 9,
    Disconnected = 10,
    MulticastJoin = 12,
    TimeWaitExit = 15,
    /// Made by the program, for itself.
    User = 18,
    /// Made by librdmacm, for itself.
    Internal = 19,
}

/// An event that waits to be read.
#[derive(Debug)]
pub(super) struct Pending {
    /// The identifier whose event it is.
    pub(super) id: u32,
    /// The group of it, where it is one's.
    pub(super) group: Option<u32>,
    pub(super) response: EventResponse,
    /// The identifier that a connection request has made.
    pub(super) child: Option<u32>,
}

/// An event without its addressee.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    pub(super) kind: Kind,
    /// Zero, an errno below zero, or the reason of a refusal.
    pub(super) status: i32,
    param: Option<Param>,
}

#[derive(Clone, Copy, Debug)]
enum Param {
    Connection(ConnParam),
    Datagram(UdParam),
    Argument([u8; 8]),
}

impl Event {
    /// An event without parameters.
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, status: 0, param: None }
    }

    pub(super) fn with_status(self, status: i32) -> Self {
        Self { status, ..self }
    }

    /// The same with connection parameters.
    pub(super) fn with_connection(self, param: ConnParam) -> Self {
        Self { param: Some(Param::Connection(param)), ..self }
    }

    /// With private data alone.
    pub(super) fn with_private(self, private: &[u8]) -> Self {
        let (private_data, private_data_len) = padded(private);
        self.with_connection(ConnParam { private_data, private_data_len, ..Default::default() })
    }

    /// With where datagrams go.
    pub(super) fn with_datagram(self, param: UdParam) -> Self {
        Self { param: Some(Param::Datagram(param)), ..self }
    }

    /// With the private argument of the command that caused it.
    pub(super) fn with_argument(self, argument: [u8; 8]) -> Self {
        Self { param: Some(Param::Argument(argument)), ..self }
    }

    /// The event as the program reads it, for the identifier `id` with the program's own number `uid`.
    pub(super) fn response(&self, uid: u64, id: u32) -> EventResponse {
        let mut response =
            EventResponse { uid, id, event: self.kind as u32, status: self.status as u32, ..Default::default() };
        let bytes = match &self.param {
            None => &[],
            Some(Param::Connection(param)) => param.as_bytes(),
            Some(Param::Datagram(param)) => param.as_bytes(),
            Some(Param::Argument(argument)) => argument,
        };
        response.param[..bytes.len()].copy_from_slice(bytes);
        response
    }
}

/// The parameters of a datagram service.
pub(super) fn datagram(qpn: u32, qkey: u32, ah_attr: AhAttr, private: &[u8]) -> UdParam {
    let (private_data, private_data_len) = padded(private);
    UdParam { qp_num: qpn, qkey, ah_attr, private_data, private_data_len, ..Default::default() }
}

/// Private data as events carry it.
pub(super) fn padded(private: &[u8]) -> ([u8; CM_PRIVATE_DATA], u8) {
    let mut bytes = [0; CM_PRIVATE_DATA];
    let len = private.len().min(usize::from(u8::MAX));
    bytes[..len].copy_from_slice(&private[..len]);
    (bytes, len as u8)
}
