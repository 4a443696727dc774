//! Tests with programs that connect through one manager, or through two with a network between them.

mod connecting;
mod hostile;
mod names;

use super::census::Census;
use super::event::Kind;
use super::{ConnectionManager, NodeSpec};
use crate::endpoint::EndpointId;
use crate::routes::SharedRoutes;
use rdmesh_nic::{ExternalId, ExternalPort, ReceivedMad, Route, Time};
use rdmesh_uverbs::abi::*;
use rdmesh_uverbs::session::Token;
use rdmesh_verbs::{Gid, Vni};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use zerocopy::{FromBytes, Immutable, IntoBytes};

const A: &str = "10.7.0.2";
const B: &str = "10.7.0.3";
const VNI: Vni = Vni(7);

fn gid(address: &str) -> Gid {
    Gid::from_ip(address.parse().unwrap())
}

/// Endpoints, and the managers that serve them.
struct World {
    managers: Vec<ConnectionManager>,
    now: Time,
    /// Of 256 messages between managers, how many are lost.
    lose: u64,
    carried: u64,
}

/// A channel of a program.
struct Channel {
    manager: usize,
    number: u32,
    fd: OwnedFd,
}

/// An event, as a program reads it.
struct Got {
    event: u32,
    id: u32,
    uid: u64,
    status: i32,
    response: EventResponse,
}

impl Got {
    fn connection(&self) -> ConnParam {
        ConnParam::read_from_prefix(&self.response.param).unwrap().0
    }

    fn datagram(&self) -> UdParam {
        UdParam::read_from_prefix(&self.response.param).unwrap().0
    }
}

impl World {
    /// Endpoints `A` and `B` of one host.
    fn one_host() -> Self {
        let routes = SharedRoutes::default();
        for address in [A, B, "fd00::2", "fd00::3"] {
            routes.change(|routes| routes.insert(VNI, gid(address), Route::Local));
        }
        let mut manager = ConnectionManager::new(1, routes);
        add(&mut manager, 0, &[A, "fd00::2"]);
        add(&mut manager, 1, &[B, "fd00::3"]);
        Self { managers: vec![manager], now: Time(1), lose: 0, carried: 0 }
    }

