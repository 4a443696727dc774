//! Two mirrors with a trunk between them, against a queue of bytes: whatever the order of steps, the reader gets what was written.
#![allow(clippy::undocumented_unsafe_blocks, reason = "pieces of the tests' own vectors, and copies within two slots")]
#![allow(unsafe_code)]

use super::*;
use proptest::prelude::*;
use rdmesh_streams::ring::Piece;
use rdmesh_streams::ring::layout::{HEADER, SLOT};
use rdmesh_uverbs::shared::SharedMemory;
use std::collections::VecDeque;

struct End {
    memory: SharedMemory,
    mirror: Mirror,
}

impl End {
    fn new(tx: usize) -> Self {
        let (memory, _) = SharedMemory::create_sparse("mirror", SLOT).unwrap();
        let mirror = Mirror::new(Slot::new(memory.clone()).unwrap(), tx, 7);
        Self { memory, mirror }
    }

    fn write(&self, bytes: &[u8]) -> usize {
        let mut bytes = bytes.to_vec();
        self.mirror.out().write(&[Piece { base: bytes.as_mut_ptr(), len: bytes.len() }]).unwrap()
    }

    fn read(&self, most: usize) -> Vec<u8> {
        let mut bytes = vec![0; most];
        let len = self.mirror.input().read(&[Piece { base: bytes.as_mut_ptr(), len: most }], false).unwrap();
        bytes.truncate(len);
        bytes
    }
}

/// A trunk one way: what is on its way, in order. Bytes are read from the sender's ring when they are sent off, as a NIC does.
#[derive(Default)]
struct Wire(VecDeque<Sent>);

enum Sent {
    Tell(State),
    Bytes { at: usize, bytes: Vec<u8> },
}

impl Wire {
    fn pump(&mut self, end: &mut End, room: usize) {
        let ring = end.memory.as_ptr().wrapping_add(HEADER + end.mirror.tx() * RING);
        let mut left = room;
        let sent = &mut self.0;
        let done = end.mirror.poll(|action| {
            if left == 0 {
                return false;
            }
            left -= 1;
            sent.push_back(match action {
                Action::Tell(state) => Sent::Tell(state),
                Action::Bytes { at, len } => {
                    let mut bytes = vec![0; len];
                    unsafe { std::ptr::copy_nonoverlapping(ring.add(at), bytes.as_mut_ptr(), len) };
                    Sent::Bytes { at, bytes }
                }
            });
            true
        });
        assert_eq!(done, Ok(()));
    }

    fn deliver(&mut self, to: &mut End) -> Option<Changed> {
        Some(match self.0.pop_front()? {
            Sent::Tell(state) => to.mirror.on_state(state).unwrap(),
            Sent::Bytes { at, bytes } => {
                let ring = to.memory.as_ptr().wrapping_add(HEADER + (1 - to.mirror.tx()) * RING);
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), ring.add(at), bytes.len()) };
                to.mirror.on_bytes(bytes.len() as u32).unwrap()
            }
        })
    }
}

/// Two ends, of which the first has moved its direction to the ring, as the second knows.
fn moved() -> (End, End, Wire, Wire) {
    let (mut writer, mut reader) = (End::new(0), End::new(1));
    let (mut there, mut back) = (Wire::default(), Wire::default());
    writer.mirror.out().header.path.up_at.store(1, SeqCst);
    there.pump(&mut writer, usize::MAX);
    there.deliver(&mut reader);
    back.pump(&mut reader, usize::MAX);
    back.deliver(&mut writer);
    (writer, reader, there, back)
}

