//! Device context: the state of one opened device.

use super::account::{Account, Item};
use super::device::OpenDevice;
use super::holdings::Holdings;
use super::info::{ContextInfo, QpRow};
use super::mistakes::Mistake;
use super::peer::Peer;
use super::regions::Regions;
use super::reply::Reply;
use crate::budget::{Charge, Exhausted, Resource};
use crate::disposal::Disposal;
use crate::endpoint::EndpointId;
use crate::errands::Job;
use crate::io::{Interface, Place, PlainError, PlainUse};
use crate::worker::{EventSocket, ShardHandle};
use rdmesh_nic::{ContextId, Network, Plain, ROCE_PORT};
use rdmesh_uverbs::guard::Alarm;
use rdmesh_uverbs::page::{CONTEXT_PAGE_LEN, ContextPage};
use rdmesh_uverbs::ring::QueueFile;
use rdmesh_uverbs::session::{OpenReply, Token};
use rdmesh_uverbs::shared::{Keep, SharedMemory, UnusedMapping};
use rdmesh_verbs::{Gid, Mtu};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io;
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The number that `stat` shows for the device: character device 231:192, as Linux encodes it.
const RDEV: u64 = 231 << 8 | 192;

/// Maximum number of failed queue pairs that are recorded for one context.
const MAX_MISTAKES: usize = 4;

const PAGE: u64 = 4096;

/// A completion channel.
#[derive(Default)]
pub(super) struct Channel {
    /// Completion queues that report to it.
    pub(super) cqs: u32,
    /// The program has closed its end; the channel goes when its last queue does.
    pub(super) is_closed: bool,
}

/// An opened device.
pub(super) struct Context {
    pub(super) endpoint: EndpointId,
    pub(super) shard: ShardHandle,
    pub(super) shard_index: usize,
    pub(super) id: ContextId,
    pub(super) page: ContextPage,
    /// The memory of its queues.
    pub(super) queues: QueueFile,
    /// Raised where pages of its page or its queues have been taken away.
    pub(super) alarm: Alarm,
    /// The charges for it and its objects.
    pub(super) holdings: Holdings,
    pub(super) token: Token,
    /// The program's end of the asynchronous events, until GET_CONTEXT hands it over. Commands are refused before.
    pub(super) async_fd: Option<OwnedFd>,
    /// Connections that use the context: the opener's, and its forked children's.
    pub(super) connections: u32,
    pub(super) regions: Regions,
    pub(super) channels: HashMap<u32, Channel>,
    /// Completion queues, with their channels.
    pub(super) cqs: HashMap<u32, Option<u32>>,
    /// Multicast groups of each queue pair that has some.
    pub(super) groups: HashMap<u32, Vec<(Gid, u16)>>,
    /// Its path to external peers.
    pub(super) plain: Result<PlainUse, PlainError>,
    /// The port's active MTU.
    pub(super) mtu: Mtu,
    /// Index, in the opener's network namespace, of the interface that has the endpoint's address; 0 without one.
    pub(super) interface: u32,
    /// The connection that opened it.
    pub(super) opener: u64,
    /// Its number in lists: no other of the endpoint has it.
    pub(super) number: u32,
    pid: i32,
    uid: u32,
    comm: String,
}

