//! Fuzz target for relays of accelerated connections: what a process writes into its slot, and another relay says.
//!
//! Whatever they say, no bytes outside the ring are handed on.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rdmesh_relay::Trial;

/// Takes a number out of the data; zero behind its end.
fn number(data: &mut &[u8]) -> u64 {
    let len = data.len().min(8);
    let (taken, rest) = data.split_at(len);
    *data = rest;
    taken.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fuzz_target!(|data: &[u8]| {
    let (mut trial, mut rest) = (Trial::new().expect("memory"), data);
    while let Some((step, data)) = rest.split_first() {
        rest = data;
        let goes_on = match step % 3 {
            0 => {
                let (batch, behind) = rest.split_at(rest.len().min(usize::from(*step)));
                rest = behind;
                trial.peer_sends(batch)
            }
            1 => {
                let numbers = [(); 4].map(|()| number(&mut rest));
                trial.process_writes(numbers, (*step).into());
                true
            }
            _ => trial.relay_looks((step / 3).into()),
        };
        if !goes_on {
            return;
        }
    }
});
