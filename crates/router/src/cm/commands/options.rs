//! Options of identifiers.

use super::query::PRIMARY_PATH;
use super::resolve::route_is_known;
use crate::cm::call::{Call, DONE};
use crate::cm::id::State;
use crate::cm::ports::Binding;
use crate::cm::registry::Registry;
use rdmesh_uverbs::abi::{PathRecordData, SetOption, cm_option};
use rdmesh_verbs::QpType;
use rustix::io::Errno;
use zerocopy::FromBytes;

/// `RDMA_MAX_PRIVATE_DATA` is not it: an option may be a list of paths.
const MAX_OPTION: usize = 4096;

pub(super) fn set_option(registry: &mut Registry, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
    let command: SetOption = call.read()?;
    let value = call.body.get(size_of::<SetOption>()..).unwrap_or_default();
    // The library sends as many bytes as the program names.
    let value = value.get(..command.optlen as usize).filter(|_| command.optlen as usize <= MAX_OPTION);
    let value = value.ok_or(Errno::INVAL)?;
    registry.id(call, command.id)?;
    match (command.level, command.optname) {
        (cm_option::LEVEL_ID, cm_option::ID_TOS) => {
            registry.id_mut(call, command.id)?.options.tos = byte(value)?;
        }
        (cm_option::LEVEL_ID, cm_option::ID_REUSEADDR) => set_reuse(registry, call, command.id, int(value)? != 0)?,
        (cm_option::LEVEL_ID, cm_option::ID_AFONLY) => set_only_family(registry, call, command.id, int(value)? != 0)?,
        (cm_option::LEVEL_ID, cm_option::ID_ACK_TIMEOUT) => {
            let id = registry.id_mut(call, command.id)?;
            if id.qp_type != QpType::Rc {
                return Err(Errno::INVAL);
            }
            // The attribute of queue pairs has five bits.
            id.options.ack_timeout = Some(byte(value)?).filter(|timeout| *timeout <= 31);
            id.options.ack_timeout.ok_or(Errno::INVAL)?;
        }
        (cm_option::LEVEL_IB, cm_option::IB_PATH) => set_path(registry, call, command.id, value)?,
        _ => return Err(Errno::NOSYS),
    }
    Ok(DONE)
}

fn set_reuse(registry: &mut Registry, call: &Call<'_>, number: u32, reuse: bool) -> Result<(), Errno> {
    let id = registry.id_mut(call, number)?;
    if id.state != State::Idle && !(reuse && id.state != State::Listen) {
        return Err(Errno::INVAL);
    }
    id.options.reuse = reuse;
    edit_binding(registry, number, |binding| binding.reuse = reuse)
}

fn set_only_family(registry: &mut Registry, call: &Call<'_>, number: u32, only: bool) -> Result<(), Errno> {
    let id = registry.id_mut(call, number)?;
    if !matches!(id.state, State::Idle | State::Bound) {
        return Err(Errno::INVAL);
    }
    id.options.only_family = Some(only);
    edit_binding(registry, number, |binding| binding.only_family = only)
}

/// Changes the binding of an identifier, where it has one.
fn edit_binding(registry: &mut Registry, number: u32, change: impl FnOnce(&mut Binding)) -> Result<(), Errno> {
    let (id, node) = registry.id_and_node(number)?;
    if let Some(source) = id.source.filter(|_| id.is_bound) {
        node.ports.edit(id.space, source.port(), number, change);
    }
    Ok(())
}

/// A route that the program has found by itself (`ucma_set_ib_path`). On Ethernet the addresses decide.
fn set_path(registry: &mut Registry, call: &Call<'_>, number: u32, value: &[u8]) -> Result<(), Errno> {
    let records = value.chunks_exact(size_of::<PathRecordData>());
    if value.is_empty() || !records.remainder().is_empty() {
        return Err(Errno::INVAL);
    }
    let mut flags = records.filter_map(|bytes| PathRecordData::read_from_bytes(bytes).ok()).map(|data| data.flags);
    if !flags.any(|flags| flags == PRIMARY_PATH) {
        return Err(Errno::INVAL);
    }
    registry.id_with_device(call, number)?;
    route_is_known(registry, call, number)
}

fn byte(value: &[u8]) -> Result<u8, Errno> {
    <[u8; 1]>::try_from(value).map(|[byte]| byte).map_err(|_| Errno::INVAL)
}

fn int(value: &[u8]) -> Result<i32, Errno> {
    value.try_into().map(i32::from_ne_bytes).map_err(|_| Errno::INVAL)
}
