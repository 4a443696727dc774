//! Assembler and disassembler speak one syntax.

mod common;

use common::*;
use proptest::prelude::*;
use rdmesh_chain::assemble::assemble;
use rdmesh_chain::model::{Fetch, Schedule};

#[test]
fn what_is_listed_assembles_to_the_same_listing() {
    for design in DESIGNS {
        let programs = [if_else().0, hash_get(1).0, hash_get(3).0, list_walk().0];
        for chain in programs.map(|program| program.lower(design)) {
            let text = chain.to_string();
            let again = assemble(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
            assert_eq!(again, chain, "{text}");
        }
    }
}

const IF_ELSE: &str = "\
# 7C + 2A + 2E: 11 work requests, at most 11 steps, 37 bytes
chain if_else
cq requests
cq sent.chain
table x 8
pristine pristine.hit hit.operand:8
pristine pristine.miss miss.operand:8
receive arguments cq=requests enabled=1 sge=if.hit.compare:7
queue chain cq=sent.chain to=client enabled=always
  request: WAIT on=requests count=1 step=1 local
  spread.key: WRITE at=if.miss.compare sge=if.hit.compare:7 local
  load: READ at=x+0 sge=hit.operand:7 local
  copy: WRITE at=miss.operand sge=hit.operand:7 local
  if.hit: CAS at=hit.operand compare=NOP swap=SEND_IMM hole=compare:7 local
  if.miss: CAS at=miss.operand compare=SEND_IMM swap=NOP hole=compare:7 local
  hit: NOP|SEND_IMM imm=200 hole=operand:7 signaled
  miss: SEND_IMM|NOP imm=404 hole=operand:7 signaled
  restore.hit: WRITE at=hit.operand sge=pristine.hit+0:8 local
  restore.miss: WRITE at=miss.operand sge=pristine.miss+0:8 local
  next: RECV_ENABLE on=arguments count=2 step=1 local
";

#[test]
fn the_listing_of_an_if_is_this() {
    let (program, _) = if_else();
    assert_eq!(program.lower(rdmesh_chain::build::Design::Local).to_string(), IF_ELSE);
}

#[test]
fn an_assembled_chain_runs() {
    let chain = assemble(IF_ELSE).unwrap();
    let mut run = Run::new(chain, Fetch::Earliest, Schedule::First, |_, _| ());
    assert_eq!(run.request(&u56(0))[0].imm, Some(HIT));
    assert_eq!(run.request(&u56(1))[0].imm, Some(MISS));
}

#[test]
fn errors_name_the_line_and_what_would_be_right() {
    for (text, line, part) in [
        ("chain a\nfoo b", 2, "`foo` is neither an object nor a label"),
        ("x: NOP", 1, "must follow a `queue`"),
        ("cq c\nqueue q cq=d to=self enabled=1", 2, "there is no cq `d`"),
        ("cq c\nqueue q cq=c to=self enabled=1\nx: NOPE", 3, "`NOPE` is no operation"),
        ("cq c\nqueue q cq=c to=self enabled=1\nx: NOP\nx: NOP", 4, "used twice"),
        ("cq c\nqueue q cq=c to=self enabled=1\nx: CAS at=y.operand", 3, "`y.operand` is no LABEL.FIELD"),
        ("cq c\nqueue q cq=c to=self enabled=1\nx: NOP(0x100000000000000)", 3, "more than 56 bits"),
    ] {
        let error = assemble(text).unwrap_err();
        assert!(error.line == line && error.what.contains(part), "{error}");
    }
}

proptest! {
    /// Listings with changed, lost and doubled pieces assemble or are refused; what assembles lists as itself.
    #[test]
    fn damaged_listings_do_not_panic(cuts in proptest::collection::vec((0..1200_usize, 0..40_usize, "[a-zA-Z0-9=:.+| \n-]{0,6}"), 1..4)) {
        let mut text = IF_ELSE.to_owned();
        for (at, length, new) in cuts {
            let at = at.min(text.len());
            let end = (at + length).min(text.len());
            text.replace_range(at..end, &new);
        }
        if let Ok(chain) = assemble(&text) {
            let listing = chain.to_string();
            let again = assemble(&listing).map_err(|e| TestCaseError::fail(format!("{e}\n{listing}")))?;
            prop_assert_eq!(again.to_string(), listing);
        }
    }
}
