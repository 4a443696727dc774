//! The cases of `tests/programs/sockets`, each in a process of its own.

use crate::{accelerated, rounds, run};
use rdmesh_tests::socket_cases;
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
