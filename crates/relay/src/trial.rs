//! A mirror on trial: what a hostile process writes into its slot, and a hostile peer says of it, in any order.

use crate::mirror::Mirror;
use crate::wire::{self, Message, Received};
use rdmesh_streams::ring::Slot;
use rdmesh_streams::ring::layout::SLOT;
use rdmesh_uverbs::shared::SharedMemory;
use std::sync::atomic::Ordering::SeqCst;

/// A stream between a process and a peer, neither of which keeps to the rules.
pub struct Trial(Mirror);

impl Trial {
    /// A new stream. None where there is no memory for it.
    pub fn new() -> Option<Self> {
        let (memory, _) = SharedMemory::create_sparse("rdmesh-trial", SLOT).ok()?;
        Some(Self(Mirror::new(Slot::new(memory)?, 0, 0)))
    }

    /// The peer sends a batch. What is no message, or contradicts what has been said, ends the stream.
    pub fn peer_sends(&mut self, batch: &[u8]) -> bool {
        wire::parse(batch).all(|received| match received {
            Some(Received::Message(Message::State { state, .. })) => self.0.on_state(state).is_ok(),
            Some(Received::Bytes { bytes, .. }) => self.0.on_few_bytes(bytes).is_ok(),
            Some(Received::Message(_)) => true,
            None => false,
        })
    }

    /// The process writes numbers into its slot's header.
    pub fn process_writes(&self, [tail, head, up_at, down_at]: [u64; 4], bits: u32) {
        let (out, input) = (self.0.out(), self.0.input());
        out.header.producer.tail.store(tail, SeqCst);
        input.header.consumer.head.store(head, SeqCst);
        out.header.path.up_at.store(up_at, SeqCst);
        out.header.path.down_at.store(down_at, SeqCst);
        out.header.path.is_final.store(bits & 1, SeqCst);
        input.header.path.is_frozen.store(bits >> 1 & 1, SeqCst);
    }

    /// The relay looks at the slot, with room for so many requests. Whatever it hands on lies within the ring.
    pub fn relay_looks(&mut self, room: usize) -> bool {
        use rdmesh_streams::ring::layout::RING;
        let mut left = room;
        let looked = self.0.poll(|action| {
            if let crate::mirror::Action::Bytes { at, len } = action {
                assert!(len > 0 && at + len <= RING, "{len} bytes at {at} of a ring");
            }
            left = left.saturating_sub(1);
            left > 0
        });
        looked.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Peer(Vec<u8>),
        Process([u64; 4], u32),
        Relay(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        // Numbers near each other pass more checks.
        let number = prop_oneof![0..300_000u64, any::<u64>()];
        let words = prop::collection::vec(prop_oneof![0..8u32, any::<u32>()], 0..40);
        let bytes = words.prop_map(|words| words.iter().flat_map(|word| word.to_le_bytes()).collect());
        let numbers = [number.clone(), number.clone(), number.clone(), number];
        let step = prop_oneof![
            bytes.prop_map(Step::Peer),
            (numbers, any::<u32>()).prop_map(|(numbers, bits)| Step::Process(numbers, bits)),
            (0..5usize).prop_map(Step::Relay),
        ];
        prop::collection::vec(step, 1..40)
    }

    proptest! {
        #[test]
        fn nothing_outside_the_ring_is_handed_on(steps in steps()) {
            let mut trial = Trial::new().expect("memory");
            for step in steps {
                let goes_on = match step {
                    Step::Peer(batch) => trial.peer_sends(&batch),
                    Step::Process(numbers, bits) => {
                        trial.process_writes(numbers, bits);
                        true
                    }
                    Step::Relay(room) => trial.relay_looks(room),
                };
                if !goes_on {
                    break;
                }
            }
        }
    }
}
