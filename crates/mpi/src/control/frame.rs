//! Frames between the ranks of a job and its launcher, over TCP on the tenant's own network.
//!
//! ```text
//! length of the body: u32 | kind: u8 | rank: u32 | body          (little endian)
//! ```
//! `rank` is the destination in what a rank sends, and the source in what it receives.

use std::io::{self, ErrorKind, Read, Write};

/// Longest body in bytes.
pub const MAX_BODY: usize = 1 << 17;

/// Meaning of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// First of each rank: the job's secret, the size of its world and the world's name.
    Join = 1,
    /// Asks for a connection: a queue pair, and the place of the process.
    Hello = 2,
    /// Answers [`Kind::Hello`] with the queue pair that is connected to it.
    Welcome = 3,
    /// Answers [`Kind::Hello`]: there will be no connection.
    Refuse = 4,
    /// From the launcher: the rank has not joined.
    Absent = 5,
    /// The connection has failed: no more announcements.
    Broken = 6,
    /// Asks for a part of an announced message: sequence, offset and length.
    Give = 7,
    /// Answers [`Kind::Give`]: sequence, offset, data.
    Part = 8,
    /// All of an announced message is there: its sequence.
    Done = 9,
    /// How a rank's messages went.
    Report = 10,
    /// Of a rank, to the launcher: it has come so far in leaving, a number of one byte. From the launcher, at once and when that
    /// changes: all have come so far.
    Leaving = 11,
    /// Of a rank in `MPI_Init`, to the launcher: its site. Empty where it takes no part in measuring, or waits no longer for others.
    Ready = 12,
    /// From the launcher: measure with that rank; one byte, 1 for the one of both that decides.
    Measure = 13,
    /// Of that one, to the launcher: the threshold.
    Measured = 14,
    /// From the launcher: thresholds, with which the rank leaves `MPI_Init`; empty where there are none.
    Start = 15,
}

impl Kind {
    fn parse(byte: u8) -> Option<Self> {
        use Kind::{
            Absent, Broken, Done, Give, Hello, Join, Leaving, Measure, Measured, Part, Ready, Refuse, Report, Start,
            Welcome,
        };
        let all = [
            Join, Hello, Welcome, Refuse, Absent, Broken, Give, Part, Done, Report, Leaving, Ready, Measure, Measured,
            Start,
        ];
        all.into_iter().find(|&kind| kind as u8 == byte)
    }
}

/// One frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Purpose of the frame, which fixes the format of the body.
    pub kind: Kind,
    /// Rank in `MPI_COMM_WORLD`: the destination in a rank's own frames, the source in those that it receives.
    pub rank: u32,
    /// Contents, at most [`MAX_BODY`] bytes.
    pub body: Vec<u8>,
}

impl Frame {
    /// A frame.
    pub fn new(kind: Kind, rank: u32, body: Vec<u8>) -> Self {
        Self { kind, rank, body }
    }

    /// Writes it, in one piece.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(HEADER + self.body.len());
        bytes.extend((self.body.len() as u32).to_le_bytes());
        bytes.push(self.kind as u8);
        bytes.extend(self.rank.to_le_bytes());
        bytes.extend(&self.body);
        to.write_all(&bytes)
    }

    /// Reads one; an error of kind `InvalidData` for what is none.
    pub fn read(from: &mut impl Read) -> io::Result<Self> {
        let mut header = [0; HEADER];
        from.read_exact(&mut header)?;
        let [l0, l1, l2, l3, kind, r0, r1, r2, r3] = header;
        let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let kind = Kind::parse(kind).filter(|_| len <= MAX_BODY).ok_or(ErrorKind::InvalidData)?;
        let mut body = vec![0; len];
        from.read_exact(&mut body)?;
        Ok(Self { kind, rank: u32::from_le_bytes([r0, r1, r2, r3]), body })
    }
}

const HEADER: usize = 9;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_frame_is_read_as_it_was_written(kind in 1..=15_u8, rank: u32, body in proptest::collection::vec(any::<u8>(), 0..300)) {
            let frame = Frame::new(Kind::parse(kind).unwrap(), rank, body);
            let mut bytes = Vec::new();
            frame.write(&mut bytes).unwrap();
            prop_assert_eq!(Frame::read(&mut bytes.as_slice()).unwrap(), frame);
        }

        #[test]
        fn noise_is_a_frame_or_an_error(noise in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = Frame::read(&mut noise.as_slice());
        }
    }

    #[test]
    fn a_long_body_is_refused_before_it_is_read() {
        let mut bytes = (MAX_BODY as u32 + 1).to_le_bytes().to_vec();
        bytes.extend([Kind::Part as u8, 0, 0, 0, 0]);
        assert_eq!(Frame::read(&mut bytes.as_slice()).unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
