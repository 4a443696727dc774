//! Engines of one host, or of two, with a chain's objects on the first and its client on the last.

use rdmesh_chain::Installed;
use rdmesh_chain::program::{Chain, Content};
use rdmesh_nic::{
    Capabilities, ChainEntry, Config, ContextId, CqInit, Datagram, Device, Engine, INLINE_COPIES, Image, Manage,
    ManageSend, Network, Numbers, Origin, QpInit, RingInit, Route, Routes, Target, Time, Transmits,
};
use rdmesh_sim::platform::{Completions, Journal, Recvs, Region, Sends, Sim};
use rdmesh_verbs::*;
use std::net::IpAddr;
use std::sync::Arc;

pub const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// Distance of the chain's client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Distance {
    OneHost,
    TwoHosts,
    /// And the network loses every so-manieth datagram.
    Lossy(usize),
}

/// The hosts' engines, and the time.
pub struct World {
    pub engines: Vec<Engine<Sim>>,
    distance: Distance,
    now: Time,
    transmits: Transmits,
    sent: usize,
}

/// A program with an open device.
#[derive(Clone)]
pub struct Program {
    pub engine: usize,
    pub context: ContextId,
    pub gid: Gid,
    pub pd: u32,
}

/// A queue pair and its ordinary queues.
#[derive(Clone)]
pub struct QueuePair {
    pub handle: u32,
    pub qpn: Qpn,
    pub sends: Sends,
    pub recvs: Recvs,
}

impl World {
    pub fn new(distance: Distance) -> Self {
        let hosts = if distance == Distance::OneHost { 1 } else { 2 };
        let config =
            Config { shard: 0, seed: 7, limits: DeviceLimits::default(), native: rdmesh_nic::NativeConfig::default() };
        let mut engines: Vec<_> = (0..hosts).map(|_| Engine::new(config, Numbers::new(1))).collect();
        for (i, engine) in engines.iter_mut().enumerate() {
            let mut routes = Routes::default();
            let other = 1 - i;
            if hosts == 2 {
                routes.insert(Vni(1), gid(other), Route::Host(host(other)));
            }
            engine.set_routes(Arc::new(routes));
        }
        Self { engines, distance, now: Time(1000), transmits: Transmits::new(), sent: 0 }
    }

    /// Opens a device: the first is the server's, the second the client's.
    pub fn open(&mut self, number: usize) -> Program {
        let engine = if self.distance == Distance::OneHost { 0 } else { number };
        let network =
            Network { vni: Vni(1), endpoint: number as u32, gids: vec![gid(number)], external: None, mtu: Mtu::B4096 };
        let context = self.engines[engine].open(network);
        let pd = self.engines[engine].device(context).unwrap().context_mut().alloc_pd().unwrap();
        Program { engine, context, gid: gid(number), pd }
    }

