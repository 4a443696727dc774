//! The virtio-vsock device of a virtual machine, by vhost-user.

mod trial;

use super::memory::{GuestMemory, Region};
use super::session::Session;
use super::streams::{Event, Header, Op, StreamId, Streams};
use super::tree;
use crate::closing::is_closed_by;
use crate::wire::{Frames, HOST_CID, Kind, PORT, PRIVILEGED, Purpose, frame};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use vhost::vhost_user::Listener;
use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost_user_backend::{VhostUserBackend, VhostUserDaemon, VringRwLock, VringT};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_queue::{QueueOwnedT, QueueT};
use virtio_vsock::packet::VsockPacket;
use vm_memory::{
    Bytes, GuestAddressSpace, GuestMemoryAtomic, GuestMemoryBackend as _, GuestMemoryMmap, GuestMemoryRegion,
};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier};

#[doc(hidden)]
pub use trial::Trial;

/// A device that waits for its virtual machine.
pub struct Device {
    listener: Listener,
    backend: Arc<Backend>,
}

/// The device cannot be offered, or has failed.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// Its socket, or another resource, cannot be had.
    #[error("the device's socket {}: {source}", .path.display())]
    #[allow(missing_docs, reason = "the text says what each is")]
    Socket { path: PathBuf, source: vhost::vhost_user::Error },
    /// A system call failed that offers or serves the device.
    #[error(transparent)]
    Os(#[from] io::Error),
    /// The machine monitor and this process do not understand each other.
    #[error("the virtual machine's monitor: {0}")]
    Monitor(String),
}

impl Device {
    /// Offers the device of the endpoint in `directory` at the socket `path`; the guest has `cid` as its context identifier.
    pub fn bind(path: &Path, cid: u32, directory: &Path) -> Result<Self, DeviceError> {
        let listener =
            Listener::new(path, true).map_err(|source| DeviceError::Socket { path: path.to_owned(), source })?;
        Ok(Self { listener, backend: Arc::new(Backend(Mutex::new(State::new(cid, directory)?))) })
    }

    /// Serves the virtual machine that connects first, until it is gone.
    pub fn serve(mut self) -> Result<(), DeviceError> {
        let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
        let monitor = |error: vhost_user_backend::Error| DeviceError::Monitor(error.to_string());
        let mut daemon = VhostUserDaemon::new("rdmesh-vm".into(), self.backend.clone(), memory).map_err(monitor)?;
        let epoll = self.backend.lock().epoll.as_raw_fd();
        for handler in daemon.get_epoll_handlers() {
            handler.register_listener(epoll, EventSet::IN, SESSIONS.into())?;
        }
        daemon.start(&mut self.listener).map_err(monitor)?;
        let ended = daemon.wait();
        self.backend.lock().close_all();
        match ended {
            Ok(())
            | Err(vhost_user_backend::Error::HandleRequest(
                vhost::vhost_user::Error::Disconnected | vhost::vhost_user::Error::PartialMessage,
            )) => Ok(()),
            Err(error) => Err(monitor(error)),
        }
    }
}

struct Backend(Mutex<State>);

struct State {
    cid: u32,
    directory: PathBuf,
    /// Known to the guest's agent, which lets programs in.
    token: [u8; 16],
    memory: Option<GuestMemoryAtomic<GuestMemoryMmap>>,
    table: Option<GuestMemory>,
    streams: Streams,
    connections: HashMap<StreamId, Connection>,
    /// Names of the connections in the set of watched descriptors.
    numbers: BTreeMap<u64, StreamId>,
    next_number: u64,
    epoll: OwnedFd,
    /// Bytes of frames that are not whole yet, of all connections.
    held: usize,
    /// Reasons that have been given for closing connections.
    complaints: HashSet<String>,
}

struct Connection {
    frames: Frames,
    number: u64,
    peer: Peer,
    /// Slots of its session that are watched.
    watched: usize,
}

