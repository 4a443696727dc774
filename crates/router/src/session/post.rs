//! Requests to a thread that waits for sockets: a queue, and an eventfd that wakes it.

use rustix::event::{EventfdFlags, eventfd};
use rustix::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

/// Sending end of the queue of a thread that takes requests of type `C`.
pub(super) struct Post<C> {
    sender: Sender<C>,
    wake: Arc<OwnedFd>,
    is_told: Arc<AtomicBool>,
}

/// Receiving end of the queue.
pub(super) struct Inbox<C> {
    receiver: Receiver<C>,
    /// The thread has been woken, and has not looked since: requests that follow need not wake it.
    is_told: Arc<AtomicBool>,
}

impl<C> Clone for Post<C> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), wake: Arc::clone(&self.wake), is_told: Arc::clone(&self.is_told) }
    }
}

impl<C> Inbox<C> {
    /// The requests that there are.
    pub(super) fn requests(&self) -> impl Iterator<Item = C> {
        // Before the first look: a request that comes after the last one wakes the thread again.
        self.is_told.swap(false, Ordering::AcqRel);
        std::iter::from_fn(|| self.receiver.try_recv().ok())
    }
}

impl<C> Post<C> {
    /// A queue, and its end for the thread.
    pub(super) fn new() -> io::Result<(Self, Inbox<C>)> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let ((sender, receiver), is_told) = (channel(), Arc::new(AtomicBool::new(false)));
        let inbox = Inbox { receiver, is_told: Arc::clone(&is_told) };
        Ok((Self { sender, wake, is_told }, inbox))
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
        if self.sender.send(request).is_ok() && !self.is_told.swap(true, Ordering::AcqRel) {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Times that the thread was woken since the last call.
    fn woken(post: &Post<u32>) -> u64 {
        let mut count = [0; 8];
        io::read(&**post.wake(), &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    }

    #[test]
    fn requests_wake_the_thread_once_until_it_looks() {
        let (post, inbox) = Post::new().unwrap();
        let other = post.clone();
        for round in 0..3 {
            (0..100).for_each(|n| if n % 2 == 0 { post.tell(n) } else { other.tell(n) });
            assert_eq!((woken(&post), woken(&post)), (1, 0), "round {round}");
            assert_eq!(inbox.requests().collect::<Vec<_>>(), (0..100).collect::<Vec<_>>());
        }
        // One that comes while the thread looks wakes it for the next look.
        let mut requests = inbox.requests();
        post.tell(1);
        assert_eq!((requests.next(), requests.next()), (Some(1), None));
        assert_eq!((woken(&post), inbox.requests().next()), (1, None));
    }

    #[test]
    fn no_request_is_forgotten_between_two_threads() {
        const COUNT: u32 = 20_000;
        let (post, inbox) = Post::new().unwrap();
        let told = post.clone();
        let teller = std::thread::spawn(move || (0..COUNT).for_each(|n| told.tell(n)));
        let mut next = 0;
        while next < COUNT {
            use rustix::event::{PollFd, PollFlags, Timespec, poll};
            let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
            let ready = poll(&mut [PollFd::new(&**post.wake(), PollFlags::IN)], Some(&limit)).unwrap();
            assert_eq!(ready, 1, "asleep with {next} of {COUNT}");
            woken(&post);
            for request in inbox.requests() {
                assert_eq!(request, next);
                next += 1;
            }
        }
        teller.join().unwrap();
    }
}
