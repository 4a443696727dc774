//! Datagrams to multicast groups, from senders of this host.

use super::table::QueuePairs;
use crate::device::{Context, Outputs, Slab};
use crate::memory::Payload;
use crate::packet::{Body, Head, Packet, acknowledgement};
use crate::path::NetworkGid;
use crate::platform::Platform;
use crate::transport::local::drop_request;
use crate::wire::{Op, Syndrome};

impl<P: Platform> QueuePairs<P> {
    /// Delivers a datagram to every member of a group in this engine.
    pub(super) fn deliver_to_group(
        &mut self,
        head: &Head,
        body: &Body<P::Memory>,
        contexts: &mut Slab<Context<P>>,
        out: &mut Outputs<P::Memory>,
    ) {
        // A connected QP may name the group's number as its peer's; no QP answers there.
        let (Op::Datagram { .. }, Body::Data(payload)) = (head.header.op, body) else {
            return drop_request(out, head);
        };
        self.for_members(NetworkGid::new(head.vni, head.ip.dest), contexts, out, |qp, mut env| {
            qp.handle_group(&mut env, head, payload);
            env.out.spend(u64::from(head.len));
        });
        let reply = head.reply(acknowledgement(Syndrome::ACK));
        out.packet(Packet { head: reply, body: Body::Data(Payload::empty()) });
    }
}
