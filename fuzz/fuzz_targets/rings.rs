//! Fuzz target for rings and context page: arbitrary bytes, in any order with doorbells, polls and time.
//!
//! The engine runs on real rings and real memory; a page that is not registered lies behind every region, and must never
//! change.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/router/tests/support/rings.rs"]
mod rings;

fuzz_target!(|data: &[u8]| rings::Tenants::new().run(data));
