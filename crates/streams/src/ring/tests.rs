//! Rings against a queue of bytes, and against positions that lie.
#![allow(clippy::undocumented_unsafe_blocks, reason = "pieces of the tests' own vectors")]

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

fn slot() -> Slot {
    Slot::new(SharedMemory::create_sparse("ring", SLOT).unwrap().0).unwrap()
}

fn pieces(parts: &mut [Vec<u8>]) -> Vec<Piece> {
    parts.iter_mut().map(|part| Piece { base: part.as_mut_ptr(), len: part.len() }).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Write(Vec<usize>),
    Read(Vec<usize>, bool),
    Discard(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let lengths = || prop::collection::vec(0..RING, 1..4);
    let step = prop_oneof![
        lengths().prop_map(Step::Write),
        (lengths(), any::<bool>()).prop_map(|(lengths, keep)| Step::Read(lengths, keep)),
        (0..RING).prop_map(Step::Discard),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn bytes_come_out_as_they_went_in(steps in steps(), start in any::<u64>()) {
        let slot = slot();
        let ring = slot.ring(1);
        ring.header.producer.tail.store(start, SeqCst);
        ring.header.consumer.head.store(start, SeqCst);
        let (mut model, mut next) = (VecDeque::new(), 0u8);
        for step in steps {
            match step {
                Step::Write(lengths) => {
                    let mut fresh = || { next = next.wrapping_mul(5).wrapping_add(1); next };
                    let mut parts: Vec<Vec<u8>> = lengths.iter().map(|len| (0..*len).map(|_| fresh()).collect()).collect();
                    let done = ring.write(&pieces(&mut parts)).unwrap();
                    let total: usize = lengths.iter().sum();
                    prop_assert_eq!(done, total.min(RING - model.len()));
                    model.extend(parts.concat().into_iter().take(done));
                }
                Step::Read(lengths, keep) => {
                    let mut parts: Vec<Vec<u8>> = lengths.iter().map(|len| vec![0; *len]).collect();
                    let done = ring.read(&pieces(&mut parts), keep).unwrap();
                    let total: usize = lengths.iter().sum();
                    prop_assert_eq!(done, total.min(model.len()));
                    let expected: Vec<u8> = model.iter().take(done).copied().collect();
                    prop_assert_eq!(&parts.concat()[..done], &expected[..]);
                    if !keep {
                        model.drain(..done);
                    }
                }
                Step::Discard(len) => {
                    let done = ring.discard(len).unwrap();
                    prop_assert_eq!(done, len.min(model.len()));
                    model.drain(..done);
                }
            }
            prop_assert_eq!((ring.used(), ring.free()), (Ok(model.len()), Ok(RING - model.len())));
        }
    }

    #[test]
    fn positions_that_lie_are_noticed(head in any::<u64>(), tail in any::<u64>(), down in any::<u64>()) {
        let slot = slot();
        let ring = slot.ring(0);
        ring.header.producer.tail.store(tail, SeqCst);
        ring.header.consumer.head.store(head, SeqCst);
        ring.header.path.down_at.store(down, SeqCst);
        let mut room = vec![vec![0; 2 * RING]];
        let lies = tail.wrapping_sub(head) > RING as u64;
        prop_assert_eq!(ring.used().is_err(), lies);
        if let Ok(len) = ring.read(&pieces(&mut room), false) {
            prop_assert!(!lies && len <= RING);
        }
        prop_assert!(ring.write(&pieces(&mut room)).is_ok_and(|len| len <= RING) || ring.used().is_err());
    }
}

#[test]
fn bytes_behind_a_switch_to_tcp_are_not_read() {
    let slot = slot();
    let ring = slot.ring(0);
    let mut parts = [b"before".to_vec(), b"behind".to_vec()];
    assert_eq!(ring.write(&pieces(&mut parts)), Ok(12));
    ring.header.path.down_at.store(6 + 1, SeqCst);
    let mut room = [vec![0; 100]];
    assert_eq!(ring.read(&pieces(&mut room), false), Ok(6));
    assert_eq!((&room[0][..6], ring.readable()), (&b"before"[..], Ok(0)));
}

#[test]
fn a_wish_for_space_is_told_once_and_not_for_a_little() {
    let slot = slot();
    let ring = slot.ring(0);
    let mut parts = [vec![7; RING]];
    assert_eq!(ring.write(&pieces(&mut parts)), Ok(RING));
    assert!(!ring.take_wish_for_space());
    ring.wish_for_space();
    assert_eq!((ring.discard(RING / 4 - 1), ring.take_wish_for_space()), (Ok(RING / 4 - 1), false));
    assert_eq!((ring.discard(1), ring.take_wish_for_space(), ring.take_wish_for_space()), (Ok(1), true, false));
}
