//! Delivery: how a message gets from an announcement, or from the stash, into the buffer of a receive.

use super::Job;
use super::datatype::Buffer;
use super::pulls::{Incoming, Pulled, Target};
use super::stash::Stashed;
use crate::abi::{Handle, Status};
use crate::announcement::{Announcement, LEN};
use crate::library::Library;
use crate::memory::{self, Pages};
use crate::verbs::Remote;
use libc::c_int;

/// A buffer that a receive has given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    pub(crate) buffer: Buffer,
    /// Bytes of data that it has room for.
    pub(crate) capacity: u64,
    /// Whether its data is in one piece; said of those only that an announcement fits into.
    pub(crate) is_whole: bool,
    pub(crate) comm: Handle,
}

impl Posted {
    /// A buffer of a receive.
    pub(crate) fn new(buffer: Buffer, comm: Handle, library: &Library) -> Self {
        // Of wrong arguments MPI tells the program.
        let capacity = buffer.len(library).unwrap_or(0);
        let is_whole = capacity >= LEN as u64 && buffer.is_in_one_piece(library);
        Self { buffer, capacity, is_whole, comm }
    }

    /// One into which MPI puts no announcement.
    pub(crate) fn is_small(&self) -> bool {
        self.capacity < LEN as u64
    }
}

/// A message that is being read into a posted buffer.
#[derive(Clone, Copy)]
pub(crate) struct Pulling {
    pub(super) id: u64,
    pub(super) status: Status,
    pub(super) announced: u64,
    pub(super) posted: Posted,
}

/// End of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) status: Status,
    /// `MPI_SUCCESS`, or the error.
    pub(crate) code: c_int,
    /// The communicator whose error handler is to be told; none where MPI has done that.
    pub(crate) raise: Option<Handle>,
}

impl Outcome {
    pub(super) fn of_mpi(status: Status, code: c_int) -> Self {
        Self { status, code, raise: None }
    }
}

/// Progress of a stashed message that a receive has taken.
pub(crate) enum Delivery {
    Pulling(Pulling),
    Done(Outcome),
}

impl Job {
    /// The announcement that a receive has got in its buffer, in the place of a message.
    pub(crate) fn announced(&mut self, status: &Status, posted: &Posted) -> Option<Announcement> {
        let mut data = [0; LEN];
        if posted.is_whole {
            memory::read(posted.buffer.address, &mut data);
        } else {
            data.copy_from_slice(self.pack(posted)?.get(..LEN)?);
        }
        self.parse(&data, posted.comm, status)
    }

    /// The announcement in the data of a message, if it comes from the rank that it names.
    pub(crate) fn parse(&mut self, data: &[u8], comm: Handle, status: &Status) -> Option<Announcement> {
        let announcement = Announcement::parse(data, &self.secret)?;
        let source = self.communicators.world_rank(comm, status.source(&self.library.abi), self.library)?;
        (source == announcement.sender).then_some(announcement)
    }

    /// Begins to read an announced message into a posted buffer.
    pub(crate) fn pull(&mut self, announcement: &Announcement, status: Status, posted: Posted) -> Pulling {
        let id = if posted.is_whole {
            self.pull_into(announcement, &posted)
        } else {
            self.pull_through(announcement, &posted, None)
        };
        Pulling { id, status, announced: announcement.len, posted }
    }

    /// Begins to read an announced message into a buffer that is in one piece.
    pub(super) fn pull_into(&mut self, announcement: &Announcement, posted: &Posted) -> u64 {
        let (address, len) = (posted.buffer.address, announcement.len.min(posted.capacity));
        let region = usize::try_from(len).ok().and_then(|len| self.cache.region_or_copy(&self.device, address, len));
        let target = match region.filter(|region| region.is_writable()) {
            Some(region) => Target::InPlace { address, region },
            None => Target::Through { address },
        };
        self.ranges.begin_read(address, len);
        self.begin_pull(announcement, len, target)
    }

    /// Begins to read an announced message into memory of ours, from which it is unpacked: this, or new one.
    pub(super) fn pull_through(&mut self, announcement: &Announcement, posted: &Posted, staged: Option<Pages>) -> u64 {
        let len = announcement.len.min(posted.capacity);
        let staged = staged.or_else(|| self.staging.take(usize::try_from(len).unwrap_or(usize::MAX)));
        // Without memory nothing is read, and the sender is told.
        match staged {
            Some(staged) => self.begin_pull(announcement, len, Target::Packed(staged)),
            None => self.begin_pull(announcement, 0, Target::Through { address: posted.buffer.address }),
        }
    }

