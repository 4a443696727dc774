//! The key-value server of the examples: memcached's protocol by socket, gets by chain.

use crate::wanted::{LIMIT, SERVER, command};
use rdmesh_tests::system::{find, kill, stop};
use rdmesh_tests::{Endpoint, Lab, Program, until};

fn kept() -> Endpoint {
    Endpoint::at("kv", "blue", SERVER).with(&["--linger", "10m", "--take-over"])
}

fn client() -> Endpoint {
    Endpoint::at("client", "blue", "10.7.0.3")
}

fn start_server(lab: &Lab) -> Program {
    let mut server = lab.start_in(&kept(), &command("kv-server", &[]));
    assert_eq!(server.next_line(LIMIT), "serving port 11211 by socket and by chain");
    server
}

fn start_shell(lab: &Lab) -> Program {
    lab.start_in(&client(), &command("kv-shell", &[SERVER]))
}

fn ask(shell: &mut Program, command: &str) -> String {
    shell.say(command);
    shell.next_line(LIMIT)
}

#[test]
fn gets_by_chain_agree_with_gets_by_socket() {
    let lab = Lab::start();
    let _server = start_server(&lab);
    let (mut shell, mut other) =
        (start_shell(&lab), lab.start_in(&Endpoint::at("x", "blue", "10.7.0.4"), &command("kv-shell", &[SERVER])));
    assert_eq!(ask(&mut shell, "get a"), "miss");
    assert_eq!(ask(&mut other, "set a a value"), "STORED");
    assert_eq!(ask(&mut shell, "get a"), "chain a value");
    assert_eq!(ask(&mut shell, "check a 1000"), "same");
    // Of each change the chain knows when its answer has come.
    assert_eq!((ask(&mut other, "set n 9"), ask(&mut shell, "get n")), ("STORED".into(), "chain 9".into()));
    assert_eq!((ask(&mut other, "incr n 2"), ask(&mut shell, "get n")), ("11".into(), "chain 11".into()));
    assert_eq!((ask(&mut other, "decr n 50"), ask(&mut shell, "get n")), ("0".into(), "chain 0".into()));
    assert_eq!((ask(&mut other, "touch n -1"), ask(&mut shell, "get n")), ("TOUCHED".into(), "miss".into()));
    assert_eq!((ask(&mut other, "delete a"), ask(&mut shell, "get a")), ("DELETED".into(), "miss".into()));
    (0..50).for_each(|n| assert_eq!(ask(&mut other, &format!("set key{n} value {n}")), "STORED"));
    (0..50).for_each(|n| assert_eq!(ask(&mut shell, &format!("get key{n}")), format!("chain value {n}")));
    assert_eq!((ask(&mut other, "flush_all"), ask(&mut shell, "get key7")), ("OK".into(), "miss".into()));
}

/// Asks 300 times for a value of 1 MB, and reads the answers only when it is told.
const GREEDY: &str = r#"
import socket, sys
s = socket.create_connection((sys.argv[1], 11211))
f = s.makefile("rb")
value = b"x" * (1 << 20)
def ask(command):
    s.sendall(command)
    return f.readline()
assert ask(b"set big 0 0 %d\r\n%s\r\n" % (len(value), value)) == b"STORED\r\n"
assert ask(b"append big 0 0 1\r\ny\r\n") == b"SERVER_ERROR object too large for cache\r\n"
assert ask(b"get" + b" big" * 20 + b"\r\n") == b"SERVER_ERROR out of memory writing get response\r\n"
s.sendall(b"get big\r\n" * 300)
print("asked", flush=True)
sys.stdin.readline()
for n in range(300):
    assert f.readline() == b"VALUE big 0 1048576\r\n", n
    assert f.read(len(value) + 2) == value + b"\r\n", n
    assert f.readline() == b"END\r\n", n
for n in range(200):
    assert ask(b"set key%d 0 0 %d\r\n%s\r\n" % (n, len(value), value)) == b"STORED\r\n", n
assert ask(b"get key0\r\n") == b"END\r\n"
assert ask(b"get key199\r\n") == b"VALUE key199 0 1048576\r\n"
print("read", flush=True)
"#;

