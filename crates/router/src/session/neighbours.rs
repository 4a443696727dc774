//! Neighbour lookup (ARP) in a program's network namespace: presence of a machine with an address on the link.

use super::cm_server::CmServer;
use crate::cm::Query;
use rdmesh_nic::Time;
use rustix::io::Errno;
use std::net::Ipv4Addr;
use std::sync::Arc;

/// State of an address in the kernel's neighbour table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Neighbour {
    /// It has answered.
    Known,
    /// It is being asked, or has not answered.
    Silent,
    /// The kernel does not ask for it: it is not on the link.
    Elsewhere,
}

impl CmServer {
    /// Looks up the peers that programs wait for, if it is time: their tables of neighbours are read. Returns the nanoseconds
    /// until the next lookup.
    pub(super) fn run_cm_queries(&mut self) -> Option<u64> {
        if !self.cm.has_queries() {
            return None;
        }
        let now = self.clock.now();
        if now >= self.next_look {
            for (number, query) in self.cm.queries() {
                if let Some(error) = self.look(number, &query, now) {
                    self.cm.answer_query(number, Err(error));
                }
            }
            self.next_look = Time(self.clock.now().0 + LOOK_AGAIN);
        }
        self.cm.has_queries().then(|| self.next_look.0.saturating_sub(now.0))
    }

    /// Takes a table of neighbours, in the namespace of the program on connection `opener`.
    pub(super) fn take_neighbours(&mut self, opener: u64, table: Option<String>) {
        self.tables.remove(&opener);
        let now = self.clock.now();
        for (number, query) in self.cm.queries() {
            if self.channels.get(&query.channel).is_some_and(|channel| channel.opener == opener) {
                let neighbour = table.as_ref().map_or(Neighbour::Elsewhere, |table| find(table, query.dest));
                if let Some(found) = neighbour.answer(&query, now) {
                    self.cm.answer_query(number, found);
                }
            }
        }
    }

    /// Has the table read in which a peer is to be found. The error of a peer that cannot be found.
    fn look(&mut self, number: u32, query: &Query, now: Time) -> Option<Errno> {
        let channel = self.channels.get(&query.channel).filter(|channel| channel.external.is_some());
        let Some((channel, external)) = channel.and_then(|channel| Some((channel, channel.external.as_ref()?))) else {
            return Some(Errno::NETUNREACH);
        };
        if !query.probed {
            self.cm.probed(number);
            // The kernel resolves an address when it has a packet to send there.
            if let Err(errno) = external.sockets().probe(query.dest) {
                return Some(errno);
            }
        }
        let opener = channel.opener;
        if self.tables.contains(&opener) {
            // It is still being read: a table that never comes is one without the peer.
            return Neighbour::Silent.answer(query, now).and_then(Result::err);
        }
        let seeker = self
            .clients
            .get(opener)
            .map(|connection| (connection.account().seeker(), Arc::clone(connection.program().process())));
        match seeker {
            Some((seeker, process)) => {
                self.lookups.read_neighbours(opener, seeker, process);
                self.tables.insert(opener);
            }
            None => self.take_neighbours(opener, None),
        }
        None
    }
}

impl Neighbour {
    /// The answer to a query; none where it is too early to tell.
    fn answer(self, query: &Query, now: Time) -> Option<Result<(), Errno>> {
        let waited = now.0.saturating_sub(query.since.0);
        match self {
            Self::Known => Some(Ok(())),
            Self::Elsewhere => (waited >= SETTLED).then_some(Ok(())),
            Self::Silent if now >= query.limit => Some(Err(Errno::TIMEDOUT)),
            Self::Silent => (waited >= GIVEN_UP).then_some(Err(Errno::HOSTUNREACH)),
        }
    }
}

/// Looks an address up in a table in the format of `/proc/net/arp`.
fn find(table: &str, address: Ipv4Addr) -> Neighbour {
    const COMPLETE: u32 = 2;
    let entry = |line: &str| {
        let mut words = line.split_whitespace();
        let its: Ipv4Addr = words.next()?.parse().ok()?;
        let flags = words.nth(1)?.strip_prefix("0x")?;
        (its == address).then(|| u32::from_str_radix(flags, 16).unwrap_or(0))
    };
    match table.lines().find_map(entry) {
        None => Neighbour::Elsewhere,
        Some(flags) if flags & COMPLETE != 0 => Neighbour::Known,
        Some(_) => Neighbour::Silent,
    }
}

/// Nanoseconds between two looks.
const LOOK_AGAIN: u64 = 5_000_000;
/// Nanoseconds after which the kernel would have asked.
const SETTLED: u64 = 20_000_000;
/// Nanoseconds after which it has asked three times, in vain.
const GIVEN_UP: u64 = 3_500_000_000;
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table_tells_who_answered() {
        let table = "IP address       HW type     Flags       HW address            Mask     Device
10.7.0.1         0x1         0x2         02:52:0a:07:00:01     *        eth0
10.7.0.9         0x1         0x0         00:00:00:00:00:00     *        eth0
";
        let say = |address: &str| find(table, address.parse().unwrap());
        assert_eq!([say("10.7.0.1"), say("10.7.0.9")], [Neighbour::Known, Neighbour::Silent]);
        assert_eq!([say("10.7.0.2"), find("", Ipv4Addr::LOCALHOST)], [Neighbour::Elsewhere; 2]);
    }
}
