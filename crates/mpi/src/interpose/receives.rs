//! Receives: what MPI has received may be an announcement, in whose place the message itself is read.

use super::sends::{message, send};
use super::{conclude, intercept, mpi};
use crate::abi::{Handle, Status};
use crate::announcement::LEN;
use crate::job::{Buffer, Delivery, Outcome, Pattern, Posted, Stash, are_none_known, are_none_pending};
use crate::library::Library;
use crate::rank::{Rank, rank};
use libc::{c_int, c_void};

intercept! {
    fn MPI_Recv, PMPI_Recv(buffer: *mut c_void, count: c_int, datatype: Handle, source: c_int, tag: c_int, comm: Handle, status: *mut c_void) {
        let library = mpi!();
        let (posted, from) = posted(library, buffer, count, datatype, source, tag, comm);
        match rank() {
            Some(rank) => receive(rank, posted, from, status),
            None => library.recv(buffer, count, datatype, source, tag, comm, status),
        }
    }

    fn MPI_Irecv, PMPI_Irecv(buffer: *mut c_void, count: c_int, datatype: Handle, source: c_int, tag: c_int, comm: Handle, request: *mut c_void) {
        let library = mpi!();
        let (posted, from) = posted(library, buffer, count, datatype, source, tag, comm);
        start_receive(posted, from, request).unwrap_or_else(|| library.irecv(buffer, count, datatype, source, tag, comm, request))
    }

    fn MPI_Recv_init, PMPI_Recv_init(buffer: *mut c_void, count: c_int, datatype: Handle, source: c_int, tag: c_int, comm: Handle, request: *mut c_void) {
        let library = mpi!();
        let (posted, from) = posted(library, buffer, count, datatype, source, tag, comm);
        match rank().filter(|_| !goes_to_mpi(&posted, &from)) {
            Some(rank) => give_request(rank, rank.job().post_receive(posted, from, true), request),
            None => library.recv_init(buffer, count, datatype, source, tag, comm, request),
        }
    }

    fn MPI_Start, PMPI_Start(request: *mut c_void) {
        let library = mpi!();
        start(library.handle_at(request, 0)).unwrap_or_else(|| library.start(request))
    }

    fn MPI_Startall, PMPI_Startall(count: c_int, requests: *mut c_void) {
        let library = mpi!();
        if are_none_known() {
            return library.startall(count, requests);
        }
        for index in 0..usize::try_from(count).unwrap_or(0) {
            let handle = library.handle_at(requests, index);
            let code = start(handle).unwrap_or_else(|| {
                let mut slot = handle.0;
                library.start((&raw mut slot).cast())
            });
            if code != 0 {
                return code;
            }
        }
        0
    }

    fn MPI_Sendrecv, PMPI_Sendrecv(
        buffer: *const c_void, count: c_int, datatype: Handle, dest: c_int, tag: c_int,
        into: *mut c_void, into_count: c_int, into_datatype: Handle, source: c_int, into_tag: c_int,
        comm: Handle, status: *mut c_void,
    ) {
        let library = mpi!();
        let out = message(library, buffer, count, datatype, dest, tag, comm);
        let (posted, from) = posted(library, into, into_count, into_datatype, source, into_tag, comm);
        let is_small = |rank: &Rank| {
            let len = out.buffer.len(library).unwrap_or(0);
            rank.is_small(len) && goes_to_mpi(&posted, &from)
        };
        let Some(rank) = rank().filter(|rank| !is_small(rank)) else {
            return library.sendrecv(
                buffer.cast_mut(), count, datatype, dest, tag, into, into_count, into_datatype, source, into_tag, comm, status,
            );
        };
        exchange(rank, posted, from, status, || {
            send(&out).unwrap_or_else(|| library.send(buffer.cast_mut(), count, datatype, dest, tag, comm))
        })
    }

    fn MPI_Sendrecv_replace, PMPI_Sendrecv_replace(
        buffer: *mut c_void, count: c_int, datatype: Handle, dest: c_int, tag: c_int,
        source: c_int, into_tag: c_int, comm: Handle, status: *mut c_void,
    ) {
        let library = mpi!();
        let (posted, from) = posted(library, buffer, count, datatype, source, into_tag, comm);
        let is_small = goes_to_mpi(&posted, &from);
        let (Some(rank), false) = (rank(), is_small) else {
            return library.sendrecv_replace(buffer, count, datatype, dest, tag, source, into_tag, comm, status);
        };
        // A copy of what is sent: the buffer is the receive's.
        let mut size = 0;
        let code = library.pack_size(count, datatype, comm, &mut size);
        let mut packed = vec![0_u8; usize::try_from(size).unwrap_or(0)];
        let (at, mut len) = (packed.as_mut_ptr().cast::<c_void>(), 0);
        if code != 0 || library.pack(buffer, count, datatype, at, size, &mut len, comm) != 0 {
            return library.sendrecv_replace(buffer, count, datatype, dest, tag, source, into_tag, comm, status);
        }
        let byte = library.abi.named.byte;
        let out = message(library, at, len, byte, dest, tag, comm);
        exchange(rank, posted, from, status, || send(&out).unwrap_or_else(|| library.send(at, len, byte, dest, tag, comm)))
    }

    fn MPI_Mrecv, PMPI_Mrecv(buffer: *mut c_void, count: c_int, datatype: Handle, handle: *mut c_void, status: *mut c_void) {
        let library = mpi!();
        let taken = rank().filter(|_| !Stash::is_empty()).and_then(|rank| {
            let stashed = rank.job().stash().take_named(library.handle_at(handle, 0))?;
            Some((rank, stashed))
        });
        // A matched probe gives out no announcement by MPI's own handle: it looks into what may be one.
        let Some((rank, stashed)) = taken else { return library.mrecv(buffer, count, datatype, handle, status) };
        library.set_handle(handle, 0, library.abi.named.message_null);
        let (posted, _) = posted(library, buffer, count, datatype, 0, 0, stashed.comm);
        let delivery = rank.job().deliver(stashed, posted);
        conclude(library, &finish(rank, delivery), status)
    }

    fn MPI_Imrecv, PMPI_Imrecv(buffer: *mut c_void, count: c_int, datatype: Handle, handle: *mut c_void, request: *mut c_void) {
        let library = mpi!();
        let taken = rank().filter(|_| !Stash::is_empty()).and_then(|rank| {
            let stashed = rank.job().stash().take_named(library.handle_at(handle, 0))?;
            Some((rank, stashed))
        });
        let Some((rank, stashed)) = taken else { return library.imrecv(buffer, count, datatype, handle, request) };
        library.set_handle(handle, 0, library.abi.named.message_null);
        let (posted, _) = posted(library, buffer, count, datatype, 0, 0, stashed.comm);
        let made = rank.job().post_delivery(stashed, posted);
        give_request(rank, made, request)
    }
}

