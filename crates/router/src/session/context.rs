//! Device context: the state of one opened device.

use super::account::{Account, Item};
use super::areas::{Areas, Opening};
use super::completions::Completions;
use super::device::OpenDevice;
use super::groups::Groups;
use super::holdings::Holdings;
use super::info::{ChainRow, ContextInfo, QpRow};
use super::lease::Tenure;
use super::managed::ManagedQueues;
use super::objects::ObjectCounts;
use super::program::{Process, Program};
use super::regions::Regions;
use super::reply::Reply;
use super::token::random_token;
use crate::disposal::Disposal;
use crate::endpoint::EndpointId;
use crate::errands::Job;
use crate::io::{ExternalPath, ExternalPathError, Uplink};
use crate::worker::{EventSocket, ShardHandle};
use rdmesh_nic::policy::Policy;
use rdmesh_nic::{ContextId, ExternalPort, Network, ROCE_PORT, Time};
use rdmesh_uverbs::guard::Alarm;
use rdmesh_uverbs::page::ContextPage;
use rdmesh_uverbs::ring::QueueFile;
use rdmesh_uverbs::session::{OpenReply, Token};
use rdmesh_verbs::Mtu;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

/// The number that `stat` shows for the device: character device 231:192, as Linux encodes it.
const RDEV: u64 = 231 << 8 | 192;

/// An opened device.
pub(super) struct Context {
    endpoint: EndpointId,
    shard: ShardHandle,
    id: ContextId,
    page: ContextPage,
    /// The memory of its queues.
    queues: QueueFile,
    /// Raised where pages of its page or its queues have been taken away.
    alarm: Alarm,
    /// The charges for it and its objects.
    holdings: Holdings,
    token: Token,
    /// The program's end of the asynchronous events, until GET_CONTEXT hands it over. Commands are refused before.
    async_fd: Option<OwnedFd>,
    /// The connections that use it, and how long it stays without.
    tenure: Tenure,
    regions: Regions,
    completions: Completions,
    groups: Groups,
    managed: ManagedQueues,
    /// Its path to external peers.
    external: Result<ExternalPath, ExternalPathError>,
    /// The port's active MTU.
    mtu: Mtu,
    /// Index, in the opener's network namespace, of the interface that has the endpoint's address; 0 without one.
    interface: u32,
    opener: Opener,
    /// Its number in lists: no other of the endpoint has it.
    number: u32,
}

/// The process that opened a context, or has taken it over.
pub(super) struct Opener {
    process: Weak<Process>,
    pid: i32,
    uid: u32,
    comm: String,
}

impl Opener {
    fn new(program: &Program) -> Self {
        let process = Arc::downgrade(program.process());
        let Process { pid, uid, .. } = **program.process();
        Self { process, pid, uid, comm: program.process().comm() }
    }

    /// The process that serves a guest, with the name that the guest gives its program.
    fn of(opening: &Opening, program: &Program) -> Self {
        let Opening::InGuest(name, _) = opening else { return Self::new(program) };
        let name = String::from_utf8_lossy(name);
        let comm = format!("vm:{}", rdmesh_fabric::printable(name.trim_end_matches('\0')));
        Self { comm, ..Self::new(program) }
    }

    /// The process, as long as its connection is there.
    pub(super) fn process(&self) -> Option<Arc<Process>> {
        self.process.upgrade()
    }

    /// Its number.
    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    /// The name of its program.
    pub(super) fn comm(&self) -> &str {
        &self.comm
    }
}

