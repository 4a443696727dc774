//! `rdmesh events`: what has happened, and who has asked for it.

use rdmesh_tests::{Lab, Options, Program};
use serde_json::Value;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// Lines of `rdmesh events --json`.
fn parse(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

#[test]
fn changes_are_told_with_who_has_asked_for_them() {
    let lab = Lab::start_with(Options { rootless: true, ..Options::default() });
    let mut follow = lab.rdmesh();
    follow.args(["events", "--follow", "--json"]);
    let mut follow = Program::start(follow);
    let first = follow.next_line(LIMIT);
    assert!(first.contains("\"serving\""), "{first}");

    lab.command(&["endpoint", "add", "a", "--net", "blue", "--ip", "10.7.0.2"]).ok();
    assert!(!lab.command(&["tenant", "rm", "nobody"]).status.success());
    let mut heard = Vec::new();
    while heard.len() < 3 {
        let event = parse(&follow.next_line(LIMIT)).remove(0);
        if event["what"] == "order" || event["what"] == "endpoint added" {
            heard.push(event);
        }
    }
    let [added, order, refused] = &heard[..] else { panic!("{heard:?}") };
    assert_eq!((&added["level"], &added["about"]["name"]), (&"info".into(), &"a".into()), "{added}");
    let uid = rustix::process::geteuid().as_raw().to_string();
    let (order, refused) = (&order["about"], &refused["about"]);
    assert_eq!((&order["order"], &order["status"]), (&"POST /v1/endpoints".into(), &"201".into()), "{order}");
    assert_eq!((&order["uid"], &order["command"]), (&uid.as_str().into(), &"rdmesh".into()), "{order}");
    assert_eq!(refused["order"], "DELETE /v1/tenants/nobody", "{refused}");
    assert!(refused["status"].as_str().is_some_and(|status| status.starts_with('4')), "{refused}");

    let all = parse(&lab.command(&["events", "--json"]).ok().text);
    let numbers: Vec<_> = all.iter().filter_map(|event| event["number"].as_u64()).collect();
    assert!(numbers.len() == all.len() && numbers.windows(2).all(|two| two[0] + 1 == two[1]), "{numbers:?}");
    assert!(all.contains(added), "{all:?}");
    let text = lab.command(&["events"]).ok().text;
    assert!(text.contains(" info  endpoint added name=a network=blue"), "{text}");

    // Numbers go on where another router takes over; who follows is told that this one has ended.
    rdmesh_tests::system::kill(lab.router_pid());
    assert!(!follow.finish(LIMIT).status.success());
    lab.up_again();
    let again = parse(&lab.command(&["events", "--json"]).ok().text);
    assert!(again[0]["number"].as_u64() > numbers.last().copied(), "{again:?}");
}
