//! A counter machine as a chain: the program is data, and two counters suffice to compute whatever can be computed (Minsky).
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use rdmesh_chain::build::{Design, Memory, Offset, Program, add, copy, nop, send_imm};
use rdmesh_chain::model::{Fetch, Schedule};
use rdmesh_chain::program::Chain;
use std::sync::OnceLock;

/// `if register == 0: register += if_zero, go to zero; else register += otherwise, go to next`.
#[derive(Clone, Copy, Debug)]
struct Instruction {
    register: u64,
    otherwise: i64,
    next: u64,
    if_zero: i64,
    zero: u64,
}

const SIZE: u64 = 40;
const HALT: u64 = 1000 * SIZE;

const fn increment(register: u64, next: u64) -> Instruction {
    Instruction { register, otherwise: 1, next, if_zero: 1, zero: next }
}

const fn decrement(register: u64, next: u64, zero: u64) -> Instruction {
    Instruction { register, otherwise: -1, next, if_zero: 0, zero }
}

/// Runs a program; returns the registers and the number of instructions.
fn interpret(program: &[Instruction], registers: &mut [u64]) -> u64 {
    let (mut at, mut laps) = (0, 0);
    while let Some(instruction) = program.get(at as usize) {
        let Instruction { register, otherwise, next, if_zero, zero } = *instruction;
        let value = &mut registers[register as usize];
        let (change, to) = if *value == 0 { (if_zero, zero) } else { (otherwise, next) };
        *value = value.wrapping_add_signed(change);
        (at, laps) = (to, laps + 1);
    }
    laps
}

struct Machine {
    program: Program,
    code: Memory,
    registers: Memory,
}

/// The machine: one lap of a recycled loop for each instruction, until it halts.
fn machine() -> Machine {
    let mut p = Program::new("machine");
    let (code, registers) = (p.table("code", 64 * SIZE), p.scratch("registers", 64));
    // What to do if the register is not zero, and if it is: addend, and the next instruction.
    let (choice, if_zero, waste) = (p.scratch("choice", 16), p.scratch("if_zero", 16), p.scratch("waste", 1));
    let to = p.scratch("to", 8);
    let first = p.arg::<Offset>("first");
    let done = p.declare("done", send_imm(1));
    let halt = p.branch("halt", |p| {
        p.place(done).next_request();
    });
    let change = p.declare("change", add(registers.span(0, 8), 0));
    let take = p.declare("take", copy(choice.span(0, 16), if_zero.span(0, 16)));
    let register = p.read_later("register", registers);
    p.on_request_or_next();
    let fetch = p.read(code.at(first)).named("fetch");
    let own = fetch.own_address();
    fetch.into([register.remote(), choice.span(0, 16), if_zero.span(0, 16)]);
    p.copy(change.remote(), register.remote());
    p.read_now(register, [take.operand(), waste.span(0, 1)]);
    p.when(take.operand().eq(0)).run(take).done();
    p.copy(change.compare(), choice.span(0, 8));
    p.place(change);
    p.copy(own, choice.span(8, 8));
    p.copy(to.span(0, 8), choice.span(8, 8));
    p.when(to.span(0, 7).eq(HALT)).stop_with(halt).done();
    p.recycle();
    Machine { program: p, code, registers }
}

fn load(run: &mut Run, machine: &Machine, program: &[Instruction], registers: &[u64]) {
    let address = |at: u64| if at < program.len() as u64 { at * SIZE } else { HALT };
    let words = program
        .iter()
        .flat_map(|i| [8 * i.register, i.otherwise as u64, address(i.next), i.if_zero as u64, address(i.zero)]);
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    let key = run.installed.regions[machine.code.number()];
    run.model.bytes_mut(key)[..bytes.len()].copy_from_slice(&bytes);
    let bytes: Vec<u8> = registers.iter().flat_map(|word| word.to_le_bytes()).collect();
    let key = run.installed.regions[machine.registers.number()];
    run.model.bytes_mut(key)[..bytes.len()].copy_from_slice(&bytes);
}

/// `2 := 0 * 1`, with 3 to remember.
const MULTIPLY: [Instruction; 6] =
    [decrement(0, 1, 6), decrement(1, 2, 4), increment(2, 3), increment(3, 1), decrement(3, 5, 0), increment(1, 4)];

