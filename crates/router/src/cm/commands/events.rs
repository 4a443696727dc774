//! Event commands: GET_EVENT and WRITE_CM_EVENT; and the events that other commands take away.

use super::{Call, DONE};
use crate::cm::ConnectionManager;
use crate::cm::channel::Channel;
use crate::cm::event::{Event, Kind, Pending};
use rdmesh_nic::Time;
use rdmesh_uverbs::abi::{CmHeader, DestroyId, EventResponse, MigrateId, WriteCmEvent, cm_command};
use rustix::io::Errno;
use std::mem::offset_of;
use zerocopy::{FromBytes, IntoBytes};

impl ConnectionManager {
    /// The oldest event of the channel; EAGAIN where there is none. The library has waited already.
    pub(super) fn get_event(&mut self, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
        // Programs that were built before it do not know the last member.
        call.needs_room(offset_of!(EventResponse, reserved))?;
        self.channels.get(&call.channel).ok_or(Errno::BADF)?;
        let pending = self.unqueue(call.channel, Channel::pop).ok_or(Errno::AGAIN)?;
        let Pending { id, group, response, child } = pending;
        if let Some(group) = group {
            if let Some(group) = self.groups.get_mut(&group) {
                group.reported += 1;
            }
        } else if let Some(id) = self.ids.get_mut(&id) {
            id.reported += 1;
            id.backlog += u32::from(child.is_some());
        }
        if let Some(child) = child {
            self.hand_over(child, call.channel);
        }
        let bytes = response.as_bytes();
        Ok(bytes[..bytes.len().min(call.room)].to_vec())
    }

    /// Whether a command takes events from a channel that the program has not read. A command that would fail takes none.
    pub(crate) fn takes_events(&self, channel: u32, bytes: &[u8]) -> bool {
        let Ok((header, body)) = CmHeader::read_from_prefix(bytes) else { return false };
        let call = Call { now: Time::default(), channel, body, room: 0 };
        match header.cmd {
            cm_command::DESTROY_ID => call.read::<DestroyId>().is_ok_and(|c| self.has_events(&call, channel, c.id)),
            cm_command::MIGRATE_ID => {
                call.read::<MigrateId>().is_ok_and(|c| c.fd != channel && self.has_events(&call, c.fd, c.id))
            }
            cm_command::LEAVE_MCAST => call.read::<DestroyId>().is_ok_and(|c| self.has_events_of_group(&call, c.id)),
            _ => false,
        }
    }

    /// Whether events of an identifier wait in `from`, its channel.
    fn has_events(&self, call: &Call<'_>, from: u32, number: u32) -> bool {
        self.id(&Call { channel: from, ..*call }, number).is_ok_and(|id| self.is_ours(call, id))
            && self.channels.get(&from).is_some_and(|channel| channel.has_events_of(number))
    }

    fn has_events_of_group(&self, call: &Call<'_>, number: u32) -> bool {
        let Some(owner) = self.groups.get(&number).map(|group| group.owner) else { return false };
        self.id(call, owner).is_ok()
            && self.channels.get(&call.channel).is_some_and(|channel| channel.has_events_of_group(owner, number))
    }

    /// Queues an event that the program makes itself (`ucma_write_cm_event`).
    pub(super) fn write_event(&mut self, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
        let command: WriteCmEvent = call.read()?;
        let kinds = [Kind::User, Kind::Internal];
        let kind = kinds.into_iter().find(|kind| *kind as u32 == command.event).ok_or(Errno::INVAL)?;
        let id = self.id(call, command.id)?;
        self.nodes.get(&id.endpoint).ok_or(Errno::NODEV)?.has_room_for_events()?;
        let argument = command.param.first_chunk().copied().unwrap_or_default();
        self.post(command.id, &Event::new(kind).with_status(command.status.cast_signed()).with_argument(argument));
        Ok(DONE)
    }
}