    fn begin_pull(&mut self, announcement: &Announcement, len: u64, target: Target) -> u64 {
        let incoming = Incoming {
            peer: announcement.sender,
            from: Remote { address: announcement.address, rkey: announcement.rkey },
            len,
            done: Remote { address: announcement.done_address, rkey: announcement.done_rkey },
            sequence: announcement.sequence,
        };
        if !matches!(target, Target::InPlace { .. }) {
            self.report.copied.count(len);
        }
        self.with_ways(|pulls, ways| pulls.begin(incoming, target, ways))
    }

    /// The outcome of a message that is being read, once all of it is there; also the memory that it came through, if it did.
    pub(crate) fn pulled(&mut self, pulling: &Pulling) -> Option<(Outcome, Option<Pages>)> {
        let Pulled { target, len, is_good } = self.pulls.take(pulling.id)?;
        let (library, mut status) = (self.library, pulling.status);
        let code = if !is_good || len < pulling.announced.min(pulling.posted.capacity) {
            library.abi.err_other
        } else if pulling.announced > len {
            library.abi.err_truncate
        } else {
            0
        };
        let packed = match target {
            Target::Packed(packed) => {
                self.take_landed(&pulling.posted);
                self.unpack(packed.address(), len as usize, &pulling.posted);
                Some(packed)
            }
            Target::InPlace { address, .. } | Target::Through { address } => {
                self.ranges.end_read(address, len);
                None
            }
        };
        library.status_set_elements(status.as_mut_ptr(), library.abi.named.byte, len as isize);
        Some((Outcome { status, code, raise: (code != 0).then_some(pulling.posted.comm) }, packed))
    }

    /// Gives a stashed message to a receive.
    pub(crate) fn deliver(&mut self, stashed: Stashed, posted: Posted) -> Delivery {
        if let Some(announcement) = self.parse(&stashed.data, stashed.comm, &stashed.status) {
            return Delivery::Pulling(self.pull(&announcement, stashed.status, posted));
        }
        let (library, mut status, all) = (self.library, stashed.status, stashed.data.len());
        let len = all.min(usize::try_from(posted.capacity).unwrap_or(all));
        self.unpack(stashed.data.as_ptr().expose_provenance(), len, &posted);
        let code = if len < all { library.abi.err_truncate } else { 0 };
        library.status_set_elements(status.as_mut_ptr(), library.abi.named.byte, len as isize);
        Delivery::Done(Outcome { status, code, raise: (code != 0).then_some(posted.comm) })
    }

    /// As many elements of a buffer with gaps as an announcement fills.
    fn pack(&self, posted: &Posted) -> Option<Vec<u8>> {
        let (library, buffer) = (self.library, posted.buffer);
        let size = posted.capacity / u64::try_from(buffer.count).ok().filter(|&count| count > 0)?;
        let count = (LEN as u64).div_ceil(size);
        let mut packed = vec![0_u8; usize::try_from(count * size).ok()?];
        let (at, len, mut position) = (packed.as_mut_ptr().cast(), packed.len() as c_int, 0);
        let code = library.pack(buffer.pointer(), count as c_int, buffer.datatype, at, len, &mut position, posted.comm);
        (code == 0).then_some(packed)
    }

    /// Puts packed data into a posted buffer. The last element may be there in part: the rest of it stays as it is.
    pub(super) fn unpack(&self, packed: usize, len: usize, posted: &Posted) {
        let (library, comm, buffer) = (self.library, posted.comm, posted.buffer);
        if posted.is_whole || len == 0 {
            return memory::copy(packed, buffer.address, len);
        }
        let datatype = buffer.datatype;
        let size = posted.capacity.checked_div(u64::try_from(buffer.count).unwrap_or(0)).unwrap_or(0) as usize;
        if size == 0 {
            return;
        }
        let (count, rest) = (len / size, len % size);
        let unpack = |from: usize, count: usize, to: usize| {
            let (from, to) = (std::ptr::with_exposed_provenance_mut(from), std::ptr::with_exposed_provenance_mut(to));
            library.unpack(from, (count * size) as c_int, &mut 0, to, count as c_int, datatype, comm);
        };
        unpack(packed, count, buffer.address);
        if rest == 0 {
            return;
        }
        let (mut lower, mut extent) = (0, 0);
        library.type_get_extent(datatype, &mut lower, &mut extent);
        let last = buffer.address.wrapping_add_signed(extent.wrapping_mul(count as isize));
        let mut element = vec![0_u8; size];
        let at = element.as_mut_ptr();
        library.pack(std::ptr::with_exposed_provenance_mut(last), 1, datatype, at.cast(), size as c_int, &mut 0, comm);
        memory::copy(packed + count * size, at.expose_provenance(), rest);
        unpack(at.expose_provenance(), 1, last);
    }
}
