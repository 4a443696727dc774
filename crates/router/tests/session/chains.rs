//! Tests of managed queues, by session messages and rings alone.

use crate::client::{Client, Ring, extended};
use crate::rings::{has_completions, poll, post, slot_word, write_slot};
use crate::traffic::{connect, ring_doorbell};
use crate::world::World;
use proptest::prelude::*;
use rdmesh_fabric::Quota;
use rdmesh_fabric::api::{ChainAction, ControlChain, TraceChain};
use rdmesh_nic::{ChainSlot, ChainState, ChainWait};
use rdmesh_router::endpoint::EndpointId;
use rdmesh_router::session::{ChainError, FailedRequest, FailedRequestInfo};
use rdmesh_uverbs::abi::*;
use rdmesh_uverbs::session::RequestKind;
use rdmesh_uverbs::session::chain::*;
use rdmesh_verbs::QpState;
use rdmesh_verbs::chain::{ChainFlags, ChainOp, Control, Request, offset};
use rdmesh_verbs::{Key, Sge};
use rustix::io::Errno;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, Immutable, IntoBytes};

const GROUP: u32 = 7;
const LOCAL_WRITE: u32 = 1;
const SLOT: usize = 256;

/// A queue pair, connected to itself.
struct Queue {
    qp: u32,
    qpn: u32,
    send: Ring,
}

fn queue(client: &mut Client, pd: u32, cq: u32) -> Queue {
    let (qp, qpn, send, _) = client.create_qp(pd, cq, 2);
    Queue { qp, qpn, send }
}

fn chain<R: FromBytes>(client: &mut Client, call: Call, request: &(impl IntoBytes + Immutable)) -> Result<R, Errno> {
    let answer = client.call(RequestKind::Chain, &call.body(request), &[], None)?;
    Ok(R::read_from_bytes(&answer.response).unwrap())
}

fn order(client: &mut Client, call: Call, request: &(impl IntoBytes + Immutable)) -> Result<(), Errno> {
    let answer = client.call(RequestKind::Chain, &call.body(request), &[], None)?;
    assert!(answer.response.is_empty());
    Ok(())
}

fn manage(client: &mut Client, qp: u32) -> Result<Managed, Errno> {
    chain(client, Call::Manage, &Manage { qp, group: GROUP, sides: Manage::SEND, ..Manage::default() })
}

fn enable(client: &mut Client, qp: u32, limit: u64) -> Result<(), Errno> {
    order(client, Call::Enable, &Enable { qp, side: QueueSide::Send as u32, limit })
}

fn register(client: &mut Client, qp: u32) -> Result<RingKey, Errno> {
    let request = Register { qp, side: 0, pd: Register::OWN_PD, access: LOCAL_WRITE };
    chain(client, Call::Register, &request)
}

fn groups(client: &mut Client) -> Vec<Group> {
    let answer = client.call(RequestKind::Chain, &Call::List.body(&List::default()), &[], None).unwrap();
    answer.response.chunks_exact(size_of::<Group>()).map(|bytes| Group::read_from_bytes(bytes).unwrap()).collect()
}

fn request(op: ChainOp, wr_id: u64) -> Request {
    Request { wr_id, flags: ChainFlags::SIGNALED, ..Request::new(Control::new(op)) }
}

fn wait(cq: u32, count: u64) -> Request {
    let sges = [Sge { addr: count, length: 0, lkey: Key(cq) }].into_iter().collect();
    Request { sges, flags: ChainFlags::empty(), ..request(ChainOp::Wait, 0) }
}

fn add(addr: u64, key: u32, wr_id: u64) -> Request {
    let mut add = request(ChainOp::FetchAdd, wr_id);
    add.flags |= ChainFlags::LOCAL;
    (add.args.remote_addr, add.args.rkey, add.args.compare_add) = (addr, key, 5);
    add
}

fn bytes(request: &Request) -> [u8; SLOT] {
    let mut slot = [0; SLOT];
    request.encode(&mut slot);
    slot
}

