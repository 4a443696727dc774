//! Concurrent writers during a conversion: no store of another thread is lost.

use super::*;
use crate::memory::fault::FaultHold;
use std::sync::atomic::AtomicU64;

const WRITERS: usize = 4;
const ROUNDS: usize = 60;

/// Converts pages under threads that each increment a counter of their own in every page, without atomics.
fn hammer(faults: bool) {
    let _stoppable = STOPPABLE.lock();
    let mut converted = 0;
    for round in 0..ROUNDS {
        let pages = Pages::new(if round % 3 == 0 { 200 } else { 3 });
        let (stop, counted) = (AtomicBool::new(false), AtomicU64::new(0));
        let base = pages.base as usize;
        let registration = std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (stop, counted, count) = (&stop, &counted, pages.len / PAGE_BYTES);
                scope.spawn(move || {
                    let mut mine = vec![0u64; count];
                    while !stop.load(Ordering::Relaxed) {
                        for (page, mine) in mine.iter_mut().enumerate() {
                            // At the end of a page, as the neighbour of a partly registered one would be.
                            let at = base + page * PAGE_BYTES + PAGE_BYTES - 8 * (writer + 1);
                            let counter = at as *mut u64;
                            unsafe { counter.write_volatile(counter.read_volatile() + 1) };
                            *mine += 1;
                        }
                        counted.fetch_add(1, Ordering::Relaxed);
                    }
                    for (page, mine) in mine.iter().enumerate() {
                        let at = base + page * PAGE_BYTES + PAGE_BYTES - 8 * (writer + 1);
                        assert_eq!(
                            unsafe { (at as *const u64).read_volatile() },
                            *mine,
                            "writer {writer}, page {page}"
                        );
                    }
                });
            }
            wait_until(&counted, WRITERS as u64);
            let len = pages.len as u64 - 100;
            let registration = register_with(Holds::crowded(faults), pages.address(10), len, RW).unwrap();
            wait_until(&counted, counted.load(Ordering::Relaxed) + 20);
            stop.store(true, Ordering::Relaxed);
            registration
        });
        // A thread without a processor cannot be held off in time: its pages then stay private, and nothing is lost either.
        converted += usize::from(kinds(&registration) == [ARENA_KIND]);
    }
    assert!(converted > 0, "no round converted pages");
}

fn wait_until(counter: &AtomicU64, value: u64) {
    while counter.load(Ordering::Relaxed) < value {
        std::thread::yield_now();
    }
}

#[test]
fn no_update_is_lost_while_faults_wait() {
    if let Err(errno) = FaultHold::new() {
        eprintln!("skipped: this kernel gives no userfaultfd with write protection here ({errno})");
        return;
    }
    hammer(true);
}

#[test]
fn no_update_is_lost_while_threads_are_stopped() {
    hammer(false);
}

#[test]
fn a_thread_that_cannot_be_stopped_keeps_its_pages() {
    let _stoppable = STOPPABLE.lock();
    let pages = Pages::new(2);
    pages.fill();
    let (ready, done) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _signals = crate::memory::hold::SignalsBlocked::new();
            ready.store(true, Ordering::SeqCst);
            while !done.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        });
        while !ready.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let registration = register_with(Holds::crowded(false), pages.address(0), 5000, RW).unwrap();
        assert_eq!(kinds(&registration), [PRIVATE_KIND]);
        pages.expect_filled();
        done.store(true, Ordering::SeqCst);
    });
}

#[test]
fn a_waiter_of_a_process_shared_semaphore_is_still_woken() {
    let _stoppable = STOPPABLE.lock();
    for faults in [true, false] {
        let pages = Pages::new(1);
        let semaphore = pages.base as usize;
        let (at, waiting) = (|| semaphore as *mut libc::sem_t, AtomicU64::new(0));
        unsafe { libc::sem_init(at(), 1, 0) };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                waiting.store(rustix::thread::gettid().as_raw_nonzero().get() as u64, Ordering::SeqCst);
                assert_eq!(unsafe { libc::sem_wait(at()) }, 0);
            });
            wait_until(&waiting, 1);
            let call = format!("/proc/self/task/{}/syscall", waiting.load(Ordering::SeqCst));
            while !std::fs::read_to_string(&call).unwrap().starts_with(&libc::SYS_futex.to_string()) {
                std::thread::yield_now();
            }
            let registration = register_with(Holds::crowded(faults), semaphore as u64, PAGE, RW).unwrap();
            assert_eq!(kinds(&registration), [ARENA_KIND]);
            unsafe { libc::sem_post(at()) };
        });
    }
}
