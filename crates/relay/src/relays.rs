//! The relays of a host's endpoints: each has a thread from when the first process of its endpoint asks for it.

use crate::counters::{Counters, Totals};
use crate::server::Server;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{self, Errno};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// The relays. They end when this is dropped.
pub struct Relays {
    shared: Arc<Shared>,
    stop: Arc<OwnedFd>,
    watcher: Option<JoinHandle<()>>,
}

struct Shared {
    /// The listeners of relays without a thread, and the signal to stop.
    waiting: OwnedFd,
    relays: Mutex<List>,
}

#[derive(Default)]
struct List {
    relays: HashMap<u64, Served>,
    next: u64,
}

/// An endpoint's relay, which ends when this is dropped.
pub struct Relay {
    shared: Arc<Shared>,
    number: u64,
    counters: Arc<Counters>,
}

/// A relay of the endpoint whose session socket is at `session`.
struct Served {
    session: PathBuf,
    counters: Arc<Counters>,
    state: State,
}

enum State {
    /// No process has asked for it: the listener.
    Idle(OwnedFd),
    Running {
        _thread: Thread,
    },
}

struct Thread {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Relays {
    /// No relays yet.
    pub fn start() -> io::Result<Self> {
        let waiting = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let stop = Arc::new(new_eventfd()?);
        epoll::add(&waiting, &*stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
        let shared = Arc::new(Shared { waiting, relays: Mutex::default() });
        let watched = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("rdmesh-relays".into()).stack_size(STACK);
        let watcher = thread.spawn(move || watched.watch()).map_err(|_| Errno::AGAIN)?;
        Ok(Self { shared, stop, watcher: Some(watcher) })
    }

    /// Serves the processes that connect to `listener`, by the device of the endpoint whose session socket is at `session`, for as
    /// long as the result lives.
    pub fn add(&self, session: &Path, listener: OwnedFd) -> io::Result<Relay> {
        let mut list = self.shared.lock();
        let number = list.next;
        epoll::add(&self.shared.waiting, &listener, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?;
        list.next += 1;
        let counters = Arc::new(Counters::default());
        let state = State::Idle(listener);
        list.relays.insert(number, Served { session: session.to_owned(), counters: Arc::clone(&counters), state });
        Ok(Relay { shared: Arc::clone(&self.shared), number, counters })
    }
}

impl Relay {
    /// Values of its counters since the endpoint was made.
    pub fn totals(&self) -> Totals {
        self.counters.totals()
    }

    /// Whether it serves processes, or has yet to deliver what some have sent that have ended.
    pub fn is_busy(&self) -> bool {
        self.counters.is_busy()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let served = self.shared.lock().relays.remove(&self.number);
        // Waits for its thread, where it has one.
        drop(served);
    }
}

impl Drop for Relays {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
        self.shared.lock().relays.clear();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, List> {
        self.relays.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts relays as they are asked for.
    fn watch(&self) {
        loop {
            let mut events = Vec::with_capacity(16);
            match epoll::wait(&self.waiting, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
            for event in events {
                match event.data.u64() {
                    STOP => return,
                    number => self.begin(number),
                }
            }
        }
    }

    fn begin(&self, number: u64) {
        let mut list = self.lock();
        let Some(Served { session, counters, state: State::Idle(listener) }) = list.relays.remove(&number) else {
            return;
        };
        let _ = epoll::delete(&self.waiting, &listener);
        match Thread::start(listener, session.clone(), Arc::clone(&counters)) {
            Ok(thread) => {
                let state = State::Running { _thread: thread };
                drop(list.relays.insert(number, Served { session, counters, state }))
            }
            Err(error) => {
                tracing::warn!(session = %session.display(), %error, "no thread for a relay: connections stay on TCP")
            }
        }
    }
}

impl Thread {
    fn start(listener: OwnedFd, session: PathBuf, counters: Arc<Counters>) -> io::Result<Self> {
        let stop = Arc::new(new_eventfd()?);
        let signal = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("rdmesh-relay".into()).stack_size(STACK);
        let thread = thread.spawn(move || serve(&listener, &session, &signal, &counters)).map_err(|_| Errno::AGAIN)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Serves until the signal. A relay whose device has gone begins anew with the next process.
fn serve(listener: &OwnedFd, session: &Path, stop: &Arc<OwnedFd>, counters: &Arc<Counters>) {
    loop {
        let mut fds = [PollFd::new(&**stop, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
        if io::retry_on_intr(|| poll(&mut fds, None)).is_err() || !fds[0].revents().is_empty() {
            return;
        }
        let own = listener.as_fd().try_clone_to_owned().map_err(|_| Errno::MFILE);
        let Err(error) = own.and_then(|own| Server::new(own, session, stop, Arc::clone(counters))?.run()) else {
            return;
        };
        // The endpoint may be about to go, and its device with it.
        let mut fds = [PollFd::new(&**stop, PollFlags::IN)];
        if io::retry_on_intr(|| poll(&mut fds, Some(&PAUSE))) != Ok(0) {
            return;
        }
        tracing::warn!(session = %session.display(), %error, "a relay has ended: its connections go on over TCP");
    }
}

fn new_eventfd() -> io::Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

const STOP: u64 = u64::MAX;
/// A relay's device is not tried more often.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
const STACK: usize = 512 << 10;
