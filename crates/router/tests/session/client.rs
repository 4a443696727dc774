//! Session client: a program's side of a session, without the preload library.

use arrayvec::ArrayVec;
use rdmesh_uverbs::abi::*;
use rdmesh_uverbs::page::{CONTEXT_PAGE_LEN, ContextPage};
use rdmesh_uverbs::ring::{Extent, QueueFile};
use rdmesh_uverbs::session::{
    self, FdUse, IoctlAttr, IoctlHeader, MAX_FDS, MAX_MESSAGE, OpenReply, ReplyHeader, RequestHeader, RequestKind,
    Segment, Token, VERSION,
};
use rdmesh_uverbs::shared::SharedMemory;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A reply that is not a refusal.
pub(crate) struct Answer {
    pub(crate) header: ReplyHeader,
    pub(crate) response: Vec<u8>,
    pub(crate) fds: ArrayVec<OwnedFd, MAX_FDS>,
}

pub(crate) struct Client {
    pub(crate) socket: OwnedFd,
    pub(crate) token: Token,
    pub(crate) page: Option<ContextPage>,
    pub(crate) wake: Option<OwnedFd>,
    pub(crate) queues: Option<OwnedFd>,
    pub(crate) async_fd: Option<OwnedFd>,
    /// Queue memory that the last answer wanted populated.
    pub(crate) wanted: Option<Extent>,
}

/// A queue's memory, mapped.
pub(crate) type Ring = SharedMemory;

impl Client {
    /// Connects, and says nothing yet.
    pub(crate) fn connect(path: &Path) -> Self {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        Self { socket, token: Token([0; 16]), page: None, wake: None, queues: None, async_fd: None, wanted: None }
    }

    /// Connects, opens the device and gets its context.
    pub(crate) fn device(path: &Path) -> Self {
        let mut client = Self::connect(path);
        client.open().unwrap();
        let mut answer = client.get_context().unwrap();
        assert_eq!((answer.header.fds[0], answer.header.places[0]), (FdUse::Install as u32, 0));
        client.async_fd = answer.fds.pop();
        client
    }

    pub(crate) fn open(&mut self) -> Result<(), Errno> {
        let (page, page_fd) = SharedMemory::create("page", CONTEXT_PAGE_LEN).unwrap();
        let queues = QueueFile::memfd().unwrap();
        let answer = self.open_with(&[page_fd.as_fd(), queues.as_fd()])?;
        let opened = OpenReply::read_from_bytes(&answer.response).unwrap();
        assert_eq!(opened.rdev, 231 << 8 | 192);
        let [_worker, wake] = answer.fds.into_iter().collect::<Vec<_>>().try_into().unwrap();
        self.page = ContextPage::new(page);
        self.wake = Some(wake);
        self.queues = Some(queues);
        self.token = opened.token;
        Ok(())
    }

