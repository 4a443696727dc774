//! Persistent sends, which are announced anew each time that the program starts them.
//!
//! The program's request is MPI's own, for the message itself. Where a start announces the message, that request stays inactive, and the
//! announcement has one of its own; where it does not, as before the ranks are connected, MPI starts the request, and it is as if
//! we did not know it.

use super::operations::made;
use super::{Job, Message, Outcome};
use crate::abi::Handle;
use crate::announcement::LEN;
use libc::c_int;

/// A send that the program starts again and again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PersistentSend {
    message: Message,
    /// Length of the message in bytes.
    len: u64,
    /// Announcement of the last start: its slot, and its request.
    announced: Option<Announced>,
}

#[derive(Clone, Copy, Debug)]
struct Announced {
    slot: usize,
    request: Handle,
}

impl PersistentSend {
    pub(crate) fn new(message: Message, len: u64) -> Self {
        Self { message, len, announced: None }
    }
}

impl Job {
    /// Announces a persistent send that is started; none where its message goes MPI's own way.
    pub(super) fn start_persistent(&mut self, handle: Handle, send: PersistentSend) -> Option<c_int> {
        let PersistentSend { message, len, .. } = send;
        let slot = self.announce(&message, len)?;
        let (library, byte) = (self.library, self.library.abi.named.byte);
        let data = std::ptr::with_exposed_provenance_mut(self.announcement(slot));
        let Message { dest, tag, comm, .. } = message;
        match made(library, |at| library.isend(data, LEN as c_int, byte, dest, tag, comm, at)) {
            Ok(request) => {
                let announced = Some(Announced { slot, request });
                self.restarted(handle, PersistentSend { announced, ..send });
                Some(0)
            }
            Err(code) => {
                self.withdraw(slot);
                Some(code)
            }
        }
    }

    /// The outcome of a persistent send that was announced, once its buffer is free.
    pub(super) fn sent_again(&mut self, send: &PersistentSend) -> Option<Outcome> {
        let Announced { slot, request } = send.announced?;
        self.sent(request, slot, send.message.is_synchronous)
    }
}
