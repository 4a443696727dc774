//! Forged packets of the tunnel, and copies of genuine ones.

use crate::hosts::Hosts;
use crate::program::{Output, Program};
use rdmesh_nic::wire::{Header, IpUdp, Op, Part, Reth, Service, geneve, icrc, padded};
use rdmesh_verbs::{Gid, Key, Psn, Qkey, Qpn, Vni};
use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

/// Alleged source and destination of a forged packet: on network `blue`, from host 1's endpoint to host 0's.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The queue pair.
    pub qpn: u32,
    /// The packet sequence number that it expects.
    pub psn: u32,
    /// A key to its memory.
    pub rkey: u32,
    /// An address there.
    pub addr: u64,
}

/// Appearance of a forged packet.
#[derive(Clone, Copy, Debug)]
pub enum Look {
    /// As without authentication.
    Plain,
    /// As a sealed one of this session, with this number.
    Sealed(u64, u64),
}

/// A WRITE of zeros into the target's memory.
pub fn write(target: &Target, look: Look) -> Vec<u8> {
    let reth = Reth { addr: target.addr, rkey: Key(target.rkey), len: 64 };
    let op = Op::Write { part: Part::Only, reth: Some(reth), imm: None };
    packet(header(Service::Rc, op, target), &[0; 64], look)
}

/// A datagram with a queue key.
pub fn datagram(target: &Target, qkey: u32, look: Look) -> Vec<u8> {
    let op = Op::Datagram { qkey: Qkey(qkey), source: Qpn::new(1), imm: None };
    packet(header(Service::Ud, op, target), &[0xee; 256], look)
}

/// A congestion notification.
pub fn notification(target: &Target, look: Look) -> Vec<u8> {
    packet(Header { becn: true, ..header(Service::Cnp, Op::Notification, target) }, &[], look)
}

/// A management datagram that asks for a connection.
pub fn mad(look: Look) -> Vec<u8> {
    const GSI_QKEY: u32 = 0x8001_0000;
    let op = Op::Datagram { qkey: Qkey(GSI_QKEY), source: Qpn::new(1), imm: None };
    let mut body = [0; 256];
    // Base version, class CM, class version, method Send; attribute ConnectRequest.
    body[..4].copy_from_slice(&[1, 7, 2, 3]);
    body[16..18].copy_from_slice(&[0, 0x10]);
    let target = Target { qpn: 1, psn: 0, rkey: 0, addr: 0 };
    packet(header(Service::Ud, op, &target), &body, look)
}

fn header(service: Service, op: Op, target: &Target) -> Header {
    Header {
        service,
        op,
        solicited: false,
        mig: true,
        pkey: 0xffff,
        fecn: false,
        becn: false,
        dest: Qpn::new(target.qpn),
        ack_request: true,
        takes_selective: false,
        is_repeated: false,
        has_telemetry: false,
        psn: Psn::new(target.psn),
    }
}

fn packet(header: Header, payload: &[u8], look: Look) -> Vec<u8> {
    let gid = |number| Gid::from_ip(Hosts::ip(number).parse::<IpAddr>().expect("an address"));
    let (traffic_class, hop_limit) = (0, 64);
    let ip =
        IpUdp { source: gid(1), dest: gid(0), traffic_class, hop_limit, flow_label: 0, id: 0, source_port: 0xc123 };
    let mut udp = vec![0; header.len() + padded(payload.len())];
    header.encode(payload.len(), &mut udp);
    udp[header.len()..][..payload.len()].copy_from_slice(payload);
    let crc = icrc::icrc(&ip, &udp);
    udp.extend(crc);
    let mut inner = vec![0; ip.len()];
    ip.encode(udp.len(), &mut inner);
    let mut packet = match look {
        Look::Plain => vec![0; geneve::LEN],
        Look::Sealed(..) => vec![0; geneve::SEALED_LEN],
    };
    match look {
        Look::Plain => geneve::encode(Vni(7), false, &mut packet),
        Look::Sealed(session, sequence) => {
            geneve::encode_sealed(Vni(7), false, &mut packet);
            geneve::write_seal(&mut packet, geneve::Seal { session, sequence });
            packet[geneve::TAG].fill(0x5a);
        }
    }
    packet.extend(inner);
    packet.extend(udp);
    packet
}

/// Sends UDP payloads to the tunnel's port of host 0, as an ordinary user of host 1.
pub fn send(hosts: &Hosts, from: &str, packets: &[Vec<u8>]) {
    try_send(hosts, from, packets).ok();
}

/// The same where it may be refused.
pub fn try_send(hosts: &Hosts, from: &str, packets: &[Vec<u8>]) -> Output {
    let script = "import socket, sys\n\
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
        s.bind((sys.argv[1], 0))\n\
        for line in sys.stdin: s.sendto(bytes.fromhex(line), (sys.argv[2], 6081))\n";
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{}", hosts.netns(1)));
    command.args(["--", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]);
    command.args(["/usr/bin/python3", "-c", script, from, &Hosts::address(0)]);
    let mut python = Program::start(command);
    for packet in packets {
        python.say(&packet.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    }
    python.close_stdin();
    python.finish(LIMIT)
}

/// Copies what host 1 sends through the tunnel. Datagrams that leave together look like one: they should be few and small.
pub struct Tap(Program);

impl Tap {
    /// Begins.
    pub fn start(hosts: &Hosts) -> Self {
        let script = "import socket, sys\n\
            s = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))\n\
            s.bind(('eth0', 3))\n\
            print('ready', flush=True)\n\
            while True:\n    \
                p, a = s.recvfrom(65536)\n    \
                h = 4 * (p[0] & 15)\n    \
                if a[1] == 0x800 and a[2] == 4 and p[9] == 17 and p[h+2:h+4] == b'\\x17\\xc1': print(p[h+8:].hex(), flush=True)\n";
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", hosts.netns(1))).args(["--", "/usr/bin/python3", "-c", script]);
        let mut program = Program::start(command);
        assert_eq!(program.next_line(LIMIT), "ready");
        Self(program)
    }

    /// The session of the next packet.
    pub fn session(&mut self) -> u64 {
        geneve::read_seal(&self.packet()).expect("a sealed packet").session
    }

    /// The next packet that is sealed.
    pub fn packet(&mut self) -> Vec<u8> {
        loop {
            let line = self.0.next_line(LIMIT);
            let byte = |at: usize| u8::from_str_radix(&line[at..at + 2], 16).expect("hexadecimal digits");
            let packet: Vec<u8> = (0..line.len()).step_by(2).map(byte).collect();
            if geneve::read_seal(&packet).is_some() {
                return packet;
            }
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.0.kill();
    }
}

const LIMIT: Duration = Duration::from_secs(20);
