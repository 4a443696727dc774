//! Operations in which one message serves all ranks of an endpoint: broadcast and reductions.
//!
//! One rank speaks for each endpoint, its *head*. Heads pass data along a chain in segments, so that all of them work at a time, and share
//! it with their endpoint by MPI's own operations.

use super::Group;
use super::blocks::first_error;
use super::exchange::Exchange;
use crate::abi::Handle;
use crate::job::Buffer;
use crate::library::Library;
use crate::memory;
use libc::{c_int, c_void};

/// Data to be reduced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reduction {
    /// This rank's; its address may be `MPI_IN_PLACE`.
    data: Buffer,
    /// Where the result goes, at ranks that get it.
    into: Buffer,
    op: Handle,
}

impl Reduction {
    /// None where MPI is to do it: the order of the ranks counts, or the data has gaps.
    pub(super) fn new(library: &Library, data: Buffer, into: *mut c_void, op: Handle) -> Option<Self> {
        let op = library.argument(op);
        let mut is_commutative = 0;
        let is_known = data.count > 0 && library.op_commutative(op, &mut is_commutative) == 0;
        let is_whole = is_known && is_commutative != 0 && data.is_in_one_piece(library);
        is_whole.then(|| Self { data, into: Buffer { address: into.expose_provenance(), ..data }, op })
    }

    /// Length of the data in bytes.
    pub(super) fn len(&self, library: &Library) -> Option<u64> {
        self.data.len(library)
    }
}

/// Elements of a buffer that are passed on together.
#[derive(Clone, Copy, Debug)]
struct Segment {
    first: usize,
    count: usize,
}

/// Place of an endpoint in a chain of all of them.
#[derive(Clone, Copy, Debug)]
struct Chain {
    before: Option<usize>,
    next: Option<usize>,
}

impl Group {
    /// Whether each endpoint has a piece of the data that is worth this way.
    pub(super) fn has_pieces(&self, reduction: &Reduction) -> bool {
        reduction.len(self.rank.library) >= Some(self.threshold() * self.endpoints() as u64)
    }

    /// `MPI_Bcast`.
    pub(super) fn broadcast(&self, data: Buffer, root: usize) -> c_int {
        let head = self.head(self.endpoint(), root);
        let code = if self.own == head { self.pass_on(data, root) } else { 0 };
        first_error([code, self.share(data, head)])
    }

    /// Gives the ranks of an endpoint what their head has: also after an error, for they wait for it.
    fn share(&self, data: Buffer, head: usize) -> c_int {
        let Buffer { count, datatype, .. } = data;
        let library = self.rank.library;
        self.near.map_or(0, |near| library.bcast(data.pointer(), count, datatype, self.near_rank(head), near))
    }

    /// Passes data on from the root's endpoint, which is the first of the chain. Each rank may count it in elements of its own: it goes
    /// as bytes, packed where it is not in one piece.
    fn pass_on(&self, data: Buffer, root: usize) -> c_int {
        let (library, byte) = (self.rank.library, self.rank.library.abi.named.byte);
        let len = data.len(library).unwrap_or(0) as c_int;
        if data.is_in_one_piece(library) {
            return self.pass_bytes_on(Buffer { count: len, datatype: byte, ..data }, root);
        }
        let Some(scratch) = self.take_scratch(len.unsigned_abs() as usize) else { return self.out_of_memory() };
        let packed = Buffer { address: scratch.address(), count: len, datatype: byte };
        let (Buffer { count, datatype, .. }, mut position) = (data, 0);
        let mut code = 0;
        if self.own == root {
            code = library.pack(data.pointer(), count, datatype, packed.pointer(), len, &mut position, self.comm);
        }
        let mut then = |step: &mut dyn FnMut() -> c_int| code = if code == 0 { step() } else { code };
        then(&mut || self.pass_bytes_on(packed, root));
        if self.own != root {
            then(&mut || {
                library.unpack(packed.pointer(), len, &mut position, data.pointer(), count, datatype, self.comm)
            });
        }
        self.give_scratch(scratch);
        code
    }

