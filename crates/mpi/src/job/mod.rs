//! A rank's part of a job: the device, the other ranks, and the messages that are under way.
//!
//! * [`datatype`], [`communicators`]: what MPI's handles stand for.
//! * [`peers`]: connections to other ranks; [`sends`]: announced messages; [`pulls`]: messages that are being read.
//! * [`operations`]: the program's pending requests, [`persistent`] sends among them; [`ranges`]: their buffers; [`staging`]: memory in their place; [`stash`]: messages that a probe has looked into; [`delivery`]: how both get into
//!   the program's buffers.
//!
//! One lock guards all of it. No call to MPI under it waits for another rank.

mod communicators;
mod datatype;
mod delivery;
mod operations;
mod peers;
mod persistent;
mod pulls;
mod ranges;
mod sends;
mod staging;
mod stash;

pub(crate) use datatype::Buffer;
pub(crate) use delivery::{Delivery, Outcome, Posted};
pub(crate) use operations::{are_none_known, are_none_pending};
pub(crate) use persistent::PersistentSend;
pub(crate) use stash::{Pattern, Stash, Stashed};

use crate::abi::{Handle, Status};
use crate::cache::{COPIED, Cache};
use crate::control::{Control, Frame, Kind, Ready, Secret, Site, Start, Thresholds, World};
use crate::library::Library;
use crate::report::{Report, Way};
use crate::settings::Settings;
use crate::verbs::{Device, Events};
use communicators::Communicators;
use operations::Operations;
use peers::{Link, Peers};
use pulls::{Pulls, Ways};
use ranges::Ranges;
use sends::{Outgoing, Sends};
use staging::Staging;
use std::collections::VecDeque;
use std::net::TcpStream;

/// This rank among the others.
pub(crate) struct Job {
    library: &'static Library,
    rank: u32,
    secret: Secret,
    device: Device,
    cache: Cache,
    control: Control,
    peers: Peers,
    communicators: Communicators,
    sends: Sends,
    pulls: Pulls,
    operations: Operations,
    ranges: Ranges,
    stash: Stash,
    staging: Staging,
    report: Report,
    /// Shortest messages that are announced.
    thresholds: Thresholds,
    orders: VecDeque<Order>,
    /// How far all ranks have come in leaving; none before the launcher has said so.
    leaving: Option<u8>,
}

/// How far a rank has come in leaving its job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Leaving {
    /// The program has ended its use of MPI, and nobody waits for a message of this rank.
    Done = 1,
    /// It calls MPI no more before `MPI_Finalize`.
    Silent = 2,
}

/// Order of the launcher to a rank in `MPI_Init`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// To measure with another rank; the first of both decides.
    Measure { with: u32, is_first: bool },
    /// To go on.
    GoOn(Start),
}

/// A message that the program sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) buffer: Buffer,
    pub(crate) dest: i32,
    pub(crate) tag: i32,
    pub(crate) comm: Handle,
    /// Complete only when it was received (`MPI_Ssend`).
    pub(crate) is_synchronous: bool,
}

impl Job {
    /// Opens the device and joins the job as `rank`; also what the launcher sends. The error says why not.
    pub(crate) fn join(settings: &Settings, library: &'static Library, rank: u32) -> Result<(Self, TcpStream), String> {
        let job = settings.job.as_ref().ok_or("not started under `rdmesh mpi`")?;
        let device = Device::open(settings.device.as_deref()).map_err(|reason| reason.to_string())?;
        let refused = |error| format!("{} refuses to register memory: {error}", device.name());
        let (sends, pulls) = (Sends::new(&device).map_err(refused)?, Pulls::new(&device).map_err(refused)?);
        // Worlds that are started one after the other, or beside each other, are told apart where the MPI tells.
        let world = std::env::var("PMIX_NAMESPACE").unwrap_or_default();
        let unreachable = |error| format!("cannot reach the launcher `rdmesh mpi`: {error}");
        let mut size = 0;
        library.comm_size(library.abi.named.comm_world, &mut size);
        let world = World { name: &world, size: size.unsigned_abs() };
        let control = Control::join(job, rank, world).map_err(unreachable)?;
        let reader = control.reader().map_err(unreachable)?;
        let cache = Cache::new(settings.cache);
        let joined = Self {
            library,
            rank,
            secret: job.secret,
            device,
            cache,
            control,
            peers: Peers::new(Site::own()),
            communicators: Communicators::default(),
            sends,
            pulls,
            operations: Operations::default(),
            ranges: Ranges::default(),
            stash: Stash::default(),
            staging: Staging::default(),
            report: Report::of_one_rank(),
            thresholds: Thresholds::all(settings.threshold.unwrap_or(0)),
            orders: VecDeque::new(),
            leaving: None,
        };
        Ok((joined, reader))
    }

    /// A slot with an announcement of the message; none where it goes MPI's own way.
    pub(crate) fn announce(&mut self, message: &Message, len: u64) -> Option<usize> {
        match self.try_announce(message, len) {
            Ok(slot) => {
                self.report.sent(Way::Rdma, len);
                Some(slot)
            }
            Err(way) => {
                self.report.sent(way, len);
                None
            }
        }
    }

