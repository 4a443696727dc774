//! Errors in received packets.

use core::fmt;

/// Reason why bytes are not a valid packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// They end too early.
    TooShort,
    /// A length in them contradicts another, or the padding.
    Length,
    /// A version that is not known.
    Version,
    /// An opcode that is not known.
    Opcode,
    /// A reserved code of an acknowledgement.
    Syndrome,
    /// IPv4 options, or Geneve options that must be understood.
    Options,
    /// A fragment, or a packet that may become one.
    Fragment,
    /// The IPv4 header's checksum is wrong.
    Checksum,
    /// An unexpected protocol number.
    Protocol,
    /// Not the port of RoCEv2.
    Port,
    /// An IPv4-mapped address in an IPv6 header.
    Address,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooShort => "the packet ends too early",
            Self::Length => "lengths that contradict each other",
            Self::Version => "unknown version",
            Self::Opcode => "unknown opcode",
            Self::Syndrome => "unknown syndrome",
            Self::Options => "options that are not understood",
            Self::Fragment => "a fragment",
            Self::Checksum => "wrong header checksum",
            Self::Protocol => "another protocol",
            Self::Port => "another port",
            Self::Address => "an address that does not belong on the wire",
        })
    }
}

impl core::error::Error for Malformed {}
