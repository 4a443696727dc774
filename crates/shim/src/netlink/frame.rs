//! Netlink framing: the requests in a datagram, acknowledgements and ends of lists.

use rdmesh_uverbs::abi::netlink::{NetlinkHeader, netlink_flag, netlink_type};
use zerocopy::{FromBytes, IntoBytes};

/// The messages in a datagram that a program sent, each whole; up to one that is longer than what is left, or too short.
pub(super) fn requests(mut datagram: &[u8]) -> impl Iterator<Item = (NetlinkHeader, &[u8])> {
    std::iter::from_fn(move || {
        let (header, _) = NetlinkHeader::read_from_prefix(datagram).ok()?;
        let len = header.len as usize;
        let message = datagram.get(..len).filter(|_| len >= size_of::<NetlinkHeader>())?;
        datagram = datagram.get(len.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        Some((header, message))
    })
}

/// Acknowledgement of the request with `header`: 0, or a negative errno. `about` is the part of the request that is repeated.
pub(super) fn error(header: NetlinkHeader, port_id: u32, status: i32, about: &[u8]) -> Vec<u8> {
    let is_capped = about.len() == size_of::<NetlinkHeader>();
    let flags = if is_capped { netlink_flag::CAPPED } else { 0 };
    message(header, netlink_type::ERROR, flags, port_id, &[status.as_bytes(), about])
}

/// Ends the list that the request with `header` asked for.
pub(super) fn done(header: NetlinkHeader, port_id: u32, status: i32) -> Vec<u8> {
    message(header, netlink_type::DONE, netlink_flag::MULTI, port_id, &[status.as_bytes()])
}

fn message(request: NetlinkHeader, kind: u16, flags: u16, port_id: u32, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let len = (size_of::<NetlinkHeader>() + body.len()) as u32;
    let header = NetlinkHeader { len, kind, flags, seq: request.seq, port_id };
    [header.as_bytes(), &body].concat()
}

/// Messages begin at multiples of it.
const ALIGNMENT: usize = 4;