    /// The same on two hosts.
    fn two_hosts() -> Self {
        let hosts = ["192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap()];
        let managers = [(A, B), (B, A)].into_iter().enumerate().map(|(at, (own, other))| {
            let routes = SharedRoutes::default();
            routes.change(|routes| {
                routes.insert(VNI, gid(own), Route::Local);
                routes.insert(VNI, gid(other), Route::Host(hosts[1 - at]));
            });
            let mut manager = ConnectionManager::new(at as u64 + 1, routes);
            add(&mut manager, at as u32, &[own]);
            manager
        });
        Self { managers: managers.collect(), now: Time(1), lose: 0, carried: 0 }
    }

    /// Opens a channel in endpoint 0 or 1.
    fn open(&mut self, endpoint: u32) -> Channel {
        let manager = self.managers.len().min(endpoint as usize + 1) - 1;
        let token = Token([endpoint as u8; 16]);
        let (number, fd) = self.managers[manager].open(EndpointId(endpoint), 1, token).unwrap();
        Channel { manager, number, fd }
    }

    fn close(&mut self, channel: Channel) {
        self.managers[channel.manager].close(self.now, channel.number);
        self.carry();
    }

    /// Writes a command.
    fn write(&mut self, channel: &Channel, command: u32, body: &[u8]) -> Result<Vec<u8>, Errno> {
        let header = CmHeader { cmd: command, in_len: body.len() as u16, out_len: 1024 };
        let bytes = [header.as_bytes(), body].concat();
        let done = self.managers[channel.manager].command(self.now, channel.number, &bytes);
        self.carry();
        done
    }

    fn ask<R: FromBytes>(
        &mut self,
        channel: &Channel,
        command: u32,
        body: &(impl IntoBytes + Immutable),
    ) -> Result<R, Errno> {
        let response = self.write(channel, command, body.as_bytes())?;
        Ok(R::read_from_prefix(&response).expect("a whole response").0)
    }

    fn tell(&mut self, channel: &Channel, command: u32, body: &(impl IntoBytes + Immutable)) -> Result<(), Errno> {
        self.write(channel, command, body.as_bytes()).map(drop)
    }

    /// Carries messages between the managers until there are none.
    fn carry(&mut self) {
        loop {
            let mut is_quiet = true;
            for at in 0..self.managers.len() {
                while let Some(mad) = self.managers[at].poll_mad() {
                    is_quiet = false;
                    self.carried += 1;
                    let chance = self.carried.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
                    if self.managers.len() < 2 || chance < self.lose {
                        continue;
                    }
                    let received = ReceivedMad {
                        external_origin: None,
                        vni: Some(mad.path.vni),
                        source: mad.path.local,
                        dest: mad.path.remote,
                        bytes: mad.bytes,
                    };
                    self.managers[1 - at].receive(self.now, &received);
                }
            }
            if is_quiet {
                return;
            }
        }
    }

    /// Lets time pass, from one deadline to the next.
    fn pass(&mut self, nanoseconds: u64) {
        let end = Time(self.now.0 + nanoseconds);
        while let Some(next) = self.managers.iter().filter_map(ConnectionManager::poll_timeout).min()
            && next <= end
        {
            self.now = Time(next.0.max(self.now.0));
            let now = self.now;
            self.managers.iter_mut().for_each(|manager| manager.handle_timeout(now));
            self.carry();
        }
        self.now = end;
    }

    fn create(&mut self, channel: &Channel, ps: u16, uid: u64) -> u32 {
        let command = CreateId { uid, ps, ..Default::default() };
        self.ask::<CreateIdResponse>(channel, cm_command::CREATE_ID, &command).unwrap().id
    }

    fn destroy(&mut self, channel: &Channel, id: u32) -> Result<u32, Errno> {
        let command = DestroyId { id, ..Default::default() };
        Ok(self.ask::<DestroyIdResponse>(channel, cm_command::DESTROY_ID, &command)?.events_reported)
    }

    fn bind(&mut self, channel: &Channel, id: u32, address: &str) -> Result<(), Errno> {
        self.tell(channel, cm_command::BIND_IP, &BindIp { id, addr: ip(address), ..Default::default() })
    }

    fn listen(&mut self, channel: &Channel, id: u32, backlog: u32) -> Result<(), Errno> {
        self.tell(channel, cm_command::LISTEN, &Listen { id, backlog })
    }

    /// Resolves address and route, and reads the events of both.
    fn resolve(&mut self, channel: &Channel, id: u32, dest: &str) -> Result<(), Errno> {
        let command = ResolveIp { id, dst_addr: ip(dest), ..Default::default() };
        self.tell(channel, cm_command::RESOLVE_IP, &command)?;
        self.expect(channel, Kind::AddressResolved);
        self.tell(channel, cm_command::RESOLVE_ROUTE, &ResolveRoute { id, timeout_ms: 2000 })?;
        self.expect(channel, Kind::RouteResolved);
        Ok(())
    }

    fn connect(&mut self, channel: &Channel, id: u32, private: &[u8]) -> Result<(), Errno> {
        let conn_param = param(qpn_of(id), private);
        self.tell(channel, cm_command::CONNECT, &Connect { id, conn_param, ..Default::default() })
    }

    fn accept(&mut self, channel: &Channel, id: u32, uid: u64) -> Result<(), Errno> {
        let command = Accept { id, uid, conn_param: param(qpn_of(id), b"welcome"), ..Default::default() };
        self.tell(channel, cm_command::ACCEPT, &command)
    }

    /// The active side's answer to CONNECT_RESPONSE.
    fn ready(&mut self, channel: &Channel, id: u32) -> Result<(), Errno> {
        self.tell(channel, cm_command::ACCEPT, &Accept { id, ..Default::default() })
    }

    fn disconnect(&mut self, channel: &Channel, id: u32) -> Result<(), Errno> {
        self.tell(channel, cm_command::DISCONNECT, &Disconnect { id })
    }

    /// The next event, if there is one. The descriptor says so too.
    fn event(&mut self, channel: &Channel) -> Option<Got> {
        let mut fds = [PollFd::new(&channel.fd, PollFlags::IN)];
        let is_readable = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1;
        let got = self.ask::<EventResponse>(channel, cm_command::GET_EVENT, &GetEvent { response: 0 });
        assert_eq!(is_readable, got.is_ok());
        let response = match got {
            Ok(response) => response,
            Err(errno) => {
                assert_eq!(errno, Errno::AGAIN);
                return None;
            }
        };
        let EventResponse { event, id, uid, status, .. } = response;
        Some(Got { event, id, uid, status: status as i32, response })
    }

    fn expect(&mut self, channel: &Channel, kind: Kind) -> Got {
        let got = self.event(channel).unwrap_or_else(|| panic!("no event, but {kind:?} expected"));
        assert_eq!(got.event, kind as u32, "{kind:?} expected, status {}", got.status);
        got
    }

    fn expect_none(&mut self, channel: &Channel) {
        if let Some(got) = self.event(channel) {
            panic!("event {} of {}", got.event, got.id);
        }
    }

    /// A listener at `address`, of the channel's endpoint.
    fn listener(&mut self, channel: &Channel, ps: u16, address: &str) -> u32 {
        let id = self.create(channel, ps, 100);
        self.bind(channel, id, address).unwrap();
        self.listen(channel, id, 0).unwrap();
        id
    }

    /// A connection from the second endpoint to a listener of the first; returns the identifiers of both sides.
    fn connected(&mut self, server: &Channel, client: &Channel, port: u16) -> (u32, u32) {
        let active = self.create(client, cm_port_space::TCP, 1);
        self.resolve(client, active, &format!("{A}:{port}")).unwrap();
        self.connect(client, active, b"hello").unwrap();
        let passive = self.expect(server, Kind::ConnectRequest).id;
        self.accept(server, passive, 2).unwrap();
        self.expect(client, Kind::ConnectResponse);
        self.ready(client, active).unwrap();
        self.expect(server, Kind::Established);
        (passive, active)
    }

    /// Events that wait for the first endpoint's programs, as they are counted.
    fn waiting_events(&self) -> usize {
        self.managers[0].connections.registry.channels.waiting_in(EndpointId(0))
    }

    fn census(&self) -> Census {
        self.managers[0].census()
    }

    /// Nothing is left, once every time-wait is over.
    fn expect_nothing_left(&mut self) {
        self.pass(120_000_000_000);
        for manager in &self.managers {
            assert_eq!(manager.census(), Census::default());
            assert_eq!(manager.poll_timeout(), None);
            assert!(manager.connections.is_empty() && manager.connections.registry.places.has_no_ways());
        }
    }
}

fn add(manager: &mut ConnectionManager, endpoint: u32, addresses: &[&str]) {
    let mut gids = vec![gid(&format!("fe80::{}", endpoint + 1))];
    gids.extend(addresses.iter().map(|address| gid(address)));
    let spec = NodeSpec { vni: VNI, gids, guid: [endpoint as u8 + 1; 8], max_ids: 2000, memory: None };
    manager.add_node(EndpointId(endpoint), spec);
}

fn ip(address: &str) -> [u8; 28] {
    let address: SocketAddr = address.parse().unwrap();
    let mut bytes = [0; 28];
    super::address::encode(address, &mut bytes);
    bytes
}

fn param(qpn: u32, private: &[u8]) -> ConnParam {
    let (private_data, private_data_len) = super::event::padded(private);
    ConnParam {
        qp_num: qpn,
        private_data,
        private_data_len,
        responder_resources: 3,
        initiator_depth: 5,
        retry_count: 7,
        rnr_retry_count: 7,
        valid: 1,
        ..Default::default()
    }
}

/// The queue pair of an identifier: one that another connection seems to have is refused as stale.
fn qpn_of(id: u32) -> u32 {
    0x1000 + id % 0x80_0000
}

fn external() -> ExternalPort {
    ExternalPort { id: ExternalId(5), source_port: 4791 }
}
