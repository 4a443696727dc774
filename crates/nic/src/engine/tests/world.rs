//! Test harness: engines and their hosts, and a clock that only the test advances.

pub(super) use super::platform::*;
use crate::command::{Capabilities, ContextId, CqInit, QpInit, SrqAttr, SrqInit};
use crate::engine::{Config, Engine, Event, Owners};
use crate::numbers::Numbers;
use crate::path::{AccessRules, NativeConfig, Network};
use crate::path::{Datagram, Origin, Route, Routes, Target, Transmits};
use crate::platform::Platform;
use crate::timer::Time;
use rdmesh_verbs::*;
use std::net::IpAddr;
use std::sync::Arc;

/// All engines of one host, or of several, and the time.
pub(super) struct World {
    /// Those of the first host first.
    pub(super) engines: Vec<Engine<Test>>,
    /// Engines of a host.
    shards: usize,
    /// Table of queue pair numbers of each host.
    numbers: Vec<Numbers>,
    pub(super) now: Time,
    pub(super) events: Vec<Event>,
    /// Routes to the addresses, if the engines are on two hosts.
    pub(super) routes: Option<Routes>,
    /// Those within the host, if they are on one.
    inner_routes: Routes,
    /// Whether addresses of the same host lead into the tunnel too.
    pub(super) all_through_tunnel: bool,
    /// None while they are sent.
    pub(super) transmits: Option<Transmits>,
    /// Whether a datagram is to be lost, asked for each with its destination.
    pub(super) lose: Lose,
    /// Datagrams that were sent.
    pub(super) datagrams: usize,
}

pub(super) type Lose = Box<dyn FnMut(usize, &[u8]) -> bool>;

/// One program: a context with one PD, one CQ, one QP and one region of which every right is given.
pub(super) struct Node {
    pub(super) engine: usize,
    pub(super) context: ContextId,
    pub(super) pd: u32,
    pub(super) qp: u32,
    pub(super) qpn: Qpn,
    pub(super) gid: Gid,
    pub(super) qp_type: QpType,
    pub(super) sends: Sends,
    pub(super) recvs: Recvs,
    pub(super) cq: Completions,
    pub(super) memory: Bytes,
    pub(super) mr: u32,
    pub(super) key: Key,
}

pub(super) const BASE: u64 = 0x10_0000;
pub(super) const LEN: usize = 512 * 1024;
pub(super) const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);
pub(super) const QKEY: Qkey = Qkey(0x1111);

#[derive(Clone, Copy)]
pub(super) struct Setup {
    pub(super) qp_type: QpType,
    pub(super) vni: u32,
    pub(super) cqe: usize,
    pub(super) srq: bool,
    pub(super) signal_all: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self { qp_type: QpType::Rc, vni: 1, cqe: 1000, srq: false, signal_all: true }
    }
}

impl<P: Platform> Engine<P> {
    /// Takes a datagram from the network.
    pub(super) fn handle_datagram(&mut self, now: Time, datagram: &Datagram<'_>) {
        if let Some(opened) = self.open_datagram(datagram) {
            self.handle_opened(now, &opened);
        }
    }
}

impl World {
    pub(super) fn new(shards: u32) -> Self {
        Self::of(1, shards, None, NativeConfig::default())
    }

    /// Two hosts, between which there is the tunnel.
    pub(super) fn two_hosts() -> Self {
        Self::hosts(2, 1)
    }

    /// Hosts with `shards` engines each, between which there is the tunnel.
    pub(super) fn hosts(hosts: usize, shards: u32) -> Self {
        Self::of(hosts, shards, Some(Routes::default()), NativeConfig::default())
    }

    /// One host with one engine, with two, and two hosts.
    pub(super) fn kinds() -> [Self; 3] {
        [Self::new(1), Self::new(2), Self::two_hosts()]
    }

    pub(super) fn of(hosts: usize, shards: u32, routes: Option<Routes>, native: NativeConfig) -> Self {
        let limits = DeviceLimits::default();
        let numbers: Vec<_> = (0..hosts).map(|_| Numbers::new(shards)).collect();
        let engines = numbers.iter().zip(7..).flat_map(|(numbers, seed)| {
            (0..shards).map(move |shard| Engine::new(Config { shard, seed, limits, native }, numbers.clone()))
        });
        Self {
            engines: engines.collect(),
            shards: shards as usize,
            numbers: numbers.clone(),
            now: Time(1000),
            events: Vec::new(),
            routes,
            inner_routes: Routes::default(),
            all_through_tunnel: false,
            transmits: Some(Transmits::new()),
            lose: Box::new(|_, _| false),
            datagrams: 0,
        }
    }

    /// The address of host `i`.
    pub(super) fn host(i: usize) -> IpAddr {
        [192, 168, 0, 1 + i as u8].into()
    }

    fn add_route(&mut self, vni: u32, gid: Gid, engine: usize) {
        let Some(routes) = &mut self.routes else { return };
        routes.insert(Vni(vni), gid, Route::Host(Self::host(engine / self.shards)));
        self.set_routes();
    }

