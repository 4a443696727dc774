//! Chains of a hostile program: any requests in the rings, any images, in any order with enables, messages, commands, polls and
//! time.

use rdmesh_nic::platform::{BadEntry, CompletionQueue, Fault, Memory, Overrun, Platform, RecvQueue, SendQueue};
use rdmesh_nic::policy::{Bucket, Policy, Rate};
use rdmesh_nic::{
    Capabilities, Config, ContextId, CqInit, Device, Engine, INLINE_COPIES, Image, Manage, ManageSend, Network,
    Numbers, QpInit, RingInit, Time,
};
use rdmesh_verbs::chain::{ChainFlags, ChainOp, Control, offset};
use rdmesh_verbs::*;
use std::sync::{Arc, Mutex};

/// Plain memory and empty ordinary queues.
struct Plain;

impl Platform for Plain {
    type Memory = Bytes;
    type SendQueue = Empty;
    type RecvQueue = Empty;
    type CompletionQueue = Empty;
}

#[derive(Clone)]
struct Bytes(Arc<Mutex<Vec<u8>>>);

impl Bytes {
    fn new(len: usize, byte: u8) -> Self {
        Self(Arc::new(Mutex::new(vec![byte; len])))
    }

    fn put(&self, at: usize, from: &[u8]) {
        let mut bytes = self.0.lock().unwrap();
        let end = bytes.len().min(at + from.len());
        if at < end {
            bytes[at..end].copy_from_slice(&from[..end - at]);
        }
    }

    fn word(&self, offset: u64, f: impl FnOnce(u64) -> u64) -> Result<u64, Fault> {
        let mut bytes = self.0.lock().unwrap();
        let place = bytes.get_mut(offset as usize..offset as usize + 8).ok_or(Fault::Gone)?;
        let old = u64::from_ne_bytes((&*place).try_into().unwrap());
        place.copy_from_slice(&f(old).to_ne_bytes());
        Ok(old)
    }
}

impl Memory for Bytes {
    fn copy(&self, offset: u64, to: &Self, to_offset: u64, len: usize) -> Result<(), Fault> {
        let mut bytes = vec![0; len];
        self.read(offset, &mut bytes)?;
        to.write(to_offset, &bytes)
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Fault> {
        let bytes = self.0.lock().unwrap();
        to.copy_from_slice(bytes.get(offset as usize..offset as usize + to.len()).ok_or(Fault::Gone)?);
        Ok(())
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Fault> {
        let mut bytes = self.0.lock().unwrap();
        bytes.get_mut(offset as usize..offset as usize + from.len()).ok_or(Fault::Gone)?.copy_from_slice(from);
        Ok(())
    }

    fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        self.word(offset, |old| if old == compare { swap } else { old })
    }

    fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, Fault> {
        self.word(offset, |old| old.wrapping_add(add))
    }

    fn write_atomic(&self, offset: u64, value: [u8; 8]) -> Result<(), Fault> {
        self.write(offset, &value)
    }
}

/// A queue without entries, and a completion queue that has room for none.
struct Empty;

impl SendQueue for Empty {
    type Memory = Bytes;

    fn is_ready(&self) -> bool {
        false
    }

    fn precedence(&self) -> Precedence {
        Precedence::default()
    }

    fn fetch(&mut self, _: QpType, _: &mut SendWr) -> Option<Result<(), BadEntry>> {
        None
    }

    fn inline_data(&self) -> (Bytes, u64) {
        (Bytes::new(0, 0), 0)
    }

    fn release(&mut self, _: u32) {}

    fn clear(&mut self) {}
}

impl RecvQueue for Empty {
    fn take(&mut self, _: &mut RecvWr) -> Option<Result<(), BadEntry>> {
        None
    }

    fn len(&self) -> u32 {
        0
    }

    fn move_into(&mut self, _: &mut Self) -> Result<(), Overrun> {
        Ok(())
    }

