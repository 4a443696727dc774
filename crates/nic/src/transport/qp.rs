//! A queue pair on its transport: everything that the engine asks of it.

use super::Transport;
use super::local::{self, Local};
use super::roce::Connection;
use crate::command::{CongestionState, LaneCounts};
use crate::device::{Context, Outputs};
use crate::exec::{Exec, Request};
use crate::memory::Payload;
use crate::packet::{Body, Head};
use crate::path::Path;
use crate::path::{Envelope, Opened, Transmits, flow};
use crate::platform::Platform;
use crate::qp::{Core, Wait};
use crate::schedule::Order;
use crate::wire::Service;
use alloc::boxed::Box;
use rdmesh_verbs::{Psn, QpState, QpType};

/// A queue pair.
pub(crate) struct Qp<P: Platform> {
    core: Core<P>,
    transport: Transport<P::Memory>,
}

/// Surroundings of a queue pair: the parts of the engine that its work may touch.
pub(crate) struct Env<'a, P: Platform> {
    /// The engine's index of the QP.
    pub(crate) index: u32,
    pub(crate) cx: &'a mut Context<P>,
    pub(crate) out: &'a mut Outputs<P::Memory>,
}

impl<P: Platform> Qp<P> {
    /// In RESET, with an epoch that no queue pair of its number has used.
    pub(crate) fn new(core: Core<P>, epoch: u32) -> Self {
        Self { core, transport: Transport::Local(local::State::new(epoch)) }
    }

    /// The part that does not depend on the transport.
    pub(crate) fn core(&self) -> &Core<P> {
        &self.core
    }

    /// The same, to be changed.
    pub(crate) fn core_mut(&mut self) -> &mut Core<P> {
        &mut self.core
    }

    /// Its connection to another host.
    pub(crate) fn connection(&self) -> Option<&Connection> {
        match &self.transport {
            Transport::Local(_) => None,
            Transport::Roce(connection) => Some(connection),
        }
    }

    /// Enters `state` by command.
    pub(crate) fn enter(&mut self, mut env: Env<'_, P>, state: QpState) {
        let before = self.core.state();
        if state == QpState::Reset {
            self.disconnect(&mut env);
        }
        self.exec(&mut env).enter(state);
        match (state, &mut self.transport) {
            (QpState::Rtr, _) => self.connect(&mut env),
            (QpState::Rts, Transport::Roce(connection)) if before == QpState::Rtr => {
                connection.start(self.core.attr.sq_psn, self.core.made().qp_type);
            }
            _ => {}
        }
        self.follow(&mut env);
    }

    /// The peer has another address (IBA 10.3.1.6: allowed while the send queue is drained).
    pub(crate) fn move_peer(&mut self, env: &Env<'_, P>) {
        let peer = self.find_peer(env);
        if let (Transport::Roce(connection), Some(peer)) = (&mut self.transport, peer) {
            connection.move_peer(peer);
        }
    }

    /// Sends within the host for one turn. Returns whether it did anything.
    pub(crate) fn send_locally(&mut self, mut env: Env<'_, P>) -> bool {
        let worked = match &mut self.transport {
            Transport::Local(state) => Local::new(exec(&mut self.core, &mut env), state).run_sends(),
            // Only what is flushed needs no peer.
            Transport::Roce(_) => self.core.is_flushing() && self.exec(&mut env).flush_sends(),
        };
        self.follow(&mut env);
        worked
    }

    /// Appends packets to other hosts for one turn. Returns whether there are more at once.
    pub(crate) fn poll_transmit(&mut self, mut env: Env<'_, P>, to: &mut Transmits) -> bool {
        let has_more = match &mut self.transport {
            Transport::Local(_) if self.core.made().qp_type != QpType::Ud => false,
            Transport::Local(state) => Local::new(exec(&mut self.core, &mut env), state).send_datagrams(to),
            Transport::Roce(connection) => connection.poll_transmit(exec(&mut self.core, &mut env), to),
        };
        self.follow(&mut env);
        has_more
    }

    /// Executes a request packet from this host and sends its reply.
    pub(crate) fn handle_request(&mut self, mut env: Env<'_, P>, head: &Head, body: &Body<P::Memory>) {
        match &mut self.transport {
            Transport::Local(state) => {
                // A datagram does not come again.
                let comes_again = self.core.made().qp_type != QpType::Ud;
                P::serve(comes_again.then(|| self.core.packet_id(false, head.header.psn)));
                Local::new(exec(&mut self.core, &mut env), state).handle_request(head, body);
                P::serve(None);
            }
            Transport::Roce(_) => local::drop_request(env.out, head),
        }
        self.follow(&mut env);
    }

    /// Takes the reply to a request packet to this host.
    pub(crate) fn handle_reply(&mut self, mut env: Env<'_, P>, head: &Head, body: &mut Body<P::Memory>) {
        if let Transport::Local(state) = &mut self.transport {
            Local::new(exec(&mut self.core, &mut env), state).handle_reply(head, body);
        }
        self.follow(&mut env);
    }