    /// Opens the device with this memory for its page and its queues.
    pub(crate) fn open_with(&mut self, fds: &[BorrowedFd<'_>]) -> Result<Answer, Errno> {
        let header = RequestHeader { version: VERSION, kind: RequestKind::Open as u32, command_len: 0, segments: 0 };
        session::send(self.socket.as_fd(), &[IoSlice::new(header.as_bytes())], fds)?;
        self.receive()
    }

    /// Maps the queue that an `mminfo` is about.
    pub(crate) fn map(&self, mminfo: &[u8]) -> Ring {
        let info = MmapInfo::read_from_prefix(mminfo).unwrap().0;
        let queues = self.queues.as_ref().expect("an open device");
        SharedMemory::map(queues.as_fd(), info.offset, info.size as usize, true).unwrap()
    }

    pub(crate) fn attach(&mut self, token: &Token) -> Result<(), Errno> {
        self.call(RequestKind::Attach, &token.0, &[], None).map(|_| ())
    }

    pub(crate) fn get_context(&mut self) -> Result<Answer, Errno> {
        let bytes = plain(number::GET_CONTEXT, &GetContext { response: 1 }, &[], 8);
        self.call(RequestKind::Verbs, &bytes, &[], None)
    }

    /// Sends a request and waits for its answer; fills in queue memory where that is wanted.
    pub(crate) fn call(
        &mut self,
        kind: RequestKind,
        body: &[u8],
        segments: &[Segment],
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<Answer, Errno> {
        loop {
            match (self.call_once(kind, body, segments, fd), self.wanted.take(), &self.queues) {
                (Err(Errno::NODATA), Some(extent), Some(queues)) => QueueFile::fill(queues.as_fd(), extent).unwrap(),
                (answer, ..) => return answer,
            }
        }
    }

    /// Sends a request and waits for its answer.
    pub(crate) fn call_once(
        &mut self,
        kind: RequestKind,
        body: &[u8],
        segments: &[Segment],
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<Answer, Errno> {
        let header = RequestHeader {
            version: VERSION,
            kind: kind as u32,
            command_len: body.len() as u32,
            segments: segments.len() as u32,
        };
        self.send(&[header.as_bytes(), body, segments.as_bytes()].concat(), fd)?;
        self.receive()
    }

    pub(crate) fn send(&mut self, message: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        session::send(self.socket.as_fd(), &[IoSlice::new(message)], fd.as_slice())
    }

    /// Waits for an answer; the end of the connection is EPIPE.
    pub(crate) fn receive(&mut self) -> Result<Answer, Errno> {
        let mut buffer = vec![0; MAX_MESSAGE];
        let (len, fds) = session::receive(self.socket.as_fd(), &mut buffer)?;
        if len == 0 {
            return Err(Errno::PIPE);
        }
        let (header, response) = ReplyHeader::read_from_prefix(&buffer[..len]).unwrap();
        if header.errno != 0 {
            let [offset, len] = header.wanted;
            self.wanted = (len != 0).then_some(Extent { offset, len });
            return Err(Errno::from_raw_os_error(header.errno as i32));
        }
        assert_eq!(header.response_len as usize, response.len());
        Ok(Answer { header, response: response.to_vec(), fds })
    }

    /// A command with a response of type `R`, followed by `room` bytes for the provider.
    pub(crate) fn command<R: FromBytes>(
        &mut self,
        number: u8,
        request: &(impl IntoBytes + Immutable),
        room: usize,
    ) -> Result<(R, Answer), Errno> {
        let bytes = plain(number, request, &[], size_of::<R>() + room);
        let answer = self.call(RequestKind::Verbs, &bytes, &[], None)?;
        Ok((R::read_from_prefix(&answer.response).unwrap().0, answer))
    }

    /// Sends messages that nothing is expected of.
    pub(crate) fn send_all(&self, messages: &[&[u8]]) {
        for message in messages {
            let _ = session::send(self.socket.as_fd(), &[IoSlice::new(message)], &[]);
        }
    }

    /// A command with a response that does not matter.
    pub(crate) fn order_with_room(&mut self, number: u8, request: &(impl IntoBytes + Immutable), room: usize) {
        self.call(RequestKind::Verbs, &plain(number, request, &[], room), &[], None).unwrap();
    }

    /// A command without a response.
    pub(crate) fn order(&mut self, number: u8, request: &(impl IntoBytes + Immutable)) -> Result<Answer, Errno> {
        self.call(RequestKind::Verbs, &plain(number, request, &[], 0), &[], None)
    }

    pub(crate) fn ioctl(&mut self, object: u16, method: u16, attributes: &[(u16, &[u8])]) -> Result<(), Errno> {
        self.ask(object, method, attributes).map(drop)
    }

    /// An `ioctl()` method with a response.
    pub(crate) fn ask(&mut self, object: u16, method: u16, attributes: &[(u16, &[u8])]) -> Result<Vec<u8>, Errno> {
        let header = IoctlHeader { object_id: object, method_id: method, num_attrs: attributes.len() as u32 };
        let mut body = header.as_bytes().to_vec();
        for (attr_id, value) in attributes {
            body.extend_from_slice(IoctlAttr { attr_id: *attr_id, len: value.len() as u16, reserved: 0 }.as_bytes());
            body.extend_from_slice(value);
            body.resize(body.len().next_multiple_of(8), 0);
        }
        self.call(RequestKind::Ioctl, &body, &[], None).map(|answer| answer.response)
    }

    pub(crate) fn alloc_pd(&mut self) -> u32 {
        self.command::<AllocPdResponse>(number::ALLOC_PD, &AllocPd::default(), 0).unwrap().0.pd_handle
    }

    /// A channel: its number, and the descriptor that events are read from.
    pub(crate) fn create_channel(&mut self) -> (u32, OwnedFd) {
        let request = CreateCompChannel::default();
        let (response, mut answer) =
            self.command::<CreateCompChannelResponse>(number::CREATE_COMP_CHANNEL, &request, 0).unwrap();
        assert_eq!((answer.header.fds[0], answer.header.places[0]), (FdUse::Install as u32, 0));
        (response.fd, answer.fds.pop().unwrap())
    }

    pub(crate) fn try_create_cq(&mut self, cqe: u32, channel: i32) -> Result<(u32, Ring), Errno> {
        let request = CreateCq { cqe, comp_channel: channel, user_handle: 0xc0, ..Default::default() };
        let (response, answer) = self.command::<CreateCqResponse>(number::CREATE_CQ, &request, 16)?;
        assert!(response.cqe >= cqe);
        Ok((response.cq_handle, self.map(&answer.response[8..])))
    }

    pub(crate) fn create_cq(&mut self, cqe: u32) -> (u32, Ring) {
        self.try_create_cq(cqe, -1).unwrap()
    }

    pub(crate) fn try_create_qp(&mut self, request: &CreateQp) -> Result<(CreateQpResponse, Answer), Errno> {
        self.command(number::CREATE_QP, request, 32)
    }

    /// A queue pair with small queues: handle, number, send ring, receive ring.
    pub(crate) fn create_qp(&mut self, pd: u32, cq: u32, qp_type: u8) -> (u32, u32, Ring, Ring) {
        let slots = CreateQp { max_send_wr: 4, max_recv_wr: 4, ..Default::default() };
        self.create_qp_like(pd, cq, qp_type, slots)
    }

    /// The same with as many slots as `slots` says.
    pub(crate) fn create_qp_like(&mut self, pd: u32, cq: u32, qp_type: u8, slots: CreateQp) -> (u32, u32, Ring, Ring) {
        let request = CreateQp {
            pd_handle: pd,
            send_cq_handle: cq,
            recv_cq_handle: cq,
            max_send_sge: 1,
            max_recv_sge: 1,
            qp_type,
            ..slots
        };
        let (response, answer) = self.try_create_qp(&request).unwrap();
        let driver = &answer.response[size_of::<CreateQpResponse>()..];
        (response.qp_handle, response.qpn, self.map(&driver[16..]), self.map(driver))
    }

    pub(crate) fn reg_mr(
        &mut self,
        request: &RegMr,
        segments: &[Segment],
        arena: Option<BorrowedFd<'_>>,
    ) -> Result<RegMrResponse, Errno> {
        let bytes = plain(number::REG_MR, request, &[], 12);
        let answer = self.call(RequestKind::Verbs, &bytes, segments, arena)?;
        Ok(RegMrResponse::read_from_bytes(&answer.response).unwrap())
    }
}

/// Frames a command of the plain family.
pub(crate) fn plain(
    number: u8,
    request: &(impl IntoBytes + Immutable + ?Sized),
    driver: &[u8],
    room: usize,
) -> Vec<u8> {
    let len = size_of::<CommandHeader>() + request.as_bytes().len() + driver.len();
    let header =
        CommandHeader { command: number.into(), in_words: (len / 4) as u16, out_words: room.div_ceil(4) as u16 };
    [header.as_bytes(), request.as_bytes(), driver].concat()
}

/// Frames a command of the extended family.
pub(crate) fn extended(number: u8, request: &(impl IntoBytes + Immutable), room: usize, driver_room: usize) -> Vec<u8> {
    let header = CommandHeader {
        command: 0x8000_0000 | u32::from(number),
        in_words: (request.as_bytes().len() / 8) as u16,
        out_words: (room / 8) as u16,
    };
    let more =
        ExtendedCommandHeader { response: 1, provider_out_words: (driver_room / 8) as u16, ..Default::default() };
    [header.as_bytes(), more.as_bytes(), request.as_bytes()].concat()
}
