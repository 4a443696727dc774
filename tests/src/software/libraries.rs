//! Communication libraries over verbs, and our examples of programs.

use super::figures::*;
use super::{Row, Unit};

const PORT: u16 = 18600;
/// TCP port of fi_pingpong.
const FI_PINGPONG_PORT: u16 = 47592;

pub(super) fn rows() -> Vec<Row> {
    [ucx(), libfabric(), examples()].concat()
}

fn ucx() -> Vec<Row> {
    // UCX sets up a reliable connection by datagrams.
    let row = |transport: &str, test: &str| {
        let transports = if transport == "rc_verbs" { "rc_verbs,ud_verbs" } else { transport };
        let common = format!("env UCX_TLS={transports},self UCX_NET_DEVICES=rxe0:1 ucx_perftest -p {PORT}");
        let bytes = if test.ends_with("bw") { 65536 } else { 8 };
        let (name, arguments) = (format!("{test}, {transport}"), format!("-t {test} -s {bytes} -n 1000 -w 10"));
        let row =
            Row::new("UCX", &name, &common, &format!("{common} {arguments} 10.7.0.2")).port(PORT).prints("Final:");
        if test.ends_with("bw") {
            row.figure(Unit::MegabytesPerSecond, ucx_rate)
        } else if test == "ucp_add" {
            // It waits for nothing: what it prints is the time of a call.
            row
        } else {
            row.figure(Unit::Microseconds, ucx_time)
        }
    };
    let tests = UCX_TESTS.split_whitespace();
    tests.flat_map(|test| ["rc_verbs", "ud_verbs"].map(|transport| row(transport, test))).collect()
}

fn libfabric() -> Vec<Row> {
    let row = |provider: &str, kind: &str, more: &str| {
        let common = format!("fi_pingpong -p \"{provider}\" -e {kind} -c {more}");
        let row =
            Row::new("libfabric", &format!("fi_pingpong, {provider}, {kind}"), &common, &format!("{common} 10.7.0.2"));
        row.port(FI_PINGPONG_PORT).figure(Unit::Microseconds, libfabric_time)
    };
    vec![
        row("verbs", "msg", "-I 1000 -S 1024"),
        row("verbs", "dgram", "-I 100 -S 1024"),
        row("verbs;ofi_rxm", "rdm", "-I 1000 -S 1024"),
        row("verbs;ofi_rxm", "rdm", "-I 10 -S all").named("fi_pingpong, verbs;ofi_rxm, rdm, all sizes"),
        row("verbs;ofi_rxd", "rdm", "-I 100 -S 1024"),
    ]
}

fn examples() -> Vec<Row> {
    let row = |name: &str, command: &str| {
        let row = Row::new("Examples", name, command, &format!("{command} 10.7.0.2"));
        row.prints("all of them right").figure(Unit::Microseconds, each_way)
    };
    vec![
        row("Python with pyverbs", "/usr/bin/python3 examples/pyverbs/pingpong.py").port(18610),
        row("Python with pyverbs, rdma_cm", "/usr/bin/python3 examples/pyverbs/connect.py"),
        row("Rust with sideway", "examples/rust/target/release/pingpong").port(18620),
    ]
}

impl Row {
    fn named(mut self, name: &str) -> Self {
        self.name = name.to_owned();
        self
    }
}

const UCX_TESTS: &str = "tag_lat tag_bw tag_sync_lat stream_lat stream_bw ucp_am_lat ucp_am_bw ucp_put_lat ucp_put_bw \
                         ucp_get ucp_add ucp_fadd ucp_swap ucp_cswap";
