//! Socket programs over rsocket, and fio.

use super::figures::*;
use super::{Row, Unit};

pub(super) fn rows() -> Vec<Row> {
    let rsocket = |name: &str, server: &str, client: &str| {
        let preload = |command: &str| format!("sh -c 'LD_PRELOAD=\"$LD_PRELOAD {RSOCKET}\" exec {command}'");
        Row::new("Sockets over RDMA (rsocket)", name, &preload(server), &preload(client))
    };
    let fio = |name: &str, more: &str, client: &str| {
        let server = format!("fio --name=receiver --rw=read {FIO} {more}");
        let client = format!("fio --name=sender --rw=write {FIO} --hostname=10.7.0.2 {client}");
        Row::new("fio", name, &server, &client).prints("err= 0")
    };
    vec![
        rsocket("iperf", "iperf -s -P 1", "iperf -c 10.7.0.2 -t 1").figure(Unit::MegabytesPerSecond, iperf_rate),
        rsocket("NetPIPE", "NPtcp -o /dev/null -u 65536 -n 20", "NPtcp -o /dev/null -u 65536 -n 20 -h 10.7.0.2")
            .figure(Unit::MegabytesPerSecond, netpipe_rate),
        rsocket(
            "NetPIPE, every byte checked",
            "NPtcp -i -o /dev/null -u 65536 -n 20",
            "NPtcp -i -o /dev/null -u 65536 -n 20 -h 10.7.0.2",
        ),
        fio("fio, RDMA WRITE", "--size=64m --iodepth=16", "--size=64m --iodepth=16 --verb=write"),
        fio("fio, RDMA READ", "--size=64m --iodepth=16", "--size=64m --iodepth=16 --verb=read"),
        // It asks for no retries when the receiver is not ready: there must be a receive for every message from the start.
        fio(
            "fio, SEND, every byte checked",
            "--size=4m --iodepth=64 --verify=pattern --verify_pattern=0x5aa5f00f",
            "--size=4m --iodepth=16 --verb=send --buffer_pattern=0x5aa5f00f",
        ),
    ]
}

const RSOCKET: &str = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so";
const FIO: &str = "--ioengine=rdma --port=18650 --bs=64k --thread";
