//! The builder: chains by label and field, without an index, an offset or an ordering verb in user code.
//!
//! A [`Program`] is a straight line of requests. [`Program::lower`] puts them into queues, in one of two designs, and adds what
//! orders them: WAITs, ENABLEs, FENCEs, LOCAL flags. A loop that is unrolled is a `for` of Rust around the calls.

mod arguments;
mod condition;
mod lower;
mod memory;
mod read;
mod request;

pub use arguments::{Arg, Kind, Offset, RemoteBuf, U32, U40, U56, U64, U120};
pub use condition::{Condition, Value, When};
pub use memory::{At, Memory, Source};
pub use read::Reading;
pub use request::{Request, Spec, add, compare_swap, copy, nop, send_imm, test, write, write_imm};

use crate::program::{Chain, Content, Order, Place, Region, Remote, Slot, Span};
use crate::verify::{Refusal, verify};
use rdmesh_verbs::chain::{ChainOp, offset};

/// Layout of a program in queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Design {
    /// One queue to the client. What acts on the chain's own memory is LOCAL, and so over before the next slot is fetched.
    Local,
    /// As on hardware: a control queue of constant requests, a queue of requests that are filled in, both looped back, and the
    /// queue to the client; ordered by WAIT and ENABLE.
    Portable,
}

/// A program under construction.
#[derive(Clone, Debug)]
pub struct Program {
    chain: Chain,
    items: Vec<Item>,
    args: Vec<arguments::Declared>,
    /// Slots that conditions change, with their operation as declared.
    conditional: Vec<usize>,
    declared: Vec<Option<ChainOp>>,
    /// Tests that no condition has used yet.
    tests: Vec<usize>,
    branches: Vec<Branch>,
    /// Branches that have begun, and what was before each of them.
    open: Vec<(usize, Vec<Item>)>,
    /// Requests that end each lap, and how many of them complete.
    ends: Vec<usize>,
    ends_of_a_lap: u64,
    is_loop: bool,
    is_recycled: bool,
    error: Option<Refusal>,
}

/// A part of the program that runs when a request starts it.
#[derive(Clone, Debug)]
struct Branch {
    name: String,
    start: usize,
    items: Vec<Item>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Item {
    /// Waits for a request, and spreads its arguments.
    Request,
    Slot(usize),
    /// Waits for the completion of a slot.
    Await(usize),
    /// Takes the next request.
    Rearm,
    /// Waits for the one request that ends a lap.
    Ended,
}

impl Program {
    /// An empty program.
    pub fn new(name: impl Into<String>) -> Self {
        let chain = Chain { name: name.into(), ..Chain::default() };
        Self {
            chain,
            items: Vec::new(),
            args: Vec::new(),
            conditional: Vec::new(),
            declared: Vec::new(),
            tests: Vec::new(),
            branches: Vec::new(),
            open: Vec::new(),
            ends: Vec::new(),
            ends_of_a_lap: 1,
            is_loop: false,
            is_recycled: false,
            error: None,
        }
    }

    /// Memory that the program fills and the chain only reads.
    pub fn table(&mut self, name: &str, length: u64) -> Memory {
        self.region(name, Content::Table(length))
    }

    /// Memory of the chain's own.
    pub fn scratch(&mut self, name: &str, length: u64) -> Memory {
        self.region(name, Content::Scratch(length))
    }

    /// Memory of the program that it and all its chains read and change, word by word.
    pub fn shared(&mut self, name: &str, length: u64) -> Memory {
        self.region(name, Content::Shared(length))
    }

    /// Constant bytes.
    pub fn constant(&mut self, name: &str, bytes: &[u8]) -> Memory {
        self.region(name, Content::Bytes(bytes.to_vec()))
    }

    fn region(&mut self, name: &str, content: Content) -> Memory {
        self.chain.regions.push(Region { name: name.into(), content });
        Memory(self.chain.regions.len() - 1)
    }

    /// An argument of the client's request. The client sends all arguments in the order of their declaration.
    pub fn arg<K: Kind>(&mut self, name: &str) -> Arg<K> {
        self.args.push(arguments::Declared { name: name.into(), length: K::LENGTH, uses: Vec::new() });
        Arg::new(self.args.len() - 1)
    }