    fn try_announce(&mut self, message: &Message, len: u64) -> Result<usize, Way> {
        let rank = self.communicators.world_rank(message.comm, message.dest, self.library).ok_or(Way::Peer)?;
        if rank == self.rank {
            return Err(Way::Near);
        }
        let is_same_machine = self.peers.reach(rank, &self.device, &mut self.control)?;
        if len < self.thresholds.of(is_same_machine) {
            return Err(Way::Small);
        }
        if !message.buffer.is_in_one_piece(self.library) {
            return Err(Way::Pieces);
        }
        let address = message.buffer.address;
        let bytes = usize::try_from(len).map_err(|_| Way::Memory)?;
        let region = self.cache.region_or_copy(&self.device, address, bytes);
        if region.is_none() && bytes > COPIED {
            return Err(Way::Memory);
        }
        if region.is_none() && !self.sends.can_copy() {
            return Err(Way::Busy);
        }
        let outgoing = Outgoing { to: rank, address, len, region };
        self.sends.announce(outgoing, self.rank, self.secret).ok_or(Way::Busy)
    }

    /// Address of the announcement in a slot.
    pub(crate) fn announcement(&self, slot: usize) -> usize {
        self.sends.message(slot)
    }

    /// Whether the send in a slot is complete; the slot is free then, or is freed later. One that is not synchronous is complete
    /// when its data was copied.
    pub(crate) fn is_sent(&mut self, slot: usize, is_synchronous: bool) -> bool {
        let is_done = self.sends.is_done(slot);
        let is_left = !is_done && !is_synchronous && self.sends.is_copied(slot);
        if is_done {
            self.sends.end(slot);
        }
        if is_left {
            self.sends.leave(slot);
        }
        is_done || is_left
    }

    /// The announcement in a slot could not be sent.
    pub(crate) fn withdraw(&mut self, slot: usize) {
        self.sends.end(slot);
    }

    /// Whether a rank of a communicator is one of this world.
    pub(crate) fn is_of_world(&mut self, comm: Handle, rank: i32) -> bool {
        self.communicators.world_rank(comm, rank, self.library).is_some()
    }

    /// The communicator's handle will mean another one.
    pub(crate) fn forget(&mut self, comm: Handle) {
        self.communicators.forget(comm);
    }

    /// Takes completions, and posts what waits.
    pub(crate) fn progress(&mut self) {
        if self.pulls.is_idle() && self.peers.posted() == 0 {
            return;
        }
        let Self { device, pulls, peers, control, .. } = self;
        device.poll(|completion| pulls.on_completion(completion, &mut Roads { peers, control }));
        pulls.advance_all(&mut Roads { peers, control });
    }

    /// Receives the next message that matches, which may be an announcement: what it is, a probe must say. The next receive
    /// that matches gets it.
    pub(crate) fn look_into(&mut self, pattern: &Pattern) {
        let (mut message, mut flag, mut status) = (0_u64, 0, Status::new());
        let at = (&raw mut message).cast();
        let Pattern { source, tag, comm } = *pattern;
        let code = self.library.improbe(source, tag, comm, &mut flag, at, status.as_mut_ptr());
        if code == 0
            && flag != 0
            && let Some(stashed) = self.take_matched(at, comm, &mut status)
        {
            self.stash.add(stashed);
        }
    }

    /// Receives a message that a matched probe has found, with the probe's status.
    pub(crate) fn take_matched(
        &mut self,
        message: *mut libc::c_void,
        comm: Handle,
        status: &mut Status,
    ) -> Option<Stashed> {
        let (library, byte, mut count) = (self.library, self.library.abi.named.byte, 0);
        library.get_count(status.as_mut_ptr(), byte, &mut count);
        let mut data = vec![0_u8; usize::try_from(count).ok()?];
        if library.mrecv(data.as_mut_ptr().cast(), count, byte, message, status.as_mut_ptr()) != 0 {
            return None;
        }
        let announced = self.parse(&data, comm, status).map(|announcement| announcement.len);
        let len = announced.unwrap_or(data.len() as u64);
        library.status_set_elements(status.as_mut_ptr(), byte, len as isize);
        Some(Stashed { comm, status: *status, data })
    }

    /// The messages that were looked into.
    pub(crate) fn stash(&mut self) -> &mut Stash {
        &mut self.stash
    }

