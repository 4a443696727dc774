//! Rings of a hostile tenant: arbitrary bytes, in any order with doorbells, polls and time.

use rdmesh_nic::{Capabilities, Config, ContextId, CqInit, Engine, Network, Numbers, QpInit, Time};
use rdmesh_router::budget::{Budget, Limits};
use rdmesh_router::disposal::{Disposal, Reclaimer};
use rdmesh_router::memory::{ArenaFile, Arenas, HostCompletionQueue, HostPlatform, HostRecvQueue, HostSendQueue};
use rdmesh_uverbs::page::{CONTEXT_PAGE_LEN, ContextPage};
use rdmesh_uverbs::ring::{CompletionRing, QueueFile, RecvRing, SendRing};
use rdmesh_uverbs::session::{Segment, SegmentKind};
use rdmesh_uverbs::shared::SharedMemory;
use rdmesh_verbs::{Access, AddressVector, AttrMask, DeviceLimits, Gid, Mtu, Qkey, QpAttr, QpState, QpType, Vni};
use std::os::fd::{AsFd, BorrowedFd};

/// Two tenants of one engine. The first is hostile; the second only waits with receives posted.
pub(crate) struct Tenants {
    engine: Engine<HostPlatform>,
    hostile: Side,
    victim: Side,
    now: u64,
}

struct Side {
    context: ContextId,
    qps: Vec<u32>,
    /// Memory that the tenant can write: its rings and its page.
    writable: Vec<SharedMemory>,
    /// A region that no peer may reach: it must never change.
    private: SharedMemory,
}

const PRIVATE_LEN: usize = 4096;
const BASE: u64 = 0x1000_0000;

impl Tenants {
    /// RC, UC and UD queue pairs of both, connected pairwise.
    pub(crate) fn new() -> Self {
        let config =
            Config { shard: 0, seed: 1, limits: DeviceLimits::default(), native: rdmesh_nic::NativeConfig::default() };
        let mut engine = Engine::new(config, Numbers::new(1));
        let gids = [1, 2].map(|host| Gid::from_ip([10, 0, 0, host].into()));
        let sides = gids.map(|gid| side(&mut engine, gid));
        for i in 0..3 {
            let numbers =
                [0, 1].map(|s: usize| engine.device(sides[s].context).unwrap().query_qp(sides[s].qps[i]).unwrap());
            for s in 0..2 {
                let av = AddressVector { dgid: gids[1 - s], ..AddressVector::default() };
                let attr = QpAttr { av, dest_qpn: numbers[1 - s].qpn, ..attributes() };
                to_rts(&mut engine, &sides[s], i, attr, numbers[s].qp_type);
            }
        }
        let [hostile, victim] = sides;
        let av = AddressVector { dgid: gids[1], ..AddressVector::default() };
        engine.device(hostile.context).unwrap().create_ah(0, av).unwrap();
        Self { engine, hostile, victim, now: 0 }
    }

    /// Takes `data` as a program for the hostile tenant.
    pub(crate) fn run(&mut self, data: &[u8]) {
        for step in data.chunks(12) {
            let Some((&[kind, which, a, b], bytes)) = step.split_first_chunk() else { break };
            let target = &self.hostile.writable[usize::from(which) % self.hostile.writable.len()];
            match kind % 8 {
                0 => self.engine.doorbell(self.hostile.context, u32::from(which % 4)),
                1 => {
                    self.now += 1 << (a % 40);
                    self.poll();
                }
                2 => self.poll(),
                // Indices and the first slots are where it hurts most.
                3 => store(target, [128, 256][usize::from(a) % 2], &[b]),
                4 => store(target, 384 + usize::from(a) * 4, bytes),
                _ => store(target, usize::from(u16::from_ne_bytes([a, b])), bytes),
            }
        }
        for qp in 0..4 {
            self.engine.doorbell(self.hostile.context, qp);
        }
        self.poll();
        self.check();
    }

    fn poll(&mut self) {
        // A turn is bounded, and so is what a ring can hold: this ends.
        for _ in 0..100 {
            if !self.engine.poll(Time(self.now)) {
                break;
            }
        }
        while self.engine.poll_event().is_some() {}
    }

    /// Neither tenant's unregistered neighbourhood was touched.
    fn check(&self) {
        for side in [&self.hostile, &self.victim] {
            let intact = load(&side.private, 0, PRIVATE_LEN).iter().all(|byte| *byte == 0x5a);
            assert!(intact, "memory outside every region was written");
        }
    }
}

fn attributes() -> QpAttr {
    QpAttr {
        access: Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        port: 1,
        qkey: Qkey(1),
        path_mtu: Mtu::B1024,
        timeout: 10,
        retry_cnt: 1,
        rnr_retry: 7,
        max_rd_atomic: 2,
        max_dest_rd_atomic: 2,
        min_rnr_timer: 1,
        ..QpAttr::default()
    }
}

