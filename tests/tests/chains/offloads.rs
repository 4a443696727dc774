//! Services that chains serve, and their clients, which use plain verbs.

use crate::wanted::{LIMIT, SERVER, on_one_host_and_two};
use rdmesh_tests::{example, root};

#[test]
fn a_hash_table_is_served_by_chains() {
    on_one_host_and_two(|ends| {
        for design in ["local", "portable"] {
            let mut server = ends.serve("hash_server", &[design]);
            let asked = ends.ask("hash_client", &[SERVER, "one", "two", "nothing"]);
            assert_eq!(sorted(&asked), ["nothing (not there)", "one: the first value", "two: the second value"]);
            assert_eq!(server.next_line(LIMIT), "client 0");
            for (line, answer) in [("one another", "stored one"), ("two", "removed two"), ("two", "there was no two")] {
                server.say(line);
                assert_eq!(server.next_line(LIMIT), answer);
            }
            // A second client, of whom the server's own chain knows nothing.
            let asked = ends.ask("hash_client", &[SERVER, "one", "two"]);
            assert_eq!(sorted(&asked), ["one: another", "two (not there)"], "{design}");
            let python = root().join("examples/chains/hash_client.py").display().to_string();
            let client =
                ends.start_client(&[&python[..], SERVER, "one", "two", "a", "b", "c", "one"]).finish(LIMIT).ok();
            let missing = ["two", "a", "b", "c"].map(|key| format!("{key} (not there)\n")).concat();
            assert_eq!(client.text, format!("one: another\n{missing}one: another\n"));
            let rust = example("rust").join("hash_client").display().to_string();
            let client =
                ends.start_client(&[&rust[..], SERVER, "one", "two", "one", "x", "one", "y"]).finish(LIMIT).ok();
            let gone = "two (not there)\none: another\nx (not there)\none: another\ny (not there)\n";
            assert_eq!(client.text, format!("one: another\n{gone}"));
            server.say("?");
            assert_eq!([(); 3].map(|()| server.next_line(LIMIT)), ["client 1", "client 2", "client 3"]);
            let shown = server.next_line(LIMIT);
            assert!(shown.starts_with("client 0: state 0, "), "{shown}");
            server.close_stdin();
            server.finish(LIMIT).ok();
        }
    });
}

#[test]
fn the_first_chain_answers() {
    on_one_host_and_two(|ends| {
        let server = ends.serve("guess", &[]);
        assert_eq!(ends.ask("guess", &[SERVER, "41", "42", "0"]), "41 is wrong\n42 is right\n0 is wrong\n");
        let output = server.finish(LIMIT).ok().text;
        assert!(output.contains("  right: NOP|SEND_IMM") && output.contains("\nlistening\n"), "{output}");
    });
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines
}
