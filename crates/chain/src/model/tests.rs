use super::*;
use rdmesh_verbs::chain::{Args, Control};

const STRIDE: usize = 256;
const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

struct World {
    model: Model,
    queue: u32,
    ring: u32,
    cq: u32,
    data: u32,
}

impl World {
    fn new(fetch: Fetch, slots: usize) -> Self {
        let mut model = Model::new(fetch);
        let cq = model.create_cq();
        let (queue, ring) = model.create_queue(slots, STRIDE, cq, None);
        let data = model.register(0, vec![0; 64], ALL);
        Self { model, queue, ring, cq, data }
    }

    fn put(&mut self, slot: usize, request: &Request) {
        request.encode(&mut self.model.bytes_mut(self.ring)[slot * STRIDE..(slot + 1) * STRIDE]);
    }

    fn word(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.model.bytes(self.data)[at..at + 8].try_into().unwrap())
    }

    fn add(&self, at: u64, addend: u64) -> Request {
        let args = Args { remote_addr: at, rkey: self.data, compare_add: addend, ..Args::default() };
        let flags = ChainFlags::LOCAL | ChainFlags::SIGNALED;
        Request { args, flags, ..Request::new(Control::new(ChainOp::FetchAdd)) }
    }
}

fn order(op: ChainOp, object: u32, count: u64, step: u32) -> Request {
    let mut request = Request::new(Control::new(op));
    request.sges.push(Sge { addr: count, length: step, lkey: Key(object) });
    request
}

#[test]
fn a_queue_runs_to_its_limit_in_laps() {
    for fetch in [Fetch::Earliest, Fetch::AtStart, Fetch::Between] {
        let mut world = World::new(fetch, 2);
        let (one, ten) = (world.add(0, 1), world.add(0, 10));
        world.put(0, &one);
        world.put(1, &ten);
        world.model.enable(world.queue, 5);
        assert!(world.model.run(Schedule::Random(1), 1000));
        assert_eq!((world.word(0), world.model.position(world.queue)), (23, 5));
        assert_eq!(world.model.produced(world.cq), 5);
        assert_eq!(world.model.counts().atomics, 5);
    }
}

#[test]
fn a_wait_scales_with_the_lap_and_a_queue_can_keep_itself_going() {
    let mut world = World::new(Fetch::Earliest, 3);
    let add = world.add(0, 1);
    let (cq, queue) = (world.cq, world.queue);
    world.put(0, &add);
    world.put(1, &order(ChainOp::Wait, cq, 1, 1));
    // Lap m enables lap m + 1.
    world.put(2, &order(ChainOp::Enable, queue, 6, 3));
    world.model.enable(queue, 3);
    assert!(!world.model.run(Schedule::First, 3000), "an endless loop");
    assert!(world.word(0) > 500, "{}", world.word(0));
}

#[test]
fn a_relative_enable_adds_to_the_limit() {
    let mut world = World::new(Fetch::Earliest, 4);
    let (target, ring) = world.model.create_queue(4, STRIDE, world.cq, None);
    let nop = Request { flags: ChainFlags::SIGNALED, ..Request::new(Control::new(ChainOp::Nop)) };
    for slot in 0..4 {
        nop.encode(&mut world.model.bytes_mut(ring)[slot * STRIDE..(slot + 1) * STRIDE]);
    }
    let relative = Request { imm: 1, ..order(ChainOp::Enable, target, 2, 0) };
    world.put(0, &relative);
    world.put(1, &relative);
    world.put(2, &order(ChainOp::Enable, target, 3, 0));
    world.model.enable(world.queue, 3);
    assert!(world.model.run(Schedule::First, 100));
    assert_eq!(world.model.position(target), 4, "an absolute ENABLE never takes back");
}

