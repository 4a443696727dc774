//! Explanation of a request that a model has executed: what its slot had become, who wrote which field, and who wrote that.

use crate::install::Installed;
use crate::listing::field;
use crate::model::{Change, Fetched, History, Writer};
use crate::program::Chain;
use rdmesh_verbs::chain::{ChainOp, Control, offset};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::ops::Range;

/// A chain with its history in a model.
struct Explained<'a> {
    chain: &'a Chain,
    installed: &'a Installed,
    history: &'a History,
    /// Requests that have been explained.
    known: BTreeSet<Place>,
    text: String,
}

/// A request, by its queue's number in the chain and its index there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    queue: usize,
    index: u64,
}

impl Chain {
    /// Tells what request `index` of a queue was when it was fetched: each field that was filled in, by whom, with the value before
    /// and after; and the same of the requests that wrote them, and of what an atomic had found there, further in. A model that
    /// [keeps a history](crate::model::Model::keep_history) from the start has it; none of a request that was not fetched.
    pub fn explain(&self, history: &History, installed: &Installed, queue: usize, index: u64) -> Option<String> {
        let known = BTreeSet::new();
        let mut explained = Explained { chain: self, installed, history, known, text: String::new() };
        explained.request(Place { queue, index }, 0).then_some(explained.text)
    }
}

impl<'a> Explained<'a> {
    fn request(&mut self, request: Place, depth: usize) -> bool {
        let Some(fetched) = self.fetched(request) else { return false };
        let op = fetched.op.map_or("no request", |op| op.name());
        self.line(depth, &format!("{}: {op}", self.name(request)));
        if !self.known.insert(request) {
            return true;
        }
        self.changes(request, fetched.slot.clone(), fetched.seen, depth + 1);
        true
    }

    /// The last of the first `seen` changes of a part of a request's slot.
    fn changes(&mut self, request: Place, range: Range<usize>, seen: usize, depth: usize) {
        let Some(Fetched { key, slot, .. }) = self.fetched(request).filter(|_| depth < MOST_DEPTH) else { return };
        for (part, number) in self.history.writers(*key, range, seen) {
            let change = &self.history.changes()[number];
            self.change(request, &(part.start - slot.start..part.end - slot.start), &part, change, depth);
            // What an atomic found there counts too.
            if self.is_atomic(change.by) {
                self.changes(request, part, number, depth + 1);
            }
        }
    }

    fn fetched(&self, request: Place) -> Option<&'a Fetched> {
        self.history.fetched(self.installed.queues[request.queue].0, request.index)
    }

    fn is_atomic(&self, writer: Writer) -> bool {
        let Writer::Request { queue, index } = writer else { return false };
        self.history.fetched(queue, index).and_then(|fetched| fetched.op).is_some_and(ChainOp::is_atomic)
    }

    fn change(&mut self, request: Place, bytes: &Range<usize>, part: &Range<usize>, change: &Change, depth: usize) {
        let of = |side: &[u8]| shown(bytes.start, &side[part.start - change.at..part.end - change.at]);
        let (before, after) = (of(&change.before), of(&change.after));
        let writer = match change.by {
            Writer::Request { queue, index } => match self.queue(queue) {
                Some(queue) => self.name(Place { queue, index }),
                None => "a request of another chain".to_owned(),
            },
            Writer::Message { index, .. } => format!("message {index}"),
            Writer::Processor => "the processor".to_owned(),
        };
        let field = self.field(request, bytes);
        self.line(depth, &format!("{field}: {before} -> {after}, by {writer}"));
        if let Writer::Request { queue, index } = change.by
            && let Some(writer) = self.queue(queue).map(|queue| Place { queue, index })
            && !self.known.contains(&writer)
        {
            self.request(writer, depth + 1);
        }
    }

    /// Label and lap of a request.
    fn name(&self, Place { queue, index }: Place) -> String {
        let cycle = self.chain.queues[queue].slots.len() as u64;
        format!("{} in lap {}", self.chain.label(queue, index), index / cycle.max(1))
    }

    fn queue(&self, handle: u32) -> Option<usize> {
        self.installed.queues.iter().position(|(queue, _)| *queue == handle)
    }

    /// Name of the field that some bytes of a slot are.
    fn field(&self, Place { queue, index }: Place, bytes: &Range<usize>) -> String {
        if *bytes == (offset::CONTROL..offset::CONTROL + 8) {
            return "control".to_owned();
        }
        let slots = &self.chain.queues[queue].slots;
        let slot = &self.chain.slots[slots[(index % slots.len() as u64) as usize]];
        field(slot, bytes.start).map_or_else(|| format!("+{}", bytes.start), str::to_owned)
    }

    fn line(&mut self, depth: usize, text: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{:width$}{text}", "", width = 2 * depth);
    }
}

/// Bytes of a slot from `at` on: a control word by its meaning, up to eight as a number, more one by one.
fn shown(at: usize, bytes: &[u8]) -> String {
    let mut word = [0; 8];
    if bytes.len() > word.len() {
        return bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    }
    word[..bytes.len()].copy_from_slice(bytes);
    let word = u64::from_le_bytes(word);
    match Control::decode(word).filter(|_| (at, bytes.len()) == (offset::CONTROL, 8)) {
        Some(control) if control.operand == 0 => control.op.name().to_owned(),
        Some(control) => format!("{}({:#x})", control.op.name(), control.operand),
        None => format!("{word:#x}"),
    }
}

/// Levels of an explanation: a counter is changed in every lap.
const MOST_DEPTH: usize = 12;
