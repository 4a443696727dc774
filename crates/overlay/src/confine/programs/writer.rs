//! Building blocks of the programs: comparison and replacement of addresses, notes in a socket's storage.

use super::Own;
use rdmesh_bpf::Register::{R0, R1, R2, R3, R4, R6, R7, R10};
use rdmesh_bpf::{Assembler, Function, Instruction, Label, Register};
use rustix::io::Errno;
use std::net::{Ipv4Addr, Ipv6Addr};

/// A program that is being written: `R6` is what it was given.
pub(super) struct Writer<'a> {
    pub(super) own: &'a Own,
    pub(super) code: Assembler,
    pub(super) allow: Label,
    pub(super) refuse: Label,
}

/// Note about a socket: the offset of its word in the socket's storage.
#[derive(Clone, Copy)]
pub(super) enum Note {
    /// The loopback address that it was bound to: programs of other endpoints do not reach it. For IPv6 any number but zero.
    BoundTo = 0,
    /// The loopback address that it was connected to, or sent a datagram to.
    ConnectedTo = 4,
    /// Whether it is for IPv6 alone.
    OnlyV6 = 8,
}

impl<'a> Writer<'a> {
    pub(super) fn new(own: &'a Own) -> Self {
        let mut code = Assembler::new();
        let [allow, refuse] = [code.label(), code.label()];
        // Calls leave this register alone.
        code.copy(R6, R1);
        Self { own, code, allow, refuse }
    }

    /// A destination on loopback, or none, becomes the own address, and is noted.
    pub(super) fn localize4(&mut self, at: i16) {
        let [loopback, none, done] = self.labels();
        self.code.load_word(R7, R6, at);
        self.code.jump_if_word(R7, 0, none);
        self.jump_if_in4(R7, LOOPBACK4, loopback);
        self.code.jump(done);
        self.code.place(none);
        self.code.set(R7, word(Ipv4Addr::LOCALHOST.octets()));
        self.code.place(loopback);
        match self.own.v4.first() {
            Some(own) => {
                self.note(Note::ConnectedTo);
                self.code.set(R2, word(own.octets()));
                self.code.store_word(R6, at, R2);
            }
            None => self.code.jump(self.refuse),
        }
        self.code.place(done);
    }

    /// A socket that is not bound gets the own address as its source; one that is keeps what it has.
    pub(super) fn bind_source4(&mut self) {
        let Some(own) = self.own.v4.first() else { return self.code.jump(self.refuse) };
        let address = [AF_INET, word(own.octets()), 0, 0];
        self.bind_source(&address);
    }

    pub(super) fn bind_source6(&mut self) {
        let Some(own) = self.own.v6.first().copied() else { return self.code.jump(self.refuse) };
        self.bind_source_to6(own);
    }

    pub(super) fn bind_source_mapped(&mut self) {
        let Some(own) = self.own.v4.first() else { return self.code.jump(self.refuse) };
        self.bind_source_to6(own.to_ipv6_mapped());
    }

    pub(super) fn bind_source_to6(&mut self, address: Ipv6Addr) {
        let [a, b, c, d] = words6(address);
        self.bind_source(&[AF_INET6, 0, a, b, c, d, 0]);
    }

    /// Binds to an address as `struct sockaddr_in` or `sockaddr_in6` has it, in words, with port zero.
    pub(super) fn bind_source(&mut self, address: &[u32]) {
        let len = 4 * address.len() as u32;
        // The stack is written in whole words, from a multiple of eight bytes on.
        let start = -(len.next_multiple_of(8).cast_signed());
        for (at, &part) in (start..).step_by(4).zip(address) {
            self.code.set(R2, part);
            self.code.store_word(R10, at as i16, R2);
        }
        self.code.copy(R1, R6);
        self.code.copy(R2, R10);
        self.code.add(R2, start);
        self.code.set(R3, len);
        self.code.call(Function::Bind);
    }

    /// Notes `R7`.
    pub(super) fn note(&mut self, note: Note) {
        self.find_notes(self.refuse);
        self.code.store_word(R0, note as i16, R7);
    }

