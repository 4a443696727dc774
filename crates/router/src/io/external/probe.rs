//! Kernel probe for plain RoCEv2: the IPv4 identification that the kernel gives to datagrams.
//!
//! The invariant CRC covers the identification of the IPv4 header, which the kernel chooses. From an unconnected socket that
//! never fragments it is 0, and the datagrams of one segmented message have 0, 1, 2 and so on. The probe verifies that without
//! privilege: a socket filter cuts every datagram to as many bytes as its identification says.

use crate::io::control::Control;
use crate::io::raw::{self, Instruction, Message, Name, Slot};
use crate::io::socket::{Purpose, Socket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{self, Errno};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;

/// Reason why plain RoCEv2 over IPv4 cannot be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProbeError {
    /// No socket, or no segmentation.
    #[error("the kernel does not segment UDP messages: {0}")]
    Unavailable(#[from] Errno),
    /// Other numbers.
    #[error("the kernel numbers the datagrams of a segmented message {0:?}, and not 0, 1, 2, 3")]
    Numbers([usize; COUNT]),
    /// They did not come.
    #[error("the datagrams of a segmented message do not all arrive on the loopback interface")]
    Lost,
}

/// Sends a segmented message through the loopback interface and looks at how its datagrams are numbered.
pub fn probe() -> Result<(), ProbeError> {
    let (receiver, address) = receiver()?;
    let sender = Socket::open(ANY, Purpose { heeds_path: true, ..Purpose::default() })?;
    let mut control = Control::EMPTY;
    control.push_segment(SEGMENT as u16);
    let message = Message { bytes: &[0; SEGMENT * COUNT], name: Name::new(address), control };
    sender.send(&[message])?;
    let mut numbers = [SEGMENT; COUNT];
    let mut slot =
        [Slot { bytes: [0; SEGMENT].into(), len: 0, is_cut: false, name: Name::EMPTY, control: Control::EMPTY }];
    for number in &mut numbers {
        // On this interface it has arrived already, as a rule.
        if poll(&mut [PollFd::new(&receiver, PollFlags::IN)], Some(&TIMEOUT))? == 0 {
            return Err(ProbeError::Lost);
        }
        receiver.receive(&mut slot)?;
        *number = slot[0].len;
    }
    if numbers.iter().enumerate().all(|(at, &number)| at == number) {
        Ok(())
    } else {
        Err(ProbeError::Numbers(numbers))
    }
}

/// A socket that receives as many bytes of a datagram as its identification says.
fn receiver() -> io::Result<(Socket, SocketAddr)> {
    let socket = Socket::open(ANY, Purpose::default())?;
    raw::set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 0)?;
    cut_to_identification(&socket)?;
    let name = rustix::net::getsockname(socket.as_fd())?;
    Ok((socket, name.try_into()?))
}

/// Has `socket` receive only as many bytes of a datagram as its identification says.
pub(in crate::io) fn cut_to_identification(socket: &Socket) -> io::Result<()> {
    let program = [
        op(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, IDENTIFICATION),
        op(libc::BPF_ALU | libc::BPF_ADD | libc::BPF_K, UDP_HEADER),
        op(libc::BPF_RET | libc::BPF_A, 0),
    ];
    raw::attach(socket.as_fd(), libc::SO_ATTACH_FILTER, &program)
}

fn op(code: u32, k: u32) -> Instruction {
    Instruction { code: code as u16, jt: 0, jf: 0, k }
}

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const COUNT: usize = 4;
const SEGMENT: usize = 64;
/// Bytes 4 and 5 of the IP header (`SKF_NET_OFF` of `linux/filter.h`).
const IDENTIFICATION: u32 = (-0x10_0000_i32).cast_unsigned() + 4;
const UDP_HEADER: u32 = 8;
const TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_kernel_numbers_datagrams_from_zero() {
        assert_eq!(probe(), Ok(()));
    }

    #[test]
    fn other_numbers_are_noticed() {
        // A connected socket numbers its datagrams otherwise.
        let (receiver, address) = receiver().unwrap();
        let sender = std::net::UdpSocket::bind(ANY).unwrap();
        sender.connect(address).unwrap();
        let mut lens = Vec::new();
        for _ in 0..4 {
            sender.send(&[0; SEGMENT]).unwrap();
            let mut slots = [Slot {
                bytes: [0; SEGMENT].into(),
                len: 0,
                is_cut: false,
                name: Name::EMPTY,
                control: Control::EMPTY,
            }];
            while receiver.receive(&mut slots) == Err(Errno::AGAIN) {}
            lens.push(slots[0].len);
        }
        assert_ne!(lens, [0, 1, 2, 3]);
    }
}
