//! The relay's thread: what it waits for, and whose turn it is.
//!
//! * [`processes`]: what the endpoint's processes say.
//! * [`trunks`]: connections to other relays, and what those say.

mod processes;
mod spin;
mod trunks;

use crate::counters::Counters;
use crate::device::Device;
use crate::device::cm::Cm;
use crate::process::Process;
use crate::stream::{Stream, Streams};
use crate::trunk::Trunk;
use crate::wire::Message;
use rdmesh_streams::ends::Ends;
use rdmesh_streams::inbox::Taken;
use rdmesh_streams::message::Message as Said;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The state of the thread.
pub(crate) struct Server {
    epoll: OwnedFd,
    listener: OwnedFd,
    /// Rung by processes while the relay sleeps.
    doorbell: OwnedFd,
    device: Device,
    cm: Cm,
    processes: HashMap<u64, Process>,
    next_process: u64,
    /// Descriptors that processes have sent, and that are kept.
    doorbells: usize,
    trunks: HashMap<u32, Trunk>,
    next_trunk: u32,
    streams: Streams,
    /// Streams that processes have told of; both are kept for their memory.
    told: Vec<u32>,
    taken: Taken,
    /// Streams of other relays that wait for a process's offer.
    asked: HashMap<Ends, Asked>,
    /// In the order of their times.
    unsettled: VecDeque<Unsettled>,
    /// Addresses without a relay, and the time until which that is taken for granted.
    unreachable: HashMap<IpAddr, Instant>,
    counters: Arc<Counters>,
}

/// A stream that another relay has asked for.
struct Asked {
    trunk: u32,
    remote: crate::stream::Remote,
    nonce: [u64; 2],
    process: u64,
    /// Index in the process.
    index: u32,
    until: Instant,
}

/// A stream that waits for the other end's word.
struct Unsettled {
    stream: u32,
    until: Instant,
}

/// Source of an event.
#[derive(Clone, Copy)]
enum Source {
    Listener,
    Doorbell,
    Stop,
    Completions,
    Connections,
    Process(u64),
}

impl Source {
    fn data(self) -> epoll::EventData {
        epoll::EventData::new_u64(match self {
            Self::Listener => 0,
            Self::Doorbell => 1,
            Self::Stop => 2,
            Self::Completions => 3,
            Self::Connections => 4,
            Self::Process(number) => number + PROCESSES,
        })
    }

    fn of(data: epoll::EventData) -> Self {
        match data.u64() {
            0 => Self::Listener,
            1 => Self::Doorbell,
            2 => Self::Stop,
            3 => Self::Completions,
            4 => Self::Connections,
            number => Self::Process(number - PROCESSES),
        }
    }
}

