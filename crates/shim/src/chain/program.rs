//! Programs under construction: `rdmesh_program_*`.
#![allow(unsafe_code)]

use super::border::{Failure, Result, code, free, given, given_mut, list, object, text};
use super::hash::design;
use super::span::{Builder, Span};
use super::text::Verified;
use super::when::{Condition, Outcome, when};
use libc::{c_char, c_int};
use rdmesh_chain::build::{At, Request, Spec as ChainSpec, add, compare_swap, copy, nop, send_imm, test, write_imm};
use rdmesh_chain::program::Span as ChainSpan;
use rdmesh_preload::replace;
use rdmesh_verbs::chain::ChainOp;

/// `struct rdmesh_spec`.
#[repr(C)]
struct Spec {
    op: u32,
    imm: u32,
    tag: u32,
    to: u32,
    gather: u32,
    is_test: u32,
    from: Span,
    rest: Span,
    target: Span,
    compare: u64,
    swap: u64,
}

/// `struct rdmesh_read`.
#[repr(C)]
struct Read {
    label: *const c_char,
    memory: u32,
    offset_argument: u32,
    offset: u64,
    is_filled: u32,
    is_soft: u32,
    into: *const Span,
    num_into: u32,
    request: u32,
}

impl Builder {
    fn spec(&self, spec: &Spec) -> Result<ChainSpec> {
        let target = || self.span(&spec.target);
        let from = self.optional_span(&spec.from)?;
        let needs_from = || from.ok_or_else(|| Failure::invalid("`from` says no bytes"));
        let (made, rest) = match op(spec.op)? {
            ChainOp::WriteImm => (write_imm(spec.imm), from),
            ChainOp::SendImm => (send_imm(spec.imm), from),
            ChainOp::Write => (copy(target()?, needs_from()?), None),
            ChainOp::FetchAdd => (add(target()?, spec.compare), from),
            ChainOp::CompareSwap => (compare_swap(target()?, spec.compare, spec.swap, needs_from()?), None),
            ChainOp::Nop if spec.is_test != 0 => (test(), None),
            ChainOp::Nop => (nop(), None),
            other => return Err(Failure::invalid(format_args!("{} cannot be declared", other.name()))),
        };
        let mut made = rest.into_iter().chain(self.optional_span(&spec.rest)?).fold(made, ChainSpec::from);
        if spec.gather != 0 {
            made = made.gather(self.memory(spec.gather)?);
        }
        if spec.to != 0 {
            made = made.to(self.argument(spec.to)?.buffer()?);
        }
        if spec.tag != 0 {
            made = made.tag(self.argument(spec.tag)?.tag()?);
        }
        Ok(made)
    }

    fn read(&mut self, read: &Read, label: &str, into: &[Span]) -> Result<usize> {
        if read.request != 0 {
            let request = self.request(read.request)?;
            let spans = into.iter().map(|span| self.span(span)).collect::<Result<Vec<_>>>()?;
            self.program.read_now(request, spans);
            return Ok(read.request as usize);
        }
        let memory = self.memory(read.memory)?;
        let at = match read.offset_argument {
            0 => At::Constant(read.offset),
            number => At::Argument(self.argument(number)?.offset()?),
        };
        let others = into.iter().map(|span| if span.is_of_this() { Ok(None) } else { self.span(span).map(Some) });
        let others = others.collect::<Result<Vec<_>>>()?;
        let mut reading =
            if read.is_filled != 0 { self.program.read_filled(memory) } else { self.program.read(memory.at(at)) };
        if read.is_soft != 0 {
            reading = reading.soft();
        }
        let own = reading.own_address();
        let request = reading.named(label).into(others.into_iter().map(|span| span.unwrap_or(own)));
        Ok(self.add_request(request))
    }

    fn add_word(&mut self, op: ChainOp, word: ChainSpan, value: u64, swap: u64) -> Result<Request> {
        Ok(match op {
            ChainOp::FetchAdd => self.program.add(word, value),
            ChainOp::Min => self.program.min(word, value),
            ChainOp::Max => self.program.max(word, value),
            ChainOp::CompareSwap => self.program.cas(word, value, swap),
            _ => return Err(Failure::invalid("a word is changed by ADD, MIN, MAX or CAS")),
        })
    }
}

