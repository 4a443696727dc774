//! Wake-up tests: two sides meet only in shared memory, one of them sleeps, and no wake-up is lost in any interleaving.
#![allow(clippy::unwrap_used, reason = "all of this is tests")]

use rdmesh_uverbs::page::{Arm, CONTEXT_PAGE_LEN, ContextPage, WORKERS_LEN, WorkerFlags};
use rdmesh_uverbs::ring::{CompletionRing, QueueFile};
use rdmesh_uverbs::shared::SharedMemory;
use rdmesh_verbs::{Completion, Qpn, WcFlags, WcOpcode, WcStatus};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const ROUNDS: u32 = 20_000;
/// Long after every wake-up that is not lost.
const LOST: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
const NEVER: Duration = Duration::from_secs(10);

fn page() -> ContextPage {
    ContextPage::new(SharedMemory::create("context", CONTEXT_PAGE_LEN).unwrap().0).unwrap()
}

fn bell() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

fn ring_bell(bell: &OwnedFd) {
    rustix::io::write(bell, &1u64.to_ne_bytes()).unwrap();
}

/// Sleeps until the bell rings; false where it does not.
fn sleep(bell: &OwnedFd) -> bool {
    let woken = poll(&mut [PollFd::new(&bell.as_fd(), PollFlags::IN)], Some(&LOST)).unwrap() == 1;
    let _ = rustix::io::read(bell, &mut [0; 8]);
    woken
}

/// The doorbell of one queue pair, rung once a round by the program; the worker sleeps whenever it sees none.
#[test]
fn a_doorbell_always_wakes_the_worker() {
    let (context, bell) = (page(), bell());
    let workers = WorkerFlags::new(SharedMemory::create("workers", WORKERS_LEN).unwrap().0).unwrap();
    let (served, is_lost) = (AtomicU32::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while served.load(Ordering::Relaxed) < ROUNDS {
                context.take_doorbells(|qp| {
                    assert_eq!(qp, served.load(Ordering::Relaxed) % 200 * 80);
                    served.fetch_add(1, Ordering::Release);
                });
                if served.load(Ordering::Relaxed) == ROUNDS {
                    break;
                }
                workers.set_sleeping(0, true);
                if !context.has_rung() && !sleep(&bell) {
                    return is_lost.store(true, Ordering::Relaxed);
                }
                workers.set_sleeping(0, false);
            }
        });
        for round in 0..ROUNDS {
            context.ring(round % 200 * 80);
            if context.must_wake(&workers) {
                ring_bell(&bell);
            }
            // Every other round is in a hurry, so that both orders come up.
            while served.load(Ordering::Acquire) <= round {
                if round % 2 == 0 {
                    thread::yield_now()
                } else {
                    std::hint::spin_loop()
                }
                if is_lost.load(Ordering::Relaxed) {
                    return;
                }
            }
        }
    });
    assert!(!is_lost.into_inner(), "round {}: the worker slept on", served.into_inner());
}

/// The program arms the queue, looks at it once more, and sleeps; the device adds entries as fast as they are taken.
#[test]
fn a_completion_always_wakes_an_armed_program() {
    const CQ: u32 = 5;
    let (device, bell) = (page(), bell());
    let program = device.clone();
    let file = QueueFile::create().unwrap();
    let made = CompletionRing::create(&file, 3).unwrap();
    let mut ring = made.ring;
    let memory = SharedMemory::map(file.fd().unwrap(), made.offset, made.len as usize, true).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for id in 0..ROUNDS {
                while !ring.push(&completion(id)) {
                    thread::yield_now();
                }
                if device.take_arm(CQ, id % 3 == 0) {
                    ring_bell(&bell);
                }
            }
        });
        let mut taken = 0;
        while taken < ROUNDS {
            taken += drain(&memory, taken);
            program.arm_cq(CQ, Arm::Any);
            let more = drain(&memory, taken);
            taken += more;
            if more == 0 && taken < ROUNDS {
                assert!(sleep(&bell), "entry {taken}: the program sleeps on");
            }
        }
    });
}

