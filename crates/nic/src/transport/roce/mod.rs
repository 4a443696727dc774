//! RoCEv2 transport as Linux rxe and NICs speak it (IBA volume 1 chapter 9, annex A17): reliability between hosts.
//!
//! Work requests, receive requests, keys and states are those of [`crate::exec`]; this module adds what a lossy network
//! needs.
//!
//! * [`connection`]: transport state of a connected queue pair.
//! * [`requester`]: request packets, acknowledgements, going back after a loss (go-back-N), time-outs.
//! * [`responder`]: order, duplicates, responses kept for retransmission.
//! * [`time_wait`]: final ACKs of closed queue pairs.
//! * [`transmit`]: transmission of one queue pair when it is scheduled.

mod connection;
mod requester;
mod responder;
mod time_wait;
mod transmit;

pub(crate) use connection::Connection;
pub use requester::LEAST_SILENCE;
pub(crate) use time_wait::TimeWait;

use crate::device::{Context, Outputs};
use crate::exec::Exec;
use crate::platform::Platform;
use crate::qp::Core;
use crate::wire::{Header, Op, Service};
use rdmesh_verbs::{Psn, QpType};

/// How many times the READs and atomics that a queue pair has agreed on are kept for an rdmesh router: younger ones go on
/// while the answer to an old one is sent again.
const NATIVE_REPLIES: u32 = 4;

/// Send side of a queue pair that is connected to another host, and what its packets may touch.
struct Requester<'a, P: Platform> {
    /// The engine's index of the QP.
    index: u32,
    qp: &'a mut Core<P>,
    cx: &'a mut Context<P>,
    out: &'a mut Outputs<P::Memory>,
    connection: &'a mut Connection,
}

/// Receive side of a queue pair that is connected to another host, and what its packets may touch.
struct Responder<'a, P: Platform> {
    /// The engine's index of the QP.
    index: u32,
    qp: &'a mut Core<P>,
    cx: &'a mut Context<P>,
    out: &'a mut Outputs<P::Memory>,
    connection: &'a mut Connection,
}

impl<'a, P: Platform> Requester<'a, P> {
    fn new(exec: Exec<'a, P>, connection: &'a mut Connection) -> Self {
        let Exec { index, qp, cx, out } = exec;
        Self { index, qp, cx, out, connection }
    }

    fn exec(&mut self) -> Exec<'_, P> {
        Exec { index: self.index, qp: self.qp, cx: self.cx, out: self.out }
    }
}

impl<'a, P: Platform> Responder<'a, P> {
    fn new(exec: Exec<'a, P>, connection: &'a mut Connection) -> Self {
        let Exec { index, qp, cx, out } = exec;
        Self { index, qp, cx, out, connection }
    }

    fn exec(&mut self) -> Exec<'_, P> {
        Exec { index: self.index, qp: self.qp, cx: self.cx, out: self.out }
    }
}

/// A header from this queue pair to its peer.
fn header<P: Platform>(qp: &Core<P>, op: Op, psn: Psn) -> Header {
    let service = if qp.made().qp_type == QpType::Uc { Service::Uc } else { Service::Rc };
    Header::new(service, op, qp.attr.dest_qpn, psn)
}
