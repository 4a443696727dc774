//! Every construct and every offload, in both designs.

use crate::wanted::{LIMIT, SERVER, command, on_one_host_and_two};
use rdmesh_tests::root;

const SERVICES: [&str; 12] = [
    "guess",
    "text",
    "at_most",
    "less",
    "words",
    "changed",
    "loop",
    "unrolled",
    "break",
    "list_loop",
    "lock",
    "counter",
];

/// In Python, with a second request while the first is not answered yet.
#[test]
fn a_list_a_lock_and_a_counter_answer_clients_in_python() {
    on_one_host_and_two(|ends| {
        let server = ends.serve("services", &["-", "list_loop", "lock", "counter"]);
        let python = root().join("tests/programs/chains/structures.py").display().to_string();
        let client = ends.start_client(&[&python[..], SERVER]).finish(LIMIT).ok();
        let counted = "0:0:0 1:1:7 2:0:7 3:0:10 4:1:0 5:0:0";
        assert_eq!(client.text, format!("list one - five -\nlock 0 1 2\ncounter {counted}\n"));
        server.finish(LIMIT).ok();
    });
}

#[test]
fn constructs_and_offloads_answer_a_client_of_plain_verbs() {
    on_one_host_and_two(|ends| {
        let mut server = ends.serve("services", &[]);
        let client = ends.start_client(&command("services", &[SERVER])).finish(LIMIT);
        if !client.status.success() {
            server.kill();
            panic!("the client:\n{}\nthe server:\n{}", client.text, server.text());
        }
        let expected = SERVICES.iter().flat_map(|name| [format!("{name} local\n"), format!("{name} portable\n")]);
        assert_eq!(client.text, expected.collect::<String>());
        server.finish(LIMIT).ok();
    });
}