impl Context {
    /// Opens a context on `shard`, with the page and the queue memory that the opener sent; also makes the answer for it.
    pub(super) fn open(
        account: &Account,
        program: &Program,
        opening: &Opening,
        fds: &[OwnedFd],
        shard: &ShardHandle,
        uplink: Uplink,
    ) -> io::Result<(Self, Reply)> {
        let holdings = Holdings::new(account.charge(Item::Context, 1)?);
        let alarm = Alarm::default();
        let Areas { page, queues, waker } = Areas::map(opening, fds, &alarm, account.disposal())?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (events, async_fd) = EventSocket::pair()?;
        let token = random_token()?;
        // The program can make its descriptor block, and with it every copy: the router only ever waits for this one.
        let program_wake = io::fcntl_dupfd_cloexec(&wake, 0)?;
        let reply = Reply::new(&OpenReply { token, rdev: RDEV });
        let reply = match waker {
            Some(waker) => reply.with_open(program_wake).with_open(waker),
            None => reply.with_open(io::fcntl_dupfd_cloexec(shard.flags_fd(), 0)?).with_open(program_wake),
        };

        let external = uplink.external.as_ref().ok().map(external_port);
        let mtu = uplink.interface.map_or(Mtu::B4096, |interface| Mtu::for_interface(interface.mtu));
        let network = Network {
            vni: account.spec().vni,
            endpoint: account.spec().id.0,
            gids: account.spec().gids.clone(),
            external,
            mtu,
        };
        let worker_page = page.clone();
        let policy = account.policy();
        let id = shard.call(move |shard| {
            let id = shard.open(network, worker_page, wake, events);
            if let Ok(mut device) = shard.engine().device(id) {
                device.set_policy(policy);
            }
            id
        });
        let context = Self {
            endpoint: account.spec().id,
            shard: shard.clone(),
            id,
            page,
            queues,
            alarm,
            holdings,
            token,
            async_fd: Some(async_fd),
            tenure: Tenure::new(),
            regions: Regions::default(),
            completions: Completions::default(),
            groups: Groups::default(),
            managed: ManagedQueues::default(),
            external: uplink.external,
            mtu,
            interface: uplink.interface.map_or(0, |interface| interface.index),
            opener: Opener::of(opening, program),
            number: 0,
        };
        Ok((context, reply))
    }

    /// The endpoint that it belongs to.
    pub(super) fn endpoint(&self) -> EndpointId {
        self.endpoint
    }

    /// The process that opened it, or has taken it over.
    pub(super) fn opener(&self) -> &Opener {
        &self.opener
    }

    /// A process has taken it over.
    pub(super) fn set_opener(&mut self, program: &Program) {
        self.opener = Opener::new(program);
    }

    /// Its number in lists: no other of the endpoint has it.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Gives it a number in lists.
    pub(super) fn set_number(&mut self, number: u32) {
        self.number = number;
    }

    /// The worker that serves it.
    pub(super) fn shard(&self) -> &ShardHandle {
        &self.shard
    }

    /// Its name on that worker.
    pub(super) fn id(&self) -> ContextId {
        self.id
    }

    /// Moves it to another worker. Returns whether it is there now.
    pub(super) fn move_to(&mut self, shard: &ShardHandle) -> bool {
        let Some(id) = self.shard.move_context(self.id, shard) else { return false };
        (self.id, self.shard) = (id, shard.clone());
        true
    }

    /// Sets the policy of its endpoint.
    pub(super) fn set_policy(&self, policy: Policy) {
        let id = self.id;
        self.shard.call(move |shard| {
            if let Ok(mut device) = shard.engine().device(id) {
                device.set_policy(policy);
            }
        });
    }

    /// Its page.
    pub(super) fn page(&self) -> &ContextPage {
        &self.page
    }

    /// The memory of its queues.
    pub(super) fn queues(&self) -> &QueueFile {
        &self.queues
    }

    /// Whether the program has removed pages of its page or its queues.
    pub(super) fn is_broken(&self) -> bool {
        self.alarm.is_raised()
    }

    /// The charges for it and its objects, to be changed.
    pub(super) fn holdings_mut(&mut self) -> &mut Holdings {
        &mut self.holdings
    }

    /// Bytes of its registered memory.
    pub(super) fn pinned_bytes(&self) -> u64 {
        self.regions.pinned()
    }

    /// Number of its objects.
    pub(super) fn objects(&self) -> ObjectCounts {
        self.holdings.objects()
    }

    /// Its memory regions.
    pub(super) fn regions(&self) -> &Regions {
        &self.regions
    }

    /// Its memory regions, to be changed.
    pub(super) fn regions_mut(&mut self) -> &mut Regions {
        &mut self.regions
    }

    /// Its completion channels and queues.
    pub(super) fn completions(&self) -> &Completions {
        &self.completions
    }

    /// Its completion channels and queues, to be changed.
    pub(super) fn completions_mut(&mut self) -> &mut Completions {
        &mut self.completions
    }

    /// The multicast groups of its queue pairs.
    pub(super) fn groups(&self) -> &Groups {
        &self.groups
    }

    /// The multicast groups of its queue pairs, to be changed.
    pub(super) fn groups_mut(&mut self) -> &mut Groups {
        &mut self.groups
    }

