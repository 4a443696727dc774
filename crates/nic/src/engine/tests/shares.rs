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

/// A tenant that always has datagrams posted to a group, with all its members on the first engine.
struct Caller {
    members: Vec<Node>,
    datagram: SendWr,
}

impl Caller {
    fn new(world: &mut World, members: usize) -> Self {
        let setup = Setup { qp_type: QpType::Ud, vni: 2, ..Setup::default() };
        let group = Gid::from_ip([239, 1, 2, 3].into());
        let members: Vec<Node> = (0..members).map(|_| world.node(0, 9, setup)).collect();
        for node in &members {
            world.connect(node, node);
            world.engines[0].device(node.context).unwrap().attach_mcast(node.qp, group).unwrap();
        }
        let av = AddressVector { dgid: group, ..AddressVector::default() };
        let ah = world.engines[0].device(members[0].context).unwrap().create_ah(members[0].pd, av).unwrap() + 1;
        let datagram = wr(0, SendOp::Datagram { ah, qpn: Qpn::MULTICAST, qkey: QKEY, imm: None }, &[]);
        world.settle();
        Self { members, datagram }
    }

    fn go_on(&self, world: &mut World) {
        while self.members[0].sends.posted.lock().unwrap().len() < DEPTH {
            world.post(&self.members[0], self.datagram.clone());
        }
        for node in &self.members {
            let waiting = node.recvs.0.lock().unwrap().len();
            (waiting..DEPTH).for_each(|_| node.post_recv(0, &[node.sge(0, 64)]));
        }
    }

    /// Datagrams that members have received since the last call.
    fn deliveries(&self) -> u64 {
        let completions = self.members.iter().flat_map(|node| std::iter::from_fn(|| node.poll()));
        completions.filter(|wc| wc.opcode == WcOpcode::Recv).count() as u64
    }
}

/// Deliveries to a group in each poll, and WRITEs of a neighbour with some queue pairs that were completed in it.
fn call_beside(world: &mut World, pairs: usize) -> Vec<(u64, u64)> {
    let caller = Caller::new(world, MEMBERS);
    let mut neighbour = Tenant::new(world, 1, pairs, 8);
    world.settle();
    neighbour.start(world);
    let poll = |_| {
        let before = neighbour.done;
        caller.go_on(world);
        world.step();
        neighbour.go_on(world);
        (caller.deliveries(), neighbour.done - before)
    };
    (0..200).map(poll).collect()
}

#[test]
fn every_delivery_to_a_group_is_charged_to_its_sender() {
    let (deliveries, writes): (Vec<_>, Vec<_>) = call_beside(&mut World::new(1), 40).into_iter().unzip();
    let (deliveries, writes) = (deliveries.iter().sum::<u64>(), writes.iter().sum::<u64>());
    assert!(deliveries < 2 * writes && writes < 2 * deliveries, "{deliveries} deliveries beside {writes} WRITEs");
}

#[test]
fn a_neighbour_of_a_group_waits_for_one_datagram_at_most() {
    for (kind, mut world) in [World::new(1), World::two_hosts()].into_iter().enumerate() {
        let seen = call_beside(&mut world, 1);
        // A neighbour with few requests always has its turn; at the beginning its first ones are on their way.
        for (deliveries, writes) in &seen[4..] {
            assert!(*deliveries <= MEMBERS as u64 && *writes >= DEPTH as u64, "{kind}: {seen:?}");
        }
    }
}

/// Members of a group: one datagram to it costs more than a poll should.
const MEMBERS: usize = 256;
/// WRITEs that a queue pair has posted at once.
const DEPTH: usize = 16;
