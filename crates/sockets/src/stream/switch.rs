//! Moving a stream to rings, and back to TCP.

use super::relayed::{Look, WAY_BACK, WayBack};
use super::{Channel, ENDED, FIN, Stream};
use crate::kernel::{self, borrow};
use crate::process::Link;
use crate::spin::now;
use rdmesh_preload::settings::settings;
use rdmesh_preload::{gate, real};
use rdmesh_streams::ends::Ends;
use rdmesh_streams::message::Message;
use rdmesh_streams::report::Reason;
use rdmesh_streams::ring::layout::{RING, SLOT};
use rdmesh_streams::ring::{Piece, Ring, Slot};
use rdmesh_uverbs::shared::SharedMemory;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// Offers of a connection to the relay: the other end may not have been accepted, or linked to its own relay, at first.
#[derive(Default)]
pub(crate) struct Offers {
    made: AtomicU32,
    /// Time before which the next one is not made.
    next: AtomicU64,
    /// They are for rings again, after a relay was lost.
    is_again: AtomicBool,
}

/// Whether an offer is to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    NotNow,
    Try,
    Never,
}

impl Offers {
    fn next(&self, is_due: bool) -> Next {
        let (made, time) = (self.made.load(Ordering::Relaxed), now());
        if !is_due || time < self.next.load(Ordering::Relaxed) {
            return Next::NotNow;
        }
        if made == OFFERS {
            return Next::Never;
        }
        // Another thread may be faster.
        if self.made.compare_exchange(made, made + 1, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return Next::NotNow;
        }
        let pause = if self.is_again.load(Ordering::Relaxed) { AGAIN_PAUSE_NS } else { FIRST_PAUSE_NS };
        self.next.store(time + (pause << (2 * made)), Ordering::Relaxed);
        Next::Try
    }

    /// A relay was lost, and another one may come.
    pub(super) fn begin_again(&self) {
        self.is_again.store(true, Ordering::Relaxed);
        self.next.store(now() + AGAIN_PAUSE_NS, Ordering::Relaxed);
        self.made.store(0, Ordering::Relaxed);
    }
}

impl Stream {
    /// Counts a call on a stream that is on TCP, and offers rings to the other end when it is time. Called without locks.
    pub(super) fn count_call(&self, fd: c_int) {
        let Some(after) = settings().upgrade_after() else { return self.pin(Reason::Disabled) };
        let calls = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        if !self.has_connected {
            self.publish_again(fd);
            // The other end has had its chance: it is not accelerated, or does not want to be.
            let patience = if self.offers.is_some() { RELAYED_PATIENCE } else { ACCEPTORS_PATIENCE };
            if calls >= patience {
                self.pin(Reason::Peer);
            }
            return;
        }
        if let Some(offers) = &self.offers {
            match offers.next(calls >= after) {
                Next::NotNow => {}
                Next::Try => {
                    let _gate = gate::enter();
                    let _ = self.offer(fd);
                }
                Next::Never => self.pin(Reason::Peer),
            }
            return;
        }
        // The first times the other end may not have been accepted yet.
        let nth = calls.saturating_sub(after);
        if calls >= after && nth.is_power_of_two() | (nth == 0) {
            if nth >= PATIENCE {
                self.pin(Reason::Peer);
            } else {
                let _gate = gate::enter();
                let _ = self.offer(fd);
            }
        }
    }

    /// Offers rings to the process that has accepted the connection. None where it has not, or not with this library.
    fn offer(&self, fd: c_int) -> Option<()> {
        if self.is_pinned.load(Ordering::Acquire) || self.channel().is_some() {
            return None;
        }
        let ends = Ends::of(borrow(fd), true)?;
        let link = self.process.find_link(&ends)?;
        self.offer_by(fd, &link)
    }

    /// Offers rings by a link.
    pub(crate) fn offer_by(&self, fd: c_int, link: &Arc<Link>) -> Option<()> {
        if !self.is_alone() {
            return None;
        }
        // The router does not make pages of a program's memory.
        let create = if link.is_relay() { SharedMemory::create } else { SharedMemory::create_sparse };
        let (memory, slot_fd) = create("rdmesh-stream", SLOT).ok()?;
        let offer = self.process.offer_number(self.index);
        let tx = usize::from(!self.has_connected);
        self.install(Slot::new(memory)?, Arc::clone(link), tx, offer)?;
        if (Message::Offer { offer }).send(link.socket(), &[borrow(fd), slot_fd.as_fd()]).is_err() {
            self.offer_refused(offer);
        }
        Some(())
    }

