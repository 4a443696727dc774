//! Framing of a `write()` on an rdma_cm channel: the checks of the kernel's `ucma_write`, and the buffer for the response.
#![allow(unsafe_code)]

use super::super::response::Response;
use rdmesh_uverbs::abi::{
    Accept, Bind, BindIp, CmHeader, Connect, CreateId, CreateIdResponse, DestroyId, DestroyIdResponse, Disconnect, Ece,
    EventResponse, GetEvent, InitQpAttr, JoinIpMcast, JoinMcast, Listen, MigrateId, MigrateResponse, Notify, Query,
    QueryRouteResponse, Reject, ResolveAddr, ResolveIbService, ResolveIp, ResolveRoute, SetOption, UverbsQpAttr,
    WriteCmEvent, cm_command,
};
use rustix::fd::RawFd;
use rustix::io::Errno;
use std::borrow::Cow;
use std::mem::offset_of;
use zerocopy::{FromBytes, IntoBytes};

/// Most bytes of an option.
const MAX_OPTION: usize = 4096;

/// A command with a valid frame.
pub(super) struct Command<'a> {
    /// From its header to the end that this names.
    bytes: &'a [u8],
    number: u32,
    response: Response,
}

/// Layout of a command.
struct Shape {
    /// Bytes that it must have.
    request: usize,
    /// Offset of its pointer to the response, and the least room for that.
    response: Option<(usize, usize)>,
}

impl<'a> Command<'a> {
    /// Frames the bytes of one `write()`.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, Errno> {
        let (header, rest) = CmHeader::read_from_prefix(bytes).map_err(|_| Errno::INVAL)?;
        if header.cmd > cm_command::WRITE_CM_EVENT {
            return Err(Errno::INVAL);
        }
        let body = rest.get(..usize::from(header.in_len)).ok_or(Errno::INVAL)?;
        let shape = shape(header.cmd).ok_or(Errno::NOSYS)?;
        if body.len() < shape.request {
            return Err(Errno::INVAL);
        }
        let mut response = Response { address: 0, len: usize::from(header.out_len) };
        if let Some((at, room)) = shape.response {
            if response.len < room {
                return Err(Errno::NOSPC);
            }
            response.address = u64::read_from_prefix(&body[at..]).map_err(|_| Errno::INVAL)?.0;
            if response.address == 0 {
                return Err(Errno::FAULT);
            }
        }
        Ok(Self { bytes: &bytes[..size_of::<CmHeader>() + body.len()], number: header.cmd, response })
    }

    /// Whether the command may have to wait.
    pub(super) fn waits(&self) -> bool {
        self.number == cm_command::GET_EVENT
    }

    /// Descriptor of the channel from which it takes events that the program has not read, where it may do so; `fd` is the
    /// one that it was written to.
    pub(super) fn takes_events_of(&self, fd: RawFd) -> Option<RawFd> {
        match self.number {
            cm_command::DESTROY_ID | cm_command::LEAVE_MCAST => Some(fd),
            cm_command::MIGRATE_ID => {
                let (command, _) = MigrateId::read_from_prefix(&self.bytes[size_of::<CmHeader>()..]).ok()?;
                Some(command.fd.cast_signed())
            }
            _ => None,
        }
    }

    /// Buffer for its response.
    pub(super) fn response(&self) -> &Response {
        &self.response
    }

    /// The command as the router takes it, which knows neither the program's memory nor its descriptors; `channel_number`
    /// converts a descriptor to the router's number.
    pub(super) fn message(
        &self,
        channel_number: impl FnOnce(RawFd) -> Result<u32, Errno>,
    ) -> Result<Cow<'a, [u8]>, Errno> {
        let body = &self.bytes[size_of::<CmHeader>()..];
        match self.number {
            cm_command::SET_OPTION => {
                let (command, _) = SetOption::read_from_prefix(body).map_err(|_| Errno::INVAL)?;
                Ok(Cow::Owned([self.bytes, option(&command)?].concat()))
            }
            cm_command::MIGRATE_ID => {
                let (mut command, rest) = MigrateId::read_from_prefix(body).map_err(|_| Errno::INVAL)?;
                command.fd = channel_number(command.fd.cast_signed())?;
                Ok(Cow::Owned([&self.bytes[..size_of::<CmHeader>()], command.as_bytes(), rest].concat()))
            }
            _ => Ok(Cow::Borrowed(self.bytes)),
        }
    }
}

