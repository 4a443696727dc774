//! Answers to NETLINK_RDMA requests: the device, its port, and the endpoint's own objects.

use super::commands::{CAPABILITIES, PORT_ACTIVE, PORT_LINK_UP};
use super::connection::{Answer, SessionConnection};
use super::control::CmControl;
use super::devices::Devices;
use super::endpoint::Endpoint;
use super::post::Post;
use super::program::Process;
use super::reply::Reply;
use super::resources::{Objects, Row};
use crate::endpoint::{PORT, hw_counters};
use crate::io::Clock;
use crate::netlink::{
    Device, Kind, Message, Port, Question, Request, describe_chardev, describe_device, describe_port,
    describe_resource, describe_statistic, describe_status, describe_summary, describe_system, handle,
};
use rdmesh_uverbs::abi::netlink::{NetlinkHeader, netlink_flag};
use rdmesh_uverbs::session::{NetlinkAnswer, NetlinkQuery};
use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

/// A program that asks, and what it may see.
pub(super) struct Asker<'a> {
    connection: &'a SessionConnection,
    endpoint: &'a mut Endpoint,
    devices: &'a Devices,
    cm: &'a Post<CmControl>,
    clock: &'a Clock,
}

impl<'a> Asker<'a> {
    /// The program on `connection`, of `endpoint`. What it asks for is with `devices` and with the thread of rdma_cm.
    pub(super) fn new(
        connection: &'a SessionConnection,
        endpoint: &'a mut Endpoint,
        devices: &'a Devices,
        cm: &'a Post<CmControl>,
        clock: &'a Clock,
    ) -> Self {
        Self { connection, endpoint, devices, cm, clock }
    }

    /// Answers one netlink request.
    pub(super) fn answer(&mut self, body: &[u8]) -> Answer {
        let (query, message) = NetlinkQuery::read_from_prefix(body).map_err(|_| Errno::INVAL)?;
        let request = Request::parse(message)?;
        let found = request.question.and_then(|question| self.answer_question(&query, &request, question));
        let is_list = u32::from(request.is_list);
        let (answer, message) = match found {
            Ok((next, message)) => (NetlinkAnswer { next, status: 0, is_list }, message),
            // The error of a list is reported at its end (`netlink_dump`).
            Err(errno) if request.is_list => {
                (NetlinkAnswer { next: NetlinkAnswer::END, status: -errno.raw_os_error(), is_list }, Vec::new())
            }
            Err(errno) => return Err(errno),
        };
        Ok((Reply::default(), [answer.as_bytes(), &message].concat()))
    }

    /// The position at which a list goes on, and the message.
    fn answer_question(
        &mut self,
        query: &NetlinkQuery,
        request: &Request<'_>,
        question: Question<'_>,
    ) -> Result<(u64, Vec<u8>), Errno> {
        let mut message = Message::new(NetlinkHeader {
            len: 0,
            kind: request.header.kind,
            flags: if request.is_list { netlink_flag::MULTI } else { 0 },
            seq: request.header.seq,
            port_id: query.port_id,
        });
        match question {
            Question::Device => describe_device(&mut message, &self.device()),
            Question::Port => describe_port(&mut message, &self.port()),
            Question::System => describe_system(&mut message),
            Question::Summary => describe_summary(&mut message, &self.objects().count()),
            Question::Chardev { kind, of_device } => {
                if !describe_chardev(&mut message, kind, of_device) {
                    return Err(Errno::OPNOTSUPP);
                }
            }
            Question::Statistic => {
                let sum = self.endpoint.present_traffic(self.devices, self.clock);
                describe_statistic(&mut message, PORT.into(), hw_counters().map(|(name, get)| (name, get(&sum))));
            }
            Question::StatisticStatus => {
                describe_status(&mut message, PORT.into(), Some(hw_counters().map(|(name, _)| name)));
            }
            Question::StatisticMode => describe_status(&mut message, PORT.into(), None::<std::iter::Empty<_>>),
            Question::Objects(kind, None) => return self.list(kind, query.from, message),
            Question::Objects(kind, Some(number)) => {
                let row = self.objects().find(kind, number).ok_or(Errno::NOENT)?;
                handle(&mut message);
                describe_resource(&mut message, &row.resource, self.pid_for(row.owner.as_deref()));
            }
            Question::Counters | Question::Nothing => return Ok((NetlinkAnswer::END, Vec::new())),
        }
        Ok((NetlinkAnswer::END, message.finish().ok_or(Errno::MSGSIZE)?))
    }

    /// One part of a list, as much as one message holds.
    fn list(&self, kind: Kind, from: u64, mut message: Message) -> Result<(u64, Vec<u8>), Errno> {
        let rows = self.objects().list(kind, from, MOST_ROWS);
        if rows.is_empty() {
            return Ok((NetlinkAnswer::END, Vec::new()));
        }
        let mut next = NetlinkAnswer::END;
        let (list, entry) = kind.list_attributes();
        let mut known: Option<(&Process, _)> = None;
        handle(&mut message);
        message.nest(list, |message| {
            for Row { key, owner, resource } in &rows {
                // Those of one process stand together.
                let owner = owner.as_deref();
                let pid = match known {
                    Some((last, pid)) if owner.is_some_and(|owner: &Process| std::ptr::eq(owner, last)) => pid,
                    _ => self.pid_for(owner),
                };
                known = owner.map(|owner| (owner, pid));
                if !message.try_nest(entry, |message| describe_resource(message, resource, pid)) {
                    next = *key;
                    break;
                }
            }
        });
        if next == NetlinkAnswer::END && rows.len() == MOST_ROWS {
            next = rows.last().map_or(next, |row| row.key.saturating_add(1));
        }
        Ok((next, message.finish().ok_or(Errno::MSGSIZE)?))
    }

    fn objects(&self) -> Objects<'_> {
        Objects::new(&self.endpoint.account, self.devices, self.cm)
    }

    fn device(&self) -> Device {
        let spec = self.endpoint.account.spec();
        Device { capabilities: CAPABILITIES, node_guid: spec.node_guid(), ports: PORT.into() }
    }

    fn port(&self) -> Port {
        let interface = self.connection.interface().cloned().flatten();
        Port { number: PORT.into(), state: PORT_ACTIVE, phys_state: PORT_LINK_UP, interface }
    }

    /// The process id of `owner`, as the program sees it, if the process lives.
    fn pid_for(&self, owner: Option<&Process>) -> Option<u32> {
        owner?.number_for(self.connection.program().process())
    }
}

/// Whether a request is about the port, and so about the interface in the requester's network namespace.
pub(super) fn asks_for_port(body: &[u8]) -> bool {
    let message = NetlinkQuery::read_from_prefix(body).map(|(_, message)| message);
    let request = message.ok().and_then(|message| Request::parse(message).ok());
    request.is_some_and(|request| matches!(request.question, Ok(Question::Port)))
}

/// Objects that are looked at for one message: somewhat more than it holds.
const MOST_ROWS: usize = 64;
