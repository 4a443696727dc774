//! Announcement of a message: what the sender's library sends as an MPI message in the place of a large one.
//!
//! It travels by the program's own communicator, tag and destination, so that matching, order and wildcards stay MPI's. The
//! receiver's library reads the sender's buffer by RDMA, and then writes [`Announcement::sequence`] to
//! [`Announcement::done_address`], upon which the send is complete (VMPI's `srcAvail` and `compl`, with a READ in place of a WRITE).

use crate::control::Secret;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Length of an announcement in bytes: a multiple of 16, so that it is a whole number of elements of each basic datatype.
pub(crate) const LEN: usize = 144;

/// A message that is to be read from its sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Announcement {
    secret: Secret,
    /// Address of the data in the sender.
    pub(crate) address: u64,
    /// Length in bytes.
    pub(crate) len: u64,
    /// Where the sender waits for `sequence`.
    pub(crate) done_address: u64,
    /// Number of this message, of its sender; never 0.
    pub(crate) sequence: u64,
    /// Key of the memory with the data.
    pub(crate) rkey: u32,
    /// Key of the memory of `done_address`.
    pub(crate) done_rkey: u32,
    /// Rank of the sender in `MPI_COMM_WORLD`.
    pub(crate) sender: u32,
    reserved: [u32; 20],
    /// CRC-32 of all before it.
    check: u32,
}

const _: () = assert!(size_of::<Announcement>() == LEN);

/// What an announcement says, but for what guards it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Contents {
    /// As [`Announcement::address`].
    pub(crate) address: u64,
    /// As [`Announcement::len`].
    pub(crate) len: u64,
    /// As [`Announcement::done_address`].
    pub(crate) done_address: u64,
    /// As [`Announcement::sequence`].
    pub(crate) sequence: u64,
    /// As [`Announcement::rkey`].
    pub(crate) rkey: u32,
    /// As [`Announcement::done_rkey`].
    pub(crate) done_rkey: u32,
    /// As [`Announcement::sender`].
    pub(crate) sender: u32,
}

impl Announcement {
    /// An announcement in a job with this secret.
    pub(crate) fn new(secret: Secret, contents: Contents) -> Self {
        let Contents { address, len, done_address, sequence, rkey, done_rkey, sender } = contents;
        let mut new =
            Self { secret, address, len, done_address, sequence, rkey, done_rkey, sender, reserved: [0; 20], check: 0 };
        new.check = new.checksum();
        new
    }

    /// The announcement in a message, if it is one of this job.
    pub(crate) fn parse(message: &[u8], secret: &Secret) -> Option<Self> {
        let parsed = Self::read_from_bytes(message).ok()?;
        (parsed.secret == *secret && parsed.check == parsed.checksum()).then_some(parsed)
    }

    fn checksum(&self) -> u32 {
        let bytes = self.as_bytes();
        crc32fast::hash(&bytes[..LEN - 4])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECRET: Secret = *b"a job's secret..";

    fn contents(word: u64, key: u32) -> Contents {
        Contents {
            address: word,
            len: word.rotate_left(7),
            done_address: word.rotate_left(21),
            sequence: word | 1,
            rkey: key,
            done_rkey: !key,
            sender: key ^ 5,
        }
    }

    proptest! {
        #[test]
        fn an_announcement_is_read_as_it_was_made(word: u64, key: u32) {
            let made = Announcement::new(SECRET, contents(word, key));
            prop_assert_eq!(Announcement::parse(made.as_bytes(), &SECRET), Some(made));
        }

        #[test]
        fn a_changed_byte_makes_it_a_plain_message(word: u64, key: u32, at in 0..LEN, change in 1..=255_u8) {
            let mut bytes = Announcement::new(SECRET, contents(word, key)).as_bytes().to_vec();
            bytes[at] ^= change;
            prop_assert_eq!(Announcement::parse(&bytes, &SECRET), None);
        }
    }

    #[test]
    fn another_jobs_is_a_plain_message() {
        let made = Announcement::new(SECRET, contents(9, 4));
        assert_eq!(Announcement::parse(made.as_bytes(), b"another's secret"), None);
        assert_eq!(Announcement::parse(&made.as_bytes()[..LEN - 1], &SECRET), None);
    }
}
