//! Operations of the program that are pending: announced sends, and receives that an announcement may match.
//!
//! The request that the program has is MPI's own, of a persistent operation: its handle stays this one until it is freed here,
//! and functions that are not intercepted may be asked about it.
//!
//! MPI is called by the program's own threads only: not every MPI allows more. The helper, which makes messages progress while the
//! program waits for something else, sees an announcement by looking where MPI puts it ([`Job::watch`]).

use super::delivery::{Delivery, Outcome, Posted, Pulling};
use super::persistent::PersistentSend;
use super::stash::{Pattern, Stashed};
use super::{Job, Message};
use crate::abi::{Handle, Status};
use crate::announcement::{Announcement, LEN};
use crate::control::Secret;
use crate::memory::{self, Pages};
use libc::c_int;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Operations in the table, and those of them that wait; for a look without the lock.
static KNOWN: AtomicUsize = AtomicUsize::new(0);
static PENDING: AtomicUsize = AtomicUsize::new(0);

/// Whether no request of the program is one of these; may be asked without a lock.
pub(crate) fn are_none_known() -> bool {
    KNOWN.load(Ordering::Acquire) == 0
}

/// Whether none needs progress; may be asked without a lock.
pub(crate) fn are_none_pending() -> bool {
    PENDING.load(Ordering::SeqCst) == 0
}

/// The operations by request.
#[derive(Default)]
pub(crate) struct Operations {
    table: HashMap<Handle, Operation, BuildHasherDefault<HandleHasher>>,
    question: Question,
}

/// Memory for one question to MPI about several requests, kept for the next.
#[derive(Default)]
struct Question {
    handles: Vec<Handle>,
    requests: Vec<u64>,
    indices: Vec<c_int>,
    statuses: Vec<u8>,
}

/// Hash of a handle, which MPI chooses: nobody makes them collide. Each call of the program looks some up.
#[derive(Default)]
struct HandleHasher(u64);

impl Hasher for HandleHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_usize(byte.into()));
    }

    fn write_usize(&mut self, word: usize) {
        self.0 = (self.0 ^ word as u64).wrapping_mul(ODD);
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

/// 2^64 divided by the golden ratio.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

struct Operation {
    kind: Kind,
    stage: Stage,
    /// Of a staged receive.
    staged: Option<Pages>,
    /// The program has freed its request: the operation ends by itself.
    is_detached: bool,
}

#[derive(Clone, Copy)]
enum Kind {
    Send { slot: usize, is_synchronous: bool },
    PersistentSend(PersistentSend),
    Receive { posted: Posted, landing: Landing, is_persistent: bool },
}

/// Where MPI puts what it receives for a posted buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Landing {
    /// In the buffer, whose data is in one piece.
    InPlace,
    /// In memory of ours, from which it is unpacked.
    Staged,
    /// In the buffer, in pieces: it is longer than MPI could count in bytes.
    Scattered,
}

enum Stage {
    /// A persistent operation that was not started; or a send of which MPI has been given the message itself.
    Idle,
    /// MPI has the request; or a receiver the announced message.
    Waiting,
    /// An announced message is being read, before MPI has said that its announcement was received.
    Early {
        id: u64,
        announced: u64,
    },
    /// An announced message is being read.
    Pulling(Pulling),
    Complete(Outcome),
}

impl Job {
    /// A send of the announcement in `slot`, as a request of the program.
    pub(crate) fn post_send(&mut self, slot: usize, of: &Message) -> Result<Handle, c_int> {
        let (library, byte) = (self.library, self.library.abi.named.byte);
        let Message { dest, tag, comm, is_synchronous, .. } = *of;
        let message = std::ptr::with_exposed_provenance_mut(self.sends.message(slot));
        let handle = made(library, |at| library.send_init(message, LEN as c_int, byte, dest, tag, comm, at))?;
        self.started(handle)?;
        self.insert(handle, Kind::Send { slot, is_synchronous }, Stage::Waiting, None);
        Ok(handle)
    }

