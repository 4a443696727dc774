//! The newest rdma-core, built without the `write()` path: all its commands come by `ioctl()`.

use rdmesh_tests::{Endpoint, HugePages, Lab, Pair, Program, suite, system, until};
use std::path::PathBuf;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
const SERVER: &str = "10.7.0.2";
const EXPECTED: &str = include_str!("../pyverbs/newest.tsv");

/// The newest build.
fn build() -> Option<PathBuf> {
    suite::build_of("RDMESH_RDMA_CORE")
}

/// Words before a program that have it use the libraries of `build`.
fn with_libraries(build: &std::path::Path) -> [String; 2] {
    ["env".to_owned(), format!("LD_LIBRARY_PATH={}", build.join("lib").display())]
}

/// A command whose sockets are those of the library `rsocket` of `build`. The preloads of `rdmesh run` stay.
fn over_rsockets(build: &std::path::Path, command: &str) -> [String; 3] {
    let libraries = build.join("lib");
    let line = format!(
        "export LD_LIBRARY_PATH={0} LD_PRELOAD={0}/librspreload.so:$LD_PRELOAD; exec {command}",
        libraries.display()
    );
    ["sh".to_owned(), "-c".to_owned(), line]
}

/// Waits until `server`, the only one in `lab`, listens with rdma_cm.
fn wait_listening(lab: &Lab, server: &mut Program) {
    until(LIMIT, "the server listens", || {
        assert!(server.is_running(), "{}", server.text());
        lab.has_listener(server).then_some(())
    });
}

/// Its own suite, nothing changed and nothing left out.
#[test]
fn its_suite_holds() {
    let Some(build) = build() else { return };
    if !system::is_root() {
        println!("skipped: needs root");
        return;
    }
    let version = std::fs::read_to_string(build.join("version")).unwrap_or_default();
    let is_known = EXPECTED.lines().next().is_some_and(|line| line.ends_with(&format!(" {}", version.trim())));
    if !is_known {
        println!("skipped: the table is not that of rdma-core {version}");
        return;
    }
    let _pages = HugePages::reserve(8);
    let lab = Lab::start();
    let verdict = suite::judge(&suite::run_newest(&lab, &Endpoint::new("suite"), &build), EXPECTED);
    println!("{} passed, {} failed, {} skipped", verdict.passed, verdict.wrong.len(), verdict.skipped);
    assert!(verdict.wrong.is_empty(), "not as expected:\n{}", verdict.wrong.join("\n"));
    lab.wait_until_empty();
}

#[test]
fn its_programs_see_the_device() {
    let Some(build) = build() else { return };
    let lab = Lab::start();
    let devinfo = build.join("bin/ibv_devinfo").display().to_string();
    let text = lab.run_in(&Endpoint::at("a", "blue", SERVER), LIMIT, &[&devinfo, "-v"]).ok().text;
    for expected in
        ["hca_id:\trxe0", "PORT_ACTIVE", "ODP_SUPPORT_IMPLICIT", "ATOMIC_HCA", "::ffff:10.7.0.2, RoCE v2", "Ethernet"]
    {
        assert!(text.contains(expected), "{expected:?} is missing:\n{text}");
    }
}

#[test]
fn its_pingpong_programs_work() {
    let Some(build) = build() else { return };
    let lab = Lab::start();
    let pair = Pair::of(&lab);
    for name in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"] {
        let program = build.join("bin").join(name).display().to_string();
        for options in ["", "-e", "-c -e", "-s 1000 -n 2000"] {
            pair.pingpong(&program, options);
        }
    }
    let rc = build.join("bin/ibv_rc_pingpong").display().to_string();
    for options in ["-N -c", "-o -c", "-o -P -c", "-m 4096 -s 1000000 -n 100 -c"] {
        pair.pingpong(&rc, options);
    }
    lab.wait_until_empty();
}

#[test]
fn programs_that_were_built_for_an_older_one_work_with_it() {
    let Some(build) = build() else { return };
    let lab = Lab::start();
    let pair = Pair::of(&lab);
    let libraries = with_libraries(&build);
    let [env, path] = libraries.each_ref().map(String::as_str);
    let linked = lab.run_in(&pair.server.1, LIMIT, &[env, path, "sh", "-c", "ldd $(command -v ib_write_bw)"]).ok().text;
    let library = build.join("lib/libibverbs.so.1").display().to_string();
    assert!(linked.contains(&library), "perftest does not use {library}:\n{linked}");
    for command in [
        "ib_write_bw -n 1000",
        "ib_write_bw -n 200 -q 8",
        "ib_write_bw -n 200 -c UC",
        "ib_read_bw -n 1000 -e",
        "ib_atomic_bw -n 1000",
        "ib_send_bw -n 1000 -q 4 -r 64 --use-srq",
        "ib_send_bw -n 1000 -c UD -s 1024",
        "ib_send_lat -n 1000 -e",
        "ib_send_lat -n 1000 -c UD",
    ] {
        let (program, options) = command.split_once(' ').expect("a program and its options");
        let text = pair.run_command(&[env, path, program], &format!("-F {options}"));
        let rows = [rdmesh_tests::bandwidth_rows(&text), rdmesh_tests::latency_rows(&text)].concat();
        assert!(!rows.is_empty(), "no figures of {command}:\n{text}");
    }
    lab.wait_until_empty();
}