fn to_rts(engine: &mut Engine<HostPlatform>, side: &Side, i: usize, mut attr: QpAttr, qp_type: QpType) {
    use AttrMask as M;
    let steps = match qp_type {
        QpType::Ud => [M::PKEY_INDEX | M::PORT | M::QKEY, M::empty(), M::SQ_PSN],
        QpType::Uc => {
            [M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS, M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN, M::SQ_PSN]
        }
        QpType::Rc => [
            M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS,
            M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER,
            M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC,
        ],
    };
    for (state, mask) in [QpState::Init, QpState::Rtr, QpState::Rts].into_iter().zip(steps) {
        attr.state = state;
        engine.device(side.context).unwrap().modify_qp(Time(0), side.qps[i], &attr, mask | M::STATE).unwrap();
    }
}

fn map(file: BorrowedFd<'_>, offset: u64, len: usize) -> SharedMemory {
    SharedMemory::map(file, offset, len, true).unwrap()
}

fn side(engine: &mut Engine<HostPlatform>, gid: Gid) -> Side {
    let context = engine.open(Network { vni: Vni(1), endpoint: 1, gids: vec![gid], external: None, mtu: Mtu::B4096 });
    let pd = engine.device(context).unwrap().context_mut().alloc_pd().unwrap();
    let (page, page_fd) = SharedMemory::create("page", CONTEXT_PAGE_LEN).unwrap();
    let mut writable = vec![map(page_fd.as_fd(), 0, CONTEXT_PAGE_LEN)];
    // One page is registered; the page behind it is not.
    let (arena, arena_fd) = SharedMemory::create("arena", 2 * PRIVATE_LEN).unwrap();
    store(&arena, PRIVATE_LEN, &[0x5a; PRIVATE_LEN]);
    let kind = SegmentKind::Arena as u32;
    let segment = Segment { addr: BASE, len: PRIVATE_LEN as u64, kind, reserved: 0, offset: 0 };
    let share = Budget::new(Limits::of_this_process()).share(u32::MAX);
    let mut arenas = Arenas::new(Disposal::new(share, &Reclaimer::new()));
    let arena = ArenaFile::sent(arena_fd.as_fd()).unwrap();
    let memory = arenas.region(1, BASE, PRIVATE_LEN as u64, &[segment], Some(arena), None).unwrap();
    let access = attributes().access | Access::MW_BIND;
    engine.device(context).unwrap().context_mut().reg_mr(pd, BASE, PRIVATE_LEN as u64, access, memory).unwrap();
    let private = SharedMemory::map(arena_fd.as_fd(), PRIVATE_LEN as u64, PRIVATE_LEN, true).unwrap();

    let file = QueueFile::create().unwrap();
    let cq = CompletionRing::create(&file, 16).unwrap();
    writable.push(map(file.fd().unwrap(), cq.offset, cq.len as usize));
    let page = ContextPage::new(page).unwrap();
    let queue = HostCompletionQueue::new(cq.ring, page);
    let cq = engine
        .device(context)
        .unwrap()
        .context_mut()
        .create_cq(CqInit { queue, cqe: 16, ignores_overrun: false })
        .unwrap();
    let caps = Capabilities { max_send_wr: 7, max_recv_wr: 7, max_send_sge: 4, max_recv_sge: 4, max_inline: 64 };
    let mut qps = Vec::new();
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let send = SendRing::create(&file, 7, 4, 64).unwrap();
        let recv = RecvRing::create(&file, 7, 4).unwrap();
        writable.push(map(file.fd().unwrap(), send.offset, send.len as usize));
        writable.push(map(file.fd().unwrap(), recv.offset, recv.len as usize));
        let (send, recv) = (HostSendQueue::new(send.ring), Some(HostRecvQueue::new(recv.ring)));
        let init = QpInit { qp_type, pd, send_cq: cq, recv_cq: cq, srq: None, caps, signal_all: false, send, recv };
        qps.push(engine.device(context).unwrap().create_qp(init).unwrap().0);
    }
    Side { context, qps, writable, private }
}

fn store(memory: &SharedMemory, at: usize, bytes: &[u8]) {
    for (i, byte) in bytes.iter().enumerate().filter(|(i, _)| at + i < memory.len()) {
        // SAFETY: in bounds of a live mapping into which no reference is held.
        unsafe { memory.as_ptr().add(at + i).write_volatile(*byte) };
    }
}

fn load(memory: &SharedMemory, at: usize, len: usize) -> Vec<u8> {
    assert!(at + len <= memory.len());
    // SAFETY: in bounds (asserted) of a live mapping.
    (0..len).map(|i| unsafe { memory.as_ptr().add(at + i).read_volatile() }).collect()
}