/// A managed queue pair with these requests, its ring registered.
fn managed(client: &mut Client, pd: u32, cq: u32, requests: impl FnOnce(&RingKey) -> Vec<Request>) -> (Queue, RingKey) {
    let queue = queue(client, pd, cq);
    let shape = manage(client, queue.qp).unwrap();
    assert_eq!((shape.send_stride, shape.send_cycle, shape.receive_cycle), (SLOT as u32, 8, 0));
    let key = register(client, queue.qp).unwrap();
    assert_eq!((key.stride, key.slots), (SLOT as u32, 8));
    for (slot, request) in (0..).zip(requests(&key)) {
        write_slot(&queue.send, slot, &bytes(&request));
    }
    connect(client, queue.qp, queue.qpn, 1);
    (queue, key)
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !is_so() {
        assert!(Instant::now() < deadline, "not {what}");
        std::thread::yield_now();
    }
}

/// WAIT for two completions of another queue, then a NOP and an ADD that changes a later slot of the same ring.
fn waiting(counted: u32) -> impl FnOnce(&RingKey) -> Vec<Request> {
    move |key| {
        let counter = 7 * SLOT as u64 + offset::COMPARE as u64;
        vec![wait(counted, 2), request(ChainOp::Nop, 11), add(counter, key.key, 12)]
    }
}

#[test]
fn a_program_runs_by_command_and_by_enable() {
    let world = World::new(1);
    let mut client = world.device(1);
    let (pd, (cq, wc), (counted, counted_wc)) = (client.alloc_pd(), client.create_cq(8), client.create_cq(8));
    let (ticks, _) = managed(&mut client, pd, counted, |_| (1..=4).map(|n| request(ChainOp::Nop, n)).collect());
    let (program, _) = managed(&mut client, pd, cq, waiting(counted));
    let plain = queue(&mut client, pd, cq);
    connect(&mut client, plain.qp, plain.qpn, 1);

    // By command; the doorbell of a managed queue does nothing.
    enable(&mut client, program.qp, 3).unwrap();
    enable(&mut client, ticks.qp, 1).unwrap();
    ring_doorbell(&client, ticks.qp);
    assert_eq!(poll(&counted_wc).wr_id, 1);
    assert!(!has_completions(&wc) && !has_completions(&counted_wc));

    // By an ENABLE that is posted on an ordinary queue.
    let mut posted = request(ChainOp::Enable, 9);
    posted.sges = [Sge { addr: 2, length: 0, lkey: Key(ticks.qp) }].into_iter().collect();
    let mut wqe = bytes(&posted);
    // The provider's encoding has the opcode as it was posted.
    wqe[offset::CONTROL..offset::FLAGS].copy_from_slice(&(u64::from(ChainOp::Enable.opcode()) << 32).to_ne_bytes());
    post(&plain.send, &wqe[..224]);
    ring_doorbell(&client, plain.qp);
    let mut seen: Vec<u64> =
        (0..3).map(|_| poll(&wc)).inspect(|wc| assert_eq!(wc.status, 0)).map(|wc| wc.wr_id).collect();
    assert_eq!(poll(&counted_wc).wr_id, 2);
    seen.sort_unstable();
    assert_eq!(seen, [9, 11, 12]);
    assert_eq!(slot_word(&program.send, 7, offset::COMPARE), 5);

    let [group] = groups(&mut client)[..] else { panic!("one group") };
    assert_eq!((group.group, group.state, group.qps, group.has_fault), (GROUP, 0, 2, 0));
    assert_eq!((group.copies, group.atomics, group.orders), (3, 1, 1));

    order(&mut client, Call::Stop, &Order { group: GROUP, reserved: 0 }).unwrap();
    enable(&mut client, ticks.qp, 3).unwrap();
    assert_eq!(groups(&mut client)[0].copies, 3);
    order(&mut client, Call::Resume, &Order { group: GROUP, reserved: 0 }).unwrap();
    assert_eq!(poll(&counted_wc).wr_id, 3);

    order(&mut client, Call::Kill, &Order { group: GROUP, reserved: 0 }).unwrap();
    assert_eq!(groups(&mut client)[0].state, 2);
    let page = client.page.as_ref().unwrap();
    eventually("in error", || [&ticks, &program].iter().all(|q| page.qp_state(q.qp) == QpState::Error as u8));
    assert_eq!(page.qp_state(plain.qp), QpState::Rts as u8);
    drop(client);
    world.expect_reclaimed();
}

