//! Requests and responses of peers, converted into events.

use super::Connections;
use crate::cm::connection::{NO_SUCH_SERVICE, SERVICE_FOUND, SERVICE_REFUSED, path_to};
use crate::cm::event::{Event, Kind, Pending, datagram, padded};
use crate::cm::header::{self, IpHeader};
use crate::cm::id::{Id, State};
use rdmesh_nic::Time;
use rdmesh_nic::cm::{self, CmPath, CommId, RejectReason, Rep, Req, SidrAnswer, SidrRep, SidrReq};
use rdmesh_uverbs::abi::{CM_PRIVATE_DATA, ConnParam};
use rdmesh_verbs::{Gid, Qkey, QpType, Qpn};
use rustix::io::Errno;
use std::net::{IpAddr, SocketAddr};

/// Reasons that are counted: more than IBA has (12.6.7.2).
const MAX_REASONS: usize = 64;
/// Time-out of a program's answer to a request, as a code: 69 s (`CMA_CM_MRA_SETTING`).
const PROGRAM_TIME: u8 = REPEATED | 24;
/// Event status for a peer that did not answer.
const TIMED_OUT: i32 = -Errno::TIMEDOUT.raw_os_error();
/// Only a peer that repeats its request is sent an MRA.
const REPEATED: u8 = 0x80;

/// A request for a connection, or for a datagram service.
struct Asked<'a> {
    path: CmPath,
    service_id: u64,
    qp_type: QpType,
    private: &'a [u8],
}

/// Reason why a request is not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refusal {
    /// The peer gets this reason.
    Reason(RejectReason),
    /// There is no room now. The peer gets no answer, and repeats its request.
    Later,
}

impl From<RejectReason> for Refusal {
    fn from(reason: RejectReason) -> Self {
        Self::Reason(reason)
    }
}

/// A request for which there is a listener.
struct Admitted {
    listener: u32,
    /// The new connection's identifier.
    child: u32,
    /// The program's part of the private data, and its length.
    private: ([u8; CM_PRIVATE_DATA], u8),
}

impl Connections {
    /// Converts an event of the protocol into one for the program.
    pub(in crate::cm) fn handle_event(&mut self, now: Time, comm: CommId, event: cm::Event) {
        if let Some(event) = self.let_wait(now, comm, event) {
            self.handle_now(now, comm, event);
        }
    }

    /// The same for an event that does not wait, or that has waited.
    pub(super) fn handle_now(&mut self, now: Time, comm: CommId, event: cm::Event) {
        match event {
            cm::Event::Request { path, req } => self.handle_request(now, comm, path, &req),
            cm::Event::ServiceRequest { path, sidr } => self.handle_service_request(now, comm, path, &sidr),
            other => match self.ids.get(&comm).copied() {
                Some(number) => self.handle_progress(number, &other),
                // Its identifier is gone, or there was none yet: the event is dropped.
                None => {
                    self.grace_periods.withdraw(comm);
                    self.protocol.destroy(now, comm);
                }
            },
        }
    }

    /// Takes a request that comes in the grace period of its port; gives back all others.
    fn let_wait(&mut self, now: Time, comm: CommId, event: cm::Event) -> Option<cm::Event> {
        let (path, service_id) = match &event {
            cm::Event::Request { path, req } => (path, req.service_id),
            cm::Event::ServiceRequest { path, sidr } => (path, sidr.service_id),
            _ => return Some(event),
        };
        let found = self.registry.places.at(path.vni, path.local).zip(header::port_of(service_id));
        let Some((endpoint, (space, port))) = found else { return Some(event) };
        let node = self.registry.places.node(endpoint);
        let Ok(ports) = node.map(|node| &node.ports) else { return Some(event) };
        if !ports.listeners(space, port).is_empty() {
            return Some(event);
        }
        let (is_bound, port) = (ports.is_bound(space, port), (endpoint, space, port));
        if is_bound {
            self.grace_periods.begin(now, port);
        }
        self.grace_periods.wait(now, port, comm, event)
    }

