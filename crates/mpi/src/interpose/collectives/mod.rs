//! Collective operations of much data, by messages of ours between endpoints.
//!
//! All ranks choose the same way for an operation, by the length of its data and by an agreement of its communicator's ranks
//! ([`Group`]). Ranks of one endpoint use MPI's own operations
//! among themselves where one message between endpoints serves all of them ([`spread`]), and are treated as others where each has
//! data of its own ([`blocks`]).

mod blocks;
mod exchange;
mod group;
mod spread;

pub(super) use group::Group;

use super::{intercept, mpi};
use crate::abi::Handle;
use crate::job::Buffer;
use crate::library::Library;
use crate::rank::rank;
use crate::settings::MIN_THRESHOLD;
use blocks::{Blocks, Layout};
use libc::{c_int, c_void};
use spread::Reduction;
use std::sync::Arc;

intercept! {
    fn MPI_Bcast, PMPI_Bcast(buffer: *mut c_void, count: c_int, datatype: Handle, root: c_int, comm: Handle) {
        let library = mpi!();
        let data = data(library, buffer, count, datatype);
        match group(library, comm, || data.len(library)).and_then(|group| group.with_root(root)) {
            Some((group, root)) => group.broadcast(data, root),
            None => library.bcast(buffer, count, datatype, root, comm),
        }
    }

    fn MPI_Reduce, PMPI_Reduce(buffer: *const c_void, into: *mut c_void, count: c_int, datatype: Handle, op: Handle, root: c_int, comm: Handle) {
        let library = mpi!();
        let mut reduction = None;
        let len = || {
            reduction = Reduction::new(library, data(library, buffer, count, datatype), into, op);
            reduction.as_ref()?.len(library)
        };
        match group(library, comm, len).and_then(|group| group.with_root(root)).zip(reduction) {
            Some(((group, root), reduction)) => group.reduce(&reduction, root),
            None => library.reduce(buffer.cast_mut(), into, count, datatype, op, root, comm),
        }
    }

    fn MPI_Allreduce, PMPI_Allreduce(buffer: *const c_void, into: *mut c_void, count: c_int, datatype: Handle, op: Handle, comm: Handle) {
        let library = mpi!();
        let mut reduction = None;
        let len = || {
            reduction = Reduction::new(library, data(library, buffer, count, datatype), into, op);
            reduction.as_ref()?.len(library)
        };
        match group(library, comm, len).zip(reduction).filter(|(group, reduction)| group.has_pieces(reduction)) {
            Some((group, reduction)) => group.reduce_for_all(&reduction),
            None => library.allreduce(buffer.cast_mut(), into, count, datatype, op, comm),
        }
    }

    fn MPI_Gather, PMPI_Gather(
        buffer: *const c_void, count: c_int, datatype: Handle, into: *mut c_void, into_count: c_int, into_datatype: Handle,
        root: c_int, comm: Handle,
    ) {
        let library = mpi!();
        let own = own(library, buffer, count, datatype);
        let block = own.unwrap_or_else(|| data(library, into, into_count, into_datatype));
        let layout = Layout::Equal(into_count);
        match group(library, comm, || block.len(library)).and_then(|group| group.with_root(root)) {
            Some((group, root)) => group.gather(own, || Blocks::new(library, into, layout, into_datatype), root),
            None => library.gather(buffer.cast_mut(), count, datatype, into, into_count, into_datatype, root, comm),
        }
    }

    fn MPI_Gatherv, PMPI_Gatherv(
        buffer: *const c_void, count: c_int, datatype: Handle, into: *mut c_void, counts: *const c_int, places: *const c_int,
        into_datatype: Handle, root: c_int, comm: Handle,
    ) {
        let library = mpi!();
        let (own, layout) = (own(library, buffer, count, datatype), Layout::Each { counts, places });
        match group(library, comm, || ANY).and_then(|group| group.with_root(root)) {
            Some((group, root)) => group.gather(own, || Blocks::new(library, into, layout, into_datatype), root),
            None => library.gatherv(
                buffer.cast_mut(), count, datatype, into, counts.cast_mut(), places.cast_mut(), into_datatype, root, comm,
            ),
        }
    }

    fn MPI_Scatter, PMPI_Scatter(
        buffer: *const c_void, count: c_int, datatype: Handle, into: *mut c_void, into_count: c_int, into_datatype: Handle,
        root: c_int, comm: Handle,
    ) {
        let library = mpi!();
        let own = own(library, into, into_count, into_datatype);
        let block = own.unwrap_or_else(|| data(library, buffer, count, datatype));
        let layout = Layout::Equal(count);
        match group(library, comm, || block.len(library)).and_then(|group| group.with_root(root)) {
            Some((group, root)) => group.scatter(own, || Blocks::new(library, buffer, layout, datatype), root),
            None => library.scatter(buffer.cast_mut(), count, datatype, into, into_count, into_datatype, root, comm),
        }
    }

    fn MPI_Scatterv, PMPI_Scatterv(
        buffer: *const c_void, counts: *const c_int, places: *const c_int, datatype: Handle, into: *mut c_void, into_count: c_int,
        into_datatype: Handle, root: c_int, comm: Handle,
    ) {
        let library = mpi!();
        let (own, layout) = (own(library, into, into_count, into_datatype), Layout::Each { counts, places });
        match group(library, comm, || ANY).and_then(|group| group.with_root(root)) {
            Some((group, root)) => group.scatter(own, || Blocks::new(library, buffer, layout, datatype), root),
            None => library.scatterv(
                buffer.cast_mut(), counts.cast_mut(), places.cast_mut(), datatype, into, into_count, into_datatype, root, comm,
            ),
        }
    }

    fn MPI_Allgather, PMPI_Allgather(
        buffer: *const c_void, count: c_int, datatype: Handle, into: *mut c_void, into_count: c_int, into_datatype: Handle, comm: Handle,
    ) {
        let library = mpi!();
        let len = || data(library, into, into_count, into_datatype).len(library);
        let blocks = Blocks::new(library, into, Layout::Equal(into_count), into_datatype);
        match group(library, comm, len) {
            Some(group) => group.gather_for_all(own(library, buffer, count, datatype), &blocks),
            None => library.allgather(buffer.cast_mut(), count, datatype, into, into_count, into_datatype, comm),
        }
    }

    fn MPI_Allgatherv, PMPI_Allgatherv(
        buffer: *const c_void, count: c_int, datatype: Handle, into: *mut c_void, counts: *const c_int, places: *const c_int,
        into_datatype: Handle, comm: Handle,
    ) {
        let library = mpi!();
        let blocks = Blocks::new(library, into, Layout::Each { counts, places }, into_datatype);
        // All know the lengths of all.
        match group(library, comm, || ANY).filter(|group| group.is_worth(&blocks)) {
            Some(group) => group.gather_for_all(own(library, buffer, count, datatype), &blocks),
            None => library.allgatherv(
                buffer.cast_mut(), count, datatype, into, counts.cast_mut(), places.cast_mut(), into_datatype, comm,
            ),
        }
    }

    fn MPI_Alltoall, PMPI_Alltoall(
        buffer: *const c_void, count: c_int, datatype: Handle, into: *mut c_void, into_count: c_int, into_datatype: Handle, comm: Handle,
    ) {
        let library = mpi!();
        let len = || own(library, buffer, count, datatype)?.len(library);
        match group(library, comm, len) {
            Some(group) => {
                let from = Blocks::new(library, buffer, Layout::Equal(count), datatype);
                group.all_to_all(&from, &Blocks::new(library, into, Layout::Equal(into_count), into_datatype))
            }
            None => library.alltoall(buffer.cast_mut(), count, datatype, into, into_count, into_datatype, comm),
        }
    }

    fn MPI_Alltoallv, PMPI_Alltoallv(
        buffer: *const c_void, counts: *const c_int, places: *const c_int, datatype: Handle,
        into: *mut c_void, into_counts: *const c_int, into_places: *const c_int, into_datatype: Handle, comm: Handle,
    ) {
        let library = mpi!();
        let len = || ANY.filter(|_| !is_in_place(library, buffer));
        match group(library, comm, len) {
            Some(group) => {
                let from = Blocks::new(library, buffer, Layout::Each { counts, places }, datatype);
                let layout = Layout::Each { counts: into_counts, places: into_places };
                group.all_to_all(&from, &Blocks::new(library, into, layout, into_datatype))
            }
            None => library.alltoallv(
                buffer.cast_mut(), counts.cast_mut(), places.cast_mut(), datatype,
                into, into_counts.cast_mut(), into_places.cast_mut(), into_datatype, comm,
            ),
        }
    }
}

