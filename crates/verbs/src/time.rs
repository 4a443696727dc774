//! Encoded times of QP attributes (ACK time-out, RNR timer).

use core::time::Duration;

/// Local ACK timeout: 4.096 µs × 2^code, none for code 0 (IBA 9.7.6.1.3).
pub fn ack_timeout(code: u8) -> Option<Duration> {
    (code != 0).then(|| Duration::from_nanos(4096u64 << (code & 31)))
}

/// Delay that an RNR NAK timer code asks for (IBA table 45).
pub fn rnr_delay(code: u8) -> Duration {
    const TENS_OF_MICROSECONDS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
        4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    Duration::from_micros(u64::from(TENS_OF_MICROSECONDS[usize::from(code & 31)]) * 10)
}
