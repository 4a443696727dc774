//! Streams: TCP connections of this process that are, or may become, accelerated.
//!
//! The kernel's connection stays, as identity and as the path to which everything can go back. Each direction moves to a ring at a
//! byte offset that its writer determines and publishes; the reader takes so many bytes from TCP and then those of the ring. Going
//! back is the same with an offset of the ring. Nobody waits for anybody: until a reader has seen a switch it finds TCP empty.
//!
//! Ends of connections come from the kernel only: `shutdown`, `close`, a crash and a reset are seen on the TCP socket, after the
//! ring is empty. So they mean what they mean without acceleration, also after `dup` and `fork`.
//!
//! * [`send`], [`receive`]: the two directions; [`left`]: counts of unread bytes (`TCP_INQ`).
//! * [`switch`]: moving to rings and back; [`relayed`]: what is different where a relay is between the two processes.
//! * [`inherited`]: connections that a fork has shared; [`holders`]: how many processes have one.
//! * [`reported`]: what others may know of it.
//! * [`returning`]: rings again, after a relay was lost; [`stall`]: back to TCP, where a reader stands still.
//! * [`wait`]: threads that wait for a stream; [`locks`]: the locks of both directions.

mod holders;
mod inherited;
mod left;
mod locks;
mod receive;
mod relayed;
mod reported;
mod returning;
mod send;
mod stall;
mod switch;
mod wait;

pub(crate) use inherited::decide;
pub(crate) use locks::{Locks, LocksArea};
pub(crate) use wait::{Deadline, Way, own_waiter, spin};

use crate::epoll::Epoll;
use crate::kernel;
use crate::lock::Spin;
use crate::process::{Link, Process, Waiter};
use crate::table::Object;
use rdmesh_preload::process;
use rdmesh_streams::ends::Ends;
use rdmesh_streams::report::Reason;
use rdmesh_streams::ring::layout::WAITERS;
use rdmesh_streams::ring::{Ring, Slot};
use relayed::WayBack;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Weak};

/// A TCP connection between two programs of this host.
pub(crate) struct Stream {
    process: &'static Process,
    index: u32,
    locks: &'static Locks,
    /// Whether this end has connected; the other one has accepted.
    has_connected: bool,
    /// Of an accepted connection, from its start.
    ends: Option<Ends>,
    /// Forks that led to the process in which it was made.
    forks: u32,
    channel: AtomicPtr<Channel>,
    /// All channels that it has had: threads may be looking at them.
    #[allow(clippy::vec_box, reason = "their addresses stay")]
    kept: Spin<Vec<Box<Channel>>>,
    /// It stays on TCP from now on.
    is_pinned: AtomicBool,
    returning: returning::Return,
    /// Why, as a [`Reason`]: the first one.
    reason: AtomicU8,
    /// Held while it is pinned, and while it gets rings: one that is plain TCP gets none.
    phase: Spin<()>,
    is_shut: [AtomicBool; 2],
    asks_for_left: left::Asked,
    /// The program has set a time-out below zero, for each way: the kernel waits for nothing then, and tells so by no option.
    never_waits: [AtomicBool; 2],
    /// Calls that could have carried data, while it is on TCP.
    calls: AtomicU32,
    /// Offers to the relay, of a connection to another endpoint.
    offers: Option<switch::Offers>,
    /// Descriptors of it in this process.
    descriptors: AtomicU32,
    /// A forked child may have its rings too.
    is_shared: AtomicBool,
    /// The last fork of this process that it was shared in.
    shared_in: AtomicU32,
    /// Count of the processes that have it, as a word of [`holders::Holders`]; 0 where it has not been in a fork.
    holders: AtomicU64,
    /// Waiters for data, and for space; each its number plus one.
    waiters: [[AtomicU32; WAITERS]; 2],
    epolls: Spin<Vec<Weak<Epoll>>>,
}

