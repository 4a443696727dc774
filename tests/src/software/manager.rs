//! Programs that connect through rdma_cm: librdmacm's own, perftest, qperf.

use super::figures::*;
use super::{Row, Unit};

const PORT: u16 = 18600;

pub(super) fn rows() -> Vec<Row> {
    [own_programs(), perftest(), qperf()].concat()
}

fn own_programs() -> Vec<Row> {
    let row = |name, server, client| Row::new("librdmacm's programs", name, server, client);
    vec![
        row("rping", "rping -s -V -C 100 -S 4096", "rping -c -V -C 100 -S 4096 -a 10.7.0.2"),
        row("rping, persistent server", "rping -s -P -V -S 1000", "rping -c -V -C 100 -S 1000 -a 10.7.0.2").runs_on(),
        row("ucmatose", "ucmatose -c 4", "ucmatose -c 4 -s 10.7.0.2").prints("return status 0"),
        row("udaddy", "udaddy -c 4", "udaddy -c 4 -s 10.7.0.2").prints("return status 0"),
        row("mckey", "mckey -m 239.1.2.3 -C 10", "mckey -m 239.1.2.3 -C 10 -s").prints("return status 0"),
        row("rdma_server, rdma_client", "rdma_server", "rdma_client -s 10.7.0.2").prints("rdma_client: end 0"),
        row("rdma_xserver, rdma_xclient", "rdma_xserver", "rdma_xclient -s 10.7.0.2").prints("rdma_xclient: end 0"),
        row("rstream", "rstream -T v -S 65536 -C 100 -I 10", "rstream -T v -S 65536 -C 100 -I 10 -s 10.7.0.2")
            .figure(Unit::MegabytesPerSecond, stream_rate),
        row("riostream", "riostream -T v -S 65536 -C 100 -I 10", "riostream -T v -S 65536 -C 100 -I 10 -s 10.7.0.2")
            .figure(Unit::MegabytesPerSecond, stream_rate),
        row("udpong", "udpong -b 10.7.0.2 -S 64 -C 1000", "udpong -S 64 -C 1000 -s 10.7.0.2")
            .datagrams(7174)
            .runs_on()
            .prints("64 ")
            // rpoll() spins for ever once it was preempted for the whole of its time-out, a millisecond here: it leaves
            // without counting itself out (`pollcnt`).
            .attempts(3),
        row("cmtime", "cmtime -c 100", "cmtime -c 100 -s 10.7.0.2").runs_on().figure(Unit::Microseconds, connect_time),
    ]
}

fn perftest() -> Vec<Row> {
    let row = |program: &str| {
        let common = format!("{program} -R -F -p {PORT} -n 1000");
        let row =
            Row::new("perftest through rdma_cm", &format!("{program} -R"), &common, &format!("{common} 10.7.0.2"));
        if program.ends_with("lat") {
            row.figure(Unit::Microseconds, perftest_time)
        } else {
            row.figure(Unit::MegabytesPerSecond, perftest_rate)
        }
    };
    ["send", "write", "read", "atomic"]
        .iter()
        .flat_map(|operation| [row(&format!("ib_{operation}_bw")), row(&format!("ib_{operation}_lat"))])
        .collect()
}

/// Its tests of connected transport go through rdma_cm, the others by LID.
fn qperf() -> Vec<Row> {
    let row = |test: &str| {
        let way = match test.split_once('_') {
            Some(("uc", _)) => "-m 1024 -mt 1024",
            Some(("ud", _)) => "-m 1024",
            _ => "-cm1",
        };
        let server = format!("qperf -lp {PORT}");
        let client = format!("qperf -lp {PORT} 10.7.0.2 -t 1 -uu {way} {test} quit");
        let row = Row::new("qperf", test, &server, &client).port(PORT).prints(&format!("{test}:"));
        if test.ends_with("lat") {
            row.figure(Unit::Microseconds, qperf_time)
        } else if test.ends_with("bw") {
            row.figure(Unit::MegabytesPerSecond, qperf_rate)
        } else {
            row.figure(Unit::PerSecond, qperf_messages)
        }
    };
    QPERF_TESTS.split_whitespace().map(row).collect()
}

/// All but those for XRC, which the device does not have.
const QPERF_TESTS: &str = "rc_lat rc_bw rc_bi_bw rc_rdma_read_lat rc_rdma_read_bw rc_rdma_write_lat rc_rdma_write_bw \
                           rc_rdma_write_poll_lat rc_compare_swap_mr rc_fetch_add_mr ver_rc_compare_swap ver_rc_fetch_add \
                           uc_lat uc_bw uc_bi_bw uc_rdma_write_lat uc_rdma_write_bw uc_rdma_write_poll_lat ud_lat ud_bw ud_bi_bw";
