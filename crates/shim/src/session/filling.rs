//! Commands that may register memory and make queues, which the router wants filled in.

use crate::memory::{ArenaFile, Registration};
use arrayvec::ArrayVec;
use rdmesh_preload::Channel;
use rdmesh_preload::channel::Reply;
use rdmesh_uverbs::ring::{Extent, QueueFile};
use rdmesh_uverbs::session::{ReplyHeader, RequestKind};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;

/// A device's channel, and the arena that was sent on it.
pub(crate) struct FillingChannel {
    channel: Channel,
    /// The arena that the router knows this process by: it need not be sent again.
    arena: Option<ArenaFile>,
}

impl FillingChannel {
    pub(super) fn new(channel: Channel) -> Self {
        Self { channel, arena: None }
    }

    /// Sends a command and waits for its reply, see [`Channel::call`]. As long as the router wants memory for them, `queues` is
    /// filled in.
    pub(super) fn call_filling(
        &mut self,
        socket: BorrowedFd<'_>,
        command: &[u8],
        registration: &Registration,
        queues: BorrowedFd<'_>,
    ) -> Result<Reply<'_>, Errno> {
        let arena = registration.arena();
        let mut unsent = arena.filter(|_| arena != self.arena);
        let mut tries = 0;
        loop {
            let fd = unsent.map(ArenaFile::descriptor).transpose()?;
            let fds: ArrayVec<_, 1> = fd.iter().map(|fd| fd.as_fd()).collect();
            let received = self.channel.exchange(socket, RequestKind::Verbs, command, registration.segments(), &fds)?;
            tries += 1;
            match Answer::of(self.channel.head(&received)) {
                _ if tries > MOST_TRIES => {}
                Answer::Wants(extent) => {
                    QueueFile::fill(queues, extent).map_err(|_| Errno::NOMEM)?;
                    continue;
                }
                // It has to map more of the arena, and keeps no descriptor.
                Answer::NoData if unsent.is_none() && arena.is_some() => {
                    unsent = arena;
                    continue;
                }
                Answer::NoData | Answer::Other => {}
            }
            let reply = self.channel.parse(received);
            if reply.is_ok() && unsent.is_some() {
                self.arena = unsent;
            }
            return reply;
        }
    }
}

impl AsMut<Channel> for FillingChannel {
    fn as_mut(&mut self) -> &mut Channel {
        &mut self.channel
    }
}

/// The router's answer to a command that it cannot execute as it is.
enum Answer {
    /// Queue memory is to be filled in.
    Wants(Extent),
    NoData,
    Other,
}

impl Answer {
    fn of(head: Option<ReplyHeader>) -> Self {
        match head {
            Some(head) if head.errno == Errno::NODATA.raw_os_error() as u32 => match head.wanted {
                [_, 0] => Self::NoData,
                [offset, len] => Self::Wants(Extent { offset, len }),
            },
            _ => Self::Other,
        }
    }
}

/// A command makes two queues at most.
const MOST_TRIES: u32 = 4;
