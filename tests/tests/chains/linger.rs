//! Devices that outlive their programs.

use rdmesh_tests::system::{find, kill};
use rdmesh_tests::{Endpoint, Lab, Peer, Program, helper, until};
use serde_json::Value;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);

/// An endpoint whose devices outlive their programs for longer than any test.
fn lingering() -> Endpoint {
    Endpoint::at("kept", "blue", "10.7.0.2").with(&["--linger", "10m"])
}

fn other() -> Endpoint {
    Endpoint::at("other", "blue", "10.7.0.3")
}

/// The contexts of an endpoint.
fn contexts(lab: &Lab, endpoint: &str) -> Vec<Value> {
    let all = lab.api("/v1/contexts");
    all.as_array().into_iter().flatten().filter(|c| c["endpoint"] == endpoint).cloned().collect()
}

fn wait_until_lingering(lab: &Lab) {
    let lingers = |c: &Value| c["lease"]["left_seconds"].is_f64();
    until(LIMIT, "the device lingers", || contexts(lab, "kept").iter().any(lingers).then_some(()));
}

fn endpoints(lab: &Lab) -> usize {
    lab.api("/v1/endpoints").as_array().map_or(0, Vec::len)
}

/// An endpoint whose programs may ask for a lease themselves.
fn granted(options: &[&str]) -> Endpoint {
    Endpoint::at("kept", "blue", "10.7.0.2").with(&["--max-linger", "3600"]).with(options)
}

/// Takes the device with this token over, in its endpoint.
fn take_over(lab: &Lab, token: &str) -> Program {
    let command = [helper("linger").into_os_string(), token.into()];
    let mut program = lab.start_in(&granted(&["--take-over"]), &command);
    assert_eq!(program.next_line(LIMIT), "taken 1 1 1");
    program
}

fn ask(program: &mut Program, command: &str) -> String {
    program.say(command);
    program.next_line(LIMIT)
}

#[test]
fn reads_go_on_when_their_target_is_killed_at_any_moment() {
    let lab = Lab::start();
    for round in 0..5 {
        let mut server = Peer::start(&lab, &lingering(), &["rc", "14", "2"]);
        let mut client = Peer::start(&lab, &other(), &["rc", "14", "2"]);
        Peer::connect(&mut server, &mut client);
        assert_eq!(client.ask("flood read 4096"), "flooding");
        std::thread::sleep(Duration::from_millis(7 * round));
        server.kill();
        wait_until_lingering(&lab);
        let (_, before) = (client.local().to_owned(), lab.messages());
        until(LIMIT, "reads go on", || (lab.messages() > before + 1000).then_some(()));
        assert_eq!(endpoints(&lab), 2);

        let listed = lab.command(&["linger", "ls"]).ok().text;
        assert!(listed.contains("s left") && listed.contains("peer"), "{listed}");
        assert!(lab.command(&["ps"]).ok().text.contains("s left"));
        let ended = lab.command(&["linger", "end", "kept", "--net", "blue"]).ok().text;
        assert_eq!(ended.trim(), "1 device ended");
        let (status, _) = client.end_of_flood();
        assert_eq!(status, "transport retry counter exceeded");
        until(LIMIT, "its endpoint goes too", || (endpoints(&lab) == 1).then_some(()));
        client.quit();
        lab.wait_until_empty();
    }
}