    fn pass_bytes_on(&self, data: Buffer, root: usize) -> c_int {
        let chain = self.chain(self.endpoint_of(root), root);
        let segments = self.segments(data);
        let (mut receives, mut sends) = (Exchange::new(self), Exchange::new(self));
        for &Segment { first, count } in &segments {
            chain.before.into_iter().for_each(|before| receives.receive(self.part(data, first, count), before));
        }
        for &Segment { first, count } in &segments {
            receives.next();
            chain.next.into_iter().for_each(|next| sends.send(self.part(data, first, count), next));
        }
        first_error([receives.finish(), sends.finish()])
    }

    /// `MPI_Reduce`.
    pub(super) fn reduce(&self, reduction: &Reduction, root: usize) -> c_int {
        let Reduction { data, into, .. } = *reduction;
        let head = self.head(self.endpoint(), root);
        let len = data.len(self.rank.library).unwrap_or(0) as usize;
        if self.own == root {
            let code = self.reduce_near(reduction, into, head);
            return if code == 0 { self.reduce_along(reduction, into, root) } else { code };
        }
        if self.own != head {
            return self.reduce_near(reduction, into, head);
        }
        let is_first = self.chain(self.after(root), root).before.is_none();
        if self.near.is_none() && is_first {
            // Nothing is added to it here.
            return self.reduce_along(reduction, data, root);
        }
        let Some(scratch) = self.take_scratch(len) else { return self.out_of_memory() };
        let partial = Buffer { address: scratch.address(), ..data };
        let code = match self.reduce_near(reduction, partial, head) {
            0 => self.reduce_along(reduction, partial, root),
            code => code,
        };
        self.give_scratch(scratch);
        code
    }

    /// Reduces the data of an endpoint's ranks, at its head into `partial`.
    fn reduce_near(&self, reduction: &Reduction, partial: Buffer, head: usize) -> c_int {
        let (library, Reduction { data, into, op }) = (self.rank.library, *reduction);
        let is_in_place = data.address == library.abi.in_place;
        if let Some(near) = self.near {
            // Only a rank that gets the result may have its data there.
            let from = if is_in_place && self.own != head { into } else { data };
            let (from, to) = (from.pointer(), partial.pointer());
            return library.reduce(from, to, data.count, data.datatype, op, self.near_rank(head), near);
        }
        if !is_in_place {
            memory::copy(data.address, partial.address, data.len(library).unwrap_or(0) as usize);
        }
        0
    }

    /// Reduces the data of all heads, on its way to the root's endpoint, which is the last of the chain.
    fn reduce_along(&self, reduction: &Reduction, partial: Buffer, root: usize) -> c_int {
        let chain = self.chain(self.after(root), root);
        let segments = self.segments(partial);
        let room = segments.iter().map(|segment| segment.count).max().unwrap_or(0);
        let Some(arrivals) = Arrivals::new(self, partial, room) else { return self.out_of_memory() };
        let (mut receives, mut sends) = (Exchange::new(self), Exchange::new(self));
        let mut code = 0;
        for (at, &Segment { first, count }) in segments.iter().enumerate() {
            let part = self.part(partial, first, count);
            if let Some(before) = chain.before {
                if at == 0 {
                    receives.receive(arrivals.of(at, count), before);
                }
                if let Some(later) = segments.get(at + 1) {
                    receives.receive(arrivals.of(at + 1, later.count), before);
                }
                receives.next();
                code = first_error([code, self.reduce_local(arrivals.of(at, count), part, reduction.op)]);
            }
            chain.next.into_iter().for_each(|next| sends.send(part, next));
        }
        first_error([code, receives.finish(), sends.finish()])
    }

    /// `MPI_Allreduce`: each head reduces a piece of the data for all, and then passes it round.
    pub(super) fn reduce_for_all(&self, reduction: &Reduction) -> c_int {
        let Reduction { into, op, .. } = *reduction;
        let head = self.first_of(self.endpoint());
        let code = self.reduce_near(reduction, into, head);
        let code = if self.own == head && code == 0 { self.reduce_round(into, op) } else { code };
        first_error([code, self.share(into, head)])
    }