    fn clear(&mut self) {}
}

impl CompletionQueue for Empty {
    fn push(&mut self, _: &Completion) -> Result<(), Overrun> {
        Err(Overrun)
    }

    fn take_arm(&mut self, _: u32, _: bool) -> bool {
        false
    }

    fn len(&self) -> u32 {
        0
    }

    fn move_into(&mut self, _: &mut Self) -> Result<(), Overrun> {
        Ok(())
    }
}

const QUEUES: usize = 3;
const SLOTS: usize = 8;
const STRIDE: usize = 256;
const RECV_STRIDE: usize = 64;
const REGION: usize = 4096;
const BASE: u64 = 0x1000;
const RIGHTS: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// A program with managed queues that are connected to each other and to themselves, and memory that it may not reach.
pub(crate) struct Hostile {
    engine: Engine<Plain>,
    context: ContextId,
    qps: [u32; QUEUES],
    rings: [Bytes; QUEUES],
    receive_rings: [Bytes; QUEUES],
    keys: [u32; 8],
    hidden: Bytes,
    now: u64,
}

impl Hostile {
    /// Queues 0 and 1 lead to each other, queue 2 to itself. Which are sealed, and with which holes, `image` says.
    pub(crate) fn new(image: u8) -> Self {
        let config =
            Config { shard: 0, seed: 1, limits: DeviceLimits::default(), native: rdmesh_nic::NativeConfig::default() };
        let mut engine = Engine::new(config, Numbers::new(1));
        let gid = Gid::from_ip([10, 0, 0, 1].into());
        let network = Network { vni: Vni(1), endpoint: 1, gids: vec![gid], external: None, mtu: Mtu::B4096 };
        let context = engine.open(network);
        let mut device = engine.device(context).unwrap();
        let pd = device.context_mut().alloc_pd().unwrap();
        let (region, hidden) = (Bytes::new(REGION, 0), Bytes::new(REGION, 0x5a));
        let (_, key) = device.context_mut().reg_mr(pd, BASE, REGION as u64, RIGHTS, region).unwrap();
        // Other rights, and another domain.
        let (_, read_only) =
            device.context_mut().reg_mr(pd, BASE, REGION as u64, Access::empty(), hidden.clone()).unwrap();
        let other = device.context_mut().alloc_pd().unwrap();
        let (_, foreign) = device.context_mut().reg_mr(other, BASE, REGION as u64, RIGHTS, hidden.clone()).unwrap();
        let rings = [(); QUEUES].map(|()| Bytes::new(SLOTS * STRIDE, 0));
        let receive_rings = [(); QUEUES].map(|()| Bytes::new(SLOTS * RECV_STRIDE, 0));
        let cq = device.context_mut().create_cq(CqInit { queue: Empty, cqe: 1, ignores_overrun: true }).unwrap();
        let qps = [0, 1, 2].map(|n| queue_pair(&mut device, (pd, cq), (&rings[n], &receive_rings[n]), n as u32 / 2));
        let ring_keys = qps.map(|qp| device.register_send_ring(qp, None, RIGHTS).unwrap().key.0);
        for (n, qp) in qps.iter().enumerate().filter(|(n, _)| image >> n & 1 != 0) {
            device.seal_sends(*qp, self::image(image, n)).unwrap();
        }
        let numbers = qps.map(|qp| device.query_qp(qp).unwrap().qpn);
        for (qp, peer) in qps.into_iter().zip([numbers[1], numbers[0], numbers[2]]) {
            connect(&mut device, qp, gid, peer);
        }
        let keys = [key.0, read_only.0, foreign.0, ring_keys[0], ring_keys[1], ring_keys[2], cq, qps[1]];
        Self { engine, context, qps, rings, receive_rings, keys, hidden, now: 1 }
    }