/// Length of data that each rank knows for itself only: messages short and long go the same way.
const ANY: Option<u64> = Some(ANY_LENGTH);
const ANY_LENGTH: u64 = u64::MAX;
/// Most bytes that MPI packs.
const LONGEST: u64 = c_int::MAX as u64;

/// Group of a communicator, where an operation of so many bytes is to go this way. All its ranks call it with the same length.
fn group(library: &'static Library, comm: Handle, len: impl FnOnce() -> Option<u64>) -> Option<Arc<Group>> {
    let rank = rank().filter(|rank| rank.is_whole())?;
    let mut is_between_groups = 0;
    // There some ranks' datatypes and operations are ignored, and may be null.
    if library.comm_test_inter(comm, &mut is_between_groups) != 0 || is_between_groups != 0 {
        return None;
    }
    let len = len().filter(|&len| len >= MIN_THRESHOLD && (len <= LONGEST || len == ANY_LENGTH))?;
    Group::of(rank, library.argument(comm)).filter(|group| len >= group.threshold())
}

fn data(library: &Library, buffer: *const c_void, count: c_int, datatype: Handle) -> Buffer {
    Buffer { address: buffer.expose_provenance(), count, datatype: library.argument(datatype) }
}

/// The data that a rank has or wants for itself; none with `MPI_IN_PLACE`.
fn own(library: &Library, buffer: *const c_void, count: c_int, datatype: Handle) -> Option<Buffer> {
    (!is_in_place(library, buffer)).then(|| data(library, buffer, count, datatype))
}

fn is_in_place(library: &Library, buffer: *const c_void) -> bool {
    buffer.addr() == library.abi.in_place
}
