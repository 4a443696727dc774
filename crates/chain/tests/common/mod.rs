//! A chain in a model, with one client.
#![allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used)]

pub mod linear;

use rdmesh_chain::Installed;
use rdmesh_chain::build::{Design, Memory, Offset, Program, RemoteBuf, U32, U56, add, copy, send_imm, write_imm};
use rdmesh_chain::model::{Fetch, Message, Model, Schedule};
use rdmesh_chain::offload::{Store, counter, hash, list, lock};
use rdmesh_chain::program::Chain;

pub const BUFFER: usize = 64;
pub const RULES: [Fetch; 3] = [Fetch::Earliest, Fetch::AtStart, Fetch::Between];
pub const DESIGNS: [Design; 2] = [Design::Local, Design::Portable];
pub const MISS: u32 = 404;
pub const HIT: u32 = 200;

pub struct Run {
    pub chain: Chain,
    pub model: Model,
    pub installed: Installed,
    pub client: u32,
    pub buffer: u32,
    schedule: Schedule,
}

impl Run {
    pub fn new(chain: Chain, fetch: Fetch, schedule: Schedule, fill: impl Fn(&mut Model, &Installed)) -> Self {
        let mut model = Model::new(fetch);
        let client = model.create_client();
        let buffer = model.register_at_client(client, 0x4000, vec![0; BUFFER]);
        // Nothing is prefetched before the program has filled its tables: they are no part of the rings.
        let installed = chain.install(&mut model, Some(client));
        fill(&mut model, &installed);
        Self { chain, model, installed, client, buffer, schedule }
    }

    /// Runs until nothing is possible.
    pub fn settle(&mut self) -> Vec<Message> {
        assert!(self.model.run(self.schedule, 100_000), "endless");
        let fault = self.model.fault();
        let label = fault.filter(|f| !f.is_receive).map(|f| self.chain.label(f.queue as usize, f.index).to_owned());
        assert_eq!(fault, None, "at {label:?}");
        self.model.take_messages(self.client)
    }

    pub fn request(&mut self, arguments: &[u8]) -> Vec<Message> {
        self.model.send(self.installed.receives[0], arguments.to_vec());
        self.settle()
    }

