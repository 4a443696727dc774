//! Places for connections, of which no caller has more than its part.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Connections that there are, by caller.
#[derive(Clone, Default)]
pub(crate) struct Places(Arc<Mutex<HashMap<String, usize>>>);

/// A connection's place, until it is dropped.
pub(crate) struct Place {
    places: Places,
    caller: String,
}

impl Places {
    /// A place for `caller`, if it has not got its part already.
    pub(crate) fn take(&self, caller: &str) -> Option<Place> {
        self.change(|counts| {
            let (total, own) = (counts.values().sum::<usize>(), counts.get(caller).copied().unwrap_or(0));
            if total >= MOST || own >= MOST_OF_CALLER {
                return None;
            }
            counts.insert(caller.to_owned(), own + 1);
            Some(Place { places: self.clone(), caller: caller.to_owned() })
        })
    }

    fn change<R>(&self, work: impl FnOnce(&mut HashMap<String, usize>) -> R) -> R {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.change(|counts| match counts.get_mut(&self.caller) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(counts.remove(&self.caller)),
        });
    }
}

/// Connections at a time.
const MOST: usize = 512;
/// Connections of one caller at a time.
pub(crate) const MOST_OF_CALLER: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_the_places_of_others() {
        let places = Places::default();
        let mut own: Vec<_> = (0..MOST_OF_CALLER).map(|_| places.take("ann").expect("a place")).collect();
        assert!(places.take("ann").is_none());
        let other = places.take("tom");
        assert!(other.is_some());
        own.pop();
        assert!(places.take("ann").is_some());
        drop((own, other));
        assert!(places.change(|counts| counts.is_empty()));
        let all: Vec<_> = (0..MOST).map(|n| places.take(&format!("caller{n}")).expect("a place")).collect();
        assert!(places.take("another").is_none());
        drop(all);
        assert!(places.take("another").is_some());
    }
}
