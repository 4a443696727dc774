//! Routing netlink (rtnetlink): requests to the kernel, one at a time.

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recv, send, socket_with};
use std::io;
use std::os::fd::OwnedFd;

/// A netlink socket of the network namespace that its maker was in.
pub(crate) struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

impl Netlink {
    /// A socket of the calling thread's network namespace.
    pub(crate) fn open() -> io::Result<Self> {
        // No protocol is protocol 0: NETLINK_ROUTE.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrNetlink::new(0, 0))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Sends `message` and waits until the kernel has executed it; returns the answer.
    pub(crate) fn request(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<Option<RouteNetlinkMessage>> {
        self.send(message, NLM_F_ACK | flags)?;
        self.answer()?.pop().transpose()
    }

    /// Lists all objects of the kind that `message` names. Unreadable ones are left out.
    pub(crate) fn dump(&mut self, message: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.send(message, NLM_F_DUMP)?;
        Ok(self.answer()?.into_iter().flatten().collect())
    }

    fn send(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.sequence += 1;
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut request = NetlinkMessage::new(header, NetlinkPayload::from(message));
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        send(&self.socket, &bytes, SendFlags::empty())?;
        Ok(())
    }

    /// Reads messages up to the acknowledgement, or the end of the list.
    fn answer(&mut self) -> io::Result<Vec<io::Result<RouteNetlinkMessage>>> {
        let mut answer = Vec::new();
        let mut buffer = vec![0; RECEIVE_LEN];
        loop {
            let (_, len) = rustix::io::retry_on_intr(|| recv(&self.socket, &mut buffer[..], RecvFlags::empty()))?;
            let mut rest = &buffer[..len.min(RECEIVE_LEN)];
            while let Some(length) = rest.first_chunk() {
                let length = u32::from_ne_bytes(*length) as usize;
                let (message, behind) = rest.split_at(length.next_multiple_of(4).clamp(1, rest.len()));
                rest = behind;
                match parse(message) {
                    Err(error) => answer.push(Err(error)),
                    Ok(NetlinkMessage { payload, .. }) => match payload {
                        NetlinkPayload::Done(_) => return Ok(answer),
                        NetlinkPayload::Error(error) if error.code.is_none() => return Ok(answer),
                        NetlinkPayload::Error(error) => return Err(error.to_io()),
                        NetlinkPayload::InnerMessage(inner) => answer.push(Ok(inner)),
                        _ => {}
                    },
                }
            }
        }
    }
}

fn parse<T: NetlinkDeserializable>(bytes: &[u8]) -> io::Result<NetlinkMessage<T>> {
    NetlinkMessage::deserialize(bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.to_string()))
}

/// The kernel's own limit for one netlink datagram to a reader that asks for no more.
const RECEIVE_LEN: usize = 32 * 1024;
