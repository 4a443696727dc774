//! The assembler: chains from text, in the syntax of their listing.
//!
//! ```text
//! chain answer
//! cq requests
//! cq sent
//! receive arguments cq=requests enabled=1 sge=test.compare:7
//! queue chain cq=sent to=client enabled=always
//!   request: WAIT on=requests count=1 step=1 local
//!   test: CAS at=yes.operand compare=NOP swap=SEND_IMM hole=compare:7 local
//!   yes: NOP|SEND_IMM imm=1 signaled
//!   next: RECV_ENABLE on=arguments count=2 step=1 local
//! ```
//!
//! Everything from `#` to the end of a line is a comment. A place is the name of a region and an offset (`table+8`), or a label
//! and a field (`yes.operand`, `yes.sge0`) or an offset (`yes+20`).

use crate::listing::{FIELDS, FLAGS};
use crate::program::{ALWAYS, Chain, Content, Order, Place, Queue, Receive, Region, Remote, Slot, Span};
use rdmesh_verbs::chain::{ChainOp, Control};

/// Text that is no chain.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct SyntaxError {
    /// The line, from 1.
    pub line: usize,
    /// The error, and its remedy.
    pub what: String,
}

type Parsed<T> = Result<T, String>;

/// The chain of a text.
pub fn assemble(text: &str) -> Result<Chain, SyntaxError> {
    let mut chain = Chain::default();
    let lines = || (1..).zip(text.lines()).map(|(n, line)| (n, line.split('#').next().unwrap_or_default()));
    for (line, words) in lines() {
        name(&mut chain, words).map_err(|what| SyntaxError { line, what })?;
    }
    let mut next = Position::default();
    for (line, words) in lines() {
        next.define(&mut chain, words).map_err(|what| SyntaxError { line, what })?;
    }
    Ok(chain)
}

/// The first pass: objects and labels get their numbers, in the order of the text.
fn name(chain: &mut Chain, line: &str) -> Parsed<()> {
    let mut words = line.split_whitespace();
    let Some(kind) = words.next() else { return Ok(()) };
    if let Some(label) = kind.strip_suffix(':') {
        if chain.labelled(label).is_some() {
            return Err(format!("the label `{label}` is used twice"));
        }
        let queue = chain.queues.last_mut().ok_or("a work request must follow a `queue`")?;
        queue.slots.push(chain.slots.len());
        chain.slots.push(Slot::new(label, ChainOp::Nop));
        return Ok(());
    }
    let name = words.next().ok_or_else(|| format!("`{kind}` needs a name"))?.to_owned();
    match kind {
        "chain" => chain.name = name,
        "cq" => chain.cqs.push(name),
        "scratch" | "table" | "shared" | "constant" | "pristine" => {
            chain.regions.push(Region { name, content: Content::Scratch(0) })
        }
        "receive" => chain.receives.push(Receive { name, cq: 0, enabled: 0, slots: vec![Vec::new()] }),
        "queue" => chain.queues.push(Queue { name, cq: 0, to_client: false, enabled: 0, slots: Vec::new() }),
        _ => return Err(format!("`{kind}` is neither an object nor a label with `:`")),
    }
    Ok(())
}

/// The second pass: how many objects of each kind were defined.
#[derive(Default)]
struct Position {
    regions: usize,
    receives: usize,
    queues: usize,
    slots: usize,
}

impl Position {
    fn define(&mut self, chain: &mut Chain, line: &str) -> Parsed<()> {
        let mut words = line.split_whitespace();
        let kind = words.next().unwrap_or_default();
        let words: Vec<&str> = words.collect();
        if kind.ends_with(':') {
            let slot = slot(chain, chain.slots[self.slots].label.clone(), &words)?;
            chain.slots[self.slots] = slot;
            self.slots += 1;
            return Ok(());
        }
        match kind {
            "scratch" | "table" | "shared" | "constant" | "pristine" => {
                chain.regions[self.regions].content = content(chain, kind, &words[1..])?;
                self.regions += 1;
            }
            "receive" => {
                let receive = receive(chain, chain.receives[self.receives].clone(), &words[1..])?;
                chain.receives[self.receives] = receive;
                self.receives += 1;
            }
            "queue" => {
                let mut queue = chain.queues[self.queues].clone();
                for (key, value) in pairs(&words[1..])? {
                    match (key, value) {
                        ("cq", _) => queue.cq = cq(chain, value)?,
                        ("enabled", _) => queue.enabled = limit(value)?,
                        ("to", "client" | "self") => queue.to_client = value == "client",
                        _ => {
                            return Err(format!(
                                "`{key}={value}` is unknown; a `queue` has cq, enabled, to=client and to=self"
                            ));
                        }
                    }
                }
                chain.queues[self.queues] = queue;
                self.queues += 1;
            }
            _ => {}
        }
        Ok(())
    }
}