    /// Lets these rules hold on all hosts.
    pub(super) fn set_access(&mut self, access: AccessRules) {
        self.change_routes(|routes| routes.set_access(Arc::new(access)));
    }

    /// Changes the routes of all hosts, or of the one.
    pub(super) fn change_routes(&mut self, f: impl FnOnce(&mut Routes)) {
        let Some(routes) = &mut self.routes else {
            f(&mut self.inner_routes);
            let routes = Arc::new(self.inner_routes.clone());
            self.engines.iter_mut().for_each(|engine| engine.set_routes(Arc::clone(&routes)));
            return;
        };
        f(routes);
        self.set_routes();
    }

    fn set_routes(&mut self) {
        let Some(routes) = &self.routes else { return };
        for (i, e) in self.engines.iter_mut().enumerate() {
            let mut own = routes.clone();
            if !self.all_through_tunnel {
                own.localize(Self::host(i / self.shards));
            }
            e.set_routes(Arc::new(own));
        }
    }

    /// A program on `engine` with the address 10.0.0.`host`.
    pub(super) fn node(&mut self, engine: usize, host: u8, setup: Setup) -> Node {
        let gid = Gid::from_ip([10, 0, 0, host].into());
        self.add_route(setup.vni, gid, engine);
        let e = &mut self.engines[engine];
        let context = e.open(Network {
            vni: Vni(setup.vni),
            endpoint: u32::from(host),
            gids: vec![gid],
            external: None,
            mtu: Mtu::B4096,
        });
        let pd = e.device(context).unwrap().context_mut().alloc_pd().unwrap();
        let memory = Bytes::new(LEN);
        let (mr, key) =
            e.device(context).unwrap().context_mut().reg_mr(pd, BASE, LEN as u64, ALL, memory.clone()).unwrap();
        let queue = Completions { entries: Arc::default(), room: setup.cqe, armed: Arc::default() };
        let cq = e
            .device(context)
            .unwrap()
            .context_mut()
            .create_cq(CqInit { queue: queue.clone(), cqe: setup.cqe as u32, ignores_overrun: false })
            .unwrap();
        let (sends, recvs) = (Sends::default(), Recvs::default());
        let srq = setup.srq.then(|| {
            let attr = SrqAttr { max_wr: 100, max_sge: 4, limit: 0 };
            e.device(context).unwrap().context_mut().create_srq(SrqInit { pd, queue: recvs.clone(), attr }).unwrap()
        });
        let init = QpInit {
            qp_type: setup.qp_type,
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq,
            caps: Capabilities { max_send_wr: 100, max_recv_wr: 100, max_send_sge: 8, max_recv_sge: 8, max_inline: 64 },
            signal_all: setup.signal_all,
            send: sends.clone(),
            recv: Some(recvs.clone()),
        };
        let (qp, qpn) = e.device(context).unwrap().create_qp(init).unwrap();
        let qp_type = setup.qp_type;
        Node { engine, context, pd, qp, qpn, gid, qp_type, sends, recvs, cq: queue, memory, mr, key }
    }

    /// Brings `a` to RTS, connected to `b`.
    pub(super) fn connect(&mut self, a: &Node, b: &Node) {
        self.connect_with(a, b, |_| {});
    }

    pub(super) fn connect_with(&mut self, a: &Node, b: &Node, adjust: impl FnOnce(&mut QpAttr)) {
        use AttrMask as M;
        let mut attr = QpAttr {
            access: ALL,
            port: 1,
            qkey: QKEY,
            av: AddressVector { dgid: b.gid, ..AddressVector::default() },
            dest_qpn: b.qpn,
            timeout: 14,
            retry_cnt: 2,
            rnr_retry: 3,
            rq_psn: Psn::new(0xff_fffe),
            sq_psn: Psn::new(0xff_fffe),
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 12,
            ..QpAttr::default()
        };
        adjust(&mut attr);
        let steps = match a.qp_type {
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
            self.engines[a.engine]
                .device(a.context)
                .unwrap()
                .modify_qp(self.now, a.qp, &attr, mask | M::STATE)
                .unwrap();
        }
    }

    pub(super) fn pair(&mut self, setup: Setup) -> (Node, Node) {
        self.pair_at(1, setup)
    }

    /// A connected pair with the addresses 10.0.0.`host` and the next.
    pub(super) fn pair_at(&mut self, host: u8, setup: Setup) -> (Node, Node) {
        let last = self.engines.len() - 1;
        let (a, b) = (self.node(0, host, setup), self.node(last, host + 1, setup));
        self.connect(&a, &b);
        self.connect(&b, &a);
        (a, b)
    }

    pub(super) fn modify_state(&mut self, node: &Node, state: QpState) {
        let attr = QpAttr { state, sqd_async_notify: true, ..QpAttr::default() };
        let notify = if state == QpState::Sqd { AttrMask::EN_SQD_ASYNC_NOTIFY } else { AttrMask::empty() };
        let mask = AttrMask::STATE | notify;
        self.engines[node.engine].device(node.context).unwrap().modify_qp(self.now, node.qp, &attr, mask).unwrap();
    }

