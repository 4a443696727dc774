//! Hash get: every outcome, at the ends of keys, with several requests outstanding, and with a server that writes meanwhile.
#![allow(clippy::unwrap_used)]

mod common;

use common::linear::{Done, is_linearizable};
use common::*;
use rdmesh_chain::Site;
use rdmesh_chain::build::Design;
use rdmesh_chain::model::{Fetch, Model, Schedule};
use rdmesh_chain::offload::hash::{Client, KeyError, Keys, Probe, Shape, Table};
use rdmesh_chain::offload::{Answer, Buffer, fingerprint};
use rdmesh_chain::program::Chain;

const PROBES: [Probe; 4] = [Probe::TwoChoice, Probe::EarlyExit, Probe::Parallel, Probe::Hopscotch(3)];

fn shapes() -> impl Iterator<Item = Shape> + Clone {
    PROBES.into_iter().flat_map(|probe| [Keys::Fingerprint, Keys::Exact(2)].map(|keys| hash_shape(probe, keys)))
}

struct Get {
    run: Run,
    table: Table,
    client: Client,
}

impl Get {
    fn new(shape: Shape, chain: &Chain, fetch: Fetch, schedule: Schedule) -> Self {
        let run = Run::new(chain.clone(), fetch, schedule, |_, _| ());
        Self { run, table: Table::new(shape), client: Client::new(shape) }
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) {
        let stores = self.table.insert(key, value).unwrap();
        apply(&mut self.run.model, &self.run.installed, &stores);
    }

    fn buffer(&self) -> Buffer {
        Buffer { addr: 0x4000, rkey: self.run.buffer }
    }

    fn ask(&mut self, key: &[u8]) -> Answer {
        let request = self.client.request(key, self.buffer()).unwrap();
        let replies = self.run.request(&request);
        assert_eq!(replies.len(), 1, "one reply to each request");
        self.client.reply(replies[0].imm.unwrap(), &replies[0].data)
    }
}

