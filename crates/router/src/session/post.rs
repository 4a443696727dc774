//! Requests to a thread that waits for sockets: a queue, and an eventfd that wakes it.

use rustix::event::{EventfdFlags, eventfd};
use rustix::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Sending end of the queue of a thread that takes requests of type `C`.
pub(super) struct Post<C> {
    sender: Sender<C>,
    wake: Arc<OwnedFd>,
}

impl<C> Clone for Post<C> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), wake: Arc::clone(&self.wake) }
    }
}

impl<C> Post<C> {
    /// A queue, and its end for the thread.
    pub(super) fn new() -> io::Result<(Self, Receiver<C>)> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (sender, receiver) = channel();
        Ok((Self { sender, wake }, receiver))
    }

    /// The eventfd that wakes the thread.
    pub(super) fn wake(&self) -> &Arc<OwnedFd> {
        &self.wake
    }

    /// Wakes the thread.
    pub(super) fn notify(&self) {
        let _ = io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Sends a request. An error means that the thread is gone, and with it everything that the request could be about.
    pub(super) fn tell(&self, request: C) {
        if self.sender.send(request).is_ok() {
            self.notify();
        }
    }

    /// Sends a request and waits for its answer; none where the thread is gone.
    pub(super) fn ask<R>(&self, request: impl FnOnce(Sender<R>) -> C) -> Option<R> {
        let (answer, receiver) = channel();
        self.tell(request(answer));
        receiver.recv().ok()
    }
}