/// The rings of a stream, and the process at their other end.
pub(crate) struct Channel {
    slot: Slot,
    link: Arc<Link>,
    /// Number of the offer that it came with, at the end that made it.
    offer: u32,
    /// Direction that this end writes; the other one it reads.
    tx: usize,
    /// Whether the other end has the slot too.
    is_accepted: AtomicBool,
    /// Events of the TCP socket that the kernel has reported, as bits of `poll`.
    kernel: AtomicU32,
    /// Times that a writer found no space in the ring, or too little in TCP's queue to move to it.
    full: AtomicU32,
    /// Time of the last look at TCP without being told.
    looked: AtomicU64,
    stall: stall::Stall,
    /// Of a relayed connection.
    back: WayBack,
}

/// Bits of [`Channel::kernel`].
pub(crate) const READY: u32 = libc::POLLIN as u32;
pub(crate) const FIN: u32 = libc::POLLRDHUP as u32;
pub(crate) const URGENT: u32 = libc::POLLPRI as u32;
pub(crate) const ENDED: u32 = (libc::POLLHUP | libc::POLLERR) as u32;

impl Channel {
    pub(crate) fn out(&self) -> Ring<'_> {
        self.slot.ring(self.tx)
    }

    pub(crate) fn input(&self) -> Ring<'_> {
        self.slot.ring(1 - self.tx)
    }

    /// The kernel says these bits of the TCP socket.
    pub(crate) fn note_kernel(&self, bits: u32) {
        let bits = bits & (READY | FIN | URGENT | ENDED);
        if bits != 0 {
            self.kernel.fetch_or(if bits & (FIN | ENDED) != 0 { bits | READY } else { bits }, Ordering::AcqRel);
        }
    }

    /// Bytes that have been read from TCP, ever, of `sent` that come before a FIN.
    pub(crate) fn read_from_tcp(&self, fd: c_int, sent: u64) -> Option<u64> {
        kernel::read(fd, sent, self.kernel.load(Ordering::Acquire) & libc::POLLERR as u32 != 0)
    }

    /// Events that the kernel has reported: bits of [`READY`] and the others.
    pub(crate) fn kernel(&self) -> u32 {
        self.kernel.load(Ordering::Acquire) & !self.early()
    }
}

impl Stream {
    /// A connection that this process has made, to another endpoint or within this one, or else accepted between `ends`. None where there are too many, or where it
    /// cannot be accelerated for another reason.
    pub(crate) fn new(ends: Option<Ends>, is_local: bool) -> Option<Self> {
        let process = Process::get()?;
        let (index, locks) = process.claim_index()?;
        locks.reset();
        Some(Self {
            process,
            index,
            locks: crate::table::never_freed(locks)?,
            has_connected: ends.is_none(),
            ends,
            forks: process::forks(),
            channel: AtomicPtr::new(std::ptr::null_mut()),
            kept: Spin::default(),
            is_pinned: AtomicBool::new(false),
            returning: returning::Return::default(),
            reason: AtomicU8::new(Reason::None as u8),
            phase: Spin::default(),
            is_shut: Default::default(),
            asks_for_left: left::Asked::default(),
            never_waits: Default::default(),
            calls: AtomicU32::new(0),
            offers: (!is_local).then(switch::Offers::default),
            descriptors: AtomicU32::new(0),
            is_shared: AtomicBool::new(false),
            shared_in: AtomicU32::new(0),
            holders: AtomicU64::new(0),
            waiters: Default::default(),
            epolls: Spin::default(),
        })
    }