fn value(answer: Answer) -> Option<Vec<u8>> {
    match answer {
        Answer::Value { value, .. } => Some(value),
        Answer::Miss | Answer::OtherKey => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn gets_find_what_is_there_and_miss_what_is_not() {
    // Keys of 0 and 2^56 - 1, and one bit apart.
    let keys: Vec<[u8; 7]> =
        [0, u64::MAX >> 8, (u64::MAX >> 8) - 1, 1, 1 << 55].map(|k| k.to_le_bytes()[..7].try_into().unwrap()).into();
    for shape in shapes() {
        for design in DESIGNS {
            let chain = shape.program().lower(design);
            for (fetch, schedule) in every_way().take(5) {
                let mut get = Get::new(shape, &chain, fetch, schedule);
                assert_eq!(get.ask(&keys[0]), Answer::Miss);
                let mut stored = Vec::new();
                for key in &keys[..4] {
                    match get.table.insert(key, &key[..5]) {
                        Ok(stores) => {
                            apply(&mut get.run.model, &get.run.installed, &stores);
                            stored.push(key);
                        }
                        Err(KeyError::BucketsTaken) => {}
                        Err(other) => panic!("{other}"),
                    }
                }
                assert!(stored.len() > 2);
                for key in &keys {
                    let expected = stored.contains(&key).then(|| key[..5].to_vec());
                    assert_eq!(value(get.ask(key)), expected, "{shape:?} {design:?} {fetch:?} {schedule:?}");
                }
                let stores = get.table.remove(stored[0]);
                apply(&mut get.run.model, &get.run.installed, &stores);
                assert_eq!(get.ask(stored[0]), Answer::Miss);
            }
        }
    }
}

#[test]
fn a_client_tells_torn_stale_and_other_records() {
    for probe in PROBES {
        let shape = hash_shape(probe, Keys::Fingerprint);
        let mut get = Get::new(shape, &shape.program().build(Design::Local).unwrap(), Fetch::Earliest, Schedule::First);
        get.insert(b"key", b"value");
        assert_eq!(get.ask(b"key"), Answer::Value { version: 1, value: b"value".to_vec() });
        // The same reply again.
        let tag = get.client.tag();
        assert_eq!(get.client.reply(tag, &[]), Answer::Stale);
        // A byte of the record changes, then the length in the bucket.
        let records = get.run.installed.regions[1];
        let at = get.run.model.bytes(records).windows(5).position(|bytes| bytes == b"value").unwrap();
        get.run.model.bytes_mut(records)[at] ^= 1;
        assert_eq!(get.ask(b"key"), Answer::Torn);
        get.run.model.bytes_mut(records)[at] ^= 1;
        let buckets = get.run.installed.regions[0];
        let bucket = (0..8).find(|n| get.run.model.bytes(buckets)[24 * n + 16] != 0).unwrap() * 24;
        get.run.model.bytes_mut(buckets)[bucket + 8] -= 1;
        assert_eq!(get.ask(b"key"), Answer::Torn);
        get.run.model.bytes_mut(buckets)[bucket + 8] += 1;
        // Another key with the fingerprint of this one: a record of the other is no value of it.
        let request = get.client.request(b"other", get.buffer()).unwrap();
        let same = get.client.request(b"key", get.buffer()).unwrap();
        let tag = request[request.len() - 4..].to_vec();
        let reply = get.run.request(&[&same[..same.len() - 4], &tag].concat());
        assert_eq!(get.client.reply(reply[0].imm.unwrap(), &reply[0].data), Answer::OtherKey);
    }
}

#[test]
fn a_table_refuses_what_it_could_not_serve() {
    let shape = Shape { buckets: 1, records: 1, record_size: 40, probe: Probe::TwoChoice, keys: Keys::Exact(1) };
    let mut table = Table::new(shape);
    assert_eq!(table.insert(b"longer than a word", b""), Err(KeyError::KeyTooLong));
    assert_eq!(table.insert(b"a", &[0; 40]), Err(KeyError::RecordTooLong));
    assert!(table.insert(b"a", b"1").is_ok());
    assert_eq!(table.insert(b"b", b"1"), Err(KeyError::BucketsTaken));
    assert_eq!(table.insert(b"a", b"2"), Err(KeyError::NoRecord));
    assert!(!table.remove(b"a").is_empty() && table.remove(b"a").is_empty());
    table.reclaim();
    assert!(table.insert(b"b", b"1").is_ok());
    assert_ne!(fingerprint(b""), 0);
}

#[test]
fn several_requests_are_outstanding() {
    for probe in PROBES {
        for design in DESIGNS {
            let shape = hash_shape(probe, Keys::Fingerprint);
            let chain = shape.program().lower(design).instances(3).unwrap();
            for (fetch, schedule) in every_way().take(4) {
                let mut get = Get::new(shape, &chain, fetch, schedule);
                get.insert(b"here", b"x");
                let keys: Vec<&[u8]> = (0..8).map(|n| if n % 3 == 0 { &b"here"[..] } else { b"gone" }).collect();
                for key in &keys {
                    let request = get.client.request(key, get.buffer()).unwrap();
                    get.run.model.send(get.run.installed.receives[0], request);
                }
                let replies = get.run.settle();
                assert_eq!(replies.len(), keys.len(), "{probe:?} {design:?}");
                for (key, reply) in keys.iter().zip(replies) {
                    let answer = get.client.reply(reply.imm.unwrap(), &reply.data);
                    assert_eq!(value(answer).is_some(), *key == b"here");
                }
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Operation {
    Set(Option<u8>),
    Get(Option<u8>),
}

/// Clients ask while the server stores word by word, at any moment and between the words that are read: all answers could have
/// been given one after the other.
#[test]
fn histories_are_linearizable() {
    let (mut torn, mut answered) = (0, 0);
    for (seed, shape) in (0..).zip(shapes().cycle().take(90)) {
        let chain = shape.program().lower(if seed % 5 == 0 { Design::Portable } else { Design::Local });
        let (tears, answers) = history(seed, shape, &chain);
        torn += tears;
        answered += answers;
    }
    assert!(torn > 5 && answered > 1000, "{torn} {answered}");
}

const KEYS: [&[u8]; 2] = [b"a", b"b"];

/// A client with its chain.
struct Asker {
    handle: u32,
    receive: u32,
    client: Client,
    buffer: Buffer,
    /// The key that it asks for, and since when.
    open: Option<(usize, u64)>,
}

/// A server that writes, and clients that ask.
struct World {
    chance: Chance,
    model: Model,
    askers: Vec<Asker>,
    regions: Vec<u32>,
    table: Table,
    /// Actions of the server: key, begin, value.
    writing: Option<(usize, u64, Option<u8>)>,
    histories: [Vec<Done<Operation>>; 2],
    now: u64,
    torn: usize,
}

impl World {
    fn new(seed: u64, shape: Shape, chain: &Chain) -> Self {
        let mut model = Model::new(RULES[seed as usize % 3]);
        let (mut askers, mut first) = (Vec::new(), None);
        for _ in 0..2 {
            let handle = model.create_client();
            let rkey = model.register_at_client(handle, 0, vec![0; 64]);
            let site = Site { client: Some(handle), beside: first.as_ref(), lap: 0 };
            let installed = chain.install_at(&mut model, &site);
            let (receive, buffer) = (installed.receives[0], Buffer { addr: 0, rkey });
            askers.push(Asker { handle, receive, client: Client::new(shape), buffer, open: None });
            first.get_or_insert(installed);
        }
        Self {
            chance: Chance(seed),
            model,
            askers,
            regions: first.unwrap().regions,
            table: Table::new(shape),
            writing: None,
            histories: [Vec::new(), Vec::new()],
            now: 0,
            torn: 0,
        }
    }

    fn write(&mut self) {
        if let Some((key, start, value)) = self.writing.take_if(|_| self.model.stores_left() == 0) {
            self.histories[key].push(Done { start, end: self.now, operation: Operation::Set(value) });
        }
        if self.writing.is_some() || self.chance.below(12) != 0 {
            return;
        }
        // Records are used again only when no reply can have them.
        if self.askers.iter().all(|asker| asker.open.is_none()) {
            self.table.reclaim();
        }
        let (key, value) = (self.chance.below(2) as usize, self.chance.below(200) as u8);
        let length = 1 + self.chance.below(30) as usize;
        let (stores, value) = match self.chance.below(4) {
            0 => (Ok(self.table.remove(KEYS[key])), None),
            _ => (self.table.insert(KEYS[key], &vec![value; length]), Some(value)),
        };
        let Ok(stores) = stores else { return };
        self.writing = Some((key, self.now, value));
        for store in stores {
            self.model.store_later(self.regions[store.region], store.at as usize, &store.word.to_le_bytes());
        }
    }

    fn ask(&mut self, n: usize) {
        let asker = &mut self.askers[n];
        if asker.open.is_none() && self.chance.below(6) == 0 {
            let key = self.chance.below(2) as usize;
            self.model.send(asker.receive, asker.client.request(KEYS[key], asker.buffer).unwrap());
            asker.open = Some((key, self.now));
        }
        for reply in self.model.take_messages(asker.handle) {
            let operation = match asker.client.reply(reply.imm.unwrap(), &reply.data) {
                Answer::Value { value, .. } => Some(Operation::Get(Some(value[0]))),
                Answer::Miss | Answer::OtherKey => Some(Operation::Get(None)),
                Answer::Torn => None,
                // A key that came and went in both buckets was hit twice.
                Answer::Stale => continue,
            };
            let Some((key, start)) = asker.open.take() else { panic!("an answer to no question") };
            self.torn += usize::from(operation.is_none());
            self.histories[key].extend(operation.map(|operation| Done { start, end: self.now, operation }));
        }
    }

    fn step(&mut self) {
        let steps = self.model.steps();
        if let Some(step) = steps.get(self.chance.below(steps.len().max(1) as u64) as usize) {
            self.model.step(*step);
        }
        assert_eq!(self.model.fault(), None);
    }
}

/// Torn replies and answers of one history, which is linearizable.
fn history(seed: u64, shape: Shape, chain: &Chain) -> (usize, usize) {
    let mut world = World::new(seed, shape, chain);
    while world.histories.iter().all(|history| history.len() < 24) {
        world.now += 1;
        world.write();
        (0..2).for_each(|n| world.ask(n));
        world.step();
    }
    let mut answered = 0;
    for (key, mut history) in world.histories.into_iter().enumerate() {
        answered += history.len();
        if let Some((_, start, value)) = world.writing.filter(|writing| writing.0 == key) {
            history.push(Done { start, end: world.now, operation: Operation::Set(value) });
        }
        let is_fine = is_linearizable(&history, None, |state, operation| match operation {
            Operation::Set(value) => Some(*value),
            Operation::Get(value) => (state == value).then_some(*state),
        });
        assert!(is_fine, "seed {seed} {shape:?}: {history:#?}");
    }
    (world.torn, answered)
}

/// Percent of the buckets that are taken when the first key is refused: the least and the most of ten tables.
fn load(probe: Probe, buckets: u64) -> [usize; 2] {
    let of_table = |n: u64| {
        let mut table = Table::new(Shape { buckets, records: buckets, record_size: 64, probe, ..Shape::default() });
        let is_taken = |key: &u64| table.insert(format!("{n} {key}").as_bytes(), b"").is_ok();
        (0..buckets).take_while(is_taken).count() * 100 / buckets as usize
    };
    let loads: Vec<_> = (0..10).map(of_table).collect();
    [*loads.iter().min().expect("ten"), *loads.iter().max().expect("ten")]
}

#[test]
fn a_table_carries_what_the_tutorial_says() {
    let probes = [Probe::TwoChoice, Probe::Hopscotch(4), Probe::Hopscotch(8), Probe::Hopscotch(16)];
    let loads = probes.map(|probe| [1 << 10, 1 << 14].map(|buckets| load(probe, buckets)));
    let expected = [[[5, 15], [2, 9]], [[9, 32], [9, 20]], [[28, 52], [22, 37]], [[47, 64], [35, 46]]];
    assert_eq!(loads, expected);
}
