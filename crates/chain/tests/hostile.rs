//! Messages of any bytes: an offload answers, or its chain stops with an error; it writes nothing but its own scratch memory.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use rdmesh_chain::build::Design;
use rdmesh_chain::model::{Fetch, Model, Schedule};
use rdmesh_chain::program::Content;

#[test]
fn messages_of_any_bytes_change_no_table_and_no_operation() {
    let (mut stopped, mut answered) = (0, 0);
    for (name, program) in offloads() {
        let chain = program.build(Design::Local).unwrap();
        let length = chain.receives[0].message(0) as usize;
        for seed in 0..60 {
            let mut chance = Chance(seed);
            let mut model = Model::new(Fetch::Earliest);
            let client = model.create_client();
            let buffer = model.register_at_client(client, 0x4000, vec![0; 512]);
            let installed = chain.install(&mut model, Some(client));
            let kept: Vec<u32> = chain
                .regions
                .iter()
                .zip(&installed.regions)
                .filter(|(region, _)| !matches!(region.content, Content::Scratch(_) | Content::Shared(_)))
                .map(|(_, key)| *key)
                .collect();
            let before: Vec<Vec<u8>> = kept.iter().map(|key| model.bytes(*key).to_vec()).collect();
            for _ in 0..4 {
                // Whole words of small numbers reach further than noise does.
                let mut message: Vec<u8> = (0..length).map(|_| chance.below(256) as u8).collect();
                if chance.below(2) == 0 {
                    message.iter_mut().for_each(|byte| *byte = if *byte < 40 { *byte & !7 } else { 0 });
                }
                if length > 16 {
                    message[length - 16..].copy_from_slice(&[&to(buffer)[..], &[0; 4]].concat());
                }
                model.send(installed.receives[0], message);
                model.run(Schedule::First, 5000);
            }
            stopped += usize::from(model.fault().is_some());
            answered += model.take_messages(client).len();
            let after: Vec<Vec<u8>> = kept.iter().map(|key| model.bytes(*key).to_vec()).collect();
            assert!(before == after, "{name} {seed}");
            for (number, queue) in chain.queues.iter().enumerate() {
                let stride = chain.stride(number);
                for (slot, bytes) in queue.slots.iter().zip(model.bytes(installed.queues[number].1).chunks(stride)) {
                    let slot = &chain.slots[*slot];
                    let forms = std::iter::once(slot.control).chain(slot.may.iter().copied());
                    assert!(forms.map(|form| form.byte()).any(|byte| byte == bytes[15]), "{name}: {}", slot.label);
                    assert_eq!(bytes[16..20], slot.flags.bits().to_le_bytes(), "{name}: {}", slot.label);
                }
            }
        }
    }
    assert!(stopped > 50 && answered > 50, "{stopped} {answered}");
}
