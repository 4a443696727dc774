//! Report of a job: which way its messages went, and why.

use crate::control::Measured;
use std::fmt;

/// Number of messages, and their bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Messages.
    pub messages: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Traffic {
    /// Counts one message.
    pub fn count(&mut self, bytes: u64) {
        self.messages += 1;
        self.bytes += bytes;
    }
}

/// Way of a message that was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Read by its receiver from the sender's buffer.
    Rdma,
    /// MPI's own: shorter than the threshold.
    Small,
    /// MPI's own: to a rank in the same network namespace, whose memory MPI shares.
    Near,
    /// MPI's own: the ranks were not yet connected.
    Early,
    /// MPI's own: the peer has no library, or no device.
    Peer,
    /// MPI's own: the data is not in one piece.
    Pieces,
    /// MPI's own: the memory cannot be registered.
    Memory,
    /// MPI's own: too many messages are on their way.
    Busy,
}

const WAYS: [(Way, &str); 8] = [
    (Way::Rdma, "read by RDMA from the sender's buffer"),
    (Way::Small, "by MPI: shorter than the threshold"),
    (Way::Near, "by MPI: to a rank of the same endpoint"),
    (Way::Early, "by MPI: before the ranks were connected"),
    (Way::Peer, "by MPI: the peer has no librdmesh-mpi.so, or no RDMA device that works"),
    (Way::Pieces, "by MPI: derived datatypes that are not in one piece"),
    (Way::Memory, "by MPI: memory that cannot be registered"),
    (Way::Busy, "by MPI: too many messages in flight"),
];

/// Totals of the ranks of a job, or of one rank.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Ranks that are in it.
    pub ranks: u64,
    sent: [Traffic; WAYS.len()],
    /// Received messages that were put into a buffer of ours first: the receiver's could not be registered, or has gaps.
    pub copied: Traffic,
    /// Received messages that came over the launcher, because an RDMA connection had failed.
    pub repaired: Traffic,
    /// Look-ups of registered memory that found it, and that did not.
    pub cache_hits: u64,
    /// As above.
    pub cache_misses: u64,
    /// Thresholds that the ranks have measured; none in the report of one rank.
    pub measured: Option<Measured>,
}

impl Report {
    /// The report of one rank, with nothing in it yet.
    pub(crate) fn of_one_rank() -> Self {
        Self { ranks: 1, ..Self::default() }
    }

    /// Counts a message that was sent.
    pub fn sent(&mut self, way: Way, bytes: u64) {
        self.sent[way as usize].count(bytes);
    }

    /// Adds messages that were shorter than any threshold.
    pub(crate) fn small(&mut self, traffic: Traffic) {
        let small = &mut self.sent[Way::Small as usize];
        small.messages += traffic.messages;
        small.bytes += traffic.bytes;
    }

    /// Messages that went this way.
    pub fn traffic(&self, way: Way) -> Traffic {
        self.sent[way as usize]
    }

    /// Adds another's.
    pub fn add(&mut self, other: &Self) {
        let mine = self.words();
        let sum: Vec<u64> = mine.iter().zip(other.words()).map(|(mine, other)| mine.saturating_add(other)).collect();
        let measured = self.measured;
        *self = Self { measured, ..Self::of_words(&sum).unwrap_or_else(|| self.clone()) };
    }

    /// As the body of a frame.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.words().into_iter().flat_map(u64::to_le_bytes).collect()
    }

    /// The report in the body of a frame.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|&word| u64::from_le_bytes(word)).collect();
        if rest.is_empty() { Self::of_words(&words) } else { None }
    }

    fn words(&self) -> Vec<u64> {
        let traffic = self.sent.iter().chain([&self.copied, &self.repaired]);
        let counts = traffic.flat_map(|traffic| [traffic.messages, traffic.bytes]);
        [self.ranks, self.cache_hits, self.cache_misses].into_iter().chain(counts).collect()
    }

    fn of_words(words: &[u64]) -> Option<Self> {
        let [ranks, cache_hits, cache_misses, traffic @ ..] = words else { return None };
        let (pairs, []) = traffic.as_chunks::<2>() else { return None };
        let pairs: Vec<_> = pairs.iter().map(|&[messages, bytes]| Traffic { messages, bytes }).collect();
        let (sent, [copied, repaired]) = pairs.split_first_chunk()? else { return None };
        Some(Self {
            ranks: *ranks,
            sent: *sent,
            copied: *copied,
            repaired: *repaired,
            cache_hits: *cache_hits,
            cache_misses: *cache_misses,
            measured: None,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "messages of {} ranks, from one to another:", self.ranks)?;
        for (way, what) in WAYS {
            let traffic = self.traffic(way);
            if traffic.messages > 0 || way == Way::Rdma {
                writeln!(f, "{:>12} messages {:>16} bytes  {what}", traffic.messages, traffic.bytes)?;
            }
        }
        if self.copied.messages > 0 {
            let Traffic { messages, bytes } = self.copied;
            writeln!(f, "{messages} of those read ({bytes} bytes) were copied at the receiver")?;
        }
        if self.repaired.messages > 0 {
            let Traffic { messages, bytes } = self.repaired;
            writeln!(
                f,
                "{messages} of those announced ({bytes} bytes) came over the launcher: an RDMA connection had failed"
            )?;
        }
        if let Some(measured) = self.measured {
            writeln!(f, "{measured}")?;
        }
        write!(f, "registered memory: found {} times, registered {} times", self.cache_hits, self.cache_misses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(factor: u64) -> Report {
        let mut report = Report { ranks: factor, cache_hits: 9 * factor, cache_misses: factor, ..Report::default() };
        for (at, (way, _)) in WAYS.into_iter().enumerate() {
            assert_eq!(way as usize, at);
            report.sent[at] = Traffic { messages: factor * (at as u64 + 1), bytes: factor * 1000 };
        }
        report.copied.count(5 * factor);
        report
    }

    #[test]
    fn reports_are_read_as_they_were_written_and_add_up() {
        let mut sum = Report::parse(&some(1).to_bytes()).unwrap();
        assert_eq!(sum, some(1));
        sum.add(&some(2));
        assert_eq!((sum.ranks, sum.traffic(Way::Rdma).messages, sum.traffic(Way::Busy).bytes), (3, 3, 3000));
        assert_eq!((sum.copied, sum.cache_hits), (Traffic { messages: 2, bytes: 15 }, 27));
        assert_eq!(Report::parse(&some(1).to_bytes()[8..]), None);
        assert_eq!(Report::parse(b"noise"), None);
    }
}
