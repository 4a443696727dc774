//! System call counts of a program, by `strace`.
//!
//! The program starts under strace, which has a seccomp filter stop it only at the calls that are counted: all but the
//! yields of the processor, which are the waiting policy of a machine with few cores and no part of a message's path.
//! Everything from start to end is counted, setting up too.

use std::ffi::OsString;
use std::path::Path;

/// A command line that starts what follows it under strace, whose table goes to the file `table`.
pub fn strace(table: &Path) -> Vec<OsString> {
    let options = ["strace", "-f", "--seccomp-bpf", "-c", "-e", "trace=!sched_yield", "-o"];
    let mut command: Vec<OsString> = options.map(OsString::from).to_vec();
    command.push(table.into());
    command
}

/// Calls that the table in the file `table` counts. Panics where there is none.
pub fn total(table: &Path) -> u64 {
    let text = std::fs::read_to_string(table).unwrap_or_else(|e| panic!("{}: {e}", table.display()));
    sum(&text).unwrap_or_else(|| panic!("not a table of strace:\n{text}"))
}

fn sum(table: &str) -> Option<u64> {
    let total = table.lines().rfind(|line| line.trim_end().ends_with(" total"))?;
    total.split_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_strace_is_read() {
        let table = "% time     seconds  usecs/call     calls    errors syscall\n\
                     ------ ----------- ----------- --------- --------- ----------------\n \
                     99.41    0.001684           0      3127           read\n  \
                     0.59    0.000010           5         2         1 ppoll\n\
                     ------ ----------- ----------- --------- --------- ----------------\n\
                     100.00    0.001694           0      3129         1 total\n";
        assert_eq!(sum(table), Some(3129));
        assert_eq!(sum("strace: Process 7 detached\n"), None);
    }
}
