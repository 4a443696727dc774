//! Locks and counters: all answers, by several clients at once, as if one came after the other.
#![allow(clippy::unwrap_used)]

mod common;

use common::linear::{Done, is_linearizable};
use common::*;
use rdmesh_chain::Site;
use rdmesh_chain::build::Design;
use rdmesh_chain::model::Model;
use rdmesh_chain::offload::{counter, lock};
use rdmesh_chain::program::Chain;

/// Messages of several clients, each of which waits for its reply before the next; what was asked and answered, and when.
fn serve<Q: Copy, A: Copy>(
    seed: u64,
    chains: &[Chain],
    mut ask: impl FnMut(usize, &mut Chance, Option<A>) -> (Q, Vec<u8>),
    answer: impl Fn(usize, &[u8]) -> A,
) -> Vec<Done<(usize, Q, A)>> {
    let mut chance = Chance(seed);
    let mut model = Model::new(RULES[seed as usize % 3]);
    let mut installed = Vec::new();
    for chain in chains {
        let client = model.create_client();
        let site = Site { client: Some(client), beside: installed.first(), lap: 0 };
        let new = chain.install_at(&mut model, &site);
        installed.push(new);
    }
    let mut open: Vec<Option<(Q, u64)>> = vec![None; chains.len()];
    let mut last: Vec<Option<A>> = vec![None; chains.len()];
    let mut history = Vec::new();
    for now in 0.. {
        for n in 0..chains.len() {
            let (question, start) = *open[n].get_or_insert_with(|| {
                let (question, message) = ask(n, &mut chance, last[n]);
                model.send(installed[n].receives[0], message);
                (question, now)
            });
            for reply in model.take_messages(n as u32) {
                let answer = answer(n, &reply.data);
                (open[n], last[n]) = (None, Some(answer));
                history.push(Done { start, end: now, operation: (n, question, answer) });
            }
        }
        if history.len() >= 40 {
            break;
        }
        let steps = model.steps();
        if let Some(step) = steps.get(chance.below(steps.len().max(1) as u64) as usize) {
            model.step(*step);
        }
        assert_eq!(model.fault(), None);
    }
    // Those that are open may have had their effect: they are answered, one after the other.
    let (now, questions) = (u64::MAX, open);
    while !model.steps().is_empty() {
        let step = model.steps()[0];
        model.step(step);
    }
    for (n, question) in questions.into_iter().enumerate() {
        let reply = model.take_messages(n as u32);
        history.extend(question.zip(reply.first()).map(|((question, start), reply)| Done {
            start,
            end: now,
            operation: (n, question, answer(n, &reply.data)),
        }));
    }
    history
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ask {
    Acquire,
    Release(u64),
}

#[test]
fn locks_are_held_by_one_and_released_by_the_same() {
    let mut kinds = [0; 4];
    let of =
        |design| (1..4).map(move |owner| lock::Shape { locks: 2, owner }.program().build(design).unwrap()).collect();
    let chains: [Vec<Chain>; 2] = DESIGNS.map(of);
    for seed in 0..60 {
        let (design, chains) = (DESIGNS[seed as usize % 2], &chains[seed as usize % 2]);
        let ask = |_, chance: &mut Chance, last: Option<lock::Answer>| match (chance.below(5), last) {
            (1..5, Some(lock::Answer::Acquired { lease })) => (Ask::Release(lease), lock::release(1, lease, 0)),
            // The lease of another, or one that has ended.
            (0, Some(lock::Answer::Held { lease, .. })) => (Ask::Release(lease), lock::release(1, lease, 0)),
            (1, _) => (Ask::Release(0), lock::release(1, 0, 0)),
            _ => (Ask::Acquire, lock::acquire(1, 0)),
        };
        let history = serve(seed, chains, ask, |n, reply| lock::answer(n as u32 + 1, reply).unwrap());
        for done in &history {
            kinds[match done.operation.2 {
                lock::Answer::Acquired { .. } => 0,
                lock::Answer::Held { .. } => 1,
                lock::Answer::Released => 2,
                _ => 3,
            }] += 1;
        }
        // The owner and the lease, and the largest lease so far.
        let is_fine = is_linearizable(
            &history,
            (None, None),
            |(held, most): &(Option<(u32, u64)>, Option<u64>), (n, ask, answer)| {
                let owner = *n as u32 + 1;
                match (ask, answer) {
                    (Ask::Acquire, lock::Answer::Acquired { lease }) => (held.is_none()
                        && most.is_none_or(|most| *lease > most))
                    .then_some((Some((owner, *lease)), Some(*lease))),
                    (Ask::Release(lease), lock::Answer::Released) => {
                        (*held == Some((owner, *lease))).then_some((None, *most))
                    }
                    (Ask::Release(lease), lock::Answer::Held { owner: other, lease: theirs }) => {
                        (*held == Some((*other, *theirs)) && (*other, *theirs) != (owner, *lease))
                            .then_some((*held, *most))
                    }
                    (Ask::Acquire, lock::Answer::Held { owner, lease }) => {
                        (*held == Some((*owner, *lease))).then_some((*held, *most))
                    }
                    (Ask::Release(_), lock::Answer::NotHeld) => held.is_none().then_some((*held, *most)),
                    _ => None,
                }
            },
        );
        assert!(is_fine, "seed {seed} {design:?}: {history:#?}");
    }
    assert!(kinds.iter().all(|count| *count > 50), "{kinds:?}");
}

#[test]
fn an_ended_lease_is_no_ones() {
    let chain = lock::Shape { locks: 1, owner: lock::MAX_OWNER }.program().build(Design::Local).unwrap();
    let mut run = Run::new(chain, RULES[0], rdmesh_chain::model::Schedule::First, |_, _| ());
    let mut ask = |message: Vec<u8>| lock::answer(lock::MAX_OWNER, &run.request(&message)[0].data).unwrap();
    assert_eq!(ask(lock::acquire(0, 0)), lock::Answer::Acquired { lease: 0 });
    assert_eq!(ask(vec![9; 24]), lock::Answer::Refused);
}

#[test]
fn the_server_ends_a_lease() {
    let chain = lock::Shape { locks: 1, owner: 5 }.program().build(Design::Local).unwrap();
    let mut run = Run::new(chain, RULES[0], rdmesh_chain::model::Schedule::First, |_, _| ());
    let ask = |run: &mut Run, message: Vec<u8>| lock::answer(5, &run.request(&message)[0].data).unwrap();
    assert_eq!(ask(&mut run, lock::acquire(0, 0)), lock::Answer::Acquired { lease: 0 });
    let (old, new) = lock::end_lease(5, 0);
    let words = run.installed.regions[0];
    assert_eq!(run.model.bytes(words), old.to_le_bytes());
    run.model.bytes_mut(words).copy_from_slice(&new.to_le_bytes());
    assert_eq!(ask(&mut run, lock::release(0, 0, 0)), lock::Answer::NotHeld);
    assert_eq!(ask(&mut run, lock::acquire(0, 0)), lock::Answer::Acquired { lease: 1 });
    assert_eq!(ask(&mut run, lock::release(0, 0, 0)), lock::Answer::Held { owner: 5, lease: 1 });
}

#[test]
fn counters_never_leave_their_range() {
    let mut kinds = [0; 3];
    let of = |design| counter::Shape { counters: 2, bound: 10 }.program().build(design).unwrap();
    let chains: [Chain; 2] = DESIGNS.map(of);
    for seed in 0..60 {
        let chain = chains[seed as usize % 2].clone();
        let ask = |_, chance: &mut Chance, _| {
            let change = chance.below(13) as i64 - 6;
            (change, counter::add(1, change, 0))
        };
        let history =
            serve(seed, &[chain.clone(), chain.clone(), chain], ask, |_, reply| counter::answer(reply).unwrap());
        for done in &history {
            kinds[match done.operation.2 {
                counter::Answer::Added { .. } => 0,
                counter::Answer::Refused { .. } => 1,
                counter::Answer::Busy => 2,
            }] += 1;
        }
        let is_fine = is_linearizable(&history, 0_i64, |value, (_, change, answer)| {
            let fits = (0..=10).contains(&(value + change));
            match answer {
                counter::Answer::Added { before } => (*before as i64 == *value && fits).then_some(value + change),
                counter::Answer::Refused { value: seen } => (*seen as i64 == *value && !fits).then_some(*value),
                counter::Answer::Busy => Some(*value),
            }
        });
        assert!(is_fine, "seed {seed}: {history:#?}");
    }
    assert!(kinds.iter().all(|count| *count > 20), "{kinds:?}");
}

#[test]
fn counters_hold_at_the_ends_of_what_can_be_counted() {
    for bound in [0, 1, counter::MAX_BOUND] {
        let chain = counter::Shape { counters: 1, bound }.program().build(Design::Local).unwrap();
        let mut run = Run::new(chain, RULES[0], rdmesh_chain::model::Schedule::First, |_, _| ());
        let mut value = 0_i64;
        for change in [0, -1, 1, 1, -1, i64::MAX, bound as i64, 1, -(bound as i64), i64::MIN, -1, bound as i64, -1, 1] {
            let answer = counter::answer(&run.request(&counter::add(0, change, 0))[0].data);
            let sum = value.checked_add(change).filter(|sum| (0..=bound as i64).contains(sum));
            let expected = match sum {
                Some(_) => counter::Answer::Added { before: value as u64 },
                None => counter::Answer::Refused { value: value as u64 },
            };
            assert_eq!(answer, Some(expected), "{bound} {change}");
            value = sum.unwrap_or(value);
        }
    }
}
