//! A command in execution: its bytes, and the room for its response.

use rdmesh_nic::Time;
use rdmesh_uverbs::abi::{CmHeader, cm_command};
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A command in execution.
pub(super) struct Call<'a> {
    pub(super) now: Time,
    pub(super) channel: u32,
    pub(super) body: &'a [u8],
    /// Of the program's buffer for the response.
    pub(super) room: usize,
}

impl<'a> Call<'a> {
    /// A program's message to its channel: the command's number, and the rest.
    pub(super) fn parse(now: Time, channel: u32, bytes: &'a [u8]) -> Result<(u32, Self), Errno> {
        let (header, body) = CmHeader::read_from_prefix(bytes).map_err(|_| Errno::INVAL)?;
        if header.cmd > cm_command::WRITE_CM_EVENT || usize::from(header.in_len) > body.len() {
            return Err(Errno::INVAL);
        }
        Ok((header.cmd, Self { now, channel, body, room: header.out_len.into() }))
    }

    /// A message as a program would write it to its channel, to be looked at.
    pub(super) fn preview(channel: u32, bytes: &'a [u8]) -> Option<(u32, Self)> {
        let (header, body) = CmHeader::read_from_prefix(bytes).ok()?;
        Some((header.cmd, Self { now: Time::default(), channel, body, room: 0 }))
    }

    pub(super) fn read<T: FromBytes>(&self) -> Result<T, Errno> {
        T::read_from_prefix(self.body).map(|(command, _)| command).map_err(|_| Errno::INVAL)
    }

    /// The same for a struct that has grown: members that an older program does not send are zero.
    pub(super) fn read_short<T: FromBytes + IntoBytes>(&self) -> Result<T, Errno> {
        let mut command = T::new_zeroed();
        let bytes = command.as_mut_bytes();
        let len = bytes.len().min(self.body.len());
        bytes[..len].copy_from_slice(&self.body[..len]);
        Ok(command)
    }

    /// The response of a command, for which the program must have made room.
    pub(super) fn respond(&self, response: &(impl IntoBytes + Immutable)) -> Result<Vec<u8>, Errno> {
        self.needs_room(size_of_val(response))?;
        Ok(response.as_bytes().to_vec())
    }

    pub(super) fn needs_room(&self, len: usize) -> Result<(), Errno> {
        if self.room < len { Err(Errno::NOSPC) } else { Ok(()) }
    }
}

/// A command without a response.
pub(super) const DONE: Vec<u8> = Vec::new();
