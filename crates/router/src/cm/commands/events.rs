//! Reading events.

use super::Call;
use crate::cm::ConnectionManager;
use crate::cm::event::{Owner, Pending};
use rdmesh_uverbs::abi::EventResponse;
use rustix::io::Errno;
use std::mem::offset_of;
use zerocopy::IntoBytes;

impl ConnectionManager {
    /// The oldest event of the channel; EAGAIN where there is none. The library has waited already.
    pub(super) fn get_event(&mut self, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
        // Programs that were built before it do not know the last member.
        call.needs_room(offset_of!(EventResponse, reserved))?;
        let channel = self.channels.get_mut(&call.channel).ok_or(Errno::BADF)?;
        let Pending { owner, response, child } = channel.pop().ok_or(Errno::AGAIN)?;
        match owner {
            Owner::Group(group) => {
                if let Some(group) = self.groups.get_mut(&group) {
                    group.reported += 1;
                }
            }
            Owner::Id(id) => {
                if let Some(id) = self.ids.get_mut(&id) {
                    id.reported += 1;
                    id.backlog += u32::from(child.is_some());
                }
            }
        }
        if let Some(child) = child {
            self.hand_over(child, call.channel);
        }
        let bytes = response.as_bytes();
        Ok(bytes[..bytes.len().min(call.room)].to_vec())
    }
}
