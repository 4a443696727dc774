//! Queue access of rxe's provider (`rdma_user_rxe.h`).
#![allow(unsafe_code)]

use crate::client::Ring;

const PRODUCER: usize = 128;
const CONSUMER: usize = 256;
const DATA: usize = 384;
/// `sizeof(struct ib_uverbs_wc)`.
const WC_LEN: usize = 48;

/// A completion, as far as the tests look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wc {
    pub(crate) wr_id: u64,
    pub(crate) status: u32,
    pub(crate) opcode: u32,
    pub(crate) byte_len: u32,
    pub(crate) qpn: u32,
}

/// Posts a signaled SEND of one piece.
pub(crate) fn post_send(ring: &Ring, wr_id: u64, addr: u64, len: u32, lkey: u32) {
    const SEND: u32 = 2;
    const SIGNALED: u32 = 2;
    let mut wqe = vec![0; 208 + 16];
    put(&mut wqe, 0, &wr_id.to_ne_bytes());
    put(&mut wqe, 12, &SEND.to_ne_bytes());
    put(&mut wqe, 16, &SIGNALED.to_ne_bytes());
    put_dma(&mut wqe[184..], addr, len, lkey);
    post(ring, &wqe);
}

/// Posts a receive of one piece.
pub(crate) fn post_recv(ring: &Ring, wr_id: u64, addr: u64, len: u32, lkey: u32) {
    let mut wqe = vec![0; 40 + 16];
    put(&mut wqe, 0, &wr_id.to_ne_bytes());
    put_dma(&mut wqe[16..], addr, len, lkey);
    post(ring, &wqe);
}

/// Takes the next completion; yields until there is one.
pub(crate) fn poll(ring: &Ring) -> Wc {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    loop {
        let consumer = word(ring, CONSUMER);
        if word(ring, PRODUCER) != consumer {
            let wc = read(ring, slot(ring, consumer), WC_LEN);
            let u32_at = |at: usize| u32::from_ne_bytes(wc[at..at + 4].try_into().unwrap());
            set_word(ring, CONSUMER, (consumer + 1) & word(ring, 4));
            return Wc {
                wr_id: u64::from_ne_bytes(wc[..8].try_into().unwrap()),
                status: u32_at(8),
                opcode: u32_at(12),
                byte_len: u32_at(20),
                qpn: u32_at(28),
            };
        }
        assert!(std::time::Instant::now() < deadline, "no completion");
        std::thread::yield_now();
    }
}

/// Writes `index` as that of the program's end of a send or receive queue.
pub(crate) fn set_producer(ring: &Ring, index: u32) {
    set_word(ring, PRODUCER, index);
}

/// Overwrites the whole ring.
pub(crate) fn scribble(ring: &Ring, mut byte: impl FnMut() -> u8) {
    for at in 0..ring.len() {
        // SAFETY: the offset lies in the mapping, whose bytes may have any value.
        unsafe { ring.as_ptr().add(at).write_volatile(byte()) };
    }
}

/// Writes the element of slot `index`, without a doorbell.
pub(crate) fn write_slot(ring: &Ring, index: u32, wqe: &[u8]) {
    let at = slot(ring, index);
    assert!(at + wqe.len() <= ring.len());
    for (i, byte) in wqe.iter().enumerate() {
        // SAFETY: the slot lies in the mapping, as just checked.
        unsafe { ring.as_ptr().add(at + i).write_volatile(*byte) };
    }
}

/// The eight bytes at `at` of slot `index`.
pub(crate) fn slot_word(ring: &Ring, index: u32, at: usize) -> u64 {
    u64::from_ne_bytes(read(ring, slot(ring, index) + at, 8).try_into().unwrap())
}

/// Completions that have not been polled.
pub(crate) fn has_completions(ring: &Ring) -> bool {
    word(ring, PRODUCER) != word(ring, CONSUMER)
}

/// Posts an element.
pub(crate) fn post(ring: &Ring, wqe: &[u8]) {
    let producer = word(ring, PRODUCER);
    write_slot(ring, producer, wqe);
    set_word(ring, PRODUCER, (producer + 1) & word(ring, 4));
}

fn put_dma(dma: &mut [u8], addr: u64, len: u32, lkey: u32) {
    put(dma, 0, &len.to_ne_bytes());
    put(dma, 4, &len.to_ne_bytes());
    put(dma, 12, &1u32.to_ne_bytes());
    put(dma, 24, &addr.to_ne_bytes());
    put(dma, 32, &len.to_ne_bytes());
    put(dma, 36, &lkey.to_ne_bytes());
}

fn put(to: &mut [u8], at: usize, bytes: &[u8]) {
    to[at..at + bytes.len()].copy_from_slice(bytes);
}

fn slot(ring: &Ring, index: u32) -> usize {
    DATA + ((index as usize) << word(ring, 0))
}

fn read(ring: &Ring, at: usize, len: usize) -> Vec<u8> {
    assert!(at + len <= ring.len());
    // SAFETY: the range lies in the mapping, as just checked.
    (at..at + len).map(|i| unsafe { ring.as_ptr().add(i).read_volatile() }).collect()
}

fn word(ring: &Ring, at: usize) -> u32 {
    atomic(ring, at).load(std::sync::atomic::Ordering::Acquire)
}

fn set_word(ring: &Ring, at: usize, value: u32) {
    atomic(ring, at).store(value, std::sync::atomic::Ordering::Release);
}

fn atomic(ring: &Ring, at: usize) -> &std::sync::atomic::AtomicU32 {
    assert!(at + 4 <= DATA);
    // SAFETY: the offset is a multiple of four inside the ring's header, and the mapping outlives the reference.
    unsafe { &*ring.as_ptr().add(at).cast() }
}
