//! The service of values by key: `rdmesh_hash_*`.
#![allow(unsafe_code)]

use super::answer::Answer;
use super::area::Area;
use super::border::{Failure, Result, code, free, given, given_mut, list, object, store};
use super::service::Service;
use super::text::Verified;
use libc::{c_int, c_void};
use rdmesh_chain::build::Design;
use rdmesh_chain::offload::hash::{Client, Keys, Probe, Shape as TableShape, Table};
use rdmesh_chain::offload::{Buffer, Store};
use rdmesh_preload::replace;
use rustix::io::Errno;
use std::sync::Arc;

/// `struct rdmesh_hash_shape`.
#[repr(C)]
pub(super) struct Shape {
    buckets: u64,
    records: u64,
    record_size: u64,
    probe: u32,
    neighbours: u32,
    key_words: u32,
    reserved: u32,
}

/// A server's table in the memory of a service.
pub(super) struct Hash {
    table: Table,
    areas: [Arc<Area>; 2],
}

impl Shape {
    fn parse(&self) -> Result<TableShape> {
        let probe = match self.probe {
            0 => Probe::TwoChoice,
            1 => Probe::EarlyExit,
            2 => Probe::Parallel,
            3 if (1..=MOST_NEIGHBOURS).contains(&self.neighbours) => Probe::Hopscotch(self.neighbours.into()),
            3 => return Err(Failure::invalid(format_args!("`neighbours` is 1 to {MOST_NEIGHBOURS}"))),
            other => return Err(Failure::invalid(format_args!("{other} is no probe"))),
        };
        let keys = match self.key_words {
            0 => Keys::Fingerprint,
            words @ 1..=MOST_WORDS => Keys::Exact(words as usize),
            _ => return Err(Failure::invalid(format_args!("`key_words` is at most {MOST_WORDS}; use fingerprints"))),
        };
        let Self { buckets, records, record_size, .. } = *self;
        let is_bounded = [buckets, records, record_size].iter().all(|number| (1..=MOST).contains(number));
        let fits = is_bounded && records.checked_mul(record_size).is_some_and(|bytes| bytes <= MOST);
        if !fits || buckets < 2 || !record_size.is_multiple_of(8) {
            let text =
                "a table has at least 2 buckets and 1 record, whose size is a multiple of 8, and at most 2^40 bytes";
            return Err(Failure::invalid(text));
        }
        Ok(TableShape { buckets, records, record_size, probe, keys })
    }
}

impl Hash {
    fn make(&self, stores: &[Store]) {
        stores.iter().for_each(|store| self.areas[store.region.min(1)].make(store));
    }
}

/// The design with a number.
pub(super) fn design(number: u32) -> Result<Design> {
    match number {
        0 => Ok(Design::Local),
        1 => Ok(Design::Portable),
        _ => Err(Failure::invalid(format_args!("{number} is no design"))),
    }
}

/// Puts a message where the program wants it, and returns its length.
///
/// # Safety
/// `message` has room for `size` bytes.
pub(super) unsafe fn put_message(bytes: &[u8], message: *mut c_void, size: usize) -> Result<usize> {
    if message.is_null() || bytes.len() > size {
        return Err(Failure::invalid(format_args!("the message has {} bytes, which do not fit", bytes.len())));
    }
    // SAFETY: by the contract.
    unsafe { message.cast::<u8>().copy_from(bytes.as_ptr(), bytes.len()) };
    Ok(bytes.len())
}

