//! Side effects of page conversion at registration on the rest of a program: as root and as an ordinary user, with userfaultfd
//! and without.

use rdmesh_tests::{Endpoint, Lab, Options, helper, system};
use std::ffi::OsString;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

/// Runs a case of the program in every situation.
fn run(case: &str) {
    for ordinary in [false, true] {
        if !ordinary && !system::is_root() {
            println!("skipped: userfaultfd for all faults needs root");
            continue;
        }
        let lab = if ordinary { Lab::start_with(Options::ordinary_user()) } else { Lab::start() };
        let program = lab.share(&helper("conversion")).into_os_string();
        for options in [&[][..], &["--no-userfaultfd"]] {
            let mut command = vec![program.clone()];
            command.extend(options.iter().chain([&case]).map(OsString::from));
            let text = lab.run_in(&Endpoint::new("program"), LIMIT, &command).ok().text;
            print!("{text}");
        }
    }
}

#[test]
fn calls_that_wait_are_not_cut_off() {
    run("calls");
}

#[test]
fn system_calls_write_to_pages_under_conversion() {
    run("reads");
}

#[test]
fn transfers_of_other_threads_are_whole() {
    run("transfers");
}

#[test]
fn signals_are_handled_on_a_stack_under_conversion() {
    run("signals");
}

#[test]
fn waiters_of_a_process_shared_semaphore_are_woken() {
    run("futex");
}

#[test]
fn fixed_buffers_of_io_uring_stay_where_they_are() {
    run("iouring");
}

#[test]
fn every_fork_copies() {
    run("forks");
}

#[test]
fn traits_of_mappings_are_kept() {
    run("kept");
}

#[test]
fn what_the_allocator_hands_out_as_zeros_is() {
    run("heap");
}

#[test]
fn the_last_device_takes_the_routers_permission_with_it() {
    let lab = Lab::start();
    let trace = lab.dir().with_file_name("strace");
    let strace = ["strace", "-f", "-e", "trace=prctl", "-o"].map(OsString::from);
    let command: Vec<_> =
        strace.into_iter().chain([trace.clone().into(), helper("conversion").into(), "private".into()]).collect();
    lab.run_in(&Endpoint::new("program"), LIMIT, &command).ok();
    let trace = std::fs::read_to_string(trace).expect("a trace");
    let calls: Vec<_> = trace.lines().filter(|line| line.contains("PR_SET_PTRACER")).collect();
    assert!(calls.len() >= 2, "given and taken back:\n{trace}");
    let (last, given) = calls.split_last().expect("two calls");
    let takes_back = |line: &str| line.contains("PR_SET_PTRACER, 0)") || line.contains("PR_SET_PTRACER, 0,");
    assert!(takes_back(last) && !given.iter().any(|line| takes_back(line)), "{calls:#?}");
}