    /// Its managed queues.
    pub(super) fn managed(&self) -> &ManagedQueues {
        &self.managed
    }

    /// Its managed queues, to be changed.
    pub(super) fn managed_mut(&mut self) -> &mut ManagedQueues {
        &mut self.managed
    }

    /// Reason why it has no path to external peers.
    pub(super) fn external_error(&self) -> Option<ExternalPathError> {
        self.external.as_ref().err().copied()
    }

    /// The port's active MTU.
    pub(super) fn mtu(&self) -> Mtu {
        self.mtu
    }

    /// Index, in the opener's network namespace, of the interface that has the endpoint's address; 0 without one.
    pub(super) fn interface(&self) -> u32 {
        self.interface
    }

    /// Whether GET_CONTEXT has not come yet.
    pub(super) fn is_opening(&self) -> bool {
        self.async_fd.is_some()
    }

    /// The program's end of the asynchronous events, once.
    pub(super) fn take_async_fd(&mut self) -> Option<OwnedFd> {
        self.async_fd.take()
    }

    /// The connections that use it, and its lease.
    pub(super) fn tenure(&self) -> &Tenure {
        &self.tenure
    }

    /// The connections that use it, and its lease, to be changed.
    pub(super) fn tenure_mut(&mut self) -> &mut Tenure {
        &mut self.tenure
    }

    /// The device, as far as rdma_cm needs to know it.
    pub(super) fn open_device(&self) -> OpenDevice {
        let external = self.external.as_ref().ok().map(external_port);
        OpenDevice { number: self.number, mtu: self.mtu, external }
    }

    /// Executes the requests that the program posted before its end.
    pub(super) fn settle(&self) {
        let id = self.id;
        self.shard.settle(move |shard| shard.settle_context(id));
    }

    /// Reclaims everything, by way of `disposal`. A device with few queue pairs is closed when this returns, one with many on
    /// another thread.
    pub(super) fn close(self, disposal: &Disposal) {
        let Self { shard, id, external, holdings, page, queues, async_fd, .. } = self;
        let tables = (self.regions, self.completions, self.groups, self.managed, self.tenure);
        let rest = Box::new(((page, queues, async_fd), tables, holdings.end()));
        let mut closing = Closing { shard, id, rest: Some((rest, external)), disposal: disposal.clone() };
        if closing.step() && closing.step() {
            disposal.reclaim(closing);
        }
    }

    /// Whether `token` is this context's, in constant time.
    pub(super) fn has_token(&self, token: &Token) -> bool {
        self.token.is_equal(token)
    }

    /// Its description, at time `now`.
    pub(super) fn info(&self, account: &Account, now: Time) -> ContextInfo {
        let id = self.id;
        let (qps, chains): (Vec<QpRow>, Vec<ChainRow>) = self.shard.call(move |shard| {
            let Ok(mut device) = shard.engine().device(id) else { return Default::default() };
            (device.infos().map(QpRow::from).collect(), ChainRow::all(&mut device))
        });
        ContextInfo {
            endpoint: self.endpoint,
            name: account.spec().name.clone(),
            network: account.spec().network.clone(),
            pid: self.opener.pid,
            uid: self.opener.uid,
            comm: self.opener.comm.clone(),
            shard: self.shard.number(),
            objects: self.holdings.objects(),
            pinned_bytes: self.regions.pinned(),
            held: account.held_by_rates(),
            external: self.external.as_ref().map(drop).map_err(|error| *error),
            qps,
            number: self.number,
            chains: chains.into_iter().map(|row| row.labelled(&self.managed)).collect(),
            lease: self.tenure.lease().map(|lease| lease.info(now)),
        }
    }
}

/// A device that is being closed: its queue pairs in slices, then all else. What goes is dropped by `disposal`: who takes a
/// step has others to serve.
struct Closing<T> {
    shard: ShardHandle,
    id: ContextId,
    rest: Option<(T, Result<ExternalPath, ExternalPathError>)>,
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
        if let Some((rest, external)) = self.rest.take() {
            self.disposal.discard((remains, rest));
            drop(external);
        }
        false
    }
}

/// The same for the engine.
pub(super) fn external_port(external: &ExternalPath) -> ExternalPort {
    ExternalPort { id: external.sockets().id(), source_port: ROCE_PORT }
}