    pub fn device(&mut self, program: &Program) -> Device<'_, Sim> {
        self.engines[program.engine].device(program.context).unwrap()
    }

    pub fn cq(&mut self, program: &Program, room: usize) -> (u32, Completions) {
        let queue = Completions::new(0, room, Journal::default());
        let init = CqInit { queue: queue.clone(), cqe: room as u32, ignores_overrun: true };
        (self.device(program).context_mut().create_cq(init).unwrap(), queue)
    }

    pub fn qp(&mut self, program: &Program, send_cq: u32, recv_cq: u32) -> QueuePair {
        let (sends, recvs) = (Sends::new(), Recvs::new(0, Journal::default()));
        let caps =
            Capabilities { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 32, max_recv_sge: 32, max_inline: 128 };
        let init = QpInit {
            qp_type: QpType::Rc,
            pd: program.pd,
            send_cq,
            recv_cq,
            srq: None,
            caps,
            signal_all: false,
            send: sends.clone(),
            recv: Some(recvs.clone()),
        };
        let (handle, qpn) = self.device(program).create_qp(init).unwrap();
        QueuePair { handle, qpn, sends, recvs }
    }

    /// Brings `qp` to RTS, connected to `peer`.
    pub fn connect(&mut self, program: &Program, qp: u32, (peer, peer_qpn): (&Program, Qpn)) {
        use AttrMask as M;
        let mut attr = QpAttr {
            access: ALL,
            port: 1,
            av: AddressVector { dgid: peer.gid, ..AddressVector::default() },
            dest_qpn: peer_qpn,
            path_mtu: Mtu::B1024,
            timeout: 10,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            ..QpAttr::default()
        };
        let steps = [
            M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS,
            M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER,
            M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC,
        ];
        let now = self.now;
        for (state, mask) in [QpState::Init, QpState::Rtr, QpState::Rts].into_iter().zip(steps) {
            attr.state = state;
            self.device(program).modify_qp(now, qp, &attr, mask | M::STATE).unwrap();
        }
    }

    /// Posts to an ordinary queue.
    pub fn post(&mut self, program: &Program, qp: &QueuePair, wr: SendWr) {
        qp.sends.post(wr, &[]);
        self.engines[program.engine].doorbell(program.context, qp.handle);
    }

    /// Runs until nothing happens any more for a while.
    pub fn settle(&mut self) {
        let end = self.now.after(core::time::Duration::from_millis(300));
        for _ in 0..1_000_000 {
            if self.step() {
                continue;
            }
            match self.engines.iter().filter_map(Engine::poll_timeout).min().filter(|at| *at <= end) {
                Some(at) => self.now = at.max(Time(self.now.0 + 1)),
                None => return,
            }
        }
        panic!("endless");
    }

    /// Lets each engine poll once. Returns whether anything happened.
    pub fn step(&mut self) -> bool {
        let mut worked = false;
        for i in 0..self.engines.len() {
            worked |= self.engines[i].poll(self.now);
            worked |= self.transmit(i);
            while self.engines[i].poll_event().is_some() {}
        }
        worked
    }

    fn transmit(&mut self, from: usize) -> bool {
        let mut transmits = std::mem::take(&mut self.transmits);
        transmits.clear();
        let worked = self.engines[from].poll_transmit(self.now, &mut transmits);
        for train in transmits.trains() {
            let Target::Host(_) = train.target else { panic!("there are no external peers") };
            for bytes in transmits.bytes(train).chunks(train.segment) {
                self.sent += 1;
                if matches!(self.distance, Distance::Lossy(every) if self.sent.is_multiple_of(every)) {
                    continue;
                }
                let datagram = Datagram { origin: Origin::Host(host(from)), traffic_class: 0, received: None, bytes };
                let engine = &mut self.engines[1 - from];
                let opened = engine.open_datagram(&datagram).unwrap();
                engine.handle_opened(self.now, &opened);
            }
        }
        self.transmits = transmits;
        worked
    }
}

fn gid(number: usize) -> Gid {
    Gid::from_ip([10, 0, 0, 1 + number as u8].into())
}

fn host(number: usize) -> IpAddr {
    [192, 168, 0, 1 + number as u8].into()
}

/// A chain in an engine, and its client.
pub struct Engined {
    pub world: World,
    pub server: Program,
    pub client: Program,
    pub installed: Installed,
    pub chain: Chain,
    pub regions: Vec<Region>,
    pub rings: Vec<Region>,
    pub buffer: Region,
    pub buffer_key: u32,
    pub peers: Vec<QueuePair>,
    inbox: Completions,
    requests: (Region, Key),
}

/// Bytes of a request of the client's, at most; replies come behind it.
const REQUEST: usize = 256;
/// Bytes of a reply.
const REPLY: usize = 64 * 1024;

impl Engined {
    /// Installs the chain; with `is_sealed`, as sealed images.
    pub fn new(chain: &Chain, distance: Distance, buffer: usize, is_sealed: bool) -> Self {
        let mut world = World::new(distance);
        let (server, client) = (world.open(0), world.open(1));
        let (inbox_cq, inbox) = world.cq(&client, 1 << 16);
        let memory = |len| Region::new(0, len, Journal::default());
        let (region, requests) = (memory(buffer), memory(REQUEST + REPLY));
        let device = &mut world.device(&client);
        let (_, key) = device.context_mut().reg_mr(client.pd, 0x4000, buffer as u64, ALL, region.clone()).unwrap();
        let (_, own) =
            device.context_mut().reg_mr(client.pd, 0, (REQUEST + REPLY) as u64, ALL, requests.clone()).unwrap();
        let cqs: Vec<u32> = chain.cqs.iter().map(|_| world.cq(&server, 1).0).collect();
        let installed = Installed { cqs, ..Installed::default() };
        let (regions, rings, peers) = (vec![], vec![], vec![]);
        let (buffer, buffer_key, requests) = (region, key.0, (requests, own));
        let chain = chain.clone();
        let mut engined = Self {
            world,
            server,
            client,
            installed,
            chain,
            regions,
            rings,
            buffer,
            buffer_key,
            peers,
            inbox,
            requests,
        };
        engined.install(inbox_cq, is_sealed);
        engined
    }