#[test]
fn a_managed_receive_scatters_inline_data_into_a_ring() {
    let world = World::new(1);
    let mut client = world.device(1);
    let (pd, (cq, wc)) = (client.alloc_pd(), client.create_cq(8));
    let (qp, qpn, send, receive) = client.create_qp(pd, cq, 2);
    let sides = Manage::SEND | Manage::RECEIVE;
    let request = Manage { qp, group: GROUP, sides, receive_cycle: 3, ..Manage::default() };
    let shape: Managed = chain(&mut client, Call::Manage, &request).unwrap();
    assert_eq!((shape.send_cycle, shape.receive_stride, shape.receive_cycle), (8, 64, 3));
    let key = register(&mut client, qp).unwrap();
    let side = QueueSide::Receive as u32;
    let received: RingKey =
        chain(&mut client, Call::Register, &Register { qp, side, pd, access: LOCAL_WRITE }).unwrap();
    assert_eq!((received.stride, received.slots), (64, 8));

    let mut slot = bytes(&self::request(ChainOp::Send, 5));
    slot[offset::FLAGS] |= ChainFlags::INLINE.bits() as u8;
    slot[offset::LENGTH] = 8;
    slot[offset::SGES..offset::SGES + 8].copy_from_slice(b"in a lap");
    write_slot(&send, 0, &slot);
    let mut element = [0; 64];
    element[0] = 6;
    element[offset::RECV_NUM_SGE] = 1;
    let to = u64::from(SLOT as u32) * 7 + offset::SWAP as u64;
    element[offset::RECV_SGES..][..8].copy_from_slice(&to.to_ne_bytes());
    element[offset::RECV_SGES + offset::SGE_LENGTH] = 8;
    element[offset::RECV_SGES + offset::SGE_KEY..][..4].copy_from_slice(&key.key.to_ne_bytes());
    write_slot(&receive, 0, &element);
    connect(&mut client, qp, qpn, 1);

    enable(&mut client, qp, 1).unwrap();
    assert_eq!(groups(&mut client)[0].has_fault, 0);
    order(&mut client, Call::Enable, &Enable { qp, side, limit: 1 }).unwrap();
    let mut seen = [poll(&wc), poll(&wc)].map(|wc| (wc.wr_id, wc.status));
    seen.sort_unstable();
    assert_eq!(seen, [(5, 0), (6, 0)]);
    assert_eq!(slot_word(&send, 7, offset::SWAP).to_ne_bytes(), *b"in a lap");
    drop(client);
    world.expect_reclaimed();
}

#[test]
fn a_wrong_key_ends_the_group_and_is_told() {
    let world = World::new(1);
    let mut client = world.device(1);
    let (pd, (cq, wc)) = (client.alloc_pd(), client.create_cq(8));
    let (failing, key) = managed(&mut client, pd, cq, |key| vec![request(ChainOp::Nop, 1), add(64, key.key ^ 1, 2)]);
    let (other, _) = managed(&mut client, pd, cq, |_| Vec::new());
    enable(&mut client, failing.qp, 2).unwrap();
    assert_eq!((poll(&wc).status, poll(&wc).status), (0, 4));
    let page = client.page.as_ref().unwrap();
    eventually("in error", || [&failing, &other].iter().all(|q| page.qp_state(q.qp) == QpState::Error as u8));
    let group = groups(&mut client)[0];
    assert_eq!((group.state, group.has_fault, group.fault_qp, group.fault_side), (2, 1, failing.qp, 0));
    assert_eq!((group.fault_index, group.fault_status), (1, 4));
    assert_eq!((group.fault_addr, group.fault_key), (64, key.key ^ 1));
}

