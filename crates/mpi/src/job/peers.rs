//! Peers: the other ranks, and the connections to them.
//!
//! ```text
//!            announce              Welcome, or Hello that crosses ours
//!  unknown ───────────► asked ─────────────────────────────────────────► connected
//!     │                   │ Refuse, Absent                                    │ Broken, a failed request
//!     │ Hello             ▼                                                   ▼
//!     └──────────────► connected                                            plain (for some time, or for ever)
//! ```

use crate::control::{Control, Kind, Site};
use crate::report::Way;
use crate::verbs::{Connection, Device, Port};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Time after which a rank that had not joined is asked again.
const RETRY: Duration = Duration::from_secs(1);

/// The ranks that were met.
pub(crate) struct Peers {
    site: Site,
    known: HashMap<u32, Peer>,
}

enum Peer {
    Asked { connection: Connection, own: Port },
    Connected(Link),
    Plain { way: Way, until: Option<Instant> },
}

/// A connection in use.
pub(crate) struct Link {
    pub(crate) connection: Connection,
    /// Work requests without a completion yet.
    pub(crate) posted: u32,
    /// Whether it leads to a process of this machine.
    is_same_machine: bool,
}

impl Link {
    fn new(connection: Connection, is_same_machine: bool) -> Self {
        Self { connection, posted: 0, is_same_machine }
    }
}

impl Peers {
    pub(crate) fn new(site: Site) -> Self {
        Self { site, known: HashMap::new() }
    }

    /// Whether a message to `rank` may be announced, and then whether that is on this machine; the first attempt asks for a
    /// connection, and goes MPI's own way.
    pub(crate) fn reach(&mut self, rank: u32, device: &Device, control: &mut Control) -> Result<bool, Way> {
        match self.known.get(&rank) {
            Some(Peer::Connected(link)) => return Ok(link.is_same_machine),
            Some(Peer::Asked { .. }) => return Err(Way::Early),
            Some(Peer::Plain { way, until: None }) => return Err(*way),
            Some(Peer::Plain { way, until: Some(until) }) if Instant::now() < *until => return Err(*way),
            Some(Peer::Plain { .. }) | None => {}
        }
        let asked = device.connection().ok().filter(|(_, own)| {
            let hello = greeting(self.site, *own);
            control.send(Kind::Hello, rank, hello).is_ok()
        });
        let (peer, way) = match asked {
            Some((connection, own)) => (Peer::Asked { connection, own }, Way::Early),
            None => (Peer::Plain { way: Way::Peer, until: None }, Way::Peer),
        };
        self.known.insert(rank, peer);
        Err(way)
    }

    /// The connection to `rank`, if there is one.
    pub(crate) fn link(&mut self, rank: u32) -> Option<&mut Link> {
        match self.known.get_mut(&rank)? {
            Peer::Connected(link) => Some(link),
            _ => None,
        }
    }

    /// Whether a connection to `rank` is about to be there.
    pub(crate) fn is_asked(&self, rank: u32) -> bool {
        matches!(self.known.get(&rank), Some(Peer::Asked { .. }))
    }

    /// Ends the connection to `rank`, for ever: its messages go MPI's own way. False where there was none.
    pub(crate) fn give_up(&mut self, rank: u32) -> bool {
        let before = self.known.insert(rank, Peer::Plain { way: Way::Peer, until: None });
        matches!(before, Some(Peer::Connected(_) | Peer::Asked { .. }))
    }

    /// The ranks to which there are connections, or are about to be.
    pub(crate) fn linked(&self) -> Vec<u32> {
        let is_linked = |peer: &Peer| matches!(peer, Peer::Connected(_) | Peer::Asked { .. });
        self.known.iter().filter(|(_, peer)| is_linked(peer)).map(|(&rank, _)| rank).collect()
    }

    /// Work requests of all connections without a completion yet.
    pub(crate) fn posted(&self) -> u32 {
        self.known.values().map(|peer| if let Peer::Connected(link) = peer { link.posted } else { 0 }).sum()
    }

