//! World set-up: opens programs and connects their queue pairs.

use super::{Happening, World, serve::Host};
use crate::chance::{mix, pattern};
use crate::coverage::Seen;
use crate::layout::{BASE, BUFFER, BUFFERS, READABLE, RECV, SLOT, TARGET};
use crate::model::{Check, End, Flow, Owner, Queue, RECEIVE, Space, Window, WindowState, violated};
use crate::platform::{Completions, INLINE, Recvs, Region, SLOTS, Sends, Sim};
use rdmesh_nic::{
    Capabilities, ContextId, CqInit, ExternalId, ExternalPort, MwType, Network, QpInit, Route, Routes, SrqAttr,
    SrqInit, Time,
};
use rdmesh_verbs::{Access, AddressVector, AttrMask, Key, Qkey, QpAttr, QpState, QpType, Qpn};
use std::sync::Arc;

/// A program, running.
pub struct Node {
    /// Its device.
    pub context: ContextId,
    /// Its protection domain.
    pub pd: u32,
    /// The key of its memory.
    pub key: Key,
    /// Its completion queue.
    pub cq: u32,
    /// The ring of that.
    pub completions: Completions,
    /// Index of its memory in the model.
    pub space: usize,
    /// Its shared receive queue: handle, and index in the model.
    pub srq: Option<(u32, usize)>,
    /// Turns in which it found nothing to do, since the last in which it did.
    pub idle: u32,
}

/// Everything that a region allows.
pub(crate) const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::MW_BIND);
pub(crate) const QKEY: Qkey = Qkey(0x1111);
/// The UDP port that plain RoCEv2 comes from.
pub(crate) const SOURCE_PORT: u16 = 0xc123;

impl World {
    pub(super) fn build(&mut self) -> Check {
        for host in 0..self.plan.hosts.len() {
            let started = Host::new(host, self.plan.hosts[host], self.plan.seed, 0);
            self.hosts.push(started);
            self.set_routes(host);
        }
        for node in 0..self.plan.nodes.len() {
            let opened = self.open(node)?;
            self.nodes.push(opened);
        }
        for pair in 0..self.plan.pairs.len() {
            self.pairs.push([usize::MAX; 2]);
            self.connect(pair)?;
        }
        Ok(())
    }

    pub(super) fn set_routes(&mut self, host: usize) {
        let mut routes = Routes::default();
        for node in &self.plan.nodes {
            if node.host == host {
                routes.insert(node.vni, node.gid, Route::Local);
            } else if !node.plain {
                routes.insert(node.vni, node.gid, Route::Host(Host::address(node.host)));
            }
        }
        let routes = Arc::new(routes);
        for engine in &mut self.hosts[host].engines {
            engine.set_routes(routes.clone());
        }
    }

    /// Opens a program's device and registers its memory: a slot for each side of each pair, one for an SRQ.
    pub(super) fn open(&mut self, node: usize) -> Check<Node> {
        let plan = self.plan.nodes[node];
        let slots = self.plan.pairs.len() * 2 + 1;
        let id = self.regions;
        self.regions += 1;
        let region = Region::new(id, slots * SLOT as usize + GUARD, self.journal.clone());
        let external = plan.plain.then_some(ExternalPort { id: ExternalId(node as u32), source_port: SOURCE_PORT });
        let journal = self.journal.clone();
        let engine = &mut self.hosts[plan.host].engines[plan.shard as usize];
        let context = engine.open(Network {
            vni: plan.vni,
            endpoint: node as u32,
            gids: vec![plan.gid],
            external,
            mtu: plan.mtu,
        });
        let mut device = engine.device(context).or_else(refused)?;
        let pd = device.context_mut().alloc_pd().or_else(refused)?;
        let (_, key) =
            device.context_mut().reg_mr(pd, BASE, slots as u64 * SLOT, ALL, region.clone()).or_else(refused)?;
        let completions = Completions::new(id, CQE, journal);
        let cq = device
            .context_mut()
            .create_cq(CqInit { queue: completions.clone(), cqe: CQE as u32, ignores_overrun: false })
            .or_else(refused)?;
        let space = self.model.spaces.len();
        self.model.spaces.push(Space::new(region, slots));
        self.model.by_region.insert(id, space);
        let mut opened = Node { context, pd, key, cq, completions, space, srq: None, idle: 0 };
        if plan.srq {
            let slot = slots - 1;
            let queue = self.new_queue(space, slot, true);
            let ring = self.model.queues[queue].recvs.clone();
            let attr = SrqAttr { max_wr: 64, max_sge: 4, limit: 0 };
            let engine = &mut self.hosts[plan.host].engines[plan.shard as usize];
            let mut device = engine.device(context).or_else(refused)?;
            let handle = device.context_mut().create_srq(SrqInit { pd, queue: ring, attr }).or_else(refused)?;
            self.model.spaces[space].slots[slot] = Owner::Queue(queue);
            opened.srq = Some((handle, queue));
        }
        Ok(opened)
    }