impl Context {
    /// Opens a context on `shard`, with the page and the queue memory that the opener sent; also makes the answer for it.
    pub(super) fn open(
        account: &Account,
        peer: &Peer,
        fds: &[OwnedFd],
        (shard, shard_index): (&ShardHandle, usize),
        place: Place,
    ) -> io::Result<(Self, Reply)> {
        let [page, queues] = fds else { return Err(io::Errno::INVAL) };
        let holdings = Holdings::new(account.charge(Item::Context, 1)?);
        let alarm = Alarm::default();
        let page = map_page(page.as_fd(), &alarm, &account.disposal)?;
        let disposal = account.disposal.clone();
        let queues = io::fcntl_dupfd_cloexec(queues, 0)?;
        let queues = QueueFile::adopt(queues, &alarm, move |len| Ok(Box::new(Mapped::charge(&disposal, len)?)))?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (events, async_fd) = EventSocket::pair()?;
        let token = random_token()?;
        // The program can make its descriptor block, and with it every copy: the router only ever waits for this one.
        let program_wake = io::fcntl_dupfd_cloexec(&wake, 0)?;
        let reply = Reply::new(&OpenReply { token, rdev: RDEV })
            .with_open(io::fcntl_dupfd_cloexec(shard.page_fd(), 0)?)
            .with_open(program_wake);

        let plain = place.plain.as_ref().ok().map(way);
        let mtu = active_mtu(place.interface);
        let network =
            Network { vni: account.spec.vni, endpoint: account.spec.id.0, gids: account.spec.gids.clone(), plain, mtu };
        let worker_page = page.clone();
        let id = shard.call(move |shard| shard.open(network, worker_page, wake, events));
        let context = Self {
            endpoint: account.spec.id,
            shard: shard.clone(),
            shard_index,
            id,
            page,
            queues,
            alarm,
            holdings,
            token,
            async_fd: Some(async_fd),
            connections: 1,
            regions: Regions::default(),
            channels: HashMap::new(),
            cqs: HashMap::new(),
            groups: HashMap::new(),
            plain: place.plain,
            mtu,
            interface: place.interface.map_or(0, |interface| interface.index),
            opener: 0,
            number: 0,
            pid: peer.pid,
            uid: peer.uid,
            comm: peer.comm(),
        };
        Ok((context, reply))
    }

    /// The device, as far as rdma_cm needs to know it.
    pub(super) fn open_device(&self) -> OpenDevice {
        let way = self.plain.as_ref().ok().map(way);
        OpenDevice { shard: self.shard_index, id: self.id, mtu: self.mtu, way }
    }

    /// Executes the requests that the program posted before its end.
    pub(super) fn settle(&self) {
        let id = self.id;
        self.shard.settle(move |shard| shard.settle_context(id));
    }

    /// Reclaims everything, by way of `disposal`. A device with few queue pairs is closed when this returns, one with many on
    /// another thread.
    pub(super) fn close(self, disposal: &Disposal) {
        let Self { shard, id, plain, holdings, page, queues, async_fd, regions, channels, cqs, groups, .. } = self;
        let rest = Box::new(((page, queues, async_fd), (regions, channels, cqs, groups), holdings.end()));
        let mut closing = Closing { shard, id, rest: Some((rest, plain)), disposal: disposal.clone() };
        if closing.step() && closing.step() {
            disposal.reclaim(closing);
        }
    }

    /// Whether `token` is this context's, in constant time.
    pub(super) fn has_token(&self, token: &Token) -> bool {
        self.token.0.iter().zip(&token.0).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
    }

    /// Records indices beyond the ends of its queues that the program has written since the last call.
    pub(super) fn note_bad_indices(&self, account: &Account) {
        let count = self.queues.take_bad_indices();
        if count != 0 {
            account.note_bad_indices(count);
            account.mistakes(|known| known.note_all(Mistake::BadIndex, count, self.pid, || self.comm.clone()));
        }
    }

    /// Records failures of its queue pairs, at its end.
    pub(super) fn note_mistakes(&self, account: &Account) {
        self.note_bad_indices(account);
        let id = self.id;
        let mistakes: Vec<Mistake> = self.shard.call(move |shard| {
            let engine = shard.engine();
            let infos = engine.qps(id).into_iter().filter_map(|qp| engine.query_qp(id, qp).ok());
            infos.filter_map(|info| Mistake::of_queue_pair(&info)).take(MAX_MISTAKES).collect()
        });
        account.mistakes(|known| {
            mistakes.into_iter().for_each(|mistake| known.note(mistake, self.pid, || self.comm.clone()));
        });
    }

    pub(super) fn info(&self, account: &Account) -> ContextInfo {
        let id = self.id;
        let qps = self.shard.call(move |shard| {
            let engine = shard.engine();
            let handles = engine.qps(id);
            handles.into_iter().filter_map(|qp| engine.query_qp(id, qp).ok()).map(QpRow::from).collect()
        });
        ContextInfo {
            endpoint: self.endpoint,
            name: account.spec.name.clone(),
            network: account.spec.network.clone(),
            pid: self.pid,
            uid: self.uid,
            comm: self.comm.clone(),
            shard: self.shard_index,
            objects: self.holdings.objects(),
            pinned_bytes: self.regions.pinned(),
            outside: self.plain.as_ref().map(drop).map_err(|error| *error),
            qps,
        }
    }
}