#[test]
fn another_process_takes_a_device_over_with_all_that_it_has() {
    let lab = Lab::start();
    let mut server = Peer::start(&lab, &granted(&[]), &[]);
    let mut client = Peer::start(&lab, &other(), &[]);
    Peer::connect(&mut server, &mut client);
    let token = server.ask("linger 600000").strip_prefix("token ").expect("a token").to_owned();
    assert_eq!(server.ask("linger 999999999999"), "errno 12", "beyond the limit");
    (0..3).for_each(|_| assert_eq!(server.ask("recv"), "posted"));
    client.ask("fill 77 1000");
    assert_eq!((client.ask("post send 1000"), client.completion().0.as_str()), ("posted".into(), "success"));
    server.kill();
    wait_until_lingering(&lab);
    assert_eq!((client.ask("post send 1000"), client.completion().0.as_str()), ("posted".into(), "success"));

    // Not in another endpoint.
    let wrong = lab.run_in(&Endpoint::new("x"), LIMIT, &[helper("linger").into_os_string(), token.clone().into()]);
    assert!(wrong.text.contains("errno 13"), "{}", wrong.text);

    let mut taker = take_over(&lab, &token);
    assert_eq!(ask(&mut taker, "check 77 1000"), "match");
    assert_eq!(ask(&mut taker, "check 78 1000"), "differ");
    assert_eq!((ask(&mut taker, "poll"), ask(&mut taker, "poll")), ("polled 2".into(), "polled 0".into()));
    assert_eq!((client.ask("post send 1000"), client.completion().0.as_str()), ("posted".into(), "success"));
    assert_eq!(ask(&mut taker, "poll"), "polled 1");
    assert_eq!(ask(&mut taker, "extend 300000"), "done");
    assert_eq!(contexts(&lab, "kept")[0]["lease"]["term_seconds"], 300.0);

    // Its own end begins the term again; it has the endpoint.
    kill(find(taker.pid(), "linger").expect("it runs"));
    drop(taker);
    wait_until_lingering(&lab);
    let mut taker = take_over(&lab, &token);
    assert_eq!(ask(&mut taker, "end"), "done");
    taker.finish(LIMIT).ok();
    until(LIMIT, "the device has ended", || contexts(&lab, "kept").is_empty().then_some(()));
    client.kill();
    lab.wait_until_empty();
}

#[test]
fn a_new_program_gets_nothing_of_a_dead_one_unless_it_asks() {
    let lab = Lab::start();
    let run = |options: &[&str]| {
        let endpoint = Endpoint::at("kept", "blue", "10.7.0.2").with(options);
        lab.run_in(&endpoint, LIMIT, &["sh", "-c", "readlink /proc/self/ns/net; ibv_devinfo >/dev/null"])
    };
    let mut server = Peer::start(&lab, &lingering(), &["rc", "14", "2"]);
    let pid = contexts(&lab, "kept")[0]["pid"].as_u64().expect("a process id");
    let namespace = std::fs::read_link(format!("/proc/{pid}/ns/net")).expect("a link").display().to_string();
    server.kill();
    wait_until_lingering(&lab);

    // With other limits than it was made with it is refused, and still there.
    let refused = run(&["--take-over", "--linger", "10m", "--max-qps", "7"]);
    assert!(!refused.status.success() && refused.text.contains("its limits are not those"), "{}", refused.text);
    assert!(contexts(&lab, "kept").iter().any(|c| c["lease"]["left_seconds"].is_f64()));
    assert!(run(&["--take-over", "--linger", "10m"]).ok().text.contains(&namespace));

    let other = run(&["--max-qps", "7"]).ok();
    assert!(!other.text.contains(&namespace), "{}", other.text);
    assert!(contexts(&lab, "kept").is_empty());
    lab.wait_until_empty();
}

#[test]
fn nothing_outlives_its_program_where_no_term_was_granted() {
    let lab = Lab::start();
    let mut server = Peer::start(&lab, &Endpoint::at("kept", "blue", "10.7.0.2"), &[]);
    assert_eq!(server.ask("linger 1"), "errno 12");
    server.kill();
    lab.wait_until_empty();
}

#[test]
fn a_program_that_closes_its_device_ends_it() {
    let lab = Lab::start();
    let server = Peer::start(&lab, &lingering(), &[]);
    assert_eq!(contexts(&lab, "kept")[0]["lease"]["term_seconds"], 600.0);
    server.quit();
    lab.wait_until_empty();
    until(LIMIT, "its endpoint goes too", || (endpoints(&lab) == 0).then_some(()));
}

#[test]
fn a_short_term_ends_with_its_endpoint() {
    let lab = Lab::start();
    let mut server = Peer::start(&lab, &Endpoint::new("kept").with(&["--linger", "200ms"]), &[]);
    server.kill();
    lab.wait_until_empty();
    until(LIMIT, "its endpoint goes too", || (endpoints(&lab) == 0).then_some(()));
    let refused = lab
        .start_in(&Endpoint::new("a").with(&["--linger", "2h", "--max-linger", "60"]), &["ibv_devinfo"])
        .finish(LIMIT);
    assert!(!refused.status.success());
    assert!(lab.command(&["doctor"]).text.contains("linger_seconds"));
}