/// The other end of a connection.
enum Peer {
    /// It has not said yet.
    Unknown,
    Agent,
    Program(Session),
}

impl Backend {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl VhostUserBackend for Backend {
    type Bitmap = ();
    type Vring = VringRwLock;

    fn num_queues(&self) -> usize {
        QUEUES
    }

    fn max_queue_size(&self) -> usize {
        1024
    }

    fn features(&self) -> u64 {
        1 << VIRTIO_F_VERSION_1 | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
    }

    fn set_event_idx(&self, _enabled: bool) {}

    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let config = u64::from(self.lock().cid).to_le_bytes();
        let end = offset.saturating_add(size) as usize;
        config.get(offset as usize..end).unwrap_or_default().to_vec()
    }

    fn update_memory(&self, memory: GuestMemoryAtomic<GuestMemoryMmap>) -> io::Result<()> {
        let table = memory_table(&memory.memory());
        let mut state = self.lock();
        (state.memory, state.table) = (Some(memory), table);
        Ok(())
    }

    fn exit_event(&self, _thread_index: usize) -> Option<(EventConsumer, EventNotifier)> {
        new_event_consumer_and_notifier(EventFlag::NONBLOCK | EventFlag::CLOEXEC).ok()
    }

    /// The guest's driver is reset, or the guest itself: what it had registered may be something else's memory the next moment.
    fn stop_vring(&self, _queue: u32) -> io::Result<()> {
        self.lock().close_all();
        Ok(())
    }

    fn handle_event(&self, event: u16, _events: EventSet, vrings: &[VringRwLock], _thread: usize) -> io::Result<()> {
        let [incoming, outgoing, ..] = vrings else { return Ok(()) };
        let mut state = self.lock();
        if state.memory.is_none() {
            return Ok(());
        }
        match event {
            TO_HOST => state.take_packets(outgoing),
            SESSIONS => state.serve_sessions(),
            _ => {}
        }
        state.give_packets(incoming);
        Ok(())
    }
}

/// The memory table, by file offsets.
fn memory_table(memory: &GuestMemoryMmap) -> Option<GuestMemory> {
    let regions = memory.iter().filter_map(|region| {
        let file = region.file_offset()?;
        let offset = file.start();
        Some((Region { address: region.start_addr().0, len: region.len(), offset }, file.file().as_fd()))
    });
    GuestMemory::new(regions)
}

impl State {
    fn new(cid: u32, directory: &Path) -> io::Result<Self> {
        let mut token = [0; 16];
        getrandom(&mut token, GetRandomFlags::empty())?;
        Ok(Self {
            cid,
            directory: directory.to_owned(),
            token,
            memory: None,
            table: None,
            streams: Streams::new(PORT, MOST_STREAMS),
            connections: HashMap::new(),
            numbers: BTreeMap::new(),
            next_number: 0,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            held: 0,
            complaints: HashSet::new(),
        })
    }

    /// Takes the packets that the guest has sent.
    fn take_packets(&mut self, vring: &VringRwLock) {
        let Some(memory) = self.memory.as_ref().map(GuestAddressSpace::memory) else { return };
        let mut is_used = false;
        loop {
            let chain = vring.get_mut().get_queue_mut().pop_descriptor_chain(memory.clone());
            let Some(mut chain) = chain else { break };
            let head = chain.head_index();
            let mut data = Vec::new();
            let packet = VsockPacket::from_tx_virtq_chain(&*memory, &mut chain, MAX_DATA).ok();
            let header = packet.as_ref().and_then(|packet| {
                if let Some(slice) = packet.data_slice() {
                    data = vec![0; slice.len()];
                    slice.read_slice(&mut data, 0).ok()?;
                }
                let is_meant = packet.type_() == STREAM
                    && packet.src_cid() == u64::from(self.cid)
                    && packet.dst_cid() == u64::from(HOST_CID);
                is_meant.then_some(Header {
                    stream: StreamId { guest: packet.src_port(), host: packet.dst_port() },
                    op: Op::from_number(packet.op())?,
                    flags: packet.flags(),
                    buf_alloc: packet.buf_alloc(),
                    fwd_cnt: packet.fwd_cnt(),
                })
            });
            is_used |= vring.add_used(head, 0).is_ok();
            if let Some(header) = header {
                let event = self.streams.handle(&header, data.len());
                event.into_iter().for_each(|event| self.on_event(&event, &data));
            }
        }
        notify(vring, is_used);
    }