    /// Takes rings that the connecting end offers.
    pub(crate) fn take_offer(&self, link: &Arc<Link>, memory: &OwnedFd) -> Result<(), Errno> {
        let memory = SharedMemory::map(memory.as_fd(), 0, SLOT, true)?;
        if self.comes_back() {
            return Err(Errno::AGAIN);
        }
        if self.is_pinned.load(Ordering::Acquire) || self.channel().is_some() || settings().upgrade_after().is_none() {
            return Err(Errno::OPNOTSUPP);
        }
        if !self.is_alone() {
            return Err(Errno::AGAIN);
        }
        let slot = Slot::new(memory).ok_or(Errno::INVAL)?;
        let channel = self.install(slot, Arc::clone(link), 1, 0).ok_or(Errno::AGAIN)?;
        channel.is_accepted.store(true, Ordering::Release);
        self.wake_own_waiters();
        Ok(())
    }

    /// Gives the stream its rings. Both locks are taken: no thread is in the middle of a call.
    fn install(&self, slot: Slot, link: Arc<Link>, tx: usize, offer: u32) -> Option<&Channel> {
        let channel = Box::new(Channel {
            slot,
            link,
            offer,
            tx,
            is_accepted: AtomicBool::new(false),
            kernel: AtomicU32::new(0),
            full: AtomicU32::new(0),
            looked: AtomicU64::new(0),
            stall: super::stall::Stall::default(),
            back: WayBack::default(),
        });
        channel.input().header.reader.index.store(self.index, Ordering::Relaxed);
        channel.out().header.writer.index.store(self.index, Ordering::Relaxed);
        let locks = (self.locks.tx.lock(), self.locks.rx.lock());
        let held = self.phase.lock();
        // Another thread may have been faster.
        if self.is_pinned.load(Ordering::Acquire) || self.channel().is_some() {
            return None;
        }
        self.locks.reset();
        let raw = std::ptr::from_ref(&*channel).cast_mut();
        self.kept.lock().push(channel);
        self.channel.store(raw, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        drop((held, locks));
        let channel = self.channel()?;
        for way in [super::Way::In, super::Way::Out] {
            for place in 0..self.waiters[way as usize].len() {
                if self.announce(channel, way, place).is_err() {
                    self.uninstall();
                    return None;
                }
            }
        }
        self.epolls().iter().for_each(|epoll| epoll.stream_changed(self));
        Some(channel)
    }

    fn uninstall(&self) {
        self.channel.store(std::ptr::null_mut(), Ordering::SeqCst);
        self.tell_of_path();
    }

    /// The other end has taken the rings.
    pub(crate) fn offer_accepted(&self, offer: u32) {
        if let Some(channel) = self.offered(offer) {
            channel.is_accepted.store(true, Ordering::Release);
            self.wake_own_waiters();
        }
    }

    /// It has not, and nothing has been written to them.
    pub(crate) fn offer_refused(&self, offer: u32) {
        if self.offered(offer).is_some_and(|channel| !channel.is_accepted.load(Ordering::Acquire)) {
            self.pin(Reason::Refused);
            self.uninstall();
        }
    }

    /// The other end may take an offer later: the relay has found no process there yet, or a fork shares the connection.
    pub(crate) fn offer_put_off(&self, offer: u32) {
        if self.offered(offer).is_some_and(|channel| !channel.is_accepted.load(Ordering::Acquire)) {
            self.uninstall();
        }
    }

    /// The rings that this end has offered by this number. The answer to an earlier connection's offer may come late.
    fn offered(&self, offer: u32) -> Option<&Channel> {
        self.channel().filter(|channel| (self.has_connected || channel.is_relayed()) && channel.offer == offer)
    }

    /// Whether the next bytes go to the ring. The caller has the lock of the direction. Moves the direction up where that is
    /// possible, and down where something asks for it.
    pub(super) fn is_on_ring(&self, fd: c_int, channel: &Channel, ring: &Ring<'_>) -> bool {
        let path = &ring.header.path;
        if path.down_at.load(Ordering::Relaxed) != 0 {
            return false;
        }
        // A peer that sends nothing more may have closed its socket: TCP knows whether there is a reader.
        let may_be_closed =
            channel.input().header.path.is_final.load(Ordering::Relaxed) != 0 || channel.kernel() & FIN != 0;
        let leaves = channel.back.leaves.load(Ordering::Relaxed) || channel.is_bulk();
        if path.is_frozen.load(Ordering::Relaxed) != 0 || may_be_closed || leaves {
            if channel.is_bulk() {
                let is_crowded = channel.back.is_crowded.load(Ordering::Relaxed);
                self.give_reason(if is_crowded { Reason::Crowded } else { Reason::Bulk });
            }
            self.move_down(fd, channel, ring);
            return false;
        }
        if path.up_at.load(Ordering::Relaxed) != 0 {
            return true;
        }
        if self.is_pinned.load(Ordering::Acquire) || !channel.is_accepted.load(Ordering::Acquire) {
            return false;
        }
        if channel.is_relayed() {
            let is_crowded = !kernel::has_room(fd, WAY_BACK);
            channel.back.is_crowded.store(is_crowded, Ordering::Release);
            if is_crowded {
                channel.full.fetch_add(1, Ordering::AcqRel);
                return false;
            }
        }
        let Some(written) = kernel::written(fd, self.has_connected) else { return false };
        path.up_at.store(written + 1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        // The reader may have frozen the direction before it could see this.
        if path.is_frozen.load(Ordering::SeqCst) != 0 {
            self.move_down(fd, channel, ring);
            return false;
        }
        true
    }

    /// Moves the direction that this end writes back to TCP. The caller has its lock. What a frozen reader has left in the ring
    /// goes before.
    pub(super) fn move_down(&self, fd: c_int, channel: &Channel, ring: &Ring<'_>) {
        let path = &ring.header.path;
        if path.up_at.load(Ordering::Acquire) == 0 {
            channel.is_accepted.store(false, Ordering::Release);
            if channel.is_relayed() {
                // A reader that has frozen the direction waits for this.
                path.down_at.store(1, Ordering::SeqCst);
                fence(Ordering::SeqCst);
                channel.link.signal(&ring.header.reader);
            }
            return;
        }
        if path.is_final.load(Ordering::Acquire) != 0 {
            // Nothing follows by TCP, and what is in the ring is read there.
            return;
        }
        if channel.is_relayed() {
            return self.send_record(fd, channel);
        }
        let (tail, mut left) = (ring.header.producer.tail.load(Ordering::Relaxed), vec![0; RING]);
        let is_frozen = path.is_frozen.load(Ordering::Acquire) != 0;
        let kept =
            if is_frozen { ring.read(&[Piece { base: left.as_mut_ptr(), len: RING }], true).unwrap_or(0) } else { 0 };
        left.truncate(kept);
        path.down_at.store(tail.wrapping_sub(kept as u64).wrapping_add(1), Ordering::SeqCst);
        fence(Ordering::SeqCst);
        channel.link.signal(&ring.header.reader);
        if send_all(fd, &mut left).is_err() {
            channel.note_kernel(ENDED);
            // The bytes cannot be had by the reader any more: better an end than a gap.
            real::shutdown(fd, libc::SHUT_RDWR);
        }
    }

    /// Moves the direction that this end writes back to TCP, unless it is there. Called without the lock.
    pub(super) fn leave(&self, fd: c_int, channel: &Channel) {
        let _tx = self.locks.tx.lock();
        let ring = channel.out();
        if ring.header.path.down_at.load(Ordering::Relaxed) == 0 {
            self.move_down(fd, channel, &ring);
        }
    }

    /// The other end reads this stream from TCP only. Called by the agent.
    pub(crate) fn leave_ring(&self, link: &Arc<Link>) {
        let Some(channel) = self.channel().filter(|channel| Arc::ptr_eq(&channel.link, link)) else { return };
        self.pin(Reason::PeerLeft);
        let Some(fd) = crate::table::descriptor_of(self) else { return };
        self.leave(fd, channel);
        self.tell_of_path();
    }

    /// Moves both directions to TCP for good, so that the descriptor can be used without this library: by a child, another program,
    /// or a call that a ring cannot do.
    pub(crate) fn move_to_tcp(&self, fd: c_int, why: Reason) {
        self.pin(why);
        let Some(channel) = self.channel() else { return };
        self.leave(fd, channel);
        {
            let _rx = self.locks.rx.lock();
            self.freeze(fd, channel);
            self.settle(channel);
        }
        self.epolls().iter().for_each(|epoll| epoll.stream_changed(self));
    }

    /// Whether both directions have come back to TCP; then the stream forgets its rings.
    pub(super) fn settle(&self, channel: &Channel) {
        let (out, input) = (channel.out(), channel.input());
        let is_down = |ring: &Ring<'_>| ring.header.path.down_at.load(Ordering::Acquire) != 0;
        // A writer whose reader has not seen it move has not moved, or has ended the connection.
        let has_stayed =
            channel.back.is_lost.load(Ordering::Acquire) && input.header.path.up_at.load(Ordering::Acquire) == 0;
        let has_come_back = has_stayed || is_down(&input) && self.locks.left() == Some(0);
        if is_down(&out) && has_come_back && input.readable() == Ok(0) && channel.back.skip.load(Ordering::Acquire) == 0
        {
            self.come_back();
            self.uninstall();
        }
    }

    /// Asks the writer at the other end to go back to TCP, and waits until it has, as long as it is alive. The caller is the reader.
    fn freeze(&self, fd: c_int, channel: &Channel) {
        let ring = channel.input();
        let path = &ring.header.path;
        path.is_frozen.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if path.is_final.load(Ordering::SeqCst) != 0 {
            path.is_frozen.store(0, Ordering::SeqCst);
            return;
        }
        if path.up_at.load(Ordering::SeqCst) == 0 && !channel.is_relayed() {
            // It has not moved up, and will not without going down at once.
            return;
        }
        let index = ring.header.writer.index.load(Ordering::Relaxed);
        let told = Message::Down { index }.send(channel.link.socket(), &[]);
        let begin = now();
        // What another host's writer has on its way is nowhere else.
        let longest = if channel.is_relayed() { RELAYED_FREEZE_NS } else { FREEZE_NS };
        let mut has_ended = false;
        while path.down_at.load(Ordering::Acquire) == 0 {
            let is_cut = told.is_err() || channel.link.is_dead();
            // Nothing is handed on to a reader that has not seen the move.
            let has_stayed = path.up_at.load(Ordering::Acquire) == 0
                && (channel.link.is_dead() || channel.back.is_lost.load(Ordering::Acquire));
            let is_settled = has_ended || has_stayed || path.is_final.load(Ordering::Acquire) != 0;
            if is_settled || is_cut && !channel.is_relayed() || now() - begin > longest {
                // It is dead, or stopped: what is in the ring can still be read here.
                path.is_frozen.store(0, Ordering::SeqCst);
                if channel.is_relayed() && !is_settled {
                    // Its record may come when nobody knows it.
                    self.give_up(fd);
                }
                return;
            }
            // A relayed writer's record comes by TCP.
            if self.locks.left() == Some(0) {
                let look = self.look_for_record(fd, channel);
                has_ended = matches!(look, Ok(Look::End(end)) if end != Err(Errno::AGAIN));
            }
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
        while self.skip_known(fd, channel) == Err(Errno::AGAIN) && now() - begin < longest {
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
    }
}

/// Sends all of `bytes` on TCP, within a second.
pub(super) fn send_all(fd: c_int, bytes: &mut [u8]) -> Result<(), Errno> {
    let (mut done, begin) = (0, now());
    while done < bytes.len() {
        let rest = &mut bytes[done..];
        match kernel::send(fd, &[Piece { base: rest.as_mut_ptr(), len: rest.len() }], 0) {
            Ok(sent) => done += sent,
            Err(Errno::AGAIN) if now() - begin < FREEZE_NS => {
                let mut poll = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
                real::poll(&raw mut poll, 1, 100);
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Calls on a connection after which its other end is taken to be without this library.
const PATIENCE: u32 = 64;
/// Likewise of the end that accepts, which waits for the other one's offer.
const ACCEPTORS_PATIENCE: u32 = 1000;
/// And of one whose other end is in another endpoint, and offers for some seconds.
const RELAYED_PATIENCE: u32 = 100_000;
/// Offers to the relay, after which the other end is taken to be without this library; and the pause after the first of them. Each
/// pause is four times as long: the last offer comes after five seconds, for hosts on which a thousand connections begin at once.
const OFFERS: u32 = 8;
const FIRST_PAUSE_NS: u64 = 1_000_000;
/// First pause of those after a relay was lost: a router that is started again takes its time. The last comes after minutes.
const AGAIN_PAUSE_NS: u64 = 100_000_000;
/// Longest wait for a peer to go back to TCP.
const FREEZE_NS: u64 = 1_000_000_000;
const RELAYED_FREEZE_NS: u64 = 10_000_000_000;
