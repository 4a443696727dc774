//! Conversion of `ioctl()` attributes into commands of the `write()` form.

use super::bundle::Bundle;
use crate::session::command::Command;
use crate::session::context::Context;
use rdmesh_uverbs::abi::{CommandHeader, EXTENDED, ExtendedCommandHeader, Method, ioctl_attr};
use rustix::io::Errno;
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Room for a response that is asked for; there is none that is longer.
const MAX_CORE: usize = 1024;
const MAX_DRIVER: usize = 256;

/// A command that is ready, and room for its response.
pub(super) struct Composed {
    bytes: Vec<u8>,
    core_room: usize,
}

impl Composed {
    /// Command `command`. For the older family, `core` and `core_room` must be exactly the structs. The provider's data in
    /// `bundle` is appended.
    pub(super) fn new(command: u32, core: &[u8], core_room: usize, bundle: &Bundle) -> Result<Self, Errno> {
        let is_extended = command & EXTENDED != 0;
        let method = Method::find(command as u8, is_extended).ok_or(Errno::OPNOTSUPP)?;
        let word = if is_extended { 8 } else { 4 };
        let has_driver = is_extended || method.has_driver;
        let driver = if has_driver { bundle.bytes(ioctl_attr::UHW_IN) } else { &[] };
        let driver_room = if has_driver { bundle.len(ioctl_attr::UHW_OUT).min(MAX_DRIVER) / word * word } else { 0 };
        let core_room = core_room.min(MAX_CORE).next_multiple_of(word);
        let words = |len: usize| u16::try_from(len.div_ceil(word)).map_err(|_| Errno::INVAL);

        let mut bytes = Vec::with_capacity(64 + core.len() + driver.len());
        if is_extended {
            let more = ExtendedCommandHeader {
                // Not an address, but that there is one where there is room.
                response: u64::from(core_room + driver_room != 0),
                provider_in_words: words(driver.len())?,
                provider_out_words: words(driver_room)?,
                cmd_hdr_reserved: 0,
            };
            let header = CommandHeader { command, in_words: words(core.len())?, out_words: words(core_room)? };
            bytes.extend_from_slice(header.as_bytes());
            bytes.extend_from_slice(more.as_bytes());
        } else {
            let in_words = words(size_of::<CommandHeader>() + core.len() + driver.len().next_multiple_of(word))?;
            let header = CommandHeader { command, in_words, out_words: words(core_room + driver_room)? };
            bytes.extend_from_slice(header.as_bytes());
        }
        for part in [core, driver] {
            bytes.extend_from_slice(part);
            bytes.resize(bytes.len().next_multiple_of(word), 0);
        }
        Ok(Self { bytes, core_room })
    }

    /// Executes the command, gives the program the provider's part of the response, and returns the core's.
    pub(super) fn execute(&self, context: &Arc<Context>, bundle: &Bundle) -> Result<Vec<u8>, Errno> {
        let mut core = Vec::new();
        Command::composed(&self.bytes)?.execute_with(context, |response| {
            let (first, driver) = response.split_at(self.core_room.min(response.len()));
            core.extend_from_slice(first);
            bundle.give(ioctl_attr::UHW_OUT, driver);
        })?;
        Ok(core)
    }
}

/// Executes `command` with `request`; its response.
pub(super) fn execute<Response: FromBytes>(
    context: &Arc<Context>,
    bundle: &Bundle,
    command: u32,
    request: &(impl IntoBytes + Immutable),
) -> Result<Response, Errno> {
    let composed = Composed::new(command, request.as_bytes(), size_of::<Response>(), bundle)?;
    let response = composed.execute(context, bundle)?;
    Response::read_from_prefix(&response).map(|(response, _)| response).map_err(|_| Errno::IO)
}
