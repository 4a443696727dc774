//! Requests of a NETLINK_RDMA socket.

use super::{DEVICE, Kind};
use rdmesh_uverbs::abi::netlink::{NLDEV, NetlinkHeader, client_and_command, netlink_flag, nldev, nldev_attr as attr};
use rustix::io::Errno;
use zerocopy::FromBytes;

/// One request, checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Request<'a> {
    /// Its header.
    pub(crate) header: NetlinkHeader,
    /// Whether a list is asked for.
    pub(crate) is_list: bool,
    /// The question; an error for an invalid one.
    pub(crate) question: Result<Question<'a>, Errno>,
}

/// Question of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Question<'a> {
    /// Attributes of the device.
    Device,
    /// Attributes of its port.
    Port,
    /// Settings of the system.
    System,
    /// Counts of objects.
    Summary,
    /// Objects of a kind: all of them, or one by its number.
    Objects(Kind, Option<u32>),
    /// Of a character device of a kind; of the device, or of the system.
    Chardev {
        /// `uverbs`, `rdma_cm` and so on.
        kind: &'a [u8],
        /// Whether it names the device.
        of_device: bool,
    },
    /// The port's counters.
    Statistic,
    /// Binding of counters to queue pairs: none.
    StatisticMode,
    /// Counters that are bound to something: there are none.
    Counters,
    /// The counters that the port has.
    StatisticStatus,
    /// A request that this command does not support.
    Nothing,
}

impl<'a> Request<'a> {
    /// Reads the request in `bytes`, which a program wrote. Requests that the kernel refuses before it looks at any attribute
    /// are an error here.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, Errno> {
        let (header, _) = NetlinkHeader::read_from_prefix(bytes).map_err(|_| Errno::INVAL)?;
        let attributes = bytes.get(size_of::<NetlinkHeader>()..header.len as usize).ok_or(Errno::INVAL)?;
        let (client, command) = client_and_command(header.kind);
        if client != NLDEV {
            // Other clients are the host's own affair (`rdma_nl_is_valid`).
            return Err(Errno::INVAL);
        }
        let shape = Shape::of(command).ok_or(Errno::INVAL)?;
        if shape == Shape::Privileged {
            return Err(Errno::PERM);
        }
        let is_list = header.flags & netlink_flag::DUMP != 0;
        if is_list && shape == Shape::One {
            return Err(Errno::INVAL);
        }
        Ok(Self { header, is_list, question: question(command, is_list, &Attributes(attributes)) })
    }
}

/// In which form a command answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shape {
    /// One answer.
    One,
    /// One answer, or a list.
    Any,
    /// Asked by an administrator of the host only, which no tenant is.
    Privileged,
}

impl Shape {
    fn of(command: u16) -> Option<Self> {
        Some(match command {
            nldev::SYS_GET | nldev::GET_CHARDEV | nldev::STAT_GET_STATUS => Self::One,
            nldev::GET | nldev::PORT_GET | nldev::STAT_GET | nldev::RES_GET => Self::Any,
            _ if Kind::of_command(command).is_some() => Self::Any,
            nldev::SET | nldev::NEWLINK | nldev::DELLINK | nldev::SYS_SET | nldev::STAT_SET | nldev::STAT_DEL => {
                Self::Privileged
            }
            nldev::RES_QP_GET_RAW | nldev::RES_CQ_GET_RAW | nldev::RES_MR_GET_RAW | nldev::RES_SRQ_GET_RAW => {
                Self::Privileged
            }
            nldev::NEWDEV | nldev::DELDEV => Self::Privileged,
            _ => return None,
        })
    }
}

fn question<'a>(command: u16, is_list: bool, attributes: &Attributes<'a>) -> Result<Question<'a>, Errno> {
    match command {
        nldev::GET | nldev::RES_GET if is_list => {}
        nldev::SYS_GET => {}
        nldev::GET_CHARDEV => return chardev(attributes),
        nldev::STAT_GET => return statistic(is_list, attributes),
        _ => attributes.device()?,
    }
    Ok(match command {
        nldev::GET => Question::Device,
        nldev::PORT_GET if is_list => Question::Port,
        nldev::PORT_GET => attributes.must_be_port().map(|()| Question::Port)?,
        nldev::SYS_GET => Question::System,
        nldev::RES_GET => Question::Summary,
        nldev::STAT_GET_STATUS => attributes.must_be_port().map(|()| Question::StatisticStatus)?,
        _ => match Kind::of_command(command) {
            Some(kind) => objects(kind, is_list, attributes)?,
            None => Question::Nothing,
        },
    })
}

