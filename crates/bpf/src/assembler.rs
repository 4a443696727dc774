//! Assembler: instructions with named registers, functions and labels.

use std::collections::BTreeMap;

/// One instruction, as the kernel has it: code, registers, offset, constant (`struct bpf_insn` of `linux/bpf.h`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Instruction {
    /// Class, operation and source of the operand.
    pub code: u8,
    /// The destination in the low half, the source in the high one.
    pub registers: u8,
    /// Of a jump: instructions to skip; of a load or store: bytes from the register.
    pub offset: i16,
    /// The operand, where it is no register.
    pub constant: i32,
}

/// A register. Calls take their arguments from `R1` on, return in `R0`, and leave `R6` to `R9` alone; `R10` is the end of the
/// stack, which grows down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[expect(missing_docs, reason = "the numbers say all")]
pub enum Register {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// A function of the kernel that programs call (`enum bpf_func_id`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
#[expect(missing_docs, reason = "the kernel's own names")]
pub enum Function {
    SkbLoadBytes = 26,
    Bind = 64,
    SkFullsock = 95,
    SkStorageGet = 107,
    SetRetval = 187,
}

/// A place in a program that jumps lead to; it is ahead of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Label(usize);

/// A program that is being written.
#[derive(Debug, Default)]
pub struct Assembler {
    instructions: Vec<Instruction>,
    /// Jumps, by the place of their instruction.
    jumps: BTreeMap<usize, Label>,
    /// Where each label is, if it has a place yet.
    places: Vec<Option<usize>>,
}

impl Assembler {
    /// An empty program.
    pub fn new() -> Self {
        Self::default()
    }

    /// A label without a place.
    pub fn label(&mut self) -> Label {
        self.places.push(None);
        Label(self.places.len() - 1)
    }

    /// Gives a label its place: the next instruction.
    pub fn place(&mut self, label: Label) {
        self.places[label.0] = Some(self.instructions.len());
    }

    /// `to = from`
    pub fn copy(&mut self, to: Register, from: Register) {
        self.push(COPY, to, from, 0, 0);
    }

    /// `to = constant`, with zeros in the upper half.
    pub fn set(&mut self, to: Register, constant: u32) {
        self.push(SET_WORD, to, Register::R0, 0, constant.cast_signed());
    }

    /// `to += constant`
    pub fn add(&mut self, to: Register, constant: i32) {
        self.push(ADD, to, Register::R0, 0, constant);
    }

    /// `to &= constant`, with zeros in the upper half.
    pub fn and(&mut self, to: Register, constant: u32) {
        self.push(AND_WORD, to, Register::R0, 0, constant.cast_signed());
    }

    /// `to = *(u32 *)(from + offset)`
    pub fn load_word(&mut self, to: Register, from: Register, offset: i16) {
        self.push(LOAD_WORD, to, from, offset, 0);
    }

    /// `to = *(u64 *)(from + offset)`
    pub fn load_long(&mut self, to: Register, from: Register, offset: i16) {
        self.push(LOAD_LONG, to, from, offset, 0);
    }

    /// `*(u32 *)(to + offset) = from`
    pub fn store_word(&mut self, to: Register, offset: i16, from: Register) {
        self.push(STORE_WORD, to, from, offset, 0);
    }

    /// `to` = the table with this descriptor.
    pub fn set_table(&mut self, to: Register, descriptor: i32) {
        // The source register says that the constant is a descriptor (`BPF_PSEUDO_MAP_FD`); the upper half follows.
        self.push(SET_LONG, to, Register::R1, 0, descriptor);
        self.push(0, Register::R0, Register::R0, 0, 0);
    }

    /// Goes on at `label`.
    pub fn jump(&mut self, label: Label) {
        self.jump_to(label, JUMP, Register::R0, Register::R0, 0);
    }

    /// Goes on at `label` where the lower half of `register` is `constant`.
    pub fn jump_if_word(&mut self, register: Register, constant: u32, label: Label) {
        self.jump_to(label, JUMP_IF_WORD, register, Register::R0, constant.cast_signed());
    }

    /// Goes on at `label` unless the lower half of `register` is `constant`.
    pub fn jump_unless_word(&mut self, register: Register, constant: u32, label: Label) {
        self.jump_to(label, JUMP_UNLESS_WORD, register, Register::R0, constant.cast_signed());
    }

