//! Fuzz target for sealed packets of the tunnel: changed, truncated, repeated or forged ones. Only packets that another host
//! sealed are accepted, and only once.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rdmesh_router::io::Rehearsal;
use std::collections::BTreeSet;

fuzz_target!(|data: &[u8]| {
    let mut tunnel = Rehearsal::new();
    let (mut sealed, mut let_in) = (Vec::<Vec<u8>>::new(), BTreeSet::new());
    let mut rest = data;
    while let Some((&[what, which, at, byte], after)) = rest.split_first_chunk() {
        rest = after;
        let len = usize::from(byte).min(rest.len());
        let known = sealed.get(usize::from(which) % sealed.len().max(1)).cloned();
        let packet = match (what % 5, known) {
            // A new one.
            (0, _) | (_, None) => {
                let packet = tunnel.seal(which, &[&[0x45; 20], &rest[..len]].concat());
                sealed.push(packet.clone());
                packet
            }
            (1, Some(known)) => known,
            (2, Some(mut known)) => {
                let at = usize::from(at) % known.len();
                known[at] ^= byte;
                known
            }
            (3, Some(known)) => known[..usize::from(at) % known.len()].to_vec(),
            (_, Some(known)) => {
                let head = usize::from(at) % known.len();
                let made_up = [&known[..head], &rest[..len]].concat();
                rest = &rest[len..];
                made_up
            }
        };
        if tunnel.arrives(Rehearsal::FROM, &packet) {
            assert!(sealed.contains(&packet), "no host sealed it");
            assert!(let_in.insert(packet), "it was here before");
        }
    }
});