    /// Gives the guest packets, as far as it has room.
    fn give_packets(&mut self, vring: &VringRwLock) {
        let Some(memory) = self.memory.as_ref().map(GuestAddressSpace::memory) else { return };
        let (mut is_used, mut data) = (false, Vec::new());
        while self.streams.has_packet() {
            let chain = vring.get_mut().get_queue_mut().pop_descriptor_chain(memory.clone());
            let Some(mut chain) = chain else { break };
            let head = chain.head_index();
            let Ok(mut packet) = VsockPacket::from_rx_virtq_chain(&*memory, &mut chain, MAX_DATA) else {
                is_used |= vring.add_used(head, 0).is_ok();
                continue;
            };
            let room = packet.data_slice().map_or(0, |slice| slice.len());
            let Some(header) = self.streams.poll_packet(room, &mut data) else {
                vring.get_mut().get_queue_mut().go_to_previous_position();
                break;
            };
            let raw = raw_header(&header, self.cid, data.len());
            let written = packet.set_header_from_raw(&raw).is_ok()
                && packet.data_slice().is_none_or(|slice| slice.write_slice(&data, 0).is_ok());
            let len = if written { (raw.len() + data.len()) as u32 } else { 0 };
            is_used |= vring.add_used(head, len).is_ok();
        }
        notify(vring, is_used);
    }

    fn on_event(&mut self, event: &Event, data: &[u8]) {
        match *event {
            Event::Opened(id) => {
                let number = self.next_number;
                self.next_number += 1;
                self.numbers.insert(number, id);
                let connection = Connection { frames: Frames::default(), number, peer: Peer::Unknown, watched: 0 };
                self.connections.insert(id, connection);
            }
            Event::Bytes(id) => self.on_bytes(id, data),
            Event::Finished(id) => match self.connections.get(&id).map(|connection| &connection.peer) {
                // Its end is told to the guest when the router has closed the connection.
                Some(Peer::Program(session)) => session.finish(),
                _ => self.close(id),
            },
            Event::Closed(id) => self.forget(id),
        }
    }

