//! An error in each position of a chain, and the end of a chain in each of its states.

use super::super::world::*;
use super::world::*;
use crate::chain::ChainState;
use crate::engine::Event;
use crate::policy::Rate;
use rdmesh_verbs::chain::{ChainFlags, ChainOp, Request};
use rdmesh_verbs::*;

/// A chain of three queues, with a request of each sort.
struct Program {
    a: Node,
    queues: Vec<Queue>,
}

/// A request that is refused, and its status.
fn bad(kind: usize, a: &Node) -> (Request, WcStatus) {
    let sges = [a.sge(0, 8)].into_iter().collect();
    let with = |op, flags| Request { flags, sges, ..request(op) };
    match kind {
        0 => (with(ChainOp::Write, ChainFlags::LOCAL), WcStatus::LocalProtectionError),
        1 => (with(ChainOp::Write, ChainFlags::SIGNALED), WcStatus::RemoteAccessError),
        2 => (with(ChainOp::Read, ChainFlags::SIGNALED), WcStatus::RemoteAccessError),
        3 => (order(ChainOp::Enable, 999, 1, 0), WcStatus::LocalQpOperationError),
        4 => (order(ChainOp::Wait, 999, 1, 0), WcStatus::LocalQpOperationError),
        5 => (with(ChainOp::Send, ChainFlags::LOCAL), WcStatus::LocalQpOperationError),
        _ => {
            let sges = [Sge { addr: 0, length: 8, lkey: Key(1) }].into_iter().collect();
            (Request { sges, ..local(ChainOp::Max, a, 0, 1) }, WcStatus::LocalProtectionError)
        }
    }
}

impl Program {
    /// With a bad request of a kind in one of its positions, if one is named.
    fn new(world: &mut World, fault: Option<(usize, usize)>) -> Self {
        let a = world.node(0, 1, Setup { signal_all: false, ..Setup::default() });
        let plain: Vec<Queue> = (0..3).map(|_| world.plain(&a, 64, true)).collect();
        let write = |flags| {
            let sges = [a.sge(256, 16)].into_iter().collect();
            let args = chain::Args { remote_addr: BASE + 512, rkey: a.key.0, ..chain::Args::default() };
            Request { flags, sges, args, ..request(ChainOp::Write) }
        };
        let mut slots = [
            request(ChainOp::Nop),
            write(ChainFlags::LOCAL),
            write(ChainFlags::SIGNALED),
            Request { imm: 1, ..order(ChainOp::Enable, plain[1].qp, 4, 0) },
            order(ChainOp::Wait, plain[0].cq, 2, 2),
            local(ChainOp::FetchAdd, &a, 0, 1),
            request(ChainOp::Nop),
            Request { imm: 1, ..order(ChainOp::Enable, plain[2].qp, 4, 0) },
            order(ChainOp::Wait, plain[1].cq, 1, 1),
            local(ChainOp::FetchAdd, &a, 8, 1),
            write(ChainFlags::SIGNALED),
            Request { imm: 1, ..order(ChainOp::Enable, plain[0].qp, 4, 0) },
        ];
        if let Some((position, kind)) = fault {
            slots[position] = bad(kind, &a).0;
        }
        for (queue, slots) in plain.iter().zip(slots.chunks(4)) {
            world.manage(queue, GROUP, 4).unwrap();
            queue.put(slots);
            world.connect(&queue.node, &queue.node);
        }
        Self { a, queues: plain }
    }

    fn start(&self, world: &mut World) {
        world.device_of(&self.a).enable(self.queues[0].qp, 4).unwrap();
    }

    /// Destroys everything, in any order, and looks for what is left.
    fn destroy(self, world: &mut World, first: usize) {
        for n in 0..3 {
            let queue = &self.queues[(first + n) % 3];
            world.device_of(&self.a).destroy_qp(queue.qp).unwrap();
            world.step();
        }
        world.settle();
        assert!(world.device_of(&self.a).chains().list().is_empty());
        for queue in &self.queues {
            assert!(world.device_of(&self.a).context_mut().destroy_cq(queue.cq).is_ok(), "a queue still waits");
        }
        let engine = &mut world.engines[0];
        assert!(!engine.has_work() && engine.out.timers.len() == 0 && !engine.out.chains.has_any());
        assert_eq!(engine.out.chains.deadline(), None);
    }
}

#[test]
fn an_error_in_any_position_ends_the_group_once_and_is_named() {
    for (position, kind) in (0..12).flat_map(|position| (0..7).map(move |kind| (position, kind))) {
        let context = format!("position {position}, kind {kind}");
        let mut world = World::new(1);
        let program = Program::new(&mut world, Some((position, kind)));
        program.start(&mut world);
        for _ in 0..200 {
            world.step();
        }
        let entry = world.entry(&program.a, GROUP);
        // A queue whose predecessor has lost its ENABLE, or its completions, stands still instead.
        let fault = entry.fault.unwrap_or_else(|| panic!("no fault: {context}"));
        let (queue, index) = (&program.queues[position / 4], position as u64 % 4);
        let status = bad(kind, &program.a).1;
        assert_eq!((fault.qp, fault.index % 4, fault.status), (queue.qp, index, status), "{context}");
        assert_eq!(entry.state, ChainState::Poisoned, "{context}");
        assert!(program.queues.iter().all(|queue| world.state(&queue.node) == QpState::Error), "{context}");
        let is_fatal = |event: &&Event| matches!(event, Event::Async { event: AsyncEvent::QpFatal, .. });
        assert_eq!(world.events.iter().filter(is_fatal).count(), 1, "{context}");
        let failed = program.queues.iter().flat_map(Queue::statuses).filter(|status| !is_usual(*status)).count();
        // A queue pair that is connected to itself fails as its own peer, and flushes the request.
        assert_eq!(failed, usize::from(!matches!(kind, 1 | 2)), "{context}");
        program.destroy(&mut world, position % 3);
    }
}

fn is_usual(status: WcStatus) -> bool {
    matches!(status, WcStatus::Success | WcStatus::FlushError)
}

/// After so many polls: in the middle of a lap, while queues wait, stopped, without steps, killed.
#[test]
fn a_chain_is_destroyed_in_every_state() {
    for (polls, state) in (0..24).flat_map(|polls| (0..5).map(move |state| (polls, state))) {
        let mut world = World::new(1);
        let program = Program::new(&mut world, None);
        let rate = Rate { per_second: 1, burst: polls };
        world.device_of(&program.a).set_policy(steps_policy((state == 1).then_some(rate)));
        program.start(&mut world);
        for _ in 0..polls {
            world.step();
        }
        let mut device = world.device_of(&program.a);
        match state {
            2 => device.chains().stop(GROUP).unwrap(),
            3 => device.chains().kill(GROUP).unwrap(),
            4 => {
                device.chains().stop(GROUP).unwrap();
                world.settle();
                world.device_of(&program.a).chains().resume(GROUP).unwrap();
            }
            _ => {}
        }
        program.destroy(&mut world, polls as usize % 3);
    }
}