replace! {
    /// See `rdmesh_chain.h`, as for all of these.
    fn rdmesh_hash_chain(shape: *const Shape, number: u32) -> *mut Verified {
        object(|| {
            // SAFETY: what the program passes is as the header says; so it is below.
            let shape = unsafe { given(shape, "the shape")? }.parse()?;
            Verified::new(shape.program().lower(design(number)?))
        })
    }

    /// Opens a table.
    fn rdmesh_hash_open(shape: *const Shape, service: *const Service) -> *mut Hash {
        object(|| {
            // SAFETY: as above.
            let (shape, service) = unsafe { (given(shape, "the shape")?.parse()?, given(service, "the service")?) };
            let chain = shape.program().lower(Design::Local);
            let areas = service.areas_of(&chain, 2).and_then(|areas| <[Arc<Area>; 2]>::try_from(areas).ok());
            let areas = areas.ok_or_else(|| Failure::invalid("the service has no table of that shape"))?;
            Ok(Hash { table: Table::new(shape), areas })
        })
    }

    /// Puts a value under a key.
    fn rdmesh_hash_insert(hash: *mut Hash, key: *const u8, key_length: usize, value: *const u8, length: usize) -> c_int {
        code(|| {
            // SAFETY: as above.
            let (hash, key, value) =
                unsafe { (given_mut(hash, "the table")?, list(key, key_length, "the key")?, list(value, length, "the value")?) };
            let stores = hash.table.insert(key, value).map_err(|error| Failure::with(Errno::NOSPC, error))?;
            hash.make(&stores);
            Ok(0)
        })
    }

    /// Takes a key away.
    fn rdmesh_hash_remove(hash: *mut Hash, key: *const u8, key_length: usize) -> c_int {
        code(|| {
            // SAFETY: as above.
            let (hash, key) = unsafe { (given_mut(hash, "the table")?, list(key, key_length, "the key")?) };
            let stores = hash.table.remove(key);
            hash.make(&stores);
            Ok(usize::from(!stores.is_empty()))
        })
    }

    /// Uses records again.
    fn rdmesh_hash_reclaim(hash: *mut Hash) -> () {
        // SAFETY: as above.
        if let Some(hash) = unsafe { hash.as_mut() } {
            hash.table.reclaim();
        }
    }

    /// Closes a table, whose content stays.
    fn rdmesh_hash_close(hash: *mut Hash) -> () {
        // SAFETY: as above.
        unsafe { free(hash) }
    }

    /// A client.
    fn rdmesh_hash_client_new(shape: *const Shape) -> *mut Client {
        // SAFETY: as above.
        object(|| Ok(Client::new(unsafe { given(shape, "the shape")? }.parse()?)))
    }

    /// A request.
    fn rdmesh_hash_request(
        client: *mut Client,
        key: *const u8,
        key_length: usize,
        address: u64,
        rkey: u32,
        message: *mut c_void,
        size: usize,
        tag: *mut u32,
    ) -> c_int {
        code(|| {
            // SAFETY: as above.
            let (client, key) = unsafe { (given_mut(client, "the client")?, list(key, key_length, "the key")?) };
            let bytes = client.request(key, Buffer { addr: address, rkey }).map_err(Failure::invalid)?;
            // SAFETY: as above.
            unsafe {
                store(tag, client.tag());
                put_message(&bytes, message, size)
            }
        })
    }

    /// Judges a reply.
    fn rdmesh_hash_reply(client: *mut Client, tag: u32, reply: *const u8, length: usize, answer: *mut Answer) -> c_int {
        code(|| {
            // SAFETY: as above.
            let (client, reply) = unsafe { (given_mut(client, "the client")?, list(reply, length, "the reply")?) };
            // SAFETY: as above.
            unsafe { store(answer, Answer::of(&client.reply_in_place(tag, reply))) };
            Ok(0)
        })
    }

    /// Frees a client.
    fn rdmesh_hash_client_free(client: *mut Client) -> () {
        // SAFETY: as above.
        unsafe { free(client) }
    }
}

const MOST: u64 = 1 << 40;
/// Most neighbours that the scatter list of one READ has room for.
const MOST_NEIGHBOURS: u32 = 8;
const MOST_WORDS: u32 = 8;

const _: () = assert!(size_of::<Shape>() == 40);
