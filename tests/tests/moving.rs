//! Devices that move from one worker of the router to another while programs use them.

use rdmesh_tests::{Hosts, Lab, Options, Output, Pair, helper, until};
use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering};

/// Workers of each router.
const WORKERS: usize = 3;

fn options() -> Options {
    Options { up: ["--workers".into(), WORKERS.to_string()].into(), ..Options::default() }
}

/// Moves the devices of these endpoints, from worker to worker, as long as `work` takes. Returns how many have moved.
fn moving(endpoints: &[(&Lab, &str)], work: impl FnOnce()) -> u64 {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mover = scope.spawn(|| {
            let mut moved = 0;
            for turn in 0.. {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let (lab, name) = endpoints[turn % endpoints.len()];
                moved += move_once(lab, name, turn / endpoints.len() % WORKERS);
            }
            moved
        });
        // The mover is joined, however the work ends.
        let end = End(&over);
        work();
        drop(end);
        mover.join().expect("every move succeeds")
    })
}

/// Set when it is dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Moves the devices of an endpoint, if it has some.
fn move_once(lab: &Lab, name: &str, worker: usize) -> u64 {
    let Output { status, text, .. } =
        lab.command(&["endpoint", "move", name, "--net", "blue", "--worker", &worker.to_string()]);
    if status.success() {
        assert!(text.contains(&format!("served by worker {worker}")), "{text}");
        return 1;
    }
    // Before the program has opened its device, and after its end.
    assert!(text.contains("there is no endpoint") || text.contains("has a device open"), "{text}");
    0
}

/// `rc`, `uc` and `ud`, many kinds of requests at once, receivers that are not ready, and errors; then perftest with events.
fn run_all(pair: &Pair<'_>, datagram: u32) {
    let exchange = helper("exchange").display().to_string();
    for case in ["rc", "uc", &format!("-l {datagram} ud"), "-n 100 soak", "rnr", "errors"] {
        pair.run(&exchange, case);
    }
    pair.pingpong("ibv_rc_pingpong", "-e -c -n 20000");
    pair.pingpong("ibv_srq_pingpong", "-q 16 -n 20000 -c");
    assert_eq!(pair.bandwidth("ib_write_bw", "-q 8 -s 8192 -n 5000").len(), 1);
    assert_eq!(pair.bandwidth("ib_send_bw", "-e -b -s 2 -n 20000").len(), 1);
}

#[test]
fn programs_of_one_host_notice_nothing() {
    let lab = Lab::start_with(options());
    let pair = Pair::of(&lab);
    let moved = moving(&[(&lab, "server"), (&lab, "client")], || run_all(&pair, 4096));
    assert!(moved > 20, "{moved}");
    lab.wait_until_empty();
}

#[test]
fn programs_of_two_hosts_notice_nothing() {
    let hosts = Hosts::start_with(1500, options());
    let pair = hosts.pair();
    let moved = moving(&[(hosts.lab(0), "e"), (hosts.lab(1), "e")], || run_all(&pair, 1024));
    assert!(moved > 20, "{moved}");
    hosts.lab(0).wait_until_empty();
}

#[test]
fn one_process_can_be_moved_and_a_mistake_is_explained() {
    let lab = Lab::start_with(options());
    let pair = Pair::of(&lab);
    let (at, endpoint) = &pair.server;
    let port = Pair::PORT.to_string();
    let server = at.start_in(endpoint, &["ibv_rc_pingpong", "-g", "1", "-p", &port]);
    let contexts = || lab.api("/v1/contexts");
    until(Pair::LIMIT, "the device is open", || contexts()[0]["qps"][0].is_object().then_some(()));
    let worker = contexts()[0]["worker"].as_u64().expect("a number");
    let pid = contexts()[0]["pid"].to_string();
    let other = (worker + 1) % WORKERS as u64;
    let move_to = |pid: &str, worker: &str| {
        lab.command(&["endpoint", "move", "server", "--net", "blue", "--pid", pid, "--worker", worker])
    };
    assert!(move_to("1", &other.to_string()).text.contains("`rdmesh ps` lists those that have"));
    assert_eq!(contexts()[0]["worker"], Value::from(worker));
    assert!(move_to(&pid, &other.to_string()).ok().text.contains("1 device is served by worker"));
    assert_eq!(contexts()[0]["worker"], Value::from(other));
    let refused = move_to(&pid, "3");
    assert!(!refused.status.success() && refused.text.contains("numbered from 0 to 2"), "{}", refused.text);
    drop(server);
    lab.wait_until_empty();
}
