//! Counters of a worker's sockets.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters, written by the thread that serves the worker's shard and read by all threads.
        #[derive(Default, Debug)]
        pub(crate) struct Counters { $(pub(crate) $name: Counter,)* }

        /// Counters of a worker's sockets.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct IoStats { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            pub(crate) fn read(&self) -> IoStats {
                IoStats { $($name: self.$name.0.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Datagrams received.
    received_datagrams,
    /// Bytes of them, without UDP's and outer headers.
    received_bytes,
    /// Messages that brought them: one has as many datagrams as the kernel put together.
    received_trains,
    /// Datagrams sent.
    sent_datagrams,
    /// Bytes of them.
    sent_bytes,
    /// Messages that they were sent in.
    sent_trains,
    /// Messages for which a socket's buffer had no room.
    kernel_drops,
    /// Datagrams that the kernel did not take, or that had no socket.
    send_errors,
    /// Times that the kernel had no room for more.
    blocked,
    /// Datagrams handed to the worker that they were for.
    forwarded,
    /// Datagrams that were not, because that worker's mailbox was full.
    forward_drops,
    /// Faults put in.
    faults,
}

/// A counter with one writer at a time.
#[derive(Default, Debug)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }
}
