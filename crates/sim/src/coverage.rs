//! Coverage of rare events: those that a run of many seeds must meet at least once ("sometimes" assertions).

use std::fmt;

macro_rules! seen {
    ($($name:ident: $text:literal,)*) => {
        /// Event that a run of many seeds must meet.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(missing_docs)]
        pub enum Seen { $($name,)* }

        impl Seen {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The event, in words.
            pub fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

seen! {
    Lost: "datagram lost",
    QueueDrop: "datagram dropped by a full queue",
    PartitionDrop: "datagram dropped by a partition",
    Corrupted: "datagram corrupted",
    Truncated: "datagram truncated",
    Marked: "datagram marked by a full queue",
    Stale: "datagram copied, to arrive much later",
    StaleToSuccessor: "datagram of a destroyed QP arrived at its successor",
    TxStall: "transmission stalled",
    Rnr: "receiver not ready",
    Timeout: "ACK time-out",
    Retransmitted: "packet sent again",
    LostRetransmission: "packet lost twice",
    ReadResumed: "READ resumed in its middle",
    AtomicReplayed: "atomic request received twice",
    Duplicate: "duplicate request",
    OutOfOrder: "request out of order",
    CnpSent: "CNP sent",
    CnpReceived: "CNP received",
    PsnWrapped: "PSN wrapped",
    Malformed: "malformed datagram dropped",
    BadIcrc: "datagram with a wrong ICRC dropped",
    UnknownQp: "datagram for no QP dropped",
    WrongSource: "datagram from a wrong source dropped",
    RetryExceeded: "retries exceeded",
    RnrRetryExceeded: "RNR retries exceeded",
    RemoteAccess: "remote access error",
    RemoteInvalid: "remote invalid request error",
    LocalProtection: "local protection error",
    Flushed: "request flushed",
    Killed: "host killed",
    Revived: "host started again",
    Recreated: "QP destroyed and created again",
    ProgramError: "QP moved to ERR by its program",
    LocalPath: "traffic within a host",
    TunnelPath: "traffic through the tunnel",
    PlainPath: "traffic outside",
    SendDone: "SEND done",
    WriteDone: "WRITE done",
    ReadDone: "READ done",
    AtomicDone: "atomic done",
    FlushDone: "FLUSH done",
    Invalidated: "key invalidated by a SEND",
    Datagram: "datagram delivered",
    Unreliable: "message delivered on an unreliable connection",
    SharedReceive: "message delivered through an SRQ",
}

/// Count of each event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coverage([u64; Seen::ALL.len()]);

impl Default for Coverage {
    fn default() -> Self {
        Self([0; Seen::ALL.len()])
    }
}

impl Coverage {
    /// It happened.
    pub fn count(&mut self, what: Seen) {
        self.add(what, 1);
    }

    /// It happened `n` times.
    pub fn add(&mut self, what: Seen, n: u64) {
        self.0[what as usize] += n;
    }

    /// The count of an event.
    pub fn of(&self, what: Seen) -> u64 {
        self.0[what as usize]
    }

    /// Adds what happened elsewhere.
    pub fn merge(&mut self, other: &Self) {
        for (n, more) in self.0.iter_mut().zip(other.0) {
            *n += more;
        }
    }

    /// Events that never happened.
    pub fn missing(&self) -> Vec<Seen> {
        Seen::ALL.iter().copied().filter(|seen| self.of(*seen) == 0).collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Seen::ALL.iter().try_for_each(|seen| writeln!(f, "{:>12}  {}", self.of(*seen), seen.text()))
    }
}
