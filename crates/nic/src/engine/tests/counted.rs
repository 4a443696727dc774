//! Messages on the paths that matter. `tests/tests/counts.rs` counts the instructions of the functions `counted_…`.

use super::world::*;
use rdmesh_verbs::*;

const MESSAGES: u64 = 1000;

/// One message at a time, each with its completion.
fn exchange(world: &mut World, from: &Node, op: SendOp, sge: Sge, count: u64) {
    for n in 0..count {
        world.post(from, wr(n, op, &[sge]));
        world.settle();
        assert_eq!(from.done(), Some((n, WcStatus::Success)));
    }
}

/// A connected pair that has exchanged messages: its tables have grown.
struct Warm {
    world: World,
    from: Node,
    op: SendOp,
    sge: Sge,
}

impl Warm {
    fn up(mut world: World, op: fn(&Node) -> SendOp, length: u32) -> Self {
        let (from, to) = world.pair(Setup::default());
        let (op, sge) = (op(&to), from.sge(0, length));
        exchange(&mut world, &from, op, sge, 100);
        Self { world, from, op, sge }
    }
}

fn write(to: &Node) -> SendOp {
    SendOp::Write { remote_addr: BASE, rkey: to.key, imm: None }
}

fn read(from: &Node) -> SendOp {
    SendOp::Read { remote_addr: BASE, rkey: from.key }
}

#[inline(never)]
fn counted_messages(mut warm: Warm) {
    exchange(&mut warm.world, &warm.from, warm.op, warm.sge, MESSAGES);
}

#[inline(never)]
fn counted_registrations(world: &mut World, node: &Node) {
    for _ in 0..MESSAGES {
        let mut device = world.engines[node.engine].device(node.context).unwrap();
        let (mr, _) = device.context_mut().reg_mr(node.pd, BASE, LEN as u64, ALL, node.memory.clone()).unwrap();
        device.context_mut().dereg_mr(mr).unwrap();
    }
}

#[test]
fn registrations_and_deregistrations() {
    let mut world = World::new(1);
    let (a, _) = world.pair(Setup::default());
    counted_registrations(&mut world, &a);
}

#[test]
fn write_of_2_bytes_on_one_host() {
    counted_messages(Warm::up(World::new(1), write, 2));
}

#[test]
fn write_of_8_kib_on_one_host() {
    counted_messages(Warm::up(World::new(1), write, 8192));
}

#[test]
fn read_of_8_kib_on_one_host() {
    counted_messages(Warm::up(World::new(1), read, 8192));
}

#[test]
fn write_of_2_bytes_between_hosts() {
    counted_messages(Warm::up(World::two_hosts(), write, 2));
}

#[test]
fn read_of_8_kib_between_hosts() {
    counted_messages(Warm::up(World::two_hosts(), read, 8192));
}
