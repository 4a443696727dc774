//! Neighbour lookup (ARP) in a program's network namespace: presence of a machine with an address on the link.

use super::peer::Peer;
use super::server::Server;
use crate::cm::Query;
use rdmesh_nic::Time;
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::net::Ipv4Addr;

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

impl Server {
    /// Looks up the peers that programs wait for, if it is time. Returns the nanoseconds until the next lookup.
    pub(super) fn run_cm_queries(&mut self) -> Option<u64> {
        if !self.cm.has_queries() {
            return None;
        }
        let now = self.clock.now();
        if now >= self.next_look {
            let mut tables = HashMap::new();
            for (number, query) in self.cm.queries() {
                if let Some(found) = self.look(number, &query, now, &mut tables) {
                    self.cm.answer_query(number, found);
                }
            }
            self.next_look = Time(self.clock.now().0 + LOOK_AGAIN);
        }
        self.cm.has_queries().then(|| self.next_look.0.saturating_sub(now.0))
    }

    /// Looks one peer up; none where it is too early to tell.
    fn look(
        &mut self,
        number: u32,
        query: &Query,
        now: Time,
        tables: &mut HashMap<u64, Option<String>>,
    ) -> Option<Result<(), Errno>> {
        let channel = self.cm_channels.get(&query.channel).filter(|channel| channel.plain.is_some());
        let Some((channel, plain)) = channel.and_then(|channel| Some((channel, channel.plain.as_ref()?))) else {
            return Some(Err(Errno::NETUNREACH));
        };
        if !query.knocked {
            self.cm.knocked(number);
            // The kernel resolves an address when it has a packet to send there.
            if let Err(errno) = plain.sockets.knock(query.dest) {
                return Some(Err(errno));
            }
        }
        let opener = self.clients.get(channel.opener);
        let table = tables.entry(channel.opener).or_insert_with(|| table(&opener?.peer));
        let neighbour = table.as_ref().map_or(Neighbour::Elsewhere, |table| find(table, query.dest));
        let waited = now.0.saturating_sub(query.since.0);
        match neighbour {
            Neighbour::Known => Some(Ok(())),
            Neighbour::Elsewhere => (waited >= SETTLED).then_some(Ok(())),
            Neighbour::Silent if now >= query.limit => Some(Err(Errno::TIMEDOUT)),
            Neighbour::Silent => (waited >= GIVEN_UP).then_some(Err(Errno::HOSTUNREACH)),
        }
    }
}

/// The table of neighbours in a process's network namespace, up to the length that the router reads.
fn table(peer: &Peer) -> Option<String> {
    let file = File::open(format!("/proc/{}/net/arp", peer.pid)).ok()?;
    // Checked after the opening: the process id was not another process's a moment ago.
    peer.is_unchanged().ok()?;
    let mut table = String::new();
    file.take(LONGEST_TABLE).read_to_string(&mut table).ok()?;
    Some(table)
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
/// Bytes of a table that are read: some hundred neighbours.
const LONGEST_TABLE: u64 = 64 * 1024;

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
