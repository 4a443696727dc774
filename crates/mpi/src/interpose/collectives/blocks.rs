//! Operations in which each rank has data of its own for others: gather, scatter, and those for all.

use super::Group;
use super::exchange::{Exchange, extent};
use crate::abi::Handle;
use crate::job::Buffer;
use crate::library::Library;
use crate::memory;
use libc::{c_int, c_void};

/// Data of all ranks in one buffer of the program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks {
    /// Where the buffer begins.
    address: usize,
    datatype: Handle,
    /// Distance of two elements in bytes.
    extent: isize,
    layout: Layout,
}

/// How many elements each rank has.
#[derive(Clone, Copy, Debug)]
pub(super) enum Layout {
    /// As many as the others, one behind the other.
    Equal(c_int),
    /// By arrays of the program, with an element for each rank.
    Each { counts: *const c_int, places: *const c_int },
}

impl Blocks {
    /// Those of a buffer.
    pub(super) fn new(library: &Library, buffer: *const c_void, layout: Layout, datatype: Handle) -> Self {
        let datatype = library.argument(datatype);
        Self { address: buffer.expose_provenance(), datatype, extent: extent(library, datatype), layout }
    }

    /// That of a rank.
    fn of(&self, rank: usize) -> Buffer {
        let (count, place) = match self.layout {
            Layout::Equal(count) => (count, rank as isize * count as isize),
            Layout::Each { counts, places } => (memory::number(counts, rank), memory::number(places, rank) as isize),
        };
        let address = self.address.wrapping_add_signed(place * self.extent);
        Buffer { address, count, datatype: self.datatype }
    }
}

impl Group {
    /// Whether blocks, whose lengths all ranks know, are long enough on average.
    pub(super) fn is_worth(&self, blocks: &Blocks) -> bool {
        let lens = (0..self.size()).map(|rank| blocks.of(rank).len(self.rank.library).unwrap_or(0));
        lens.fold(0, u64::saturating_add) / self.size() as u64 >= self.threshold()
    }

    /// `MPI_Gather` and `MPI_Gatherv`; `own` is none with `MPI_IN_PLACE`. Only the root has blocks.
    pub(super) fn gather(&self, own: Option<Buffer>, blocks: impl FnOnce() -> Blocks, root: usize) -> c_int {
        let mut exchange = Exchange::new(self);
        if self.own != root {
            own.into_iter().for_each(|own| exchange.send(own, root));
            return exchange.finish();
        }
        let blocks = blocks();
        self.others().for_each(|rank| exchange.receive(blocks.of(rank), rank));
        let copied = own.map_or(0, |own| self.copy(own, blocks.of(root)));
        first_error([exchange.finish(), copied])
    }

    /// `MPI_Scatter` and `MPI_Scatterv`, likewise.
    pub(super) fn scatter(&self, own: Option<Buffer>, blocks: impl FnOnce() -> Blocks, root: usize) -> c_int {
        let mut exchange = Exchange::new(self);
        if self.own != root {
            own.into_iter().for_each(|own| exchange.receive(own, root));
            return exchange.finish();
        }
        let blocks = blocks();
        self.others().for_each(|rank| exchange.send(blocks.of(rank), rank));
        let copied = own.map_or(0, |own| self.copy(blocks.of(root), own));
        first_error([exchange.finish(), copied])
    }

    /// `MPI_Allgather` and `MPI_Allgatherv`: blocks go round, from each rank to the next one.
    pub(super) fn gather_for_all(&self, own: Option<Buffer>, blocks: &Blocks) -> c_int {
        let copied = own.map_or(0, |own| self.copy(own, blocks.of(self.own)));
        let (size, own) = (self.size(), self.own);
        let (next, before) = ((own + 1) % size, (own + size - 1) % size);
        let steps = (0..size - 1).map(|step| {
            let mut exchange = Exchange::new(self);
            exchange.receive(blocks.of((before + size - step) % size), before);
            exchange.send(blocks.of((own + size - step) % size), next);
            exchange.finish()
        });
        first_error(std::iter::once(copied).chain(steps))
    }

    /// `MPI_Alltoall` and `MPI_Alltoallv`. No two ranks begin with the same one.
    pub(super) fn all_to_all(&self, from: &Blocks, to: &Blocks) -> c_int {
        let mut exchange = Exchange::new(self);
        let size = self.size();
        for distance in 1..size {
            let rank = (self.own + size - distance) % size;
            exchange.receive(to.of(rank), rank);
        }
        self.others().for_each(|rank| exchange.send(from.of(rank), rank));
        let copied = self.copy(from.of(self.own), to.of(self.own));
        first_error([exchange.finish(), copied])
    }

    /// The other ranks, beginning behind this one.
    fn others(&self) -> impl Iterator<Item = usize> {
        let (own, size) = (self.own, self.size());
        (1..size).map(move |distance| (own + distance) % size)
    }
}

/// The first that is not 0. All are asked: operations that have begun are finished.
pub(super) fn first_error(codes: impl IntoIterator<Item = c_int>) -> c_int {
    codes.into_iter().fold(0, |first, code| if first == 0 { code } else { first })
}