    /// Takes `data` as the deeds of the program.
    pub(crate) fn run(&mut self, data: &[u8]) {
        for deed in data.chunks(8) {
            let Ok(&[kind, queue, slot, a, b, c, d, e]) = <&[u8; 8]>::try_from(deed) else { break };
            let (n, at) = (usize::from(queue) % QUEUES, usize::from(slot) % SLOTS * STRIDE);
            let ring = &self.rings[n];
            let number = self.number(a, [b, c, d]);
            match kind % 12 {
                0 | 1 => {
                    let op = ChainOp::ALL[usize::from(a) % ChainOp::ALL.len()];
                    let control = Control::with(op, if b & 1 == 0 { 0 } else { u64::from(c) });
                    let control = if b & 2 == 0 { control } else { control.quiet() };
                    ring.put(at + offset::CONTROL, &control.encode().to_le_bytes());
                    let flags = u32::from(d & 0xf) | if e & 1 == 0 { 0 } else { ChainFlags::LOCAL.bits() };
                    let flags = flags | if e & 2 == 0 { 0 } else { ChainFlags::SOFT.bits() };
                    ring.put(at + offset::FLAGS, &flags.to_ne_bytes());
                }
                2 => ring.put(at + [offset::REMOTE_ADDR, offset::COMPARE, offset::SWAP][usize::from(e) % 3], &number),
                3 => {
                    let key = self.keys[usize::from(a) % 8].to_ne_bytes();
                    ring.put(at + [offset::RKEY, offset::ATOMIC_RKEY][usize::from(b) % 2], &key);
                }
                4 => {
                    let first = at + offset::SGES + usize::from(e) % 3 * offset::SGE_LEN;
                    ring.put(first, &number);
                    ring.put(first + offset::SGE_LENGTH, &u32::from(e).to_ne_bytes());
                    ring.put(first + offset::SGE_KEY, &self.keys[usize::from(d) % 8].to_ne_bytes());
                    ring.put(at + offset::NUM_SGE, &u32::from(c % 4).to_ne_bytes());
                }
                5 => ring.put(at + usize::from(a), &[b, c, d, e]),
                6 => {
                    let ring = &self.receive_rings[n];
                    let at = usize::from(slot) % SLOTS * RECV_STRIDE;
                    ring.put(at + offset::RECV_NUM_SGE, &u32::from(c % 3).to_ne_bytes());
                    ring.put(at + offset::RECV_SGES, &number);
                    let key = self.keys[usize::from(d) % 8].to_ne_bytes();
                    ring.put(
                        at + offset::RECV_SGES + offset::SGE_LENGTH,
                        &[&u32::from(e).to_ne_bytes()[..], &key].concat(),
                    );
                }
                7 | 8 => {
                    let qp = self.qps[n];
                    let _ = self.device().enable(qp, u64::from(a) % 64);
                }
                9 => {
                    let qp = self.qps[n];
                    let _ = self.device().enable_receives(qp, u64::from(a) % 64);
                }
                10 => self.command(a, b),
                _ => self.poll(a),
            }
        }
        self.end();
    }

    /// A number that may mean something: an address, a count, a control word, or anything.
    fn number(&self, kind: u8, [b, c, d]: [u8; 3]) -> [u8; 8] {
        let number = match kind % 5 {
            0 => BASE + u64::from(b) * 8,
            1 => u64::from(b) * 8,
            2 => u64::from(b % 16),
            3 => Control::with(ChainOp::ALL[usize::from(b) % ChainOp::ALL.len()], u64::from(c)).encode(),
            _ => u64::from_ne_bytes([b, c, d, b, c, d, b, c]),
        };
        number.to_ne_bytes()
    }

    fn command(&mut self, a: u8, b: u8) {
        let group = u32::from(b) % 3;
        let mut device = self.device();
        match a % 5 {
            0 => drop(device.chains().stop(group)),
            1 => drop(device.chains().resume(group)),
            2 => {
                let rate = Rate { per_second: u64::from(b) * 1000, burst: u64::from(b) };
                device.set_policy(Policy { steps: Some(Arc::new(Bucket::new(rate))), ..Policy::default() });
            }
            3 => drop(device.chains().kill(group)),
            _ => device.chains().list().iter().for_each(|entry| assert!(entry.group < 2)),
        }
    }

