//! Messages between linked processes, on their Unix socket.

use arrayvec::ArrayVec;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

/// Version of the messages and of all shared memory. Processes with different ones stay on TCP.
pub const VERSION: u32 = 5;
/// Most descriptors of a message.
pub const FDS: usize = 2;

/// A message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the fields are in the variants' docs")]
pub enum Message {
    /// The first: the sender's version. With its inbox.
    Hello { version: u32 },
    /// Doorbell of a waiter of the sender. With an eventfd.
    Doorbell { waiter: u32 },
    /// A slot for a connection that the sender has made. With the connection's TCP socket, which proves that it is the sender's,
    /// and the slot's memory.
    Offer { offer: u32 },
    /// The receiver's offer holds.
    Accept { offer: u32 },
    /// It does not: there is no such connection, or it must stay on TCP.
    Refuse { offer: u32 },
    /// The sender reads its connection from TCP only: the receiver, whose index is given, is to go back there.
    Down { index: u32 },
    /// Of a relay: the receiver's offer does not hold now, and may later.
    Later { offer: u32 },
    /// Of a relay: the receiver has accepted connection `index`, whose other end wants rings. It answers with an offer.
    Want { index: u32 },
    /// Of a relay: the way to the other end of connection `index` has broken; what is under way in the rings may be lost.
    Lost { index: u32 },
}

/// A message that has arrived, with its descriptors.
pub struct Received {
    /// Parsed; its numbers are the sender's, and are to be checked.
    pub message: Message,
    /// Descriptors; one message has [`FDS`] at most.
    pub fds: ArrayVec<OwnedFd, FDS>,
}

impl Message {
    fn words(self) -> [u32; 2] {
        match self {
            Self::Hello { version } => [1, version],
            Self::Doorbell { waiter } => [2, waiter],
            Self::Offer { offer } => [3, offer],
            Self::Accept { offer } => [4, offer],
            Self::Refuse { offer } => [5, offer],
            Self::Down { index } => [6, index],
            Self::Later { offer } => [7, offer],
            Self::Want { index } => [8, index],
            Self::Lost { index } => [9, index],
        }
    }

    fn parse([kind, value]: [u32; 2]) -> Option<Self> {
        Some(match kind {
            1 => Self::Hello { version: value },
            2 => Self::Doorbell { waiter: value },
            3 => Self::Offer { offer: value },
            4 => Self::Accept { offer: value },
            5 => Self::Refuse { offer: value },
            6 => Self::Down { index: value },
            7 => Self::Later { offer: value },
            8 => Self::Want { index: value },
            9 => Self::Lost { index: value },
            _ => return None,
        })
    }

    /// Sends it. A full socket is EAGAIN: its reader is not to be waited for.
    pub fn send(self, socket: BorrowedFd<'_>, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let [kind, value] = self.words().map(u32::to_ne_bytes);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(socket, &[IoSlice::new(&kind), IoSlice::new(&value)], &mut control, flags).map(drop)
    }

    /// The next message; none where the other end has closed the socket. What is no message is EPROTO.
    pub fn receive(socket: BorrowedFd<'_>) -> Result<Option<Received>, Errno> {
        let (mut kind, mut value) = ([0; 4], [0; 4]);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let parts = &mut [IoSliceMut::new(&mut kind), IoSliceMut::new(&mut value)];
        let len = recvmsg(socket, parts, &mut control, flags)?.bytes;
        let mut fds = ArrayVec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(sent) = message {
                sent.for_each(|fd| drop(fds.try_push(fd)));
            }
        }
        match (len, Self::parse([kind, value].map(u32::from_ne_bytes))) {
            (0, _) => Ok(None),
            (8, Some(message)) => Ok(Some(Received { message, fds })),
            _ => Err(Errno::PROTO),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, send, socketpair};

    #[test]
    fn messages_arrive_with_their_descriptors() {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let all = [
            Message::Hello { version: VERSION },
            Message::Doorbell { waiter: 7 },
            Message::Offer { offer: 1 },
            Message::Accept { offer: u32::MAX },
            Message::Refuse { offer: 0 },
            Message::Down { index: 5 },
            Message::Later { offer: 9 },
            Message::Want { index: 0 },
            Message::Lost { index: 3 },
        ];
        for (count, message) in [0, 1, 2, 0, 1, 2, 0, 0, 0].into_iter().zip(all) {
            message.send(a.as_fd(), &[a.as_fd(), b.as_fd()][..count]).unwrap();
            let received = Message::receive(b.as_fd()).unwrap().unwrap();
            assert_eq!((received.message, received.fds.len()), (message, count));
        }
        assert_eq!(Message::receive(b.as_fd()).err(), Some(Errno::AGAIN));
        send(&a, &[9; 8], SendFlags::empty()).unwrap();
        send(&a, &[1, 0], SendFlags::empty()).unwrap();
        assert_eq!(Message::receive(b.as_fd()).err(), Some(Errno::PROTO));
        assert_eq!(Message::receive(b.as_fd()).err(), Some(Errno::PROTO));
        drop(a);
        assert!(Message::receive(b.as_fd()).unwrap().is_none());
    }
}
