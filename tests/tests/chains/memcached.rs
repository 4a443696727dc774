//! The distribution's unmodified memcached, whose gets are answered by chains.

use crate::wanted::{LIMIT, SERVER, command};
use rdmesh_tests::system::{find, kill};
use rdmesh_tests::{Endpoint, Lab, Program, chain_program, root, until};
use std::collections::BTreeMap;
use std::time::Duration;

const OPTIONS: &str = "-u nobody -m 8 -o no_hashexpand,hashpower=14,no_slab_reassign";

/// memcached with the library, in an endpoint whose devices outlive it.
fn start_memcached(lab: &Lab) -> Program {
    let mut run = lab.rdmesh();
    run.args([
        "run",
        "--name",
        "mc",
        "--net",
        "blue",
        "--ip",
        SERVER,
        "--linger",
        "10m",
        "--take-over",
        "--",
        "memcached",
    ]);
    run.args(OPTIONS.split(' ')).env("RDMESH_MEMCACHED", "11212");
    run.env("LD_PRELOAD", chain_program("librdmesh-memcached.so"));
    let mut memcached = Program::start(run);
    [11211, 11212].into_iter().for_each(|port| memcached.wait_listening(port));
    memcached
}

fn client(name: &str, address: &str) -> Endpoint {
    Endpoint::at(name, "blue", address)
}

fn start_shell(lab: &Lab, name: &str, address: &str) -> Program {
    lab.start_in(&client(name, address), &command("memcached-shell", &[SERVER]))
}

fn ask(shell: &mut Program, command: &str) -> String {
    shell.say(command);
    shell.next_line(LIMIT)
}

/// Numbers in an order that is always the same.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// One change of a key by socket, in memcached and in the model.
fn change(writer: &mut Program, model: &mut BTreeMap<u64, String>, random: &mut Random, key: u64) {
    match random.below(8) {
        0 => {
            let was_there = model.remove(&key).is_some();
            assert_eq!(ask(writer, &format!("delete key:{key}")), if was_there { "DELETED" } else { "NOT_FOUND" });
        }
        1 => {
            let was_there = model.remove(&key).is_some();
            assert_eq!(ask(writer, &format!("touch key:{key} -1")), if was_there { "TOUCHED" } else { "NOT_FOUND" });
        }
        2 | 3 => {
            let answer = ask(writer, &format!("incr key:{key} 7"));
            let sum = model.get(&key).map(|value| value.parse::<u64>().map(|number| number + 7));
            match sum {
                None => assert_eq!(answer, "NOT_FOUND"),
                Some(Err(_)) => assert!(answer.starts_with("CLIENT_ERROR"), "{answer}"),
                Some(Ok(sum)) => {
                    assert_eq!(answer, sum.to_string());
                    model.insert(key, answer);
                }
            }
        }
        4 => {
            let number = random.below(1_000_000).to_string();
            assert_eq!(ask(writer, &format!("set key:{key} {number}")), "STORED");
            model.insert(key, number);
        }
        _ => {
            let value = format!("of {key} {}", "x".repeat(random.below(900) as usize));
            assert_eq!(ask(writer, &format!("set key:{key} {value}")), "STORED");
            model.insert(key, value);
        }
    }
}

#[test]
fn gets_by_chain_agree_with_what_was_set_changed_and_deleted() {
    let lab = Lab::start();
    let _memcached = start_memcached(&lab);
    let (mut reader, mut writer) = (start_shell(&lab, "r", "10.7.0.3"), start_shell(&lab, "w", "10.7.0.4"));
    let (mut model, mut random, mut by_chain) = (BTreeMap::new(), Random(1), 0);
    for _ in 0..800 {
        let key = random.below(60);
        change(&mut writer, &mut model, &mut random, key);
        let asked = if random.below(2) == 0 { key } else { random.below(60) };
        let got = ask(&mut reader, &format!("get key:{asked}"));
        let value = got.split_once(' ').map(|(_, value)| value);
        assert_eq!(value, model.get(&asked).map(String::as_str), "{got}");
        by_chain += u64::from(got.starts_with("chain "));
    }
    assert!(by_chain > 250, "{by_chain}");

    // Time passes for memcached and for its clients alike.
    assert_eq!(
        (ask(&mut writer, "set short lived"), ask(&mut reader, "get short")),
        ("STORED".into(), "chain lived".into())
    );
    assert_eq!(ask(&mut writer, "touch short 1"), "TOUCHED");
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(ask(&mut reader, "get short"), "miss");
    let long = "y".repeat(900);
    assert_eq!(
        (ask(&mut writer, &format!("set {} {long}", "k".repeat(250))), ask(&mut writer, "set k 1")),
        ("STORED".into(), "STORED".into())
    );
    assert_eq!(ask(&mut reader, &format!("get {}", "k".repeat(250))), format!("chain {long}"));
    assert_eq!(ask(&mut reader, "get k"), "chain 1");
}

