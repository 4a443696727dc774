//! Communicators whose ranks have agreed to do collective operations by messages of ours.

use crate::abi::Handle;
use crate::control::Site;
use crate::memory::Pages;
use crate::rank::Rank;
use libc::c_int;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// A communicator, as one of its ranks sees it.
pub(in crate::interpose) struct Group {
    pub(super) rank: &'static Rank,
    /// The same ranks, for messages that no other can match.
    pub(super) comm: Handle,
    /// The ranks of this one's endpoint; none where each endpoint has one.
    pub(super) near: Option<Handle>,
    /// This rank.
    pub(super) own: usize,
    members: Members,
    threshold: u64,
    /// Memory for what is to be reduced, kept for the next operation.
    scratch: Mutex<Vec<Pages>>,
}

/// Where the ranks are.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Members {
    /// Endpoint of each rank.
    endpoints: Vec<usize>,
    /// First rank of each endpoint.
    firsts: Vec<usize>,
}

/// Word of a rank to the others, by which they agree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Word {
    site: Site,
    threshold: u64,
    has_room: bool,
}

/// Answers for the program's communicators that were asked about, until they are freed.
static KNOWN: LazyLock<Mutex<HashMap<Handle, Asked>>> = LazyLock::new(Mutex::default);

/// How often a communicator was asked about, and the answer.
#[derive(Clone)]
enum Asked {
    /// Once: one that is used no more is not worth an agreement.
    Once,
    /// Again: its group, or none where it stays MPI's.
    Again(Option<Arc<Group>>),
}

