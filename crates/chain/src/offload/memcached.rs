//! Memcached get: a value of an unmodified memcached 1.6, found in the process's own hash table.
//!
//! The chain walks a bucket of memcached's table, as memcached has it in memory: `item *table[2^n]`, and items that are linked
//! by `h_next`. An item is, on 64-bit machines with little-endian words:
//!
//! ```text
//! 0 next 8, prev 8    16 h_next 8    24 time 4, exptime 4    32 nbytes 4, refcount 2, it_flags 2    40 clsid 1, nkey 1
//! 48 cas 8    56 key, NUL; 4 bytes of flags if it_flags has CFLAGS; value, CR LF
//! ```
//!
//! memcached knows nothing of the chain and takes no care of it. So the chain sends the item, from its header on, and then
//! its header once more, and the [`Client`] judges: cas ids are unique, and what is freed or used again is not LINKED meanwhile.
//! A miss is a hint only: while an item is replaced, or its bucket has more items than the chain has hops, it is not found.

use super::Buffer;
use crate::build::{Arg, Memory, Offset, Program, RemoteBuf, Request, U32, U56, U64, add, write, write_imm};
use crate::program::Span;
use std::collections::BTreeMap;
use std::ops::Range;

/// Shape of a memcached's memory: server and clients must agree on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Binary logarithm of the number of buckets.
    pub hash_power: u32,
    /// Bytes of the memory in which the items lie.
    pub items: u64,
    /// Items of a bucket that are looked at.
    pub hops: usize,
}

/// Content of a reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Got {
    /// The key's value at some time since the request.
    Value {
        /// The client's flags.
        flags: u32,
        /// The item's number: unique.
        cas: u64,
        /// The value's place in the buffer that the item was sent to.
        place: Range<usize>,
    },
    /// It was not found: ask by socket.
    Miss,
    /// The item changed while it was sent, or is another key's: ask again, or by socket.
    Changed,
    /// The buffer is too short: ask again with one of so many bytes, or by socket.
    TooLong(u32),
    /// An item of a kind that chains do not serve (in chunks, or on disk), or an expired one: ask by socket.
    Elsewhere,
    /// The reply to a request that was answered already.
    Stale,
}

/// Bytes before the key.
pub const HEAD: u32 = 56;
const BUCKET: u64 = 8;
const H_NEXT: u32 = 16;
const LINKED: u16 = 1;
const CAS: u16 = 2;
const CHUNKED: u16 = 32;
const HDR: u16 = 128;
const CFLAGS: u16 = 256;
/// Longest key.
const MAX_KEY: usize = 250;

impl Shape {
    /// Bytes of the table.
    pub fn table(self) -> u64 {
        BUCKET << self.hash_power
    }

    /// The chain's program. Its message is what [`Client::request`] returns. The key of `items` must be of memory that is
    /// registered by its address in the process: pointers there are used as they are.
    pub fn program(self) -> Program {
        let mut p = Program::new("memcached_get");
        let (table, items) = (p.table("table", self.table()), p.table("items", self.items));
        let waste = p.scratch("waste", u64::from(H_NEXT) + 8);
        let (key, skip, room) = (p.arg::<U56>("key"), p.arg::<U64>("skip"), p.arg::<U32>("room"));
        let (bucket, to, check) = (p.arg::<Offset>("bucket"), p.arg::<RemoteBuf>("to"), p.arg::<RemoteBuf>("check"));
        let tag = p.arg::<U32>("tag");
        let hops: Vec<Hop> = (0..self.hops).map(|hop| Hop::declare(&mut p, hop, items, to, check, tag)).collect();
        for hop in &hops {
            p.fill_with(room, hop.value.length(0)).fill_with(skip, hop.skip.compare());
        }
        let miss = p.declare("miss", write_imm(0).to(check).tag(tag));
        p.on_request();
        let first = hops.first().map_or(waste.span(0, 8), |hop| hop.item.remote());
        p.read(table.at(bucket)).named("bucket").into([first]);
        for (number, hop) in hops.iter().enumerate() {
            let next = hops.get(number + 1).map_or(waste.span(u64::from(H_NEXT), 8), |hop| hop.item.remote());
            hop.look(&mut p, waste, next);
            p.when(hop.value.operand().eq(key)).run(hop.value).run(hop.head).cancel(miss).done();
        }
        p.place(miss).rearm();
        p
    }
}

/// Requests about one item of a bucket.
struct Hop {
    /// Reads where the next item is.
    item: Request,
    /// Reads bytes of the key.
    key: Request,
    /// Adds the place of these bytes.
    skip: Request,
    /// Sends the item.
    value: Request,
    /// Sends its header again.
    head: Request,
}

impl Hop {
    fn declare(
        p: &mut Program,
        hop: usize,
        items: Memory,
        to: Arg<RemoteBuf>,
        check: Arg<RemoteBuf>,
        tag: Arg<U32>,
    ) -> Self {
        let item = p.read_later(format!("item{hop}"), items);
        let key = p.read_later(format!("key{hop}"), items);
        let skip = p.declare(format!("skip{hop}"), add(key.remote(), 0));
        let value = p.declare(format!("value{hop}"), write().to(to).gather(items));
        let head = p.declare(format!("head{hop}"), write_imm(0).to(check).tag(tag).from(items.span(0, HEAD)));
        Self { item, key, skip, value, head }
    }

