//! Managed queues by hand.

use crate::wanted::{LIMIT, command};
use rdmesh_tests::{Endpoint, Lab};

#[test]
fn a_queue_that_is_written_by_hand_runs_and_ends_as_the_header_says() {
    let lab = Lab::start();
    let output = lab.run_in(&Endpoint::new("a"), LIMIT, &command("queues", &[])).ok();
    assert_eq!(output.text, "all hold\n");
    lab.wait_until_empty();
}
