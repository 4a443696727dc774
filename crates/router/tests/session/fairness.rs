//! Fairness of the session thread: how many commands of others a program waits for, and what goes on elsewhere meanwhile.

use crate::client::{Client, plain};
use crate::world::World;
use rdmesh_uverbs::abi::*;
use rdmesh_uverbs::session::{RequestHeader, RequestKind, VERSION};
use rdmesh_verbs::Vni;
use zerocopy::{FromBytes, IntoBytes};

/// Connections of the tenant with many.
const MANY: usize = 20;

/// A device that is ready to make a queue pair.
struct Ready {
    client: Client,
    request: Vec<u8>,
}

impl Ready {
    fn new(mut client: Client) -> Self {
        let (pd_handle, (cq, _)) = (client.alloc_pd(), client.create_cq(4));
        let request = CreateQp {
            pd_handle,
            send_cq_handle: cq,
            recv_cq_handle: cq,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_send_wr: 4,
            max_recv_wr: 4,
            qp_type: 2,
            ..Default::default()
        };
        // The queues have their pages already.
        client.try_create_qp(&request).unwrap();
        let body = plain(number::CREATE_QP, &request, &[], size_of::<CreateQpResponse>() + 32);
        let kind = RequestKind::Verbs as u32;
        let header = RequestHeader { version: VERSION, kind, command_len: body.len() as u32, segments: 0 };
        Self { client, request: [header.as_bytes(), &body].concat() }
    }

    fn ask(&mut self) {
        self.client.send(&self.request, None).unwrap();
    }

    /// The number of the queue pair: a worker numbers them in the order in which they are made.
    fn number(&mut self) -> u32 {
        let answer = self.client.receive().unwrap();
        CreateQpResponse::read_from_prefix(&answer.response).unwrap().0.qpn
    }
}

/// Commands of `MANY` connections that were executed before the one command of a bystander, which came last of all.
fn executed_before(world: &World, mut many: Vec<Ready>, mut bystander: Ready) -> usize {
    let held = world.hold_worker();
    many.iter_mut().for_each(Ready::ask);
    bystander.ask();
    drop(held);
    let mine = bystander.number();
    many.iter_mut().map(Ready::number).filter(|number| *number < mine).count()
}

#[test]
fn many_connections_of_an_endpoint_have_one_turn() {
    let world = World::new(1);
    let path = world.endpoint(1);
    let many = (0..MANY).map(|_| Ready::new(Client::device(&path))).collect();
    let bystander = Ready::new(world.device(2));
    // The one under execution, and one turn.
    let before = executed_before(&world, many, bystander);
    assert!(before <= 2, "{before}");
}

#[test]
fn many_endpoints_of_a_tenant_have_one_turn() {
    let world = World::new(1);
    let many = (0..MANY).map(|n| Ready::new(world.device(10 + n as u8))).collect();
    let bystander = Ready::new(Client::device(&world.endpoint_with(1, |spec| spec.vni = Vni(8))));
    let before = executed_before(&world, many, bystander);
    assert!(before <= 2, "{before}");
}

#[test]
fn connections_of_one_endpoint_have_their_turns() {
    let world = World::new(1);
    let path = world.endpoint(1);
    let mut talkative = Ready::new(Client::device(&path));
    let mut other = Ready::new(Client::device(&path));
    let mut first = Ready::new(Client::device(&path));
    let held = world.hold_worker();
    first.ask();
    talkative.ask();
    other.ask();
    drop(held);
    let mine = other.number();
    // Messages that follow wait for those of others that were there before.
    talkative.number();
    talkative.ask();
    assert!(talkative.number() > mine);
    first.number();
}