/// The machine in both designs, built once.
fn machines() -> &'static (Machine, [Chain; 2]) {
    static MACHINES: OnceLock<(Machine, [Chain; 2])> = OnceLock::new();
    MACHINES.get_or_init(|| {
        let machine = machine();
        let chains = DESIGNS.map(|design| machine.program.build(design).unwrap());
        (machine, chains)
    })
}

fn check(program: &[Instruction], start: [u64; 4], design: Design, way: (Fetch, Schedule), most: usize) -> u64 {
    let (machine, chains) = machines();
    let chain = chains[usize::from(design == Design::Portable)].clone();
    let mut run = Run::new(chain, way.0, way.1, |_, _| ());
    load(&mut run, machine, program, &start);
    let mut expected = start;
    let laps = interpret(program, &mut expected);
    run.model.send(run.installed.receives[0], vec![0; 8]);
    assert!(run.model.run(way.1, most), "endless");
    assert_eq!(run.model.fault(), None);
    assert_eq!(run.model.take_messages(run.client).len(), 1, "it says that it has halted");
    let registers = [0, 1, 2, 3].map(|n| run.word(machine.registers, 8 * n));
    assert_eq!(registers, expected, "{start:?} {design:?} {way:?}");
    laps
}

#[test]
fn a_chain_is_a_counter_machine() {
    for design in DESIGNS {
        for way in every_way().take(6) {
            for start in [[0, 0, 0, 0], [1, 0, 2, 0], [2, 3, 0, 0], [3, 1, 0, 0]] {
                check(&MULTIPLY, start, design, way, 100_000);
            }
        }
    }
}

#[test]
fn random_machines_do_what_their_interpreter_does() {
    let mut halted = 0;
    for seed in 0..200 {
        let mut chance = Chance(seed);
        // Jumps go forward, so that all halt.
        let program: Vec<Instruction> = (0..10)
            .map(|at| {
                let mut to = || at + 1 + chance.below(4);
                let (next, zero) = (to(), to());
                let register = chance.below(4);
                let mut change = || chance.below(5) as i64 - 1;
                Instruction { register, otherwise: change(), next, if_zero: change().max(0), zero }
            })
            .collect();
        halted += check(
            &program,
            [0, 1, 2, 0],
            DESIGNS[seed as usize % 2],
            (RULES[seed as usize % 3], Schedule::Random(seed)),
            10_000,
        );
    }
    assert!(halted > 500, "{halted}");
}

/// A hundred thousand laps of one loop, which no program touches.
#[test]
fn a_loop_runs_a_hundred_thousand_laps() {
    let laps = check(&MULTIPLY, [100, 250, 0, 0], Design::Local, (Fetch::AtStart, Schedule::First), 10_000_000);
    assert!(laps > 100_000, "{laps}");
}

/// A loop with a break, alone: what each lap costs, in both designs.
#[test]
fn a_recycled_while_costs_no_more_than_the_papers() {
    for (design, most) in [(Design::Local, [2, 1, 1]), (Design::Portable, [3, 2, 4])] {
        let mut p = Program::new("while");
        let x = p.table("x", 8);
        let end = p.declare("end", nop());
        let stop = p.branch("stop", |p| {
            p.place(end).next_request();
        });
        p.on_request_or_next();
        // The body: a READ.
        p.read(x.at(0)).into([stop.operand()]);
        p.when(stop.operand().eq(1)).stop_with(stop).done();
        p.recycle();
        let mut run = Run::new(p.build(design).unwrap(), Fetch::Earliest, Schedule::First, |_, _| ());
        run.model.send(run.installed.receives[0], vec![]);
        run.model.run(Schedule::First, 2000);
        let before = (run.model.counts(), run.model.position(0));
        run.model.run(Schedule::First, 20_000);
        let (after, slots) = (run.model.counts(), run.model.position(0) - before.1);
        let laps = slots as f64 / run.chain.queues[0].slots.len() as f64;
        let lap = [
            (after.copies - before.0.copies) as f64 / laps - 1.0,
            (after.atomics - before.0.atomics) as f64 / laps,
            (after.orders - before.0.orders) as f64 / laps,
        ];
        assert!(
            lap.iter().zip(most).all(|(count, most)| *count <= f64::from(most) + 0.05),
            "{lap:?} {design:?}\n{}",
            run.chain
        );
        // The condition holds: the loop ends.
        let key = run.installed.regions[0];
        run.model.bytes_mut(key)[0] = 1;
        assert!(run.model.run(Schedule::First, 10_000), "{design:?}");
    }
}
