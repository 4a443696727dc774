//! Connections of the relay's device, by rdma_cm.

use super::session::{Answer, Session};
use rdmesh_uverbs::abi::{
    Accept, BindIp, CmHeader, ConnParam, Connect, CreateId, CreateIdResponse, DestroyId, DestroyIdResponse,
    EventResponse, GetEvent, InitQpAttr, Listen, Query, QueryRouteResponse, ResolveIp, ResolveRoute, SockaddrIn,
    SockaddrIn6, UverbsQpAttr, address_family, cm_command, cm_port_space, cm_query,
};
use rdmesh_uverbs::session::RequestKind;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// An event channel, and its identifiers.
pub(crate) struct Cm {
    session: Session,
    events: OwnedFd,
}

/// An identifier: a listener, or a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct CmId(u32);

/// Event of an identifier (`enum rdma_cm_event_type` of rdma_cma.h).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// The peer's address is known.
    AddressResolved,
    /// The path to the peer is known.
    RouteResolved,
    /// A peer asks for a connection: the identifier is new.
    Request,
    /// The peer has accepted.
    Accepted,
    /// The connection is there.
    Established,
    /// There is none, or none any more.
    Ended,
    /// Nothing that matters here.
    Other,
}

impl Cm {
    /// Opens a channel of the endpoint whose session socket is at `path`.
    pub(crate) fn open(path: &Path) -> Result<Self, Errno> {
        let mut session = Session::connect(path)?;
        let mut opened = session.call(RequestKind::OpenCm, &[], &[], &[], None)?;
        let events = opened.fds.pop().ok_or(Errno::PROTO)?;
        Ok(Self { session, events })
    }