impl Server {
    /// A relay for the processes that connect to `listener`, by the device whose session socket is at `device`. It ends when `stop`
    /// is readable.
    pub(crate) fn new(
        listener: OwnedFd,
        device: &Path,
        stop: &OwnedFd,
        counters: Arc<Counters>,
    ) -> Result<Self, Errno> {
        let mut cm = Cm::open(device)?;
        let device = Device::open(device)?;
        // One of the two families may have no address here.
        let wildcards = [IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv6Addr::UNSPECIFIED)];
        let listening = wildcards.map(|address| cm.listen(SocketAddr::new(address, PORT)));
        if let [Err(errno), Err(_)] = listening {
            return Err(errno);
        }
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let sources = [
            (listener.as_fd(), Source::Listener),
            (doorbell.as_fd(), Source::Doorbell),
            (stop.as_fd(), Source::Stop),
            (device.channel(), Source::Completions),
            (cm.events(), Source::Connections),
        ];
        for (fd, source) in sources {
            epoll::add(&epoll, fd, source.data(), epoll::EventFlags::IN)?;
        }
        Ok(Self {
            epoll,
            listener,
            doorbell,
            device,
            cm,
            processes: HashMap::new(),
            next_process: 0,
            doorbells: 0,
            trunks: HashMap::new(),
            next_trunk: 0,
            streams: Streams::default(),
            told: Vec::new(),
            taken: Taken::default(),
            asked: HashMap::new(),
            unsettled: VecDeque::new(),
            unreachable: HashMap::new(),
            counters,
        })
    }

    /// Serves until it is told to stop, or its device has gone.
    pub(crate) fn run(mut self) -> Result<(), Errno> {
        let mut spin = spin::Spin::default();
        loop {
            if self.look() {
                spin.has_found();
            } else if spin.is_over() {
                self.fall_asleep();
                let limit = if self.has_work() { Some(Duration::ZERO) } else { self.limit() };
                let is_over = self.wait(limit);
                self.wake_up();
                if is_over? {
                    return Ok(());
                }
                self.say_whether_busy();
                spin = spin::Spin::default();
                continue;
            }
            // Sockets are looked at now and then while there is work.
            if spin.is_time_for_sockets() && self.wait(Some(Duration::ZERO))? {
                return Ok(());
            }
            self.say_whether_busy();
        }
    }

    /// Lets others know when the last process has ended and all that it has sent was delivered.
    fn say_whether_busy(&self) {
        if self.processes.is_empty() {
            self.counters.set_busy(!self.streams.is_empty() || self.trunks.values().any(Trunk::has_unsent));
        }
    }

    /// Looks at all shared memory once. Returns whether there was something.
    fn look(&mut self) -> bool {
        let mut has_some = false;
        while let Some(completion) = self.device.poll() {
            self.take_completion(&completion);
            has_some = true;
        }
        let mut told = std::mem::take(&mut self.told);
        for process in self.processes.values().filter(|process| process.place().has_any()) {
            process.place().take(&mut self.taken);
            told.extend(self.taken.drain());
        }
        has_some |= !told.is_empty();
        for index in told.drain(..) {
            if let Some(number) = self.streams.at(index).map(|stream| stream.number) {
                self.pump(number);
            }
        }
        self.told = told;
        self.trunks.values_mut().for_each(|trunk| trunk.ring(&self.device));
        has_some
    }

    fn has_work(&self) -> bool {
        self.device.has_completion() || self.processes.values().any(|process| process.place().has_any())
    }

    fn fall_asleep(&self) {
        self.processes.values().for_each(|process| process.place().fall_asleep());
        self.device.arm();
    }

    fn wake_up(&self) {
        self.processes.values().for_each(|process| process.place().wake_up());
    }

    /// Longest sleep.
    fn limit(&self) -> Option<Duration> {
        let asked = self.asked.values().map(|asked| asked.until).min();
        let unsettled = self.unsettled.front().map(|unsettled| unsettled.until);
        let next = asked.into_iter().chain(unsettled).min()?;
        Some(next.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
    }

    /// Waits for events, and handles them. Returns whether it is to stop.
    fn wait(&mut self, limit: Option<Duration>) -> Result<bool, Errno> {
        let limit =
            limit.map(|limit| Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() });
        let mut events = [MaybeUninit::uninit(); EVENTS];
        let events = match epoll::wait(&self.epoll, &mut events, limit.as_ref()) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return Ok(false),
            Err(errno) => return Err(errno),
        };
        for event in &*events {
            match Source::of(event.data) {
                Source::Listener => self.accept(),
                Source::Doorbell => {
                    let _ = rustix::io::read(&self.doorbell, &mut [0; 8]);
                }
                Source::Stop => return Ok(true),
                Source::Completions => {
                    let flags = event.flags;
                    if flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                        return Err(Errno::NODEV);
                    }
                    self.device.silence();
                }
                Source::Connections => {
                    while let Some((id, event)) = self.cm.event()? {
                        self.take_event(id, event);
                    }
                }
                Source::Process(number) => self.listen_to(number),
            }
        }
        self.forget_late();
        self.trunks.values_mut().for_each(|trunk| trunk.ring(&self.device));
        Ok(false)
    }

    /// Streams that no process has offered in time are refused, and those of which the other end says nothing go back to TCP.
    fn forget_late(&mut self) {
        if self.asked.is_empty() && self.unsettled.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some(unsettled) = self.unsettled.pop_front_if(|unsettled| unsettled.until <= now) {
            let Some(stream) = self.streams.get(unsettled.stream) else { continue };
            stream.has_limit = false;
            if stream.mirror.is_unsettled() {
                self.lose(unsettled.stream);
            }
        }
        let late: Vec<Ends> =
            self.asked.iter().filter(|(_, asked)| asked.until <= now).map(|(ends, _)| *ends).collect();
        late.into_iter().for_each(|ends| self.refuse_asked(&ends));
    }

    fn refuse_asked(&mut self, ends: &Ends) {
        if let Some(asked) = self.asked.remove(ends)
            && let Some(trunk) = self.trunks.get_mut(&asked.trunk)
        {
            trunk.send(&self.device, Message::Unknown { asked: asked.remote.stream });
        }
    }

    /// Hands what is new in a stream's slot to its trunk, and ends the stream where nothing more is to come.
    fn pump(&mut self, number: u32) {
        let Some(stream) = self.streams.get(number) else { return };
        let Some(trunk) = self.trunks.get_mut(&stream.trunk) else { return };
        let pumped = stream.pump(&self.device, trunk).map(|sent| self.counters.add_sent(sent as u64));
        // Its peer may have gone with nothing on its way that would come back: nobody else would notice.
        if stream.mirror.is_unsettled() && !stream.has_limit && stream.remote.is_some() {
            stream.has_limit = true;
            self.unsettled.push_back(Unsettled { stream: number, until: Instant::now() + SETTLED });
        }
        match pumped {
            Ok(()) if stream.remote.is_some() && stream.mirror.is_over() && !stream.is_ending => {
                let remote = stream.remote.expect("looked at above").stream;
                trunk.send(&self.device, Message::End { stream: remote });
                self.end(number);
            }
            Ok(()) => {}
            Err(_) => {
                tracing::debug!(stream = number, "a process has written wrong positions; its connection ends");
                self.lose(number);
            }
        }
    }

    /// The process's connection goes back to TCP, as far as it can. The other end is told that there is nothing more.
    fn lose(&mut self, number: u32) {
        let Some(stream) = self.streams.get(number) else { return };
        if stream.is_ending {
            // Its index may be another stream's in the process by now.
            return self.end(number);
        }
        let (index, process, remote, trunk) = (stream.index_in_process(), stream.process, stream.remote, stream.trunk);
        self.counters.add_lost();
        if let Some(process) = self.processes.get(&process) {
            process.say(Said::Lost { index });
        }
        if let (Some(remote), Some(trunk)) = (remote, self.trunks.get_mut(&trunk)) {
            trunk.send(&self.device, Message::End { stream: remote.stream });
        }
        self.end(number);
    }

    /// A stream goes as soon as none of its bytes is in flight.
    fn end(&mut self, number: u32) {
        let Some(stream) = self.streams.get(number) else { return };
        stream.is_ending = true;
        if stream.in_flight == 0
            && let Some(stream) = self.streams.remove(number)
        {
            // It has gone with the device, or goes with it.
            let _ = self.device.deregister(stream.region);
        }
    }

    /// Has `stream` as its stream with the number that was claimed for it.
    fn add_stream(&mut self, stream: Stream) {
        self.streams.add(stream);
    }
}

/// Port of relays in the rdma_cm port space of TCP: below those that programs take, and another one for each version of what relays and
/// the processes behind them say to each other. Those of different versions do not meet, and connections stay on TCP.
pub(crate) const PORT: u16 = 1 + rdmesh_streams::message::VERSION as u16;
/// Time for the other end to say that it knows of a move to the ring.
const SETTLED: Duration = Duration::from_secs(1);
const PROCESSES: u64 = 16;
const EVENTS: usize = 64;
