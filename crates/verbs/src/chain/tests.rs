use super::*;
use crate::{Key, Sge};

#[test]
fn operations_have_their_numbers() {
    for (op, opcode, byte) in [
        (ChainOp::Write, 0x00, 0x80),
        (ChainOp::WriteImm, 0x01, 0x81),
        (ChainOp::Read, 0x04, 0x84),
        (ChainOp::CompareSwap, 0x05, 0x85),
        (ChainOp::FetchAdd, 0x06, 0x86),
        (ChainOp::MaskedCompareSwap, 12, 0x8c),
        (ChainOp::MaskedFetchAdd, 13, 0x8d),
        (ChainOp::Nop, 0xf0, 0xb0),
        (ChainOp::Wait, 0xf1, 0xb1),
        (ChainOp::Enable, 0xf2, 0xb2),
        (ChainOp::RecvEnable, 0xf3, 0xb3),
        (ChainOp::Min, 0xf4, 0xb4),
        (ChainOp::Max, 0xf5, 0xb5),
        (ChainOp::WideCompareSwap, 0xf6, 0xb6),
    ] {
        assert_eq!((op.opcode(), Control::new(op).byte()), (opcode, byte), "{op:?}");
    }
    for op in ChainOp::ALL {
        assert_eq!(ChainOp::from_opcode(op.opcode()), Some(op));
        assert_eq!(ChainOp::from_code(op.code()), Some(op));
        assert_eq!(ChainOp::from_name(op.name()), Some(op));
    }
}

#[test]
fn a_control_word_has_an_operand_of_56_bits() {
    for operand in [0, 1, 0x7f_ffff_ffff_ffff, Control::MAX_OPERAND] {
        for op in ChainOp::ALL {
            for control in [Control::with(op, operand), Control::with(op, operand).quiet()] {
                assert_eq!(Control::decode(control.encode()), Some(control));
            }
        }
    }
    assert_eq!(Control::with(ChainOp::Nop, u64::MAX).encode(), 0xb0ff_ffff_ffff_ffff);
    assert_eq!(Control::with(ChainOp::WriteImm, 5).quiet().encode(), 0xc100_0000_0000_0005);
}

#[test]
fn the_kernels_encoding_stays_valid() {
    assert_eq!(Control::decode(0), Some(Control::new(ChainOp::Write)));
    assert_eq!(Control::decode(0xf1 << 32), Some(Control::new(ChainOp::Wait)));
    assert_eq!(Control::decode(7 << 32), None, "SEND_WITH_INV has no place in a chain");
    assert_eq!(Control::decode(0xbf << 56), None);
}

#[test]
fn words_compare_as_their_operands() {
    let word = |operand| Control::with(ChainOp::Nop, operand).encode();
    let args = |compare_add| Args { compare_add, ..Args::default() };
    assert_eq!(ChainOp::Max.apply(word(3), &args(word(5))), word(5));
    assert_eq!(ChainOp::Min.apply(word(3), &args(word(5))), word(3));
    assert_eq!(ChainOp::Min.apply(word(Control::MAX_OPERAND), &args(word(0))), word(0));
}

#[test]
fn atomics_change_what_their_masks_say() {
    let args = Args { compare_add: 0xaa00, swap: 0xffff, compare_mask: 0xff00, swap_mask: 0x00f0, ..Args::default() };
    assert_eq!(ChainOp::MaskedCompareSwap.apply(0xaa11, &args), 0xaaf1);
    assert_eq!(ChainOp::MaskedCompareSwap.apply(0xab11, &args), 0xab11);
    assert_eq!(ChainOp::CompareSwap.apply(0xaa00, &args), 0xffff);
    assert_eq!(ChainOp::CompareSwap.apply(0xaa01, &args), 0xaa01);
    // Two fields of eight bits: neither overflows into its neighbour.
    assert_eq!(masked_add(0xffff, 0x0101, 0x8080), 0x0000);
    assert_eq!(masked_add(0x01ff, 0x0102, 0x0080), 0x0201);
    assert_eq!(masked_add(u64::MAX, 1, 0), 0);
    assert_eq!(masked_add(u64::MAX, 1, 1 << 63), 0);
}

