//! Third-party programs, unmodified, between two endpoints.

use rdmesh_tests::{Endpoint, Lab, Options, Pair, helper};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
const SERVER: &str = "10.7.0.2";

/// Two endpoints of a network.
fn pair(lab: &Lab) -> Pair<'_> {
    let server = (lab, Endpoint::at("server", "blue", SERVER));
    Pair { server, client: (lab, Endpoint::at("client", "blue", "10.7.0.3")), address: SERVER.to_owned() }
}

#[test]
fn ibv_devinfo_shows_the_device() {
    let lab = Lab::start();
    let endpoint = Endpoint::at("a", "blue", SERVER);
    let text = lab.run_in(&endpoint, LIMIT, &["ibv_devinfo", "-v"]).ok().text;
    for expected in
        ["hca_id:\trxe0", "PORT_ACTIVE", "::ffff:10.7.0.2", "RoCE v2", "ATOMIC_HCA", "link_layer:\t\tEthernet"]
    {
        assert!(text.contains(expected), "{expected:?} is missing:\n{text}");
    }
    let list = lab.run_in(&endpoint, LIMIT, &["ibv_devices"]).ok().text;
    assert_eq!(list.lines().count(), 3, "one device, and no other:\n{list}");
}

#[test]
fn ucx_works_over_both_transports() {
    let lab = Lab::start();
    let pair = pair(&lab);
    for transports in ["UCX_TLS=rc_verbs,ud_verbs,self", "UCX_TLS=ud_verbs,self"] {
        let program = ["env", transports, "UCX_NET_DEVICES=rxe0:1", "ucx_perftest"];
        for test in
            ["tag_lat -s 8", "tag_lat -s 100000", "stream_lat", "ucp_am_lat", "ucp_put_lat", "ucp_get", "ucp_fadd"]
        {
            let text = pair.run_command(&program, &format!("-n 1000 -t {test}"));
            assert!(text.contains("Final:"), "no result of {test} with {transports}:\n{text}");
        }
    }
}

#[test]
fn pingpong_programs_work() {
    let lab = Lab::start();
    let pair = pair(&lab);
    for program in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"] {
        for options in ["", "-e", "-c", "-c -e", "-s 1 -n 5000", "-r 16 -n 300"] {
            pair.pingpong(program, options);
        }
    }
    for program in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_srq_pingpong"] {
        pair.pingpong(program, "-m 4096 -s 1000000 -n 100 -c");
        pair.pingpong(program, "-m 256 -s 8191 -c");
    }
    pair.pingpong("ibv_rc_pingpong", "-N -c");
    pair.pingpong("ibv_rc_pingpong", "-o -c");
    pair.pingpong("ibv_rc_pingpong", "-o -P -c");
    pair.pingpong("ibv_rc_pingpong", "-O -c");
    pair.pingpong("ibv_srq_pingpong", "-q 64 -n 200 -c");
}

#[test]
fn bandwidth_programs_work_in_all_sizes() {
    let lab = Lab::start();
    let pair = pair(&lab);
    for program in ["ib_send_bw", "ib_write_bw", "ib_read_bw"] {
        let rows = pair.bandwidth(program, "-a -n 200");
        let sizes: Vec<_> = rows.iter().map(|r| r.bytes).collect();
        assert_eq!(sizes, (1..=23).map(|i| 1 << i).collect::<Vec<u64>>(), "{program} -a");
    }
    assert_eq!(pair.bandwidth("ib_atomic_bw", "-n 2000")[0].bytes, 8);
}

#[test]
fn latency_programs_work_in_all_sizes() {
    let lab = Lab::start();
    let pair = pair(&lab);
    for program in ["ib_send_lat", "ib_write_lat", "ib_read_lat"] {
        assert_eq!(pair.latency(program, "-a -n 200").len(), 23, "{program} -a");
    }
    assert_eq!(pair.latency("ib_atomic_lat", "-n 2000")[0].bytes, 8);
}

#[test]
fn what_was_posted_before_the_end_of_a_connection_arrives() {
    for workers in ["1", "2"] {
        let up = ["--workers", workers].map(str::to_owned).into();
        let lab = Lab::start_with(Options { up, ..Options::default() });
        let pair = pair(&lab);
        pair.end_at_once(&helper("ending").display().to_string(), 200);
    }
}

#[test]
fn perftest_works_with_events() {
    let lab = Lab::start();
    let pair = pair(&lab);
    // The WRITE programs have no such option.
    for program in ["ib_send_bw", "ib_read_bw", "ib_atomic_bw"] {
        pair.bandwidth(program, "-e -n 1000");
    }
    for program in ["ib_send_lat", "ib_read_lat", "ib_atomic_lat"] {
        pair.latency(program, "-e -n 1000");
    }
}

