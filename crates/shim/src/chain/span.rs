//! Objects of a program under construction, as C names them: by numbers from 1 on.

use super::border::{Failure, Result};
use rdmesh_chain::build::{Arg, Kind, Memory, Offset, Program, RemoteBuf, Request, U32, U40, U56, U64, U120, Value};
use rdmesh_chain::program::{Place, Span as ChainSpan};
use rdmesh_verbs::MAX_SGE;
use rdmesh_verbs::chain::offset;

/// A program under construction.
pub(super) struct Builder {
    pub(super) program: Program,
    memories: Vec<(Memory, u64)>,
    arguments: Vec<Argument>,
    requests: Vec<Request>,
}

/// An argument of any kind.
#[derive(Clone, Copy)]
pub(super) enum Argument {
    U32(Arg<U32>),
    U40(Arg<U40>),
    U56(Arg<U56>),
    U64(Arg<U64>),
    U120(Arg<U120>),
    Offset(Arg<Offset>),
    Buffer(Arg<RemoteBuf>),
}

/// `struct rdmesh_span`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Span {
    memory: u32,
    request: u32,
    at: u64,
    length: u32,
    reserved: u32,
}

impl Builder {
    pub(super) fn new(name: &str) -> Self {
        Self { program: Program::new(name), memories: Vec::new(), arguments: Vec::new(), requests: Vec::new() }
    }

    /// Numbers memory.
    pub(super) fn add_memory(&mut self, memory: Memory, length: u64) -> usize {
        self.memories.push((memory, length));
        self.memories.len()
    }

    /// Numbers a request.
    pub(super) fn add_request(&mut self, request: Request) -> usize {
        self.requests.push(request);
        self.requests.len()
    }

    /// Declares an argument, and numbers it.
    pub(super) fn add_argument(&mut self, name: &str, kind: u32) -> Result<usize> {
        let p = &mut self.program;
        let argument = match kind {
            4 => Argument::U32(p.arg(name)),
            5 => Argument::U40(p.arg(name)),
            7 => Argument::U56(p.arg(name)),
            8 => Argument::U64(p.arg(name)),
            15 => Argument::U120(p.arg(name)),
            64 => Argument::Offset(p.arg(name)),
            65 => Argument::Buffer(p.arg(name)),
            _ => return Err(Failure::invalid(format_args!("{kind} is no kind of argument"))),
        };
        self.arguments.push(argument);
        Ok(self.arguments.len())
    }

    pub(super) fn memory(&self, number: u32) -> Result<Memory> {
        numbered(&self.memories, number, "memory").map(|(memory, _)| memory)
    }

    pub(super) fn argument(&self, number: u32) -> Result<Argument> {
        numbered(&self.arguments, number, "argument")
    }

    pub(super) fn request(&self, number: u32) -> Result<Request> {
        numbered(&self.requests, number, "request")
    }

    /// A span of this program.
    pub(super) fn span(&self, span: &Span) -> Result<ChainSpan> {
        let Span { memory, request, at, length, .. } = *span;
        let end = at.checked_add(length.into());
        let fits = |room: u64| end.is_some_and(|end| end <= room);
        match (memory, request) {
            (0, 0) => Err(Failure::invalid("a span is of memory or of a request")),
            (0, request) => {
                let Place::Slot { slot, .. } = self.request(request)?.operand().place else {
                    return Err(Failure::invalid("a request has no slot"));
                };
                if !fits((offset::SGES + MAX_SGE * offset::SGE_LEN) as u64) {
                    return Err(Failure::invalid(format_args!("a slot has no bytes {at} and {length} more")));
                }
                Ok(ChainSpan { place: Place::Slot { slot, at: at as usize }, length })
            }
            (memory, 0) => {
                let (memory, room) = numbered(&self.memories, memory, "memory")?;
                if !fits(room) {
                    return Err(Failure::invalid(format_args!("the memory has no bytes {at} and {length} more")));
                }
                Ok(memory.span(at, length))
            }
            _ => Err(Failure::invalid("a span is of memory or of a request, not of both")),
        }
    }

    /// The same, where a span may be left out.
    pub(super) fn optional_span(&self, span: &Span) -> Result<Option<ChainSpan>> {
        if span.memory == 0 && span.request == 0 { Ok(None) } else { self.span(span).map(Some) }
    }

    /// Fills an argument into a field.
    pub(super) fn fill(&mut self, argument: Argument, field: ChainSpan) {
        fn put<K: Kind>(program: &mut Program, argument: Arg<K>, field: ChainSpan) {
            program.fill_with(argument, field);
        }
        let p = &mut self.program;
        match argument {
            Argument::U32(argument) => put(p, argument, field),
            Argument::U40(argument) => put(p, argument, field),
            Argument::U56(argument) => put(p, argument, field),
            Argument::U64(argument) => put(p, argument, field),
            Argument::U120(argument) => put(p, argument, field),
            Argument::Offset(argument) => put(p, argument, field),
            Argument::Buffer(argument) => put(p, argument, field),
        }
    }
}

impl Span {
    /// Whether it is of the READ that is about to be made.
    pub(super) fn is_of_this(&self) -> bool {
        self.memory == 0 && self.request == u32::MAX
    }
}

impl Argument {
    /// As a value that an operand is compared with.
    pub(super) fn value(self) -> Result<Value> {
        match self {
            Self::U56(argument) => Ok(argument.into()),
            Self::U120(argument) => Ok(argument.into()),
            _ => Err(Failure::invalid("operands are compared with arguments of kind U56 or U120")),
        }
    }

    pub(super) fn buffer(self) -> Result<Arg<RemoteBuf>> {
        if let Self::Buffer(argument) = self { Ok(argument) } else { Err(wrong("BUFFER")) }
    }

    pub(super) fn tag(self) -> Result<Arg<U32>> {
        if let Self::U32(argument) = self { Ok(argument) } else { Err(wrong("U32")) }
    }

    pub(super) fn offset(self) -> Result<Arg<Offset>> {
        if let Self::Offset(argument) = self { Ok(argument) } else { Err(wrong("OFFSET")) }
    }
}

fn wrong(kind: &str) -> Failure {
    Failure::invalid(format_args!("this argument must be of kind {kind}"))
}

/// An object by its number, from 1.
fn numbered<T: Copy>(all: &[T], number: u32, what: &str) -> Result<T> {
    let found = (number as usize).checked_sub(1).and_then(|index| all.get(index)).copied();
    found.ok_or_else(|| Failure::invalid(format_args!("the program has no {what} {number}")))
}
