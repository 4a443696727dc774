//! A thread for jobs that take long: it starts with the first job and ends when there has been none for a while.

use crate::turns::{Pool, Turns};
use rustix::io;
use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Work that is done in steps.
pub(crate) trait Job: Send {
    /// Does a part of it. Returns whether something is left.
    fn step(&mut self) -> bool;
}

/// The queue of one thread. Clones share it.
#[derive(Clone)]
pub(crate) struct Errands(Arc<Shared>);

struct Shared {
    name: &'static str,
    /// Called by the thread before it ends.
    at_end: fn(),
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: Turns<u64, VecDeque<Box<dyn Job>>>,
    /// Number of jobs of each group that have not ended, those under way included.
    waiting: HashMap<u64, usize>,
    is_running: bool,
    /// Eventfds of threads that wait for the end of a job.
    awaited: Vec<Arc<OwnedFd>>,
}

impl Errands {
    /// An empty queue for a thread with this name.
    pub(crate) fn new(name: &'static str) -> Self {
        Self::ending_with(name, || {})
    }

    /// The same; the thread calls `at_end` when there has been no job for a while.
    pub(crate) fn ending_with(name: &'static str, at_end: fn()) -> Self {
        Self(Arc::new(Shared { name, at_end, state: Mutex::default(), changed: Condvar::new() }))
    }

    /// Adds a job. Those of one group are done in order, the groups in turn, one step each.
    pub(crate) fn add(&self, group: u64, job: impl Job + 'static) {
        let mut state = self.0.lock();
        state.jobs.group(group).push_back(Box::new(job));
        *state.waiting.entry(group).or_default() += 1;
        let is_running = std::mem::replace(&mut state.is_running, true);
        drop(state);
        if is_running {
            return self.0.changed.notify_all();
        }
        let shared = Arc::clone(&self.0);
        // The thread is not joined: a job may wait for ever.
        let thread = std::thread::Builder::new().name(self.0.name.into()).stack_size(STACK);
        if thread.spawn(move || shared.run(LINGER)).is_err() {
            // The caller's others have to wait, but the job is done.
            self.0.run(Duration::ZERO);
        }
    }

    /// Number of jobs of `group` that have not ended.
    pub(crate) fn waiting(&self, group: u64) -> usize {
        self.0.lock().waiting.get(&group).copied().unwrap_or(0)
    }

    /// Makes the end of the next job write to the eventfd `wake`. Returns whether there is one.
    pub(crate) fn ask_for_wake(&self, wake: &Arc<OwnedFd>) -> bool {
        let mut state = self.0.lock();
        let has_some = !state.waiting.is_empty();
        if has_some && !state.awaited.iter().any(|other| Arc::ptr_eq(other, wake)) {
            state.awaited.push(Arc::clone(wake));
        }
        has_some
    }

    /// Waits until all jobs have ended.
    #[cfg(test)]
    pub(crate) fn finish(&self) {
        let mut state = self.0.lock();
        while !state.waiting.is_empty() {
            state = self.0.changed.wait(state).unwrap();
        }
    }
}

impl Shared {
    /// Does jobs until there has been none for `linger`.
    fn run(&self, linger: Duration) {
        let mut state = self.lock();
        loop {
            let Some((group, mut job)) = state.jobs.take_with_group() else {
                let waited = self.changed.wait_timeout_while(state, linger, |state| state.jobs.is_empty());
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                if state.jobs.is_empty() {
                    state.is_running = false;
                    drop(state);
                    return (self.at_end)();
                }
                continue;
            };
            drop(state);
            let has_more = job.step();
            if has_more {
                state = self.lock();
                state.jobs.group(group).push_front(job);
            } else {
                drop(job);
                state = self.lock();
                self.count_end(&mut state, group);
            }
        }
    }

    fn count_end(&self, state: &mut State, group: u64) {
        if let Some(waiting) = state.waiting.get_mut(&group) {
            *waiting -= 1;
            if *waiting == 0 {
                state.waiting.remove(&group);
            }
        }
        for wake in state.awaited.drain(..) {
            let _ = io::write(wake, &1u64.to_ne_bytes());
        }
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread that has nothing to do stays for a moment: jobs often come in groups.
const LINGER: Duration = Duration::from_millis(100);
/// The jobs call little more than `close`, `munmap` and the engine's destruction of queue pairs.
const STACK: usize = 512 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// A job of some steps, each of which waits for permission and is reported.
    struct Steps {
        name: char,
        left: u32,
        gate: Arc<Mutex<Receiver<()>>>,
        report: Sender<char>,
    }

    impl Job for Steps {
        fn step(&mut self) -> bool {
            self.gate.lock().unwrap().recv().unwrap();
            self.report.send(self.name).unwrap();
            self.left -= 1;
            self.left > 0
        }
    }

    #[test]
    fn groups_have_their_turns_step_by_step() {
        let errands = Errands::new("test");
        let ((open, gate), (report, reports)) = (channel(), channel());
        let gate = Arc::new(Mutex::new(gate));
        let steps = |name, left| Steps { name, left, gate: Arc::clone(&gate), report: report.clone() };
        // The first job holds the thread until all are there.
        errands.add(0, steps('0', 1));
        for (group, name, left) in [(1, 'a', 3), (1, 'b', 1), (2, 'x', 2)] {
            errands.add(group, steps(name, left));
        }
        assert_eq!((errands.waiting(1), errands.waiting(2), errands.waiting(3)), (2, 1, 0));
        (0..7).for_each(|_| open.send(()).unwrap());
        errands.finish();
        assert_eq!(reports.try_iter().collect::<String>(), "0axaxab");
    }

    #[test]
    fn an_end_wakes_who_asked() {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
        let errands = Errands::new("test");
        assert!(!errands.ask_for_wake(&wake), "there is no job");
        let ((open, gate), (report, _reports)) = (channel(), channel());
        let gate = Arc::new(Mutex::new(gate));
        for name in ['a', 'b'] {
            errands.add(1, Steps { name, left: 1, gate: Arc::clone(&gate), report: report.clone() });
        }
        assert!(errands.ask_for_wake(&wake));
        assert_eq!(io::read(&*wake, &mut [0; 8]), Err(io::Errno::AGAIN));
        (0..2).for_each(|_| open.send(()).unwrap());
        errands.finish();
        let mut count = [0; 8];
        io::read(&*wake, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 1, "the second end was not asked for");
    }

    #[test]
    fn a_thread_that_has_ended_is_started_again() {
        let errands = Errands::new("test");
        for _ in 0..3 {
            let ((open, gate), (report, reports)) = (channel(), channel());
            errands.add(1, Steps { name: 'a', left: 1, gate: Arc::new(Mutex::new(gate)), report });
            open.send(()).unwrap();
            assert_eq!(reports.recv(), Ok('a'));
            errands.finish();
            while errands.0.lock().is_running {
                std::thread::yield_now();
            }
        }
    }
}
