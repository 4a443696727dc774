//! Shares of tenants in an engine, whatever numbers of queue pairs they have.

use super::world::*;
use rdmesh_verbs::*;

/// A tenant's pairs, which post WRITEs of `len` bytes again and again.
struct Tenant {
    pairs: Vec<(Node, Node)>,
    len: u32,
    /// WRITEs completed.
    done: u64,
}

impl Tenant {
    fn new(world: &mut World, vni: u32, pairs: usize, len: u32) -> Self {
        let setup = Setup { vni, ..Setup::default() };
        let pairs = (0..pairs).map(|_| world.pair_at(1, setup)).collect();
        Self { pairs, len, done: 0 }
    }

    fn post(&self, world: &mut World, pair: usize) {
        let (a, b) = &self.pairs[pair];
        world.post(a, wr(0, SendOp::Write { remote_addr: BASE, rkey: b.key, imm: None }, &[a.sge(0, self.len)]));
    }

    fn start(&self, world: &mut World) {
        for pair in 0..self.pairs.len() {
            (0..DEPTH).for_each(|_| self.post(world, pair));
        }
    }

    /// Posts as much as has completed.
    fn go_on(&mut self, world: &mut World) {
        for pair in 0..self.pairs.len() {
            while let Some((_, status)) = self.pairs[pair].0.done() {
                assert_eq!(status, WcStatus::Success);
                self.done += 1;
                self.post(world, pair);
            }
        }
    }

    fn bytes(&self) -> u64 {
        self.done * u64::from(self.len)
    }
}

/// Bytes that two tenants have moved when the first has completed `count` WRITEs.
fn compete(mut world: World, one: (usize, u32), many: (usize, u32), count: u64) -> (u64, u64) {
    let mut tenants = [Tenant::new(&mut world, 1, one.0, one.1), Tenant::new(&mut world, 2, many.0, many.1)];
    tenants.iter().for_each(|tenant| tenant.start(&mut world));
    for step in 0.. {
        assert!(step < 100 * count, "{} of {count} in {step} polls", tenants[0].done);
        if tenants[0].done >= count {
            break;
        }
        world.step();
        tenants.iter_mut().for_each(|tenant| tenant.go_on(&mut world));
    }
    (tenants[0].bytes(), tenants[1].bytes())
}

#[test]
fn a_tenant_with_many_queue_pairs_has_no_more_than_one_with_few() {
    for (kind, world) in World::kinds().into_iter().enumerate() {
        let (one, many) = compete(world, (1, 64 * 1024), (60, 64 * 1024), 200);
        assert!(many < 2 * one, "{kind}: {one} and {many} bytes");
    }
}

#[test]
fn large_messages_of_one_tenant_do_not_keep_the_small_ones_of_another() {
    for (kind, world) in World::kinds().into_iter().enumerate() {
        // A queue pair with small messages cannot use its whole share; its messages do not wait longer than a few turns each.
        let (small, large) = compete(world, (1, 8), (60, 400_000), 2000);
        let between = large / (small / 8);
        assert!(between < 64 * 1024, "{kind}: {between} bytes of the other for each message");
    }
}

/// WRITEs that a queue pair has posted at once.
const DEPTH: usize = 16;
