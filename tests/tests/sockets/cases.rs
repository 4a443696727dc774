//! The cases of `tests/programs/sockets`, each in a process of its own.

use crate::{LIMIT, accelerated, rounds, run};
use rdmesh_tests::{Lab, Program, socket_cases, until};
use std::path::Path;
use std::process::Command;

/// How far a run is accelerated: calls before connections move to rings, and what the cases are to find.
#[derive(Clone, Copy, Debug)]
enum Mode {
    /// Plain TCP: what the cases claim is true of it.
    Plain,
    /// The library is there and leaves connections on TCP.
    Never,
    /// Connections move after so many calls.
    After(u32),
}

impl Mode {
    fn command(self, case: &str) -> Command {
        let program = socket_cases().into_os_string();
        match self {
            Self::Plain => {
                let mut plain = Command::new(program);
                plain.arg(case);
                plain
            }
            Self::Never => {
                let mut never = accelerated(&[program, case.into()]);
                never.env("RDMESH_UPGRADE", "never");
                never
            }
            Self::After(calls) => {
                let mut after = accelerated(&[program, case.into()]);
                after.env("RDMESH_UPGRADE", calls.to_string()).env("SOCKETS_EXPECT", "rings");
                after
            }
        }
    }
}

fn all_hold(modes: impl IntoIterator<Item = Mode>) {
    let list = Command::new(socket_cases()).arg("--list").output().expect("the program starts").stdout;
    let cases = String::from_utf8(list).expect("names");
    assert!(cases.lines().count() > 30, "the list of cases:\n{cases}");
    let mut failed = Vec::new();
    for mode in modes {
        for case in cases.lines() {
            let output = run(mode.command(case));
            if !output.status.success() {
                failed.push(format!("{mode:?} {case}: {}: {}", output.status, output.text.trim()));
            }
        }
    }
    assert!(failed.is_empty(), "{} cases do not hold:\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn all_cases_hold_on_tcp_with_and_without_the_library() {
    all_hold([Mode::Plain, Mode::Never]);
}

#[test]
fn all_cases_hold_on_rings_from_any_call_on() {
    let rounds = rounds(1, 20);
    all_hold((0..rounds).flat_map(|_| [0, 1, 3, 7].map(Mode::After)));
}

/// In many containers `/dev/shm` is small, and the table by which programs find each other lies there.
#[test]
fn a_full_folder_of_shared_memory_ends_no_program() {
    let script = "mount -t tmpfs -o size=4k none /dev/shm && head -c 4096 /dev/zero >/dev/shm/full && exec \"$@\"";
    for case in ["bytes_both_ways", "many_streams"] {
        let accelerated = accelerated(&[socket_cases().into_os_string(), case.into()]);
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh"]).arg(accelerated.get_program());
        // From the first call on the library looks for the other end.
        command.args(accelerated.get_args()).env("RDMESH_UPGRADE", "0");
        run(command).ok();
    }
}

/// The table of programs goes with their endpoint, or with their pool.
#[test]
fn nothing_is_left_in_shared_memory() {
    let lab = Lab::start();
    lab.command(&["pool", "create", "fn", "--net", "blue", "--size", "1", "--rest", "0"]).ok();
    for options in [&["--name", "server"][..], &["--pool", "fn"]] {
        let mut run = lab.rdmesh();
        run.args(["run", "--net", "blue", "--accel"]).args(options).args(["--", "sh", "-c", SHOW]).arg(socket_cases());
        let output = Program::start(run).finish(LIMIT).ok();
        let namespace = output.text.lines().find_map(|line| line.strip_prefix("is in ")).expect("a number");
        let table = format!("rdmesh-sockets.{}.{namespace}", rustix::process::geteuid().as_raw());
        assert!(output.text.contains(&table), "{}", output.text);
        if options.contains(&"fn") {
            lab.command(&["pool", "rm", "fn", "--net", "blue"]).ok();
        }
        until(LIMIT, "the table has gone", || (!Path::new("/dev/shm").join(&table).exists()).then_some(()));
    }
}

/// Uses accelerated connections, and tells of the namespace and of what there is in shared memory.
const SHOW: &str = "export RDMESH_UPGRADE=0 SOCKETS_EXPECT=rings; \"$0\" many_streams && \
    stat -Lc 'is in %i' /proc/self/ns/net && ls /dev/shm";
