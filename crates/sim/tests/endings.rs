//! Delivery of requests that were posted before a queue pair ends.

use rdmesh_sim::endings::run;

#[test]
fn what_was_posted_before_a_queue_pair_ends_is_delivered() {
    for seed in 0..2000 {
        if let Err(violation) = run(seed, false) {
            panic!("seed {seed}: {violation}");
        }
    }
}
