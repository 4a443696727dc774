//! Locks: words that a client takes and only the same client gives back, with a lease number for each time.
//!
//! A word is 0, or `lease 5 bytes, owner 3 bytes`. The owner is a constant of each client's chain, so no message can take or give
//! a lock in another's name; leases of a lock are numbered by the chain, so what a lock protects can refuse an owner whose
//! lease has been ended ([`end_lease`]) by its number.
//!
//! ```
//! use rdmesh_chain::build::Design;
//! use rdmesh_chain::model::{Fetch, Model, Schedule};
//! use rdmesh_chain::offload::lock::{Answer, Shape, acquire, answer, release};
//!
//! let shape = Shape { locks: 4, owner: 7 };
//! let chain = shape.program().build(Design::Local)?;
//! let mut nic = Model::new(Fetch::Earliest);
//! let client = nic.create_client();
//! let installed = chain.install(&mut nic, Some(client));
//! let mut ask = |message: Vec<u8>| {
//!     nic.send(installed.receives[0], message);
//!     assert!(nic.run(Schedule::First, 1000));
//!     answer(7, &nic.take_messages(client)[0].data)
//! };
//! assert_eq!(ask(acquire(2, 1)), Some(Answer::Acquired { lease: 0 }));
//! assert_eq!(ask(acquire(2, 2)), Some(Answer::Held { owner: 7, lease: 0 }));
//! assert_eq!(ask(release(2, 0, 3)), Some(Answer::Released));
//! assert_eq!(ask(release(2, 0, 4)), Some(Answer::NotHeld));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::word;
use crate::build::{Memory, Offset, Program, Request, U32, U40, U56, add, compare_swap, send_imm};
use crate::program::Span;

/// Shape of a lock service, for one client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Locks.
    pub locks: u64,
    /// The client's number, from 1 to [`MAX_OWNER`]; each client has another one.
    pub owner: u32,
}

/// The largest number of an owner.
pub const MAX_OWNER: u32 = (1 << 24) - 1;

const ACQUIRE: u64 = 1;
const RELEASE: u64 = 2;
/// Bits of a lease.
const LEASE: u32 = 40;
/// The old word, if nothing was done.
const NOTHING: u64 = u64::MAX;

/// Content of a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The client has the lock; the number grows with each lease of the lock.
    Acquired {
        /// The number of the lease.
        lease: u64,
    },
    /// A client has the lock: an acquire, or a release by one that has it not, did nothing.
    Held {
        /// The client.
        owner: u32,
        /// The number of its lease.
        lease: u64,
    },
    /// The client gave the lock back.
    Released,
    /// A release did nothing: no client has the lock.
    NotHeld,
    /// The message was neither an acquire nor a release.
    Refused,
}

/// Parts of the program.
struct Parts {
    words: Memory,
    leases: Memory,
    waste: Memory,
    /// Kind of the message, old word, number of a new lease, number of the lease to be given back.
    report: Memory,
}

impl Shape {
    /// The chain's program. Words of locks are in region 0, numbers of their next leases in region 1: both begin with zeros.
    pub fn program(self) -> Program {
        let mut p = Program::new("lock");
        let parts = Parts {
            words: p.shared("locks", 8 * self.locks),
            leases: p.shared("leases", 8 * self.locks),
            waste: p.scratch("waste", 8),
            report: p.scratch("report", 32),
        };
        let nothing = p.constant("nothing", &NOTHING.to_le_bytes());
        let (kind, lock, lease) = (p.arg::<U56>("kind"), p.arg::<Offset>("lock"), p.arg::<U40>("lease"));
        let tag = p.arg::<U32>("tag");
        let owner = u64::from(self.owner) << LEASE;
        let acquire = parts.acquire(&mut p, owner);
        let old = parts.report.span(8, 8);
        let release = p.declare("release", compare_swap(parts.words.span(0, 8), owner, 0, old));
        let ticket = parts.ticket(&mut p, acquire);
        let say = p.declare("say", send_imm(0).tag(tag).from(parts.report.span(0, 32)));
        for request in [ticket, acquire, release] {
            p.fill_with(kind, request.operand()).fill_with(lock, request.remote());
        }
        p.fill_with(lease, Span { length: 5, ..release.compare() });
        p.on_request();
        p.copy(parts.report.span(0, 7), ticket.operand());
        p.copy(old, nothing.span(0, 8));
        p.copy(parts.report.span(24, 5), Span { length: 5, ..release.compare() });
        p.when(ticket.operand().eq(ACQUIRE)).run(ticket).done();
        p.copy(parts.report.span(16, 5), Span { length: 5, ..acquire.swap() });
        p.when(acquire.operand().eq(ACQUIRE)).run(acquire).done();
        p.when(release.operand().eq(RELEASE)).run(release).done();
        p.place(say).rearm();
        p
    }
}

impl Parts {
    fn acquire(&self, p: &mut Program, owner: u64) -> Request {
        p.declare("acquire", compare_swap(self.words.span(0, 8), 0, owner, self.report.span(8, 8)))
    }

    /// Numbers the next lease; the number is what the acquire stores.
    fn ticket(&self, p: &mut Program, acquire: Request) -> Request {
        let number = Span { length: 5, ..acquire.swap() };
        p.declare("ticket", add(self.leases.span(0, 8), 1).from(number).from(self.waste.span(0, 3)))
    }
}

fn message(kind: u64, lock: u64, lease: u64, tag: u32) -> Vec<u8> {
    let (kind, lease) = (kind.to_le_bytes(), lease.to_le_bytes());
    [&kind[..7], &(8 * lock).to_le_bytes(), &lease[..5], &tag.to_le_bytes()].concat()
}

/// The message that asks for a lock. The tag comes back as the reply's immediate data.
pub fn acquire(lock: u64, tag: u32) -> Vec<u8> {
    message(ACQUIRE, lock, 0, tag)
}

/// The message that gives a lock back.
pub fn release(lock: u64, lease: u64, tag: u32) -> Vec<u8> {
    message(RELEASE, lock, lease, tag)
}

/// Decodes a reply to an owner; `None` if it is none of this service's.
pub fn answer(owner: u32, bytes: &[u8]) -> Option<Answer> {
    let (kind, old, lease, asked) = (word(bytes, 0)?, word(bytes, 8)?, word(bytes, 16)?, word(bytes, 24)?);
    let held = Answer::Held { owner: (old >> LEASE) as u32, lease: old & ((1 << LEASE) - 1) };
    Some(match (kind, old) {
        (_, NOTHING) => Answer::Refused,
        (ACQUIRE, 0) => Answer::Acquired { lease },
        (RELEASE, 0) => Answer::NotHeld,
        // The chain says the old word; a release was done if it was the client's own lease.
        (RELEASE, _) if old == u64::from(owner) << LEASE | asked => Answer::Released,
        _ => held,
    })
}

/// The COMPARE_SWAP by which the server's program ends a lease that lasts too long: old and new word of the lock in region 0.
pub fn end_lease(owner: u32, lease: u64) -> (u64, u64) {
    (u64::from(owner) << LEASE | lease, 0)
}
