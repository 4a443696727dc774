//! Requests that are posted just before their queue pair is moved to ERR or destroyed.
//!
//! Nothing is lost on the way, receives are posted, and the window has room: then everything that was posted before the
//! command is delivered, although no engine had seen the doorbell when the command came.

use crate::chance::{Chance, Stream};
use crate::layout::{BUFFERS, SLOT, TARGET};
use crate::model::{Check, Kind, violated};
use crate::plan::Plan;
use crate::schedules;
use crate::world::World;
use rdmesh_verbs::{Mtu, QpType};

/// Runs the case that `seed` chooses.
pub fn run(seed: u64, verbose: bool) -> Check {
    let mut chance = Chance::new(seed, Stream::Topology);
    let mut plan = Plan { seed, ..schedules::plan() };
    let is_local = chance.happens(0.4);
    for (number, node) in plan.nodes.iter_mut().enumerate() {
        node.host = if is_local { 0 } else { number };
        let shards = &mut plan.hosts[node.host].shards;
        *shards = (*shards).max(chance.between(1, 4) as u32);
        node.shard = chance.between(0, u64::from(*shards)) as u32;
    }
    plan.pairs[0].qp_type = chance.pick(&[QpType::Rc, QpType::Rc, QpType::Uc, QpType::Ud]);
    plan.pairs[0].mtu = chance.pick(&[Mtu::B256, Mtu::B1024, Mtu::B4096]);
    let pair = plan.pairs[0];
    let mut world = World::by_hand(plan, verbose)?;
    let total = chance.between(1, BUFFERS + 1) as usize;
    for _ in 0..total {
        let packets = if pair.qp_type == QpType::Ud { 1 } else { PACKETS };
        let len = chance.between(0, (packets * u64::from(pair.mtu.bytes())).min(LONGEST) + 1);
        let kind = match pair.qp_type {
            QpType::Ud => Kind::Datagram { imm: None },
            QpType::Rc if chance.happens(0.3) => Kind::Write { target: SLOT + TARGET.start, imm: None },
            _ => Kind::Send { imm: None, invalidate: None },
        };
        world.ask(0, kind, len)?;
    }
    world.end(0, chance.happens(0.5))?;
    loop {
        let flying = world.take_flying();
        if flying.is_empty() {
            break;
        }
        flying.iter().try_for_each(|datagram| world.deliver(datagram))?;
    }
    (0..2).try_for_each(|host| world.work(host))?;
    world.model.advance(0);
    let flow = &world.model.ends[0].flow;
    let arrived = match pair.qp_type {
        QpType::Rc => flow.executed,
        _ => flow.ops.iter().filter(|op| op.delivered == 1).count(),
    };
    if arrived == total {
        return Ok(());
    }
    violated("P10", format!("{arrived} of {total} requests of {:?} were executed, local: {is_local}", pair.qp_type))
}

/// Most packets of a message: all of them fit the window.
const PACKETS: u64 = 9;
/// Bytes of the longest message: as many as a receive request and the room for data allow.
const LONGEST: u64 = 2048;
