//! Hash get: values by key from a table that the server's program changes meanwhile.
//!
//! A bucket is `address of the record 8, length 4, version 4, words of the key 8 each`; a record has the whole key. The client
//! says in which buckets its key may be. The chain compares, and sends the record, or an empty reply.
//!
//! ```
//! use rdmesh_chain::build::Design;
//! use rdmesh_chain::model::{Fetch, Model, Schedule};
//! use rdmesh_chain::offload::hash::{Client, Shape, Table};
//! use rdmesh_chain::offload::{Answer, Buffer};
//!
//! let shape = Shape { buckets: 64, records: 32, record_size: 64, ..Shape::default() };
//! let chain = shape.program().build(Design::Local)?.instances(4)?;
//! let mut nic = Model::new(Fetch::Earliest);
//! let client = nic.create_client();
//! let rkey = nic.register_at_client(client, 0, vec![0; 64]);
//! let installed = chain.install(&mut nic, Some(client));
//!
//! let mut table = Table::new(shape);
//! for store in table.insert(b"answer", b"42")? {
//!     nic.bytes_mut(installed.regions[store.region])[store.at as usize..][..8].copy_from_slice(&store.word.to_le_bytes());
//! }
//! let mut gets = Client::new(shape);
//! nic.send(installed.receives[0], gets.request(b"answer", Buffer { addr: 0, rkey })?);
//! assert!(nic.run(Schedule::First, 1000));
//! let reply = nic.take_messages(client).remove(0);
//! let answer = gets.reply(reply.imm.unwrap_or_default(), &reply.data);
//! assert_eq!(answer, Answer::Value { version: 1, value: b"42".to_vec() });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::record::{HEAD, encode, fingerprint, hash, judge};
use super::{Answer, Buffer, Store, stores};
use crate::build::{Arg, Condition, Memory, Offset, Program, RemoteBuf, Request, U32, U56, copy, nop, test, write_imm};
use crate::program::Span;
use std::collections::{BTreeMap, BTreeSet};

/// Candidate buckets of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Probe {
    /// In one of two buckets that two hash functions say, which are compared both.
    TwoChoice,
    /// The same; the second bucket is read only if the first has another key.
    EarlyExit,
    /// The same; each bucket is read and compared in a queue of its own.
    Parallel,
    /// In one of so many neighbours, which one READ fetches.
    Hopscotch(u64),
}

/// Form of the key in a bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keys {
    /// A fingerprint of 56 bits; the client compares the whole key.
    Fingerprint,
    /// The key itself, in so many words: 7 bytes a word, less one for its length.
    Exact(usize),
}

/// Shape of a table: server and clients must agree on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Buckets.
    pub buckets: u64,
    /// Records.
    pub records: u64,
    /// Bytes of a record at most: 24 and its key and value.
    pub record_size: u64,
    /// Candidate buckets of a key.
    pub probe: Probe,
    /// Form of the key in a bucket.
    pub keys: Keys,
}

impl Default for Shape {
    fn default() -> Self {
        Self { buckets: 1024, records: 1024, record_size: 1024, probe: Probe::TwoChoice, keys: Keys::Fingerprint }
    }
}

/// Error of a key or value that cannot be stored or asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyError {
    /// A key that is too long for its words.
    #[error("the key is too long for the words of a bucket; use fingerprints, or more words")]
    KeyTooLong,
    /// A record that is too long.
    #[error("key and value do not fit in a record; make `record_size` larger")]
    RecordTooLong,
    /// All buckets where the key may be are taken.
    #[error("all buckets of the key are taken; use more buckets")]
    BucketsTaken,
    /// No record is free.
    #[error("no record is free; use more records, or call `reclaim` when earlier replies have ended")]
    NoRecord,
    /// Another key has the same fingerprint.
    #[error("a key with the same fingerprint is in the table; use exact keys, or serve one of the two otherwise")]
    Collision,
}

/// The numbers of the regions in the chain of a [`Shape`].
const BUCKETS: usize = 0;
const RECORDS: usize = 1;