/// Two threads poll a queue each in vain and sleep; the device adds one completion to each of them a round.
#[test]
fn a_completion_always_wakes_threads_that_polled_in_vain() {
    let device = page();
    let file = QueueFile::create().unwrap();
    let mut made: Vec<_> = (0..2).map(|_| CompletionRing::create(&file, 3).unwrap()).collect();
    let polled = [AtomicU32::new(0), AtomicU32::new(0)];
    let sleeps = AtomicU32::new(0);
    let memory =
        |at: usize| SharedMemory::map(file.fd().unwrap(), made[at].offset, made[at].len as usize, true).unwrap();
    let memories = [memory(0), memory(1)];
    let is_lost = AtomicBool::new(false);
    thread::scope(|scope| {
        for (memory, polled) in memories.iter().zip(&polled) {
            let (program, sleeps, is_lost) = (device.clone(), &sleeps, &is_lost);
            scope.spawn(move || {
                let mut taken = 0;
                while taken < ROUNDS && !is_lost.load(Ordering::Relaxed) {
                    let seen = program.arrivals();
                    let some = drain(memory, taken);
                    taken += some;
                    polled.store(taken, Ordering::Release);
                    if some == 0 {
                        sleeps.fetch_add(1, Ordering::Relaxed);
                        let begin = Instant::now();
                        program.wait_arrival(seen, NEVER);
                        if begin.elapsed() >= NEVER {
                            is_lost.store(true, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
        for id in 0..ROUNDS {
            for (cq, made) in made.iter_mut().enumerate() {
                assert!(made.ring.push(&completion(id)));
                device.take_arm(cq as u32, false);
                device.wake_sleepers();
            }
            // Every other round is in a hurry, so that both orders come up.
            while polled.iter().any(|polled| polled.load(Ordering::Acquire) <= id) && !is_lost.load(Ordering::Relaxed) {
                if id % 2 == 0 { thread::yield_now() } else { std::hint::spin_loop() }
            }
        }
    });
    assert!(!is_lost.into_inner(), "a thread slept on");
    assert!(sleeps.into_inner() > 0);
}

/// More threads sleep than one arrival wakes: arrivals wake all of them, a part each.
#[test]
fn arrivals_wake_any_number_of_threads() {
    const THREADS: u32 = 40;
    let (device, awake) = (page(), AtomicU32::new(0));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            let (program, awake) = (device.clone(), &awake);
            scope.spawn(move || {
                let (seen, begin) = (program.arrivals(), Instant::now());
                program.wait_arrival(seen, NEVER);
                assert!(begin.elapsed() < NEVER, "it slept on");
                awake.fetch_add(1, Ordering::Relaxed);
            });
        }
        while awake.load(Ordering::Relaxed) < THREADS {
            thread::sleep(Duration::from_millis(10));
            device.count_arrival();
            device.wake_sleepers();
        }
    });
}

/// A sleep ends by itself, and a completion that was counted before ends it at once.
#[test]
fn a_sleep_for_a_completion_is_bounded() {
    let device = page();
    let seen = device.arrivals();
    device.wait_arrival(seen, Duration::from_millis(1));
    assert!(device.wake_sleepers(), "it had said that it sleeps");
    assert!(!device.wake_sleepers(), "once");
    device.take_arm(0, false);
    device.wait_arrival(seen, NEVER);
    assert_eq!((device.arrivals(), device.counted()), (seen + 1, 1));
}

fn completion(id: u32) -> Completion {
    Completion {
        wr_id: id.into(),
        status: WcStatus::Success,
        opcode: WcOpcode::Recv,
        byte_len: 0,
        imm: 0,
        qpn: Qpn::default(),
        src_qp: Qpn::default(),
        sl: 0,
        flags: WcFlags::empty(),
    }
}

/// Takes all entries, as the provider does; the next must be number `next`.
fn drain(ring: &SharedMemory, next: u32) -> u32 {
    const PRODUCER: usize = 128;
    const CONSUMER: usize = 256;
    const DATA: usize = 384;
    let mut count = 0;
    loop {
        let consumer = cell(ring, CONSUMER).load(Ordering::Relaxed);
        if cell(ring, PRODUCER).load(Ordering::Acquire) == consumer {
            return count;
        }
        let slot = DATA + consumer as usize * 64;
        assert_eq!(cell(ring, slot).load(Ordering::Relaxed), next + count);
        cell(ring, CONSUMER).store((consumer + 1) & 3, Ordering::Release);
        count += 1;
    }
}

#[allow(unsafe_code)]
fn cell(ring: &SharedMemory, at: usize) -> &AtomicU32 {
    assert!(at + 4 <= ring.len() && at.is_multiple_of(4));
    // SAFETY: in bounds and aligned (asserted), alive as long as the mapping, and an atomic.
    unsafe { &*ring.as_ptr().add(at).cast() }
}