    /// A frame from the launcher, or by it from another rank.
    pub(crate) fn on_frame(&mut self, frame: &Frame) {
        let Self { device, pulls, peers, control, sends, report, orders, leaving, .. } = self;
        let Frame { kind, rank, ref body } = *frame;
        let words = body.as_chunks::<8>().0;
        let word = |at: usize| words.get(at).map_or(0, |&word| u64::from_le_bytes(word));
        match kind {
            Kind::Hello => peers.on_hello(rank, body, device, control),
            Kind::Welcome => peers.on_welcome(rank, body),
            Kind::Refuse | Kind::Absent => peers.on_refusal(rank, kind, body),
            Kind::Broken => pulls.fail(rank, &mut Roads { peers, control }),
            Kind::Give => {
                let part = sends.part(word(0), rank, word(1), word(2).min(1 << 16)).unwrap_or_default();
                let body = [&word(0).to_le_bytes()[..], &part].concat();
                let _ = control.send(Kind::Part, rank, body);
            }
            Kind::Part => {
                let data = body.get(size_of::<u64>()..).unwrap_or_default();
                if let Some(len) = pulls.on_part(rank, word(0), data, &mut Roads { peers, control }) {
                    report.repaired.count(len);
                }
            }
            Kind::Done => sends.complete(word(0), rank),
            Kind::Leaving => *leaving = body.first().copied().max(*leaving),
            Kind::Measure => orders.push_back(Order::Measure { with: rank, is_first: body.first() == Some(&1) }),
            Kind::Start => orders.push_back(Order::GoOn(Start::parse(body))),
            Kind::Join | Kind::Report | Kind::Ready | Kind::Measured => {}
        }
    }

    /// Whether nothing is under way that another rank waits for.
    pub(crate) fn is_quiet(&mut self) -> bool {
        self.sends.sweep();
        self.sends.is_swept() && self.pulls.is_idle() && self.peers.posted() == 0
    }

    /// Tells the launcher that this rank waits for all others; or, without words, that it does so no longer.
    pub(crate) fn be_ready(&mut self, ready: Option<Ready>) {
        let body = ready.map(Ready::to_bytes).unwrap_or_default();
        if self.control.send(Kind::Ready, 0, body).is_err() {
            self.on_launcher_lost();
        }
    }

    /// Tells the launcher of a threshold that was measured.
    pub(crate) fn tell_measured(&mut self, threshold: u64) {
        let _ = self.control.send(Kind::Measured, 0, threshold.to_le_bytes().to_vec());
    }

    /// Oldest order of the launcher that was not taken yet.
    pub(crate) fn next_order(&mut self) -> Option<Order> {
        self.orders.pop_front()
    }

    /// Whether a message to a rank of the world may be announced; asks for a connection where there is none.
    pub(crate) fn reach(&mut self, rank: u32) -> Result<(), Way> {
        self.peers.reach(rank, &self.device, &mut self.control).map(|_| ())
    }

    /// Announces messages of these lengths from now on. What was counted before is forgotten: it was no message of the program.
    pub(crate) fn set_thresholds(&mut self, thresholds: Thresholds) {
        self.thresholds = thresholds;
        self.report = Report::of_one_rank();
        self.cache.forget_counts();
    }

    /// Tells the launcher how the messages went, with those that were too short to be looked at.
    pub(crate) fn say_goodbye(&mut self, small: crate::report::Traffic) {
        (self.report.cache_hits, self.report.cache_misses) = self.cache.counts();
        self.report.small(small);
        let _ = self.control.send(Kind::Report, 0, self.report.to_bytes());
    }

    /// Tells the other ranks how far this one has come in leaving.
    pub(crate) fn leave(&mut self, stage: Leaving) {
        if self.control.send(Kind::Leaving, 0, vec![stage as u8]).is_err() {
            self.on_launcher_lost();
        }
    }

    /// Whether the launcher has answered.
    pub(crate) fn is_answered(&self) -> bool {
        self.leaving.is_some()
    }

    /// Whether all ranks have come so far.
    pub(crate) fn have_all(&self, stage: Leaving) -> bool {
        self.leaving >= Some(stage as u8)
    }

    /// The device is gone: what was announced is repaired, and other messages go MPI's own way.
    pub(crate) fn on_device_lost(&mut self) {
        let Self { pulls, peers, control, .. } = self;
        for rank in peers.linked() {
            pulls.fail(rank, &mut Roads { peers, control });
        }
    }

    /// What the device tells.
    pub(crate) fn events(&self) -> Events {
        self.device.events()
    }

    /// Nobody is waited for any more.
    pub(crate) fn on_launcher_lost(&mut self) {
        self.orders.push_back(Order::GoOn(Start::default()));
        self.leaving = Some(u8::MAX);
    }

    fn with_ways<T>(&mut self, act: impl FnOnce(&mut Pulls, &mut Roads<'_>) -> T) -> T {
        let Self { pulls, peers, control, .. } = self;
        act(pulls, &mut Roads { peers, control })
    }
}

/// Connections, and the launcher.
struct Roads<'a> {
    peers: &'a mut Peers,
    control: &'a mut Control,
}

impl Ways for Roads<'_> {
    fn link(&mut self, rank: u32) -> Option<&mut Link> {
        self.peers.link(rank)
    }

    fn is_asked(&self, rank: u32) -> bool {
        self.peers.is_asked(rank)
    }

    fn give_up(&mut self, rank: u32) {
        if self.peers.give_up(rank) {
            let _ = self.control.send(Kind::Broken, rank, Vec::new());
        }
    }

    fn send(&mut self, kind: Kind, rank: u32, body: Vec<u8>) -> bool {
        self.control.send(kind, rank, body).is_ok()
    }
}
