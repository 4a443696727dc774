//! Messages about the memory of a virtual machine's guest, by which programs in the guest use the device.
//!
//! The process that serves a virtual machine opens one session for each program in the guest. It names memory by offsets in the
//! memfd that is the guest's memory, because what is one range to a program lies in pages anywhere in it.
//!
//! * `OpenGuest`: a [`ProgramName`], and a [`Pages`] list of the context page; descriptor: the guest's memory. Reply: `OpenReply`; descriptors: wake
//!   eventfd, and a socket that gets a byte when sleeping threads of the program are to be woken. The workers' pages are not part of
//!   it: to a guest's program all workers are awake, and its context falls dormant before its worker sleeps.
//! * `GuestPages`: a [`Pages`] list of queue memory, to be sent before the command that needs it. Reply: none.
//! * `GuestSegments`: segments of the next registration that do not fit into one message with it, from its beginning on, a stretch
//!   without gaps in each message; descriptor: the guest's memory. Reply: none.
//!
//! A registration has the guest's memory in place of the arena, and segments of it.

use zerocopy::IntoBytes;

/// Bytes of a page, which is what guest memory is named by.
pub const PAGE: u64 = 4096;
/// Most pages of queue memory that are named before a queue has them: the largest queue has 32 MiB.
pub const MAX_PAGES: usize = 1 << 13;
/// Most segments of one registration: 1 GiB if no two of its pages are neighbours.
pub const MAX_SEGMENTS: usize = 1 << 18;

/// Name of a program in a guest, which only the guest knows (`/proc/PID/comm`), padded with zeros.
pub type ProgramName = [u8; 16];

/// Pages of guest memory that stand one behind the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pages {
    /// Offset of the first one in the memory that is described.
    pub offset: u64,
    /// Offset of each in the guest's memory.
    pub places: Vec<u64>,
}

impl Pages {
    /// The list in a message; none where it is malformed, empty, or names parts of pages.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (words, []) = bytes.as_chunks::<8>() else { return None };
        let mut words = words.iter().map(|word| u64::from_ne_bytes(*word));
        let pages = Self { offset: words.next()?, places: words.collect() };
        let is_aligned = |at: &u64| at.is_multiple_of(PAGE) && *at < 1 << 62;
        let is_sound = !pages.places.is_empty() && is_aligned(&pages.offset) && pages.places.iter().all(is_aligned);
        is_sound.then_some(pages)
    }

    /// The same as a message's body.
    pub fn to_bytes(&self) -> Vec<u8> {
        [self.offset.as_bytes(), self.places.as_bytes()].concat()
    }

    /// Runs of neighbours: index of the first page of each, its place, and number of pages.
    pub fn runs(&self) -> impl Iterator<Item = (usize, u64, usize)> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let place = *self.places.get(at)?;
            let is_next = |(index, other): &(usize, &u64)| **other == place + *index as u64 * PAGE;
            let count = self.places[at..].iter().enumerate().take_while(is_next).count();
            let run = (at, place, count);
            at += count;
            Some(run)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_comes_back_and_nothing_else_does() {
        let pages = Pages { offset: 2 * PAGE, places: vec![PAGE, 2 * PAGE, 9 * PAGE, 10 * PAGE, 3 * PAGE] };
        let bytes = pages.to_bytes();
        assert_eq!(Pages::parse(&bytes), Some(pages.clone()));
        assert_eq!(pages.runs().collect::<Vec<_>>(), [(0, PAGE, 2), (2, 9 * PAGE, 2), (4, 3 * PAGE, 1)]);
        assert_eq!(Pages::parse(&bytes[..8]), None);
        assert_eq!(Pages::parse(&bytes[..bytes.len() - 1]), None);
        for bad in [Pages { offset: 1, places: vec![0] }, Pages { offset: 0, places: vec![PAGE + 8] }] {
            assert_eq!(Pages::parse(&bad.to_bytes()), None);
        }
    }
}