#[test]
fn perftest_works_with_many_queue_pairs() {
    let lab = Lab::start();
    let pair = pair(&lab);
    for program in ["ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_atomic_bw"] {
        assert_eq!(pair.bandwidth(program, "-q 8 -n 500")[0].iterations, 4000, "{program}");
    }
    pair.bandwidth("ib_write_bw", "-q 256 -n 20 -s 4096");
    pair.bandwidth("ib_send_bw", "-q 8 -n 500 -r 64 --use-srq");
}

#[test]
fn perftest_works_in_both_directions() {
    let lab = Lab::start();
    let pair = pair(&lab);
    for program in ["ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_atomic_bw"] {
        pair.bandwidth(program, "-b -n 1000");
    }
    pair.bandwidth("ib_write_bw", "-b -q 4 -n 500 -s 1048576");
    pair.bandwidth("ib_write_bw", "-b --report-both -n 500");
}

#[test]
fn perftest_works_unconnected_and_unreliable() {
    let lab = Lab::start();
    let pair = pair(&lab);
    for options in ["-c UC -n 1000", "-c UD -s 1024 -n 1000", "-c UD -s 1024 -e -n 500", "-c UC -b -n 500"] {
        pair.bandwidth("ib_send_bw", options);
    }
    pair.bandwidth("ib_write_bw", "-c UC -n 1000");
    for options in ["-c UC -n 1000", "-c UD -n 1000", "-c UD -s 64 -e -n 500"] {
        pair.latency("ib_send_lat", options);
    }
    pair.latency("ib_write_lat", "-c UC -n 1000");
}

#[test]
fn perftest_works_with_its_other_options() {
    let lab = Lab::start();
    let pair = pair(&lab);
    for options in
        ["-I 64 -s 64", "-l 8 -s 512", "-Q 1", "-t 1", "-t 4096 -s 8", "-m 256", "-s 3", "-N", "--odp -s 8192"]
    {
        pair.bandwidth("ib_write_bw", &format!("-n 1000 {options}"));
    }
    for options in ["-I 0 -s 64", "-I 128 -s 100", "-s 1048576", "--use_old_post_send"] {
        pair.latency("ib_write_lat", &format!("-n 1000 {options}"));
    }
    pair.bandwidth("ib_write_bw", "--mr_per_qp -q 4 -n 500");
    pair.bandwidth("ib_write_bw", "--use_old_post_send -n 500");
    pair.bandwidth("ib_send_bw", "-r 16 -n 1000");
    pair.bandwidth("ib_read_bw", "-o 1 -n 1000");
    pair.bandwidth("ib_write_bw", "-D 2 -s 65536");
    pair.bandwidth("ib_write_bw", "-x 0 -n 500");
    for (output, program) in [("bandwidth", "ib_write_bw"), ("message_rate", "ib_send_bw"), ("latency", "ib_send_lat")]
    {
        let text = pair.run(program, &format!("-F -n 1000 --output={output}"));
        let figure = text.lines().rev().find_map(|l| l.trim().parse::<f64>().ok());
        assert!(figure.is_some_and(|f| f > 0.0), "{program} --output={output}:\n{text}");
    }
}

#[test]
fn other_programs_notice_nothing() {
    let lab = Lab::start();
    let endpoint = Endpoint::new("a");
    let run = |command: &[&str]| lab.run_in(&endpoint, LIMIT, command).ok().text;
    assert_eq!(run(&["echo", "hello"]).trim(), "hello");
    assert_eq!(run(&["sh", "-c", "ls / | wc -l; (exit 3); echo $?"]).lines().last(), Some("3"));
    assert!(
        run(&["/usr/bin/python3", "-c", "import subprocess as s; print(s.check_output(['ls', '/sys/class']))"])
            .contains("net")
    );
    assert!(run(&["strace", "-f", "-o", "/dev/null", "true"]).is_empty());
    let status = lab.run_in(&endpoint, LIMIT, &["sh", "-c", "exit 7"]).status;
    assert_eq!(status.code(), Some(7), "the command's exit status is passed on");
    let missing = lab.run_in(&endpoint, LIMIT, &["/nonexistent/program"]);
    assert_eq!(missing.status.code(), Some(127));
}

#[test]
fn ip_traffic_flows_between_endpoints_of_a_network() {
    let lab = Lab::start();
    let pair = pair(&lab);
    let port = Pair::PORT;
    let text = pair.run_both(
        &["timeout", "60", "sh", "-c", &format!("qperf -lp {port} & wait $!; true")],
        &["sh", "-c", &format!("qperf -lp {port} {SERVER} -t 1 tcp_lat quit")],
    );
    assert!(text.contains("latency"), "{}", text);
}