    fn new_queue(&mut self, space: usize, slot: usize, shared: bool) -> usize {
        let id = self.model.queues.len();
        let start = slot as u64 * SLOT + RECV.start;
        let free = (0..BUFFERS).map(|i| start + i * BUFFER).collect();
        self.model.queues.push(Queue::new(Recvs::new(id as u32, self.journal.clone()), shared, space, free));
        id
    }

    /// Creates both queue pairs of a pair and connects them.
    pub(super) fn connect(&mut self, pair: usize) -> Check {
        let nodes = self.plan.pairs[pair].nodes;
        if nodes.iter().any(|&node| !self.hosts[self.plan.nodes[node].host].alive) {
            return Ok(());
        }
        for end in self.pairs[pair] {
            if end != usize::MAX {
                self.destroy(end)?;
                // Numbers far from the old ones, as a connection manager would choose.
                let far = 0x20_0000 + self.workload.between(0, 0x8_0000) as u32;
                let psn = &mut self.plan.pairs[pair].psns[self.model.ends[end].pair.1];
                *psn = psn.add(far);
            }
        }
        let plan = self.plan.pairs[pair];
        let first = self.model.ends.len();
        let ends = [first, first + 1];
        for side in 0..2 {
            self.create(pair, side, ends[1 - side])?;
        }
        self.pairs[pair] = ends;
        for side in 0..2 {
            self.bring_up(ends[side], ends[1 - side], side)?;
        }
        let [a, b] = ends.map(|end| &self.model.ends[end]);
        let words = format!("{:?} pair {pair}: ends {ends:?}, QPs {} and {}", plan.qp_type, a.qpn, b.qpn);
        let [a, b] = plan.nodes.map(|node| self.plan.nodes[node]);
        self.model.seen.count(match (a.host == b.host, a.plain) {
            (true, _) => Seen::LocalPath,
            (_, true) => Seen::PlainPath,
            (_, false) => Seen::TunnelPath,
        });
        self.note([1, pair as u64, 0], || words);
        for end in ends {
            self.bind_windows(end)?;
            self.wake(self.model.ends[end].host);
        }
        Ok(())
    }

    fn create(&mut self, pair: usize, side: usize, peer: usize) -> Check {
        let plan = self.plan.pairs[pair];
        let (at, node) = (self.plan.nodes[plan.nodes[side]], plan.nodes[side]);
        let Node { context, pd, cq, space, srq, .. } = self.nodes[node];
        let (end, slot) = (self.model.ends.len(), pair * 2 + side);
        let srq = srq.filter(|_| plan.srq[side]);
        let queue = srq.map_or_else(|| self.new_queue(space, slot, false), |(_, queue)| queue);
        let sends = Sends::new();
        let caps = Capabilities {
            max_send_wr: SLOTS as u32,
            max_recv_wr: 64,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline: INLINE as u32,
        };
        let init = QpInit::<Sim> {
            qp_type: plan.qp_type,
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: srq.map(|(handle, _)| handle),
            caps,
            signal_all: plan.signal_all,
            send: sends.clone(),
            recv: srq.is_none().then(|| self.model.queues[queue].recvs.clone()),
        };
        let mut device = self.hosts[at.host].engines[at.shard as usize].device(context).or_else(refused)?;
        let (handle, qpn) = device.create_qp(init).or_else(refused)?;
        let other = self.plan.nodes[plan.nodes[1 - side]].gid;
        let ah = device.create_ah(pd, AddressVector { dgid: other, ..vector() }).or_else(refused)?;
        let mut windows = Vec::new();
        for _ in 0..plan.windows {
            let (handle, key) = device.context_mut().alloc_mw(pd, MwType::Type2).or_else(refused)?;
            windows.push(Window { handle, key, state: WindowState::Binding });
        }
        self.model.spaces[space].slots[slot] = Owner::End(end);
        self.fill(end, space, slot);
        self.model.by_qpn.insert((at.host, qpn.value()), end);
        self.model.ends.push(End {
            host: at.host,
            space,
            slot,
            handle,
            qpn,
            qp_type: plan.qp_type,
            peer,
            pair: (pair, side),
            plan,
            alive: true,
            excused: false,
            sends,
            queue,
            flow: Flow::default(),
            windows,
            born: self.now,
            ah,
            left: plan.ops[side],
            used: Default::default(),
            next_data: 0,
        });
        Ok(())
    }