    /// Goes on at `label` where `register` is zero, as a pointer that leads nowhere.
    pub fn jump_if_null(&mut self, register: Register, label: Label) {
        self.jump_to(label, JUMP_IF, register, Register::R0, 0);
    }

    /// Goes on at `label` where `register` is greater than `other`, as pointers and sizes are compared.
    pub fn jump_if_greater(&mut self, register: Register, other: Register, label: Label) {
        self.jump_to(label, JUMP_IF_GREATER, register, other, 0);
    }

    /// Calls a function of the kernel.
    pub fn call(&mut self, function: Function) {
        self.push(CALL, Register::R0, Register::R0, 0, function as i32);
    }

    /// Ends with this result.
    pub fn end(&mut self, result: u32) {
        self.set(Register::R0, result);
        self.push(EXIT, Register::R0, Register::R0, 0, 0);
    }

    /// The program, without instructions that are never reached, which the kernel refuses.
    ///
    /// # Panics
    ///
    /// If a jump leads to a label without a place.
    pub fn finish(self) -> Vec<Instruction> {
        let reached = self.reached();
        // Where each instruction is among those that are kept.
        let new_place = |at: usize| reached[..at].iter().filter(|is_reached| **is_reached).count();
        let mut program = Vec::with_capacity(reached.len());
        for (at, instruction) in self.instructions.iter().enumerate().filter(|(at, _)| reached[*at]) {
            let mut instruction = *instruction;
            if let Some(target) = self.target(at) {
                instruction.offset = i16::try_from(new_place(target) - program.len() - 1).unwrap_or(i16::MAX);
            }
            program.push(instruction);
        }
        program
    }

    /// Whether each instruction is reached. Jumps lead ahead, so one pass finds it.
    fn reached(&self) -> Vec<bool> {
        let mut reached = vec![false; self.instructions.len()];
        reached[0] = true;
        for at in 0..reached.len() {
            if !reached[at] {
                continue;
            }
            if let Some(target) = self.target(at) {
                reached[target] = true;
            }
            let ends = matches!(self.instructions[at].code, JUMP | EXIT);
            if let Some(next) = reached.get_mut(at + 1).filter(|_| !ends) {
                *next = true;
            }
        }
        reached
    }

    fn target(&self, at: usize) -> Option<usize> {
        let label = self.jumps.get(&at)?;
        let target = self.places[label.0].unwrap_or_else(|| panic!("{label:?} has no place"));
        assert!(target > at, "{label:?} is behind a jump to it");
        Some(target)
    }

    fn jump_to(&mut self, label: Label, code: u8, register: Register, other: Register, constant: i32) {
        self.jumps.insert(self.instructions.len(), label);
        self.push(code, register, other, 0, constant);
    }

    fn push(&mut self, code: u8, to: Register, from: Register, offset: i16, constant: i32) {
        let registers = to as u8 | (from as u8) << 4;
        self.instructions.push(Instruction { code, registers, offset, constant });
    }
}

/// Codes of instructions: `BPF_ALU64`, `BPF_ALU`, `BPF_JMP`, `BPF_JMP32`, `BPF_LDX`, `BPF_STX` and `BPF_LD` of `linux/bpf.h` with
/// operation and operand.
const COPY: u8 = 0xbf;
const SET_WORD: u8 = 0xb4;
const SET_LONG: u8 = 0x18;
const ADD: u8 = 0x07;
const AND_WORD: u8 = 0x54;
const LOAD_WORD: u8 = 0x61;
const LOAD_LONG: u8 = 0x79;
const STORE_WORD: u8 = 0x63;
const JUMP: u8 = 0x05;
const JUMP_IF: u8 = 0x15;
const JUMP_IF_GREATER: u8 = 0x2d;
const JUMP_IF_WORD: u8 = 0x16;
const JUMP_UNLESS_WORD: u8 = 0x56;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_lead_to_their_labels() {
        let mut program = Assembler::new();
        let (near, far) = (program.label(), program.label());
        program.jump_if_word(Register::R2, 7, far);
        program.jump(near);
        // Never reached.
        program.end(0);
        program.place(near);
        program.place(far);
        program.end(1);
        let offsets: Vec<i16> = program.finish().iter().map(|instruction| instruction.offset).collect();
        assert_eq!(offsets, [1, 0, 0, 0]);
    }

    #[test]
    #[should_panic(expected = "has no place")]
    fn a_label_needs_a_place() {
        let mut program = Assembler::new();
        let label = program.label();
        program.jump(label);
        program.finish();
    }
}
