//! Sends: a large message is announced, a small one is MPI's own.

use super::{intercept, mpi};
use crate::abi::Handle;
use crate::announcement::LEN;
use crate::job::{Buffer, Message, PersistentSend};
use crate::library::Library;
use crate::rank::{Rank, rank};
use libc::{c_int, c_void};

intercept! {
    fn MPI_Send, PMPI_Send(buffer: *const c_void, count: c_int, datatype: Handle, dest: c_int, tag: c_int, comm: Handle) {
        let library = mpi!();
        let message = message(library, buffer, count, datatype, dest, tag, comm);
        send(&message).unwrap_or_else(|| library.send(buffer.cast_mut(), count, datatype, dest, tag, comm))
    }

    fn MPI_Ssend, PMPI_Ssend(buffer: *const c_void, count: c_int, datatype: Handle, dest: c_int, tag: c_int, comm: Handle) {
        let library = mpi!();
        let message = Message { is_synchronous: true, ..message(library, buffer, count, datatype, dest, tag, comm) };
        send(&message).unwrap_or_else(|| library.ssend(buffer.cast_mut(), count, datatype, dest, tag, comm))
    }

    fn MPI_Rsend, PMPI_Rsend(buffer: *const c_void, count: c_int, datatype: Handle, dest: c_int, tag: c_int, comm: Handle) {
        let library = mpi!();
        let message = message(library, buffer, count, datatype, dest, tag, comm);
        send(&message).unwrap_or_else(|| library.rsend(buffer.cast_mut(), count, datatype, dest, tag, comm))
    }

    fn MPI_Isend, PMPI_Isend(buffer: *const c_void, count: c_int, datatype: Handle, dest: c_int, tag: c_int, comm: Handle, request: *mut c_void) {
        let library = mpi!();
        let message = message(library, buffer, count, datatype, dest, tag, comm);
        start_send(&message, request).unwrap_or_else(|| library.isend(buffer.cast_mut(), count, datatype, dest, tag, comm, request))
    }

    fn MPI_Issend, PMPI_Issend(buffer: *const c_void, count: c_int, datatype: Handle, dest: c_int, tag: c_int, comm: Handle, request: *mut c_void) {
        let library = mpi!();
        let message = Message { is_synchronous: true, ..message(library, buffer, count, datatype, dest, tag, comm) };
        start_send(&message, request).unwrap_or_else(|| library.issend(buffer.cast_mut(), count, datatype, dest, tag, comm, request))
    }

    fn MPI_Irsend, PMPI_Irsend(buffer: *const c_void, count: c_int, datatype: Handle, dest: c_int, tag: c_int, comm: Handle, request: *mut c_void) {
        let library = mpi!();
        let message = message(library, buffer, count, datatype, dest, tag, comm);
        start_send(&message, request).unwrap_or_else(|| library.irsend(buffer.cast_mut(), count, datatype, dest, tag, comm, request))
    }

    fn MPI_Send_init, PMPI_Send_init(buffer: *const c_void, count: c_int, datatype: Handle, dest: c_int, tag: c_int, comm: Handle, request: *mut c_void) {
        let library = mpi!();
        let message = message(library, buffer, count, datatype, dest, tag, comm);
        let code = library.send_init(buffer.cast_mut(), count, datatype, dest, tag, comm, request);
        keep(&message, code, request)
    }

    fn MPI_Ssend_init, PMPI_Ssend_init(buffer: *const c_void, count: c_int, datatype: Handle, dest: c_int, tag: c_int, comm: Handle, request: *mut c_void) {
        let library = mpi!();
        let message = Message { is_synchronous: true, ..message(library, buffer, count, datatype, dest, tag, comm) };
        let code = library.ssend_init(buffer.cast_mut(), count, datatype, dest, tag, comm, request);
        keep(&message, code, request)
    }

    fn MPI_Rsend_init, PMPI_Rsend_init(buffer: *const c_void, count: c_int, datatype: Handle, dest: c_int, tag: c_int, comm: Handle, request: *mut c_void) {
        let library = mpi!();
        let message = message(library, buffer, count, datatype, dest, tag, comm);
        let code = library.rsend_init(buffer.cast_mut(), count, datatype, dest, tag, comm, request);
        keep(&message, code, request)
    }
}

/// Remembers a persistent send whose message may be announced when it is started. MPI has made its request, with this code.
fn keep(message: &Message, code: c_int, request: *mut c_void) -> c_int {
    if code == 0
        && let Some(rank) = rank()
        && let Some(len) = message.buffer.len(rank.library).filter(|&len| message.dest >= 0 && !rank.is_small(len))
    {
        let handle = rank.library.handle_at(request, 0);
        rank.job().keep_send(handle, PersistentSend::new(*message, len));
    }
    code
}

#[allow(clippy::too_many_arguments, reason = "MPI's own")]
pub(super) fn message(
    library: &Library,
    buffer: *const c_void,
    count: c_int,
    datatype: Handle,
    dest: c_int,
    tag: c_int,
    comm: Handle,
) -> Message {
    let buffer = Buffer { address: buffer.expose_provenance(), count, datatype: library.argument(datatype) };
    Message { buffer, dest, tag, comm: library.argument(comm), is_synchronous: false }
}

/// Sends a message that is to be announced, and waits until it was read; none where it goes MPI's own way.
pub(super) fn send(message: &Message) -> Option<c_int> {
    let (rank, slot) = announce(message)?;
    let (library, byte) = (rank.library, rank.library.abi.named.byte);
    let announcement = std::ptr::with_exposed_provenance_mut(rank.job().announcement(slot));
    let code = library.send(announcement, LEN as c_int, byte, message.dest, message.tag, message.comm);
    if code == 0 {
        rank.wait(|job| job.is_sent(slot, message.is_synchronous).then_some(()));
    } else {
        rank.job().withdraw(slot);
    }
    Some(code)
}

pub(super) fn start_send(message: &Message, request: *mut c_void) -> Option<c_int> {
    let (rank, slot) = announce(message)?;
    let mut job = rank.job();
    let posted = job.post_send(slot, message);
    if posted.is_err() {
        job.withdraw(slot);
    }
    drop(job);
    rank.wake_helper();
    Some(match posted {
        Ok(handle) => {
            rank.library.set_handle(request, 0, handle);
            0
        }
        Err(code) => code,
    })
}

/// A slot with the announcement of a message that is to be announced.
fn announce(message: &Message) -> Option<(&'static Rank, usize)> {
    let rank = rank()?;
    // MPI tells the program of wrong arguments.
    let len = message.buffer.len(rank.library).filter(|_| message.dest >= 0)?;
    if rank.is_small(len) {
        rank.count_small(len);
        return None;
    }
    let slot = rank.job().announce(message, len)?;
    Some((rank, slot))
}
