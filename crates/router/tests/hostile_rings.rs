//! Hostile rings: for all bytes that a tenant writes there, the engine neither panics, nor spins, nor touches memory that is
//! not registered.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "all of this is tests")]

use proptest::prelude::*;

#[path = "support/rings.rs"]
mod rings;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_bytes_in_the_rings_are_survived(data in proptest::collection::vec(any::<u8>(), 0..4000)) {
        rings::Tenants::new().run(&data);
    }
}