    fn install(&mut self, inbox: u32, is_sealed: bool) {
        self.register_regions();
        let receives = self.chain.receives.clone();
        let mut qps = Vec::new();
        for (number, queue) in self.chain.queues.clone().iter().enumerate() {
            // The client's requests come to the queue pair that answers.
            let receive = receives.first().filter(|_| queue.to_client && self.installed.receives.is_empty());
            let cq = self.installed.cqs[queue.cq];
            let recv_cq = receive.map_or(cq, |receive| self.installed.cqs[receive.cq]);
            let qp = self.world.qp(&self.server, cq, recv_cq);
            let stride = self.chain.stride(number);
            let ring = Region::new(0, stride * queue.slots.len(), Journal::default());
            self.rings.push(ring);
            self.installed.queues.push((qp.handle, 0));
            self.installed.receives.extend(receive.map(|_| qp.handle));
            qps.push((qp, queue.to_client));
        }
        // A chain that never answers still has requests.
        if let Some(receive) = receives.first().filter(|_| self.installed.receives.is_empty()) {
            let cq = self.installed.cqs[receive.cq];
            let qp = self.world.qp(&self.server, cq, cq);
            self.installed.receives.push(qp.handle);
            qps.push((qp, true));
        }
        // Keys of rings are known when the queues are managed; what lies in them, when all keys are known.
        let room = receives.first().map_or(0, |receive| receive.stride() * receive.slots.len());
        let receive_ring = Region::new(0, room, Journal::default());
        self.manage(&qps, &receive_ring);
        self.fill(&receive_ring);
        if is_sealed {
            self.seal();
        }
        self.connect(&qps, inbox);
    }

    fn register_regions(&mut self) {
        for region in self.chain.regions.clone() {
            let access = if region.content.is_writable() { ALL } else { Access::REMOTE_READ };
            let len = region.content.length();
            let memory = Region::new(0, len as usize, Journal::default());
            if let Content::Bytes(bytes) = &region.content {
                memory.put(0, bytes);
            }
            let pd = self.server.pd;
            let (_, key) =
                self.world.device(&self.server).context_mut().reg_mr(pd, 0, len, access, memory.clone()).unwrap();
            self.installed.regions.push(key.0);
            self.regions.push(memory);
        }
    }

    fn manage(&mut self, qps: &[(QueuePair, bool)], receive_ring: &Region) {
        let receives = self.chain.receives.first();
        let (stride, slots) = receives.map_or((0, 0), |receive| (receive.stride() as u32, receive.slots.len() as u32));
        for (number, (qp, _)) in qps.iter().enumerate() {
            let copies = Region::new(0, INLINE_COPIES as usize * 128, Journal::default());
            let receive = self.installed.receives.contains(&qp.handle).then(|| RingInit {
                memory: receive_ring.clone(),
                stride,
                slots,
                cycle: slots,
            });
            let Some(queue) = self.chain.queues.get(number).filter(|queue| !queue.slots.is_empty()) else {
                let Some(receive) = receive else { continue };
                let init = Manage { group: 1, send: None, receive: Some(receive) };
                self.world.device(&self.server).manage_qp(qp.handle, init).unwrap();
                continue;
            };
            let (memory, slots) = (self.rings[number].clone(), queue.slots.len() as u32);
            let stride = self.chain.stride(number) as u32;
            let ring = RingInit { memory, stride, slots, cycle: slots };
            let init = Manage { group: 1, send: Some(ManageSend { ring, copies }), receive };
            let device = &mut self.world.device(&self.server);
            device.manage_qp(qp.handle, init).unwrap();
            let region = device.register_send_ring(qp.handle, None, ALL).unwrap();
            assert_eq!((region.stride, region.slots), (stride, slots));
            self.installed.queues[number].1 = region.key.0;
        }
    }

    fn fill(&mut self, receive_ring: &Region) {
        let (chain, installed) = (&self.chain, &self.installed);
        for (number, ring) in self.rings.iter().enumerate() {
            ring.put(0, &chain.ring(number, installed));
        }
        for (number, region) in chain.regions.iter().enumerate() {
            if let Content::Pristine(_) = &region.content {
                self.regions[number].put(0, &chain.constant(number, installed));
            }
        }
        for (number, receive) in chain.receives.iter().enumerate() {
            receive_ring.put(0, &chain.receive_ring(number, receive.stride(), installed));
        }
    }

