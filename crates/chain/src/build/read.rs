//! READs of the chain's own memory.

use super::{At, Memory, Program, Request, Source};
use crate::program::{Place, Remote, Slot, Span};
use rdmesh_verbs::chain::{ChainFlags, ChainOp, offset};

/// A READ whose destinations are still to be said.
#[derive(Debug)]
pub struct Reading<'p> {
    program: &'p mut Program,
    from: Result<Source, Memory>,
    label: String,
    is_soft: bool,
}

impl<'p> Reading<'p> {
    pub(super) fn new(program: &'p mut Program, from: Result<Source, Memory>) -> Self {
        Self { program, from, label: String::new(), is_soft: false }
    }

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

impl Program {
    /// A READ of memory whose address an earlier request fills in, to be placed by [`Program::read_now`].
    pub fn read_later(&mut self, label: impl Into<String>, from: Memory) -> Request {
        let mut slot = Slot::new(label, ChainOp::Read);
        slot.remote = Remote::Own(Place::Region { region: from.number(), at: 0 });
        slot.flags = ChainFlags::SOFT;
        let request = Request(self.push(slot));
        self.fill(request.remote());
        request
    }

    /// Puts a READ here, whose data goes to these spans in turn. A wrong range delivers zeros.
    pub fn read_now(&mut self, request: Request, into: impl IntoIterator<Item = Span>) {
        let spans: Vec<Span> = into.into_iter().collect();
        spans.iter().for_each(|span| self.fill(*span));
        self.chain.slots[request.0].sges = spans;
        self.place(request);
    }
}