fn objects<'a>(kind: Kind, is_list: bool, attributes: &Attributes<'a>) -> Result<Question<'a>, Errno> {
    let port = attributes.port()?;
    if is_list {
        return Ok(Question::Objects(kind, None));
    }
    // Some objects belong to a port, and are asked for there.
    let number = attributes.u32(kind.number_attribute())?.ok_or(Errno::INVAL)?;
    if port.is_some() == kind.is_of_port() { Ok(Question::Objects(kind, Some(number))) } else { Err(Errno::INVAL) }
}

fn chardev<'a>(attributes: &Attributes<'a>) -> Result<Question<'a>, Errno> {
    let kind = attributes.text(attr::CHARDEV_TYPE)?.ok_or(Errno::INVAL)?;
    let of_device = attributes.u32(attr::DEV_INDEX)?.is_some();
    if of_device {
        attributes.device()?;
        attributes.port()?;
    } else if attributes.u32(attr::PORT_INDEX)?.is_some() {
        return Err(Errno::INVAL);
    }
    Ok(Question::Chardev { kind, of_device })
}

fn statistic<'a>(is_list: bool, attributes: &Attributes<'a>) -> Result<Question<'a>, Errno> {
    let of = attributes.u32(attr::STAT_RES)?;
    match of.and_then(|of| u16::try_from(of).ok()) {
        None if is_list || of.is_some() => Err(Errno::INVAL),
        None => {
            attributes.device()?;
            attributes.must_be_port().map(|()| Question::Statistic)
        }
        Some(attr::RES_QP) if is_list => attributes.device().map(|()| Question::Counters),
        Some(attr::RES_QP) if attributes.u32(attr::STAT_COUNTER_ID)?.is_some() => Err(Errno::INVAL),
        Some(attr::RES_QP) => {
            attributes.u32(attr::STAT_MODE)?.ok_or(Errno::INVAL)?;
            attributes.device()?;
            attributes.must_be_port().map(|()| Question::StatisticMode)
        }
        Some(attr::RES_MR) if is_list => attributes.device().map(|()| Question::Counters),
        Some(_) => Err(Errno::INVAL),
    }
}

/// The attributes of a request. As in the kernel the last of a kind counts, and what comes after one that is too short or
/// too long is not looked at.
struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    /// Checks that the request names the device.
    fn device(&self) -> Result<(), Errno> {
        if self.u32(attr::DEV_INDEX)? == Some(DEVICE) { Ok(()) } else { Err(Errno::INVAL) }
    }

    /// The port that the request names, if any.
    fn port(&self) -> Result<Option<u32>, Errno> {
        match self.u32(attr::PORT_INDEX)? {
            Some(port) if port != PORT => Err(Errno::INVAL),
            port => Ok(port),
        }
    }

    fn must_be_port(&self) -> Result<(), Errno> {
        self.port()?.map(drop).ok_or(Errno::INVAL)
    }

    fn u32(&self, kind: u16) -> Result<Option<u32>, Errno> {
        let Some(value) = self.find(kind) else { return Ok(None) };
        value.first_chunk().map(|bytes| Some(u32::from_ne_bytes(*bytes))).ok_or(Errno::INVAL)
    }

    /// A string, without its NUL.
    fn text(&self, kind: u16) -> Result<Option<&'a [u8]>, Errno> {
        let Some(value) = self.find(kind) else { return Ok(None) };
        let end = value.iter().position(|byte| *byte == 0).ok_or(Errno::INVAL)?;
        Ok(Some(&value[..end]))
    }

    fn find(&self, kind: u16) -> Option<&'a [u8]> {
        let (mut rest, mut found) = (self.0, None);
        while let Some((header, _)) = rest.split_first_chunk::<4>() {
            let len = usize::from(u16::from_ne_bytes([header[0], header[1]]));
            let Some(value) = rest.get(4..len) else { break };
            if u16::from_ne_bytes([header[2], header[3]]) & TYPE_MASK == kind {
                found = Some(value);
            }
            rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        }
        found
    }
}

/// An attribute's type without its marks (`NLA_TYPE_MASK`).
const TYPE_MASK: u16 = 0x3fff;
/// The device's port.
const PORT: u32 = crate::endpoint::PORT as u32;
