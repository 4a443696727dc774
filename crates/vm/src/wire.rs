//! Frames of a vsock stream between the agent in a guest and the device process on its host.
//!
//! A stream begins with [`Hello`]. A frame is a [`Head`] and its payload:
//!
//! | to the host | payload |
//! |---|---|
//! | `Request` | a program's session message, with guest-physical addresses in place of arena offsets; any number of segments |
//! | `Open` | the program's name, 16 bytes, and guest-physical addresses of the context page's pages, 64 bits each |
//! | `Pages` | an offset in the queue memory, and guest-physical addresses of the pages from there on |
//! | `Ring` | none: the program has rung a doorbell of a context that is not polled |
//!
//! | to the guest | payload |
//! |---|---|
//! | `Welcome` | the virtual machine's token, in answer to an agent's hello |
//! | `Entry` | a file of the endpoint's directory, or a part of it: see [`Entry`] |
//! | `Ready` | none: the directory is complete |
//! | `Reply` | a session reply, descriptors left out: the guest makes its own |
//! | `Event` | number of an installed descriptor, in the order of installation, and one message that the program is to read from it |
//! | `Level` | number of bytes that the program is to find in its rdma_cm channel |
//! | `Wake` | none: sleeping threads of the program are to be woken |
//!
//! `Request`, `Open` and `Pages` are answered by one `Reply` each before the next is sent. Numbers are little-endian, as in a session:
//! guest and host are of one architecture.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The host's port for agents and their programs' connections.
pub const PORT: u32 = 4791;
/// CID of the host.
pub const HOST_CID: u32 = 2;
/// Ports below are bound by privileged processes of the guest only.
pub const PRIVILEGED: u32 = 1024;
/// Bytes of the largest payload: a registration of 1 GiB in single pages.
pub const MAX_FRAME: usize = (8 << 20) + (64 << 10);
/// Bytes of a file in one `Entry`.
pub const ENTRY_PART: usize = 256 << 10;

/// First bytes of a stream to the host.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Hello {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// A [`Purpose`].
    pub purpose: u32,
    /// Zero.
    pub reserved: u32,
    /// Of the virtual machine, for a connection of a program.
    pub token: [u8; 16],
}

/// Name and version of the protocol.
pub const MAGIC: [u8; 8] = *b"rdmesh-1";

/// The use of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Purpose {
    /// The agent itself, from a privileged port: it is sent the token and the endpoint's directory.
    Agent = 1,
    /// A connection of a program.
    Program = 2,
}

impl Hello {
    /// The hello of a stream.
    pub fn new(purpose: Purpose, token: [u8; 16]) -> Self {
        Self { magic: MAGIC, purpose: purpose as u32, reserved: 0, token }
    }

    /// Its purpose; none where it is of another protocol.
    pub fn purpose(&self) -> Option<Purpose> {
        let purpose = [Purpose::Agent, Purpose::Program].into_iter().find(|known| *known as u32 == self.purpose);
        purpose.filter(|_| self.magic == MAGIC)
    }
}

/// Head of a frame.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    kind: u32,
    len: u32,
}

/// Kind of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
#[allow(missing_docs, reason = "the module's tables say what each is")]
pub enum Kind {
    Request = 1,
    Open = 2,
    Pages = 3,
    Ring = 4,
    Welcome = 16,
    Entry = 17,
    Ready = 18,
    Reply = 19,
    Event = 20,
    Level = 21,
    Wake = 22,
}

impl Kind {
    fn from_number(number: u32) -> Option<Self> {
        use Kind::*;
        let all = [Request, Open, Pages, Ring, Welcome, Entry, Ready, Reply, Event, Level, Wake];
        all.into_iter().find(|kind| *kind as u32 == number)
    }
}

/// A frame as bytes.
pub fn frame(kind: Kind, parts: &[&[u8]]) -> Vec<u8> {
    let len = parts.iter().map(|part| part.len()).sum::<usize>();
    let head = Head { kind: kind as u32, len: len as u32 };
    [&[head.as_bytes()], parts].concat().concat()
}

/// The other side does not speak this protocol.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Its hello is of another protocol or version.
    #[error("not rdmesh's protocol, or another version of it")]
    Hello,
    /// A frame of no known kind.
    #[error("frame of unknown kind {0}")]
    Kind(u32),
    /// A frame that is too long.
    #[error("frame of {0} bytes")]
    TooLong(u32),
}

/// Frames out of the bytes of a stream.
#[derive(Default)]
pub struct Frames {
    bytes: Vec<u8>,
    /// Bytes that have been taken.
    taken: usize,
}

impl Frames {
    /// Adds bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.taken > self.bytes.len() / 2 {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Bytes that wait for more.
    pub fn held(&self) -> usize {
        self.bytes.len() - self.taken
    }

