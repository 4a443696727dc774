//! Underlay: the network between the hosts.

use crate::link::{Index, LOOPBACK, Links};
use std::io;
use std::net::IpAddr;

/// This host's address on the network between the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Underlay {
    address: IpAddr,
    mtu: u32,
}

/// Reason why an address cannot be the underlay's.
#[derive(Debug, thiserror::Error)]
pub enum UnderlayError {
    /// No interface has it.
    #[error("no interface of this host has the address {0}: `ip address` lists those there are")]
    NotHere(IpAddr),
    /// Other hosts cannot reach it.
    #[error("{0} does not name one host to the others: use a unicast address that is not link-local")]
    NotUnicast(IpAddr),
    /// No room would be left for the tenants' packets.
    #[error("the interface with {address} has an MTU of {mtu}, but the packets of tenants in the tunnel need {LEAST}")]
    MtuTooSmall {
        /// The address.
        address: IpAddr,
        /// The MTU.
        mtu: u32,
    },
    /// The kernel does not tell.
    #[error("looking for the interface with {address}: {source}")]
    Io {
        /// The address.
        address: IpAddr,
        /// The cause.
        source: io::Error,
    },
}

impl Underlay {
    /// The underlay on which this host, in the calling thread's network namespace, has `address`.
    pub fn find(address: IpAddr) -> Result<Self, UnderlayError> {
        let is_local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        if address.is_unspecified() || address.is_multicast() || is_local {
            return Err(UnderlayError::NotUnicast(address));
        }
        let found = Self::interface(address).map_err(|source| UnderlayError::Io { address, source })?;
        let (_, mtu) = found.ok_or(UnderlayError::NotHere(address))?;
        if mtu < LEAST {
            return Err(UnderlayError::MtuTooSmall { address, mtu });
        }
        Ok(Self { address, mtu })
    }

    /// The address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// MTU of the tenants: the underlay's MTU without the tunnel's headers.
    pub fn tenant_mtu(&self) -> u32 {
        (self.mtu - HEADERS).min(MOST)
    }

    /// Whether it is reached through the interface `index`.
    pub(crate) fn is_on(&self, index: Index) -> io::Result<bool> {
        Ok(Self::interface(self.address)?.is_some_and(|(own, _)| own == index))
    }

    fn interface(address: IpAddr) -> io::Result<Option<(Index, u32)>> {
        let mut links = Links::open()?;
        // All of 127.0.0.0/8 is here, listed or not.
        let holder = if address.is_loopback() { Some(LOOPBACK) } else { links.holder_of(address)? };
        let Some(index) = holder else { return Ok(None) };
        Ok(links.all()?.into_iter().find(|link| link.index == index).map(|link| (index, link.mtu)))
    }
}

/// IPv6, UDP, Geneve with its seal and an inner IPv6 header with its own UDP (40 + 8 + 44 + 48) are 140 bytes; IPv6, UDP,
/// VXLAN and an Ethernet header (40 + 8 + 8 + 14) are fewer.
const HEADERS: u32 = 146;
/// IPv6 needs 1280 (RFC 8200, 5).
const LEAST: u32 = 1280 + HEADERS;
/// The largest of a veth device.
const MOST: u32 = 65_535;
