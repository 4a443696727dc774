//! Commands that make and end connections: listen, connect, accept, reject, disconnect, destroy.

use super::Connections;
use crate::cm::call::{Call, DONE};
use crate::cm::commands::{self, HOP_LIMIT, PKEY, PathRecord, RATE};
use crate::cm::connection::{self, DATAGRAM_QKEY, NO_SUCH_SERVICE, SERVICE_FOUND, SERVICE_REFUSED, cm_errno};
use crate::cm::event::{Event, Kind};
use crate::cm::header::{self, IpHeader};
use crate::cm::id::{Id, State};
use arrayvec::ArrayVec;
use rdmesh_nic::cm::{CmError, CmPath, CmState, RejectReason, RepParams, ReqParams, SidrAnswer, SidrParams};
use rdmesh_uverbs::abi::{
    Accept, ConnParam, Connect, DestroyId, DestroyIdResponse, Disconnect, InitQpAttr, Notify, Reject, UverbsQpAttr,
    cm_command,
};
use rdmesh_verbs::{Qkey, QpState, Qpn};
use rustix::io::Errno;
use std::net::IpAddr;
use std::time::Duration;

/// Response time-out of a side, as a code: 4.3 s (`CMA_CM_RESPONSE_TIMEOUT`).
const RESPONSE_TIMEOUT: u8 = 20;
/// The same for a SIDR request.
const SERVICE_TIMEOUT: Duration = Duration::from_millis(4096);
/// Retries of each message (`CMA_MAX_CM_RETRIES`).
const MAX_RETRIES: u8 = 15;
/// ACK delay of the device, as a code: rxe's.
const ACK_DELAY: u8 = 15;
/// Retry counts have three bits.
const MAX_RETRY: u8 = 7;
/// `IBV_EVENT_COMM_EST`.
const COMMUNICATION_ESTABLISHED: u32 = 4;

impl Connections {
    /// Executes a command; returns its response.
    pub(in crate::cm) fn execute(&mut self, command: u32, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
        match command {
            cm_command::DESTROY_ID => self.destroy_id(call),
            cm_command::LISTEN => self.listen(call),
            cm_command::CONNECT => self.connect(call),
            cm_command::ACCEPT => self.accept(call),
            cm_command::REJECT => self.reject(call),
            cm_command::DISCONNECT => self.disconnect(call),
            cm_command::INIT_QP_ATTR => self.init_qp_attr(call),
            cm_command::NOTIFY => self.notify(call),
            _ => commands::execute(&mut self.registry, command, call),
        }
    }

    fn destroy_id(&mut self, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
        call.needs_room(size_of::<DestroyIdResponse>())?;
        let command: DestroyId = call.read()?;
        let id = self.registry.id(call, command.id)?;
        let gap = id.source.filter(|_| id.state == State::Listen).map(|source| (id.endpoint, id.space, source.port()));
        let events_reported = self.destroy(call.now, command.id);
        if let Some(port) = gap {
            self.grace_periods.begin(call.now, port);
        }
        call.respond(&DestroyIdResponse { events_reported })
    }

    fn listen(&mut self, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
        let port = commands::listen(&mut self.registry, call)?;
        for (comm, event) in self.grace_periods.end(port) {
            self.handle_now(call.now, comm, event);
        }
        Ok(DONE)
    }

    fn connect(&mut self, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
        let command: Connect = call.read_short()?;
        if command.conn_param.valid == 0 {
            return Err(Errno::INVAL);
        }
        let (id, device) = self.registry.id_with_device(call, command.id)?;
        id.must_be(State::RouteResolved)?;
        let node = self.registry.places.node(id.endpoint)?;
        let (Some(source), Some(dest)) = (id.source, id.dest) else { return Err(Errno::INVAL) };
        if !self.registry.places.may_connect(node.spec.vni, device.local, device.remote, dest.port()) {
            return self.forbid(call, command.id, dest.ip());
        }
        let external = self.registry.channels.external_path_of(call.channel);
        let path = CmPath { vni: node.spec.vni, local: device.local, remote: device.remote, external };
        let private = private_of(&command.conn_param)?;
        let service_id = header::service_id(id.space, dest.port());
        let ip = IpHeader { source, dest: dest.ip() };
        let comm = if id.is_datagram() {
            let room = header::SIDR_PRIVATE - header::LEN;
            if private.len() > room {
                return Err(Errno::INVAL);
            }
            let private: ArrayVec<u8, { header::SIDR_PRIVATE }> = ip.encode(private);
            let (timeout, max_retries) = (SERVICE_TIMEOUT, MAX_RETRIES);
            let question = SidrParams { service_id, pkey: PKEY, timeout, max_retries, private: &private };
            self.protocol.resolve_service(call.now, path, &question)
        } else {
            let room = header::REQ_PRIVATE - header::LEN;
            if private.len() > room {
                return Err(Errno::INVAL);
            }
            let private: ArrayVec<u8, { header::REQ_PRIVATE }> = ip.encode(private);
            let record = PathRecord::of(id, device, node.mtu);
            let request = ReqParams {
                mtu: node.mtu,
                ca_guid: node.spec.guid,
                packet_life_time: record.packet_life_time,
                ..request(id, &command.conn_param, service_id, &private)
            };
            self.protocol.connect(call.now, path, &request)
        }
        .map_err(cm_errno)?;
        let tracked = self.registry.places.track(path.vni, path.local, path.remote);
        let id = self.registry.id_mut(call, command.id)?;
        id.tracked = Some(tracked);
        id.qpn = Qpn::new(command.conn_param.qp_num);
        id.comm = Some(comm);
        id.state = State::Connect;
        self.ids.insert(comm, command.id);
        Ok(DONE)
    }

