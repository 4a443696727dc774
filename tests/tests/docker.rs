//! Docker: two ordinary unprivileged containers and the traffic between them.

use rdmesh_tests::docker::Docker;
use rdmesh_tests::{Lab, bandwidth_rows};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
const PORT: u16 = 18515;
const PROGRAMS: [&str; 3] = ["/usr/bin/ib_write_bw", "/usr/bin/ibv_devinfo", "/usr/bin/ibv_rc_pingpong"];

/// `rdmesh container-args NAME`, split as the shell would.
fn container_args(lab: &Lab, name: &str) -> Vec<String> {
    lab.command(&["container-args", name]).ok().text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn unprivileged_containers_reach_each_other() {
    let docker = match Docker::start(&PROGRAMS) {
        Ok(docker) => docker,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    let lab = Lab::start();
    let (a, b) = (container_args(&lab, "a"), container_args(&lab, "b"));
    for arguments in [&a, &b] {
        let text = arguments.join(" ");
        for privilege in ["--privileged", "--cap-add", "--security-opt", "--device", "--pid", "--network"] {
            assert!(!text.contains(privilege), "no privilege may be asked for: {text}");
        }
    }
    let transfer = |more: &[&str], program: &str| {
        let with =
            |arguments: &[String]| [arguments, &more.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>()].concat();
        let server = docker.start_container("rdmesh-test-server", &with(&a), &format!("exec {program}"));
        server.wait_listening(PORT);
        let command = format!("exec {program} {}", server.address());
        let client = docker.run_container(&with(&b), &command, LIMIT);
        assert!(client.status.success(), "client:\n{}\nserver:\n{}", client.text, server.log());
        assert_eq!(server.wait(), "0", "{}", server.log());
        client.text
    };
    let text = transfer(&[], "ib_write_bw -F -n 1000 -a");
    assert_eq!(bandwidth_rows(&text).len(), 23, "{text}");
    let text = transfer(&["--user", "1234:1234", "--cap-drop", "ALL"], "ib_write_bw -F -n 1000 -q 4");
    assert!(!bandwidth_rows(&text).is_empty(), "{text}");
    transfer(&["--read-only"], "ibv_rc_pingpong -g 1 -c -e");
    lab.wait_until_empty();
}
