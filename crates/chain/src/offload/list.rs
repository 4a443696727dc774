//! List walk: a value in a linked list, found by its key, of a list that the server's program changes meanwhile.
//!
//! A node is `address of the next node 8, of the record 8, length 4, version 4, fingerprint of the key 8`. The node at address 0
//! is the end of all lists: it has no key, and a record of no bytes, which is the reply to a request whose key is in no node.
//!
//! ```
//! use rdmesh_chain::build::Design;
//! use rdmesh_chain::model::{Fetch, Model, Schedule};
//! use rdmesh_chain::offload::list::{Client, Lists, Shape, Walk};
//! use rdmesh_chain::offload::{Answer, Buffer};
//!
//! let shape = Shape { walk: Walk::Loop, nodes: 8, record_size: 64 };
//! let chain = shape.program().build(Design::Local)?;
//! let mut nic = Model::new(Fetch::Earliest);
//! let client = nic.create_client();
//! let rkey = nic.register_at_client(client, 0, vec![0; 64]);
//! let installed = chain.install(&mut nic, Some(client));
//!
//! let mut lists = Lists::new(shape);
//! let mut head = 0;
//! for key in ["one", "two", "three"] {
//!     let (node, stores) = lists.push(head, key.as_bytes(), b"value").ok_or("no node is free")?;
//!     for store in stores {
//!         nic.bytes_mut(installed.regions[store.region])[store.at as usize..][..8].copy_from_slice(&store.word.to_le_bytes());
//!     }
//!     head = node;
//! }
//! let mut walks = Client::default();
//! nic.send(installed.receives[0], walks.request(head, b"one", Buffer { addr: 0, rkey }));
//! assert!(nic.run(Schedule::First, 1000));
//! let reply = nic.take_messages(client).remove(0);
//! let answer = walks.reply(reply.imm.unwrap_or_default(), &reply.data);
//! assert_eq!(answer, Answer::Value { version: 1, value: b"value".to_vec() });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::record::{HEAD, encode, fingerprint, judge};
use super::{Answer, Buffer, Store, stores};
use crate::build::{Arg, Memory, Offset, Program, RemoteBuf, Request, U32, U56, nop, write_imm};
use crate::program::Span;
use std::collections::BTreeMap;

/// Form of a list walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Walk {
    /// So many nodes at most, all of which are read.
    Unrolled(usize),
    /// So many nodes at most; those behind the key are not read.
    Break(usize),
    /// A loop over any number of nodes. A circle of nodes without the key is walked until the chain is stopped.
    Loop,
}

/// Shape of the lists: server and clients must agree on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Form of a list walk.
    pub walk: Walk,
    /// Nodes of all lists.
    pub nodes: u64,
    /// Bytes of a record at most: 24 and its key and value.
    pub record_size: u64,
}

const NODE: u64 = 32;
/// The numbers of the regions in the chain of a [`Shape`].
const NODES: usize = 0;
const RECORDS: usize = 1;

struct Parts {
    nodes: Memory,
    records: Memory,
    waste: Memory,
    key: Arg<U56>,
    first: Arg<Offset>,
    to: Arg<RemoteBuf>,
    tag: Arg<U32>,
}

impl Shape {
    /// The chain's program, whose lists are empty. Its message is what [`Client::request`] returns.
    pub fn program(self) -> Program {
        let mut p = Program::new("list_walk");
        let parts = Parts {
            nodes: p.table("nodes", NODE * (self.nodes + 1)),
            records: p.table("records", self.nodes * self.record_size),
            waste: p.scratch("waste", 4 * self.hops() as u64),
            key: p.arg("key"),
            first: p.arg("first"),
            to: p.arg("to"),
            tag: p.arg("tag"),
        };
        match self.walk {
            Walk::Unrolled(hops) => parts.unrolled(&mut p, hops),
            Walk::Break(hops) => parts.breaking(&mut p, hops),
            Walk::Loop => parts.endless(&mut p),
        }
        p
    }

    const fn hops(self) -> usize {
        match self.walk {
            Walk::Unrolled(hops) | Walk::Break(hops) => hops,
            Walk::Loop => 1,
        }
    }
}

impl Parts {
    fn hit(&self, p: &mut Program, hop: usize) -> Request {
        p.declare(format!("hit{hop}"), write_imm(0).to(self.to).tag(self.tag).gather(self.records))
    }

    fn miss(&self, p: &mut Program) -> Request {
        p.declare("miss", write_imm(0).to(self.to).tag(self.tag))
    }

    /// The READs of all nodes; each fills in the address of the next one.
    fn reads(&self, p: &mut Program, hops: usize) -> Vec<Request> {
        let reads: Vec<Request> = (0..hops).map(|hop| p.read_later(format!("node{hop}"), self.nodes)).collect();
        if let Some(first) = reads.first() {
            p.fill_with(self.first, first.remote());
        }
        reads
    }

