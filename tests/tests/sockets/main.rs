//! Accelerated sockets: cases about TCP that hold with and without the library, and stock programs.

mod cases;
mod listing;
mod node;
mod redis;
mod relayed;
mod servers;
mod suites;
mod web;

use rdmesh_tests::{Output, Program, product};
use std::ffi::OsStr;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

/// `rdmesh accel` with a command.
fn accelerated<S: AsRef<OsStr>>(command: &[S]) -> Command {
    let mut accel = Command::new(product("rdmesh"));
    accel.arg("accel").arg("--").args(command);
    accel
}

fn run(command: Command) -> Output {
    Program::start(command).finish(LIMIT)
}

/// The long form of the tests is asked for.
fn rounds(short: usize, long: usize) -> usize {
    if rdmesh_tests::all() { long } else { short }
}
