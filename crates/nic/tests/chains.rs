//! Hostile chains: for all requests, images and orders, the engine neither panics, nor spins, nor touches memory without a right.
#![allow(missing_docs, unreachable_pub)]
#![allow(clippy::unwrap_used, reason = "all of this is tests")]

use proptest::prelude::*;

#[path = "support/chains.rs"]
mod chains;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn any_deeds_of_a_chains_program_are_survived(image: u8, data in proptest::collection::vec(any::<u8>(), 0..1600)) {
        chains::Hostile::new(image).run(&data);
    }
}

/// Programs by chance, as many as `RDMESH_CHAIN_PROGRAMS` says, for minutes on end; `./dev fuzz chains` finds more.
#[test]
fn programs_by_chance_are_survived() {
    let count = std::env::var("RDMESH_CHAIN_PROGRAMS").ok().and_then(|count| count.parse().ok()).unwrap_or(2000_u64);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut chance = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 27)
    };
    let mut data = [0; 640];
    for _ in 0..count {
        let length = chance() as usize % (data.len() / 8) * 8;
        data[..length].chunks_mut(8).for_each(|word| word.copy_from_slice(&chance().to_ne_bytes()));
        chains::Hostile::new(chance() as u8).run(&data[..length]);
    }
}
