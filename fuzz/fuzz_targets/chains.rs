//! Fuzz target for chains: any requests, images and orders of a program's managed queues.
//!
//! Memory to which the program has no right, or only that to read, must never change.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/nic/tests/support/chains.rs"]
mod chains;

fuzz_target!(|data: &[u8]| {
    if let Some((image, deeds)) = data.split_first() {
        chains::Hostile::new(*image).run(deeds);
    }
});