    fn device(&mut self) -> Device<'_, Plain> {
        self.engine.device(self.context).unwrap()
    }

    fn poll(&mut self, a: u8) {
        self.now += 1 << (a % 32);
        // A chain may go on for ever: some polls of it.
        for _ in 0..4 {
            if !self.engine.poll(Time(self.now)) {
                break;
            }
        }
        while self.engine.poll_event().is_some() {}
    }

    /// Nothing outside was touched, and nothing is left when the queues have gone.
    fn end(&mut self) {
        self.poll(20);
        assert!(
            self.hidden.0.lock().unwrap().iter().all(|byte| *byte == 0x5a),
            "memory outside every right was written"
        );
        for qp in self.qps {
            self.device().destroy_qp(qp).unwrap();
        }
        self.poll(0);
        let mut device = self.device();
        assert!(device.chains().list().is_empty());
    }
}

/// An image of NOPs, or of LOCAL ADDs, with holes at places that `kind` says.
fn image(kind: u8, n: usize) -> Image {
    let mut image = Image::new(STRIDE, SLOTS).unwrap();
    for slot in 0..SLOTS {
        let at = [offset::CONTROL, offset::REMOTE_ADDR, offset::SGES, offset::FLAGS]
            [(usize::from(kind >> 3) + n + slot) % 4];
        let mut holes = [0; STRIDE / 8];
        (at..at + 8).for_each(|at| holes[at / 8] |= 1 << (at % 8));
        let some = [ChainOp::Nop, ChainOp::Write, ChainOp::FetchAdd].iter().fold(0, |set, op| set | 1 << op.code());
        let allowed = if kind >> 6 & 1 != 0 { some } else { u64::MAX };
        assert!(image.push(&[0; STRIDE], &holes, allowed));
    }
    image
}

fn queue_pair(
    device: &mut Device<'_, Plain>,
    (pd, cq): (u32, u32),
    (ring, receive_ring): (&Bytes, &Bytes),
    group: u32,
) -> u32 {
    let caps = Capabilities { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 3, max_recv_sge: 1, max_inline: 48 };
    let init = QpInit {
        qp_type: QpType::Rc,
        pd,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        caps,
        signal_all: false,
        send: Empty,
        recv: Some(Empty),
    };
    let (qp, _) = device.create_qp(init).unwrap();
    let slots = SLOTS as u32;
    let ring = RingInit { memory: ring.clone(), stride: STRIDE as u32, slots, cycle: slots };
    let copies = Bytes::new(INLINE_COPIES as usize * 48, 0);
    let receive = RingInit { memory: receive_ring.clone(), stride: RECV_STRIDE as u32, slots, cycle: slots };
    let send = Some(ManageSend { ring, copies });
    device.manage_qp(qp, Manage { group, send, receive: Some(receive) }).unwrap();
    qp
}

fn connect(device: &mut Device<'_, Plain>, qp: u32, gid: Gid, peer: Qpn) {
    use AttrMask as M;
    let mut attr = QpAttr {
        access: RIGHTS,
        port: 1,
        av: AddressVector { dgid: gid, ..AddressVector::default() },
        dest_qpn: peer,
        path_mtu: Mtu::B1024,
        timeout: 10,
        retry_cnt: 1,
        rnr_retry: 2,
        max_rd_atomic: 2,
        max_dest_rd_atomic: 2,
        min_rnr_timer: 1,
        ..QpAttr::default()
    };
    let steps = [
        M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS,
        M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER,
        M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC,
    ];
    for (state, mask) in [QpState::Init, QpState::Rtr, QpState::Rts].into_iter().zip(steps) {
        attr.state = state;
        device.modify_qp(Time(0), qp, &attr, mask | M::STATE).unwrap();
    }
}
