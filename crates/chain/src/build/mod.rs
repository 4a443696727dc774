//! The builder: chains by label and field, without an index, an offset or an ordering verb in user code.
//!
//! A [`Program`] is a straight line of requests. [`Program::lower`] puts them into queues, in one of two designs, and adds what
//! orders them: WAITs, ENABLEs, FENCEs, LOCAL flags. A loop that is unrolled is a `for` of Rust around the calls.

mod arguments;
mod condition;
mod lower;

pub use arguments::{Arg, Kind, Offset, RemoteBuf, U32, U56, U64};
pub use condition::{Condition, Value, When};

use crate::program::{Chain, Content, Place, Region, Remote, Slot, Span};
use rdmesh_verbs::chain::{ChainFlags, ChainOp, Control, offset};

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
    is_loop: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Item {
    /// Waits for a request, and spreads its arguments.
    Request,
    Slot(usize),
    /// Waits for the completion of a slot.
    Await(usize),
    /// Restores what conditions changed, and takes the next request.
    Rearm,
}

/// Memory that the chain works with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory(usize);

impl Memory {
    /// The place at an offset: a number, or an argument of the client's.
    pub fn at(self, offset: impl Into<At>) -> Source {
        Source { region: self.0, at: offset.into() }
    }

    /// Bytes at a constant offset.
    pub fn span(self, at: u64, length: u32) -> Span {
        Span { place: Place::Region { region: self.0, at }, length }
    }

    /// The number of the region in [`Chain::regions`].
    pub fn number(self) -> usize {
        self.0
    }
}

/// An offset in a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// Known.
    Constant(u64),
    /// The client says it.
    Argument(Arg<Offset>),
}

impl From<u64> for At {
    fn from(offset: u64) -> Self {
        Self::Constant(offset)
    }
}

impl From<Arg<Offset>> for At {
    fn from(arg: Arg<Offset>) -> Self {
        Self::Argument(arg)
    }
}

/// Source or destination of data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Source {
    region: usize,
    at: At,
}

/// A request that is declared, and placed later or by a condition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request(usize);

impl Request {
    /// The 56 bits in its control word that conditions compare.
    pub fn operand(self) -> Span {
        self.field(offset::CONTROL, 7)
    }

    /// Address and length of an element of its gather list, as tables have them: 8 and 4 bytes.
    pub fn sge(self, element: usize) -> Span {
        self.field(offset::SGES + element * offset::SGE_LEN, 12)
    }

    /// The length of an element of its gather list.
    pub fn length(self, element: usize) -> Span {
        self.field(offset::SGES + element * offset::SGE_LEN + offset::SGE_LENGTH, 4)
    }

    /// Its remote address.
    pub fn remote(self) -> Span {
        self.field(offset::REMOTE_ADDR, 8)
    }

    /// Its immediate data.
    pub fn imm(self) -> Span {
        self.field(offset::IMM, 4)
    }

    fn field(self, at: usize, length: u32) -> Span {
        Span { place: Place::Slot { slot: self.0, at }, length }
    }
}

/// A request to be declared.
#[derive(Clone, Debug)]
pub struct Spec {
    slot: Slot,
    to: Option<Arg<RemoteBuf>>,
    imm: Option<Arg<U32>>,
}

impl Spec {
    fn new(op: ChainOp, imm: u32) -> Self {
        Self { slot: Slot { imm, ..Slot::new("", op) }, to: None, imm: None }
    }

    /// Writes to the client's memory that an argument names.
    #[must_use]
    pub fn to(mut self, to: Arg<RemoteBuf>) -> Self {
        self.slot.remote = Remote::Client { addr: 0, rkey: 0 };
        self.to = Some(to);
        self
    }

    /// Sends these bytes.
    #[must_use]
    pub fn from(mut self, span: Span) -> Self {
        self.slot.sges.push(span);
        self
    }

    /// Sends bytes of a region whose address and length the chain fills in ([`Request::sge`]).
    #[must_use]
    pub fn gather(self, memory: Memory) -> Self {
        self.from(memory.span(0, 0))
    }

    /// Repeats a tag of the client's in the immediate data.
    #[must_use]
    pub fn tag(mut self, tag: Arg<U32>) -> Self {
        self.imm = Some(tag);
        self
    }
}

/// A WRITE to the client's memory that it is told of, with immediate data.
pub fn write_imm(imm: u32) -> Spec {
    Spec::new(ChainOp::WriteImm, imm)
}

/// A message to the client with immediate data.
pub fn send_imm(imm: u32) -> Spec {
    Spec::new(ChainOp::SendImm, imm)
}