fn receive(chain: &Chain, mut receive: Receive, words: &[&str]) -> Parsed<Receive> {
    for lists in words.split(|word| *word == "then") {
        let mut sges = Vec::new();
        for (key, value) in pairs(lists)? {
            match key {
                "cq" => receive.cq = cq(chain, value)?,
                "enabled" => receive.enabled = limit(value)?,
                "sge" => sges.push(span(chain, value)?),
                _ => return Err(format!("a `receive` has no `{key}`; it has cq, enabled and sge")),
            }
        }
        receive.slots.push(sges);
    }
    receive.slots.remove(0);
    Ok(receive)
}

fn slot(chain: &Chain, label: String, words: &[&str]) -> Parsed<Slot> {
    let (operations, words) = words.split_first().ok_or_else(|| format!("`{label}` needs an operation"))?;
    let mut forms = operations.split('|').map(operation).collect::<Parsed<Vec<_>>>()?.into_iter();
    let mut slot = Slot::new(label, ChainOp::Nop);
    slot.control = forms.next().ok_or("no operation")?;
    slot.may = forms.collect();
    let mut order = Order { object: 0, count: 0, step: 0, relative: false };
    let mut has_order = false;
    for word in words {
        if let Some((flag, _)) = FLAGS.iter().find(|(_, name)| name == word) {
            slot.flags |= *flag;
            continue;
        }
        if *word == "relative" {
            order.relative = true;
            continue;
        }
        let (key, value) = word.split_once('=').ok_or_else(|| format!("`{word}` is neither a flag nor a field"))?;
        match key {
            "on" => {
                order.object = object(chain, slot.class_op(), value)?;
                has_order = true;
            }
            "count" => order.count = limit(value)?,
            "step" => order.step = small(value)?,
            "at" => slot.remote = Remote::Own(place(chain, value)?),
            "to" => {
                let (addr, rkey) = value.split_once(':').ok_or("`to` is ADDRESS:KEY")?;
                slot.remote = Remote::Client { addr: number(addr)?, rkey: small(rkey)? };
            }
            "compare" => slot.compare = self::word(value)?,
            "swap" => slot.swap = self::word(value)?,
            "cmask" => slot.masks.0 = self::word(value)?,
            "smask" => slot.masks.1 = self::word(value)?,
            "wcompare" => slot.wide.compare = wide(value)?,
            "wswap" => slot.wide.swap = wide(value)?,
            "wcmask" => slot.wide.compare_mask = wide(value)?,
            "wsmask" => slot.wide.swap_mask = wide(value)?,
            "imm" => slot.imm = small(value)?,
            "sge" => slot.sges.push(span(chain, value)?),
            "hole" => {
                let (at, length) = value.split_once(':').ok_or("`hole` is FIELD:LENGTH")?;
                slot.holes.push((offset(at)?, small(length)? as usize));
            }
            _ => return Err(format!("a work request has no `{key}`")),
        }
    }
    slot.order = has_order.then_some(order);
    Ok(slot)
}

fn content(chain: &Chain, kind: &str, words: &[&str]) -> Parsed<Content> {
    let first = words.first().copied();
    match kind {
        "scratch" => Ok(Content::Scratch(number(first.ok_or("`scratch` needs a length")?)?)),
        "shared" => Ok(Content::Shared(number(first.ok_or("`shared` needs a length")?)?)),
        "table" => Ok(Content::Table(number(first.ok_or("`table` needs a length")?)?)),
        "constant" => bytes(first.unwrap_or_default()).map(Content::Bytes),
        _ => {
            let part = |word: &&str| {
                let span = span(chain, word)?;
                let Place::Slot { slot, at } = span.place else {
                    return Err(format!("`{word}` is no field of a request"));
                };
                Ok((slot, at, span.length as usize))
            };
            words.iter().map(part).collect::<Parsed<_>>().map(Content::Pristine)
        }
    }
}