impl Shape {
    /// Words of a key in a bucket.
    fn words(self) -> usize {
        match self.keys {
            Keys::Fingerprint => 1,
            Keys::Exact(words) => words.max(1),
        }
    }

    fn bucket_size(self) -> u64 {
        16 + 8 * self.words() as u64
    }

    fn neighbours(self) -> u64 {
        if let Probe::Hopscotch(neighbours) = self.probe { neighbours.max(1) } else { 1 }
    }

    /// The buckets in which a key may be.
    fn places(self, key: &[u8]) -> Vec<u64> {
        let choice = |seed| hash(key, seed) % self.buckets.max(1);
        // Another bucket than the first.
        let second = |first: u64| (first + 1 + hash(key, 3) % (self.buckets - 1).max(1)) % self.buckets.max(1);
        match self.probe {
            Probe::Hopscotch(_) => (choice(2)..).take(self.neighbours() as usize).collect(),
            _ => vec![choice(2), second(choice(2))],
        }
    }

    /// Form of a key in its bucket: words of 56 bits, the first of which is not zero.
    fn key_words(self, key: &[u8]) -> Result<Vec<u64>, KeyError> {
        let Keys::Exact(_) = self.keys else { return Ok(vec![fingerprint(key)]) };
        let room = 7 * self.words() - 1;
        if key.len() > room.min(254) {
            return Err(KeyError::KeyTooLong);
        }
        let mut bytes = vec![key.len() as u8 + 1];
        bytes.extend_from_slice(key);
        bytes.resize(room + 1, 0);
        Ok(bytes.chunks(7).map(|word| word.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte))).collect())
    }

    /// The chain's program, whose table is empty. Its message is what [`Client::request`] returns.
    pub fn program(self) -> Program {
        let mut p = Program::new("hash_get");
        let table = p.table("buckets", self.bucket_size() * (self.buckets + self.neighbours() - 1));
        let records = p.table("records", self.records * self.record_size);
        debug_assert_eq!((table.number(), records.number()), (BUCKETS, RECORDS));
        let keys: Vec<Arg<U56>> = (0..self.words()).map(|n| p.arg(&format!("key{n}"))).collect();
        let reads = if let Probe::Hopscotch(_) = self.probe { 1 } else { 2 };
        let offsets: Vec<Arg<Offset>> = (0..reads).map(|n| p.arg(&format!("bucket{n}"))).collect();
        let (to, tag) = (p.arg("to"), p.arg("tag"));
        let count = reads * self.neighbours() as usize;
        let waste = p.scratch("waste", (4 + self.words() * count) as u64 * count as u64);
        let mut get = Get { shape: self, table, records, waste, keys, offsets, to, tag, used: 0 };
        match self.probe {
            Probe::EarlyExit => get.one_after_the_other(&mut p),
            Probe::Parallel => get.beside_each_other(&mut p),
            _ => get.all(&mut p, reads),
        }
        p
    }
}

/// A program under construction.
struct Get {
    shape: Shape,
    table: Memory,
    records: Memory,
    waste: Memory,
    keys: Vec<Arg<U56>>,
    offsets: Vec<Arg<Offset>>,
    to: Arg<RemoteBuf>,
    tag: Arg<U32>,
    /// Bytes of `waste` that have their use.
    used: u64,
}

/// The request that sends the record of a bucket, and where the words of its key go.
struct Hit {
    reply: Request,
    operands: Vec<Span>,
}

impl Get {
    fn miss(&self, p: &mut Program) -> Request {
        p.declare("miss", write_imm(0).to(self.to).tag(self.tag))
    }

    fn hit(&self, p: &mut Program, number: usize) -> Hit {
        let reply = p.declare(format!("hit{number}"), write_imm(0).to(self.to).tag(self.tag).gather(self.records));
        let tests = (1..self.keys.len()).map(|word| p.declare(format!("word{number}.{word}"), test()).operand());
        let operands = tests.collect::<Vec<_>>().into_iter().chain([reply.operand()]).collect();
        Hit { reply, operands }
    }