    /// Scatter list for the bytes of a node.
    fn spans(&self, hop: usize, next: Option<&Request>, hit: Request) -> [Span; 4] {
        // The last node's successor is of no use: its address goes where the value's will.
        let next = next.map_or_else(|| Span { length: 8, ..hit.sge(0) }, |next| next.remote());
        [next, hit.sge(0), self.waste.span(4 * hop as u64, 4), hit.operand()]
    }

    fn unrolled(&self, p: &mut Program, hops: usize) {
        let hits: Vec<Request> = (0..hops).map(|hop| self.hit(p, hop)).collect();
        let miss = self.miss(p);
        p.on_request();
        let reads = self.reads(p, hops);
        for (hop, (read, hit)) in reads.iter().zip(hits).enumerate() {
            p.read_now(*read, self.spans(hop, reads.get(hop + 1), hit));
            p.when(hit.operand().eq(self.key)).run(hit).cancel(miss).done();
        }
        p.place(miss).rearm();
    }

    fn breaking(&self, p: &mut Program, hops: usize) {
        let hits: Vec<Request> = (0..hops).map(|hop| self.hit(p, hop)).collect();
        let (miss, end) = (self.miss(p), p.declare("end", nop()));
        let reads = self.reads(p, hops);
        p.one_ends(&[end]);
        let mut rest = miss;
        for hop in (0..hops).rev() {
            let (read, hit, is_last) = (reads[hop], hits[hop], hop + 1 == hops);
            let body = |p: &mut Program| {
                if hop == 0 {
                    p.on_request();
                }
                p.read_now(read, self.spans(hop, reads.get(hop + 1), hit));
                p.when(hit.operand().eq(self.key)).run(hit).cancel(rest).done();
                p.place(rest);
                if is_last {
                    p.place(end);
                }
            };
            if hop == 0 {
                body(p);
            } else {
                rest = p.branch(&format!("from{hop}"), body);
                p.one_ends(&[rest]);
            }
        }
        p.await_end().rearm();
    }

    fn endless(&self, p: &mut Program) {
        let reply = p.declare("reply", write_imm(0).to(self.to).tag(self.tag).gather(self.records));
        let answer = p.branch("answer", |p| {
            p.place(reply).next_request();
        });
        p.on_request_or_next();
        let probe = p.read(self.nodes.at(self.first)).named("node").soft();
        let next = probe.own_address();
        probe.into([next, reply.sge(0), self.waste.span(0, 4), answer.operand()]);
        // The end of the list has key 0, and a record without bytes.
        p.when(answer.operand().one_of([self.key.into(), 0.into()])).stop_with(answer).done();
        p.recycle();
    }
}

/// The server's part: nodes and records, and the stores that link them. Nodes are not used again.
#[derive(Clone, Debug)]
pub struct Lists {
    shape: Shape,
    used: u64,
}

impl Lists {
    /// Empty lists: their head is 0.
    pub fn new(shape: Shape) -> Self {
        Self { shape, used: 0 }
    }

    /// A node in front of a list, and its stores; the list's new head is the node, once the stores are made. `None` if no node
    /// is free, or the record is too long.
    pub fn push(&mut self, head: u64, key: &[u8], value: &[u8]) -> Option<(u64, Vec<Store>)> {
        if self.used == self.shape.nodes || (HEAD + key.len() + value.len()) as u64 > self.shape.record_size {
            return None;
        }
        let at = self.used * self.shape.record_size;
        self.used += 1;
        let bytes = encode(self.used as u32, key, value);
        let node = NODE * self.used;
        let length = bytes.len() as u64 | self.used << 32;
        let words = [head, at, length, fingerprint(key)];
        let mut list: Vec<Store> = stores(RECORDS, at, &bytes).collect();
        list.extend((node..).step_by(8).zip(words).map(|(at, word)| Store { region: NODES, at, word }));
        Some((node, list))
    }

    /// Whether a node is in use.
    pub fn has(&self, node: u64) -> bool {
        node.is_multiple_of(NODE) && (1..=self.used).contains(&(node / NODE))
    }

    /// The store that takes the node behind another one out of its list.
    pub fn unlink(&self, node: u64, behind: u64) -> Store {
        Store { region: NODES, at: node, word: behind }
    }
}

/// The client's part: requests, and what their replies say.
#[derive(Clone, Debug, Default)]
pub struct Client {
    last: u32,
    open: BTreeMap<u32, Vec<u8>>,
}

impl Client {
    /// The message that asks for a key in the list with this head. The reply comes to the buffer.
    pub fn request(&mut self, head: u64, key: &[u8], buffer: Buffer) -> Vec<u8> {
        self.last = self.last.wrapping_add(1);
        self.open.insert(self.last, key.to_vec());
        let key = fingerprint(key).to_le_bytes();
        [&key[..7], &head.to_le_bytes(), &buffer.encode(), &self.last.to_le_bytes()].concat()
    }

    /// The tag of the last request.
    pub fn tag(&self) -> u32 {
        self.last
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