#[derive(Clone, Debug)]
enum Step {
    Write(usize),
    Read(usize),
    Pump(bool, usize),
    Deliver(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (1..RING).prop_map(Step::Write),
        (1..RING).prop_map(Step::Read),
        (any::<bool>(), 0..4usize).prop_map(|(from_writer, room)| Step::Pump(from_writer, room)),
        any::<bool>().prop_map(Step::Deliver),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_reader_gets_what_was_written_and_then_the_end(steps in steps()) {
        let (mut writer, mut reader) = (End::new(0), End::new(1));
        let (mut there, mut back) = (Wire::default(), Wire::default());
        let (mut written, mut read) = (0u64, 0u64);
        let pattern = |from: u64, len: usize| (0..len as u64).map(|n| ((from + n) % 251) as u8).collect::<Vec<u8>>();
        writer.mirror.out().header.path.up_at.store(1, SeqCst);
        let check = |read: &mut u64, got: Vec<u8>| {
            assert_eq!(got, pattern(*read, got.len()));
            *read += got.len() as u64;
        };
        for step in steps {
            match step {
                Step::Write(len) => written += writer.write(&pattern(written, len)) as u64,
                Step::Read(most) => check(&mut read, reader.read(most)),
                Step::Pump(true, room) => there.pump(&mut writer, room),
                Step::Pump(false, room) => back.pump(&mut reader, room),
                Step::Deliver(true) => drop(there.deliver(&mut reader)),
                Step::Deliver(false) => drop(back.deliver(&mut writer)),
            }
            prop_assert!(reader.mirror.input().used().unwrap() <= RING);
        }
        writer.mirror.out().header.path.is_final.store(1, SeqCst);
        // Each pass of both relays and of the reader gets on.
        for _ in 0..8 {
            there.pump(&mut writer, usize::MAX);
            while there.deliver(&mut reader).is_some() {
                let header = reader.mirror.input().header;
                let is_final = header.path.is_final.load(SeqCst) != 0;
                let has_all = header.producer.tail.load(SeqCst) == written;
                prop_assert!(!is_final || has_all, "an end before the last byte");
            }
            check(&mut read, reader.read(RING));
            back.pump(&mut reader, usize::MAX);
            while back.deliver(&mut writer).is_some() {}
        }
        prop_assert_eq!(read, written);
        prop_assert!(reader.mirror.has_heard_end());
        // The other direction has not ended.
        prop_assert!(!writer.mirror.is_over() && !reader.mirror.is_over());
        reader.mirror.orphan();
        back.pump(&mut reader, usize::MAX);
        while back.deliver(&mut writer).is_some() {}
        prop_assert!(writer.mirror.is_over() && reader.mirror.is_over());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// At any moment: either the reader's slot says where the ring begins, or no byte of the ring is handed on, ever.
    #[test]
    fn a_writer_that_withdraws_knows_what_its_reader_knows(before in steps(), after in steps()) {
        let (mut writer, mut reader) = (End::new(0), End::new(1));
        let (mut there, mut back) = (Wire::default(), Wire::default());
        let mut is_withdrawn = false;
        for (is_after, step) in before.iter().map(|step| (false, step)).chain(after.iter().map(|step| (true, step))) {
            let path = &writer.mirror.out().header.path;
            if is_after && path.down_at.load(SeqCst) == 0 {
                is_withdrawn = path.withdraw_move();
                path.down_at.store(1, SeqCst);
                let up_at = reader.mirror.input().header.path.up_at.load(SeqCst);
                prop_assert!(is_withdrawn || up_at == 9, "{up_at}: the reader does not know what a record is");
            }
            match step {
                Step::Write(len) if !is_after => {
                    writer.mirror.out().header.path.up_at.store(9, SeqCst);
                    writer.write(&vec![1; *len]);
                }
                Step::Pump(true, room) => there.pump(&mut writer, *room),
                Step::Pump(false, room) => back.pump(&mut reader, *room),
                Step::Deliver(true) => drop(there.deliver(&mut reader)),
                Step::Deliver(false) => drop(back.deliver(&mut writer)),
                Step::Write(_) | Step::Read(_) => {}
            }
            prop_assert!(!is_withdrawn || reader.mirror.input().readable() == Ok(0));
        }
        for _ in 0..3 {
            there.pump(&mut writer, usize::MAX);
            while there.deliver(&mut reader).is_some() {}
            back.pump(&mut reader, usize::MAX);
            while back.deliver(&mut writer).is_some() {}
        }
        let path = &reader.mirror.input().header.path;
        let seen = (path.up_at.load(SeqCst), path.down_at.load(SeqCst));
        prop_assert!(!is_withdrawn || seen == (0, 1), "{seen:?}: the reader waits for a record");
        prop_assert!(!is_withdrawn || reader.mirror.input().readable() == Ok(0));
    }
}

/// Such bytes cause no traffic by which a peer that has gone would be noticed: the relay has to limit the wait.
#[test]
fn bytes_wait_for_the_other_ends_word_until_the_writer_withdraws() {
    for withdraws in [false, true] {
        let (mut writer, mut reader) = (End::new(0), End::new(1));
        let (mut there, mut back) = (Wire::default(), Wire::default());
        assert!(!writer.mirror.is_unsettled(), "nothing waits");
        writer.mirror.out().header.path.up_at.store(1, SeqCst);
        assert_eq!(writer.write(&[1; 100]), 100);
        there.pump(&mut writer, usize::MAX);
        there.deliver(&mut reader);
        assert!(writer.mirror.is_unsettled() && reader.mirror.input().readable() == Ok(0));
        if withdraws {
            assert!(writer.mirror.out().header.path.withdraw_move());
        } else {
            back.pump(&mut reader, usize::MAX);
            back.deliver(&mut writer);
            there.pump(&mut writer, usize::MAX);
        }
        assert!(!writer.mirror.is_unsettled());
    }
}

#[test]
fn the_last_bytes_of_a_killed_process_wait_for_nobody() {
    let (mut writer, mut reader, mut there) = (End::new(0), End::new(1), Wire::default());
    writer.mirror.out().header.path.up_at.store(1, SeqCst);
    assert_eq!(writer.write(&[1; 100]), 100);
    writer.mirror.orphan();
    there.pump(&mut writer, usize::MAX);
    while there.deliver(&mut reader).is_some() {}
    assert_eq!(reader.read(200).len(), 100);
    assert!(reader.mirror.has_heard_end());
}

#[test]
fn a_writer_that_waits_for_space_hears_of_it() {
    let (mut writer, mut reader, mut there, mut back) = moved();
    for _ in 0..100 {
        while writer.write(&[1; 5000]) != 0 {
            there.pump(&mut writer, usize::MAX);
            while there.deliver(&mut reader).is_some() {}
            back.pump(&mut reader, usize::MAX);
        }
        writer.mirror.out().wish_for_space();
        let mut is_told = false;
        while !is_told {
            let len = reader.read(1000).len();
            // The process signals the relay only if it was asked to.
            if reader.mirror.input().take_wish_for_space() || len == 0 {
                back.pump(&mut reader, usize::MAX);
            }
            while let Some(changed) = back.deliver(&mut writer) {
                is_told |= changed.writer;
            }
            assert!(len != 0 || is_told, "the reader has nothing more, and the writer waits");
        }
        assert_ne!(writer.mirror.out().free(), Ok(0));
    }
}

#[test]
fn a_frozen_direction_is_told_with_its_exact_position() {
    let (mut writer, mut reader, mut there, mut back) = moved();
    assert_eq!(writer.write(&[1; 1000]), 1000);
    there.pump(&mut writer, usize::MAX);
    while there.deliver(&mut reader).is_some() {}
    assert_eq!(reader.read(300).len(), 300);
    reader.mirror.input().header.path.is_frozen.store(1, SeqCst);
    back.pump(&mut reader, usize::MAX);
    assert!(back.deliver(&mut writer).unwrap().is_frozen);
    let out = writer.mirror.out();
    assert_eq!((out.header.consumer.head.load(SeqCst), out.header.path.is_frozen.load(SeqCst)), (300, 1));
}

/// A reader that has seen TCP's end sleeps until it hears this: its peer has never written to the ring.
#[test]
fn a_direction_that_never_left_tcp_wakes_its_reader_when_it_ends() {
    let (mut writer, mut reader, mut there) = (End::new(0), End::new(1), Wire::default());
    writer.mirror.out().header.path.down_at.store(1, SeqCst);
    there.pump(&mut writer, usize::MAX);
    assert!(there.deliver(&mut reader).unwrap().reader);
    assert_eq!(reader.mirror.input().header.path.down_at.load(SeqCst), 1);
}

#[test]
fn positions_that_lie_end_the_stream() {
    let mut end = End::new(0);
    end.mirror.out().header.producer.tail.store(RING as u64 + 1, SeqCst);
    assert_eq!(end.mirror.poll(|_| true), Err(Corrupt));
    let mut end = End::new(0);
    assert_eq!(end.mirror.on_state(State { head: 1, ..State::default() }), Err(Corrupt), "read before it was sent");
    assert_eq!(end.mirror.on_bytes(RING as u32 + 1), Err(Corrupt));
    let mut end = End::new(0);
    // The process says that the other end has read what it has not.
    assert_eq!(end.write(&[0; RING]), RING);
    end.mirror.poll(|_| true).unwrap();
    end.mirror.out().header.consumer.head.store(RING as u64, SeqCst);
    assert_eq!(end.write(&[0; 1]), 1);
    assert_eq!(end.mirror.poll(|_| true), Err(Corrupt));
}