    fn on_bytes(&mut self, id: StreamId, data: &[u8]) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let before = connection.frames.held();
        connection.frames.push(data);
        let result = self.take_frames(id);
        let held = self.connections.get(&id).map_or(0, |connection| connection.frames.held());
        self.held = (self.held + held).saturating_sub(before);
        if let Err(reason) = result {
            self.complain(&reason);
            self.close(id);
        } else if self.held > MOST_HELD {
            self.complain("too much is sent at once");
            self.close(id);
        }
    }

    fn take_frames(&mut self, id: StreamId) -> Result<(), String> {
        loop {
            let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
            match &mut connection.peer {
                Peer::Unknown => {
                    let Some(hello) = connection.frames.take_hello().map_err(|error| error.to_string())? else {
                        return Ok(());
                    };
                    match hello.purpose() {
                        Some(Purpose::Agent) => self.greet_agent(id)?,
                        Some(Purpose::Program) if hello.token == self.token => self.admit_program(id)?,
                        _ => return Err("it has not come by the guest's agent".into()),
                    }
                }
                Peer::Agent => {
                    let next = connection.frames.take().map_err(|error| error.to_string())?;
                    return if next.is_some() { Err("its agent sends what nobody asked for".into()) } else { Ok(()) };
                }
                Peer::Program(session) => {
                    let next = connection.frames.take().map_err(|error| error.to_string())?;
                    let Some((kind, payload)) = next else { return Ok(()) };
                    let table = self.table.as_ref().ok_or("its memory is not shared")?;
                    let answer = session.handle_frame(kind, &payload, table).map_err(|error| error.to_string())?;
                    self.streams.send(id, &answer);
                }
            }
        }
    }

    /// An agent, which only a privileged process of the guest can be, is sent the token and the directory.
    fn greet_agent(&mut self, id: StreamId) -> Result<(), String> {
        if id.guest >= PRIVILEGED {
            return Err("an agent whose port is not privileged".into());
        }
        if self.table.is_none() {
            return Err(
                "the virtual machine's memory is not shared: give it `-object memory-backend-memfd,share=on`".into()
            );
        }
        let before = self.connections.iter().find(|(_, other)| matches!(other.peer, Peer::Agent)).map(|(id, _)| *id);
        before.into_iter().for_each(|before| self.close(before));
        let entries = tree::frames(&self.directory).map_err(|error| format!("the endpoint's directory: {error}"))?;
        self.streams.send(id, &frame(Kind::Welcome, &[&self.token]));
        entries.iter().for_each(|entry| self.streams.send(id, entry));
        self.streams.send(id, &frame(Kind::Ready, &[]));
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.peer = Peer::Agent;
        }
        Ok(())
    }

    fn admit_program(&mut self, id: StreamId) -> Result<(), String> {
        let session = Session::connect(&self.directory).map_err(|errno| format!("the router: {errno}"))?;
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let watched = Watch { number: connection.number, slot: 0 }.add(&self.epoll, session.router());
        connection.peer = Peer::Program(session);
        watched.map_err(|errno| errno.to_string())
    }

    /// Serves the descriptors of sessions that are ready.
    fn serve_sessions(&mut self) {
        let mut events = Vec::with_capacity(64);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&now)).is_err() {
            return;
        }
        for event in events {
            let Watch { number, slot } = Watch::from_bits(event.data.u64());
            if let Some(id) = self.numbers.get(&number).copied()
                && let Err(reason) = self.serve_session(id, slot as usize)
            {
                reason.iter().for_each(|reason| self.complain(reason));
                self.close(id);
            }
        }
    }

    /// An error ends the session; without a reason where the router has closed it.
    fn serve_session(&mut self, id: StreamId, slot: usize) -> Result<(), Option<String>> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let (Peer::Program(session), Some(table)) = (&mut connection.peer, &self.table) else { return Ok(()) };
        let frames = match slot.checked_sub(1) {
            None => session.handle_router(table),
            Some(slot) => session.handle_watched(slot),
        };
        let frames = frames.map_err(|error| match error {
            super::session::SessionError::Closed => None,
            other => Some(other.to_string()),
        })?;
        for fd in session.watched(connection.watched) {
            connection.watched += 1;
            let watch = Watch { number: connection.number, slot: connection.watched as u64 };
            watch.add(&self.epoll, fd).map_err(|errno| Some(errno.to_string()))?;
        }
        self.streams.send(id, &frames);
        if self.streams.unsent(id) > MOST_UNSENT { Err(Some("its events are not read".into())) } else { Ok(()) }
    }

    /// Says why a connection of the guest's is closed: once for each reason, and not for more than a few.
    fn complain(&mut self, reason: &str) {
        if self.complaints.len() < MOST_COMPLAINTS && self.complaints.insert(reason.to_owned()) {
            eprintln!("rdmesh vm: a connection of the guest's is closed: {reason}");
        }
    }

    fn close(&mut self, id: StreamId) {
        self.streams.reset(id);
        self.forget(id);
    }

    /// The stream is gone; its session's descriptors go with it, from the set of those that are watched, too.
    fn forget(&mut self, id: StreamId) {
        if let Some(connection) = self.connections.remove(&id) {
            self.numbers.remove(&connection.number);
            self.held = self.held.saturating_sub(connection.frames.held());
        }
    }

    /// Ends everything, and waits until the router no longer touches the guest's memory.
    fn close_all(&mut self) {
        let sessions: Vec<Session> = self
            .connections
            .drain()
            .filter_map(
                |(_, connection)| if let Peer::Program(session) = connection.peer { Some(session) } else { None },
            )
            .collect();
        sessions.iter().for_each(Session::finish);
        let deadline = Instant::now() + QUIESCENCE;
        let is_quiet = sessions.iter().all(|session| is_closed_by(session.router(), deadline));
        if !is_quiet {
            eprintln!(
                "rdmesh vm: the router does not close the guest's devices; it may still write to the guest's memory"
            );
        }
        self.numbers.clear();
        self.held = 0;
        self.streams = Streams::new(PORT, MOST_STREAMS);
    }
}