    /// Descriptor that is readable while there is an event.
    pub(crate) fn events(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    fn call(&mut self, cmd: u32, request: &(impl IntoBytes + Immutable), room: usize) -> Result<Answer, Errno> {
        let header = CmHeader { cmd, in_len: request.as_bytes().len() as u16, out_len: room as u16 };
        self.session.call(RequestKind::Cm, &[header.as_bytes(), request.as_bytes()].concat(), &[], &[], None)
    }

    fn create_id(&mut self) -> Result<CmId, Errno> {
        let request = CreateId { ps: cm_port_space::TCP, qp_type: super::RC, ..Default::default() };
        let answer = self.call(cm_command::CREATE_ID, &request, size_of::<CreateIdResponse>())?;
        Ok(CmId(answer.read::<CreateIdResponse>().id))
    }

    /// Listens at `address`.
    pub(crate) fn listen(&mut self, address: SocketAddr) -> Result<CmId, Errno> {
        let id = self.create_id()?;
        let bind = BindIp { addr: raw(address), id: id.0, ..Default::default() };
        let listening = match self.call(cm_command::BIND_IP, &bind, 0) {
            Ok(_) => self.call(cm_command::LISTEN, &Listen { id: id.0, backlog: BACKLOG }, 0),
            refused => refused,
        };
        if let Err(errno) = listening {
            self.destroy(id);
            return Err(errno);
        }
        Ok(id)
    }

    /// Begins a connection from `from` to `to`: the next event is [`Event::AddressResolved`].
    pub(crate) fn resolve(&mut self, from: IpAddr, to: SocketAddr) -> Result<CmId, Errno> {
        let id = self.create_id()?;
        let request = ResolveIp {
            src_addr: raw(SocketAddr::new(from, 0)),
            dst_addr: raw(to),
            id: id.0,
            timeout_ms: RESOLVE_MILLISECONDS,
        };
        match self.call(cm_command::RESOLVE_IP, &request, 0) {
            Ok(_) => Ok(id),
            Err(errno) => {
                self.destroy(id);
                Err(errno)
            }
        }
    }

    /// Goes on after [`Event::AddressResolved`].
    pub(crate) fn resolve_route(&mut self, id: CmId) -> Result<(), Errno> {
        let request = ResolveRoute { id: id.0, timeout_ms: RESOLVE_MILLISECONDS };
        self.call(cm_command::RESOLVE_ROUTE, &request, 0).map(drop)
    }

    /// Asks the peer for a connection with queue pair `qpn`.
    pub(crate) fn connect(&mut self, id: CmId, qpn: u32) -> Result<(), Errno> {
        let request = Connect { conn_param: parameters(qpn), id: id.0, ..Default::default() };
        self.call(cm_command::CONNECT, &request, 0).map(drop)
    }

    /// Accepts a peer's request with queue pair `qpn`, or, where this end has asked, confirms that it is ready.
    pub(crate) fn accept(&mut self, id: CmId, qpn: Option<u32>) -> Result<(), Errno> {
        let conn_param = qpn.map(parameters).unwrap_or_default();
        self.call(cm_command::ACCEPT, &Accept { conn_param, id: id.0, ..Default::default() }, 0).map(drop)
    }

    /// Attributes of the connection's queue pair in state `state` (`enum ibv_qp_state`).
    pub(crate) fn attributes(&mut self, id: CmId, state: u32) -> Result<UverbsQpAttr, Errno> {
        let request = InitQpAttr { response: 1, id: id.0, qp_state: state };
        let answer = self.call(cm_command::INIT_QP_ATTR, &request, size_of::<UverbsQpAttr>())?;
        let mut attr: UverbsQpAttr = answer.read();
        attr.qp_state = state;
        Ok(attr)
    }

    /// Addresses of this end and of the other.
    pub(crate) fn addresses(&mut self, id: CmId) -> Result<(IpAddr, IpAddr), Errno> {
        let request = Query { response: 1, id: id.0, option: cm_query::ADDR };
        let answer = self.call(cm_command::QUERY_ROUTE, &request, size_of::<QueryRouteResponse>())?;
        let route: QueryRouteResponse = answer.read();
        Ok((parse(&route.src_addr)?, parse(&route.dst_addr)?))
    }

    /// Ends an identifier, and its connection.
    pub(crate) fn destroy(&mut self, id: CmId) {
        let request = DestroyId { response: 1, id: id.0, reserved: 0 };
        // It may have gone with the router.
        let _ = self.call(cm_command::DESTROY_ID, &request, size_of::<DestroyIdResponse>());
    }

    /// The next event, and the identifier that it is about; none where there is none.
    pub(crate) fn event(&mut self) -> Result<Option<(CmId, Event)>, Errno> {
        let answer = match self.call(cm_command::GET_EVENT, &GetEvent { response: 1 }, size_of::<EventResponse>()) {
            Err(Errno::AGAIN) => return Ok(None),
            answer => answer?,
        };
        let event: EventResponse = answer.read();
        let what = match event.event {
            0 => Event::AddressResolved,
            2 => Event::RouteResolved,
            4 => Event::Request,
            5 => Event::Accepted,
            9 => Event::Established,
            1 | 3 | 6..=8 | 10 | 11 => Event::Ended,
            _ => Event::Other,
        };
        Ok(Some((CmId(event.id), what)))
    }
}

fn parameters(qp_num: u32) -> ConnParam {
    ConnParam { qp_num, flow_control: 1, retry_count: 7, rnr_retry_count: 7, valid: 1, ..Default::default() }
}

fn raw(address: SocketAddr) -> [u8; 28] {
    let (mut raw, port) = ([0; 28], address.port().to_be_bytes());
    match address.ip() {
        IpAddr::V4(ip) => {
            let name = SockaddrIn { family: address_family::INET, port, addr: ip.octets(), ..Default::default() };
            raw[..16].copy_from_slice(name.as_bytes());
        }
        IpAddr::V6(ip) => {
            let name = SockaddrIn6 { family: address_family::INET6, port, addr: ip.octets(), ..Default::default() };
            raw.copy_from_slice(name.as_bytes());
        }
    }
    raw
}

fn parse(raw: &[u8; 28]) -> Result<IpAddr, Errno> {
    let (v4, _) = SockaddrIn::read_from_prefix(raw).map_err(|_| Errno::PROTO)?;
    let v6 = SockaddrIn6::read_from_bytes(raw).map_err(|_| Errno::PROTO)?;
    match v4.family {
        address_family::INET => Ok(IpAddr::from(v4.addr)),
        address_family::INET6 => Ok(IpAddr::from(v6.addr).to_canonical()),
        _ => Err(Errno::AFNOSUPPORT),
    }
}

const BACKLOG: u32 = 64;
const RESOLVE_MILLISECONDS: u32 = 2000;