    /// A receive, as a request of the program; a persistent one is not yet started.
    pub(crate) fn post_receive(&mut self, posted: Posted, from: Pattern, is_persistent: bool) -> Result<Handle, c_int> {
        let (library, buffer) = (self.library, posted.buffer);
        let (landing, staged) = self.landing(&posted);
        let (pointer, count, datatype) = match &staged {
            Some(staged) => {
                let pointer = std::ptr::with_exposed_provenance_mut(staged.address());
                (pointer, posted.capacity as c_int, library.abi.named.byte)
            }
            None => (buffer.pointer(), buffer.count, buffer.datatype),
        };
        let init = |at| library.recv_init(pointer, count, datatype, from.source, from.tag, from.comm, at);
        let handle = made(library, init)?;
        if !is_persistent {
            self.started(handle)?;
        }
        let stage = if is_persistent { Stage::Idle } else { Stage::Waiting };
        self.insert(handle, Kind::Receive { posted, landing, is_persistent }, stage, staged);
        Ok(handle)
    }

    /// Where the messages of a receive are to land.
    fn landing(&mut self, posted: &Posted) -> (Landing, Option<Pages>) {
        let (address, len) = (posted.buffer.address, posted.capacity);
        if posted.is_whole && self.ranges.land(address, len) {
            self.clear(address);
            return (Landing::InPlace, None);
        }
        let staged = c_int::try_from(len).ok().and_then(|len| self.staging.take(len.unsigned_abs() as usize));
        if let Some(staged) = &staged {
            self.clear(staged.address());
        }
        (if staged.is_some() { Landing::Staged } else { Landing::Scattered }, staged)
    }

    /// An announcement in a buffer is one of the message that comes, not of one that was there before.
    fn clear(&self, address: usize) {
        let mut secret = Secret::default();
        memory::read(address, &mut secret);
        if secret == self.secret {
            memory::write(address, &Secret::default());
        }
    }

    /// A receive that matches a message which was looked into before, as a request of the program.
    pub(crate) fn post_delivery(&mut self, stashed: Stashed, posted: Posted) -> Result<Handle, c_int> {
        let (library, nowhere) = (self.library, self.library.abi.proc_null);
        let (byte, world) = (library.abi.named.byte, library.abi.named.comm_self);
        let handle = made(library, |at| library.recv_init(std::ptr::null_mut(), 0, byte, nowhere, 0, world, at))?;
        self.started(handle)?;
        let stage = match self.deliver(stashed, posted) {
            Delivery::Pulling(pulling) => Stage::Pulling(pulling),
            Delivery::Done(outcome) => Stage::Complete(outcome),
        };
        let kind = Kind::Receive { posted, landing: Landing::Scattered, is_persistent: false };
        self.insert(handle, kind, stage, None);
        Ok(handle)
    }

    /// The request sends this message, whenever it is started.
    pub(crate) fn keep_send(&mut self, handle: Handle, send: PersistentSend) {
        self.insert(handle, Kind::PersistentSend(send), Stage::Idle, None);
    }

    /// Starts a persistent operation of ours; none where MPI is to start it.
    pub(crate) fn start(&mut self, handle: Handle) -> Option<c_int> {
        let operation = self.operations.table.get_mut(&handle)?;
        if let Kind::PersistentSend(send) = operation.kind {
            return self.start_persistent(handle, send);
        }
        if let Stage::Idle = operation.stage {
            operation.stage = Stage::Waiting;
            PENDING.fetch_add(1, Ordering::SeqCst);
        }
        if let Some(address) = operation.landing() {
            self.clear(address);
        }
        Some(self.library.start((&raw const handle).cast_mut().cast()))
    }

    /// Whether the request is one of these.
    pub(crate) fn has(&self, handle: Handle) -> bool {
        self.operations.table.contains_key(&handle)
    }

    /// Whether it is a persistent one that was not started, which is complete without a message.
    pub(crate) fn is_idle(&self, handle: Handle) -> bool {
        matches!(self.operations.table.get(&handle), Some(Operation { stage: Stage::Idle, .. }))
    }

    /// Whether MPI has nothing to do for it, so that a test of it lets nothing else make progress.
    pub(crate) fn is_beyond_mpi(&self, handle: Handle) -> bool {
        let operation = self.operations.table.get(&handle);
        operation.is_some_and(|operation| {
            !matches!((&operation.stage, operation.kind), (Stage::Waiting, Kind::Receive { .. }))
        })
    }

    /// The outcome of an operation, once it is complete.
    pub(crate) fn outcome(&mut self, handle: Handle) -> Option<Outcome> {
        self.look(handle, true)
    }