#[allow(clippy::too_many_arguments, reason = "MPI's own")]
pub(super) fn posted(
    library: &Library,
    buffer: *mut c_void,
    count: c_int,
    datatype: Handle,
    source: c_int,
    tag: c_int,
    comm: Handle,
) -> (Posted, Pattern) {
    let buffer = Buffer { address: buffer.expose_provenance(), count, datatype: library.argument(datatype) };
    let (comm, pattern) = (library.argument(comm), Pattern { source, tag, comm: library.argument(comm) });
    (Posted::new(buffer, comm, library), pattern)
}

/// Whether a receive gets no announcement, and nothing of the stash: it is short, or from nobody, or nobody announces.
fn goes_to_mpi(posted: &Posted, from: &Pattern) -> bool {
    let is_from_nobody = rank().is_some_and(|rank| from.source == rank.library.abi.proc_null);
    is_from_nobody || gets_none(posted) && Stash::is_empty()
}

/// Whether a receive gets no announcement.
fn gets_none(posted: &Posted) -> bool {
    posted.is_small() || rank().is_some_and(Rank::expects_none)
}

pub(super) fn receive(rank: &'static Rank, posted: Posted, from: Pattern, status: *mut c_void) -> c_int {
    let (library, Buffer { count, datatype, .. }) = (rank.library, posted.buffer);
    if !Stash::is_empty() {
        let mut job = rank.job();
        let stashed = job.stash().take(&from, &library.abi);
        if let Some(stashed) = stashed {
            let delivery = job.deliver(stashed, posted);
            drop(job);
            return conclude(library, &finish(rank, delivery), status);
        }
    }
    let by_mpi =
        |status| library.recv(posted.buffer.pointer(), count, datatype, from.source, from.tag, from.comm, status);
    if gets_none(&posted) || goes_to_mpi(&posted, &from) {
        return by_mpi(status);
    }
    if !are_none_pending() {
        let made = rank.job().post_receive(posted, from, false);
        return match made {
            Ok(handle) => conclude(library, &await_request(rank, handle), status),
            Err(code) => code,
        };
    }
    let mut own = Status::new();
    let code = by_mpi(own.as_mut_ptr());
    let mut outcome = Outcome { status: own, code, raise: None };
    if code == 0 && may_be_announced(library, &mut own) {
        let mut job = rank.job();
        if let Some(announcement) = job.announced(&own, &posted) {
            let pulling = job.pull(&announcement, own, posted);
            drop(job);
            outcome = finish(rank, Delivery::Pulling(pulling));
        }
    }
    conclude(library, &outcome, status)
}

