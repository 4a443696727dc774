//! The relay's own RDMA device: the endpoint's, opened as any program of the endpoint does.
//!
//! So the endpoint's quotas, rates, security groups and meters hold for what a relay carries.

mod queue;
mod session;

pub(crate) use queue::Request;

use queue::Queue;
use rdmesh_uverbs::abi::{
    AllocPd, AllocPdResponse, CreateCompChannel, CreateCompChannelResponse, CreateCq, CreateCqResponse, CreateQp,
    CreateQpResponse, DeallocPd, DeregMr, DestroyQp, GetContext, MmapInfo, ModifyQp, QpDest, RegMr, RegMrResponse,
    RxeCreateCqResponse, RxeCreateQpResponse, RxeSge, UverbsQpAttr, WorkCompletion, number,
};
use rdmesh_uverbs::page::{Arm, CONTEXT_PAGE_LEN, ContextPage, WORKERS_LEN, WorkerFlags};
use rdmesh_uverbs::ring::QueueFile;
use rdmesh_uverbs::session::{RequestKind, Segment, SegmentKind};
use rdmesh_uverbs::shared::SharedMemory;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use session::{Answer, Session, command};
use std::path::Path;
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub(crate) mod cm;

/// An open device with one completion queue.
pub(crate) struct Device {
    session: Session,
    page: ContextPage,
    workers: WorkerFlags,
    wake: OwnedFd,
    queues: OwnedFd,
    /// Kept open: the router closes what nobody listens to.
    _events: Option<OwnedFd>,
    completions: Queue,
    cq: u32,
    channel: OwnedFd,
}

/// A protection domain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pd(u32);

/// A registered region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
    /// Its first byte, as peers name it.
    pub(crate) addr: u64,
}

/// A reliable connected queue pair.
pub(crate) struct QueuePair {
    handle: u32,
    pub(crate) qpn: u32,
    send: Queue,
    receive: Queue,
}

impl Device {
    /// Opens the device of the endpoint whose session socket is at `path`.
    pub(crate) fn open(path: &Path) -> Result<Self, Errno> {
        let mut session = Session::connect(path)?;
        let (page, page_fd) = SharedMemory::create("rdmesh-relay-page", CONTEXT_PAGE_LEN)?;
        let queues = QueueFile::memfd()?;
        let opened = session.call(RequestKind::Open, &[], &[], &[page_fd.as_fd(), queues.as_fd()], None)?;
        let Ok([workers, wake]) = <[OwnedFd; 2]>::try_from(opened.fds.into_iter().collect::<Vec<_>>()) else {
            return Err(Errno::PROTO);
        };
        let workers = WorkerFlags::new(SharedMemory::map(workers.as_fd(), 0, WORKERS_LEN, false)?);
        let mut call = |body: Vec<u8>| session.call(RequestKind::Verbs, &body, &[], &[], Some(&queues));
        let mut context = call(command(number::GET_CONTEXT, &GetContext { response: 1 }, 8))?;
        let room = size_of::<CreateCompChannelResponse>();
        let mut made = call(command(number::CREATE_COMP_CHANNEL, &CreateCompChannel::default(), room))?;
        let number: CreateCompChannelResponse = made.read();
        let channel = made.fds.pop().ok_or(Errno::PROTO)?;
        let request = CreateCq { cqe: COMPLETIONS, comp_channel: number.fd.cast_signed(), ..Default::default() };
        let room = size_of::<CreateCqResponse>() + size_of::<RxeCreateCqResponse>();
        let made = call(command(number::CREATE_CQ, &request, room))?;
        let cq = made.read::<CreateCqResponse>().cq_handle;
        let completions = map(&queues, &made.response[size_of::<CreateCqResponse>()..])?;
        rustix::io::ioctl_fionbio(&channel, true)?;
        Ok(Self {
            page: ContextPage::new(page).ok_or(Errno::PROTO)?,
            workers: workers.ok_or(Errno::PROTO)?,
            wake,
            _events: context.fds.pop(),
            completions,
            cq,
            channel,
            session,
            queues,
        })
    }