#[test]
fn a_chain_is_shown_and_its_requests_are_recorded() {
    let world = World::new(1);
    let mut client = world.device(1);
    let (pd, (cq, _), (counted, _)) = (client.alloc_pd(), client.create_cq(8), client.create_cq(8));
    let (ticks, _) = managed(&mut client, pd, counted, |_| (1..=4).map(|n| request(ChainOp::Nop, n)).collect());
    let (program, _) = managed(&mut client, pd, cq, waiting(counted));
    label(&mut client, program.qp, 0, &["ticks", "nop", "count"]).unwrap();
    enable(&mut client, program.qp, 3).unwrap();
    enable(&mut client, ticks.qp, 1).unwrap();
    let queues = || world.server.inspect_chain(EndpointId(1), 0, GROUP).unwrap();
    let expected = [ChainWait::Enable, ChainWait::Completions { cq: counted, count: 2, produced: 1 }];
    eventually("standing still", || queues().iter().map(|row| row.queue.waits_for).eq(expected));
    let queues = queues();
    assert_eq!((queues[1].queue.next, queues[1].queue.limit, queues[1].queue.cycle), (0, 3, 8));
    let labels = queues[1].slots.iter().map(|row| row.label.map(|label| label.to_string()));
    let labels: Vec<_> = labels.collect();
    assert_eq!((labels[0].as_deref(), labels[2].as_deref(), labels.len()), (Some("ticks"), Some("count"), 8));
    assert!(matches!(&queues[1].slots[2].slot, ChainSlot::Send(wr) if wr.control.op == ChainOp::FetchAdd));
    let trace = |from| {
        let trace = TraceChain { device: 0, group: GROUP, seconds: 60, from };
        world.server.trace_chain(EndpointId(1), trace).unwrap()
    };
    assert!(trace(0).is_empty(), "nothing is recorded before it is asked for");
    enable(&mut client, ticks.qp, 2).unwrap();
    eventually("three more", || trace(0).len() == 4);
    let steps: Vec<_> = trace(0).iter().map(|row| (row.step.op, row.label.map(|label| label.to_string()))).collect();
    assert_eq!(steps[0], (ChainOp::Nop, None));
    assert_eq!(steps[1], (ChainOp::Wait, Some("ticks".to_owned())));
    assert_eq!(steps[3], (ChainOp::FetchAdd, Some("count".to_owned())));
    assert_eq!((trace(3).len(), trace(3)[0].qpn.value()), (1, program.qpn));
    let none = TraceChain { device: 0, group: GROUP + 1, seconds: 1, from: 0 };
    assert!(world.server.trace_chain(EndpointId(1), none).is_err());
    assert!(world.server.inspect_chain(EndpointId(2), 0, GROUP).is_err());
}

fn label(client: &mut Client, qp: u32, first: u32, names: &[&str]) -> Result<(), Errno> {
    let head = Call::Label.body(&LabelPart { qp, side: 0, first, count: names.len() as u32 });
    let padded = names.iter().flat_map(|name| {
        let mut bytes = [0; LABEL_LEN];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        bytes
    });
    let body = head.into_iter().chain(padded).collect::<Vec<u8>>();
    client.call(RequestKind::Chain, &body, &[], None).map(drop)
}

