//! Set of the contexts of a worker in whose pages something has arrived.
//!
//! A bitmap with two summaries, so that looking costs nothing where nothing has arrived, however many contexts there are.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The set. Clones share it.
#[derive(Clone)]
pub(super) struct Arrivals(Arc<Levels>);

struct Levels {
    top: AtomicU64,
    middle: [AtomicU64; WORD],
    bottom: Box<[AtomicU64]>,
}

impl Arrivals {
    /// Places of contexts: more than a host can have.
    #[cfg(test)]
    const PLACES: usize = WORD * WORD * WORD;

    /// An empty set.
    pub(super) fn new() -> Self {
        Self(Arc::new(Levels {
            top: AtomicU64::new(0),
            middle: [const { AtomicU64::new(0) }; WORD],
            bottom: (0..WORD * WORD).map(|_| AtomicU64::new(0)).collect(),
        }))
    }

    /// Adds a place.
    pub(super) fn add(&self, place: usize) {
        let Levels { top, middle, bottom } = &*self.0;
        let (word, bit) = (place / WORD, 1 << (place % WORD));
        let Some(lowest) = bottom.get(word) else { return };
        // Mostly it is there already. Summaries come last: what they lead to is there when they are seen.
        if lowest.load(Ordering::Relaxed) & bit == 0 {
            lowest.fetch_or(bit, Ordering::Release);
            middle[word / WORD].fetch_or(1 << (word % WORD), Ordering::Release);
            top.fetch_or(1 << (word / WORD), Ordering::Release);
        }
    }

    /// Takes all places out.
    pub(super) fn take(&self, mut each: impl FnMut(usize)) {
        let Levels { top, middle, bottom } = &*self.0;
        if top.load(Ordering::Relaxed) == 0 {
            return;
        }
        for high in bits(top.swap(0, Ordering::AcqRel)) {
            for mid in bits(middle[high].swap(0, Ordering::AcqRel)) {
                let word = high * WORD + mid;
                bits(bottom[word].swap(0, Ordering::AcqRel)).for_each(|low| each(word * WORD + low));
            }
        }
    }
}

/// Place of one context in the set of arrivals of the worker that serves it; both may change.
pub(super) struct Spot {
    /// Of all workers.
    sets: Arc<[Arrivals]>,
    /// Number of the worker in the upper half, place in the lower one.
    at: AtomicU64,
}

impl Spot {
    /// At the first place of the first worker.
    pub(super) fn new(sets: Arc<[Arrivals]>) -> Self {
        Self { sets, at: AtomicU64::new(0) }
    }

    /// The context is served by another worker, or at another place.
    pub(super) fn set(&self, worker: usize, place: usize) {
        self.at.store((worker as u64) << 32 | place as u64, Ordering::Relaxed);
    }

    /// Something has arrived.
    #[inline]
    pub(super) fn note(&self) {
        let at = self.at.load(Ordering::Relaxed);
        if let Some(set) = self.sets.get((at >> 32) as usize) {
            set.add(at as u32 as usize);
        }
    }
}

/// The numbers of the bits that are set.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then_some(word.trailing_zeros() as usize)?;
        word &= word - 1;
        Some(bit)
    })
}

const WORD: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn take(arrivals: &Arrivals) -> Vec<usize> {
        let mut places = Vec::new();
        arrivals.take(|place| places.push(place));
        places
    }

    #[test]
    fn each_place_is_taken_once() {
        let arrivals = Arrivals::new();
        let places = [0, 1, 63, 64, 4095, 4096, 77_777, Arrivals::PLACES - 1];
        for _ in 0..2 {
            places.iter().chain(&places).for_each(|place| arrivals.add(*place));
            assert_eq!(take(&arrivals), places);
            assert!(take(&arrivals).is_empty());
        }
        arrivals.add(Arrivals::PLACES);
        assert!(take(&arrivals).is_empty());
    }

    /// Mostly the worker adds; a command may on another thread.
    #[test]
    fn nothing_is_lost_between_two_threads() {
        const ROUNDS: usize = 100_000;
        let arrivals = Arrivals::new();
        let added = Arc::new(AtomicU64::new(0));
        let adder = std::thread::spawn({
            let (arrivals, added) = (arrivals.clone(), Arc::clone(&added));
            move || {
                for round in 0..ROUNDS {
                    arrivals.add(round % 5 * 3000);
                    added.store(round as u64 + 1, Ordering::Release);
                }
            }
        });
        let mut last = [false; 5];
        while added.load(Ordering::Acquire) < ROUNDS as u64 {
            arrivals.take(|_| {});
        }
        adder.join().unwrap();
        (0..5).for_each(|n| arrivals.add(n * 3000));
        arrivals.take(|place| last[place / 3000] = true);
        assert_eq!(last, [true; 5], "a bit without its summary would never be seen again");
    }
}