/// The next slot is changed by a request of the same queue.
fn self_modifying(fetch: Fetch, flags: ChainFlags) -> u64 {
    let mut world = World::new(fetch, 2);
    let mut write = Request::new(Control::new(ChainOp::Write));
    write.flags = flags;
    write.args = Args { remote_addr: (STRIDE + offset::COMPARE) as u64, rkey: world.ring, ..Args::default() };
    write.sges.push(Sge { addr: 0, length: 8, lkey: Key(world.data) });
    world.put(0, &write);
    let mut add = world.add(8, 0);
    add.args.compare_add = 0;
    world.put(1, &add);
    world.model.bytes_mut(world.data)[0] = 7;
    world.model.enable(world.queue, 2);
    assert!(world.model.run(Schedule::First, 100));
    world.word(8)
}

#[test]
fn only_a_local_request_ends_before_the_next_is_fetched() {
    assert_eq!(self_modifying(Fetch::Earliest, ChainFlags::LOCAL), 7);
    assert_eq!(self_modifying(Fetch::AtStart, ChainFlags::LOCAL), 7);
    assert_eq!(self_modifying(Fetch::Earliest, ChainFlags::empty()), 0, "the slot was copied before");
}

#[test]
fn completions_count_only_successes_that_are_asked_for() {
    let mut world = World::new(Fetch::Earliest, 4);
    let signaled = world.add(0, 1);
    world.put(0, &signaled);
    world.put(1, &Request { control: Control::new(ChainOp::FetchAdd).quiet(), ..signaled.clone() });
    world.put(2, &Request { flags: ChainFlags::LOCAL, ..signaled.clone() });
    let mut wrong = signaled;
    wrong.args.rkey = 1;
    world.put(3, &wrong);
    world.model.enable(world.queue, 4);
    assert!(world.model.run(Schedule::First, 100));
    assert_eq!((world.word(0), world.model.produced(world.cq)), (3, 1));
    let fault = Fault { queue: world.queue, is_receive: false, index: 3, status: WcStatus::LocalProtectionError };
    assert_eq!(world.model.fault(), Some(fault));
}

#[test]
fn an_error_stops_all_queues_of_the_group() {
    let mut world = World::new(Fetch::AtStart, 1);
    let (other, ring) = world.model.create_queue(1, STRIDE, world.cq, None);
    world.add(0, 1).encode(world.model.bytes_mut(ring));
    world.put(0, &order(ChainOp::Enable, 99, 1, 0));
    world.model.enable(world.queue, 1);
    world.model.step(Step::Start { queue: world.queue });
    world.model.enable(other, 1);
    assert_eq!(world.model.steps(), vec![]);
    assert_eq!(world.model.fault().map(|f| f.status), Some(WcStatus::LocalQpOperationError));
}

fn read(world: &World, from: u64, flags: ChainFlags) -> Request {
    let mut read = Request::new(Control::new(ChainOp::Read));
    read.args = Args { remote_addr: from, rkey: world.data, ..Args::default() };
    read.flags = flags;
    read.sges.push(Sge { addr: 8, length: 8, lkey: Key(world.data) });
    read
}

#[test]
fn a_soft_read_of_a_wrong_range_delivers_zeros() {
    let mut world = World::new(Fetch::Earliest, 1);
    world.model.bytes_mut(world.data).fill(0xff);
    let request = read(&world, 60, ChainFlags::SOFT | ChainFlags::LOCAL);
    world.put(0, &request);
    world.model.enable(world.queue, 1);
    assert!(world.model.run(Schedule::First, 100));
    assert_eq!((world.word(8), world.model.counts().soft_faults, world.model.fault()), (0, 1, None));
}

#[test]
fn a_fence_waits_for_what_reads_return() {
    for (flags, sums) in [(ChainFlags::FENCE, vec![7]), (ChainFlags::empty(), vec![0, 7])] {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..64 {
            let mut world = World::new(Fetch::AtStart, 2);
            world.model.bytes_mut(world.data)[0] = 7;
            let first = read(&world, 0, ChainFlags::empty());
            let mut copy = Request::new(Control::new(ChainOp::Write));
            copy.args = Args { remote_addr: 16, rkey: world.data, ..Args::default() };
            copy.flags = flags;
            copy.sges.push(Sge { addr: 8, length: 8, lkey: Key(world.data) });
            world.put(0, &first);
            world.put(1, &copy);
            world.model.enable(world.queue, 2);
            assert!(world.model.run(Schedule::Random(seed), 100));
            seen.insert(world.word(16));
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), sums);
    }
}

