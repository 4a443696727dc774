//! Answers to NETLINK_RDMA requests: the device, its port, and the endpoint's own objects.

use super::commands::{CAPABILITIES, PORT_ACTIVE, PORT_LINK_UP};
use super::connection::Answer;
use super::program::Process;
use super::reply::Reply;
use super::resources::Row;
use super::server::Server;
use crate::endpoint::{EndpointId, PORT, hw_counters};
use crate::netlink::{
    Device, Kind, Message, Port, Question, Request, describe_chardev, describe_device, describe_port,
    describe_resource, describe_statistic, describe_status, describe_summary, describe_system, handle,
};
use rdmesh_uverbs::abi::netlink::{NetlinkHeader, netlink_flag};
use rdmesh_uverbs::session::{NetlinkAnswer, NetlinkQuery};
use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

impl Server {
    /// Answers one netlink request.
    pub(super) fn netlink(&mut self, id: u64, body: &[u8]) -> Answer {
        let (query, message) = NetlinkQuery::read_from_prefix(body).map_err(|_| Errno::INVAL)?;
        let request = Request::parse(message)?;
        let found = request.question.and_then(|question| self.answer_question(id, &query, &request, question));
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
        id: u64,
        query: &NetlinkQuery,
        request: &Request<'_>,
        question: Question<'_>,
    ) -> Result<(u64, Vec<u8>), Errno> {
        let endpoint = self.clients.get(id).ok_or(Errno::INVAL)?.endpoint;
        let mut message = Message::new(NetlinkHeader {
            len: 0,
            kind: request.header.kind,
            flags: if request.is_list { netlink_flag::MULTI } else { 0 },
            seq: request.header.seq,
            port_id: query.port_id,
        });
        match question {
            Question::Device => describe_device(&mut message, &self.device(endpoint)?),
            Question::Port => describe_port(&mut message, &self.port(id)?),
            Question::System => describe_system(&mut message),
            Question::Summary => describe_summary(&mut message, &self.count_resources(endpoint)),
            Question::Chardev { kind, of_device } => {
                if !describe_chardev(&mut message, kind, of_device) {
                    return Err(Errno::OPNOTSUPP);
                }
            }
            Question::Statistic => {
                let sum = self.present_traffic(endpoint)?;
                describe_statistic(&mut message, PORT.into(), hw_counters().map(|(name, get)| (name, get(&sum))));
            }
            Question::StatisticStatus => {
                describe_status(&mut message, PORT.into(), Some(hw_counters().map(|(name, _)| name)));
            }
            Question::StatisticMode => describe_status(&mut message, PORT.into(), None::<std::iter::Empty<_>>),
            Question::Objects(kind, None) => return self.list(id, kind, query.from, message),
            Question::Objects(kind, Some(number)) => {
                let row = self.find_resource(endpoint, kind, number).ok_or(Errno::NOENT)?;
                handle(&mut message);
                describe_resource(&mut message, &row.resource, self.pid_for(id, row.owner.as_deref()));
            }
            Question::Counters | Question::Nothing => return Ok((NetlinkAnswer::END, Vec::new())),
        }
        Ok((NetlinkAnswer::END, message.finish().ok_or(Errno::MSGSIZE)?))
    }

    /// One part of a list, as much as one message holds.
    fn list(&self, id: u64, kind: Kind, from: u64, mut message: Message) -> Result<(u64, Vec<u8>), Errno> {
        let endpoint = self.clients.get(id).ok_or(Errno::INVAL)?.endpoint;
        let rows = self.resources(endpoint, kind, from, MOST_ROWS);
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
                    _ => self.pid_for(id, owner),
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

    fn device(&self, endpoint: EndpointId) -> Result<Device, Errno> {
        let spec = &self.accounts.get(endpoint).ok_or(Errno::NODEV)?.account.spec;
        Ok(Device { capabilities: CAPABILITIES, node_guid: spec.node_guid(), ports: PORT.into() })
    }

    fn port(&self, id: u64) -> Result<Port, Errno> {
        let interface = self.clients.get(id).ok_or(Errno::INVAL)?.interface.clone().flatten();
        Ok(Port { number: PORT.into(), state: PORT_ACTIVE, phys_state: PORT_LINK_UP, interface })
    }

    /// The process id of `owner`, as the program on connection `id` sees it, if the process lives.
    fn pid_for(&self, id: u64, owner: Option<&Process>) -> Option<u32> {
        owner?.number_for(&self.clients.get(id)?.program)
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
