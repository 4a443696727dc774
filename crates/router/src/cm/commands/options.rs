//! Options of identifiers.

use super::query::PRIMARY_PATH;
use super::{Call, DONE};
use crate::cm::ConnectionManager;
use crate::cm::id::State;
use rdmesh_uverbs::abi::{PathRecordData, SetOption, cm_option};
use rdmesh_verbs::QpType;
use rustix::io::Errno;
use zerocopy::FromBytes;

/// `RDMA_MAX_PRIVATE_DATA` is not it: an option may be a list of paths.
const MAX_OPTION: usize = 4096;

impl ConnectionManager {
    pub(super) fn set_option(&mut self, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
        let command: SetOption = call.read()?;
        let value = call.body.get(size_of::<SetOption>()..).unwrap_or_default();
        // The library sends as many bytes as the program names.
        let value = value.get(..command.optlen as usize).filter(|_| command.optlen as usize <= MAX_OPTION);
        let value = value.ok_or(Errno::INVAL)?;
        self.id(call, command.id)?;
        match (command.level, command.optname) {
            (cm_option::LEVEL_ID, cm_option::ID_TOS) => {
                self.id_mut(call, command.id)?.options.tos = byte(value)?;
            }
            (cm_option::LEVEL_ID, cm_option::ID_REUSEADDR) => self.set_reuse(call, command.id, int(value)? != 0)?,
            (cm_option::LEVEL_ID, cm_option::ID_AFONLY) => self.set_only_family(call, command.id, int(value)? != 0)?,
            (cm_option::LEVEL_ID, cm_option::ID_ACK_TIMEOUT) => {
                let id = self.id_mut(call, command.id)?;
                if id.qp_type != QpType::Rc {
                    return Err(Errno::INVAL);
                }
                // The attribute of queue pairs has five bits.
                id.options.ack_timeout = Some(byte(value)?).filter(|timeout| *timeout <= 31);
                id.options.ack_timeout.ok_or(Errno::INVAL)?;
            }
            (cm_option::LEVEL_IB, cm_option::IB_PATH) => self.set_path(call, command.id, value)?,
            _ => return Err(Errno::NOSYS),
        }
        Ok(DONE)
    }

    fn set_reuse(&mut self, call: &Call<'_>, number: u32, reuse: bool) -> Result<(), Errno> {
        let id = self.id_mut(call, number)?;
        if id.state != State::Idle && !(reuse && id.state != State::Listen) {
            return Err(Errno::INVAL);
        }
        id.options.reuse = reuse;
        let (endpoint, space, bound) = (id.endpoint, id.space, id.source.filter(|_| id.is_bound));
        if let (Some(source), Some(node)) = (bound, self.nodes.get_mut(&endpoint)) {
            node.ports.edit(space, source.port(), number, |binding| binding.reuse = reuse);
        }
        Ok(())
    }

    fn set_only_family(&mut self, call: &Call<'_>, number: u32, only: bool) -> Result<(), Errno> {
        let id = self.id_mut(call, number)?;
        if !matches!(id.state, State::Idle | State::Bound) {
            return Err(Errno::INVAL);
        }
        id.options.only_family = Some(only);
        let (endpoint, space, bound) = (id.endpoint, id.space, id.source.filter(|_| id.is_bound));
        if let (Some(source), Some(node)) = (bound, self.nodes.get_mut(&endpoint)) {
            node.ports.edit(space, source.port(), number, |binding| binding.only_family = only);
        }
        Ok(())
    }

    /// A route that the program has found by itself (`ucma_set_ib_path`). On Ethernet the addresses decide.
    fn set_path(&mut self, call: &Call<'_>, number: u32, value: &[u8]) -> Result<(), Errno> {
        let records = value.chunks_exact(size_of::<PathRecordData>());
        if value.is_empty() || !records.remainder().is_empty() {
            return Err(Errno::INVAL);
        }
        let mut flags = records.filter_map(|bytes| PathRecordData::read_from_bytes(bytes).ok()).map(|data| data.flags);
        if !flags.any(|flags| flags == PRIMARY_PATH) {
            return Err(Errno::INVAL);
        }
        self.id_with_device(call, number)?;
        self.route_is_known(call, number)
    }
}

fn byte(value: &[u8]) -> Result<u8, Errno> {
    <[u8; 1]>::try_from(value).map(|[byte]| byte).map_err(|_| Errno::INVAL)
}

fn int(value: &[u8]) -> Result<i32, Errno> {
    value.try_into().map(i32::from_ne_bytes).map_err(|_| Errno::INVAL)
}
