//! The helper: a thread that hears what comes from the launcher, and makes announced messages progress while the program is
//! elsewhere: in a collective operation of MPI, or not in MPI at all (MPI 4.1, 3.5: progress). It never calls MPI.
#![allow(unsafe_code)]

use crate::control::Frame;
use crate::job::are_none_pending;
use crate::rank::Rank;
use crate::verbs::Events;
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
/// Looks in a row that find nothing pending, after which it sleeps until it is woken: a program that sends one small message after
/// the other need not wake it for each.
const IDLE_LOOKS: u32 = 50;

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
        let mut sources = Sources { launcher: Some(BufReader::new(launcher)), device: Some(rank.job().events()) };
        let (mut tick, mut idle_looks) = (SHORT, 0);
        loop {
            let may_sleep = idle_looks >= IDLE_LOOKS;
            self.is_asleep.store(may_sleep, Ordering::SeqCst);
            let woken = self.rest(&sources, may_sleep && are_none_pending(), tick);
            if self.is_ended.load(Ordering::SeqCst) {
                return;
            }
            match woken {
                Woken::Frame => sources.hear_launcher(rank),
                Woken::Device => sources.hear_device(rank),
                Woken::Bell | Woken::Time => {}
            }
            idle_looks = idle_looks.saturating_add(1);
            if !are_none_pending() {
                idle_looks = 0;
                let mut job = rank.job();
                job.progress();
                job.watch();
            }
            tick = if let Woken::Time = woken { LONG.min(tick * 2) } else { SHORT };
        }
    }

    /// Waits for a frame, for the device, for the bell, or for `tick` where operations are pending.
    fn rest(&self, sources: &Sources, is_idle: bool, tick: Duration) -> Woken {
        if sources.launcher.as_ref().is_some_and(|frames| !frames.buffer().is_empty()) {
            return Woken::Frame;
        }
        let mut fds: ArrayVec<(PollFd<'_>, Woken), 3> = ArrayVec::new();
        fds.push((PollFd::new(&self.bell, PollFlags::IN), Woken::Bell));
        fds.extend(sources.launcher.iter().map(|frames| (PollFd::new(frames.get_ref(), PollFlags::IN), Woken::Frame)));
        fds.extend(sources.device.iter().map(|device| (PollFd::new(device, PollFlags::IN), Woken::Device)));
        let (mut polled, kinds): (ArrayVec<_, 3>, ArrayVec<_, 3>) = fds.into_iter().unzip();
        let _ = poll(&mut polled, limit(is_idle, tick).as_ref());
        self.is_asleep.store(false, Ordering::SeqCst);
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        // The bell is the first, and the least of them.
        let ready = polled.iter().zip(kinds).rfind(|(fd, _)| !fd.revents().is_empty());
        ready.map_or(Woken::Time, |(_, kind)| kind)
    }
}

/// From where the helper hears, as long as there is something to be heard.
struct Sources {
    launcher: Option<BufReader<TcpStream>>,
    device: Option<Events>,
}

impl Sources {
    fn hear_launcher(&mut self, rank: &Rank) {
        match self.launcher.as_mut().map(Frame::read) {
            Some(Ok(frame)) => rank.job().on_frame(&frame),
            // Messages go on; no new rank is met.
            Some(Err(_)) => {
                self.launcher = None;
                rank.job().on_launcher_lost();
            }
            None => {}
        }
    }

    fn hear_device(&mut self, rank: &Rank) {
        if self.device.as_ref().is_some_and(Events::is_device_gone) {
            self.device = None;
            rank.job().on_device_lost();
        }
    }
}

/// Cause of the end of a rest.
#[derive(Clone, Copy)]
enum Woken {
    Frame,
    Device,
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