#[test]
fn the_request_that_failed_is_named_by_its_label() {
    let world = World::new(1);
    let mut client = world.device(1);
    let (pd, (cq, wc)) = (client.alloc_pd(), client.create_cq(16));
    let (failing, key) = managed(&mut client, pd, cq, |key| {
        (0..7).map(|n| request(ChainOp::Nop, n)).chain([add(64, key.key ^ 1, 7)]).collect()
    });
    assert_eq!(label(&mut client, failing.qp, 6, &["a", "b", "c"]), Err(Errno::INVAL));
    assert_eq!(label(&mut client, failing.qp, u32::MAX, &["a"]), Err(Errno::INVAL));
    assert_eq!(label(&mut client, failing.qp, 0, &[]), Err(Errno::INVAL));
    assert_eq!(label(&mut client, failing.qp + 100, 0, &["a"]), Err(Errno::INVAL));
    label(&mut client, failing.qp, 0, &["first", "second"]).unwrap();
    label(&mut client, failing.qp, 6, &["sixth", "hit\u{1b}"]).unwrap();
    enable(&mut client, failing.qp, 8).unwrap();
    let statuses: Vec<u32> = (0..8).map(|_| poll(&wc).status).collect();
    assert_eq!(statuses, [0, 0, 0, 0, 0, 0, 0, 4]);
    let row = world.server.snapshot()[0].chains[0].clone();
    assert_eq!(row.label.map(|label| label.to_string()).as_deref(), Some("hit\\x1b"));
    let known = || {
        let is_chain = |info: &FailedRequestInfo| matches!(info.request, FailedRequest::Chain(_));
        let failed = world.server.failed_requests().into_iter().filter(is_chain);
        failed.map(|info| (info.request.to_string(), info.count)).collect::<Vec<_>>()
    };
    let address = format!("address 0x40, key {:#x}", key.key ^ 1);
    let text = format!("chain 7 ended: request `hit\\x1b` (number 7) failed with local protection error, {address}");
    assert_eq!(known(), [(text.clone(), 1)]);
    assert_eq!(known(), [(text.clone(), 1)], "once");
    drop(client);
    world.expect_reclaimed();
    assert_eq!(known(), [(text, 1)]);
}

#[test]
fn a_chain_that_spins_is_ended_by_command() {
    let world = World::new(1);
    let (mut client, mut other) = (world.device(1), world.device(2));
    let (pd, (cq, _)) = (client.alloc_pd(), client.create_cq(8));
    let silent = || Request { flags: ChainFlags::empty(), ..request(ChainOp::Nop, 0) };
    let (spinning, _) = managed(&mut client, pd, cq, |_| (0..8).map(|_| silent()).collect());
    enable(&mut client, spinning.qp, u64::MAX).unwrap();
    let copies = |client: &mut Client| groups(client)[0].copies;
    eventually("laps", || copies(&mut client) > 100_000);
    let entry = || world.server.snapshot()[0].chains[0].entry.clone();
    assert!(entry().is_spinning && entry().laps > 10_000);
    other.alloc_pd();
    order(&mut client, Call::Kill, &Order { group: GROUP, reserved: 0 }).unwrap();
    let last = copies(&mut client);
    other.alloc_pd();
    assert_eq!((copies(&mut client), groups(&mut client)[0].state), (last, 2));
    drop((client, other));
    world.expect_reclaimed();
}

#[test]
fn a_spinning_chain_keeps_to_its_endpoints_budget() {
    let world = World::new(1);
    let path = world.endpoint_with(1, |spec| spec.quota = Quota { chain_steps: 10_000, ..Quota::default() });
    let (mut client, mut second) = (Client::device(&path), Client::device(&path));
    let spin = |client: &mut Client| {
        let (pd, (cq, _)) = (client.alloc_pd(), client.create_cq(8));
        let silent = || Request { flags: ChainFlags::empty(), ..request(ChainOp::Nop, 0) };
        let (spinning, _) = managed(client, pd, cq, |_| (0..8).map(|_| silent()).collect());
        enable(client, spinning.qp, u64::MAX).unwrap();
    };
    spin(&mut client);
    spin(&mut second);
    let copies = |client: &mut Client| groups(client)[0].copies;
    eventually("steps that come back", || copies(&mut client) > 300 && copies(&mut second) > 300);
    assert!(groups(&mut client)[0].starved > 0);
    // Nothing comes back, and then without limit.
    world.server.set_chain_steps(EndpointId(1), 0);
    let stand = |client: &mut Client| {
        client.alloc_pd();
        copies(client)
    };
    let stood = stand(&mut client);
    (0..100).for_each(|_| assert_eq!(stand(&mut client), stood));
    world.server.set_chain_steps(EndpointId(1), u64::MAX);
    eventually("without limit", || copies(&mut client) > stood + 100_000);
    // A device that is opened now has the new budget.
    world.server.set_chain_steps(EndpointId(1), 0);
    let mut third = Client::device(&path);
    spin(&mut third);
    third.alloc_pd();
    assert_eq!(copies(&mut third), 0);
}