/// A copy within the chain's own memory.
pub fn copy(to: Span, from: Span) -> Spec {
    let mut spec = Spec::new(ChainOp::Write, 0).from(from);
    spec.slot.remote = Remote::Own(to.place);
    spec
}

/// An addition to eight bytes of the chain's own memory.
pub fn add(to: Span, addend: u64) -> Spec {
    let mut spec = Spec::new(ChainOp::FetchAdd, 0);
    spec.slot.remote = Remote::Own(to.place);
    spec.slot.compare = addend;
    spec
}

/// A request that does nothing.
pub fn nop() -> Spec {
    Spec::new(ChainOp::Nop, 0)
}

impl Program {
    /// An empty program.
    pub fn new(name: impl Into<String>) -> Self {
        let chain = Chain { name: name.into(), ..Chain::default() };
        let (items, args, conditional, declared) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { chain, items, args, conditional, declared, is_loop: false }
    }

    /// Memory that the program fills and the chain only reads.
    pub fn table(&mut self, name: &str, length: u64) -> Memory {
        self.region(name, Content::Table(length))
    }

    /// Memory of the chain's own.
    pub fn scratch(&mut self, name: &str, length: u64) -> Memory {
        self.region(name, Content::Scratch(length))
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
        let Spec { mut slot, to, imm } = spec;
        slot.label = label.into();
        let op = slot.control.op;
        let number = self.push(slot);
        self.declared[number] = Some(op);
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
        self.is_loop = true;
        self.on_request()
    }

    /// Reads memory of the chain's own; see [`Reading::into`].
    pub fn read(&mut self, from: Source) -> Reading<'_> {
        Reading { program: self, from: Ok(from), label: String::new(), is_soft: false }
    }

    /// Reads from where an earlier request filled in an address: of the region, by the [`Request::remote`] of this one.
    pub fn read_filled(&mut self, from: Memory) -> Reading<'_> {
        Reading { program: self, from: Err(from), label: String::new(), is_soft: false }
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
        for slot in self.conditional.clone() {
            let name = format!("pristine.{}", self.chain.slots[slot].label);
            let content = Content::Pristine(vec![(slot, offset::CONTROL, 8)]);
            let pristine = self.region(&name, content);
            let to = Span { place: Place::Slot { slot, at: offset::CONTROL }, length: 8 };
            let label = format!("restore.{}", self.chain.slots[slot].label);
            self.step(label, copy(to, pristine.span(0, 8)));
        }
        self.items.push(Item::Rearm);
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

    /// The queues of the program in a design, not verified yet.
    pub fn lower(&self, design: Design) -> Chain {
        lower::lower(self, design)
    }

    /// Whether it runs again and again.
    fn is_recycled(&self) -> bool {
        self.is_loop || self.items.contains(&Item::Rearm)
    }

    fn control(&mut self, slot: usize) -> &mut Control {
        &mut self.chain.slots[slot].control
    }
}

/// A READ whose destinations are still to be said.
#[derive(Debug)]
pub struct Reading<'p> {
    program: &'p mut Program,
    from: Result<Source, Memory>,
    label: String,
    is_soft: bool,
}

impl Reading<'_> {
    /// Gives the request a label.
    #[must_use]
    pub fn named(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// A wrong range delivers zeros and does not stop the chain.
    #[must_use]
    pub fn soft(mut self) -> Self {
        self.is_soft = true;
        self
    }

    /// The address that this READ reads from: as a destination it leads the READ of the next iteration on.
    pub fn own_address(&self) -> Span {
        // The next request to be declared is this one.
        Request(self.program.chain.slots.len()).remote()
    }

    /// Puts the READ here, whose data goes to these spans in turn.
    pub fn into(self, spans: impl IntoIterator<Item = Span>) -> Request {
        let mut slot = Slot { sges: spans.into_iter().collect(), ..Slot::new(self.label, ChainOp::Read) };
        if self.is_soft {
            slot.flags = ChainFlags::SOFT;
        }
        let (region, at) = match self.from {
            Ok(Source { region, at }) => (region, Some(at)),
            Err(memory) => (memory.0, None),
        };
        let start = if let Some(At::Constant(at)) = at { at } else { 0 };
        slot.remote = Remote::Own(Place::Region { region, at: start });
        let program = self.program;
        let spans = slot.sges.clone();
        let request = program.emit(slot);
        for span in spans {
            program.fill(span);
        }
        match at {
            Some(At::Argument(arg)) => program.fill_argument(arg.number(), request.0, offset::REMOTE_ADDR),
            None => program.fill(request.remote()),
            Some(At::Constant(_)) => {}
        }
        request
    }
}