    fn skip(&mut self, length: u32) -> Span {
        self.used += u64::from(length);
        self.waste.span(self.used - u64::from(length), length)
    }

    /// Reads the buckets of one place.
    fn read(&mut self, p: &mut Program, number: usize, hits: &[Hit]) {
        let mut spans = Vec::new();
        for hit in hits {
            spans.extend([hit.reply.sge(0), self.skip(4)]);
            spans.extend(hit.operands.iter().flat_map(|word| [*word, self.skip(1)]).collect::<Vec<_>>());
        }
        spans.pop();
        p.read(self.table.at(self.offsets[number])).named(format!("bucket{number}")).into(spans);
    }

    fn is_key(&self, hit: &Hit) -> Condition {
        let words = hit.operands.iter().zip(&self.keys).map(|(word, key)| Span::eq(*word, *key));
        words.reduce(Condition::and).unwrap_or_else(|| hit.reply.operand().is_null())
    }

    fn all(&mut self, p: &mut Program, reads: usize) {
        let neighbours = self.shape.neighbours() as usize;
        let hits: Vec<Hit> = (0..reads * neighbours).map(|number| self.hit(p, number)).collect();
        let miss = self.miss(p);
        p.on_request();
        for (number, hits) in hits.chunks(neighbours).enumerate() {
            self.read(p, number, hits);
            for hit in hits {
                p.when(self.is_key(hit)).run(hit.reply).cancel(miss).done();
            }
        }
        p.place(miss).rearm();
    }

    fn one_after_the_other(&mut self, p: &mut Program) {
        let (first, second) = (self.hit(p, 0), self.hit(p, 1));
        let (miss, end) = (self.miss(p), p.declare("end", nop()));
        let other = p.branch("second", |p| {
            self.read(p, 1, std::slice::from_ref(&second));
            p.when(self.is_key(&second)).run(second.reply).cancel(miss).done();
            p.place(miss).place(end);
        });
        p.one_ends(&[other, end]).on_request();
        self.read(p, 0, std::slice::from_ref(&first));
        p.when(self.is_key(&first)).run(first.reply).cancel(other).done();
        p.place(other).await_end().rearm();
    }
}

impl Get {
    /// Each branch that finds another key sets a byte of the miss's operand: the miss is sent if both have.
    fn beside_each_other(&mut self, p: &mut Program) {
        let one = p.constant("one", &[1]);
        let miss = self.miss(p);
        let (mut starts, mut ends) = (Vec::new(), Vec::new());
        for number in 0..2 {
            let hit = self.hit(p, number);
            let flag = Span { place: miss.operand().place.after(number), length: 1 };
            let missed = p.declare(format!("missed{number}"), copy(flag, one.span(0, 1)));
            let end = p.declare(format!("end{number}"), nop());
            ends.push(end);
            starts.push(p.branch(&format!("probe{number}"), |p| {
                self.read(p, number, std::slice::from_ref(&hit));
                p.when(self.is_key(&hit)).run(hit.reply).cancel(missed).done();
                p.place(missed).place(end);
            }));
        }
        p.all_end(&ends).on_request();
        for start in starts {
            p.place(start);
        }
        p.await_end();
        p.when(miss.operand().eq(0x0101)).run(miss).done();
        p.rearm();
    }
}

/// The server's part: the table's content, and the stores that change it.
///
/// A value that is replaced stays in its bucket: what is read meanwhile is the old record, the new one, or a mixture that the
/// client sees. No key moves from one bucket to another, as a request could then miss it in both.
#[derive(Clone, Debug)]
pub struct Table {
    shape: Shape,
    /// Key and record of each bucket.
    entries: BTreeMap<u64, (Vec<u8>, u64)>,
    words: BTreeSet<Vec<u64>>,
    free: Vec<u64>,
    retired: Vec<u64>,
    version: u32,
}

impl Table {
    /// An empty table.
    pub fn new(shape: Shape) -> Self {
        let free = (0..shape.records).rev().collect();
        Self { shape, entries: BTreeMap::new(), words: BTreeSet::new(), free, retired: Vec::new(), version: 0 }
    }