    /// Takes the hello, once it is there.
    pub fn take_hello(&mut self) -> Result<Option<Hello>, WireError> {
        let Ok((hello, _)) = Hello::read_from_prefix(&self.bytes[self.taken..]) else { return Ok(None) };
        self.taken += size_of::<Hello>();
        if hello.purpose().is_none() { Err(WireError::Hello) } else { Ok(Some(hello)) }
    }

    /// Takes the next whole frame.
    pub fn take(&mut self) -> Result<Option<(Kind, Vec<u8>)>, WireError> {
        let Ok((head, rest)) = Head::read_from_prefix(&self.bytes[self.taken..]) else { return Ok(None) };
        let kind = Kind::from_number(head.kind).ok_or(WireError::Kind(head.kind))?;
        if head.len as usize > MAX_FRAME {
            return Err(WireError::TooLong(head.len));
        }
        let Some(payload) = rest.get(..head.len as usize).map(<[u8]>::to_vec) else { return Ok(None) };
        self.taken += size_of::<Head>() + payload.len();
        Ok(Some((kind, payload)))
    }
}

/// A file of the endpoint's directory, or the next part of one whose beginning came before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Permission bits, and [`Entry::DIRECTORY`] or [`Entry::LINK`].
    pub mode: u32,
    /// Path below the directory.
    pub path: String,
    /// The file's bytes, or the link's target.
    pub bytes: Vec<u8>,
}

impl Entry {
    /// Set in `mode` of a directory.
    pub const DIRECTORY: u32 = 1 << 16;
    /// Set in `mode` of a symbolic link.
    pub const LINK: u32 = 1 << 17;

    /// A frame with it.
    pub fn to_frame(&self) -> Vec<u8> {
        let len = self.path.len() as u32;
        frame(Kind::Entry, &[self.mode.as_bytes(), len.as_bytes(), self.path.as_bytes(), &self.bytes])
    }

    /// The one in a payload.
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let (mode, rest) = u32::read_from_prefix(payload).ok()?;
        let (len, rest) = u32::read_from_prefix(rest).ok()?;
        let (path, bytes) = rest.split_at_checked(len as usize)?;
        Some(Self { mode, path: String::from_utf8(path.to_vec()).ok()?, bytes: bytes.to_vec() })
    }
}

/// The 64-bit numbers of a payload; none where its length is no multiple of theirs.
pub fn numbers(payload: &[u8]) -> Option<Vec<u64>> {
    let (words, []) = payload.as_chunks::<8>() else { return None };
    Some(words.iter().map(|word| u64::from_ne_bytes(*word)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_whole_however_the_stream_is_cut() {
        let sent = [frame(Kind::Ring, &[]), frame(Kind::Request, &[b"ab", b"c"]), frame(Kind::Event, &[&[7; 300]])];
        let stream = [Hello::new(Purpose::Program, [3; 16]).as_bytes(), &sent.concat()].concat();
        for cut in [1, 3, 8, 33, 1000] {
            let (mut frames, mut got, mut greeted) = (Frames::default(), Vec::new(), false);
            for bytes in stream.chunks(cut) {
                frames.push(bytes);
                greeted |= !greeted && frames.take_hello().unwrap().is_some();
                while let Some(next) = if greeted { frames.take().unwrap() } else { None } {
                    got.push(next);
                }
            }
            let wanted = [(Kind::Ring, Vec::new()), (Kind::Request, b"abc".to_vec()), (Kind::Event, vec![7; 300])];
            assert_eq!(got, wanted, "pieces of {cut}");
            assert_eq!(frames.held(), 0);
        }
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        let taken = |bytes: &[u8]| {
            let mut frames = Frames::default();
            frames.push(bytes);
            frames.take()
        };
        assert_eq!(taken(&[9, 0, 0, 0, 0, 0, 0, 0]), Err(WireError::Kind(9)));
        assert_eq!(taken(&[1, 0, 0, 0, 255, 255, 255, 255]), Err(WireError::TooLong(u32::MAX)));
        assert_eq!(taken(&[1, 0, 0, 0, 1, 0, 0, 0]), Ok(None));
        let mut frames = Frames::default();
        frames.push(&[0; size_of::<Hello>()]);
        assert_eq!(frames.take_hello().err(), Some(WireError::Hello));
    }

    #[test]
    fn entries_come_back() {
        let entry = Entry { mode: 0o644, path: "sys/class".into(), bytes: b"1\n".to_vec() };
        let mut frames = Frames::default();
        frames.push(&entry.to_frame());
        let (kind, payload) = frames.take().unwrap().unwrap();
        assert_eq!((kind, Entry::parse(&payload)), (Kind::Entry, Some(entry)));
        assert_eq!(Entry::parse(&[0, 0, 0, 0, 9, 0, 0, 0]), None);
    }
}
