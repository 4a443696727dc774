//! The programs that hold sockets to an endpoint's addresses.
//!
//! A program is given `struct bpf_sock_addr` for an address and `struct __sk_buff` for a packet (`linux/bpf.h`). Numbers in them are in network byte order, as they lie in memory.

mod writer;

use rdmesh_bpf::Register::{R0, R1, R2, R3, R4, R6, R7, R10};
use rdmesh_bpf::{Function, Instruction, Kind, SocketStorage};
use rustix::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use writer::{
    CREATE, IPPROTO_IPV6, IPV6_V6ONLY, LOOPBACK4, MAPPED_IP4, MULTICAST4, Note, OPTION_END, OPTION_LEVEL, OPTION_NAME,
    OPTION_SOCKET, OPTION_VALUE, PACKET_SOCKET, SOURCE_IP4, SOURCE_IP6, SOURCE4_AT, SOURCE6_AT, USER_IP4, USER_IP6,
    Writer, word,
};

/// An endpoint's own addresses, and what is noted of its sockets.
#[derive(Debug)]
pub(super) struct Own {
    v4: Vec<Ipv4Addr>,
    v6: Vec<Ipv6Addr>,
    storage: SocketStorage,
}

impl Own {
    pub(super) fn new(addresses: &[IpAddr]) -> io::Result<Self> {
        let mut own = Self { v4: Vec::new(), v6: Vec::new(), storage: SocketStorage::new()? };
        for address in addresses {
            match address {
                IpAddr::V4(address) => own.v4.push(*address),
                IpAddr::V6(address) => own.v6.push(*address),
            }
        }
        Ok(own)
    }

    /// All programs. `has_errors`: refusals say why, which the kernel allows from 5.18 on.
    pub(super) fn programs(&self, has_errors: bool) -> Vec<(Kind, Vec<Instruction>)> {
        let write = |body: Body, has_errors| {
            let mut writer = Writer::new(self);
            body(&mut writer);
            writer.finish(has_errors)
        };
        let asking = |body: Body| write(body, has_errors);
        let told = |body: Body| write(body, false);
        let mut programs = vec![
            (Kind::INGRESS, told(|program| program.ingress())),
            (Kind::EGRESS, told(|program| program.egress())),
            (Kind::BIND4, asking(|program| program.bind4())),
            (Kind::BIND6, asking(|program| program.bind6())),
            (Kind::CONNECT4, asking(|program| program.connect4())),
            (Kind::CONNECT6, asking(|program| program.connect6())),
            (Kind::SENDMSG4, asking(|program| program.sendmsg4())),
            (Kind::SENDMSG6, asking(|program| program.sendmsg6())),
            (Kind::RECVMSG4, told(|program| program.peer_name4())),
            (Kind::RECVMSG6, told(|program| program.peer_name6())),
            (Kind::GETPEERNAME4, told(|program| program.peer_name4())),
            (Kind::GETPEERNAME6, told(|program| program.peer_name6())),
            (Kind::GETSOCKNAME4, told(|program| program.own_name4())),
            (Kind::GETSOCKNAME6, told(|program| program.own_name6())),
        ];
        // Only where a wildcard of IPv6 could mean either family does it matter which the program wants.
        if self.is_dual() {
            programs.push((Kind::SETSOCKOPT, told(|program| program.setsockopt())));
        }
        programs
    }

    fn is_dual(&self) -> bool {
        !self.v4.is_empty() && !self.v6.is_empty()
    }
}