    /// Outcomes of several operations, of those that are complete. MPI is asked about all of them at once: whenever it is asked it
    /// looks at everything that is under way.
    pub(crate) fn outcomes<'a>(
        &'a mut self,
        handles: impl Iterator<Item = Handle> + Clone + 'a,
    ) -> impl Iterator<Item = (Handle, Option<Outcome>)> + 'a {
        let is_asked = self.ask_mpi(handles.clone());
        handles.map(move |handle| (handle, self.look(handle, !is_asked)))
    }

    /// Asks MPI about the receives among some requests; false where each is to be asked about by itself.
    fn ask_mpi(&mut self, handles: impl Iterator<Item = Handle>) -> bool {
        let mut question = std::mem::take(&mut self.operations.question);
        question.handles.clear();
        let is_with_mpi = |handle: &Handle| {
            let operation = self.operations.table.get(handle);
            operation.is_some_and(|Operation { kind, stage, .. }| {
                matches!((stage, kind), (Stage::Waiting | Stage::Early { .. }, Kind::Receive { .. }))
            })
        };
        question.handles.extend(handles.filter(is_with_mpi));
        let is_asked = question.handles.len() > 1 && self.put(&mut question);
        self.operations.question = question;
        is_asked
    }

    /// Puts a question to MPI, and takes in what has arrived.
    fn put(&mut self, question: &mut Question) -> bool {
        let (library, abi) = (self.library, &self.library.abi);
        let Question { handles, requests, indices, statuses } = question;
        requests.resize(handles.len(), 0);
        indices.resize(handles.len(), 0);
        statuses.resize(handles.len() * abi.status_size, 0);
        let at = requests.as_mut_ptr().cast();
        handles.iter().enumerate().for_each(|(index, &handle)| library.set_handle(at, index, handle));
        let mut number = 0;
        let count = handles.len() as c_int;
        let code = library.testsome(count, at, &mut number, indices.as_mut_ptr(), statuses.as_mut_ptr().cast());
        if code != 0 && code != abi.err_in_status {
            return false;
        }
        for (&index, bytes) in indices.iter().zip(statuses.chunks(abi.status_size)).take(number.max(0) as usize) {
            let (handle, mut status) = (handles[index as usize], Status::new());
            status.0[..bytes.len()].copy_from_slice(bytes);
            let Some(&Operation { kind: Kind::Receive { posted, landing, .. }, .. }) =
                self.operations.table.get(&handle)
            else {
                continue;
            };
            let code = if code == 0 { 0 } else { status.error(abi) };
            if let Some(stage) = self.arrived(handle, posted, landing, status, code) {
                self.move_to(handle, stage);
            }
        }
        true
    }

    /// The outcome of an operation, once it is complete; MPI is asked about a receive only where it `asks`.
    fn look(&mut self, handle: Handle, asks: bool) -> Option<Outcome> {
        loop {
            let operation = self.operations.table.get(&handle)?;
            let stage = match (&operation.stage, operation.kind) {
                (Stage::Complete(outcome), _) => return Some(*outcome),
                (Stage::Idle, _) => return None,
                (_, Kind::Send { slot, is_synchronous }) => Stage::Complete(self.sent(handle, slot, is_synchronous)?),
                (_, Kind::PersistentSend(send)) => Stage::Complete(self.sent_again(&send)?),
                (Stage::Waiting | Stage::Early { .. }, Kind::Receive { .. }) if !asks => return None,
                (Stage::Waiting | Stage::Early { .. }, Kind::Receive { posted, landing, .. }) => {
                    self.received(handle, posted, landing)?
                }
                (Stage::Pulling(pulling), _) => {
                    let pulling = *pulling;
                    let (outcome, staged) = self.pulled(&pulling)?;
                    let operation = self.operations.table.get_mut(&handle)?;
                    operation.staged = operation.staged.take().or(staged);
                    Stage::Complete(outcome)
                }
            };
            self.move_to(handle, stage);
        }
    }

    /// An operation is further. A buffer in which nothing more lands may be given to another receive.
    fn move_to(&mut self, handle: Handle, stage: Stage) {
        let Some(operation) = self.operations.table.get_mut(&handle) else { return };
        if let (Stage::Waiting, Kind::Receive { posted, landing: Landing::InPlace, is_persistent: false }) =
            (&operation.stage, operation.kind)
        {
            self.ranges.landed(posted.buffer.address);
        }
        operation.stage = stage;
    }

    /// The program has been told of the outcome: its request ends. True where it stays, as a persistent one does.
    pub(crate) fn settle(&mut self, handle: Handle) -> bool {
        let Some(operation) = self.operations.table.get_mut(&handle) else { return false };
        if !matches!(operation.stage, Stage::Idle) {
            PENDING.fetch_sub(1, Ordering::SeqCst);
            operation.stage = Stage::Idle;
        }
        let is_persistent =
            matches!(operation.kind, Kind::PersistentSend(_) | Kind::Receive { is_persistent: true, .. });
        let stays = is_persistent && !operation.is_detached;
        if !stays {
            if let Kind::Receive { posted, landing: Landing::InPlace, is_persistent: true } = operation.kind {
                self.ranges.landed(posted.buffer.address);
            }
            if let Some(staged) = self.operations.table.remove(&handle).and_then(|operation| operation.staged) {
                self.staging.give_back(staged);
            }
            KNOWN.fetch_sub(1, Ordering::Release);
            let mut slot = handle.0;
            self.library.request_free((&raw mut slot).cast());
        }
        stays
    }

    /// The program frees its request: a pending operation goes on, and ends by itself.
    pub(crate) fn detach(&mut self, handle: Handle) {
        let Some(operation) = self.operations.table.get_mut(&handle) else { return };
        operation.is_detached = true;
        if let Stage::Idle = operation.stage {
            self.settle(handle);
        }
    }

    /// The program cancels a receive, or a send, which is not cancelled: its message may be matched already.
    pub(crate) fn cancel(&mut self, handle: Handle) -> c_int {
        match self.operations.table.get(&handle) {
            Some(Operation { kind: Kind::Receive { .. }, stage: Stage::Waiting, .. }) => {
                self.library.cancel((&raw const handle).cast_mut().cast())
            }
            _ => 0,
        }
    }

    /// Looks at all that wait, by the program's thread.
    pub(crate) fn advance_operations(&mut self) {
        let waiting: Vec<Handle> = self.operations.table.keys().copied().collect();
        let complete = self.outcomes(waiting.iter().copied()).filter(|(_, outcome)| outcome.is_some());
        let complete: Vec<Handle> = complete.map(|(handle, _)| handle).collect();
        for handle in complete {
            if self.operations.table.get(&handle).is_some_and(|operation| operation.is_detached) {
                self.settle(handle);
            }
        }
    }

    /// Begins to read messages whose announcements have landed, by the helper: MPI is not called.
    pub(crate) fn watch(&mut self) {
        let landed = self.operations.table.iter().filter_map(|(&handle, operation)| {
            // A buffer whose request is freed may be gone as soon as its message has come.
            let (Stage::Waiting, false) = (&operation.stage, operation.is_detached) else { return None };
            let Kind::Receive { posted, landing, .. } = operation.kind else { return None };
            let mut data = [0; LEN];
            memory::read(operation.landing()?, &mut data);
            Some((handle, posted, landing, Announcement::parse(&data, &self.secret)?))
        });
        let landed: Vec<_> = landed.collect();
        for (handle, posted, landing, announcement) in landed {
            // First, so that others may be read into the same buffer.
            let announced = announcement.len;
            self.move_to(handle, Stage::Early { id: 0, announced });
            let id = self.begin(handle, &announcement, &posted, landing);
            self.move_to(handle, Stage::Early { id, announced });
        }
    }

    /// A buffer is about to be written: announcements that are in it already would be written over.
    pub(super) fn take_landed(&mut self, posted: &Posted) {
        if posted.is_whole && self.ranges.has_landing(posted.buffer.address, posted.capacity) {
            self.watch();
        }
    }

    fn started(&self, handle: Handle) -> Result<(), c_int> {
        let mut slot = handle.0;
        match self.library.start((&raw mut slot).cast()) {
            0 => Ok(()),
            code => Err(code),
        }
    }

    fn insert(&mut self, handle: Handle, kind: Kind, stage: Stage, staged: Option<Pages>) {
        if !matches!(stage, Stage::Idle) {
            PENDING.fetch_add(1, Ordering::SeqCst);
        }
        KNOWN.fetch_add(1, Ordering::Release);
        self.operations.table.insert(handle, Operation { kind, stage, staged, is_detached: false });
    }

    /// A persistent send was started, and its message announced.
    pub(super) fn restarted(&mut self, handle: Handle, send: PersistentSend) {
        if let Some(operation) = self.operations.table.get_mut(&handle) {
            (operation.kind, operation.stage) = (Kind::PersistentSend(send), Stage::Waiting);
            PENDING.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// The outcome of an announced send, once its buffer is free. The request is that of the announcement.
    pub(super) fn sent(&mut self, handle: Handle, slot: usize, is_synchronous: bool) -> Option<Outcome> {
        let is_free = self.sends.is_done(slot) || !is_synchronous && self.sends.is_copied(slot);
        if !is_free {
            return None;
        }
        // MPI still has the announcement, where the receiver has not.
        let (mut status, mut request, mut flag) = (Status::new(), handle.0, 0);
        let code = self.library.test((&raw mut request).cast(), &mut flag, status.as_mut_ptr());
        if code == 0 && flag == 0 {
            return None;
        }
        self.is_sent(slot, is_synchronous);
        Some(Outcome::of_mpi(status, code))
    }

    /// Next stage of a receive that MPI has; none while nothing has arrived.
    fn received(&mut self, handle: Handle, posted: Posted, landing: Landing) -> Option<Stage> {
        let (mut status, mut request, mut flag) = (Status::new(), handle.0, 0);
        let code = self.library.test((&raw mut request).cast(), &mut flag, status.as_mut_ptr());
        if code == 0 && flag == 0 {
            return None;
        }
        self.arrived(handle, posted, landing, status, code)
    }

    /// Next stage of a receive that MPI has completed, with this status and code.
    fn arrived(
        &mut self,
        handle: Handle,
        posted: Posted,
        landing: Landing,
        mut status: Status,
        code: c_int,
    ) -> Option<Stage> {
        let operation = self.operations.table.get(&handle)?;
        if let Stage::Early { id, announced } = operation.stage {
            return Some(Stage::Pulling(Pulling { id, status, announced, posted }));
        }
        let has_length = code == 0 && self.len(&mut status) == LEN;
        let announcement = match landing {
            _ if !has_length => None,
            Landing::Staged => {
                let mut data = [0; LEN];
                memory::read(operation.landing()?, &mut data);
                self.parse(&data, posted.comm, &status)
            }
            Landing::InPlace | Landing::Scattered => self.announced(&status, &posted),
        };
        if let Some(announcement) = announcement {
            let id = self.begin(handle, &announcement, &posted, landing);
            return Some(Stage::Pulling(Pulling { id, status, announced: announcement.len, posted }));
        }
        if landing == Landing::Staged {
            let len = self.len(&mut status);
            self.take_landed(&posted);
            self.unpack(self.operations.table.get(&handle)?.landing()?, len, &posted);
        }
        Some(Stage::Complete(Outcome::of_mpi(status, code)))
    }

    /// Begins to read the message that an operation's announcement stands for.
    fn begin(&mut self, handle: Handle, announcement: &Announcement, posted: &Posted, landing: Landing) -> u64 {
        let is_free = || !self.ranges.has_landing(posted.buffer.address, posted.capacity);
        let is_direct = match landing {
            Landing::InPlace => true,
            Landing::Staged => posted.is_whole && is_free(),
            Landing::Scattered => false,
        };
        if is_direct {
            return self.pull_into(announcement, posted);
        }
        let staged = self.operations.table.get_mut(&handle).and_then(|operation| operation.staged.take());
        self.pull_through(announcement, posted, staged)
    }

    /// Bytes that a receive has got from MPI.
    fn len(&self, status: &mut Status) -> usize {
        let mut count = 0;
        let code = self.library.get_count(status.as_mut_ptr(), self.library.abi.named.byte, &mut count);
        if code == 0 { usize::try_from(count).unwrap_or(0) } else { 0 }
    }
}

impl Operation {
    /// Where an announcement would land, if it lands in one piece.
    fn landing(&self) -> Option<usize> {
        match self.kind {
            Kind::Receive { posted, landing: Landing::InPlace, .. } => Some(posted.buffer.address),
            Kind::Receive { landing: Landing::Staged, .. } => self.staged.as_ref().map(Pages::address),
            _ => None,
        }
    }
}

/// Makes a request; its handle, or the error.
pub(super) fn made(
    library: &crate::library::Library,
    make: impl FnOnce(*mut libc::c_void) -> c_int,
) -> Result<Handle, c_int> {
    let mut slot = 0_u64;
    let at = (&raw mut slot).cast();
    match make(at) {
        0 => Ok(library.handle_at(at, 0)),
        code => Err(code),
    }
}