fn bytes(text: &str) -> Parsed<Vec<u8>> {
    let wrong = || format!("`{text}` is not bytes in hexadecimal");
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return Err(wrong());
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| wrong())).collect()
}

fn pairs<'t>(words: &[&'t str]) -> Parsed<Vec<(&'t str, &'t str)>> {
    words.iter().map(|word| word.split_once('=').ok_or_else(|| format!("`{word}` should be KEY=VALUE"))).collect()
}

fn number(text: &str) -> Parsed<u64> {
    let parsed = text.strip_prefix("0x").map_or_else(|| text.parse(), |hex| u64::from_str_radix(hex, 16));
    parsed.map_err(|_| format!("`{text}` is no number"))
}

fn small(text: &str) -> Parsed<u32> {
    u32::try_from(number(text)?).map_err(|_| format!("`{text}` is too large"))
}

fn limit(text: &str) -> Parsed<u64> {
    if text == "always" { Ok(ALWAYS) } else { number(text) }
}

fn operation(text: &str) -> Parsed<Control> {
    let (quiet, rest) = text.strip_prefix("quiet.").map_or((false, text), |rest| (true, rest));
    let (name, operand) = match rest.strip_suffix(')').and_then(|rest| rest.split_once('(')) {
        Some((name, operand)) => (name, number(operand)?),
        None => (rest, 0),
    };
    if operand > Control::MAX_OPERAND {
        return Err(format!("the operand `{operand:#x}` has more than 56 bits"));
    }
    let op = ChainOp::from_name(name).ok_or_else(|| format!("`{name}` is no operation"))?;
    Ok(Control { op, quiet, operand })
}

fn word(text: &str) -> Parsed<u64> {
    if text.starts_with(|c: char| c.is_ascii_digit()) { number(text) } else { operation(text).map(Control::encode) }
}

/// A control word and the eight bytes before it.
fn wide(text: &str) -> Parsed<u128> {
    let (high, low) = text.split_once(':').ok_or_else(|| format!("`{text}` should be WORD:WORD"))?;
    Ok(u128::from(word(high)?) << 64 | u128::from(word(low)?))
}

fn offset(text: &str) -> Parsed<usize> {
    let named = FIELDS.iter().find(|(name, _)| *name == text).map(|(_, at)| *at);
    named.map_or_else(|| small(text).map(|at| at as usize).map_err(|_| format!("`{text}` is no field")), Ok)
}

fn place(chain: &Chain, text: &str) -> Parsed<Place> {
    if let Some((name, at)) = text.rsplit_once('+') {
        if let Some(region) = chain.regions.iter().position(|region| region.name == name) {
            return Ok(Place::Region { region, at: number(at)? });
        }
        let slot = chain.labelled(name).ok_or_else(|| format!("`{name}` is neither a region nor a label"))?;
        return Ok(Place::Slot { slot, at: small(at)? as usize });
    }
    // The longest label: labels and fields may have dots.
    let splits = text.match_indices('.').map(|(dot, _)| (&text[..dot], &text[dot + 1..]));
    let found = splits.filter_map(|(label, field)| Some((chain.labelled(label)?, offset(field).ok()?))).next_back();
    let (slot, at) = found.ok_or_else(|| format!("`{text}` is no LABEL.FIELD of this chain"))?;
    Ok(Place::Slot { slot, at })
}

fn span(chain: &Chain, text: &str) -> Parsed<Span> {
    let (at, length) = text.rsplit_once(':').ok_or_else(|| format!("`{text}` should be PLACE:LENGTH"))?;
    Ok(Span { place: place(chain, at)?, length: small(length)? })
}

fn cq(chain: &Chain, name: &str) -> Parsed<usize> {
    chain.cqs.iter().position(|cq| cq == name).ok_or_else(|| format!("there is no cq `{name}`"))
}

fn object(chain: &Chain, op: ChainOp, name: &str) -> Parsed<usize> {
    let found = match op {
        ChainOp::Wait => return cq(chain, name),
        ChainOp::RecvEnable => chain.receives.iter().position(|receive| receive.name == name),
        ChainOp::Enable => chain.queues.iter().position(|queue| queue.name == name),
        _ => return Err(format!("{} has no `on`", op.name())),
    };
    found.ok_or_else(|| format!("there is no queue `{name}` for {}", op.name()))
}
