//! Random programs: verified in both designs, and the same memory and replies however they run.

mod common;

use common::*;
use rdmesh_chain::build::{Design, Memory};
use rdmesh_chain::program::Chain;
use rdmesh_chain::verify::verify;

/// The memory that requests with these keys leave behind.
fn outcome(
    chain: &Chain,
    data: Memory,
    way: (rdmesh_chain::model::Fetch, rdmesh_chain::model::Schedule),
) -> (Vec<u8>, Vec<Option<u32>>) {
    let mut run = Run::new(chain.clone(), way.0, way.1, |_, _| ());
    let replies = [0, 1, 3, 2, 7].into_iter().flat_map(|key| run.request(&u56(key))).map(|m| m.imm).collect();
    (run.model.bytes(run.installed.regions[data.number()]).to_vec(), replies)
}

#[test]
fn local_and_portable_chains_do_the_same() {
    let mut answered = 0;
    for seed in 0..50 {
        let (program, data) = random_program(seed);
        let chains = [Design::Local, Design::Portable].map(|design| program.lower(design));
        let mut expected = None;
        for chain in &chains {
            assert_eq!(verify(chain), Ok(()), "seed {seed}\n{chain}");
            for way in every_way().take(12) {
                let got = outcome(chain, data, way);
                answered += got.1.len();
                let expected = expected.get_or_insert_with(|| got.clone());
                assert_eq!(&got, expected, "seed {seed} {way:?}\n{chain}");
            }
        }
    }
    assert!(answered > 300, "{answered}");
}
