//! Rootless mode: a router and its endpoints as an ordinary user, without privilege.

use rdmesh_tests::{Endpoint, Lab, Options, bandwidth_rows};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

fn endpoints() -> (Endpoint, Endpoint) {
    (Endpoint::new("a"), Endpoint::new("b"))
}

#[test]
fn perftest_works_without_privilege() {
    let lab = Lab::start_with(Options::ordinary_user());
    let (a, b) = endpoints();
    for (port, program, options) in
        [(18710, "ib_write_bw", "-n 1000"), (18711, "ib_send_bw", "-n 1000 -e"), (18712, "ib_read_bw", "-n 1000 -q 4")]
    {
        let command = |address: &str| format!("exec {program} -F -p {port} {options} {address}");
        let (server, client) = (command(""), command("127.0.0.1"));
        let (_, client) = lab.pair((&a, &["sh", "-c", &server]), (&b, &["sh", "-c", &client]), port, LIMIT);
        assert!(!bandwidth_rows(&client.text).is_empty(), "{}", client.text);
    }
}

#[test]
fn data_is_right_without_privilege() {
    let lab = Lab::start_with(Options::ordinary_user());
    let verify = lab.share(&rdmesh_tests::helper("verify"));
    for case in ["rc_opcodes", "odd_memory", "fork_isolation", "neighbour_writers", "shared_mapping", "huge_pages"] {
        let output = lab.run_in(&Endpoint::new("a"), LIMIT, &[verify.as_os_str(), case.as_ref()]);
        assert!(matches!(output.status.code(), Some(0 | 77)), "{case}: {}", output.text);
    }
    lab.wait_until_empty();
}

#[test]
fn the_program_runs_as_the_user_itself() {
    let lab = Lab::start_with(Options::ordinary_user());
    let text = lab.run_in(&Endpoint::new("a"), LIMIT, &["sh", "-c", "id -u; ibv_devices"]).ok().text;
    let expected = lab.user().unwrap_or_else(|| rustix::process::getuid().as_raw());
    assert_eq!(text.lines().next(), Some(expected.to_string().as_str()), "{text}");
    assert!(text.contains("rxe0"), "{text}");
}
