//! Identifier commands: create, destroy, migrate, bind and listen.

use super::{Call, DONE};
use crate::cm::ConnectionManager;
use crate::cm::address::{self, Address};
use crate::cm::id::{Id, PortSpace, State};
use crate::cm::ports::Binding;
use rdmesh_uverbs::abi::{
    Bind, BindIp, CreateId, CreateIdResponse, DestroyId, DestroyIdResponse, Listen, MigrateId, MigrateResponse,
};
use rustix::io::Errno;
use std::net::{Ipv4Addr, SocketAddr};

/// Connection requests that may wait where the program does not say how many (`UCMA_MAX_BACKLOG`).
const MAX_BACKLOG: u32 = 1024;

impl ConnectionManager {
    pub(super) fn create_id(&mut self, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
        call.needs_room(size_of::<CreateIdResponse>())?;
        let command: CreateId = call.read()?;
        let space = PortSpace::from_number(command.ps).ok_or(Errno::INVAL)?;
        let qp_type = space.qp_type(command.qp_type)?;
        let endpoint = self.channels.get(&call.channel).ok_or(Errno::BADF)?.endpoint;
        let psn = self.random_psn();
        let id = Id { uid: Some(command.uid), ..Id::new(endpoint, call.channel, space, qp_type, psn) };
        let id = self.insert(id)?;
        call.respond(&CreateIdResponse { id })
    }

    pub(super) fn destroy_id(&mut self, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
        call.needs_room(size_of::<DestroyIdResponse>())?;
        let command: DestroyId = call.read()?;
        let id = self.id(call, command.id)?;
        let gap = id.source.filter(|_| id.state == State::Listen).map(|source| (id.endpoint, id.space, source.port()));
        let events_reported = self.destroy(call.now, command.id);
        if let Some(place) = gap {
            self.vacancies.open(call.now, place);
        }
        call.respond(&DestroyIdResponse { events_reported })
    }

    /// Moves an identifier from its channel to the one that the command was written to, with its waiting events.
    pub(super) fn migrate(&mut self, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
        call.needs_room(size_of::<MigrateResponse>())?;
        let command: MigrateId = call.read()?;
        let from = command.fd;
        // Before the identifier is looked up: a program must not learn which ones other endpoints' channels have.
        let endpoint = |channel| self.channels.get(&channel).map(|channel| channel.endpoint);
        if endpoint(from) != endpoint(call.channel) {
            return Err(Errno::INVAL);
        }
        let events_reported = self.id(&Call { channel: from, ..*call }, command.id)?.reported;
        self.hand_over(command.id, call.channel);
        if from != call.channel {
            for event in self.unqueue(from, |channel| channel.withdraw(command.id)) {
                if let Some(child) = event.child {
                    self.hand_over(child, call.channel);
                }
                self.queue(call.channel, event);
            }
        }
        call.respond(&MigrateResponse { events_reported })
    }

    pub(super) fn bind_ip(&mut self, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
        let command: BindIp = call.read()?;
        // Of this command, unlike of BIND, only addresses of IP are taken.
        let Some(Address::Ip(address)) = address::decode(&command.addr).map_err(|_| Errno::INVAL)? else {
            return Err(Errno::INVAL);
        };
        self.id(call, command.id)?;
        self.bind_to(command.id, address)?;
        Ok(DONE)
    }

    pub(super) fn bind_any(&mut self, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
        let command: Bind = call.read()?;
        check_size(command.addr_size, &command.addr, command.reserved)?;
        self.id(call, command.id)?;
        match address::decode(&command.addr)?.ok_or(Errno::AFNOSUPPORT)? {
            Address::Ip(address) => self.bind_to(command.id, address)?,
            Address::IbAny => self.id_mut(call, command.id)?.advance(State::Idle, State::Bound)?,
            Address::Ib => return Err(Errno::NODEV),
        }
        Ok(DONE)
    }

    /// Binds (`rdma_bind_addr`).
    pub(super) fn bind_to(&mut self, number: u32, address: SocketAddr) -> Result<(), Errno> {
        let id = self.ids.get_mut(&number).ok_or(Errno::NOENT)?;
        id.must_be(State::Idle)?;
        if let SocketAddr::V6(v6) = address
            && address::is_link_local(address.ip())
            && v6.scope_id() == 0
        {
            return Err(Errno::INVAL);
        }
        let node = self.nodes.get_mut(&id.endpoint).ok_or(Errno::NODEV)?;
        let mut source = address;
        if address.ip().is_loopback() {
            source.set_ip(node.itself(address.ip()).ok_or(Errno::ADDRNOTAVAIL)?);
        }
        let device = match source.ip().is_unspecified() {
            true => None,
            false => Some(node.device_at(source.ip()).ok_or(Errno::ADDRNOTAVAIL)?),
        };
        // The kernel's `bindv6only` is 0: an IPv6 wildcard takes IPv4 too.
        let only_family = id.options.only_family.unwrap_or(source.is_ipv4());
        let binding = Binding { owner: number, address: source, reuse: id.options.reuse, only_family };
        source.set_port(node.ports.bind(id.space, binding)?);
        id.options.only_family = Some(only_family);
        id.source = Some(source);
        id.only_self = address.ip().is_loopback();
        id.is_bound = true;
        id.device = device;
        id.state = State::Bound;
        Ok(())
    }

    pub(super) fn listen(&mut self, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
        let command: Listen = call.read()?;
        let state = self.id(call, command.id)?.state;
        if state == State::Idle {
            self.bind_to(command.id, SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))?;
        }
        let id = self.ids.get_mut(&command.id).ok_or(Errno::NOENT)?;
        id.must_be(State::Bound)?;
        // An identifier that is bound to AF_IB's wildcard finds no device that knows the family.
        let source = id.source.ok_or(Errno::NODEV)?;
        let node = self.nodes.get_mut(&id.endpoint).ok_or(Errno::NODEV)?;
        node.ports.claim(id.space, source.port(), command.id)?;
        id.options.reuse = false;
        // The kernel reads it as a signed number.
        let asked = if command.backlog as i32 <= 0 { MAX_BACKLOG } else { command.backlog };
        id.backlog = asked.min(MAX_BACKLOG);
        id.state = State::Listen;
        let place = (id.endpoint, id.space, source.port());
        for (comm, event) in self.vacancies.close(place) {
            self.handle_event(call.now, comm, event);
        }
        Ok(DONE)
    }
}

/// Checks the length of an address as `ucma` does.
pub(super) fn check_size(size: u16, address: &[u8], reserved: u16) -> Result<(), Errno> {
    let family = u16::from_ne_bytes([address[0], address[1]]);
    let expected = match family {
        2 => 16,
        10 => 28,
        27 => 48,
        _ => 0,
    };
    if reserved != 0 || size == 0 || size != expected { Err(Errno::INVAL) } else { Ok(()) }
}