/// Whether a message has the length of an announcement.
pub(super) fn may_be_announced(library: &Library, status: &mut Status) -> bool {
    let mut count = 0;
    library.get_count(status.as_mut_ptr(), library.abi.named.byte, &mut count) == 0 && count as usize == LEN
}

/// Starts a receive that may get an announcement; none where MPI is to do it.
pub(super) fn start_receive(posted: Posted, from: Pattern, request: *mut c_void) -> Option<c_int> {
    let rank = rank()?;
    if goes_to_mpi(&posted, &from) {
        return None;
    }
    let mut job = rank.job();
    let stashed = if Stash::is_empty() { None } else { job.stash().take(&from, &rank.library.abi) };
    let made = match stashed {
        Some(stashed) => job.post_delivery(stashed, posted),
        None if gets_none(&posted) => return None,
        None => job.post_receive(posted, from, false),
    };
    drop(job);
    Some(give_request(rank, made, request))
}

/// A receive that runs beside a send, and then the wait for both.
fn exchange(
    rank: &'static Rank,
    posted: Posted,
    from: Pattern,
    status: *mut c_void,
    send: impl FnOnce() -> c_int,
) -> c_int {
    let (library, mut slot) = (rank.library, 0_u64);
    let at = (&raw mut slot).cast();
    let Buffer { count, datatype, .. } = posted.buffer;
    let by_mpi = || library.irecv(posted.buffer.pointer(), count, datatype, from.source, from.tag, from.comm, at);
    let code = start_receive(posted, from, at).unwrap_or_else(by_mpi);
    if code != 0 {
        return code;
    }
    let sent = send();
    let handle = library.handle_at(at, 0);
    let received = if rank.job().has(handle) {
        conclude(library, &await_request(rank, handle), status)
    } else {
        library.wait(at, status)
    };
    if sent != 0 { sent } else { received }
}

fn start(handle: Handle) -> Option<c_int> {
    if are_none_known() {
        return None;
    }
    let rank = rank()?;
    let code = rank.job().start(handle)?;
    rank.wake_helper();
    Some(code)
}

fn give_request(rank: &Rank, made: Result<Handle, c_int>, request: *mut c_void) -> c_int {
    rank.wake_helper();
    match made {
        Ok(handle) => {
            rank.library.set_handle(request, 0, handle);
            0
        }
        Err(code) => code,
    }
}

/// Waits for a request of ours, and ends it.
fn await_request(rank: &Rank, handle: Handle) -> Outcome {
    rank.wait(|job| {
        let outcome = job.outcome(handle)?;
        job.settle(handle);
        Some(outcome)
    })
}

fn finish(rank: &Rank, delivery: Delivery) -> Outcome {
    match delivery {
        Delivery::Done(outcome) => outcome,
        Delivery::Pulling(pulling) => rank.wait(|job| Some(job.pulled(&pulling)?.0)),
    }
}