    fn call(&mut self, number: u8, request: &(impl IntoBytes + Immutable), room: usize) -> Result<Answer, Errno> {
        let body = command(number, request, room);
        self.session.call(RequestKind::Verbs, &body, &[], &[], Some(&self.queues))
    }

    /// A new protection domain.
    pub(crate) fn alloc_pd(&mut self) -> Result<Pd, Errno> {
        let answer = self.call(number::ALLOC_PD, &AllocPd::default(), size_of::<AllocPdResponse>())?;
        Ok(Pd(answer.read::<AllocPdResponse>().pd_handle))
    }

    /// Gives a protection domain back, whose regions and queue pairs have gone.
    pub(crate) fn dealloc_pd(&mut self, pd: Pd) -> Result<(), Errno> {
        self.call(number::DEALLOC_PD, &DeallocPd { pd_handle: pd.0 }, 0).map(drop)
    }

    /// Registers `memory`, all of the memfd `fd`, whose pages are populated, for local and remote writing.
    pub(crate) fn register(&mut self, pd: Pd, memory: &SharedMemory, fd: BorrowedFd<'_>) -> Result<Region, Errno> {
        let (addr, len) = (memory.as_ptr() as u64, memory.len() as u64);
        let request = RegMr {
            start: addr,
            length: len,
            hca_va: addr,
            pd_handle: pd.0,
            access_flags: WRITABLE,
            ..Default::default()
        };
        let segment = Segment { addr, len, kind: SegmentKind::Arena as u32, reserved: 0, offset: 0 };
        let body = command(number::REG_MR, &request, size_of::<RegMrResponse>());
        let answer = self.session.call(RequestKind::Verbs, &body, &[segment], &[fd], None)?;
        let RegMrResponse { mr_handle, lkey, rkey } = answer.read();
        Ok(Region { handle: mr_handle, lkey, rkey, addr })
    }

    /// Ends a registration.
    pub(crate) fn deregister(&mut self, region: Region) -> Result<(), Errno> {
        self.call(number::DEREG_MR, &DeregMr { mr_handle: region.handle }, 0).map(drop)
    }

    /// A queue pair with room for so many requests each way.
    pub(crate) fn create_qp(&mut self, pd: Pd, requests: u32) -> Result<QueuePair, Errno> {
        let request = CreateQp {
            pd_handle: pd.0,
            send_cq_handle: self.cq,
            recv_cq_handle: self.cq,
            max_send_wr: requests,
            max_recv_wr: requests,
            max_send_sge: 1,
            max_recv_sge: 1,
            sq_sig_all: 1,
            qp_type: RC,
            ..Default::default()
        };
        let room = size_of::<CreateQpResponse>() + size_of::<RxeCreateQpResponse>();
        let answer = self.call(number::CREATE_QP, &request, room)?;
        let made: CreateQpResponse = answer.read();
        let driver = &answer.response[size_of::<CreateQpResponse>()..];
        let receive = map(&self.queues, driver)?;
        let send = map(&self.queues, &driver[size_of::<MmapInfo>()..])?;
        Ok(QueuePair { handle: made.qp_handle, qpn: made.qpn, send, receive })
    }

    /// Changes a queue pair as rdma_cm says.
    pub(crate) fn modify_qp(&mut self, qp: &QueuePair, attr: &UverbsQpAttr) -> Result<(), Errno> {
        let (ah, route) = (&attr.ah_attr, &attr.ah_attr.grh);
        let dest = QpDest {
            dgid: route.dgid,
            flow_label: route.flow_label,
            dlid: ah.dlid,
            reserved: 0,
            sgid_index: route.sgid_index,
            hop_limit: route.hop_limit,
            traffic_class: route.traffic_class,
            sl: ah.sl,
            src_path_bits: ah.src_path_bits,
            static_rate: ah.static_rate,
            is_global: ah.is_global,
            port_num: ah.port_num,
        };
        let request = ModifyQp {
            dest,
            qp_handle: qp.handle,
            attr_mask: attr.qp_attr_mask,
            qkey: attr.qkey,
            rq_psn: attr.rq_psn,
            sq_psn: attr.sq_psn,
            dest_qp_num: attr.dest_qp_num,
            qp_access_flags: attr.qp_access_flags | WRITABLE,
            pkey_index: attr.pkey_index,
            qp_state: attr.qp_state as u8,
            cur_qp_state: attr.cur_qp_state as u8,
            path_mtu: attr.path_mtu as u8,
            max_rd_atomic: attr.max_rd_atomic,
            max_dest_rd_atomic: attr.max_dest_rd_atomic,
            min_rnr_timer: attr.min_rnr_timer,
            port_num: attr.port_num,
            timeout: attr.timeout,
            retry_cnt: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
            ..Default::default()
        };
        self.call(number::MODIFY_QP, &request, 0).map(drop)
    }

