//! Rings with any content: nothing panics, and nothing outside the keys is touched.

use super::super::world::*;
use super::world::*;
use crate::timer::Time;
use proptest::prelude::*;
use rdmesh_verbs::chain::{Args, ChainFlags, ChainOp, Control, Request, offset};
use rdmesh_verbs::*;

/// Small numbers, the ends of ranges, and anything.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..64_u64,
        3 => (0..16_u64).prop_map(|n| BASE + 8 * n),
        1 => (0..64_u64).prop_map(|n| BASE + LEN as u64 - n),
        1 => Just(u64::MAX),
        1 => any::<u64>(),
    ]
}

#[derive(Clone, Debug)]
struct Slot {
    op: usize,
    flags: u32,
    numbers: [u64; 6],
    /// Choice of a key for the remote side and each element.
    keys: [usize; 4],
    lengths: [u32; 3],
    sges: u32,
    inline: u32,
    spoilt: Option<(usize, u8)>,
}

fn slot() -> impl Strategy<Value = Slot> {
    let lengths = prop::array::uniform3(prop_oneof![5 => 0..24_u32, 1 => Just(8), 1 => any::<u32>()]);
    let spoilt = prop::option::weighted(0.2, (0..STRIDE, any::<u8>()));
    let flags = (0..16_u32, 0..4_u32).prop_map(|(low, high)| low | high << 26);
    let all = (0..ChainOp::ALL.len(), flags, prop::array::uniform6(number()), prop::array::uniform4(0..5_usize));
    (all, lengths, 0..4_u32, 0..60_u32, spoilt).prop_map(
        |((op, flags, numbers, keys), lengths, sges, inline, spoilt)| Slot {
            op,
            flags,
            numbers,
            keys,
            lengths,
            sges,
            inline,
            spoilt,
        },
    )
}

impl Slot {
    fn bytes(&self, keys: &[u32; 5]) -> [u8; STRIDE] {
        let [remote_addr, compare_add, swap, compare_mask, first, second] = self.numbers;
        let rkey = keys[self.keys[0]];
        let args = Args { remote_addr, rkey, compare_add, swap, compare_mask, swap_mask: first };
        let element = |i: usize| Sge {
            addr: [first, second, compare_add][i],
            length: self.lengths[i],
            lkey: Key(keys[self.keys[i + 1]]),
        };
        let request = Request {
            flags: ChainFlags::from_bits_truncate(self.flags),
            imm: u32::from(self.lengths[0].is_multiple_of(2)),
            args,
            sges: (0..self.sges as usize).map(element).collect(),
            ..Request::new(Control::new(ChainOp::ALL[self.op]))
        };
        let mut bytes = [0; STRIDE];
        request.encode(&mut bytes);
        if request.flags.contains(ChainFlags::INLINE) {
            bytes[offset::LENGTH..][..4].copy_from_slice(&self.inline.to_ne_bytes());
        }
        if let Some((at, byte)) = self.spoilt {
            bytes[at] = byte;
        }
        bytes
    }
}

fn run(two_hosts: bool, slots: &[Slot]) {
    let mut world = if two_hosts { World::two_hosts() } else { World::new(1) };
    let setup = Setup { signal_all: false, ..Setup::default() };
    let (a, b) = (world.node(0, 1, setup), world.node(world.engines.len() - 1, 2, setup));
    // A region that no key in the slots opens.
    let (hidden, pd) = (Bytes::new(4096), a.pd);
    world.device_of(&a).context_mut().reg_mr(pd, 0, 4096, Access::empty(), hidden.clone()).unwrap();
    let queues: Vec<Queue> = (0..2).map(|_| world.plain(&a, 1 << 12, true)).collect();
    for queue in &queues {
        world.manage(queue, GROUP, slots.len() as u32 / 2).unwrap();
    }
    let rings: Vec<u32> = queues.iter().map(|queue| world.ring_region(queue).key.0).collect();
    let keys = [a.key.0, rings[0], rings[1], queues[0].qp, queues[1].cq];
    for (i, slot) in slots.iter().enumerate() {
        queues[i % 2].ring.put(i / 2 * STRIDE, &slot.bytes(&keys));
    }
    for queue in &queues {
        queue.put_receive(&[a.sge(0, 8)]);
    }
    world.connect(&queues[0].node, &b);
    world.connect(&b, &queues[0].node);
    world.connect(&queues[1].node, &queues[1].node);
    b.post_recv(1, &[b.sge(0, 64)]);
    for queue in &queues {
        let _ = world.device_of(&a).enable(queue.qp, 20);
        let _ = world.device_of(&a).enable_receives(queue.qp, 2);
    }
    for _ in 0..100 {
        world.step();
        world.now = Time(world.now.0 + 1_000_000);
    }
    assert!(hidden.get(0, 4096).iter().all(|byte| *byte == 0));
    for queue in &queues {
        world.device_of(&a).destroy_qp(queue.qp).unwrap();
    }
    world.step();
    assert!(world.device_of(&a).chains().list().is_empty());
    assert!(
        queues.iter().all(|queue| world.device_of(&a).context_mut().destroy_cq(queue.cq).is_ok()),
        "nothing is left that waits"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_ring_is_survived(two_hosts: bool, slots in prop::collection::vec(slot(), 2..12)) {
        run(two_hosts, &slots);
    }
}
