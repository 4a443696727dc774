//! Memcached get, for an unmodified memcached: `rdmesh_memcached_*`, which `rdmesh_memcached.h` declares.
#![allow(unsafe_code)]

use super::border::{Failure, Result, code, free, given, given_mut, list, object, store};
use super::hash::put_message;
use super::text::Verified;
use libc::{c_int, c_void};
use rdmesh_chain::build::Design;
use rdmesh_chain::offload::Buffer;
use rdmesh_chain::offload::memcached::{Client, Got, HEAD, Shape as Layout};
use rdmesh_preload::replace;
use std::ptr::null;

/// `struct rdmesh_memcached_shape`.
#[repr(C)]
struct Shape {
    hash_power: u32,
    hops: u32,
    items: u64,
}

/// `struct rdmesh_memcached_buffer`.
#[repr(C)]
struct Room {
    address: u64,
    check: u64,
    rkey: u32,
    room: u32,
}

/// `struct rdmesh_memcached_answer`.
#[repr(C)]
struct Answer {
    kind: u32,
    flags: u32,
    cas: u64,
    value: *const c_void,
    length: usize,
}

impl Shape {
    fn parse(&self) -> Result<Layout> {
        let Self { hash_power, hops, items } = *self;
        let is_sound = (1..=32).contains(&hash_power) && (1..=MOST_HOPS).contains(&hops);
        if !is_sound || !(u64::from(HEAD)..=MOST_BYTES).contains(&items) {
            return Err(Failure::invalid("`hash_power` is 1 to 32, `hops` 1 to 8, `items` 56 to 2^40 bytes"));
        }
        Ok(Layout { hash_power, items, hops: hops as usize })
    }
}

impl Answer {
    fn of(got: &Got, item: &[u8]) -> Self {
        let none = |kind| Self { kind, flags: 0, cas: 0, value: null(), length: 0 };
        match got {
            Got::Value { flags, cas, place } => {
                let value = &item[place.clone()];
                Self { flags: *flags, cas: *cas, value: value.as_ptr().cast(), length: value.len(), ..none(0) }
            }
            Got::Miss => none(1),
            Got::Changed => none(2),
            Got::TooLong(length) => Self { length: *length as usize, ..none(3) },
            Got::Elsewhere => none(4),
            Got::Stale => none(5),
        }
    }
}

replace! {
    /// See `rdmesh_memcached.h`, as for all of these.
    fn rdmesh_memcached_chain(shape: *const Shape) -> *mut Verified {
        object(|| {
            // SAFETY: what the program passes is as the header says; so it is below.
            let shape = unsafe { given(shape, "the shape")? }.parse()?;
            Verified::new(shape.program().lower(Design::Local))
        })
    }

    /// A client.
    fn rdmesh_memcached_client_new(shape: *const Shape) -> *mut Client {
        // SAFETY: as above.
        object(|| Ok(Client::new(unsafe { given(shape, "the shape")? }.parse()?)))
    }

    /// A request.
    fn rdmesh_memcached_request(
        client: *mut Client,
        key: *const u8,
        key_length: usize,
        buffer: *const Room,
        message: *mut c_void,
        size: usize,
        tag: *mut u32,
    ) -> c_int {
        code(|| {
            // SAFETY: as above.
            let (client, key, to) =
                unsafe { (given_mut(client, "the client")?, list(key, key_length, "the key")?, given(buffer, "the buffer")?) };
            let at = |addr| Buffer { addr, rkey: to.rkey };
            let bytes = client.request(key, at(to.address), to.room, at(to.check));
            let bytes = bytes.ok_or_else(|| Failure::invalid("a key has 1 to 250 bytes"))?;
            // SAFETY: as above.
            unsafe {
                store(tag, client.tag());
                put_message(&bytes, message, size)
            }
        })
    }

    /// Judges a reply.
    fn rdmesh_memcached_reply(
        client: *mut Client,
        tag: u32,
        head: *const u8,
        head_length: usize,
        item: *const u8,
        room: usize,
        now: u32,
        answer: *mut Answer,
    ) -> c_int {
        code(|| {
            // SAFETY: as above.
            let (client, head, item) =
                unsafe { (given_mut(client, "the client")?, list(head, head_length, "the header")?, list(item, room, "the item")?) };
            // SAFETY: as above.
            unsafe { store(answer, Answer::of(&client.reply(tag, head, item, now), item)) };
            Ok(0)
        })
    }

    /// Frees a client.
    fn rdmesh_memcached_client_free(client: *mut Client) -> () {
        // SAFETY: as above.
        unsafe { free(client) }
    }
}

/// Most requests that a ring has room for, and a client patience.
const MOST_HOPS: u32 = 8;
const MOST_BYTES: u64 = 1 << 40;

const _: () = assert!(size_of::<Shape>() == 16 && size_of::<Room>() == 24 && size_of::<Answer>() == 32);