    /// Ends a queue pair; what it had in flight gives no more completions.
    pub(crate) fn destroy_qp(&mut self, qp: &QueuePair) -> Result<(), Errno> {
        let request = DestroyQp { response: 1, qp_handle: qp.handle, reserved: 0 };
        self.call(number::DESTROY_QP, &request, 4).map(drop)
    }

    /// Posts a request; false where the queue is full. [`Device::ring`] has it executed.
    pub(crate) fn post_send(&self, qp: &mut QueuePair, wr_id: u64, request: &Request) -> bool {
        qp.send.post_send(wr_id, request)
    }

    /// Posts a receive request for `len` bytes at `offset` of a region.
    pub(crate) fn post_recv(&self, qp: &mut QueuePair, wr_id: u64, region: &Region, offset: u64, len: u32) -> bool {
        qp.receive.post_recv(wr_id, &RxeSge { addr: region.addr + offset, length: len, lkey: region.lkey })
    }

    /// Tells the worker of posted requests.
    pub(crate) fn ring(&self, qp: &QueuePair) {
        self.page.ring(qp.handle);
        if self.page.must_wake(&self.workers) {
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    /// Takes the oldest completion out.
    pub(crate) fn poll(&mut self) -> Option<WorkCompletion> {
        self.completions.poll()
    }

    /// Whether there is one.
    pub(crate) fn has_completion(&self) -> bool {
        self.completions.has_completion()
    }

    /// Has the next completion make [`Device::channel`] readable. The caller looks once more before it sleeps.
    pub(crate) fn arm(&self) {
        self.page.arm_cq(self.cq, Arm::Any);
    }

    /// Descriptor that becomes readable with a completion after [`Device::arm`].
    pub(crate) fn channel(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Takes events out of the channel.
    pub(crate) fn silence(&self) {
        let mut events = [0; 128];
        while rustix::io::read(&self.channel, &mut events).is_ok_and(|len| len == events.len()) {}
    }
}

impl QueuePair {
    /// Receive and send requests that it holds.
    pub(crate) fn capacities(&self) -> (u32, u32) {
        (self.receive.capacity(), self.send.capacity())
    }

    /// Whether send requests are in flight.
    pub(crate) fn is_sending(&self) -> bool {
        !self.send.is_empty()
    }

    /// Whether there is room for a send request.
    pub(crate) fn has_room(&self) -> bool {
        !self.send.is_full()
    }
}

/// Maps the queue that an `mminfo` is about.
fn map(queues: &OwnedFd, mminfo: &[u8]) -> Result<Queue, Errno> {
    let (info, _) = MmapInfo::read_from_prefix(mminfo).map_err(|_| Errno::PROTO)?;
    let memory = SharedMemory::map(queues.as_fd(), info.offset, info.size as usize, true)?;
    Queue::new(memory).ok_or(Errno::PROTO)
}

/// Entries of the completion queue: more than all trunks' requests, which are bounded by the number of trunks.
const COMPLETIONS: u32 = 32_000;
/// `IBV_ACCESS_LOCAL_WRITE` and `IBV_ACCESS_REMOTE_WRITE`.
const WRITABLE: u32 = 1 | 2;
/// `IBV_QPT_RC`.
const RC: u8 = 2;
