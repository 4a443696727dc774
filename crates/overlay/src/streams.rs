//! TCP's streams in a network namespace.

use crate::namespace::in_namespace;
use std::path::Path;
use std::{fs, io};

/// Whether the kernel still has bytes or an end to deliver for sockets in the network namespace `file` that programs there have closed.
/// They are lost with the namespace.
pub fn has_undelivered(file: &Path) -> io::Result<bool> {
    in_namespace(file, || {
        // Lists are long to read on hosts with much memory: the kernel looks through all of its table for them.
        let mut any = false;
        for (count, list) in [("sockstat", "tcp"), ("sockstat6", "tcp6")] {
            any = any || has_sockets(&read(count)?) && is_ending(&read(list)?);
        }
        Ok(any)
    })
}

/// A file of the calling thread's network namespace; empty where the kernel has none, as without IPv6.
fn read(name: &str) -> io::Result<String> {
    match fs::read_to_string(Path::new("/proc/thread-self/net").join(name)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        result => result,
    }
}

/// Whether `sockstat` or `sockstat6` counts sockets of TCP.
fn has_sockets(counts: &str) -> bool {
    let tcp = counts.lines().find(|line| line.starts_with("TCP"));
    tcp.and_then(|line| line.split_whitespace().nth(2)).is_some_and(|count| count != "0")
}

/// Whether `tcp` or `tcp6` lists a socket that has closed and whose peer has not acknowledged that.
fn is_ending(sockets: &str) -> bool {
    let mut states = sockets.lines().skip(1).filter_map(|line| line.split_whitespace().nth(3));
    states.any(|state| ENDING.contains(&state))
}

/// `net/tcp_states.h`: FIN_WAIT1, LAST_ACK and CLOSING.
const ENDING: [&str; 3] = ["04", "09", "0B"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_that_end_are_told_from_others() {
        let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";
        let line = |state| {
            format!(
                "   0: 0200070A:1F90 0300070A:C350 {state} 00000B40:00000000 01:00000014 00000000     0        0 0 2\n"
            )
        };
        for state in ENDING {
            assert!(is_ending(&[head, &line("01"), &line(state)].concat()), "{state}");
        }
        // Established, FIN_WAIT2, TIME_WAIT, CLOSE_WAIT and listening.
        for state in ["01", "05", "06", "08", "0A"] {
            assert!(!is_ending(&[head, &line(state)].concat()), "{state}");
        }
        assert!(!is_ending(""));
    }

    #[test]
    fn namespaces_without_sockets_are_told_from_others() {
        let counts =
            |inuse| format!("sockets: used 8\nTCP: inuse {inuse} orphan 0 tw 0 alloc 1 mem 0\nUDP: inuse 0 mem 0\n");
        assert!(
            has_sockets(&counts("1")) && has_sockets(&counts("12")) && has_sockets("TCP6: inuse 1\nUDP6: inuse 0\n")
        );
        assert!(!has_sockets(&counts("0")) && !has_sockets("TCP6: inuse 0\n") && !has_sockets(""));
    }
}
