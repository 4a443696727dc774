//! Event commands: GET_EVENT and WRITE_CM_EVENT; and the events that other commands take away.

use crate::cm::call::{Call, DONE};
use crate::cm::channel::Channel;
use crate::cm::event::{Event, Kind, Pending};
use crate::cm::registry::Registry;
use rdmesh_uverbs::abi::{DestroyId, EventResponse, MigrateId, WriteCmEvent, cm_command};
use rustix::io::Errno;
use std::mem::offset_of;
use zerocopy::IntoBytes;

/// The oldest event of the channel; EAGAIN where there is none. The library has waited already.
pub(super) fn get_event(registry: &mut Registry, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
    // Programs that were built before it do not know the last member.
    call.needs_room(offset_of!(EventResponse, reserved))?;
    registry.channels.get(call.channel).ok_or(Errno::BADF)?;
    let pending = registry.channels.unqueue(call.channel, Channel::pop).ok_or(Errno::AGAIN)?;
    let Pending { id, group, response, child } = pending;
    if let Some(group) = group {
        if let Some(group) = registry.group_mut(group) {
            group.reported += 1;
        }
    } else if let Some(id) = registry.get_mut(id) {
        id.reported += 1;
        id.backlog += u32::from(child.is_some());
    }
    if let Some(child) = child {
        registry.hand_over(child, call.channel);
    }
    let bytes = response.as_bytes();
    Ok(bytes[..bytes.len().min(call.room)].to_vec())
}

/// Whether a command takes events from a channel that the program has not read. A command that would fail takes none.
pub(in crate::cm) fn takes_events(registry: &Registry, channel: u32, bytes: &[u8]) -> bool {
    let Some((command, call)) = Call::preview(channel, bytes) else { return false };
    match command {
        cm_command::DESTROY_ID => call.read::<DestroyId>().is_ok_and(|c| has_events(registry, &call, channel, c.id)),
        cm_command::MIGRATE_ID => {
            call.read::<MigrateId>().is_ok_and(|c| c.fd != channel && has_events(registry, &call, c.fd, c.id))
        }
        cm_command::LEAVE_MCAST => call.read::<DestroyId>().is_ok_and(|c| has_events_of_group(registry, &call, c.id)),
        _ => false,
    }
}

/// Whether events of an identifier wait in `from`, its channel.
fn has_events(registry: &Registry, call: &Call<'_>, from: u32, number: u32) -> bool {
    registry.id(&Call { channel: from, ..*call }, number).is_ok_and(|id| registry.is_ours(call, id))
        && registry.channels.get(from).is_some_and(|channel| channel.has_events_of(number))
}

fn has_events_of_group(registry: &Registry, call: &Call<'_>, number: u32) -> bool {
    let Some(owner) = registry.group(number).map(|group| group.owner) else { return false };
    registry.id(call, owner).is_ok()
        && registry.channels.get(call.channel).is_some_and(|channel| channel.has_events_of_group(owner, number))
}

/// Queues an event that the program makes itself (`ucma_write_cm_event`).
pub(super) fn write_event(registry: &mut Registry, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
    let command: WriteCmEvent = call.read()?;
    let kinds = [Kind::User, Kind::Internal];
    let kind = kinds.into_iter().find(|kind| *kind as u32 == command.event).ok_or(Errno::INVAL)?;
    let id = registry.id(call, command.id)?;
    registry.has_room_for_events(id.endpoint)?;
    let argument = command.param.first_chunk().copied().unwrap_or_default();
    registry.post(command.id, &Event::new(kind).with_status(command.status.cast_signed()).with_argument(argument));
    Ok(DONE)
}