    /// Gives a slot its first content.
    fn fill(&self, end: usize, space: usize, slot: usize) {
        let region = &self.model.spaces[space].region;
        let start = slot as u64 * SLOT;
        let name = mix(self.plan.seed, end as u64);
        // By hand little is exchanged, very often.
        let most = if self.flying.is_some() { 4096 } else { u64::MAX };
        region.put(start + READABLE.start, &pattern(name, (READABLE.end - READABLE.start).min(most) as usize));
        region.put(start + TARGET.start, &pattern(!name, (TARGET.end - TARGET.start).min(most) as usize));
    }

    /// RESET to RTS.
    fn bring_up(&mut self, end: usize, peer: usize, side: usize) -> Check {
        use AttrMask as M;
        let plan = self.plan.pairs[self.model.ends[end].pair.0];
        let (this, node) = (self.plan.nodes[plan.nodes[side]], &self.nodes[plan.nodes[side]]);
        let mut attr = QpAttr {
            access: ALL,
            port: 1,
            qkey: QKEY,
            av: AddressVector { dgid: self.plan.nodes[plan.nodes[1 - side]].gid, ..vector() },
            dest_qpn: self.qpn(peer),
            path_mtu: plan.mtu,
            timeout: plan.timeout,
            retry_cnt: plan.retry,
            rnr_retry: plan.rnr_retry,
            rq_psn: plan.psns[1 - side],
            sq_psn: plan.psns[side],
            max_rd_atomic: plan.rd_atomic,
            max_dest_rd_atomic: plan.rd_atomic,
            min_rnr_timer: plan.rnr_timer,
            ..QpAttr::default()
        };
        let steps = match plan.qp_type {
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
        let engine = &mut self.hosts[this.host].engines[this.shard as usize];
        let mut device = engine.device(node.context).or_else(refused)?;
        for (state, mask) in [QpState::Init, QpState::Rtr, QpState::Rts].into_iter().zip(steps) {
            attr.state = state;
            let handle = self.model.ends[end].handle;
            device.modify_qp(self.now, handle, &attr, mask | M::STATE).or_else(refused)?;
        }
        Ok(())
    }

    pub(super) fn qpn(&self, end: usize) -> Qpn {
        self.model.ends[end].qpn
    }

    /// Index of the program of an end.
    pub(super) fn node_of(&self, end: usize) -> usize {
        let (pair, side) = self.model.ends[end].pair;
        self.plan.pairs[pair].nodes[side]
    }

    /// Destroys a queue pair and what belongs to it.
    pub(super) fn destroy(&mut self, end: usize) -> Check {
        if !self.model.ends[end].alive {
            return Ok(());
        }
        self.settle_posted(end)?;
        self.retire(end);
        let at = self.plan.nodes[self.node_of(end)];
        let context = self.nodes[self.node_of(end)].context;
        let (handle, ah) = (self.model.ends[end].handle, self.model.ends[end].ah);
        let windows: Vec<u32> = self.model.ends[end].windows.iter().map(|window| window.handle).collect();
        let engine = &mut self.hosts[at.host].engines[at.shard as usize];
        let mut device = engine.device(context).or_else(refused)?;
        device.destroy_qp(handle).or_else(refused)?;
        device.context_mut().destroy_ah(ah).or_else(refused)?;
        for window in windows {
            device.context_mut().dealloc_mw(window).or_else(refused)?;
        }
        self.check_effects(at.host)?;
        self.model.close(end);
        self.note([3, end as u64, 0], || format!("end {end} is destroyed"));
        self.wake(at.host);
        Ok(())
    }

    /// Schedules that a pair is connected anew.
    pub(super) fn connect_later(&mut self, pair: usize, after: u64) {
        self.schedule(Time(self.now.0 + after), Happening::Connect(pair));
    }
}

/// The identifier of a receive request.
pub(super) fn receive_id(queue: usize, n: u64) -> u64 {
    RECEIVE | (queue as u64) << 24 | n
}

fn vector() -> AddressVector {
    // ECN-capable, as RoCEv2 traffic is.
    AddressVector { hop_limit: 64, traffic_class: 2, port: 1, is_global: true, ..AddressVector::default() }
}

fn refused<T>(error: rdmesh_nic::CommandError) -> Check<T> {
    violated("command", format!("refused: {error:?}"))
}

/// Entries of a completion queue: more than a program ever has outstanding.
const CQE: usize = 8192;
/// Bytes behind the registered range.
const GUARD: usize = 64;