#[test]
fn a_message_of_another_length_is_refused() {
    for (length, expected) in
        [(8, None), (7, Some(WcStatus::RemoteInvalidRequest)), (9, Some(WcStatus::RemoteInvalidRequest))]
    {
        let mut world = World::new(Fetch::AtStart, 1);
        let cq = world.model.create_cq();
        let (recv, ring) = world.model.create_receive_queue(1, 128, cq);
        let slot = world.model.bytes_mut(ring);
        slot[offset::RECV_NUM_SGE] = 1;
        slot[offset::RECV_SGES + offset::SGE_LENGTH] = 8;
        let key = world.data.to_le_bytes();
        slot[offset::RECV_SGES + offset::SGE_KEY..][..4].copy_from_slice(&key);
        world.model.send(recv, vec![1; length]);
        assert_eq!(world.model.steps(), vec![], "not enabled");
        world.model.enable_receives(recv, 1);
        assert!(world.model.run(Schedule::First, 10));
        assert_eq!(world.model.fault().map(|f| f.status), expected);
        assert_eq!(world.model.produced(cq), u64::from(expected.is_none()));
    }
}

#[test]
fn a_client_gets_messages_and_no_atomics_without_a_packet() {
    let mut model = Model::new(Fetch::Earliest);
    let (cq, client) = (model.create_cq(), model.create_client());
    let (queue, ring) = model.create_queue(2, STRIDE, cq, Some(client));
    let theirs = model.register_at_client(client, 0x1000, vec![0; 16]);
    let mut reply = Request::new(Control::new(ChainOp::WriteImm));
    reply.imm = 9;
    reply.flags = ChainFlags::INLINE;
    reply.inline_len = 2;
    reply.args = Args { remote_addr: 0x1004, rkey: theirs, ..Args::default() };
    let slots = model.bytes_mut(ring);
    reply.encode(&mut slots[..STRIDE]);
    slots[offset::SGES..offset::SGES + 2].copy_from_slice(b"hi");
    let mut max = Request::new(Control::new(ChainOp::Max));
    max.args = Args { remote_addr: 0x1000, rkey: theirs, ..Args::default() };
    max.encode(&mut slots[STRIDE..]);
    model.enable(queue, 1);
    assert!(model.run(Schedule::First, 10));
    assert_eq!(model.take_messages(client), vec![Message { imm: Some(9), data: b"hi".to_vec() }]);
    assert_eq!(&model.client_bytes(client, theirs)[4..6], b"hi");
    model.enable(queue, 2);
    assert!(model.run(Schedule::First, 10));
    assert!(model.fault().is_some());
}

/// Slots of any bytes run or fail; they do not panic.
#[test]
fn any_ring_runs_or_fails() {
    let mut failed = 0;
    for seed in 1..3000_u64 {
        let mut world = World::new(Fetch::Between, 4);
        let mut chance = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for slot in 0..4 {
            let mut request = world.add(8 * slot as u64, seed);
            request.control.op = ChainOp::ALL[(chance >> 7) as usize % ChainOp::ALL.len()];
            request.sges.push(Sge {
                addr: chance % 64,
                length: (chance >> 8) as u32 % 16,
                lkey: Key(world.data - 1 + (chance >> 9) as u32 % 2),
            });
            world.put(slot, &request);
            for _ in 0..chance % 4 {
                chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed);
                let at = slot * STRIDE + (chance >> 20) as usize % 240;
                world.model.bytes_mut(world.ring)[at] = (chance >> 40) as u8;
            }
        }
        world.model.enable(world.queue, 9);
        world.model.run(Schedule::Random(seed), 500);
        failed += usize::from(world.model.fault().is_some());
    }
    assert!((100..2900).contains(&failed), "{failed}");
}