    /// The process that it was made in.
    pub(crate) fn process(&self) -> &'static Process {
        self.process
    }

    /// Its index in that.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Of an accepted connection, the ends.
    pub(crate) fn ends(&self) -> Option<&Ends> {
        self.ends.as_ref()
    }

    /// Its rings, where it has some.
    pub(crate) fn channel(&self) -> Option<&Channel> {
        // Kept as long as this stream.
        let channel = self.channel.load(Ordering::Acquire);
        crate::table::kept(channel, self)
    }

    /// Whether it is a plain TCP connection, and remains one: calls on it need nothing of this library.
    pub(crate) fn is_plain(&self) -> bool {
        self.is_pinned.load(Ordering::Relaxed) && self.channel.load(Ordering::Relaxed).is_null()
    }

    /// Notes why it is on TCP.
    fn give_reason(&self, why: Reason) {
        let _ = self.reason.compare_exchange(Reason::None as u8, why as u8, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Keeps it on TCP if it is there.
    pub(crate) fn pin(&self, why: Reason) {
        self.give_reason(why);
        let held = self.phase.lock();
        self.is_pinned.store(true, Ordering::Release);
        self.returning.forbid();
        drop(held);
        if let Some(ends) = &self.ends
            && !self.is_inherited()
        {
            self.process.withdraw(ends);
        }
    }

    /// A reference that keeps it as long as a call waits.
    fn kept_alive(&self) -> Option<Arc<Object>> {
        self.process.stream(self.index)
    }

    /// The program has one more descriptor of it.
    pub(crate) fn gained_descriptor(&self) {
        self.descriptors.fetch_add(1, Ordering::AcqRel);
    }

    /// The program has one less.
    pub(crate) fn lost_descriptor(&self) {
        if self.descriptors.fetch_sub(1, Ordering::SeqCst) != 1 {
            return;
        }
        if let Some(ends) = &self.ends
            && !self.is_inherited()
        {
            self.process.withdraw(ends);
        }
        self.leave_holders();
    }

    /// The program is about to close descriptor `fd` of it. Returns whether that ends what is written to the ring: the other end is to
    /// be told once it is closed.
    pub(crate) fn closing(&self, fd: c_int) -> bool {
        let is_last = self.descriptors.load(Ordering::Acquire) <= 1;
        if !is_last && self.channel().is_some() && !self.epolls().is_empty() {
            // epoll goes on to tell of it by the other descriptor.
            self.move_to_tcp(fd, Reason::Waiters);
        }
        let is_end = is_last && !self.is_inherited() && !self.is_shared.load(Ordering::Acquire);
        for epoll in self.epolls() {
            epoll.closed(fd);
            // The kernel does so by itself, but only when the other end has let go of the socket, too, that it was offered.
            if is_end && !self.kept.lock().is_empty() {
                epoll.unregister(fd);
            }
        }
        if let Some(channel) = self.channel().filter(|_| is_end)
            && channel.input().readable().is_ok_and(|unread| unread != 0)
            && self.is_behind_switch(fd, channel)
        {
            kernel::reset_on_close(fd);
        } else if is_end {
            self.ending(fd);
        }
        let ended = self.channel().filter(|_| is_end);
        ended.inspect(|channel| finish(channel)).is_some()
    }

    /// The kernel has ended the direction that it writes: waiters at the other end look at it now, and not after what others have
    /// written since.
    pub(crate) fn tell_end(&self) {
        if let Some(channel) = self.channel() {
            channel.link.signal(&channel.out().header.reader);
        }
    }

    /// Asks the kernel for the end that the writer has announced.
    pub(crate) fn look_for_end(&self, fd: c_int) {
        let Some(channel) = self.channel().filter(|channel| !channel.is_relayed()) else { return };
        let is_announced = channel.input().header.path.is_final.load(Ordering::Acquire) != 0;
        if is_announced && channel.kernel() & (FIN | ENDED) == 0 {
            channel.note_kernel(kernel::ends_of(fd));
        }
    }

    /// Descriptor `fd` of it has been closed, and is another's by now.
    pub(crate) fn was_closed(&self, fd: c_int) {
        self.epolls().iter().for_each(|epoll| epoll.closed(fd));
        if self.descriptors.load(Ordering::Acquire) <= 1 {
            // What there was to be told, the kernel has told.
            self.is_pinned.store(true, Ordering::Release);
            self.returning.forbid();
        }
    }

    /// Whether it was made by a process of which this one is a fork.
    pub(crate) fn is_inherited(&self) -> bool {
        self.forks != process::forks()
    }

    /// Lets a waiter be told when there is data, or space. Returns the place to give back; none where there are too many waiters,
    /// or the other end cannot be told: the caller looks again by itself.
    pub(crate) fn watch(&self, way: Way, waiter: &Waiter) -> Option<usize> {
        let (places, id) = (&self.waiters[way as usize], waiter.id() + 1);
        if !std::ptr::eq(waiter.process(), self.process) {
            return None;
        }
        let claim = |place: &AtomicU32| place.compare_exchange(0, id, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        let place = places.iter().position(claim)?;
        fence(Ordering::SeqCst);
        // A channel that comes now copies the places.
        if let Some(channel) = self.channel()
            && self.announce(channel, way, place).is_err()
        {
            self.unwatch(way, place);
            return None;
        }
        Some(place)
    }

    /// Ends what [`Stream::watch`] began.
    pub(crate) fn unwatch(&self, way: Way, place: usize) {
        self.waiters[way as usize][place].store(0, Ordering::SeqCst);
        if let Some(channel) = self.channel() {
            // Nothing has to be sent for a place without a waiter.
            let _ = self.announce(channel, way, place);
        }
    }

    /// Copies a place to where the other end sees it. Two threads may do so at once, of which one has an old value: each looks
    /// again at what the place holds after its store.
    fn announce(&self, channel: &Channel, way: Way, place: usize) -> Result<(), rustix::io::Errno> {
        let (own, seen) = (&self.waiters[way as usize][place], &self.waiting(channel, way).waiters[place]);
        loop {
            let id = own.load(Ordering::SeqCst);
            if let Some(waiter) = id.checked_sub(1) {
                channel.link.announce(self.process, waiter)?;
            }
            seen.store(id, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            if own.load(Ordering::SeqCst) == id {
                return Ok(());
            }
        }
    }

    /// This end's waiters as the other end sees them.
    fn waiting<'a>(&self, channel: &'a Channel, way: Way) -> &'a rdmesh_streams::ring::layout::Waiting {
        match way {
            Way::In => &channel.input().header.reader,
            Way::Out => &channel.out().header.writer,
        }
    }

    /// Tells the waiters at the other end to look, if that is a process behind `link`.
    pub(crate) fn signal_peer(&self, link: &Arc<Link>) {
        let Some(channel) = self.channel().filter(|channel| Arc::ptr_eq(&channel.link, link)) else { return };
        fence(Ordering::SeqCst);
        link.signal(&channel.out().header.reader);
        link.signal(&channel.input().header.writer);
    }

    /// Wakes all waiters of this process for the stream: something about it has changed here.
    pub(crate) fn wake_own_waiters(&self) {
        for place in self.waiters.iter().flatten() {
            let Some(id) = place.load(Ordering::SeqCst).checked_sub(1) else { continue };
            let Some(inbox_place) = self.process.inbox().place(id as usize) else { continue };
            if inbox_place.post(self.index)
                && inbox_place.claim_wake_up()
                && let Some(doorbell) = self.process.doorbells().get(id)
            {
                let _ = rustix::io::write(&*doorbell, &1u64.to_ne_bytes());
            }
        }
    }

    /// An epoll instance has it as a member.
    pub(crate) fn joined(&self, epoll: &Weak<Epoll>) {
        let mut epolls = self.epolls.lock();
        epolls.retain(|known| known.strong_count() != 0);
        epolls.push(Weak::clone(epoll));
    }

    /// No longer.
    pub(crate) fn left(&self, epoll: &Weak<Epoll>) {
        let mut epolls = self.epolls.lock();
        if let Some(at) = epolls.iter().position(|known| known.ptr_eq(epoll)) {
            epolls.swap_remove(at);
        }
    }

    /// The epoll instances that have it.
    fn epolls(&self) -> Vec<Arc<Epoll>> {
        self.epolls.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.is_inherited() {
            self.process.release_index(self.index);
        }
    }
}

/// Nothing more is written to the ring of a channel.
fn finish(channel: &Channel) {
    let ring = channel.out();
    ring.header.path.is_final.store(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    if channel.is_relayed() {
        channel.link.signal(&ring.header.reader);
    }
}

/// The stream of `object`, for which others look by its index.
pub(crate) fn known(stream: Stream) -> Arc<Object> {
    let (process, index) = (stream.process, stream.index);
    let object = Arc::new(Object::Stream(stream));
    process.enter(index, &object);
    object
}
