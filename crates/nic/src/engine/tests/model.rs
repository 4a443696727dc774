//! Random traffic, compared with a plain model of memory and completions.

use super::world::*;
use crate::timer::Time;
use proptest::prelude::*;
use rdmesh_verbs::*;

#[derive(Clone, Debug)]
enum Step {
    Send(usize, u16),
    Recv(usize, u16),
    Write(usize, u16, u16, u32),
    Read(usize, u16, u16, u32),
    Add(usize, u64),
    Settle,
}

fn step() -> impl Strategy<Value = Step> {
    let side = 0..2usize;
    prop_oneof![
        (side.clone(), any::<u16>()).prop_map(|(s, n)| Step::Send(s, n % 2000)),
        (side.clone(), any::<u16>()).prop_map(|(s, n)| Step::Recv(s, 2000 + n % 100)),
        (side.clone(), any::<u16>(), any::<u16>(), 0..150_000u32).prop_map(|(s, a, b, n)| Step::Write(s, a, b, n)),
        (side.clone(), any::<u16>(), any::<u16>(), 0..150_000u32).prop_map(|(s, a, b, n)| Step::Read(s, a, b, n)),
        (side, any::<u64>()).prop_map(|(s, n)| Step::Add(s, n)),
        Just(Step::Settle),
    ]
}

/// Layout of each side's memory: WRITE and READ use the low part, the atomic counter and receives lie above.
const COUNTER: u64 = 400_000;
const RECEIVES: u64 = 420_000;

/// Two hosts between which one datagram in ten is lost.
fn lossy(seed: u32) -> World {
    let mut world = World::two_hosts();
    let mut state = seed | 1;
    world.lose = Box::new(move |_, _| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.is_multiple_of(10)
    });
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For all posted requests: every request completes once and in order, sends meet receives in order, every atomic is
    /// executed exactly once, and every slot of the send queue is handed back.
    #[test]
    fn traffic_matches_the_model(steps in proptest::collection::vec(step(), 1..60), kind in 0..4usize, seed: u32) {
        let mut world = World::kinds().into_iter().nth(kind).unwrap_or_else(|| lossy(seed));
        let last = world.engines.len() - 1;
        let (a, b) = (world.node(0, 1, Setup::default()), world.node(last, 2, Setup::default()));
        let long_timeouts = |attr: &mut QpAttr| (attr.rnr_retry, attr.retry_cnt, attr.timeout) = (7, 7, 10);
        world.connect_with(&a, &b, long_timeouts);
        world.connect_with(&b, &a, long_timeouts);
        let nodes = [a, b];
        let mut posted: [Vec<u64>; 2] = Default::default();
        let mut sends = [0u64; 2];
        let mut recvs = [0u64; 2];
        let mut sums = [0u64; 2];
        for (id, step) in steps.iter().enumerate() {
            let id = id as u64;
            match *step {
                Step::Send(s, len) => {
                    posted[s].push(id);
                    sends[s] += 1;
                    world.post(&nodes[s], wr(id, SendOp::Send { imm: None }, &[nodes[s].sge(0, u32::from(len))]));
                }
                Step::Recv(s, len) => {
                    nodes[s].post_recv(1000 + recvs[s], &[nodes[s].sge(RECEIVES, u32::from(len))]);
                    recvs[s] += 1;
                }
                Step::Write(s, from, to, len) => {
                    posted[s].push(id);
                    let op = SendOp::Write { remote_addr: BASE + u64::from(to), rkey: nodes[1 - s].key, imm: None };
                    world.post(&nodes[s], wr(id, op, &[nodes[s].sge(u64::from(from), len)]));
                }
                Step::Read(s, from, to, len) => {
                    posted[s].push(id);
                    let op = SendOp::Read { remote_addr: BASE + u64::from(from), rkey: nodes[1 - s].key };
                    world.post(&nodes[s], wr(id, op, &[nodes[s].sge(u64::from(to), len)]));
                }
                Step::Add(s, add) => {
                    posted[s].push(id);
                    sums[1 - s] = sums[1 - s].wrapping_add(add);
                    let op = SendOp::FetchAdd { remote_addr: BASE + COUNTER, rkey: nodes[1 - s].key, add };
                    world.post(&nodes[s], wr(id, op, &[nodes[s].sge(COUNTER + 8, 8)]));
                }
                Step::Settle => world.settle(),
            }
        }
        // Give every send its receive, and time for the RNR timers.
        for s in 0..2 {
            while recvs[s] < sends[1 - s] {
                nodes[s].post_recv(1000 + recvs[s], &[nodes[s].sge(RECEIVES, 2000)]);
                recvs[s] += 1;
            }
        }
        world.run_until(Time(world.now.0 + 1_000_000_000));
        for s in 0..2 {
            let all: Vec<_> = std::iter::from_fn(|| nodes[s].poll()).collect();
            prop_assert!(all.iter().all(|wc| wc.status == WcStatus::Success), "{:?}", all);
            let (received, sent): (Vec<_>, Vec<_>) = all.into_iter().partition(|wc| wc.opcode == WcOpcode::Recv);
            prop_assert_eq!(sent.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), posted[s].clone());
            let expected: Vec<_> = (0..sends[1 - s]).map(|i| 1000 + i).collect();
            prop_assert_eq!(received.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), expected);
            prop_assert_eq!(nodes[s].memory.get(COUNTER as usize, 8), sums[s].to_ne_bytes());
            prop_assert_eq!(*nodes[s].sends.taken.lock().unwrap(), 0);
        }
    }
}