    /// Takes a packet from another host that is known to come from the peer.
    pub(crate) fn handle_packet(&mut self, mut env: Env<'_, P>, opened: &Opened<'_>) {
        match &mut self.transport {
            _ if opened.header.service == Service::Ud => self.handle_datagram(&mut env, opened),
            Transport::Local(_) => {}
            Transport::Roce(connection) => {
                let header = &opened.header;
                let is_response = header.op.is_answer();
                P::serve(Some(self.core.packet_id(is_response, header.psn)));
                connection.handle_packet(exec(&mut self.core, &mut env), opened);
                P::serve(None);
            }
        }
        self.follow(&mut env);
    }

    /// Takes a datagram from another host.
    pub(crate) fn handle_datagram(&mut self, env: &mut Env<'_, P>, opened: &Opened<'_>) {
        let header = &opened.header;
        let request = Request { op: header.op, solicited: header.solicited, payload: opened.payload };
        let vni = env.cx.network.vni;
        self.exec(env).receive_datagram(vni, &opened.ip, &request);
    }

    /// Takes a datagram to a group from this host.
    pub(crate) fn handle_group(&mut self, env: &mut Env<'_, P>, head: &Head, payload: &Payload<P::Memory>) {
        let request = Request { op: head.header.op, solicited: head.header.solicited, payload };
        self.exec(env).receive_datagram(head.vni, &head.ip, &request);
    }

    /// A deadline has passed that may be this queue pair's.
    pub(crate) fn handle_timeout(&mut self, mut env: Env<'_, P>) {
        match &mut self.transport {
            Transport::Local(state) => Local::new(exec(&mut self.core, &mut env), state).handle_timeout(),
            Transport::Roce(connection) => connection.handle_timeout(exec(&mut self.core, &mut env)),
        }
        self.follow(&mut env);
    }

    /// Flushes receive requests that were posted since the queue pair is in error. Returns whether there were any.
    pub(crate) fn flush_receives(&mut self, mut env: Env<'_, P>) -> bool {
        let has_any = self.core.has_receives();
        if has_any {
            self.exec(&mut env).flush_receives();
        }
        has_any
    }

    /// Whether packets are with other queue pairs of this host, which read its memory when they execute them.
    pub(crate) fn has_packets_away(&self) -> bool {
        matches!(&self.transport, Transport::Local(state) if state.has_packets_away())
    }

    /// The path to its peer on another host.
    pub(crate) fn path(&self) -> Option<Path> {
        self.connection().map(|connection| connection.envelope.path())
    }

    /// Lanes that its requests leave by.
    pub(crate) fn lanes(&self) -> LaneCounts {
        self.connection().map(Connection::lanes).unwrap_or_default()
    }

    /// Congestion control of what it sends to another host.
    pub(crate) fn congestion(&self) -> Option<CongestionState> {
        self.connection().map(Connection::congestion)
    }

    /// The oldest PSN without an acknowledgement.
    pub(crate) fn unacked(&self) -> Psn {
        self.connection().map_or(self.core.send.next_psn, Connection::unacked)
    }

    /// The path to the peer is chosen when the queue pair is connected.
    fn connect(&mut self, env: &mut Env<'_, P>) {
        if self.core.made().qp_type == QpType::Ud {
            return;
        }
        let replies = usize::from(self.core.attr.max_dest_rd_atomic);
        if let Some(peer) = self.find_peer(env) {
            self.transport = Transport::Roce(Box::new(Connection::new(peer, replies, env.out.recovery())));
            self.core.set_remote(true);
        }
    }

    fn find_peer(&self, env: &Env<'_, P>) -> Option<Envelope> {
        let attr = &self.core.attr;
        let flow = flow(self.core.made().qpn, attr.dest_qpn);
        Envelope::find(&env.cx.network, &env.out.routes, &attr.av, flow).map(Envelope::with_ecn)
    }

    fn disconnect(&mut self, env: &mut Env<'_, P>) {
        self.core.send.set_wait(env.index, Wait::None, &mut env.out.timers);
        self.transport = Transport::Local(local::State::new(env.out.next_epoch()));
        self.core.set_remote(false);
        env.out.schedule.remove(Order::Wire, env.index);
    }

    /// The transport follows the state, which may have changed through an error.
    fn follow(&mut self, env: &mut Env<'_, P>) {
        match (&mut self.transport, self.core.state()) {
            (Transport::Roce(connection), QpState::Error) => {
                connection.fail();
                // The final NAK or ACK is repeated when the peer asks, never by a timer.
                env.out.timers.stop(env.index);
            }
            (Transport::Local(state), QpState::Error | QpState::Sqe) if !state.is_idle() => {
                state.abandon(env.out.next_epoch());
            }
            _ => {}
        }
    }

    fn exec<'a>(&'a mut self, env: &'a mut Env<'_, P>) -> Exec<'a, P> {
        exec(&mut self.core, env)
    }
}

fn exec<'a, P: Platform>(core: &'a mut Core<P>, env: &'a mut Env<'_, P>) -> Exec<'a, P> {
    Exec { index: env.index, qp: core, cx: env.cx, out: env.out }
}