    /// `R0` = what is noted of the socket, made if nothing is; goes on at `failed` where there is no memory.
    pub(super) fn find_notes(&mut self, failed: Label) {
        self.code.load_long(R2, R6, ADDRESS_SOCKET);
        self.storage(CREATE, failed);
    }

    /// `R0` = what is noted of the socket; goes on at `none` where nothing is.
    pub(super) fn look_up_notes(&mut self, none: Label) {
        self.code.load_long(R2, R6, ADDRESS_SOCKET);
        self.storage(0, none);
    }

    /// `R0` = what is noted of the socket in `R2`.
    pub(super) fn storage(&mut self, flags: u32, none: Label) {
        self.code.set_table(R1, self.own.storage.number());
        self.code.set(R3, 0);
        self.code.set(R4, flags);
        self.code.call(Function::SkStorageGet);
        self.code.jump_if_null(R0, none);
    }

    /// Puts the first own address there, and ends.
    pub(super) fn replace4(&mut self, at: i16) {
        let Some(own) = self.own.v4.first() else { return self.code.jump(self.refuse) };
        self.code.set(R2, word(own.octets()));
        self.code.store_word(R6, at, R2);
        self.code.jump(self.allow);
    }

    pub(super) fn replace6(&mut self, at: i16) {
        self.set6(at);
        self.code.jump(self.allow);
    }

    /// Puts the first own address there; refuses where there is none.
    pub(super) fn set6(&mut self, at: i16) {
        match self.own.v6.first().copied() {
            Some(own) => self.store6(at, own),
            None => self.code.jump(self.refuse),
        }
    }

    pub(super) fn replace_mapped(&mut self) {
        let Some(own) = self.own.v4.first() else { return self.code.jump(self.refuse) };
        let mapped = own.to_ipv6_mapped();
        self.store6(USER_IP6, mapped);
        self.code.jump(self.allow);
    }

    pub(super) fn store6(&mut self, at: i16, address: Ipv6Addr) {
        for (at, part) in (at..).step_by(4).zip(words6(address)) {
            self.code.set(R2, part);
            self.code.store_word(R6, at, R2);
        }
    }

    pub(super) fn jump_if_own4(&mut self, register: Register, label: Label) {
        for own in &self.own.v4 {
            self.code.jump_if_word(register, word(own.octets()), label);
        }
    }

    pub(super) fn jump_if_own6(&mut self, at: i16, label: Label) {
        for own in self.own.v6.clone() {
            self.jump_if6(at, own, label);
        }
    }

    /// Compares what `R6` leads to.
    pub(super) fn jump_if6(&mut self, at: i16, address: Ipv6Addr, label: Label) {
        let other = self.code.label();
        for (at, part) in (at..).step_by(4).zip(words6(address)) {
            self.code.load_word(R2, R6, at);
            self.code.jump_unless_word(R2, part, other);
        }
        self.code.jump(label);
        self.code.place(other);
    }

    /// Goes on at `label` where the address is one of IPv4 in that of IPv6 (RFC 4291, 2.5.5.2).
    pub(super) fn jump_if_mapped(&mut self, label: Label) {
        let other = self.code.label();
        let [a, b, c, _] = words6(Ipv4Addr::UNSPECIFIED.to_ipv6_mapped());
        for (at, part) in (USER_IP6..).step_by(4).zip([a, b, c]) {
            self.code.load_word(R2, R6, at);
            self.code.jump_unless_word(R2, part, other);
        }
        self.code.jump(label);
        self.code.place(other);
    }

    /// Goes on at `label` where the address is in a range, given as mask and prefix.
    pub(super) fn jump_if_in4(&mut self, register: Register, Range4 { mask, prefix }: Range4, label: Label) {
        self.code.copy(R3, register);
        self.code.and(R3, word(mask));
        self.code.jump_if_word(R3, word(prefix), label);
    }