/// The client in Python asks for two keys at a time, and for the rest by socket.
#[test]
fn a_client_in_python_gets_by_chain_as_long_as_there_is_one() {
    let lab = Lab::start();
    let memcached = start_memcached(&lab);
    let python = root().join("examples/memcached/memcached_get.py").display().to_string();
    let mut shell = lab.start_in(&client("p", "10.7.0.6"), &[&python[..], SERVER]);
    assert_eq!((ask(&mut shell, "set a one"), ask(&mut shell, "set b two")), ("STORED".into(), "STORED".into()));
    let long = "y".repeat(9000);
    assert_eq!(ask(&mut shell, &format!("set long {long}")), "STORED");
    for _ in 0..20 {
        shell.say("get a b nothing a long");
        let answers = [(); 5].map(|()| shell.next_line(LIMIT));
        assert_eq!(answers, ["chain one", "chain two", "miss", "chain one", &format!("chain {long}")]);
    }
    assert_eq!((ask(&mut shell, "delete a"), ask(&mut shell, "get a")), ("DELETED".into(), "miss".into()));
    kill(find(memcached.pid(), "memcached").expect("it runs"));
    assert_eq!((ask(&mut shell, "get b"), ask(&mut shell, "get a")), ("chain two".into(), "miss".into()));
    assert_eq!(ask(&mut shell, "set b other"), "the server has gone");
    lab.command(&["linger", "end", "mc", "--net", "blue"]).ok();
    assert_eq!(ask(&mut shell, "get b"), "miss");
}

#[test]
fn a_reader_never_goes_back_while_a_writer_sets() {
    let lab = Lab::start();
    let _memcached = start_memcached(&lab);
    let (mut reader, mut writer) = (start_shell(&lab, "r", "10.7.0.3"), start_shell(&lab, "w", "10.7.0.4"));
    assert_eq!(ask(&mut writer, "set n 0"), "STORED");
    let before = reader.text().len();
    reader.say("rising n 3");
    let mut number = 0;
    while reader.text().len() == before {
        number += 1;
        assert_eq!(ask(&mut writer, &format!("set n {number}")), "STORED");
    }
    let ways = reader.next_line(LIMIT);
    let by_chain = ways.split_once(" by chain, ").and_then(|(count, _)| count.parse::<u64>().ok());
    assert!(by_chain.is_some_and(|count| count > 100) && number > 100, "{ways}, {number} sets");
}

/// The protocol's own test suite, and more values than memcached keeps, which it evicts.
#[test]
fn its_protocol_is_unchanged_and_evicted_values_are_told_as_such() {
    let lab = Lab::start();
    let _memcached = start_memcached(&lab);
    let run =
        |command: &str| lab.run_in(&client("t", "10.7.0.5"), LIMIT, &command.split(' ').collect::<Vec<_>>()).ok().text;
    let tested = run("memccapable -h 10.7.0.2 -p 11211 -a");
    assert!(tested.contains("All tests passed"), "{tested}");
    let (mut reader, mut writer) = (start_shell(&lab, "r", "10.7.0.3"), start_shell(&lab, "w", "10.7.0.4"));
    assert_eq!(ask(&mut writer, "fill e 12000"), "12000 stored");
    let verified = ask(&mut reader, "verify e 12000");
    let counts: Vec<u32> = verified.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
    let [by_chain, _, missing] = counts[..] else { panic!("{verified}") };
    assert!(by_chain > 3000 && missing > 1000, "{verified}");
    assert_eq!(ask(&mut reader, "check e11999 500"), "same");
}

#[test]
fn gets_go_on_when_memcached_is_killed() {
    let lab = Lab::start();
    for round in 0..2 {
        let memcached = start_memcached(&lab);
        let mut shell = start_shell(&lab, "r", "10.7.0.3");
        assert_eq!(ask(&mut shell, "set k kept"), "STORED");
        shell.say("watch k 1.5");
        std::thread::sleep(Duration::from_millis(200 + 300 * round));
        kill(find(memcached.pid(), "memcached").expect("it runs"));
        let watched = shell.next_line(LIMIT);
        assert!(watched.contains(" gets, longest "), "{watched}");
        assert_eq!(
            (ask(&mut shell, "get k"), ask(&mut shell, "set k other")),
            ("chain kept".into(), "the server has gone".into())
        );
        lab.command(&["linger", "end", "mc", "--net", "blue"]).ok();
        assert_eq!(ask(&mut shell, "get k"), "miss");
        drop((shell, memcached));
        until(LIMIT, "all has ended", || (lab.status()["endpoints"] == 0).then_some(()));
    }
}