    fn handle_progress(&mut self, number: u32, event: &cm::Event) {
        let Some(id) = self.registry.get_mut(number) else { return };
        let expected = match event {
            cm::Event::TimeWaitExit => State::Disconnect,
            _ => State::Connect,
        };
        if id.state != expected {
            return;
        }
        let event = match event {
            cm::Event::Reply(rep) => Event::new(Kind::ConnectResponse).with_connection(reply_param(rep)),
            // The private data of RTU and DREQ is not passed on, as in the kernel.
            cm::Event::Established { .. } => Event::new(Kind::Established),
            cm::Event::Rejected { reason, private, .. } => {
                if self.rejected.len() < MAX_REASONS || self.rejected.contains_key(&reason.0) {
                    *self.rejected.entry(reason.0).or_default() += 1;
                }
                Event::new(Kind::Rejected).with_status(reason.0.into()).with_private(private)
            }
            cm::Event::Unreachable => Event::new(Kind::Unreachable).with_status(TIMED_OUT),
            cm::Event::DisconnectRequested { .. } | cm::Event::Disconnected => {
                id.state = State::Disconnect;
                Event::new(Kind::Disconnected)
            }
            cm::Event::DisconnectTimedOut => {
                id.state = State::Disconnect;
                Event::new(Kind::Disconnected).with_status(TIMED_OUT)
            }
            cm::Event::TimeWaitExit => Event::new(Kind::TimeWaitExit),
            cm::Event::ServiceResolved(answer) => service_event(id, answer),
            cm::Event::Request { .. } | cm::Event::ServiceRequest { .. } => return,
        };
        self.registry.post(number, &event);
    }

    fn handle_request(&mut self, now: Time, comm: CommId, path: CmPath, req: &Req) {
        let asked = Asked { path, service_id: req.service_id, qp_type: req.qp_type, private: &req.private };
        match self.admit(comm, &asked) {
            Ok(Admitted { listener, child, private: (private_data, private_data_len) }) => {
                let param = ConnParam { private_data_len, private_data, ..request_param(req) };
                self.announce(listener, child, &Event::new(Kind::ConnectRequest).with_connection(param));
                // The peer need not repeat its request while the program decides.
                let _ = self.protocol.prepare(now, comm, PROGRAM_TIME, &[]);
            }
            Err(Refusal::Later) => self.protocol.forget(comm),
            Err(Refusal::Reason(reason)) => {
                let _ = self.protocol.reject(now, comm, reason, &[], &[]);
                self.protocol.destroy(now, comm);
            }
        }
    }

    fn handle_service_request(&mut self, now: Time, comm: CommId, path: CmPath, sidr: &SidrReq) {
        let asked = Asked { path, service_id: sidr.service_id, qp_type: QpType::Ud, private: &sidr.private };
        match self.admit(comm, &asked) {
            Ok(Admitted { listener, child, private: (private_data, private_data_len) }) => {
                let private = &private_data[..private_data_len.into()];
                let param = datagram(0, 0, Default::default(), private);
                self.announce(listener, child, &Event::new(Kind::ConnectRequest).with_datagram(param));
            }
            Err(refusal) => {
                let is_unknown = refusal == RejectReason::INVALID_SERVICE_ID.into();
                let status = if is_unknown { NO_SUCH_SERVICE } else { SERVICE_REFUSED };
                let (qpn, qkey, service_id) = (Qpn::default(), Qkey(0), sidr.service_id);
                let answer = SidrAnswer { status, qpn, qkey, service_id, private: &[] };
                let _ = self.protocol.answer_service(now, comm, &answer);
                self.protocol.destroy(now, comm);
            }
        }
    }

