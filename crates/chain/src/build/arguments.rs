//! Arguments of a client's request.

use std::marker::PhantomData;

/// Type of an argument.
pub trait Kind: Copy {
    /// Bytes in the request.
    const LENGTH: u32;
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $length:literal,)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name;

        impl Kind for $name {
            const LENGTH: u32 = $length;
        }
    )*};
}

kinds! {
    /// A number of 56 bits, such as a key that a condition compares.
    U56 = 7,
    /// A number of 120 bits, such as a long key.
    U120 = 15,
    /// A number of 64 bits.
    U64 = 8,
    /// A number of 40 bits.
    U40 = 5,
    /// A number of 32 bits, such as a tag for the reply's immediate data.
    U32 = 4,
    /// An offset in a region: its key is the chain's, so the client reaches nothing else.
    Offset = 8,
    /// Address and key of the client's memory.
    RemoteBuf = 12,
}

/// An argument of a client's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arg<K> {
    number: usize,
    kind: PhantomData<K>,
}

impl<K> Arg<K> {
    pub(super) fn new(number: usize) -> Self {
        Self { number, kind: PhantomData }
    }

    pub(crate) fn number(self) -> usize {
        self.number
    }
}

/// An argument, and the fields that need it.
#[derive(Clone, Debug)]
pub(super) struct Declared {
    pub(super) name: String,
    pub(super) length: u32,
    /// Slot and first byte.
    pub(super) uses: Vec<(usize, usize)>,
}
