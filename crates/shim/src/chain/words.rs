//! Services of words: locks (`rdmesh_lock_*`) and counters (`rdmesh_counter_*`).
#![allow(unsafe_code)]

use super::border::{Failure, code, given, list, object, store};
use super::hash::{design, put_message};
use super::service::Service;
use super::text::Verified;
use libc::{c_int, c_void};
use rdmesh_chain::offload::{counter, lock};
use rdmesh_preload::replace;

/// `struct rdmesh_lock_answer`.
#[repr(C)]
struct LockAnswer {
    kind: u32,
    holder: u32,
    lease: u64,
}

/// `struct rdmesh_counter_answer`.
#[repr(C)]
struct CounterAnswer {
    kind: u32,
    reserved: u32,
    value: u64,
}

impl From<lock::Answer> for LockAnswer {
    fn from(answer: lock::Answer) -> Self {
        let (kind, holder, lease) = match answer {
            lock::Answer::Acquired { lease } => (0, 0, lease),
            lock::Answer::Held { owner, lease } => (1, owner, lease),
            lock::Answer::Released => (2, 0, 0),
            lock::Answer::NotHeld => (3, 0, 0),
            lock::Answer::Refused => (4, 0, 0),
        };
        Self { kind, holder, lease }
    }
}

impl From<counter::Answer> for CounterAnswer {
    fn from(answer: counter::Answer) -> Self {
        let (kind, value) = match answer {
            counter::Answer::Added { before } => (0, before),
            counter::Answer::Refused { value } => (1, value),
            counter::Answer::Busy => (2, 0),
        };
        Self { kind, reserved: 0, value }
    }
}

replace! {
    /// See `rdmesh_chain.h`, as for all of these.
    fn rdmesh_lock_chain(locks: u64, owner: u32, number: u32) -> *mut Verified {
        object(|| {
            if !(1..=MOST_WORDS).contains(&locks) || !(1..=lock::MAX_OWNER).contains(&owner) {
                return Err(Failure::invalid("there are 1 to 2^32 locks, and owners from 1 to 2^24-1"));
            }
            Verified::new(lock::Shape { locks, owner }.program().lower(design(number)?))
        })
    }

    /// Asks for a lock.
    fn rdmesh_lock_acquire(lock: u64, tag: u32, message: *mut c_void, size: usize) -> c_int {
        // SAFETY: what the program passes is as the header says; so it is below.
        code(|| unsafe { put_message(&lock::acquire(index(lock)?, tag), message, size) })
    }

    /// Gives a lock back.
    fn rdmesh_lock_release(lock: u64, lease: u64, tag: u32, message: *mut c_void, size: usize) -> c_int {
        // SAFETY: as above.
        code(|| unsafe { put_message(&lock::release(index(lock)?, lease, tag), message, size) })
    }

    /// Judges a reply.
    fn rdmesh_lock_reply(owner: u32, reply: *const u8, length: usize, answer: *mut LockAnswer) -> c_int {
        code(|| {
            // SAFETY: as above.
            let reply = unsafe { list(reply, length, "the reply")? };
            let judged = lock::answer(owner, reply).ok_or_else(|| Failure::invalid("this is no reply of a lock's"))?;
            // SAFETY: as above.
            unsafe { store(answer, judged.into()) };
            Ok(0)
        })
    }

    /// Ends a lease.
    fn rdmesh_lock_end(service: *const Service, lock: u64, owner: u32, lease: u64) -> c_int {
        code(|| {
            // SAFETY: as above.
            let service = unsafe { given(service, "the service")? };
            let (area, length) = service.named("locks")?;
            if lock >= length / 8 {
                return Err(Failure::invalid(format_args!("there is no lock {lock}")));
            }
            let (held, free) = lock::end_lease(owner, lease);
            Ok(usize::from(area.exchange(8 * lock, held, free)))
        })
    }

    /// Counters.
    fn rdmesh_counter_chain(counters: u64, bound: u64, number: u32) -> *mut Verified {
        object(|| {
            if !(1..=MOST_WORDS).contains(&counters) || bound > counter::MAX_BOUND {
                return Err(Failure::invalid("there are 1 to 2^32 counters, and their bound is at most 2^55-1"));
            }
            Verified::new(counter::Shape { counters, bound }.program().lower(design(number)?))
        })
    }

    /// Asks for an addition.
    fn rdmesh_counter_add(counter: u64, change: i64, tag: u32, message: *mut c_void, size: usize) -> c_int {
        // SAFETY: as above.
        code(|| unsafe { put_message(&counter::add(index(counter)?, change, tag), message, size) })
    }

    /// Judges a reply.
    fn rdmesh_counter_reply(reply: *const u8, length: usize, answer: *mut CounterAnswer) -> c_int {
        code(|| {
            // SAFETY: as above.
            let reply = unsafe { list(reply, length, "the reply")? };
            let judged = counter::answer(reply).ok_or_else(|| Failure::invalid("this is no reply of a counter's"))?;
            // SAFETY: as above.
            unsafe { store(answer, judged.into()) };
            Ok(0)
        })
    }
}

/// The number of a word, whose offset fits an argument.
fn index(number: u64) -> super::border::Result<u64> {
    if number < MOST_WORDS { Ok(number) } else { Err(Failure::invalid(format_args!("there is no word {number}"))) }
}

const MOST_WORDS: u64 = 1 << 32;

const _: () = assert!(size_of::<LockAnswer>() == 16 && size_of::<CounterAnswer>() == 16);