#[test]
fn answers_that_are_not_read_and_many_values_take_bounded_memory() {
    const MOST: u64 = 120 << 20;
    let lab = Lab::start();
    let server = start_server(&lab);
    let pid = find(server.pid(), "kv-server").expect("the server runs");
    let resident = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the server's status");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its memory");
        line.split_whitespace().nth(1).expect("a number").parse::<u64>().expect("in KiB") << 10
    };
    let mut greedy = lab.start_in(&client(), &["python3", "-c", GREEDY, SERVER]);
    assert_eq!(greedy.next_line(LIMIT), "asked");
    let mut other = lab.start_in(&Endpoint::at("x", "blue", "10.7.0.4"), &command("kv-shell", &[SERVER]));
    assert_eq!(ask(&mut other, "set a value"), "STORED");
    assert!(resident() < MOST, "{} bytes while nothing is read", resident());
    greedy.say("read");
    assert_eq!(greedy.next_line(LIMIT), "read");
    assert!(resident() < MOST, "{} bytes after 200 MB of values", resident());
}

#[test]
fn a_busy_writer_leaves_no_reply_out() {
    let lab = Lab::start();
    let _server = start_server(&lab);
    let (mut shell, mut writer) =
        (start_shell(&lab), lab.start_in(&Endpoint::at("x", "blue", "10.7.0.4"), &command("kv-shell", &[SERVER])));
    assert_eq!(ask(&mut writer, "set k 0"), "STORED");
    shell.say("watch k 2");
    let mut sets = 0;
    while shell.text().lines().count() == 0 {
        sets += 1;
        assert_eq!(ask(&mut writer, &format!("set k {sets}")), "STORED");
    }
    let watched = shell.next_line(LIMIT);
    assert!(watched.contains(" gets, longest "), "{watched}");
}

#[test]
fn gets_go_on_when_the_server_is_killed() {
    let lab = Lab::start();
    for round in 0..3 {
        let server = start_server(&lab);
        let mut shell = start_shell(&lab);
        assert_eq!(ask(&mut shell, "set k kept"), "STORED");
        shell.say("watch k 1.5");
        std::thread::sleep(std::time::Duration::from_millis(100 * round + 13));
        kill(find(server.pid(), "kv-server").expect("it runs"));
        let watched = shell.next_line(LIMIT);
        assert!(watched.contains(" gets, longest "), "{watched}");
        assert_eq!(ask(&mut shell, "get k"), "chain kept");
        assert_eq!(ask(&mut shell, "set k other"), "the server has gone");
        lab.command(&["linger", "end", "kv", "--net", "blue"]).ok();
        assert_eq!(ask(&mut shell, "get k"), "miss");
        drop((shell, server));
        until(LIMIT, "all has ended", || (lab.status()["endpoints"] == 0).then_some(()));
    }
}

/// Gets of the shell by chain alone, at least so many.
fn get_by_chain(shell: &mut Program, least: u64) -> u64 {
    let mut done = 0;
    while done < least {
        let watched = ask(shell, "watch k 0.2");
        let count = watched.split_once(" gets, longest ").and_then(|(count, _)| count.parse::<u64>().ok());
        done += count.unwrap_or_else(|| panic!("{watched}"));
    }
    done
}

/// As many laps as `RDMESH_CHAIN_LAPS` says, half of them while the server stands still, half after its death.
#[test]
fn laps_need_no_server() {
    let laps = std::env::var("RDMESH_CHAIN_LAPS").ok().and_then(|laps| laps.parse().ok()).unwrap_or(10_000_u64);
    let lab = Lab::start();
    let server = start_server(&lab);
    let mut shell = start_shell(&lab);
    assert_eq!(ask(&mut shell, "set k kept"), "STORED");
    let pid = find(server.pid(), "kv-server").expect("it runs");
    stop(pid);
    let stopped = get_by_chain(&mut shell, laps / 2);
    kill(pid);
    let killed = get_by_chain(&mut shell, laps / 2);
    println!("{stopped} laps with the server stopped, {killed} with it killed");
    assert_eq!(ask(&mut shell, "get k"), "chain kept");
    lab.command(&["linger", "end", "kv", "--net", "blue"]).ok();
}

/// The protocol's own test suite, of libmemcached.
#[test]
fn memcacheds_tools_find_its_protocol() {
    let lab = Lab::start();
    let _server = start_server(&lab);
    let run = |command: &str| lab.run_in(&client(), LIMIT, &command.split(' ').collect::<Vec<_>>()).ok().text;
    let tested = run("memccapable -h 10.7.0.2 -p 11211 -a");
    assert!(tested.contains("All tests passed"), "{tested}");
    let shown = run("memcstat --servers=10.7.0.2");
    assert!(shown.contains("curr_items"), "{shown}");
    run("memcslap --servers=10.7.0.2 --concurrency=4 --execute-number=200 --initial-load=200 --flush --test=set");
}