    /// Refuses a connection that security groups do not allow, as its receiver would: the program sees a peer on whose port nobody
    /// listens (librdmacm's ECONNREFUSED).
    fn forbid(&mut self, call: &Call<'_>, number: u32, peer: IpAddr) -> Result<Vec<u8>, Errno> {
        self.registry.has_room_for_events(self.registry.id(call, number)?.endpoint)?;
        self.forbidden += 1;
        self.refused_peer = Some(peer);
        let id = self.registry.id_mut(call, number)?;
        id.state = State::Connect;
        let event = match id.is_datagram() {
            true => Event::new(Kind::Unreachable).with_status(NO_SUCH_SERVICE.into()),
            false => Event::new(Kind::Rejected).with_status(RejectReason::INVALID_SERVICE_ID.0.into()),
        };
        self.registry.post(number, &event);
        Ok(DONE)
    }

    fn accept(&mut self, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
        let command: Accept = call.read_short()?;
        let (id, _) = self.registry.id_with_device(call, command.id)?;
        id.must_be(State::Connect)?;
        let done = self.answer(call, &command);
        match done {
            Ok(()) if command.conn_param.valid != 0 => {
                self.registry.id_mut(call, command.id)?.uid = Some(command.uid);
                Ok(DONE)
            }
            Ok(()) => Ok(DONE),
            Err(errno) => {
                let _ = self.refuse(call, command.id, RejectReason::CONSUMER_DEFINED, &[]);
                Err(errno)
            }
        }
    }

    /// Accepts a request, or a reply (`rdma_accept`).
    fn answer(&mut self, call: &Call<'_>, command: &Accept) -> Result<(), Errno> {
        let param = &command.conn_param;
        let id = self.registry.id(call, command.id)?;
        let comm = id.comm.ok_or(Errno::INVAL)?;
        let guid = self.registry.places.node(id.endpoint)?.spec.guid;
        let is_valid = param.valid != 0;
        if id.is_datagram() {
            if !is_valid {
                return self.refuse(call, command.id, RejectReason::CONSUMER_DEFINED, &[]);
            }
            let qkey = match (id.qkey, param.qkey) {
                (own, 0) => own.unwrap_or(DATAGRAM_QKEY),
                (Some(own), asked) if own != asked => return Err(Errno::INVAL),
                (_, asked) => asked,
            };
            let service_id = id.source.map_or(0, |source| header::service_id(id.space, source.port()));
            let (status, qpn) = (SERVICE_FOUND, Qpn::new(param.qp_num));
            let answer = SidrAnswer { status, qpn, qkey: Qkey(qkey), service_id, private: private_of(param)? };
            self.protocol.answer_service(call.now, comm, &answer).map_err(cm_errno)?;
            let id = self.registry.id_mut(call, command.id)?;
            id.qkey = Some(qkey);
            id.qpn = qpn;
            return Ok(());
        }
        if !is_valid {
            return self.protocol.ready(call.now, comm, &[]).map_err(cm_errno);
        }
        let reply = RepParams {
            ca_guid: guid,
            qpn: Qpn::new(param.qp_num),
            starting_psn: id.psn,
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            target_ack_delay: ACK_DELAY,
            failover: 0,
            flow_control: param.flow_control != 0,
            rnr_retry_count: param.rnr_retry_count.min(MAX_RETRY),
            srq: param.srq != 0,
            private: private_of(param)?,
        };
        self.protocol.accept(call.now, comm, &reply).map_err(cm_errno)?;
        self.registry.id_mut(call, command.id)?.qpn = reply.qpn;
        Ok(())
    }