#[test]
fn its_programs_of_rdma_cm_work() {
    let Some(build) = build() else { return };
    let lab = Lab::start();
    let pair = Pair::of(&lab);
    for (program, server, client, expected) in [
        ("rping", "-s -V -C 100 -a 10.7.0.2", "-c -V -C 100 -a 10.7.0.2", "DISCONNECT EVENT"),
        ("ucmatose", "-c 4 -C 10", "-c 4 -C 10 -s 10.7.0.2", "return status 0"),
        ("ucmatose", "-P ib -c 4 -C 10", "-P ib -c 4 -C 10 -s 10.7.0.2", "return status 0"),
        ("udaddy", "-c 4 -C 10", "-c 4 -C 10 -s 10.7.0.2", "return status 0"),
        ("rstream", "-S 4096 -C 100", "-S 4096 -C 100 -s 10.7.0.2", "4k"),
    ] {
        let command = |options: &str| {
            let line = format!("exec {} {options}", build.join("bin").join(program).display());
            ["sh".to_owned(), "-c".to_owned(), line]
        };
        let mut server_runs = lab.start_in(&pair.server.1, &command(server));
        wait_listening(&lab, &mut server_runs);
        let text = lab.run_in(&pair.client.1, LIMIT, &command(client)).ok().text;
        let both = text + &server_runs.finish(LIMIT).ok().text;
        assert!(both.contains(expected), "{program} {client}:\n{both}");
    }
    assert_eq!(lab.metric("rdmesh_cm_unexpected_total"), 0.0);
    lab.wait_until_empty();
}

/// Sockets over rdma_cm. Debian 12's own librspreload mixes up descriptors in select(), at which iperf3 stops.
#[test]
fn sockets_are_rdma_to_programs_that_know_nothing_of_it() {
    const WORTH_IT: u64 = 100_000_000;
    let Some(build) = build() else { return };
    let lab = Lab::start();
    let pair = Pair::of(&lab);
    let preloaded = |command: &str| over_rsockets(&build, command);
    let mut server = lab.start_in(&pair.server.1, &preloaded("iperf3 -4 -s -1"));
    wait_listening(&lab, &mut server);
    let client = lab.start_in(&pair.client.1, &preloaded(&format!("iperf3 -4 -J -t 2 -c {SERVER}")));
    until(LIMIT, "messages are sent", || (lab.messages() > 1000).then_some(()));
    let text = client.finish(LIMIT).ok().text;
    let report = serde_json::from_str::<serde_json::Value>(&text).unwrap_or_else(|e| panic!("{e}:\n{text}"));
    let moved = report["end"]["sum_received"]["bytes"].as_u64().unwrap_or_default();
    assert!(moved > WORTH_IT, "only {moved} bytes arrived:\n{text}");
    println!("{} Mbit/s", report["end"]["sum_received"]["bits_per_second"].as_f64().unwrap_or_default() / 1e6);
    server.finish(LIMIT).ok();
    lab.wait_until_empty();
}

/// Short requests on many connections, each of which is waited for by `poll`. The library of rdma-core 44 uses memory that it has
/// freed where a process has more than six (mended in 53).
#[test]
fn many_rsockets_are_waited_for_by_poll() {
    const CONNECTIONS: usize = 16;
    const REQUESTS: usize = 500;
    let Some(build) = build() else { return };
    let lab = Lab::start();
    let pair = Pair::of(&lab);
    let program = rdmesh_tests::helper("requests").display().to_string();
    let serve = format!("{program} serve 18764 {CONNECTIONS}");
    let mut server = lab.start_in(&pair.server.1, &over_rsockets(&build, &serve));
    wait_listening(&lab, &mut server);
    let ask = format!("{program} ask {SERVER} 18764 {CONNECTIONS} {REQUESTS}");
    let asked = lab.run_in(&pair.client.1, LIMIT, &over_rsockets(&build, &ask)).ok();
    assert!(asked.text.contains(&format!("{} answers", CONNECTIONS * REQUESTS)), "{}", asked.text);
    server.finish(LIMIT).ok();
}