#[test]
fn the_hosts_user_stops_and_ends_a_chain() {
    let world = World::new(1);
    let mut client = world.device(1);
    let (pd, (cq, wc)) = (client.alloc_pd(), client.create_cq(8));
    let (ticks, _) = managed(&mut client, pd, cq, |_| (1..=4).map(|n| request(ChainOp::Nop, n)).collect());
    let order = |endpoint, device, group, action| {
        world.server.control_chain(EndpointId(endpoint), ControlChain { device, group, action })
    };
    for (endpoint, device, group) in [(2, 0, GROUP), (1, 1, GROUP), (1, 0, GROUP + 1)] {
        assert_eq!(order(endpoint, device, group, ChainAction::Kill), Err(ChainError::NoSuchChain));
    }
    let row = || world.server.snapshot()[0].chains[0].clone();
    assert_eq!((row().entry.group, row().qpns[0].value(), row().failed), (GROUP, ticks.qpn, None));
    assert_eq!(order(1, 0, GROUP, ChainAction::Stop), Ok(()));
    enable(&mut client, ticks.qp, 2).unwrap();
    assert_eq!((row().entry.state, row().entry.counts.copies), (ChainState::Stopped, 0));
    assert_eq!(order(1, 0, GROUP, ChainAction::Resume), Ok(()));
    assert_eq!([poll(&wc).wr_id, poll(&wc).wr_id], [1, 2]);
    assert_eq!(order(1, 0, GROUP, ChainAction::Kill), Ok(()));
    let page = client.page.as_ref().unwrap();
    eventually("in error", || page.qp_state(ticks.qp) == QpState::Error as u8);
    assert_eq!(order(1, 0, GROUP, ChainAction::Resume), Err(ChainError::Ended));
}

#[test]
fn regions_over_a_ring_go_with_it_once() {
    let world = World::new(1);
    let mut client = world.device(1);
    let (pd, (cq, _)) = (client.alloc_pd(), client.create_cq(8));
    let (queue, first) = managed(&mut client, pd, cq, |_| Vec::new());
    let second = register(&mut client, queue.qp).unwrap();
    let counts = || (world.server.snapshot()[0].objects.mrs, world.server.snapshot()[0].pinned_bytes);
    assert_eq!(counts(), (2, 2 * 8 * SLOT as u64));
    let rereg = ReregMr { mr_handle: second.mr, flags: 1 << 2, access_flags: 0, ..ReregMr::default() };
    let answer = client.command::<ReregMrResponse>(number::REREG_MR, &rereg, 0);
    assert_eq!(answer.err(), Some(Errno::OPNOTSUPP));
    client.order(number::DEREG_MR, &DeregMr { mr_handle: first.mr }).unwrap();
    assert_eq!(counts(), (1, 8 * SLOT as u64));
    // What has its handle now is another queue's.
    let (other, mut other_key) = managed(&mut client, pd, cq, |_| Vec::new());
    assert_eq!(other_key.mr, first.mr);
    // After some time it has the key too.
    while other_key.key != first.key {
        client.order(number::DEREG_MR, &DeregMr { mr_handle: other_key.mr }).unwrap();
        other_key = register(&mut client, other.qp).unwrap();
        assert_eq!(other_key.mr, first.mr);
    }
    let destroy = |qp_handle| DestroyQp { qp_handle, ..Default::default() };
    client.command::<DestroyQpResponse>(number::DESTROY_QP, &destroy(queue.qp), 0).unwrap();
    assert_eq!(counts(), (1, 8 * SLOT as u64));
    assert!(client.order(number::DEREG_MR, &DeregMr { mr_handle: second.mr }).is_err());
    client.order(number::DEREG_MR, &DeregMr { mr_handle: other_key.mr }).unwrap();
    register(&mut client, other.qp).unwrap();
    client.command::<DestroyQpResponse>(number::DESTROY_QP, &destroy(other.qp), 0).unwrap();
    assert_eq!(counts(), (0, 0));
    client.order(number::DEALLOC_PD, &DeallocPd { pd_handle: pd }).unwrap();
    drop(client);
    world.expect_reclaimed();
}