    pub fn word(&self, region: Memory, at: usize) -> u64 {
        let bytes = self.model.bytes(self.installed.regions[region.number()]);
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    pub fn buffer(&self) -> &[u8] {
        self.model.client_bytes(self.client, self.buffer)
    }
}

/// All ways in which a model may fetch, and some orders.
pub fn every_way() -> impl Iterator<Item = (Fetch, Schedule)> {
    let schedules = std::iter::once(Schedule::First).chain((0..6).map(Schedule::Random));
    schedules.flat_map(|schedule| RULES.map(|fetch| (fetch, schedule)))
}

pub fn to(key: u32) -> Vec<u8> {
    [&0x4000_u64.to_le_bytes()[..], &key.to_le_bytes()].concat()
}

pub fn u56(value: u64) -> Vec<u8> {
    value.to_le_bytes()[..7].to_vec()
}

/// `if key == 56 bits at x: reply HIT, else: reply MISS`, for ever.
pub fn if_else() -> (Program, Memory) {
    let mut p = Program::new("if_else");
    let x = p.table("x", 8);
    let key = p.arg::<U56>("key");
    let hit = p.declare("hit", send_imm(HIT));
    let miss = p.declare("miss", send_imm(MISS));
    p.on_request();
    p.read(x.at(0)).named("load").into([hit.operand()]);
    p.when(hit.operand().eq(key)).run(hit).otherwise(miss).done();
    p.rearm();
    (p, x)
}

pub const BUCKET: usize = 24;

/// The reference's hash get: so many buckets, whose offsets the client says; `hit` sends the value.
pub fn hash_get(buckets: usize) -> (Program, Memory, Memory) {
    let mut p = Program::new("hash_get");
    let (table, values) = (p.table("table", 16 * BUCKET as u64), p.table("values", 1024));
    let waste = p.scratch("waste", 4 * buckets as u64);
    let key = p.arg::<U56>("key");
    let offsets: Vec<_> = (0..buckets).map(|n| p.arg::<Offset>(&format!("bucket{n}"))).collect();
    let to = p.arg::<RemoteBuf>("to");
    let tag = p.arg::<U32>("tag");
    let hits: Vec<_> =
        (0..buckets).map(|n| p.declare(format!("hit{n}"), write_imm(0).to(to).tag(tag).gather(values))).collect();
    let miss = p.declare("miss", send_imm(MISS));
    p.on_request();
    for (n, (hit, offset)) in hits.into_iter().zip(offsets).enumerate() {
        p.read(table.at(offset)).named(format!("bucket{n}")).into([
            hit.sge(0),
            waste.span(4 * n as u64, 4),
            hit.operand(),
        ]);
        p.when(hit.operand().eq(key)).run(hit).cancel(miss).done();
    }
    p.place(miss).rearm();
    (p, table, values)
}

pub const NODE: usize = 32;

/// A list whose nodes are `next 8, address of the value 8, length 4, gap 4, key 8`; its loop ends at the hit, or at the node of key 0
/// that ends every list.
pub fn list_walk() -> (Program, Memory, Memory) {
    let mut p = Program::new("list_walk");
    let (list, values) = (p.table("list", 16 * NODE as u64), p.table("values", 1024));
    let gap = p.scratch("gap", 4);
    let key = p.arg::<U56>("key");
    let first = p.arg::<Offset>("first");
    let to = p.arg::<RemoteBuf>("to");
    let hit = p.declare("hit", write_imm(HIT).to(to).gather(values));
    p.on_request_or_next();
    let probe = p.read(list.at(first)).named("probe");
    let probe = probe.soft();
    let own = probe.own_address();
    probe.into([own, hit.sge(0), gap.span(0, 4), hit.operand()]);
    p.when(hit.operand().eq(key)).stop_with(hit).done();
    p.rearm();
    (p, list, values)
}

/// Applies the stores of a server's program at once.
pub fn apply(model: &mut Model, installed: &Installed, stores: &[Store]) {
    for Store { region, at, word } in stores {
        let bytes = model.bytes_mut(installed.regions[*region]);
        bytes[*at as usize..][..8].copy_from_slice(&word.to_le_bytes());
    }
}

/// A generator of numbers.
pub struct Chance(pub u64);

impl Chance {
    pub fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

pub fn hash_shape(probe: hash::Probe, keys: hash::Keys) -> hash::Shape {
    hash::Shape { buckets: 8, records: 12, record_size: 64, probe, keys }
}

/// The programs of all offloads, by name.
pub fn offloads() -> Vec<(&'static str, Program)> {
    use hash::{Keys, Probe};
    let list = |walk| list::Shape { walk, nodes: 8, record_size: 64 }.program();
    let get = |probe, keys| hash_shape(probe, keys).program();
    vec![
        ("hash_two_choice", get(Probe::TwoChoice, Keys::Fingerprint)),
        ("hash_two_choice_exact", get(Probe::TwoChoice, Keys::Exact(2))),
        ("hash_early_exit", get(Probe::EarlyExit, Keys::Fingerprint)),
        ("hash_early_exit_exact", get(Probe::EarlyExit, Keys::Exact(2))),
        ("hash_parallel", get(Probe::Parallel, Keys::Fingerprint)),
        ("hash_parallel_exact", get(Probe::Parallel, Keys::Exact(2))),
        ("hash_hopscotch", get(Probe::Hopscotch(3), Keys::Fingerprint)),
        ("hash_hopscotch_exact", get(Probe::Hopscotch(2), Keys::Exact(2))),
        ("list_unrolled", list(list::Walk::Unrolled(3))),
        ("list_break", list(list::Walk::Break(3))),
        ("list_loop", list(list::Walk::Loop)),
        ("lock", lock::Shape { locks: 4, owner: 7 }.program()),
        ("counter", counter::Shape { counters: 2, bound: 10 }.program()),
    ]
}

/// Words of a random program.
pub const WORDS: u64 = 6;

/// A program of a few steps on a few words, by a seed.
pub fn random_program(seed: u64) -> (Program, Memory) {
    let mut chance = Chance(seed);
    let mut p = Program::new("random");
    let data = p.scratch("data", 8 * WORDS);
    let key = p.arg::<U56>("key");
    let word = |n: u64| data.span(8 * n, 8);
    p.on_request();
    for step in 0..2 + chance.below(5) {
        let (a, b) = (chance.below(WORDS), chance.below(WORDS));
        match chance.below(6) {
            0 => {
                p.add(word(a), step + 1);
            }
            1 if a != b => {
                p.copy(word(a), word(b));
            }
            2 => {
                p.max(word(a), step);
            }
            3 => {
                p.cas(word(a), step, step + 2);
            }
            _ => {
                let target = match chance.below(3) {
                    0 => p.declare(format!("target{step}"), send_imm(step as u32)),
                    1 => p.declare(format!("target{step}"), add(word(b), 3)),
                    _ => p.declare(format!("target{step}"), copy(word(b), word((b + 1) % WORDS))),
                };
                p.read(data.at(8 * a)).into([target.operand()]);
                let operand = target.operand();
                let condition = match chance.below(4) {
                    0 => operand.eq(chance.below(4)),
                    1 => operand.eq(key),
                    2 => operand.le(key),
                    _ => operand.gt(key),
                };
                match chance.below(2) {
                    0 => p.when(condition).run(target).done(),
                    _ => p.when(condition).otherwise(target).done(),
                }
            }
        }
    }
    p.rearm();
    (p, data)
}
