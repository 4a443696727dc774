//! Data transfer between queue pairs that programs have connected without rdma_cm.

use crate::world::{Family, Link, World};
use rdmesh_tests::guest::{self, Guest, Lan};

/// Counters of the kernel's device for lost or invalid packets.
const TROUBLE: [&str; 6] =
    ["out_of_seq_request", "rcvd_seq_err", "retry_exceeded_err", "retry_rnr_exceeded_err", "send_err", "link_downed"];
/// Its counters for messages without a receive request.
const NOT_READY: [&str; 2] = ["rcvd_rnr_err", "send_rnr_err"];
/// Every case of the `exchange` program that works without a loss, but for the one whose receives come late.
const CASES: [&str; 5] = ["rc", "uc", "ud", "soak", "errors"];

/// The harness itself: the kernel's device against the kernel's device.
#[test]
fn two_kernels_agree() {
    if let Some(why) = guest::unavailable() {
        println!("skipped: {why}");
        return;
    }
    let lan = Lan::start();
    lan.enter();
    let (a, b) = (Guest::boot(2), Guest::boot(3));
    a.wait_ready();
    b.wait_ready();
    let link = Link::new(&a, &b, Family::V6);
    link.perftest("ib_write_bw", "-n 20");
    for case in CASES {
        link.exchange(case, "-n 4");
    }
    for guest in [&a, &b] {
        let counters = guest.rxe_counters();
        assert!(TROUBLE.iter().chain(&NOT_READY).all(|name| counters[*name] == 0), "{counters:?}");
    }
}

#[test]
fn every_byte_arrives() {
    let Some(world) = World::start() else { return };
    for family in [Family::V4, Family::V6] {
        world.both_ways(family, |link| CASES.iter().for_each(|case| link.exchange(case, "")));
    }
    world.assert_clean(&[&TROUBLE[..], &NOT_READY].concat());
    world.both_ways(Family::V4, |link| link.exchange("rnr", ""));
    let counters = world.guest.rxe_counters();
    assert!(
        NOT_READY.iter().all(|name| counters[*name] > 0),
        "both have answered that no receive is there: {counters:?}"
    );
}

#[test]
fn pingpong_programs_work() {
    let Some(world) = World::start() else { return };
    world.both_ways(Family::V4, |link| {
        for program in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"] {
            link.pingpong(program, "-c -n 100");
            link.pingpong(program, "-s 1 -n 100 -e");
        }
        // All 16 at once would ask too much of an emulated machine.
        for program in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_srq_pingpong -q 2"] {
            link.pingpong(program, "-s 1000001 -n 4 -c");
            link.pingpong(program, "-m 256 -s 8191 -n 20 -c");
        }
    });
    world.both_ways(Family::V6, |link| {
        for program in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"] {
            link.pingpong(program, "-c -n 50");
        }
    });
    world.assert_clean(&[&TROUBLE[..], &NOT_READY].concat());
}

#[test]
fn bandwidth_programs_work() {
    let Some(world) = World::start() else { return };
    world.both_ways(Family::V4, |link| {
        for program in ["ib_send_bw", "ib_write_bw", "ib_read_bw"] {
            for options in ["-s 1 -n 100", "-s 1025 -n 100", "-s 65537 -n 10", "-s 1048576 -n 5", "-q 4 -n 20 -b"] {
                link.perftest(program, options);
            }
        }
        for options in ["-c UC -n 100 -s 4097", "-c UD -n 100 -s 1024"] {
            link.perftest("ib_send_bw", options);
        }
        link.perftest("ib_write_bw", "-c UC -n 100 -s 4097");
        for options in ["-A FETCH_AND_ADD -n 100", "-A CMP_AND_SWAP -n 100 -q 2"] {
            link.perftest("ib_atomic_bw", options);
        }
    });
    world.both_ways(Family::V6, |link| {
        for program in ["ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_atomic_bw"] {
            link.perftest(program, "-n 20");
        }
        link.perftest("ib_send_bw", "-c UD -n 100 -s 1024");
    });
    world.assert_clean(&TROUBLE);
}

#[test]
fn latency_programs_work() {
    let Some(world) = World::start() else { return };
    world.both_ways(Family::V4, |link| {
        for program in ["ib_send_lat", "ib_write_lat", "ib_read_lat"] {
            link.perftest(program, "-s 8 -n 100");
            link.perftest(program, "-s 5000 -n 50");
        }
        for options in ["-c UC -n 100", "-c UD -n 100"] {
            link.perftest("ib_send_lat", options);
        }
        link.perftest("ib_write_lat", "-c UC -n 100");
        for options in ["-A FETCH_AND_ADD -n 100", "-A CMP_AND_SWAP -n 100"] {
            link.perftest("ib_atomic_lat", options);
        }
    });
    world.both_ways(Family::V6, |link| link.perftest("ib_send_lat", "-n 100"));
    world.assert_clean(&TROUBLE);
}

#[test]
fn every_byte_arrives_in_spite_of_losses() {
    let Some(world) = World::start() else { return };
    // With requests behind it, the kernel's device may complete a READ or an atomic whose answer was lost without its
    // data: a negative acknowledgement of a later packet is enough. So in the soak it sends and writes only.
    let kernel_sends =
        |link: &Link, is_server: bool| link.exchange("soak", if is_server { "-n 4 -s" } else { "-n 4 -c" });
    for percent in [1, 5] {
        world.lose(percent);
        kernel_sends(&Link::new(&world.guest, &world.lab, Family::V4), true);
        kernel_sends(&Link::new(&world.lab, &world.guest, Family::V4), false);
        world.both_ways(Family::V4, |link| {
            link.exchange("rc", "-l 5000");
            for program in ["ib_send_bw", "ib_write_bw", "ib_read_bw"] {
                link.perftest(program, "-s 20000 -n 10");
            }
            link.perftest("ib_atomic_bw", "-n 100");
        });
    }
    let counters = world.guest.rxe_counters();
    assert!(counters["rcvd_seq_err"] > 0 && counters["out_of_seq_request"] > 0, "packets were lost: {counters:?}");
    assert_eq!(counters["retry_exceeded_err"], 0);
}