#[test]
fn requests_are_their_bytes() {
    let mut request = Request::new(Control::with(ChainOp::CompareSwap, 9));
    request.wr_id = 77;
    request.flags = ChainFlags::SIGNALED | ChainFlags::LOCAL;
    let (compare_mask, swap_mask) = (u64::MAX, 1);
    request.args = Args { remote_addr: 0x1008, rkey: 3, compare_add: 5, swap: 6, compare_mask, swap_mask };
    request.sges.push(Sge { addr: 0x2000, length: 8, lkey: Key(4) });
    let mut slot = [0; 256];
    request.encode(&mut slot);
    assert_eq!(Request::decode(&slot), Ok(request));
    let golden: Vec<(usize, u8)> = slot.iter().copied().enumerate().filter(|(_, byte)| *byte != 0).collect();
    let mut expected =
        vec![(0, 77), (8, 9), (15, 0x85), (16, 2), (19, 4), (24, 8), (25, 0x10), (32, 5), (40, 6), (48, 3)];
    expected.extend((56..64).map(|at| (at, 0xff)));
    expected.extend([(64, 1), (184, 8), (196, 1), (209, 0x20), (216, 8), (220, 4)]);
    assert_eq!(golden, expected);
}

#[test]
fn ordering_requests_have_their_operands_in_their_first_element() {
    let mut request = Request::new(Control::new(ChainOp::Wait));
    request.sges.push(Sge { addr: 3, length: 2, lkey: Key(8) });
    let ordering = request.ordering().unwrap();
    assert_eq!(ordering, Ordering { object: 8, count: 3, step: 2, relative: false });
    assert_eq!((ordering.at(0), ordering.at(10)), (3, 23));
    assert_eq!(Ordering { count: u64::MAX, step: 1, ..ordering }.at(7), u64::MAX);
}

/// Any bytes are a request or a refusal; what is a request and is written again is the same request.
#[test]
fn any_bytes_decode_without_a_panic() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut decoded = 0;
    for round in 0..100_000 {
        let mut slot = vec![0; [256, 255, 208, 207, 0, 1024][round % 6]];
        for _ in 0..round % 40 {
            if let Some(at) = slot.len().checked_sub(1).map(|most| next() as usize % (most + 1)) {
                slot[at] = next() as u8;
            }
        }
        let Ok(request) = Request::decode(&slot) else { continue };
        decoded += 1;
        let mut again = vec![0; slot.len()];
        request.encode(&mut again);
        let mut same = Request::decode(&again).unwrap();
        same.inline_len = request.inline_len;
        assert_eq!(same, request);
    }
    assert!(decoded > 1000, "{decoded}");
}

#[test]
fn a_wide_compare_swap_tests_an_operand_of_120_bits() {
    let word = |control: Control, low: u64| u128::from(control.encode()) << 64 | u128::from(low);
    let hit = Control::new(ChainOp::WriteImm);
    let wide = Wide {
        compare: word(Control::with(ChainOp::Nop, 5), 7),
        swap: word(hit, 0),
        compare_mask: u128::MAX,
        swap_mask: u128::MAX << 64,
    };
    assert_eq!(wide.apply(word(Control::with(ChainOp::Nop, 5), 7)), word(hit, 7));
    for other in [word(Control::with(ChainOp::Nop, 5), 6), word(Control::with(ChainOp::Nop, 4), 7), word(hit, 7)] {
        assert_eq!(wide.apply(other), other);
    }
    let mut request = Request::new(Control::new(ChainOp::WideCompareSwap));
    request.args = Args { remote_addr: 64, rkey: 3, ..Args::default() };
    request.wide = wide;
    let mut slot = [0; 256];
    request.encode(&mut slot);
    assert_eq!(Request::decode(&slot), Ok(request));
    assert_eq!(ChainOp::WideCompareSwap.width(), 16);
}
