//! A checker of histories: is there an order of the operations, each between its start and its end, that a sequential object
//! could have had?

use std::collections::HashSet;
use std::hash::Hash;

/// An operation of a history. Its answer is part of it.
#[derive(Clone, Debug)]
pub struct Done<O> {
    pub start: u64,
    pub end: u64,
    pub operation: O,
}

/// Whether some order explains all answers. `apply` gives the next state, or none if the answer is not the one of this state.
pub fn is_linearizable<O, S: Clone + Eq + Hash>(
    history: &[Done<O>],
    state: S,
    apply: impl Fn(&S, &O) -> Option<S>,
) -> bool {
    assert!(history.len() <= 64);
    let mut seen = HashSet::new();
    let mut open = vec![(0_u64, state)];
    while let Some((taken, state)) = open.pop() {
        let rest = || (0..history.len()).filter(|n| taken >> n & 1 == 0);
        if rest().next().is_none() {
            return true;
        }
        // The next operation began before all others that are left ended.
        let first_end = rest().map(|n| history[n].end).min().unwrap_or(u64::MAX);
        for n in rest().filter(|n| history[*n].start <= first_end) {
            if let Some(next) = apply(&state, &history[n].operation) {
                let node = (taken | 1 << n, next);
                if seen.insert(node.clone()) {
                    open.push(node);
                }
            }
        }
    }
    false
}
