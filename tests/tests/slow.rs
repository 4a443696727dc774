//! Slow memory: registered memory that is unreachable for a while, because its pages come late or never, or its program is busy
//! with it.

use rdmesh_tests::{Endpoint, Lab, helper};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(180);

fn path(name: &str) -> String {
    helper(name).into_os_string().into_string().expect("a plain path")
}

/// Runs a case of the program, unless the machine lacks a requirement.
fn run(lab: &Lab, case: &str) {
    let slow = format!("{} {case} || [ $? = 77 ]", path("slow"));
    print!("{}", lab.run_in(&Endpoint::new(case), LIMIT, &["sh", "-c", &slow]).ok().text);
    lab.wait_until_empty();
}

#[test]
fn requests_wait_for_pages_that_come_late() {
    run(&Lab::start(), "late");
}

#[test]
fn requests_wait_while_the_address_space_is_locked() {
    run(&Lab::start(), "busy");
}

/// Queue pairs that ask for such pages again and again, while a neighbour works.
#[test]
fn pages_that_never_come_are_errors_and_nobody_elses_concern() {
    let lab = Lab::start();
    let router = lab.router_pid();
    let mut never = lab.start_in(&Endpoint::new("never"), &[path("slow"), "never".into()]);
    let line = never.next_line(LIMIT);
    if line.starts_with("skipped") {
        println!("{line}");
        return;
    }
    assert_eq!(line, "asked");
    lab.run_in(&Endpoint::new("honest"), LIMIT, &[path("verify"), "rc_opcodes".into()]).ok();
    never.finish(LIMIT).ok();
    lab.wait_until_empty();
    assert_eq!(lab.router_pid(), router, "another router");
}