/// Function that writes one of the programs.
type Body = fn(&mut Writer<'_>);

/// An end of a connection.
#[derive(Clone, Copy)]
enum Name {
    Own,
    Peer,
}

impl Name {
    /// The note that has the very address.
    fn first(self) -> Note {
        match self {
            Self::Own => Note::BoundTo,
            Self::Peer => Note::ConnectedTo,
        }
    }

    /// The note that says of the other end that it is on loopback, and so is this one.
    fn second(self) -> Note {
        match self {
            Self::Own => Note::ConnectedTo,
            Self::Peer => Note::BoundTo,
        }
    }
}

impl Writer<'_> {
    fn bind4(&mut self) {
        let [loopback, wildcard] = self.labels();
        self.code.load_word(R7, R6, USER_IP4);
        self.code.jump_if_word(R7, 0, wildcard);
        self.jump_if_own4(R7, self.allow);
        self.jump_if_in4(R7, LOOPBACK4, loopback);
        self.jump_if_in4(R7, MULTICAST4, self.allow);
        self.code.jump(self.refuse);
        self.code.place(loopback);
        self.note(Note::BoundTo);
        self.code.place(wildcard);
        self.replace4(USER_IP4);
    }

    fn bind6(&mut self) {
        let [mapped, loopback, wildcard] = self.labels();
        self.jump_if_mapped(mapped);
        self.jump_if6(USER_IP6, Ipv6Addr::UNSPECIFIED, wildcard);
        self.jump_if_own6(USER_IP6, self.allow);
        self.jump_if6(USER_IP6, Ipv6Addr::LOCALHOST, loopback);
        self.code.load_word(R2, R6, USER_IP6);
        self.code.and(R2, word([0xff, 0, 0, 0]));
        self.code.jump_if_word(R2, word([0xff, 0, 0, 0]), self.allow);
        self.code.jump(self.refuse);

        self.code.place(loopback);
        self.code.set(R7, 1);
        self.note(Note::BoundTo);
        self.replace6(USER_IP6);

        self.code.place(wildcard);
        if self.own.is_dual() {
            let only_v6 = self.code.label();
            self.find_notes(self.refuse);
            self.code.load_word(R2, R0, Note::OnlyV6 as i16);
            self.code.jump_unless_word(R2, 0, only_v6);
            self.replace_mapped();
            self.code.place(only_v6);
            self.replace6(USER_IP6);
        } else if self.own.v4.is_empty() {
            self.replace6(USER_IP6);
        } else {
            self.replace_mapped();
        }

        self.code.place(mapped);
        let [loopback, wildcard] = self.labels();
        self.code.load_word(R7, R6, MAPPED_IP4);
        self.code.jump_if_word(R7, 0, wildcard);
        self.jump_if_own4(R7, self.allow);
        self.jump_if_in4(R7, LOOPBACK4, loopback);
        self.code.jump(self.refuse);
        self.code.place(loopback);
        self.note(Note::BoundTo);
        self.code.place(wildcard);
        self.replace4(MAPPED_IP4);
    }

    fn connect4(&mut self) {
        self.localize4(USER_IP4);
        self.bind_source4();
        self.code.jump(self.allow);
    }

    fn connect6(&mut self) {
        let [mapped, loopback, bind] = self.labels();
        self.jump_if_mapped(mapped);
        self.jump_if6(USER_IP6, Ipv6Addr::LOCALHOST, loopback);
        self.jump_if6(USER_IP6, Ipv6Addr::UNSPECIFIED, loopback);
        self.code.jump(bind);
        self.code.place(loopback);
        self.code.set(R7, 1);
        self.note(Note::ConnectedTo);
        self.set6(USER_IP6);
        self.code.place(bind);
        self.bind_source6();
        self.code.jump(self.allow);

        self.code.place(mapped);
        self.localize4(MAPPED_IP4);
        // To a socket for IPv6 the own address is a mapped one too.
        self.bind_source_mapped();
        self.code.jump(self.allow);
    }

    fn sendmsg4(&mut self) {
        self.localize4(USER_IP4);
        self.code.load_word(R2, R6, SOURCE_IP4);
        self.jump_if_own4(R2, self.allow);
        self.replace4(SOURCE_IP4);
    }

    fn sendmsg6(&mut self) {
        let [loopback, source] = self.labels();
        self.jump_if6(USER_IP6, Ipv6Addr::LOCALHOST, loopback);
        self.jump_if6(USER_IP6, Ipv6Addr::UNSPECIFIED, loopback);
        self.code.jump(source);
        self.code.place(loopback);
        self.code.set(R7, 1);
        self.note(Note::ConnectedTo);
        self.set6(USER_IP6);
        self.code.place(source);
        self.jump_if_own6(SOURCE_IP6, self.allow);
        self.replace6(SOURCE_IP6);
    }

    /// The address of a peer that is the endpoint's own: the loopback address that the program knows.
    fn peer_name4(&mut self) {
        self.name4(USER_IP4, Name::Peer);
    }

    fn peer_name6(&mut self) {
        self.name6(Name::Peer);
    }

    fn own_name4(&mut self) {
        self.name4(USER_IP4, Name::Own);
    }

    fn own_name6(&mut self) {
        self.name6(Name::Own);
    }

    /// An end of a connection within the endpoint that used loopback: the address as the program knows it.
    fn name4(&mut self, at: i16, name: Name) {
        let [own, bound, connected] = self.labels();
        self.code.load_word(R7, R6, at);
        self.jump_if_own4(R7, own);
        self.code.jump(self.allow);
        self.code.place(own);
        self.look_up_notes(self.allow);
        self.code.load_word(R2, R0, name.first() as i16);
        self.code.jump_if_word(R2, 0, bound);
        self.code.store_word(R6, at, R2);
        self.code.jump(self.allow);
        self.code.place(bound);
        self.code.load_word(R2, R0, name.second() as i16);
        self.code.jump_unless_word(R2, 0, connected);
        self.code.jump(self.allow);
        self.code.place(connected);
        self.code.set(R2, word(Ipv4Addr::LOCALHOST.octets()));
        self.code.store_word(R6, at, R2);
        self.code.jump(self.allow);
    }

    fn name6(&mut self, name: Name) {
        let [mapped, own, loopback] = self.labels();
        self.jump_if_mapped(mapped);
        self.jump_if_own6(USER_IP6, own);
        self.code.jump(self.allow);
        self.code.place(own);
        self.look_up_notes(self.allow);
        for note in [name.first(), name.second()] {
            self.code.load_word(R2, R0, note as i16);
            self.code.jump_unless_word(R2, 0, loopback);
        }
        self.code.jump(self.allow);
        self.code.place(loopback);
        self.store6(USER_IP6, Ipv6Addr::LOCALHOST);
        self.code.jump(self.allow);
        self.code.place(mapped);
        self.name4(MAPPED_IP4, name);
    }

    /// Notes whether the socket is for IPv6 alone. What is given is `struct bpf_sockopt`.
    fn setsockopt(&mut self) {
        self.code.load_word(R2, R6, OPTION_LEVEL);
        self.code.jump_unless_word(R2, IPPROTO_IPV6, self.allow);
        self.code.load_word(R2, R6, OPTION_NAME);
        self.code.jump_unless_word(R2, IPV6_V6ONLY, self.allow);
        self.code.load_long(R2, R6, OPTION_VALUE);
        self.code.load_long(R3, R6, OPTION_END);
        self.code.copy(R4, R2);
        self.code.add(R4, 4);
        self.code.jump_if_greater(R4, R3, self.allow);
        self.code.load_word(R7, R2, 0);
        self.code.load_long(R2, R6, OPTION_SOCKET);
        self.storage(CREATE, self.allow);
        self.code.store_word(R0, Note::OnlyV6 as i16, R7);
    }

    /// A packet leaves with an own address as its source.
    fn egress(&mut self) {
        let [v4, v6] = self.labels();
        self.jump_by_family(v4, v6);
        self.code.place(v4);
        self.load_bytes(SOURCE4_AT, -4, 4);
        self.code.load_word(R2, R10, -4);
        self.jump_if_own4(R2, self.allow);
        self.code.jump(self.refuse);
        self.code.place(v6);
        self.load_bytes(SOURCE6_AT, -16, 16);
        self.code.copy(R6, R10);
        self.jump_if_own6(-16, self.allow);
        self.code.jump(self.refuse);
    }

    /// A packet arrives for an own address, or a group; for a socket that is bound to loopback it comes from an own one too.
    fn ingress(&mut self) {
        let [v4, v6, own4, own6, other] = self.labels();
        self.jump_by_family(v4, v6);
        self.code.place(v4);
        self.load_bytes(SOURCE4_AT, -8, 8);
        self.code.load_word(R7, R10, -4);
        self.jump_if_own4(R7, own4);
        self.jump_if_in4(R7, MULTICAST4, self.allow);
        self.code.jump_if_word(R7, u32::MAX, self.allow);
        self.code.jump(self.refuse);
        self.code.place(own4);
        self.code.load_word(R2, R10, -8);
        self.jump_if_own4(R2, self.allow);
        self.code.jump(other);

        self.code.place(v6);
        self.load_bytes(SOURCE6_AT, -32, 32);
        // The address is looked for from a register on, which is needed for the socket after that.
        self.code.copy(R7, R6);
        self.code.copy(R6, R10);
        self.jump_if_own6(-16, own6);
        self.code.load_word(R2, R10, -16);
        self.code.and(R2, word([0xff, 0, 0, 0]));
        self.code.jump_if_word(R2, word([0xff, 0, 0, 0]), self.allow);
        self.code.jump(self.refuse);
        self.code.place(own6);
        self.jump_if_own6(-32, self.allow);
        self.code.copy(R6, R7);

        self.code.place(other);
        self.code.load_long(R1, R6, PACKET_SOCKET);
        self.code.jump_if_null(R1, self.allow);
        self.code.call(Function::SkFullsock);
        self.code.jump_if_null(R0, self.allow);
        self.code.copy(R2, R0);
        self.storage(0, self.allow);
        self.code.load_word(R2, R0, Note::BoundTo as i16);
        self.code.jump_unless_word(R2, 0, self.refuse);
    }
}