#[test]
fn a_ring_is_charged_as_a_region() {
    let world = World::new(1);
    let path = world.endpoint_with(1, |spec| spec.quota = Quota { mrs: 1, ..Quota::default() });
    let mut client = Client::device(&path);
    let (pd, (cq, _)) = (client.alloc_pd(), client.create_cq(8));
    let (queue, key) = managed(&mut client, pd, cq, |_| Vec::new());
    assert_eq!(register(&mut client, queue.qp).err(), Some(Errno::NOMEM));
    client.order(number::DEREG_MR, &DeregMr { mr_handle: key.mr }).unwrap();
    register(&mut client, queue.qp).unwrap();
}

/// Slots of an image of NOPs of which the operand may change, and nothing else.
fn image(slots: usize) -> Vec<u8> {
    let mut holes = [0; SLOT / 8];
    holes[1] = 0x7f;
    let allowed = (1u64 << ChainOp::Nop.code()).to_ne_bytes();
    let slot = |n| [&bytes(&request(ChainOp::Nop, n))[..], &holes, &allowed].concat();
    (0..slots as u64).flat_map(slot).collect()
}

fn seal(client: &mut Client, qp: u32, first: u32, slots: &[u8]) -> Result<(), Errno> {
    let count = (slots.len() / SealPart::record_len(SLOT)) as u32;
    let head = Call::Seal.body(&SealPart { qp, side: 0, first, count });
    client.call(RequestKind::Chain, &[&head, slots].concat(), &[], None).map(drop)
}

#[test]
fn a_sealed_ring_runs_its_image() {
    let world = World::new(1);
    let mut client = world.device(1);
    let (pd, (cq, wc)) = (client.alloc_pd(), client.create_cq(8));
    let (queue, key) = managed(&mut client, pd, cq, |key| (0..8).map(|_| add(0, key.key, 99)).collect());
    let (image, half) = (image(8), 4 * SealPart::record_len(SLOT));
    assert_eq!(seal(&mut client, queue.qp, 4, &image[half..]).err(), Some(Errno::INVAL));
    assert_eq!(seal(&mut client, queue.qp, 0, &image[1..]).err(), Some(Errno::INVAL));
    seal(&mut client, queue.qp, 0, &image[..half]).unwrap();
    assert_eq!(seal(&mut client, queue.qp, 3, &image[half..]).err(), Some(Errno::INVAL));
    seal(&mut client, queue.qp, 4, &image[half..]).unwrap();
    enable(&mut client, queue.qp, 2).unwrap();
    assert_eq!((0..2).map(|_| poll(&wc)).map(|wc| (wc.wr_id, wc.status)).collect::<Vec<_>>(), [(0, 0), (1, 0)]);
    assert_eq!(groups(&mut client)[0].atomics, 0, "{key:?}");
    // Not once it has begun.
    assert_eq!(seal(&mut client, queue.qp, 0, &image).err(), Some(Errno::INVAL));
}