    /// `rank` asks for a connection.
    pub(crate) fn on_hello(&mut self, rank: u32, body: &[u8], device: &Device, control: &mut Control) {
        let Some((site, port)) = parse_greeting(body) else { return };
        let is_same_machine = site.machine == self.site.machine;
        if site == self.site {
            self.known.insert(rank, Peer::Plain { way: Way::Near, until: None });
            let _ = control.send(Kind::Refuse, rank, vec![NEAR]);
            return;
        }
        match self.known.remove(&rank) {
            // Both have asked: each connects what it has offered, and neither answers.
            Some(Peer::Asked { connection, own }) => self.connect(rank, connection, &own, &port, is_same_machine),
            Some(Peer::Connected(link)) => drop(self.known.insert(rank, Peer::Connected(link))),
            Some(Peer::Plain { .. }) | None => {
                let made = device.connection().ok().filter(|(connection, own)| connection.connect(own, &port).is_ok());
                let welcomed =
                    made.filter(|(_, own)| control.send(Kind::Welcome, rank, greeting(self.site, *own)).is_ok());
                let peer = match welcomed {
                    Some((connection, _)) => Peer::Connected(Link::new(connection, is_same_machine)),
                    None => {
                        let _ = control.send(Kind::Refuse, rank, vec![OTHER]);
                        Peer::Plain { way: Way::Peer, until: None }
                    }
                };
                self.known.insert(rank, peer);
            }
        }
    }

    /// `rank` has connected its queue pair to ours.
    pub(crate) fn on_welcome(&mut self, rank: u32, body: &[u8]) {
        let Some((site, port)) = parse_greeting(body) else { return };
        let is_same_machine = site.machine == self.site.machine;
        match self.known.remove(&rank) {
            Some(Peer::Asked { connection, own }) => self.connect(rank, connection, &own, &port, is_same_machine),
            Some(other) => drop(self.known.insert(rank, other)),
            None => {}
        }
    }

    /// `rank` refuses, or has not joined.
    pub(crate) fn on_refusal(&mut self, rank: u32, kind: Kind, body: &[u8]) {
        let is_near = body.first() == Some(&NEAR);
        let until = (kind == Kind::Absent).then(|| Instant::now() + RETRY);
        if self.is_asked(rank) {
            self.known.insert(rank, Peer::Plain { way: if is_near { Way::Near } else { Way::Peer }, until });
        }
    }

    fn connect(&mut self, rank: u32, connection: Connection, own: &Port, peer: &Port, is_same_machine: bool) {
        let connected = connection.connect(own, peer);
        let state = match connected {
            Ok(()) => Peer::Connected(Link::new(connection, is_same_machine)),
            Err(_) => Peer::Plain { way: Way::Peer, until: None },
        };
        self.known.insert(rank, state);
    }
}

fn greeting(site: Site, port: Port) -> Vec<u8> {
    [&site.to_bytes()[..], &port.gid, &port.number.to_le_bytes(), &port.psn.to_le_bytes(), &[port.mtu]].concat()
}

fn parse_greeting(body: &[u8]) -> Option<(Site, Port)> {
    let (site, rest) = Site::parse(body)?;
    let (gid, rest) = rest.split_first_chunk::<16>()?;
    let (number, rest) = rest.split_first_chunk::<4>()?;
    let (psn, &[mtu]) = rest.split_first_chunk::<4>()? else { return None };
    Some((site, Port { gid: *gid, number: u32::from_le_bytes(*number), psn: u32::from_le_bytes(*psn), mtu }))
}

/// Reasons in [`Kind::Refuse`].
const NEAR: u8 = 1;
const OTHER: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_is_read_as_it_was_written() {
        let port = Port { gid: [9; 16], number: 70000, psn: 0x00ab_cdef, mtu: 3 };
        let site = Site { machine: 5, namespace: 6 };
        let body = greeting(site, port);
        assert_eq!(parse_greeting(&body), Some((site, port)));
        assert_eq!(parse_greeting(&body[1..]), None);
        assert_eq!(parse_greeting(&[]), None);
    }
}
