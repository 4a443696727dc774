//! Routing netlink (rtnetlink): batches of requests to the kernel over one socket.

mod exchange;

pub(crate) use exchange::{Answer, Refusal};

use exchange::{AnswerError, Exchange};
use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::io;

/// A netlink socket of the network namespace that its maker was in.
pub(crate) struct Netlink {
    socket: Socket,
    /// Sequence number of the last request.
    sequence: u32,
    buffer: Vec<u8>,
}

/// A request to the kernel.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    message: RouteNetlinkMessage,
    flags: u16,
}

impl Netlink {
    /// A socket of the calling thread's network namespace.
    pub(crate) fn open() -> io::Result<Self> {
        let socket = Socket::new(NETLINK_ROUTE)?;
        // Unknown attributes and header fields are refused instead of ignored; refusals carry a text, and not the request.
        socket.set_netlink_get_strict_chk(true)?;
        socket.set_ext_ack(true)?;
        socket.set_cap_ack(true)?;
        // A connected socket hears nothing but the kernel.
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, sequence: 0, buffer: vec![0; RECEIVE_LEN] })
    }

    /// Sends `requests` together and waits until the kernel has executed them; returns an answer for each. Requests behind a
    /// refused one are executed too.
    pub(crate) fn execute(&mut self, mut requests: Vec<Request>) -> io::Result<Vec<Answer>> {
        let mut answers = Vec::with_capacity(requests.len());
        while !requests.is_empty() {
            let later = requests.split_off(requests.len().min(MOST_REQUESTS));
            answers.extend(self.exchange(&requests)?);
            requests = later;
        }
        Ok(answers)
    }

    fn exchange(&mut self, requests: &[Request]) -> io::Result<Vec<Answer>> {
        let mut exchange = Exchange::new(self.sequence.wrapping_add(1), requests.len());
        let mut bytes = Vec::new();
        for request in requests {
            self.sequence = self.sequence.wrapping_add(1);
            request.append_to(&mut bytes, self.sequence);
        }
        send(&self.socket, &bytes, SendFlags::empty())?;
        while !exchange.is_complete() {
            // With this flag the length is the datagram's, even where the buffer is too short for it.
            let receive = || recv(&self.socket, &mut self.buffer[..], RecvFlags::TRUNC);
            let (_, len) = rustix::io::retry_on_intr(receive)?;
            exchange.take(self.buffer.get(..len).ok_or(AnswerError::Truncated)?)?;
        }
        Ok(exchange.into_answers())
    }
}

impl Request {
    /// A request that is acknowledged when it has been executed.
    pub(crate) fn new(message: RouteNetlinkMessage, flags: u16) -> Self {
        Self { message, flags: flags | NLM_F_ACK }
    }

    /// A request for all objects of the kind that `message` names. A batch may have only one.
    pub(crate) fn dump(message: RouteNetlinkMessage) -> Self {
        Self { message, flags: NLM_F_DUMP }
    }

    fn append_to(&self, bytes: &mut Vec<u8>, sequence: u32) {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | self.flags;
        header.sequence_number = sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(self.message.clone()));
        message.finalize();
        let begin = bytes.len();
        bytes.resize(begin + message.buffer_len().next_multiple_of(ALIGNMENT), 0);
        message.serialize(&mut bytes[begin..]);
    }
}

/// The kernel's own limit for one netlink datagram to a reader that asks for no more.
const RECEIVE_LEN: usize = 32 * 1024;
/// The answers to so many requests fit into the socket's receive buffer, beyond which the kernel drops them.
const MOST_REQUESTS: usize = 64;
/// `NLMSG_ALIGNTO`.
const ALIGNMENT: usize = 4;

#[cfg(test)]
mod tests;