#[test]
fn what_cannot_be_managed_is_refused() {
    let world = World::new(1);
    let (mut client, mut other) = (world.device(1), world.device(2));
    let (pd, (cq, _)) = (client.alloc_pd(), client.create_cq(8));
    let invalid = |answer: Result<Managed, Errno>| assert_eq!(answer.err(), Some(Errno::INVAL));
    let (queue, _) = managed(&mut client, pd, cq, |_| Vec::new());
    invalid(manage(&mut client, queue.qp));
    let late = self::queue(&mut client, pd, cq);
    connect(&mut client, late.qp, late.qpn, 1);
    invalid(manage(&mut client, late.qp));
    invalid(manage(&mut client, 1000));
    // Another context's handle means nothing here.
    invalid(manage(&mut other, queue.qp));
    for call in [Call::Stop, Call::Resume, Call::Kill] {
        assert_eq!(order(&mut other, call, &Order { group: GROUP, reserved: 0 }).err(), Some(Errno::INVAL));
    }
    assert_eq!(enable(&mut other, queue.qp, 1).err(), Some(Errno::INVAL));
    assert_eq!(enable(&mut client, late.qp, 1).err(), Some(Errno::INVAL));
    assert_eq!(register(&mut other, queue.qp).err(), Some(Errno::INVAL));
    assert_eq!(register(&mut client, late.qp).err(), Some(Errno::INVAL));
    let access = Register { qp: queue.qp, side: 0, pd: Register::OWN_PD, access: 1 << 4 };
    assert_eq!(chain::<RingKey>(&mut client, Call::Register, &access).err(), Some(Errno::INVAL));
    let foreign_pd = Register { pd: 99, access: LOCAL_WRITE, ..access };
    assert_eq!(chain::<RingKey>(&mut client, Call::Register, &foreign_pd).err(), Some(Errno::INVAL));
    let fresh = self::queue(&mut client, pd, cq);
    let long = Manage { qp: fresh.qp, group: 1, sides: Manage::SEND, send_cycle: 9, ..Manage::default() };
    invalid(chain(&mut client, Call::Manage, &long));
    assert!(groups(&mut other).is_empty());
    assert_eq!(groups(&mut client).len(), 1);
    drop((client, other));
    world.expect_reclaimed();
}

#[test]
fn queues_are_made_that_may_be_managed() {
    let world = World::new(1);
    let mut client = world.device(1);
    let (pd, (cq, _)) = (client.alloc_pd(), client.create_cq(8));
    let mut create = |create_flags| {
        let request = ExCreateQp {
            pd_handle: pd,
            send_cq_handle: cq,
            recv_cq_handle: cq,
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            qp_type: 2,
            create_flags,
            ..Default::default()
        };
        let bytes = extended(number::CREATE_QP, &request, size_of::<ExCreateQpResponse>(), 32);
        client.call(RequestKind::Verbs, &bytes, &[], None).map(drop)
    };
    assert_eq!([0, 1 << 2, 1 << 3 | 1 << 4, 7 << 2].map(&mut create), [Ok(()); 4]);
    assert_eq!(create(1 << 2 | 1 << 1).err(), Some(Errno::OPNOTSUPP));
    assert_eq!(create(1 << 2 | 1 << 30).err(), Some(Errno::INVAL));
}

/// A body with a valid head, often, and small numbers that name things.
fn body() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![4 => 0..10u32, 1 => any::<u32>()];
    let head = (0..10u32, prop_oneof![9 => Just(0u32), 1 => any::<u32>()]);
    let rest = prop::collection::vec(number, 0..10);
    let tail = prop::collection::vec(any::<u8>(), 0..4);
    (head, rest, tail).prop_map(|((call, reserved), rest, tail)| {
        let words: Vec<u32> = [call, reserved].into_iter().chain(rest).collect();
        [words.as_bytes(), &tail].concat()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    /// Any commands, while there are queues that they may be about.
    #[test]
    fn any_bytes_are_survived(bodies in prop::collection::vec(body(), 1..60)) {
        let world = World::new(1);
        let mut client = world.device(1);
        let (pd, (cq, _)) = (client.alloc_pd(), client.create_cq(8));
        (0..3).for_each(|_| drop(client.create_qp(pd, cq, 2)));
        managed(&mut client, pd, cq, |key| vec![add(0, key.key, 1)]);
        for body in bodies {
            let answer = client.call(RequestKind::Chain, &body, &[], None);
            prop_assert_ne!(answer.err(), Some(Errno::PIPE));
        }
        client.alloc_pd();
        drop(client);
        world.expect_reclaimed();
    }
}