/// The bytes of an option, where the program has them.
fn option(command: &SetOption) -> Result<&[u8], Errno> {
    let len = command.optlen as usize;
    match (command.optval, len) {
        (_, 0) => Ok(&[]),
        (_, MAX_OPTION..) => Err(Errno::INVAL),
        (0, _) => Err(Errno::FAULT),
        (address, _) => {
            let bytes = std::ptr::with_exposed_provenance::<u8>(address as usize);
            // SAFETY: the program says that `optlen` bytes at this address are the option.
            Ok(unsafe { std::slice::from_raw_parts(bytes, len) })
        }
    }
}

/// The shape of command `number`; none where it does nothing.
fn shape(number: u32) -> Option<Shape> {
    let plain = |request| Shape { request, response: None };
    let answered = |request, at, room| Shape { request, response: Some((at, room)) };
    let id = size_of::<CreateIdResponse>();
    Some(match number {
        cm_command::CREATE_ID => answered(size_of::<CreateId>(), offset_of!(CreateId, response), id),
        cm_command::DESTROY_ID | cm_command::LEAVE_MCAST => {
            answered(size_of::<DestroyId>(), offset_of!(DestroyId, response), size_of::<DestroyIdResponse>())
        }
        cm_command::BIND_IP => plain(size_of::<BindIp>()),
        cm_command::BIND => plain(size_of::<Bind>()),
        cm_command::RESOLVE_IP => plain(size_of::<ResolveIp>()),
        cm_command::RESOLVE_ADDR => plain(size_of::<ResolveAddr>()),
        cm_command::RESOLVE_ROUTE => plain(size_of::<ResolveRoute>()),
        cm_command::QUERY_ROUTE => {
            answered(size_of::<Query>(), offset_of!(Query, response), offset_of!(QueryRouteResponse, ibdev_index))
        }
        // The size of the response depends on the query.
        cm_command::QUERY => answered(size_of::<Query>(), offset_of!(Query, response), 0),
        // Older programs have no `ece`.
        cm_command::CONNECT => plain(size_of::<Connect>() - size_of::<Ece>()),
        cm_command::ACCEPT => plain(size_of::<Accept>() - size_of::<Ece>()),
        cm_command::LISTEN => plain(size_of::<Listen>()),
        cm_command::REJECT => plain(size_of::<Reject>()),
        cm_command::DISCONNECT => plain(size_of::<Disconnect>()),
        cm_command::INIT_QP_ATTR => {
            answered(size_of::<InitQpAttr>(), offset_of!(InitQpAttr, response), size_of::<UverbsQpAttr>())
        }
        cm_command::GET_EVENT => {
            answered(size_of::<GetEvent>(), offset_of!(GetEvent, response), offset_of!(EventResponse, reserved))
        }
        cm_command::SET_OPTION => plain(size_of::<SetOption>()),
        cm_command::NOTIFY => plain(size_of::<Notify>()),
        cm_command::RESOLVE_IB_SERVICE => plain(size_of::<ResolveIbService>()),
        cm_command::WRITE_CM_EVENT => plain(size_of::<WriteCmEvent>()),
        cm_command::JOIN_IP_MCAST => answered(size_of::<JoinIpMcast>(), offset_of!(JoinIpMcast, response), id),
        cm_command::JOIN_MCAST => answered(size_of::<JoinMcast>(), offset_of!(JoinMcast, response), id),
        cm_command::MIGRATE_ID => {
            answered(size_of::<MigrateId>(), offset_of!(MigrateId, response), size_of::<MigrateResponse>())
        }
        _ => return None,
    })
}