    /// Stores that put a value under a key.
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<Vec<Store>, KeyError> {
        let words = self.shape.key_words(key)?;
        if (HEAD + key.len() + value.len()) as u64 > self.shape.record_size {
            return Err(KeyError::RecordTooLong);
        }
        let old = self.find(key);
        if old.is_none() && self.words.contains(&words) {
            return Err(KeyError::Collision);
        }
        let empty = || self.shape.places(key).into_iter().find(|place| !self.entries.contains_key(place));
        let bucket = old.or_else(empty).ok_or(KeyError::BucketsTaken)?;
        let record = self.free.pop().ok_or(KeyError::NoRecord)?;
        self.version += 1;
        let bytes = encode(self.version, key, value);
        let at = record * self.shape.record_size;
        let mut list: Vec<Store> = stores(RECORDS, at, &bytes).collect();
        list.push(self.store(bucket, 0, at));
        list.push(self.store(bucket, 8, bytes.len() as u64 | u64::from(self.version) << 32));
        if let Some((_, old)) = self.entries.insert(bucket, (key.to_vec(), record)) {
            self.retired.push(old);
        } else {
            // The first word last: with it the bucket has the key.
            list.extend(words.iter().enumerate().rev().map(|(n, word)| self.store(bucket, 16 + 8 * n as u64, *word)));
            self.words.insert(words);
        }
        Ok(list)
    }

    /// Stores that take a key away.
    pub fn remove(&mut self, key: &[u8]) -> Vec<Store> {
        let Some(bucket) = self.find(key) else { return Vec::new() };
        self.retired.extend(self.entries.remove(&bucket).map(|(_, record)| record));
        if let Ok(words) = self.shape.key_words(key) {
            self.words.remove(&words);
        }
        (0..self.shape.words() as u64).map(|n| self.store(bucket, 16 + 8 * n, 0)).collect()
    }

    /// Records that were replaced or removed are used again: to be called when all replies that had begun have ended.
    pub fn reclaim(&mut self) {
        self.free.append(&mut self.retired);
    }

    fn find(&self, key: &[u8]) -> Option<u64> {
        let has = |place: &u64| self.entries.get(place).is_some_and(|(found, _)| found == key);
        self.shape.places(key).into_iter().find(has)
    }

    fn store(&self, bucket: u64, at: u64, word: u64) -> Store {
        Store { region: BUCKETS, at: bucket * self.shape.bucket_size() + at, word }
    }
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

    /// The message that asks for a key. The reply comes to the buffer, of which each outstanding request needs one; its tag is
    /// [`Client::tag`].
    pub fn request(&mut self, key: &[u8], buffer: Buffer) -> Result<Vec<u8>, KeyError> {
        let words = self.shape.key_words(key)?;
        let mut message: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes().into_iter().take(7)).collect();
        let reads = if let Probe::Hopscotch(_) = self.shape.probe { 1 } else { 2 };
        let offsets = self.shape.places(key).into_iter().map(|place| place * self.shape.bucket_size()).take(reads);
        message.extend(offsets.flat_map(u64::to_le_bytes));
        message.extend_from_slice(&buffer.encode());
        message.extend_from_slice(&self.next.to_le_bytes());
        self.open.insert(self.next, key.to_vec());
        self.next = self.next.wrapping_add(1);
        Ok(message)
    }

    /// The tag of the last request.
    pub fn tag(&self) -> u32 {
        self.next.wrapping_sub(1)
    }

    /// Decodes a reply: its immediate data and the bytes that it wrote.
    pub fn reply(&mut self, tag: u32, bytes: &[u8]) -> Answer {
        self.reply_in_place(tag, bytes).into_owned()
    }

    /// The same without a copy of the value.
    pub fn reply_in_place<'a>(&mut self, tag: u32, bytes: &'a [u8]) -> Answer<&'a [u8]> {
        self.open.remove(&tag).map_or(Answer::Stale, |key| judge(&key, bytes))
    }
}