fn op(number: u32) -> Result<ChainOp> {
    let op = u8::try_from(number).ok().and_then(ChainOp::from_code);
    op.ok_or_else(|| Failure::invalid(format_args!("{number:#x} is no operation")))
}

/// A call on a program under construction.
fn on(builder: *mut Builder, call: impl FnOnce(&mut Builder) -> Result<usize>) -> c_int {
    // SAFETY: a program that `rdmesh_program_new` has made, as the header says.
    code(|| call(unsafe { given_mut(builder, "the program")? }))
}

replace! {
    /// See `rdmesh_chain.h`, as for all of these.
    fn rdmesh_program_new(name: *const c_char) -> *mut Builder {
        // SAFETY: what the program passes is as the header says; so it is below.
        object(|| Ok(Builder::new(unsafe { text(name, "the name")? })))
    }

    /// Frees a program.
    fn rdmesh_program_free(builder: *mut Builder) -> () {
        // SAFETY: as above.
        unsafe { free(builder) }
    }

    /// Adds memory.
    fn rdmesh_program_memory(builder: *mut Builder, name: *const c_char, kind: u32, length: u64) -> c_int {
        on(builder, |b| {
            // SAFETY: as above.
            let name = unsafe { text(name, "the name")? };
            if length == 0 || length > MOST_BYTES {
                return Err(Failure::invalid(format_args!("`{name}` has 1 to 2^40 bytes")));
            }
            let memory = match kind {
                0 => b.program.table(name, length),
                1 => b.program.scratch(name, length),
                2 => b.program.shared(name, length),
                _ => return Err(Failure::invalid(format_args!("{kind} is no kind of memory"))),
            };
            Ok(b.add_memory(memory, length))
        })
    }

    /// Adds constant bytes.
    fn rdmesh_program_constant(builder: *mut Builder, name: *const c_char, bytes: *const u8, length: usize) -> c_int {
        on(builder, |b| {
            // SAFETY: as above.
            let (name, bytes) = unsafe { (text(name, "the name")?, list(bytes, length, "the constant")?) };
            let memory = b.program.constant(name, bytes);
            Ok(b.add_memory(memory, length as u64))
        })
    }

    /// Adds an argument.
    fn rdmesh_program_argument(builder: *mut Builder, name: *const c_char, kind: u32) -> c_int {
        // SAFETY: as above.
        on(builder, |b| b.add_argument(unsafe { text(name, "the name")? }, kind))
    }

    /// Declares a request.
    fn rdmesh_program_declare(builder: *mut Builder, label: *const c_char, spec: *const Spec) -> c_int {
        on(builder, |b| {
            // SAFETY: as above.
            let (label, spec) = unsafe { (text(label, "the label")?, given(spec, "the request")?) };
            let spec = b.spec(spec)?;
            let request = b.program.declare(label, spec);
            Ok(b.add_request(request))
        })
    }

    /// Puts a request here.
    fn rdmesh_program_place(builder: *mut Builder, request: c_int) -> c_int {
        on(builder, |b| {
            let request = b.request(request.cast_unsigned())?;
            b.program.place(request);
            Ok(0)
        })
    }

    /// Waits for a message.
    fn rdmesh_program_on_request(builder: *mut Builder, is_loop: c_int) -> c_int {
        on(builder, |b| {
            if is_loop != 0 { b.program.on_request_or_next() } else { b.program.on_request() };
            Ok(0)
        })
    }

    /// Reads.
    fn rdmesh_program_read(builder: *mut Builder, read: *const Read) -> c_int {
        on(builder, |b| {
            // SAFETY: as above.
            unsafe {
                let read = given(read, "the READ")?;
                let label = if read.label.is_null() { "" } else { text(read.label, "the label")? };
                b.read(read, label, list(read.into, read.num_into as usize, "the list of spans")?)
            }
        })
    }

    /// Declares a READ.
    fn rdmesh_program_read_later(builder: *mut Builder, label: *const c_char, memory: c_int) -> c_int {
        on(builder, |b| {
            let memory = b.memory(memory.cast_unsigned())?;
            // SAFETY: as above.
            let request = b.program.read_later(unsafe { text(label, "the label")? }, memory);
            Ok(b.add_request(request))
        })
    }

    /// Copies.
    fn rdmesh_program_copy(builder: *mut Builder, to: Span, from: Span) -> c_int {
        on(builder, |b| {
            let (to, from) = (b.span(&to)?, b.span(&from)?);
            let request = b.program.copy(to, from);
            Ok(b.add_request(request))
        })
    }

    /// Changes a word.
    fn rdmesh_program_word(builder: *mut Builder, number: u32, word: Span, value: u64, swap: u64) -> c_int {
        on(builder, |b| {
            let word = b.span(&word)?;
            let request = b.add_word(op(number)?, word, value, swap)?;
            Ok(b.add_request(request))
        })
    }

    /// Fills in an argument.
    fn rdmesh_program_fill(builder: *mut Builder, argument: c_int, field: Span) -> c_int {
        on(builder, |b| {
            let (argument, field) = (b.argument(argument.cast_unsigned())?, b.span(&field)?);
            b.fill(argument, field);
            Ok(0)
        })
    }

    /// Makes requests depend on conditions.
    fn rdmesh_program_when(
        builder: *mut Builder,
        conditions: *const Condition,
        num_conditions: u32,
        outcomes: *const Outcome,
        num_outcomes: u32,
        is_in_place: c_int,
    ) -> c_int {
        on(builder, |b| {
            // SAFETY: as above.
            unsafe {
                let conditions = list(conditions, num_conditions as usize, "the list of conditions")?;
                let outcomes = list(outcomes, num_outcomes as usize, "the list of outcomes")?;
                when(b, conditions, outcomes, is_in_place != 0)
            }
        })
    }

    /// Begins a branch.
    fn rdmesh_program_branch(builder: *mut Builder, name: *const c_char) -> c_int {
        on(builder, |b| {
            // SAFETY: as above.
            let start = b.program.begin_branch(unsafe { text(name, "the name")? });
            Ok(b.add_request(start))
        })
    }

    /// Ends it.
    fn rdmesh_program_end_branch(builder: *mut Builder) -> c_int {
        on(builder, |b| {
            if b.program.end_branch() { Ok(0) } else { Err(Failure::invalid("no branch has begun")) }
        })
    }

    /// Says what ends a lap.
    fn rdmesh_program_ends(builder: *mut Builder, requests: *const u32, count: u32, is_all: c_int) -> c_int {
        on(builder, |b| {
            // SAFETY: as above.
            let numbers = unsafe { list(requests, count as usize, "the list of requests")? };
            let requests = numbers.iter().map(|number| b.request(*number)).collect::<Result<Vec<_>>>()?;
            if is_all != 0 { b.program.all_end(&requests) } else { b.program.one_ends(&requests) };
            Ok(0)
        })
    }

    /// Waits for the end.
    fn rdmesh_program_await_end(builder: *mut Builder) -> c_int {
        on(builder, |b| {
            b.program.await_end();
            Ok(0)
        })
    }

    /// Ends the program.
    fn rdmesh_program_rearm(builder: *mut Builder) -> c_int {
        on(builder, |b| {
            b.program.rearm();
            Ok(0)
        })
    }

    /// Restores.
    fn rdmesh_program_recycle(builder: *mut Builder) -> c_int {
        on(builder, |b| {
            b.program.recycle();
            Ok(0)
        })
    }

    /// Takes the next message.
    fn rdmesh_program_next_request(builder: *mut Builder) -> c_int {
        on(builder, |b| {
            b.program.next_request();
            Ok(0)
        })
    }

    /// Verifies the program's chain.
    fn rdmesh_program_build(builder: *const Builder, number: u32) -> *mut Verified {
        object(|| {
            // SAFETY: as above.
            let builder = unsafe { given(builder, "the program")? };
            builder.program.build(design(number)?).map(Verified::proved).map_err(Failure::invalid)
        })
    }
}

const MOST_BYTES: u64 = 1 << 40;

const _: () = assert!(size_of::<Spec>() == 112 && size_of::<Read>() == 48 && size_of::<Span>() == 24);
