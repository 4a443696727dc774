//! Every construct and every offload, in both designs.

use crate::wanted::{LIMIT, SERVER, command, on_one_host_and_two};

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