    fn reduce_round(&self, data: Buffer, op: Handle) -> c_int {
        let (endpoints, own) = (self.endpoints(), self.endpoint());
        let elements = data.count.unsigned_abs() as usize;
        let piece = |index: usize| {
            let (first, end) = (elements * index / endpoints, elements * (index + 1) / endpoints);
            self.part(data, first, end - first)
        };
        let [next, before] = [1, endpoints - 1].map(|distance| self.first_of((own + distance) % endpoints));
        let room = elements.div_ceil(endpoints);
        let Some(arrivals) = Arrivals::new(self, data, room) else { return self.out_of_memory() };
        let mut code = 0;
        let mut note = |now: c_int| code = first_error([code, now]);
        for step in 0..endpoints - 1 {
            let (out, into) =
                (piece((own + endpoints - step) % endpoints), piece((own + 2 * endpoints - step - 1) % endpoints));
            let arrived = arrivals.of(0, into.count.unsigned_abs() as usize);
            note(self.swap(out, next, arrived, before));
            note(self.reduce_local(arrived, into, op));
        }
        for step in 0..endpoints - 1 {
            let (out, into) =
                (piece((own + 1 + endpoints - step) % endpoints), piece((own + endpoints - step) % endpoints));
            note(self.swap(out, next, into, before));
        }
        code
    }

    /// Sends to one head and receives from another.
    fn swap(&self, out: Buffer, to: usize, into: Buffer, from: usize) -> c_int {
        let mut exchange = Exchange::new(self);
        exchange.receive(into, from);
        exchange.send(out, to);
        exchange.finish()
    }

    fn reduce_local(&self, from: Buffer, into: Buffer, op: Handle) -> c_int {
        self.rank.library.reduce_local(from.pointer(), into.pointer(), into.count, into.datatype, op)
    }

    /// The endpoint behind a rank's own.
    fn after(&self, rank: usize) -> usize {
        (self.endpoint_of(rank) + 1) % self.endpoints()
    }

    /// Heads beside this rank's in a chain that begins with the endpoint `first`.
    fn chain(&self, first: usize, root: usize) -> Chain {
        let endpoints = self.endpoints();
        let place = (self.endpoint() + endpoints - first) % endpoints;
        let at = |place: usize| self.head((first + place) % endpoints, root);
        Chain { before: place.checked_sub(1).map(at), next: Some(place + 1).filter(|&next| next < endpoints).map(at) }
    }

    fn segments(&self, of: Buffer) -> Vec<Segment> {
        let count = of.count.unsigned_abs() as usize;
        let size = of.len(self.rank.library).unwrap_or(0) as usize / count.max(1);
        let most = (SEGMENT / size.max(1)).max(1);
        (0..count).step_by(most).map(|first| Segment { first, count: most.min(count - first) }).collect()
    }
}

/// Memory for data of others, until it is reduced: two places in turn.
struct Arrivals<'a> {
    group: &'a Group,
    pages: Option<crate::memory::Pages>,
    like: Buffer,
    /// Bytes of a place.
    room: usize,
}

impl<'a> Arrivals<'a> {
    /// For parts of up to `count` elements like those of a buffer.
    fn new(group: &'a Group, like: Buffer, count: usize) -> Option<Self> {
        let size = like.len(group.rank.library)? as usize / like.count.max(1).unsigned_abs() as usize;
        let room = (size * count).next_multiple_of(64);
        Some(Self { group, pages: Some(group.take_scratch(2 * room)?), like, room })
    }

    /// The place of the `at`th part.
    fn of(&self, at: usize, count: usize) -> Buffer {
        let address = self.pages.as_ref().map_or(0, crate::memory::Pages::address) + at % 2 * self.room;
        Buffer { address, count: count as c_int, ..self.like }
    }
}

impl Drop for Arrivals<'_> {
    fn drop(&mut self) {
        self.pages.take().into_iter().for_each(|pages| self.group.give_scratch(pages));
    }
}

/// Bytes that are passed on together: long enough that set-up does not count, short enough that a chain of some endpoints is full soon.
const SEGMENT: usize = 1 << 20;
