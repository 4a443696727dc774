use super::*;
use crate::assemble::assemble;

const GOOD: &str = "\
cq sent
cq requests
table x 8
pristine pristine.hit hit.operand:8
receive arguments cq=requests enabled=1 sge=test.compare:7
queue chain cq=sent to=client enabled=always
request: WAIT on=requests count=1 step=1 local
load: READ at=x+0 sge=hit.operand:7 local
test: CAS at=hit.operand compare=NOP swap=SEND_IMM hole=compare:7 local
hit: NOP|SEND_IMM imm=200 hole=operand:7
restore: WRITE at=hit.operand sge=pristine.hit+0:8 local
next: RECV_ENABLE on=arguments count=2 step=1 local
";

#[test]
fn a_good_chain_is_accepted() {
    assert_eq!(verify(&assemble(GOOD).unwrap()), Ok(()));
}

#[test]
fn refusals_name_the_first_cause() {
    for (old, new, message) in [
        ("restore: WRITE at=hit.operand sge=pristine.hit+0:8 local\n", "", "`hit` still is what `test` made of it"),
        ("load: READ at=x+0 sge=hit.operand:7 local\n", "", "`hit` is fetched before its `operand` is filled in"),
        ("next: RECV_ENABLE on=arguments count=2 step=1 local\n", "", "`request` waits for the next message"),
        ("request: WAIT on=requests count=1 step=1 local\n", "", "`load` begins `chain`, which repeats without a WAIT"),
        ("hole=compare:7 local", "hole=compare:7", "may change"),
        ("swap=SEND_IMM", "swap=SEND", "data could become an operation"),
        ("sge=hit.operand:7 local", "sge=hit.operand:8 local", "data could become an operation"),
        ("at=x+0", "at=x+8", "`load` reaches beyond the end of `x+8`"),
        ("at=hit.operand sge=pristine.hit+0:8", "at=x+0 sge=pristine.hit+0:8", "which may only be read"),
        (
            "on=requests count=1 step=1",
            "on=sent count=1 step=1",
            "`request` waits for 1 completions of `sent`, of which only 0 come",
        ),
    ] {
        let text = GOOD.replace(old, new);
        assert_ne!(text, GOOD, "{old}");
        let refusal = verify(&assemble(&text).unwrap()).unwrap_err().to_string();
        assert!(refusal.contains(message), "{refusal}");
    }
}
