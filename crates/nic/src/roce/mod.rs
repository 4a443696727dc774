//! RoCEv2 transport as Linux rxe and NICs speak it (IBA volume 1 chapter 9, annex A17): reliability between hosts.
//!
//! Work requests, receive requests, keys and states are those of [`crate::engine`]; this module adds what a lossy network
//! needs.
//!
//! * [`connection`]: transport state of a connected queue pair.
//! * [`requester`]: request packets, acknowledgements, going back after a loss (go-back-N), time-outs.
//! * [`responder`]: order, duplicates, responses kept for retransmission.
//! * [`ended`]: final ACKs of closed queue pairs (TIME-WAIT).
//! * [`datagram`]: unreliable datagrams.
//! * [`emit`]: packets into trains.
//! * [`admit`]: admission of received packets.
//! * [`transmit`]: transmission of one queue pair when it is scheduled.

mod admit;
mod connection;
mod datagram;
mod emit;
mod ended;
mod requester;
mod responder;
mod transmit;

pub(crate) use admit::{Integrity, Opened};
pub(crate) use connection::Connection;
pub(crate) use emit::{ICRC_LEN, Peer, flow};
pub(crate) use ended::Ended;
pub(crate) use responder::ACK;

use crate::engine::packet::Nak;
use crate::wire::{Header, NakCode, Op, Part, Service};
use rdmesh_verbs::{Psn, Qpn};

/// Which part of a message begins or ends with a packet.
pub(crate) fn part(first: bool, last: bool) -> Part {
    match (first, last) {
        (true, true) => Part::Only,
        (true, false) => Part::First,
        (false, true) => Part::Last,
        (false, false) => Part::Middle,
    }
}

/// A header in the default partition.
pub(crate) fn header(service: Service, op: Op, dest: Qpn, psn: Psn) -> Header {
    Header {
        service,
        op,
        solicited: false,
        mig: false,
        pkey: DEFAULT_PKEY,
        fecn: false,
        becn: false,
        dest,
        ack_request: false,
        psn,
    }
}

impl From<Nak> for NakCode {
    fn from(nak: Nak) -> Self {
        match nak {
            Nak::InvalidRequest => Self::InvalidRequest,
            Nak::RemoteAccess => Self::RemoteAccess,
            Nak::RemoteOperation => Self::RemoteOperation,
        }
    }
}

const DEFAULT_PKEY: u16 = 0xffff;