    /// Declares a request, which [`Program::place`] or a condition puts into the program.
    pub fn declare(&mut self, label: impl Into<String>, spec: Spec) -> Request {
        let Spec { mut slot, to, imm, is_test } = spec;
        slot.label = label.into();
        let op = slot.control.op;
        let number = self.push(slot);
        self.declared[number] = Some(op);
        if is_test {
            self.tests.push(number);
        }
        if op.returns_data() {
            self.chain.slots[number].sges.clone().into_iter().for_each(|span| self.fill(span));
        }
        if let Some(to) = to {
            self.fill_argument(to.number(), number, offset::REMOTE_ADDR);
        }
        if let Some(tag) = imm {
            self.fill_argument(tag.number(), number, offset::IMM);
        }
        Request(number)
    }

    fn push(&mut self, mut slot: Slot) -> usize {
        if slot.label.is_empty() || self.chain.labelled(&slot.label).is_some() {
            let base = if slot.label.is_empty() { slot.control.op.name().to_lowercase() } else { slot.label };
            let free = (1..).map(|n| format!("{base}{n}")).find(|label| self.chain.labelled(label).is_none());
            slot.label = free.unwrap_or(base);
        }
        self.chain.slots.push(slot);
        self.declared.push(None);
        self.chain.slots.len() - 1
    }

    fn emit(&mut self, slot: Slot) -> Request {
        let number = self.push(slot);
        self.items.push(Item::Slot(number));
        Request(number)
    }

    /// Puts a declared request here.
    pub fn place(&mut self, request: Request) -> &mut Self {
        self.items.push(Item::Slot(request.0));
        self
    }

    /// Declares a request and puts it here.
    pub fn step(&mut self, label: impl Into<String>, spec: Spec) -> Request {
        let request = self.declare(label, spec);
        self.place(request);
        request
    }

    /// Waits for a client's request here, once in each lap.
    pub fn on_request(&mut self) -> &mut Self {
        self.items.push(Item::Request);
        self
    }

    /// Waits here for a client's request, or for the next iteration of the loop that serves it. A [`When::stop_with`] ends the
    /// loop; without it the program begins again at once.
    pub fn on_request_or_next(&mut self) -> &mut Self {
        (self.is_loop, self.is_recycled) = (true, true);
        self.on_request()
    }

    /// Reads memory of the chain's own; see [`Reading::into`].
    pub fn read(&mut self, from: Source) -> Reading<'_> {
        Reading::new(self, Ok(from))
    }