/// A device that is being closed: its queue pairs in slices, then all else. What goes is dropped by `disposal`: who takes a
/// step has others to serve.
struct Closing<T> {
    shard: ShardHandle,
    id: ContextId,
    rest: Option<(T, Result<PlainUse, PlainError>)>,
    disposal: Disposal,
}

impl<T: Send + 'static> Job for Closing<T> {
    fn step(&mut self) -> bool {
        let id = self.id;
        // The worker serves others between two slices; it may have ended, with the router.
        if let Some(Some(remains)) = self.shard.try_call(move |shard| shard.close_some(id)) {
            self.disposal.discard(remains);
            return true;
        }
        let remains = self.shard.try_call(move |shard| shard.close(id)).flatten();
        if let Some((rest, plain)) = self.rest.take() {
            self.disposal.discard((remains, rest));
            drop(plain);
        }
        false
    }
}

/// Charge for a mapping of queues.
struct Mapped {
    _address_space: Charge,
    _mapping: Charge,
    _memory: Charge,
    disposal: Disposal,
}

impl Mapped {
    fn charge(disposal: &Disposal, len: usize) -> Result<Self, Exhausted> {
        let (share, len) = (disposal.share(), len as u64);
        Ok(Self {
            _address_space: share.take(Resource::AddressSpace, len)?,
            _mapping: share.take(Resource::Mappings, 1)?,
            // For its pages of the page table, all of which are used if the queues are.
            _memory: share.take(Resource::Memory, (len >> 9) + PAGE)?,
            disposal: disposal.clone(),
        })
    }
}

impl Keep for Mapped {
    fn unmap(self: Box<Self>, pages: UnusedMapping) {
        self.disposal.clone().unmap(pages, self);
    }
}

/// Maps a context page from the other side. EFAULT where it is not filled in.
fn map_page(fd: BorrowedFd<'_>, alarm: &Alarm, disposal: &Disposal) -> io::Result<ContextPage> {
    let keep = Mapped::charge(disposal, CONTEXT_PAGE_LEN)?;
    let memory = SharedMemory::map_watched(fd, 0, CONTEXT_PAGE_LEN, alarm, keep)?;
    memory.populate(0, CONTEXT_PAGE_LEN)?;
    ContextPage::new(memory).ok_or(io::Errno::INVAL)
}

/// The same for the engine.
pub(super) fn way(plain: &PlainUse) -> Plain {
    Plain { id: plain.sockets().id(), source_port: ROCE_PORT }
}

/// The largest path MTU that an interface carries with all headers, by rxe's rule; without an interface, the largest.
fn active_mtu(interface: Option<Interface>) -> Mtu {
    const HEADERS: u32 = 80;
    let Some(interface) = interface else { return Mtu::B4096 };
    let fits = |mtu: &Mtu| mtu.bytes() + HEADERS <= interface.mtu;
    [Mtu::B4096, Mtu::B2048, Mtu::B1024, Mtu::B512].into_iter().find(fits).unwrap_or(Mtu::B256)
}

pub(super) fn random_token() -> io::Result<Token> {
    let mut token = Token([0; 16]);
    // The kernel gives up to 256 bytes whole (getrandom(2)).
    getrandom(&mut token.0, GetRandomFlags::empty())?;
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_active_mtu_leaves_room_for_headers() {
        let of = |mtu| active_mtu(Some(Interface { index: 1, mtu }));
        assert_eq!([1500, 9000, 4176, 4175].map(of), [Mtu::B1024, Mtu::B4096, Mtu::B4096, Mtu::B2048]);
        assert_eq!([68, 65_536].map(of), [Mtu::B256, Mtu::B4096]);
        assert_eq!(active_mtu(None), Mtu::B4096);
    }
}
