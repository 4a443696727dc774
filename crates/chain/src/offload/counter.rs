//! Counters that keep to a bound: an addition that would leave 0 to the bound is refused, and the reply says so.
//!
//! The chain reads the counter, adds, compares, and stores the sum by a COMPARE_SWAP, which fails if another client was faster:
//! then the client asks again. A counter whose range does not begin at 0 is stored as its distance from the lower end.
//!
//! ```
//! use rdmesh_chain::build::Design;
//! use rdmesh_chain::model::{Fetch, Model, Schedule};
//! use rdmesh_chain::offload::counter::{Answer, Shape, add, answer};
//!
//! let chain = Shape { counters: 2, bound: 10 }.program().build(Design::Local)?;
//! let mut nic = Model::new(Fetch::Earliest);
//! let client = nic.create_client();
//! let installed = chain.install(&mut nic, Some(client));
//! let mut ask = |change: i64| {
//!     nic.send(installed.receives[0], add(1, change, 0));
//!     assert!(nic.run(Schedule::First, 1000));
//!     answer(&nic.take_messages(client)[0].data)
//! };
//! assert_eq!(ask(7), Some(Answer::Added { before: 0 }));
//! assert_eq!(ask(4), Some(Answer::Refused { value: 7 }));
//! assert_eq!(ask(-7), Some(Answer::Added { before: 7 }));
//! assert_eq!(ask(-1), Some(Answer::Refused { value: 0 }));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::word;
use crate::build::{self, Offset, Program, U32, U56, compare_swap, send_imm};
use crate::program::Span;

/// Shape of a service of counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Counters.
    pub counters: u64,
    /// The largest value of each, at most [`MAX_BOUND`].
    pub bound: u64,
}

/// The largest bound: a sum that leaves the range, in either direction, is larger.
pub const MAX_BOUND: u64 = (1 << 55) - 1;

/// The old value, if nothing was stored.
const NOTHING: u64 = u64::MAX;

/// Content of a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The counter was changed.
    Added {
        /// Its value before.
        before: u64,
    },
    /// The sum would have left the range; nothing was changed.
    Refused {
        /// The counter's value.
        value: u64,
    },
    /// Another client was faster; nothing was changed, and the client may ask again.
    Busy,
}

impl Shape {
    /// The chain's program. The counters are in region 0.
    pub fn program(self) -> Program {
        let mut p = Program::new("counter");
        let counters = p.shared("counters", 8 * self.counters);
        let (sum, report) = (p.scratch("sum", 8), p.scratch("report", 16));
        let nothing = p.constant("nothing", &NOTHING.to_le_bytes());
        let (counter, change) = (p.arg::<Offset>("counter"), p.arg::<U56>("change"));
        let tag = p.arg::<U32>("tag");
        let (value, old) = (report.span(0, 8), report.span(8, 8));
        let store = p.declare("store", compare_swap(counters.span(0, 8), 0, 0, old));
        let say = p.declare("say", send_imm(0).tag(tag).from(report.span(0, 16)));
        p.fill_with(counter, store.remote());
        p.on_request();
        p.read(counters.at(counter)).named("value").into([value]);
        p.copy(old, nothing.span(0, 8));
        p.copy(store.compare(), value);
        p.copy(sum.span(0, 8), value);
        let plus = p.step("plus", build::add(sum.span(0, 8), 0));
        p.fill_with(change, Span { length: 7, ..plus.compare() });
        p.copy(Span { length: 7, ..store.swap() }, sum.span(0, 7));
        p.when(sum.span(0, 7).le(self.bound.min(MAX_BOUND))).run(store).done();
        p.place(say).rearm();
        p
    }
}

/// The message that asks for an addition. The tag comes back as the reply's immediate data.
pub fn add(counter: u64, change: i64, tag: u32) -> Vec<u8> {
    // No change that could be made is as large as these.
    let change = change.clamp(-(1 << 55), (1 << 55) - 1);
    [&(8 * counter).to_le_bytes()[..], &change.to_le_bytes()[..7], &tag.to_le_bytes()].concat()
}

/// Decodes a reply; `None` if it is none of this service's.
pub fn answer(bytes: &[u8]) -> Option<Answer> {
    let (value, old) = (word(bytes, 0)?, word(bytes, 8)?);
    Some(match old {
        NOTHING => Answer::Refused { value },
        _ if old == value => Answer::Added { before: value },
        _ => Answer::Busy,
    })
}
