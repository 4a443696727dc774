//! Fork gate: excludes forks while other threads change the library's state.
//!
//! A thread that changes the state of this library enters the gate; a fork waits until all threads have left and admits none,
//! so that the child finds no lock held and nothing half done. Not a `std` lock, because the child opens it by hand. A thread
//! that is inside may enter again, and so may the one that forks: each `close` of a descriptor does, the library's own
//! included.

use rustix::thread::futex::{self, Flags};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of threads inside, and [`FORKING`].
static STATE: AtomicU32 = AtomicU32::new(0);
const FORKING: u32 = 1 << 31;

thread_local! {
    /// Nesting depth of this thread.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Being inside the gate.
#[derive(Debug)]
pub struct Inside(());

/// Enters; waits for a fork in progress.
pub fn enter() -> Inside {
    let depth = DEPTH.get();
    DEPTH.set(depth + 1);
    if depth != 0 {
        return Inside(());
    }
    loop {
        let state = STATE.load(Ordering::Relaxed);
        if state & FORKING != 0 {
            wait(state);
        } else if STATE.compare_exchange_weak(state, state + 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return Inside(());
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let depth = DEPTH.get() - 1;
        DEPTH.set(depth);
        if depth != 0 {
            return;
        }
        if STATE.fetch_sub(1, Ordering::Release) == FORKING | 1 {
            wake();
        }
    }
}

/// Whether this thread is inside.
pub fn is_inside() -> bool {
    DEPTH.get() != 0
}

/// Closes the gate for a fork, and waits until it is empty but for this thread.
pub fn close() {
    loop {
        let before = STATE.fetch_or(FORKING, Ordering::Acquire);
        if before & FORKING == 0 {
            break;
        }
        wait(before);
    }
    loop {
        match STATE.load(Ordering::Acquire) {
            FORKING => break,
            state => wait(state),
        }
    }
    DEPTH.set(1);
}

/// Opens it again, in the parent and in the child.
pub fn open() {
    DEPTH.set(0);
    STATE.store(0, Ordering::Release);
    wake();
}

fn wait(seen: u32) {
    // Woken, changed before, or interrupted: each caller looks again.
    let _ = futex::wait(&STATE, Flags::PRIVATE, seen, None);
}

fn wake() {
    let _ = futex::wake(&STATE, Flags::PRIVATE, i32::MAX as u32);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn who_is_inside_enters_again() {
        let outer = enter();
        drop(enter());
        assert_ne!(STATE.load(Ordering::SeqCst) & !FORKING, 0, "still inside");
        drop(outer);
        close();
        drop(enter());
        open();
    }

    #[test]
    fn a_fork_waits_for_all_and_all_wait_for_a_fork() {
        let inside = enter();
        let closed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                close();
                closed.store(true, Ordering::SeqCst);
                open();
            });
            while STATE.load(Ordering::SeqCst) & FORKING == 0 {
                std::thread::yield_now();
            }
            assert!(!closed.load(Ordering::SeqCst));
            // More than once, for the forks of other tests close the gate too.
            let second = scope.spawn(|| {
                while !closed.load(Ordering::SeqCst) {
                    drop(enter());
                }
            });
            drop(inside);
            second.join().unwrap();
        });
    }
}
