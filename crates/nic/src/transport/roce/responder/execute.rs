//! Execution of request packets, and the responses that are kept of them.

use super::replies::{Reply, Result as Stored};
use crate::exec::{Range, Refusal, Request, invalid};
use crate::platform::Platform;
use crate::qp::{MESSAGE_MAX, Message};
use crate::transport::roce::Responder;
use crate::wire::{Header, Op, Part, Reth};
use rdmesh_verbs::{Access, QpType};

type Executed<T> = core::result::Result<T, Refusal>;

impl<P: Platform> Responder<'_, P> {
    /// Executes a request packet. Returns how many PSNs it takes.
    pub(super) fn execute_packet(&mut self, header: &Header, payload: &[u8]) -> Executed<u32> {
        let request = Request { op: header.op, solicited: header.solicited, payload };
        match header.op {
            Op::Send { part, .. } => {
                self.check_length(part, payload.len())?;
                self.exec().execute_send(&request)?;
                self.count_message(part);
            }
            Op::Write { part, .. } => {
                self.check_length(part, payload.len())?;
                self.exec().execute_write(&request)?;
                self.count_message(part);
            }
            _ if self.qp.recv.message != Message::None || self.qp.made().qp_type == QpType::Uc => return Err(invalid()),
            Op::ReadRequest(reth) => return self.execute_read(header, reth),
            _ => self.execute_stored(header, payload)?,
        }
        Ok(1)
    }

    fn execute_read(&mut self, header: &Header, reth: Reth) -> Executed<u32> {
        let len = u64::from(reth.len);
        if len > MESSAGE_MAX || !self.takes_reads() {
            return Err(invalid());
        }
        self.exec().reach(&Range { addr: reth.addr, rkey: reth.rkey, len }, Access::REMOTE_READ)?;
        let psns = reth.len.div_ceil(self.qp.attr.path_mtu.bytes()).max(1);
        self.store(Reply::read(header, psns, reth))?;
        self.exec().count_read(len, true);
        Ok(psns)
    }

    /// Executes an operation that must not be executed twice: the result is kept for duplicates (IBA 9.7.5.1.3).
    fn execute_stored(&mut self, header: &Header, payload: &[u8]) -> Executed<()> {
        if !matches!(header.op, Op::Flush { .. }) && !self.takes_reads() {
            return Err(invalid());
        }
        if !self.connection.responder.replies.has_room() {
            return Err(invalid());
        }
        let result = match self.exec().execute_atomic(&header.op, payload.try_into().ok())? {
            Some(original) => Stored::Original(original),
            None => Stored::Done,
        };
        self.store(Reply::stored(header, result))
    }

    /// A QP that takes no READs and atomics (`max_dest_rd_atomic`) refuses them, as rxe does.
    fn takes_reads(&self) -> bool {
        self.qp.attr.max_dest_rd_atomic != 0
    }

    /// Keeps a reply, to be sent. More than were agreed on are an error of the peer (IBA 9.7.4.1.7).
    fn store(&mut self, reply: Reply) -> Executed<()> {
        if !self.connection.responder.replies.push(reply) {
            return Err(invalid());
        }
        self.count_message(Part::Only);
        Ok(())
    }

    /// Whether a packet with `part` of a message may have so much payload (IBA 9.7.4.1.6).
    fn check_length(&self, part: Part, len: usize) -> Executed<()> {
        let mtu = self.qp.attr.path_mtu.bytes() as usize;
        let fits = match part {
            Part::First | Part::Middle => len == mtu,
            Part::Last => (1..=mtu).contains(&len),
            Part::Only => len <= mtu,
        };
        if fits { Ok(()) } else { Err(invalid()) }
    }

    /// Counts completed messages (IBA 9.7.5.1.2).
    fn count_message(&mut self, part: Part) {
        let responder = &mut self.connection.responder;
        responder.msn = (responder.msn + u32::from(part.is_last())) & MSN_MASK;
    }
}

const MSN_MASK: u32 = 0xff_ffff;
