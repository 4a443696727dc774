//! Memory of chains, and places in it.

use super::{Arg, Offset};
use crate::program::{Place, Span};

/// Memory that the chain works with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory(pub(super) usize);

impl Memory {
    /// The place at an offset: a number, or an argument of the client's.
    pub fn at(self, offset: impl Into<At>) -> Source {
        Source { region: self.0, at: offset.into() }
    }

    /// Bytes at a constant offset.
    pub fn span(self, at: u64, length: u32) -> Span {
        Span { place: Place::Region { region: self.0, at }, length }
    }

    /// The number of the region in [`Chain::regions`](crate::program::Chain::regions).
    pub fn number(self) -> usize {
        self.0
    }
}

/// An offset in a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// Known.
    Constant(u64),
    /// The client says it.
    Argument(Arg<Offset>),
}

impl From<u64> for At {
    fn from(offset: u64) -> Self {
        Self::Constant(offset)
    }
}

impl From<Arg<Offset>> for At {
    fn from(arg: Arg<Offset>) -> Self {
        Self::Argument(arg)
    }
}

/// Source or destination of data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Source {
    pub(super) region: usize,
    pub(super) at: At,
}