    /// Reads the item whose pointer has been filled in.
    fn look(&self, p: &mut Program, waste: Memory, next: Span) {
        let address = |request: Request| Span { length: 8, ..request.sge(0) };
        for to in [address(self.value), address(self.head), self.key.remote()] {
            p.copy(to, self.item.remote());
        }
        p.place(self.skip);
        p.read_now(self.item, [waste.span(0, H_NEXT), next]);
        p.read_now(self.key, [self.value.operand()]);
    }
}

/// The hash that memcached uses where nothing else is said: MurmurHash3 of 32 bits, with seed 0.
pub fn murmur3(key: &[u8]) -> u32 {
    const C1: u32 = 0xcc9e_2d51;
    const C2: u32 = 0x1b87_3593;
    let mix = |block: u32| block.wrapping_mul(C1).rotate_left(15).wrapping_mul(C2);
    let (blocks, tail) = key.as_chunks::<4>();
    let mut hash = blocks.iter().fold(0_u32, |hash, block| {
        (hash ^ mix(u32::from_le_bytes(*block))).rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64)
    });
    if !tail.is_empty() {
        hash ^= mix(tail.iter().rev().fold(0, |block, byte| block << 8 | u32::from(*byte)));
    }
    hash ^= key.len() as u32;
    hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}

/// The client's part: requests, and what their replies say.
#[derive(Clone, Debug)]
pub struct Client {
    shape: Shape,
    next: u32,
    open: BTreeMap<u32, Vec<u8>>,
}

impl Client {
    /// A client without requests.
    pub fn new(shape: Shape) -> Self {
        Self { shape, next: 1, open: BTreeMap::new() }
    }

    /// The message that asks for a key; none where memcached has no such keys. The item comes to a buffer of `room` bytes, and
    /// its header again to another one of [`HEAD`]. The tag of the reply is [`Client::tag`].
    pub fn request(&mut self, key: &[u8], to: Buffer, room: u32, check: Buffer) -> Option<Vec<u8>> {
        if !(1..=MAX_KEY).contains(&key.len()) {
            return None;
        }
        // Keys begin alike, mostly: what tells them apart is at their ends. Before a short one lies the end of its cas id, zeros
        // as long as the ids are small.
        let end = key.len().min(7);
        let mut word = [0; 7];
        word[7 - end..].copy_from_slice(&key[key.len() - end..]);
        let skip = u64::from(HEAD) + key.len() as u64 - 7;
        let bucket = u64::from(murmur3(key)) & ((1 << self.shape.hash_power) - 1);
        self.open.insert(self.next, key.to_vec());
        let tag = self.next;
        self.next = self.next.wrapping_add(1);
        let numbers = [skip.to_le_bytes().to_vec(), room.to_le_bytes().to_vec()].concat();
        let place = (bucket * BUCKET).to_le_bytes();
        Some([&word[..], &numbers, &place, &to.encode(), &check.encode(), &tag.to_le_bytes()].concat())
    }

    /// The tag of the last request.
    pub fn tag(&self) -> u32 {
        self.next.wrapping_sub(1)
    }

    /// Judges a reply by its immediate data, the bytes of its header (none for a miss), and the buffer that the item was sent
    /// to, all of its room. `now` is the time by memcached's own clock, in which `exptime` counts.
    pub fn reply(&mut self, tag: u32, head: &[u8], item: &[u8], now: u32) -> Got {
        let Some(key) = self.open.remove(&tag) else { return Got::Stale };
        if head.is_empty() { Got::Miss } else { judge(&key, head, item, now) }
    }
}

fn judge(key: &[u8], head: &[u8], item: &[u8], now: u32) -> Got {
    let number = |at: usize| head.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes);
    let head_len = HEAD as usize;
    let (expires, nbytes, flags) = (number(28), number(32), (number(36) >> 16) as u16);
    let is_same = head.len() == head_len && item.get(..head_len).is_some_and(|first| same_content(first, head));
    let is_sound = flags & LINKED != 0 && flags & CAS != 0 && nbytes >= 2 && head.get(41) == Some(&(key.len() as u8));
    if !is_same || !is_sound {
        return Got::Changed;
    }
    if item.get(head_len..head_len + key.len()) != Some(key) {
        return Got::Changed;
    }
    if flags & (CHUNKED | HDR) != 0 || expires != 0 && expires <= now {
        return Got::Elsewhere;
    }
    let value_at = head_len + key.len() + 1 + if flags & CFLAGS != 0 { 4 } else { 0 };
    let end = value_at + nbytes as usize;
    let Some(whole) = item.get(..end) else { return Got::TooLong(u32::try_from(end).unwrap_or(u32::MAX)) };
    if !whole.ends_with(b"\r\n") {
        return Got::Changed;
    }
    let flags = if flags & CFLAGS == 0 { 0 } else { word(whole, value_at - 4) as u32 };
    Got::Value { flags, cas: word(head, 48), place: value_at..end - 2 }
}

/// Whether two copies of a header are of one content: links, times and counts of references change without that.
fn same_content(first: &[u8], second: &[u8]) -> bool {
    [28..36, 38..42, 48..56].into_iter().all(|range| first.get(range.clone()) == second.get(range))
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let chunk = bytes.get(at..).unwrap_or_default();
    chunk.iter().take(8).rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}