/// Name of a descriptor in the set of those that are watched.
#[derive(Clone, Copy)]
struct Watch {
    /// Of its connection.
    number: u64,
    /// 0 for the connection to the router, else one more than its place among the session's descriptors.
    slot: u64,
}

impl Watch {
    fn from_bits(bits: u64) -> Self {
        Self { number: bits >> SLOT_BITS, slot: bits & ((1 << SLOT_BITS) - 1) }
    }

    fn add(self, epoll: &OwnedFd, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        // Level-triggered would spin on an rdma_cm channel, whose bytes stay until the program has taken its events.
        let flags = if self.slot == 0 { epoll::EventFlags::IN } else { epoll::EventFlags::IN | epoll::EventFlags::ET };
        epoll::add(epoll, fd, epoll::EventData::new_u64(self.number << SLOT_BITS | self.slot), flags)
    }
}

fn notify(vring: &VringRwLock, is_used: bool) {
    if is_used && vring.needs_notification().unwrap_or(true) {
        // A guest that cannot be told looks for itself, or has gone.
        let _ = vring.signal_used_queue();
    }
}

/// `struct virtio_vsock_hdr`.
fn raw_header(header: &Header, cid: u32, len: usize) -> [u8; 44] {
    let mut raw = [0; 44];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        raw[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(&u64::from(HOST_CID).to_le_bytes());
    put(&u64::from(cid).to_le_bytes());
    put(&header.stream.host.to_le_bytes());
    put(&header.stream.guest.to_le_bytes());
    put(&(len as u32).to_le_bytes());
    put(&STREAM.to_le_bytes());
    put(&(header.op as u16).to_le_bytes());
    put(&header.flags.to_le_bytes());
    put(&header.buf_alloc.to_le_bytes());
    put(&header.fwd_cnt.to_le_bytes());
    raw
}

/// Queues of the device: to the guest, to the host, and events, of which there are none.
const QUEUES: usize = 3;
const TO_HOST: u16 = 1;
/// Event of the set of the sessions' descriptors: above the queues, and the library's own.
const SESSIONS: u16 = QUEUES as u16 + 1;
/// `VIRTIO_VSOCK_TYPE_STREAM`.
const STREAM: u16 = 1;
/// Bytes of data in one packet that Linux sends at most.
const MAX_DATA: u32 = 64 << 10;
/// Connections of one guest.
const MOST_STREAMS: usize = 1024;
/// Bytes of frames that are not whole, of all connections.
const MOST_HELD: usize = 64 << 20;
/// Bytes that a guest leaves unread on one connection, besides an endpoint's directory.
const MOST_UNSENT: usize = 4 << 20;
/// Time for the router to close a guest's devices.
const QUIESCENCE: Duration = Duration::from_secs(5);
const MOST_COMPLAINTS: usize = 32;
const SLOT_BITS: u32 = 24;
