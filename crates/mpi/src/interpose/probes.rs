//! Probes: they tell the length of an announced message, not of its announcement.

use super::receives::may_be_announced;
use super::{give, give_status, intercept, mpi};
use crate::abi::{Handle, Status};
use crate::job::{Pattern, Stash};
use crate::rank::{Rank, rank};
use libc::{c_int, c_void};

intercept! {
    fn MPI_Probe, PMPI_Probe(source: c_int, tag: c_int, comm: Handle, status: *mut c_void) {
        let library = mpi!();
        let Some(rank) = rank() else { return library.probe(source, tag, comm, status) };
        let pattern = Pattern { source, tag, comm: library.argument(comm) };
        loop {
            if let Some(found) = find(rank, &pattern) {
                give_status(library, status, &found, false);
                return 0;
            }
            let mut own = Status::new();
            let code = library.probe(source, tag, comm, own.as_mut_ptr());
            if code != 0 || !look_into(rank, &pattern, &mut own) {
                give_status(library, status, &own, false);
                return code;
            }
        }
    }

    fn MPI_Iprobe, PMPI_Iprobe(source: c_int, tag: c_int, comm: Handle, flag: *mut c_int, status: *mut c_void) {
        let library = mpi!();
        let Some(rank) = rank() else { return library.iprobe(source, tag, comm, flag, status) };
        let pattern = Pattern { source, tag, comm: library.argument(comm) };
        loop {
            if let Some(found) = find(rank, &pattern) {
                give_status(library, status, &found, false);
                give(flag, 1);
                return 0;
            }
            let (mut own, mut is_there) = (Status::new(), 0);
            let code = library.iprobe(source, tag, comm, &mut is_there, own.as_mut_ptr());
            if code != 0 || is_there == 0 || !look_into(rank, &pattern, &mut own) {
                give(flag, is_there);
                if is_there != 0 {
                    give_status(library, status, &own, false);
                }
                return code;
            }
        }
    }

    fn MPI_Mprobe, PMPI_Mprobe(source: c_int, tag: c_int, comm: Handle, message: *mut c_void, status: *mut c_void) {
        let library = mpi!();
        let Some(rank) = rank() else { return library.mprobe(source, tag, comm, message, status) };
        let pattern = Pattern { source, tag, comm: library.argument(comm) };
        if take(rank, &pattern, message, status) {
            return 0;
        }
        let mut own = Status::new();
        let code = library.mprobe(source, tag, comm, message, own.as_mut_ptr());
        found(rank, &pattern, code, &mut own, message, status)
    }

    fn MPI_Improbe, PMPI_Improbe(source: c_int, tag: c_int, comm: Handle, flag: *mut c_int, message: *mut c_void, status: *mut c_void) {
        let library = mpi!();
        let Some(rank) = rank() else { return library.improbe(source, tag, comm, flag, message, status) };
        let pattern = Pattern { source, tag, comm: library.argument(comm) };
        if take(rank, &pattern, message, status) {
            give(flag, 1);
            return 0;
        }
        let (mut own, mut is_there) = (Status::new(), 0);
        let code = library.improbe(source, tag, comm, &mut is_there, message, own.as_mut_ptr());
        give(flag, is_there);
        if is_there == 0 { code } else { found(rank, &pattern, code, &mut own, message, status) }
    }
}

/// The status of a message that was looked into.
fn find(rank: &Rank, pattern: &Pattern) -> Option<Status> {
    if Stash::is_empty() {
        return None;
    }
    rank.job().stash().find(pattern, &rank.library.abi).map(|stashed| stashed.status)
}

/// Looks into a message that a probe has found, if it may be announced.
fn look_into(rank: &Rank, pattern: &Pattern, status: &mut Status) -> bool {
    let abi = &rank.library.abi;
    let may_be = status.source(abi) != abi.proc_null && may_be_announced(rank.library, status);
    if may_be {
        let exact = Pattern { source: status.source(abi), tag: status.tag(abi), comm: pattern.comm };
        rank.job().look_into(&exact);
    }
    may_be
}

/// Gives the program a message that was looked into.
fn take(rank: &Rank, pattern: &Pattern, message: *mut c_void, status: *mut c_void) -> bool {
    if Stash::is_empty() {
        return false;
    }
    let (library, abi) = (rank.library, &rank.library.abi);
    let mut job = rank.job();
    let Some(stashed) = job.stash().take(pattern, abi) else { return false };
    give_status(library, status, &stashed.status, false);
    library.set_handle(message, 0, job.stash().name(stashed, abi));
    true
}

/// A matched probe has found a message: one that may be announced is looked into, and is ours from then on.
fn found(
    rank: &Rank,
    pattern: &Pattern,
    code: c_int,
    own: &mut Status,
    message: *mut c_void,
    status: *mut c_void,
) -> c_int {
    let (library, abi) = (rank.library, &rank.library.abi);
    if code == 0 && own.source(abi) != abi.proc_null && may_be_announced(library, own) {
        let mut job = rank.job();
        if let Some(stashed) = job.take_matched(message, pattern.comm, own) {
            library.set_handle(message, 0, job.stash().name(stashed, abi));
        }
    }
    give_status(library, status, own, false);
    code
}
