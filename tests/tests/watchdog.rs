//! The limit that `scripts/watchdog.sh` puts on whatever `./dev` runs.

use rdmesh_tests::{Program, root};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

fn guarded(command: &str) -> Program {
    let mut bash = Command::new("bash");
    bash.args(["-euo", "pipefail", "-c", &format!(". scripts/watchdog.sh; guarded {command}")]).current_dir(root());
    Program::start(bash)
}

#[test]
fn what_exceeds_its_limit_is_named_and_killed_with_what_has_left_its_session() {
    let output = guarded("1 'the part x' bash -c 'setsid sleep 984 & sleep 983'").finish(LIMIT);
    assert!(!output.status.success());
    assert!(output.text.contains("the part x has reached its limit of 1 s"), "{}", output.text);
    assert!(output.text.contains("sleep 984") && output.text.contains("sleep 983"), "{}", output.text);
    assert!(!output.text.contains("held the output open"), "{}", output.text);
}

#[test]
fn a_command_within_its_limit_keeps_its_status() {
    guarded("50 quick true").finish(LIMIT).ok();
    assert_eq!(guarded("50 failing bash -c 'exit 3'").finish(LIMIT).status.code(), Some(3));
}

#[test]
fn a_guard_ends_what_runs_under_a_guard_within() {
    let inner = ". scripts/watchdog.sh; guarded 500 inner bash -c 'setsid sleep 982 & sleep 981'";
    let output = guarded(&format!("1 outer bash -c \"{inner}\"")).finish(LIMIT);
    assert!(output.text.contains("sleep 982"), "{}", output.text);
    assert!(!output.text.contains("held the output open"), "{}", output.text);
}
