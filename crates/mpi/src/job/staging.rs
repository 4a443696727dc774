//! Memory of ours into which MPI receives where the program's buffer is not to be written yet. It is kept for the next message: to map
//! pages anew for each costs more than most messages do.

use crate::memory::Pages;

/// Free pages.
#[derive(Default)]
pub(super) struct Staging {
    free: Vec<Pages>,
    bytes: usize,
}

impl Staging {
    /// Pages with room for `len` bytes, whose contents are those of earlier messages; none where there is no memory.
    pub(super) fn take(&mut self, len: usize) -> Option<Pages> {
        let room = room(len)?;
        let Some(at) = self.free.iter().rposition(|pages| pages.len() == room) else { return Pages::new(room).ok() };
        self.bytes -= room;
        Some(self.free.swap_remove(at))
    }

    /// The message has gone on to the program.
    pub(super) fn give_back(&mut self, pages: Pages) {
        if self.bytes + pages.len() <= MOST {
            self.bytes += pages.len();
            self.free.push(pages);
        }
    }
}

/// Bytes of the pages for `len`: few sizes, so that others of about the same length have use for them.
fn room(len: usize) -> Option<usize> {
    len.max(LEAST).checked_next_power_of_two()
}

const LEAST: usize = 4096;
/// Most bytes that are kept.
const MOST: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_used_again_and_never_too_small() {
        let mut staging = Staging::default();
        let (small, large) = (staging.take(100).unwrap(), staging.take(5000).unwrap());
        assert_eq!((small.len(), large.len()), (4096, 8192));
        let places = [small.address(), large.address()];
        staging.give_back(small);
        staging.give_back(large);
        assert_eq!(staging.take(8192).map(|pages| pages.address()), Some(places[1]));
        assert_eq!(staging.take(4096).map(|pages| pages.address()), Some(places[0]));
        assert_eq!(staging.bytes, 0);
    }

    #[test]
    fn no_more_is_kept_than_is_allowed() {
        let mut staging = Staging::default();
        let taken: Vec<_> = (0..20).map(|_| staging.take(1 << 20).unwrap()).collect();
        taken.into_iter().for_each(|pages| staging.give_back(pages));
        assert_eq!((staging.bytes, staging.free.len()), (MOST, 16));
        assert!(staging.take(usize::MAX).is_none());
    }
}