    /// Goes on by the family of a packet. What is no IP at all passes.
    pub(super) fn jump_by_family(&mut self, v4: Label, v6: Label) {
        self.code.load_word(R2, R6, PACKET_PROTOCOL);
        self.code.jump_if_word(R2, u32::from(ETH_P_IP.to_be()), v4);
        self.code.jump_if_word(R2, u32::from(ETH_P_IPV6.to_be()), v6);
        self.code.jump(self.allow);
    }

    /// Loads bytes of the packet, counted from its IP header, to the stack.
    pub(super) fn load_bytes(&mut self, at: u32, to: i32, len: u32) {
        self.code.copy(R1, R6);
        self.code.set(R2, at);
        self.code.copy(R3, R10);
        self.code.add(R3, to);
        self.code.set(R4, len);
        self.code.call(Function::SkbLoadBytes);
        self.code.jump_unless_word(R0, 0, self.refuse);
    }

    pub(super) fn labels<const N: usize>(&mut self) -> [Label; N] {
        std::array::from_fn(|_| self.code.label())
    }

    /// The ends of a program: falls through to the one that allows.
    pub(super) fn finish(mut self, has_errors: bool) -> Vec<Instruction> {
        self.code.place(self.allow);
        self.code.end(1);
        self.code.place(self.refuse);
        if has_errors {
            self.code.set(R1, Errno::ADDRNOTAVAIL.raw_os_error().wrapping_neg().cast_unsigned());
            self.code.call(Function::SetRetval);
        }
        self.code.end(0);
        self.code.finish()
    }
}

/// Addresses with the same first bits.
#[derive(Clone, Copy)]
pub(super) struct Range4 {
    mask: [u8; 4],
    prefix: [u8; 4],
}

pub(super) const LOOPBACK4: Range4 = Range4 { mask: [0xff, 0, 0, 0], prefix: [127, 0, 0, 0] };
pub(super) const MULTICAST4: Range4 = Range4 { mask: [0xf0, 0, 0, 0], prefix: [0xe0, 0, 0, 0] };

pub(super) fn word(octets: [u8; 4]) -> u32 {
    u32::from_ne_bytes(octets)
}

pub(super) fn words6(address: Ipv6Addr) -> [u32; 4] {
    let octets = address.octets();
    std::array::from_fn(|at| word([octets[4 * at], octets[4 * at + 1], octets[4 * at + 2], octets[4 * at + 3]]))
}

/// Of `struct bpf_sock_addr`.
pub(super) const USER_IP4: i16 = 4;
pub(super) const USER_IP6: i16 = 8;
/// The address of IPv4 in one of IPv6.
pub(super) const MAPPED_IP4: i16 = USER_IP6 + 12;
pub(super) const SOURCE_IP4: i16 = 40;
pub(super) const SOURCE_IP6: i16 = 44;
const ADDRESS_SOCKET: i16 = 64;
/// Of `struct __sk_buff`.
const PACKET_PROTOCOL: i16 = 16;
pub(super) const PACKET_SOCKET: i16 = 168;
/// Of `struct bpf_sockopt`.
pub(super) const OPTION_SOCKET: i16 = 0;
pub(super) const OPTION_VALUE: i16 = 8;
pub(super) const OPTION_END: i16 = 16;
pub(super) const OPTION_LEVEL: i16 = 24;
pub(super) const OPTION_NAME: i16 = 28;
/// `linux/in6.h`.
pub(super) const IPPROTO_IPV6: u32 = 41;
pub(super) const IPV6_V6ONLY: u32 = 26;
/// Of the headers of IP.
pub(super) const SOURCE4_AT: u32 = 12;
pub(super) const SOURCE6_AT: u32 = 8;
const ETH_P_IP: u16 = 0x0800;
const ETH_P_IPV6: u16 = 0x86dd;
/// The families, as the first word of a socket address with port zero.
const AF_INET: u32 = u16_first(2);
const AF_INET6: u32 = u16_first(10);
/// `BPF_SK_STORAGE_GET_F_CREATE`.
pub(super) const CREATE: u32 = 1;

/// A word whose first half in memory is `value`.
pub(super) const fn u16_first(value: u16) -> u32 {
    let [a, b] = value.to_ne_bytes();
    u32::from_ne_bytes([a, b, 0, 0])
}
