//! Spin locks for sections of a few instructions or a copy, in memory that a fork may share.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

/// A word that one thread at a time holds.
#[derive(Default)]
#[repr(transparent)]
pub(crate) struct LockWord(AtomicU32);

/// Holds a [`LockWord`].
pub(crate) struct Held<'a>(&'a LockWord);

/// A value behind a spin lock.
#[derive(Default)]
pub(crate) struct Spin<T> {
    word: LockWord,
    value: UnsafeCell<T>,
}

/// Access to the value of a [`Spin`].
pub(crate) struct Guard<'a, T> {
    spin: &'a Spin<T>,
    _held: Held<'a>,
}

impl LockWord {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Waits until no other thread has it. The holder may have lost its processor: the wait gives the own one away.
    pub(crate) fn lock(&self) -> Held<'_> {
        let mut tries = 0u32;
        while self.0.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            tries += 1;
            if tries.is_multiple_of(SPINS) { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        Held(self)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.0.store(0, Ordering::Release);
    }
}

impl<T> Spin<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { word: LockWord::new(), value: UnsafeCell::new(value) }
    }

    /// Opens it, whoever has it: for the child of a fork, which has not inherited the thread that has.
    pub(crate) fn unlock(&self) {
        self.word.0.store(0, Ordering::Release);
    }

    pub(crate) fn lock(&self) -> Guard<'_, T> {
        Guard { _held: self.word.lock(), spin: self }
    }
}

// SAFETY: the lock lets one thread at a time reach the value.
unsafe impl<T: Send> Sync for Spin<T> {}
// SAFETY: the value goes with it.
unsafe impl<T: Send> Send for Spin<T> {}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the lock is held as long as this guard.
        unsafe { &*self.spin.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed mutably.
        unsafe { &mut *self.spin.value.get() }
    }
}

/// Tries between two yields.
const SPINS: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_increment_is_lost() {
        let count = Spin::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..20_000).for_each(|_| *count.lock() += 1));
            }
        });
        assert_eq!(*count.lock(), 80_000);
    }
}