    fn connect(&mut self, qps: &[(QueuePair, bool)], inbox: u32) {
        let (server, client) = (self.server.clone(), self.client.clone());
        for (qp, to_client) in qps {
            if !to_client {
                self.world.connect(&server, qp.handle, (&server, qp.qpn));
                continue;
            }
            let peer = self.world.qp(&client, inbox, inbox);
            self.world.connect(&server, qp.handle, (&client, peer.qpn));
            self.world.connect(&client, peer.handle, (&server, qp.qpn));
            for wr_id in 0..60 {
                peer.recvs.post(RecvWr { wr_id, ..self.receive() });
            }
            self.peers.push(peer);
        }
        let device = &mut self.world.device(&server);
        for (receive, qp) in self.chain.receives.iter().zip(&self.installed.receives) {
            device.enable_receives(*qp, receive.enabled).unwrap();
        }
        for (queue, (qp, _)) in self.chain.queues.iter().zip(&self.installed.queues) {
            if !queue.slots.is_empty() {
                device.enable(*qp, queue.enabled).unwrap();
            }
        }
    }

    fn seal(&mut self) {
        let server = self.server.clone();
        for (image, (qp, _)) in self.images().into_iter().zip(self.installed.queues.clone()) {
            self.world.device(&server).seal_sends(qp, image).unwrap();
        }
    }

    /// Images of all rings, with holes where a request or a message of the chain writes.
    pub fn images(&self) -> Vec<Image> {
        let image = |number| {
            let slots = self.chain.sealed(number, &self.installed);
            let mut image = Image::new(self.chain.stride(number), slots.len()).unwrap();
            slots.iter().for_each(|slot| assert!(image.push(&slot.bytes, &slot.holes, slot.allowed)));
            image
        };
        (0..self.rings.len()).map(image).collect()
    }

    /// The client sends a request. Returns the replies: immediate data, and length.
    pub fn request(&mut self, arguments: &[u8]) -> Vec<(Option<u32>, u32)> {
        self.requests.0.put(0, arguments);
        let sge = Sge { addr: 0, length: arguments.len() as u32, lkey: self.requests.1 };
        let op = SendOp::Send { imm: None };
        let wr = SendWr { wr_id: 0, flags: SendFlags::empty(), op, sges: [sge].into_iter().collect(), inline_len: 0 };
        let (client, peer) = (self.client.clone(), self.peers[0].clone());
        self.world.post(&client, &peer, wr);
        self.world.settle();
        self.replies()
    }

    /// Replies that the client has received.
    pub fn replies(&mut self) -> Vec<(Option<u32>, u32)> {
        let mut replies = Vec::new();
        while let Some(completion) = self.inbox.poll() {
            assert_eq!(completion.status, WcStatus::Success);
            let imm = completion.flags.contains(WcFlags::WITH_IMM).then_some(completion.imm);
            replies.push((imm, completion.byte_len));
        }
        for peer in &self.peers {
            replies.iter().for_each(|_| peer.recvs.post(self.receive()));
        }
        replies
    }

    /// A receive request for a reply.
    fn receive(&self) -> RecvWr {
        let sge = Sge { addr: REQUEST as u64, length: REPLY as u32, lkey: self.requests.1 };
        RecvWr { wr_id: 0, sges: [sge].into_iter().collect() }
    }

    /// The chain's group.
    pub fn entry(&mut self) -> ChainEntry {
        self.world.device(&self.server.clone()).chains().list().remove(0)
    }

    /// Successful completions of each completion queue.
    pub fn produced(&mut self) -> Vec<u64> {
        let cqs = self.world.device(&self.server.clone()).context().list_cqs(0, 100);
        self.installed.cqs.iter().map(|cq| cqs.iter().find(|entry| entry.handle == *cq).unwrap().produced).collect()
    }

    /// Puts bytes into a region.
    pub fn put(&mut self, region: usize, at: usize, bytes: &[u8]) {
        self.regions[region].put(at as u64, bytes);
    }

    /// The bytes of a region.
    pub fn bytes(&self, region: usize) -> Vec<u8> {
        self.regions[region].get(0, self.chain.regions[region].content.length() as usize)
    }
}