    fn reject(&mut self, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
        let command: Reject = call.read()?;
        let reason = match RejectReason(command.reason.into()) {
            RejectReason(0) | RejectReason::CONSUMER_DEFINED => RejectReason::CONSUMER_DEFINED,
            RejectReason::VENDOR_OPTION_NOT_SUPPORTED => RejectReason::VENDOR_OPTION_NOT_SUPPORTED,
            _ => return Err(Errno::INVAL),
        };
        self.registry.id_with_device(call, command.id)?;
        let private = &command.private_data[..command.private_data_len.into()];
        self.refuse(call, command.id, reason, private)?;
        Ok(DONE)
    }

    /// Rejects a request or a reply (`rdma_reject`).
    fn refuse(&mut self, call: &Call<'_>, number: u32, reason: RejectReason, private: &[u8]) -> Result<(), Errno> {
        let id = self.registry.id(call, number)?;
        let comm = id.comm.ok_or(Errno::INVAL)?;
        if id.is_datagram() {
            let (status, service_id) = (SERVICE_REFUSED, 0);
            let answer = SidrAnswer { status, qpn: Qpn::default(), qkey: Qkey(0), service_id, private };
            return self.protocol.answer_service(call.now, comm, &answer).map_err(cm_errno);
        }
        self.protocol.reject(call.now, comm, reason, &[], private).map_err(cm_errno)
    }

    fn disconnect(&mut self, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
        let command: Disconnect = call.read()?;
        let (id, _) = self.registry.id_with_device(call, command.id)?;
        let comm = id.comm.ok_or(Errno::INVAL)?;
        // Disconnecting a connection that has ended, or never existed, succeeds.
        let _ = self.protocol.disconnect(call.now, comm, &[]);
        Ok(DONE)
    }

    fn notify(&mut self, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
        let command: Notify = call.read()?;
        let id = self.registry.id(call, command.id)?;
        if id.device.is_none() {
            return Err(Errno::INVAL);
        }
        let comm = id.comm.ok_or(Errno::INVAL)?;
        if command.event != COMMUNICATION_ESTABLISHED {
            return Err(Errno::INVAL);
        }
        match self.protocol.notify_established(call.now, comm) {
            Ok(()) => {
                self.registry.post(command.id, &Event::new(Kind::Established));
                Ok(DONE)
            }
            Err(CmError::State(CmState::Established)) => Err(Errno::ISCONN),
            Err(error) => Err(cm_errno(error)),
        }
    }

    fn init_qp_attr(&mut self, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
        call.needs_room(size_of::<UverbsQpAttr>())?;
        let command: InitQpAttr = call.read()?;
        let asked = u8::try_from(command.qp_state).ok().and_then(QpState::from_number).ok_or(Errno::INVAL)?;
        let (id, device) = self.registry.id_with_device(call, command.id)?;
        let attr = match id.comm.filter(|_| !id.is_datagram()) {
            None => connection::unconnected_attr(id, asked),
            Some(comm) => {
                let info = self.protocol.info(comm).ok_or(Errno::INVAL)?;
                connection::connected_attr(id, device, &info, asked)?
            }
        };
        self.registry.id_mut(call, command.id)?.qkey = Some(attr.qkey).filter(|qkey| *qkey != 0);
        call.respond(&attr)
    }
}

/// REQ parameters of a connection (`cma_connect_ib`).
fn request<'a>(id: &Id, param: &ConnParam, service_id: u64, private: &'a [u8]) -> ReqParams<'a> {
    ReqParams {
        service_id,
        ca_guid: [0; 8],
        qpn: Qpn::new(param.qp_num),
        qp_type: id.qp_type,
        starting_psn: id.psn,
        pkey: PKEY,
        mtu: rdmesh_verbs::Mtu::default(),
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        retry_count: param.retry_count.min(MAX_RETRY),
        rnr_retry_count: param.rnr_retry_count.min(MAX_RETRY),
        flow_control: param.flow_control != 0,
        srq: param.srq != 0,
        remote_cm_response_timeout: RESPONSE_TIMEOUT,
        local_cm_response_timeout: RESPONSE_TIMEOUT,
        max_cm_retries: MAX_RETRIES,
        packet_life_time: 0,
        ca_ack_delay: ACK_DELAY,
        flow_label: 0,
        traffic_class: id.options.tos,
        hop_limit: HOP_LIMIT,
        sl: 0,
        rate: RATE,
        private,
    }
}

fn private_of(param: &ConnParam) -> Result<&[u8], Errno> {
    param.private_data.get(..param.private_data_len.into()).ok_or(Errno::INVAL)
}
