//! Memcached get against memory as memcached lays it out.
#![allow(clippy::unwrap_used)]

use rdmesh_chain::build::Design;
use rdmesh_chain::model::{Fetch, Model, Schedule};
use rdmesh_chain::offload::Buffer;
use rdmesh_chain::offload::memcached::{Client, Got, HEAD, Shape, murmur3};

/// Place of the first item: where memcached has none, at address 0, chains read zeros.
const BASE: usize = 4096;
const SHAPE: Shape = Shape { hash_power: 4, items: 1 << 16, hops: 3 };
const ROOM: u32 = 512;

/// A memcached's memory, and a client of the chain there.
struct Memcached {
    nic: Model,
    peer: u32,
    receive: u32,
    table: u32,
    items: u32,
    client: Client,
    rkey: u32,
    used: usize,
    cas: u64,
}

impl Memcached {
    fn new() -> Self {
        let chain = SHAPE.program().build(Design::Local).unwrap();
        let mut nic = Model::new(Fetch::Earliest);
        let peer = nic.create_client();
        let rkey = nic.register_at_client(peer, 0, vec![0; (ROOM + HEAD) as usize]);
        let installed = chain.install(&mut nic, Some(peer));
        let (table, items, receive) = (installed.regions[0], installed.regions[1], installed.receives[0]);
        Self { nic, peer, receive, table, items, client: Client::new(SHAPE), rkey, used: BASE, cas: 0 }
    }

    /// Links an item in front of its bucket. Returns its offset.
    fn link(&mut self, key: &[u8], flags: u32, expires: u32, value: &[u8]) -> usize {
        let bucket = 8 * (murmur3(key) as usize & 15);
        let h_next = self.nic.bytes(self.table)[bucket..bucket + 8].to_vec();
        self.cas += 1;
        let it_flags: u16 = 1 | 2 | if flags != 0 { 256 } else { 0 };
        let mut item = [vec![0; 16], h_next, 7_u32.to_le_bytes().to_vec(), expires.to_le_bytes().to_vec()].concat();
        item.extend((value.len() as u32 + 2).to_le_bytes());
        item.extend([1, 0]);
        item.extend(it_flags.to_le_bytes());
        item.extend([3, key.len() as u8, 0, 0, 0, 0, 0, 0]);
        item.extend(self.cas.to_le_bytes());
        item.extend(key.iter().chain(&[0]));
        if flags != 0 {
            item.extend(flags.to_le_bytes());
        }
        item.extend(value.iter().chain(b"\r\n"));
        let at = self.used;
        self.used += item.len().next_multiple_of(8);
        self.nic.bytes_mut(self.items)[at..at + item.len()].copy_from_slice(&item);
        self.nic.bytes_mut(self.table)[bucket..bucket + 8].copy_from_slice(&(at as u64).to_le_bytes());
        at
    }

    /// Outcome of a get, and the value.
    fn get_at(&mut self, key: &[u8], now: u32) -> (Got, Vec<u8>) {
        let buffer = |addr| Buffer { addr, rkey: self.rkey };
        let message = self.client.request(key, buffer(0), ROOM, buffer(ROOM.into())).unwrap();
        self.nic.send(self.receive, message);
        assert!(self.nic.run(Schedule::First, 10_000));
        let messages = self.nic.take_messages(self.peer);
        let [reply] = &messages[..] else { panic!("one reply: {messages:?}") };
        let item = self.nic.client_bytes(self.peer, self.rkey)[..ROOM as usize].to_vec();
        let got = self.client.reply(reply.imm.unwrap(), &reply.data, &item, now);
        let value = if let Got::Value { place, .. } = &got { item[place.clone()].to_vec() } else { Vec::new() };
        (got, value)
    }

    fn get(&mut self, key: &[u8]) -> (Got, Vec<u8>) {
        self.get_at(key, 100)
    }
}

/// Checks that it is this value.
fn expect((got, found): (Got, Vec<u8>), value: &[u8], of: (u32, u64)) {
    let Got::Value { flags, cas, .. } = got else { panic!("{got:?}") };
    assert_eq!((&found[..], flags, cas), (value, of.0, of.1));
}

/// Test vectors of the hash's author.
#[test]
fn the_hash_is_memcacheds() {
    assert_eq!([murmur3(b""), murmur3(b"test"), murmur3(b"Hello, world!")], [0, 0xba6b_d213, 0xc036_3e43]);
    assert_eq!(murmur3(b"The quick brown fox jumps over the lazy dog"), 0x2e4f_f723);
}

#[test]
fn values_are_found_by_key_again_and_again() {
    let mut memcached = Memcached::new();
    assert_eq!(memcached.get(b"user:000001").0, Got::Miss);
    let keys: Vec<String> = (0..20).map(|n| format!("user:{n:06}")).collect();
    for key in &keys {
        memcached.link(key.as_bytes(), 0, 0, format!("value of {key}").as_bytes());
    }
    let mut found = 0;
    for (number, key) in (1..).zip(&keys) {
        match memcached.get(key.as_bytes()) {
            (Got::Miss, _) => {}
            got => {
                expect(got, format!("value of {key}").as_bytes(), (0, number));
                found += 1;
            }
        }
    }
    // Twenty in sixteen buckets: few are the fourth of theirs.
    assert!(found >= 18, "{found}");
}

#[test]
fn short_and_long_keys_and_flags() {
    let mut memcached = Memcached::new();
    let long = [b'k'; 250];
    memcached.link(b"seven77", 0, 0, b"");
    memcached.link(&long, 77, 0, b"long");
    memcached.link(b"k", 0, 0, b"short");
    expect(memcached.get(b"seven77"), b"", (0, 1));
    expect(memcached.get(&long), b"long", (77, 2));
    expect(memcached.get(b"k"), b"short", (0, 3));
    assert!(memcached.client.request(&[b'k'; 251], Buffer::default(), 0, Buffer::default()).is_none());
}

#[test]
fn what_does_not_count_is_told() {
    let mut memcached = Memcached::new();
    let at = memcached.link(b"a key of mine", 0, 50, b"value");
    expect(memcached.get_at(b"a key of mine", 49), b"value", (0, 1));
    assert_eq!(memcached.get_at(b"a key of mine", 50).0, Got::Elsewhere);
    // Not LINKED any more; in chunks; longer than the buffer.
    for (flags, got) in [(2_u16, Got::Changed), (1 | 2 | 32, Got::Elsewhere), (1 | 2 | 128, Got::Elsewhere)] {
        memcached.nic.bytes_mut(memcached.items)[at + 38..at + 40].copy_from_slice(&flags.to_le_bytes());
        assert_eq!(memcached.get_at(b"a key of mine", 1).0, got);
    }
    memcached.nic.bytes_mut(memcached.items)[at + 38] = 3;
    memcached.nic.bytes_mut(memcached.items)[at + 32..at + 36].copy_from_slice(&5000_u32.to_le_bytes());
    assert_eq!(memcached.get_at(b"a key of mine", 1).0, Got::TooLong(56 + 14 + 5000));
    // The same seven bytes at the same place: another key's item.
    memcached.link(b"a sea of mine", 0, 0, b"other");
    let (got, _) = memcached.get_at(b"b sea of mine", 1);
    assert!(matches!(got, Got::Miss | Got::Changed), "{got:?}");
}
