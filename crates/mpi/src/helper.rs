//! The helper: a thread that hears what comes from the launcher, and makes announced messages progress while the program is
//! elsewhere: in a collective operation of MPI, or not in MPI at all (MPI 4.1, 3.5: progress). It never calls MPI.
#![allow(unsafe_code)]

use crate::control::Frame;
use crate::job::are_none_pending;
use crate::rank::Rank;
use arrayvec::ArrayVec;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::OwnedFd;
use std::io::BufReader;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// First and longest time between two looks at pending operations.
const SHORT: Duration = Duration::from_micros(200);
const LONG: Duration = Duration::from_millis(2);

/// The thread, as others see it.
pub(crate) struct Helper {
    bell: OwnedFd,
    is_asleep: AtomicBool,
    is_ended: AtomicBool,
}

impl Helper {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { bell, is_asleep: AtomicBool::new(false), is_ended: AtomicBool::new(false) })
    }

    /// Starts the thread.
    pub(crate) fn start(&'static self, rank: &'static Rank, launcher: TcpStream) -> std::io::Result<()> {
        let thread = std::thread::Builder::new().name("rdmesh-mpi".to_owned());
        thread.spawn(move || {
            block_signals();
            self.run(rank, launcher);
        })?;
        Ok(())
    }

    /// An operation is pending.
    pub(crate) fn wake(&self) {
        if self.is_asleep.swap(false, Ordering::SeqCst) {
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }

    /// Ends the thread soon.
    pub(crate) fn end(&self) {
        self.is_ended.store(true, Ordering::SeqCst);
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    fn run(&self, rank: &Rank, launcher: TcpStream) {
        let mut frames = BufReader::new(launcher);
        let mut tick = SHORT;
        let mut is_connected = true;
        loop {
            self.is_asleep.store(true, Ordering::SeqCst);
            let is_idle = are_none_pending();
            let woken = match is_connected {
                true if !frames.buffer().is_empty() => Woken::Frame,
                true => self.rest(Some(frames.get_ref()), is_idle, tick),
                false => self.rest(None, is_idle, tick),
            };
            if self.is_ended.load(Ordering::SeqCst) {
                return;
            }
            if let Woken::Frame = woken {
                match Frame::read(&mut frames) {
                    Ok(frame) => rank.job().on_frame(&frame),
                    // Messages go on; no new rank is met.
                    Err(_) => {
                        is_connected = false;
                        rank.job().on_launcher_lost();
                    }
                }
            }
            if !are_none_pending() {
                let mut job = rank.job();
                job.progress();
                job.watch();
            }
            tick = if let Woken::Time = woken { LONG.min(tick * 2) } else { SHORT };
        }
    }

    /// Waits for a frame, for the bell, or for `tick` where operations are pending.
    fn rest(&self, launcher: Option<&TcpStream>, is_idle: bool, tick: Duration) -> Woken {
        let bell = PollFd::new(&self.bell, PollFlags::IN);
        let mut fds: ArrayVec<PollFd<'_>, 2> = [bell].into_iter().collect();
        fds.extend(launcher.map(|launcher| PollFd::new(launcher, PollFlags::IN)));
        let _ = poll(&mut fds, limit(is_idle, tick).as_ref());
        let is_ready = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
        let woken = if is_ready(1) {
            Woken::Frame
        } else if is_ready(0) {
            Woken::Bell
        } else {
            Woken::Time
        };
        self.is_asleep.store(false, Ordering::SeqCst);
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        woken
    }
}

/// Cause of the end of a rest.
enum Woken {
    Frame,
    Bell,
    Time,
}

fn limit(is_idle: bool, tick: Duration) -> Option<Timespec> {
    (!is_idle).then(|| Timespec { tv_sec: 0, tv_nsec: tick.subsec_nanos().into() })
}

/// Leaves the program's signals to the program's threads. Real-time ones are not blocked: another preloaded library stops threads
/// by one of them.
pub(crate) fn block_signals() {
    // SAFETY: a set of this function's, and the mask of the calling thread.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in 1..32 {
            libc::sigaddset(&mut set, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
    }
}