    /// Finds the listener, and makes an identifier for the new connection.
    fn admit(&mut self, comm: CommId, asked: &Asked<'_>) -> Result<Admitted, Refusal> {
        let path = asked.path;
        let endpoint = self.registry.places.at(path.vni, path.local).ok_or(RejectReason::INVALID_SERVICE_ID)?;
        let (space, port) = header::port_of(asked.service_id).ok_or(RejectReason::INVALID_SERVICE_ID)?;
        if !self.registry.places.may_connect(path.vni, path.remote, path.local, port) {
            // As if nobody listened: a stranger learns no more.
            self.forbidden += 1;
            return Err(RejectReason::INVALID_SERVICE_ID.into());
        }
        let node = self.registry.places.node(endpoint).map_err(|_| RejectReason::INVALID_SERVICE_ID)?;
        let mut listeners = node.ports.listeners(space, port).iter().map(|binding| binding.owner).peekable();
        if listeners.peek().is_none() {
            return Err(RejectReason::INVALID_SERVICE_ID.into());
        }
        let (ip, private) = IpHeader::decode(asked.private).ok_or(RejectReason::CONSUMER_DEFINED)?;
        if Gid::from_ip(ip.source.ip()) != path.remote || Gid::from_ip(ip.dest) != path.local {
            // The source address in it is not its sender's.
            return Err(RejectReason::CONSUMER_DEFINED.into());
        }
        let matches = |number: &u32| self.registry.get(*number).is_some_and(|id| id.listens_for(ip.dest, &path));
        let listener = listeners.find(matches).ok_or(RejectReason::CONSUMER_DEFINED)?;
        let device = node.device_at(path.local.ip()).ok_or(RejectReason::INVALID_GID)?;
        let parent = self.registry.get(listener).ok_or(RejectReason::CONSUMER_DEFINED)?;
        if parent.qp_type != asked.qp_type {
            return Err(RejectReason::CONSUMER_DEFINED.into());
        }
        if parent.backlog == 0 {
            return Err(Refusal::Later);
        }
        let channel = parent.channel;
        let options = parent.options;
        let psn = self.registry.psn();
        let child = Id {
            state: State::Connect,
            source: Some(SocketAddr::new(ip.dest, port)),
            dest: Some(ip.source),
            device: Some(crate::cm::id::Device { remote: path.remote, ..device }),
            comm: Some(comm),
            tracked: Some(self.registry.places.track(path.vni, path.remote, path.local)),
            options: crate::cm::id::Options { ack_timeout: None, reuse: false, ..options },
            ..Id::new(endpoint, channel, space, asked.qp_type, psn)
        };
        let child = self.registry.insert(child).map_err(|_| Refusal::Later)?;
        self.ids.insert(comm, child);
        Ok(Admitted { listener, child, private: padded(private) })
    }

    /// Queues a connection request event at a listener.
    fn announce(&mut self, listener: u32, child: u32, event: &Event) {
        let Some(id) = self.registry.get_mut(listener) else { return };
        id.backlog -= 1;
        let (channel, uid) = (id.channel, id.uid.unwrap_or_default());
        let response = event.response(uid, child);
        self.registry.channels.queue(channel, Pending { id: listener, group: None, response, child: Some(child) });
    }
}

impl Id {
    /// Whether this listener is for requests to `dest` (`cma_match_private_data`).
    fn listens_for(&self, dest: IpAddr, path: &CmPath) -> bool {
        let Some(source) = self.source else { return false };
        if self.only_self && path.local != path.remote {
            return false;
        }
        if source.ip().is_unspecified() {
            let only_family = self.options.only_family.unwrap_or(source.is_ipv4());
            return !only_family || source.is_ipv4() == dest.is_ipv4();
        }
        source.ip() == dest
    }
}

/// Parameters of a request: the peer's queue pair, and its demands on the receiver's. READs that the peer initiates are READs
/// to which the receiver responds (`cm_format_req_event`, `cma_set_req_event_data`).
fn request_param(req: &Req) -> ConnParam {
    ConnParam {
        qp_num: req.qpn.value(),
        srq: req.srq.into(),
        responder_resources: req.initiator_depth,
        initiator_depth: req.responder_resources,
        flow_control: req.flow_control.into(),
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        ..Default::default()
    }
}

/// Parameters of a reply (`cm_format_rep_event`, `cma_set_rep_event_data`).
fn reply_param(rep: &Rep) -> ConnParam {
    let (private_data, private_data_len) = padded(&rep.private);
    ConnParam {
        qp_num: rep.qpn.value(),
        private_data,
        private_data_len,
        srq: rep.srq.into(),
        responder_resources: rep.initiator_depth,
        initiator_depth: rep.responder_resources,
        flow_control: rep.flow_control.into(),
        rnr_retry_count: rep.rnr_retry_count,
        ..Default::default()
    }
}

/// The event for a SIDR response.
fn service_event(id: &mut Id, answer: &SidrRep) -> Event {
    if answer.status != SERVICE_FOUND {
        let param = datagram(0, 0, Default::default(), &answer.private);
        return Event::new(Kind::Unreachable).with_status(answer.status.into()).with_datagram(param);
    }
    // As the kernel does, the service's Q_Key becomes the identifier's own.
    let qkey = answer.qkey.0;
    id.qkey = Some(qkey);
    let path = id.device.map(|device| path_to(device.remote, device.sgid_index, id.options.tos)).unwrap_or_default();
    Event::new(Kind::Established).with_datagram(datagram(answer.qpn.value(), qkey, path, &answer.private))
}