    /// Reads from where an earlier request filled in an address: of the region, by the [`Request::remote`] of this one.
    pub fn read_filled(&mut self, from: Memory) -> Reading<'_> {
        Reading::new(self, Err(from))
    }

    /// Adds to eight bytes.
    pub fn add(&mut self, to: Span, addend: u64) -> Request {
        self.step("add", add(to, addend))
    }

    /// Copies bytes; both spans have the same length.
    pub fn copy(&mut self, to: Span, from: Span) -> Request {
        self.fill(to);
        self.step("copy", copy(to, from))
    }

    /// The smaller of a word and a number stays in the word.
    pub fn min(&mut self, word: Span, other: u64) -> Request {
        self.word_operation(ChainOp::Min, word, other, 0)
    }

    /// The larger of a word and a number stays in the word.
    pub fn max(&mut self, word: Span, other: u64) -> Request {
        self.word_operation(ChainOp::Max, word, other, 0)
    }

    /// A COMPARE_SWAP of a word.
    pub fn cas(&mut self, word: Span, compare: u64, swap: u64) -> Request {
        self.word_operation(ChainOp::CompareSwap, word, compare, swap)
    }

    fn word_operation(&mut self, op: ChainOp, word: Span, compare: u64, swap: u64) -> Request {
        self.emit(Slot { remote: Remote::Own(word.place), compare, swap, ..Slot::new("", op) })
    }

    /// Begins a condition; see [`When`].
    pub fn when(&mut self, condition: Condition) -> When<'_> {
        When::new(self, condition)
    }

    /// Ends the program: restores what conditions changed, and takes the next request.
    pub fn rearm(&mut self) {
        self.recycle();
        self.items.push(Item::Rearm);
    }

    /// Ends the program: restores what conditions changed. A branch takes the next request.
    pub fn recycle(&mut self) {
        self.is_recycled = true;
        for slot in self.conditional.clone() {
            let name = format!("pristine.{}", self.chain.slots[slot].label);
            let content = Content::Pristine(vec![(slot, offset::CONTROL, 8)]);
            let pristine = self.region(&name, content);
            let to = Span { place: Place::Slot { slot, at: offset::CONTROL }, length: 8 };
            let label = format!("restore.{}", self.chain.slots[slot].label);
            self.step(label, copy(to, pristine.span(0, 8)));
        }
    }

    /// Takes one more request of the client, in a branch that ends the lap.
    pub fn next_request(&mut self) -> &mut Self {
        let label = self.branches.last().map_or_else(|| "next".to_owned(), |branch| format!("next.{}", branch.name));
        let credit = self.credit(&label, false);
        self.place(credit)
    }

    fn credit(&mut self, label: &str, is_quiet: bool) -> Request {
        let order = Order { object: 0, count: 1, step: 0, relative: true };
        let mut slot = Slot { order: Some(order), ..Slot::new(label, ChainOp::RecvEnable) };
        slot.control.quiet = is_quiet;
        let credit = self.push(slot);
        self.declared[credit] = Some(ChainOp::RecvEnable);
        Request(credit)
    }

    /// A part of the program that has a queue of its own, and runs each time the returned request does. That request is placed or
    /// made to depend on a condition as any other.
    pub fn branch(&mut self, name: &str, body: impl FnOnce(&mut Self)) -> Request {
        let start = self.begin_branch(name);
        body(self);
        self.end_branch();
        start
    }

    /// The same for callers without closures: what follows is the branch's, up to [`Program::end_branch`].
    pub fn begin_branch(&mut self, name: &str) -> Request {
        let order = Order { object: 0, count: 0, step: 0, relative: true };
        let start = self.push(Slot { order: Some(order), ..Slot::new(format!("start.{name}"), ChainOp::Enable) });
        self.declared[start] = Some(ChainOp::Enable);
        self.open.push((self.branches.len(), std::mem::take(&mut self.items)));
        self.branches.push(Branch { name: name.into(), start, items: Vec::new() });
        Request(start)
    }

    /// Ends the branch that was begun last. Returns whether there was one.
    pub fn end_branch(&mut self) -> bool {
        let Some((number, outer)) = self.open.pop() else { return false };
        self.branches[number].items = std::mem::replace(&mut self.items, outer);
        true
    }

    /// Says that exactly one of these ends each lap: the cancelled start of a branch, or the last request of one. To be said
    /// before conditions use them.
    pub fn one_ends(&mut self, requests: &[Request]) -> &mut Self {
        self.ends.extend(requests.iter().map(|request| request.0));
        self
    }

    /// Says that all of these end each lap: the last requests of branches that run beside each other.
    pub fn all_end(&mut self, requests: &[Request]) -> &mut Self {
        self.ends_of_a_lap = requests.len() as u64;
        self.one_ends(requests)
    }

    /// Waits here for the requests that end the lap; see [`Program::one_ends`] and [`Program::all_end`].
    pub fn await_end(&mut self) -> &mut Self {
        self.items.push(Item::Ended);
        self
    }

    /// Seven zero bytes.
    fn zeros(&mut self) -> Span {
        let found = self.chain.regions.iter().position(|region| region.name == "zero");
        found.map_or_else(|| self.constant("zero", &[0; 7]), Memory).span(0, 7)
    }

    /// Notes the first error.
    fn refuse(&mut self, slot: usize, cause: &str, remedy: &str) {
        let label = &self.chain.slots[slot].label;
        self.error.get_or_insert_with(|| Refusal::new(label, cause, remedy));
    }

    /// Notes that a field is filled in before its request is fetched.
    fn fill(&mut self, span: Span) {
        if let Place::Slot { slot, at } = span.place {
            let hole = (at, span.length as usize);
            let holes = &mut self.chain.slots[slot].holes;
            if !holes.contains(&hole) {
                holes.push(hole);
            }
        }
    }

    fn fill_argument(&mut self, arg: usize, slot: usize, at: usize) {
        let declared = &mut self.args[arg];
        declared.uses.push((slot, at));
        let length = declared.length;
        self.fill(Span { place: Place::Slot { slot, at }, length });
    }

    /// Fills an argument into a field, in addition to where the request's own methods put it.
    pub fn fill_with<K: Kind>(&mut self, arg: Arg<K>, field: Span) -> &mut Self {
        if let Place::Slot { slot, at } = field.place {
            self.fill_argument(arg.number(), slot, at);
        }
        self
    }

    /// The queues of the program in a design, not verified yet.
    pub fn lower(&self, design: Design) -> Chain {
        lower::lower(self, design)
    }

    /// The verified chain of the program in a design.
    pub fn build(&self, design: Design) -> Result<Chain, Refusal> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        let chain = self.lower(design);
        verify(&chain).map(|()| chain)
    }
}