    pub(super) fn state(&mut self, node: &Node) -> QpState {
        self.engines[node.engine].device(node.context).unwrap().query_qp(node.qp).unwrap().state()
    }

    /// Posts without telling the engine.
    pub(super) fn post(&mut self, node: &Node, wr: SendWr) {
        node.sends.posted.lock().unwrap().push_back(wr);
        self.engines[node.engine].doorbell(node.context, node.qp);
    }

    /// Runs until nothing happens any more at the present time.
    pub(super) fn settle(&mut self) {
        while self.step() {}
    }

    /// Lets every engine poll once. Returns whether anything happened.
    pub(super) fn step(&mut self) -> bool {
        let mut worked = false;
        for i in 0..self.engines.len() {
            worked |= self.engines[i].poll(self.now);
            worked |= self.pass_packets_of(i);
            worked |= self.send_datagrams(i);
            while let Some(event) = self.engines[i].poll_event() {
                self.events.push(event);
            }
        }
        worked
    }

    /// Gives each engine the packets that others have for it.
    pub(super) fn pass_packets(&mut self) {
        (0..self.engines.len()).for_each(|i| {
            self.pass_packets_of(i);
        });
    }

    fn pass_packets_of(&mut self, i: usize) -> bool {
        let mut worked = false;
        while let Some((shard, packet)) = self.engines[i].poll_packet() {
            self.engines[i / self.shards * self.shards + shard as usize].handle_packet(packet);
            worked = true;
        }
        worked
    }

    fn send_datagrams(&mut self, from: usize) -> bool {
        let mut transmits = self.transmits.take().expect("no other engine sends");
        transmits.clear();
        let worked = self.engines[from].poll_transmit(self.now, &mut transmits);
        for train in transmits.trains() {
            let Target::Host(host) = train.target else { panic!("there are no external peers") };
            let to = (0..).find(|i| Self::host(*i) == host).unwrap();
            for bytes in transmits.bytes(train).chunks(train.segment) {
                self.datagrams += 1;
                if !(self.lose)(to, bytes) {
                    self.arrive(to, from, bytes);
                }
            }
        }
        self.transmits = Some(transmits);
        worked
    }

    /// Whichever engines of host `to` have to receive a datagram from engine `from`; any is one that seems to be chosen
    /// by chance.
    fn arrive(&mut self, to: usize, from: usize, bytes: &[u8]) {
        let (first, shards) = (to * self.shards, self.shards);
        let origin = Origin::Host(Self::host(from / shards));
        let datagram = Datagram { origin, traffic_class: 0, received: None, bytes };
        let any = first + self.datagrams % shards;
        let Some(opened) = self.engines[any].open_datagram(&datagram) else { return };
        let owners = match Owners::of(&self.numbers[to], &opened) {
            Owners::One(shard) => first + shard as usize..first + shard as usize + 1,
            Owners::Any => any..any + 1,
            Owners::All => first..first + shards,
        };
        // As a router hands a packet to another worker: apart, with a copy of its bytes.
        let (form, udp) = opened.apart();
        let copy = udp.to_vec();
        self.engines[owners].iter_mut().for_each(|engine| engine.handle_opened(self.now, &form.with(&copy).unwrap()));
    }

    /// Engine `to` receives a datagram as if it came from the host of engine `from`.
    pub(super) fn receive(&mut self, to: usize, from: usize, bytes: &[u8]) {
        let origin = Origin::Host(Self::host(from / self.shards));
        let datagram = Datagram { origin, traffic_class: 0, received: None, bytes };
        self.engines[to].handle_datagram(self.now, &datagram);
    }

    /// Settles, then lets time pass to the next deadline, again and again, until `until`.
    pub(super) fn run_until(&mut self, until: Time) {
        loop {
            self.settle();
            match self.engines.iter().filter_map(Engine::poll_timeout).min().filter(|at| *at <= until) {
                Some(at) => self.now = at.max(Time(self.now.0 + 1)),
                None => break,
            }
        }
        self.now = until;
        self.settle();
    }
}

impl Node {
    pub(super) fn sge(&self, at: u64, length: u32) -> Sge {
        Sge { addr: BASE + at, length, lkey: self.key }
    }

    pub(super) fn post_recv(&self, wr_id: u64, sges: &[Sge]) {
        let wr = RecvWr { wr_id, sges: sges.iter().copied().collect() };
        self.recvs.0.lock().unwrap().push_back(wr);
    }

    pub(super) fn poll(&self) -> Option<Completion> {
        self.cq.entries.lock().unwrap().pop_front()
    }

    /// Polls one completion and tells what matters most about it.
    pub(super) fn done(&self) -> Option<(u64, WcStatus)> {
        self.poll().map(|wc| (wc.wr_id, wc.status))
    }
}

/// A send work request.
pub(super) fn wr(wr_id: u64, op: SendOp, sges: &[Sge]) -> SendWr {
    SendWr { wr_id, flags: SendFlags::SIGNALED, op, sges: sges.iter().copied().collect(), inline_len: 0 }
}