fn known() -> MutexGuard<'static, HashMap<Handle, Asked>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Group {
    /// Group of a communicator within one group of ranks, all of which ask for it at the same point; they agree when they ask for the
    /// second time.
    pub(super) fn of(rank: &'static Rank, comm: Handle) -> Option<Arc<Self>> {
        let already = known().get(&comm).cloned();
        let now = match already {
            Some(Asked::Again(group)) => return group,
            // Without the lock: other threads go on with other communicators.
            Some(Asked::Once) => Asked::Again(Self::agree(rank, comm).map(Arc::new)),
            None => Asked::Once,
        };
        known().insert(comm, now.clone());
        if let Asked::Again(group) = now { group } else { None }
    }

    /// The program frees the communicator, which all its ranks do together.
    pub(in crate::interpose) fn forget(rank: &Rank, comm: Handle) {
        let asked = known().remove(&comm);
        let Some(Asked::Again(Some(group))) = asked else { return };
        for own in group.near.into_iter().chain([group.comm]) {
            rank.job().forget(own);
            let mut slot = own.0 as u64;
            rank.library.comm_free((&raw mut slot).cast());
        }
    }

    fn agree(rank: &'static Rank, comm: Handle) -> Option<Self> {
        let library = rank.library;
        let (mut size, mut own) = (0, 0);
        library.comm_size(comm, &mut size);
        library.comm_rank(comm, &mut own);
        let are_of_world = |size: c_int| (0..size).all(|member| rank.job().is_of_world(comm, member));
        if size < 2 || !are_of_world(size) {
            return None;
        }
        let is_group = |asked: &&Asked| matches!(asked, Asked::Again(Some(_)));
        let has_room = known().values().filter(is_group).count() < MOST;
        let word = Word { site: Site::own(), threshold: rank.lowest(), has_room }.to_bytes();
        let mut all = vec![0; Word::LEN * size.unsigned_abs() as usize];
        let (byte, len) = (library.abi.named.byte, Word::LEN as c_int);
        let (from, to) = (word.as_ptr().cast_mut().cast(), all.as_mut_ptr().cast());
        if library.allgather(from, len, byte, to, len, byte, comm) != 0 {
            return None;
        }
        let words: Vec<Word> = all.chunks_exact(Word::LEN).filter_map(Word::parse).collect();
        let threshold = words.iter().map(|word| word.threshold).max()?;
        let members = Members::at(words.iter().map(|word| word.site));
        if members.firsts.len() < 2 || threshold == u64::MAX || words.iter().any(|word| !word.has_room) {
            return None;
        }
        let split = |color: usize| {
            let mut slot = 0_u64;
            let at = (&raw mut slot).cast();
            let code = library.comm_split(comm, color as c_int, own, at);
            (code == 0).then(|| library.handle_at(at, 0))
        };
        let own = own.unsigned_abs() as usize;
        let hidden = split(0)?;
        let near = if members.are_alone() { None } else { Some(split(members.endpoints[own])?) };
        Some(Self { rank, comm: hidden, near, own, members, threshold, scratch: Mutex::default() })
    }

    /// Shortest message in bytes that is worth this way.
    pub(super) fn threshold(&self) -> u64 {
        self.threshold
    }

    /// Number of endpoints.
    pub(super) fn endpoints(&self) -> usize {
        self.members.firsts.len()
    }

    /// Number of ranks.
    pub(super) fn size(&self) -> usize {
        self.members.endpoints.len()
    }

    /// Endpoint of a rank.
    pub(super) fn endpoint_of(&self, rank: usize) -> usize {
        self.members.endpoints[rank]
    }

    /// Endpoint of this rank.
    pub(super) fn endpoint(&self) -> usize {
        self.endpoint_of(self.own)
    }

    /// The group with a root that it has; none with another, of which MPI tells the program.
    pub(super) fn with_root(self: Arc<Self>, root: c_int) -> Option<(Arc<Self>, usize)> {
        let root = usize::try_from(root).ok().filter(|&root| root < self.size())?;
        Some((self, root))
    }

    /// First rank of an endpoint.
    pub(super) fn first_of(&self, endpoint: usize) -> usize {
        self.members.firsts[endpoint]
    }

    /// The rank that speaks for an endpoint in an operation with a root.
    pub(super) fn head(&self, endpoint: usize, root: usize) -> usize {
        if self.endpoint_of(root) == endpoint { root } else { self.first_of(endpoint) }
    }

    /// Number of a rank among those of its endpoint.
    pub(super) fn near_rank(&self, rank: usize) -> c_int {
        let before = self.members.endpoints[..rank].iter().filter(|&&endpoint| endpoint == self.endpoint_of(rank));
        before.count() as c_int
    }

    /// Memory of at least `len` bytes; none where there is none.
    pub(super) fn take_scratch(&self, len: usize) -> Option<Pages> {
        let mut kept = self.scratch();
        let fitting = kept.iter().position(|pages| pages.len() >= len).map(|at| kept.swap_remove(at));
        drop(kept);
        fitting.or_else(|| Pages::new(len).ok())
    }

    /// Tells the program that there is none, which ends it unless it has said otherwise.
    pub(super) fn out_of_memory(&self) -> c_int {
        let library = self.rank.library;
        library.comm_call_errhandler(self.comm, library.abi.err_other);
        library.abi.err_other
    }

    /// Keeps memory for the next operation.
    pub(super) fn give_scratch(&self, pages: Pages) {
        let mut kept = self.scratch();
        kept.push(pages);
        kept.sort_unstable_by_key(|pages| std::cmp::Reverse(pages.len()));
        // As many as an operation has at a time: what is to be passed on, and what has arrived.
        kept.truncate(2);
    }

    fn scratch(&self) -> MutexGuard<'_, Vec<Pages>> {
        self.scratch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Members {
    fn at(sites: impl Iterator<Item = Site>) -> Self {
        let (mut known, mut members) = (HashMap::new(), Self { endpoints: Vec::new(), firsts: Vec::new() });
        for (rank, site) in sites.enumerate() {
            let endpoint = *known.entry((site.machine, site.namespace)).or_insert(members.firsts.len());
            if endpoint == members.firsts.len() {
                members.firsts.push(rank);
            }
            members.endpoints.push(endpoint);
        }
        members
    }

    /// Whether each endpoint has one rank.
    fn are_alone(&self) -> bool {
        self.firsts.len() == self.endpoints.len()
    }
}

impl Word {
    const LEN: usize = Site::LEN + size_of::<u64>() + 1;

    fn to_bytes(self) -> Vec<u8> {
        [&self.site.to_bytes()[..], &self.threshold.to_le_bytes(), &[self.has_room.into()]].concat()
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (site, rest) = Site::parse(bytes)?;
        let (&threshold, &[has_room]) = rest.split_first_chunk()? else { return None };
        Some(Self { site, threshold: u64::from_le_bytes(threshold), has_room: has_room != 0 })
    }
}

/// Communicators at a time: each takes two more of MPI's, of which MPICH has 2,048.
const MOST: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_one_endpoint_are_found_by_where_they_run() {
        let sites = [(1, 5), (1, 6), (1, 5), (2, 5)].map(|(machine, namespace)| Site { machine, namespace });
        let members = Members::at(sites.into_iter());
        assert_eq!(members, Members { endpoints: vec![0, 1, 0, 2], firsts: vec![0, 1, 3] });
        assert!(!members.are_alone());
        assert!(Members::at(sites.into_iter().skip(1)).are_alone());
    }

    #[test]
    fn a_word_is_read_as_it_was_written() {
        let word = Word { site: Site { machine: 9 << 80, namespace: 4 }, threshold: u64::MAX, has_room: true };
        assert_eq!(Word::parse(&word.to_bytes()), Some(word));
        assert_eq!(Word::parse(&word.to_bytes()[1..]), None);
        assert_eq!(word.to_bytes().len(), Word::LEN);
    }
}
