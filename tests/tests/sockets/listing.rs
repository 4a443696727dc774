//! `rdmesh sockets`: which way connections go, and why.

use crate::{LIMIT, accelerated};
use rdmesh_tests::{Endpoint, Lab, Program, system, until};
use serde_json::Value;
use std::process::Command;

/// Serves connections: sends each line back, and is told by `splice` to use that call on its last connection.
const SERVER: &str = "
import os, socket, sys, threading
listener = socket.create_server(('0.0.0.0', int(sys.argv[1])))
print('port', listener.getsockname()[1], flush=True)
kept = []
def serve(s):
    while data := s.recv(4096):
        s.sendall(data)
    s.close()
def accept():
    while True:
        s, _ = listener.accept()
        kept.append(s)
        threading.Thread(target=serve, args=(s,), daemon=True).start()
threading.Thread(target=accept, daemon=True).start()
for line in sys.stdin:
    read, write = os.pipe()
    os.write(write, b'by splice')
    os.splice(read, kept[-1].fileno(), 9)
    print('done', flush=True)
";

/// Asks a hundred times and says so, again for each line `more`, and holds the connection.
const CLIENT: &str = "
import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
while True:
    for n in range(100):
        s.sendall(b'x' * 50)
        got = 0
        while got < 50:
            got += len(s.recv(50 - got))
    print('asked', flush=True)
    if sys.stdin.readline() != 'more\\n':
        break
while data := s.recv(4096):
    pass
";

/// Accepts a connection, and reads all of it after a line.
const PAUSING: &str = "
import socket, sys
s, _ = socket.create_server(('0.0.0.0', int(sys.argv[1]))).accept()
s.recv(1)
print('paused', flush=True)
sys.stdin.readline()
while data := s.recv(1 << 20):
    pass
";

/// Sends as much as is taken, for ever.
const SENDING: &str = "
import socket, sys, time
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
s.setblocking(False)
while True:
    try:
        s.send(b'x' * (1 << 12))
    except BlockingIOError:
        time.sleep(0.001)
";

/// Rows of connections at a port.
fn rows(list: &Value, port: u16) -> Vec<&Value> {
    let end = format!(":{port}");
    let is_at =
        |row: &&Value| ["local", "peer"].iter().any(|side| row[side].as_str().is_some_and(|a| a.ends_with(&end)));
    list.as_array().expect("a list").iter().filter(is_at).collect()
}

/// What is listed of the process with this number.
fn of<'a>(rows: &[&'a Value], program: &Program) -> Vec<&'a Value> {
    rows.iter().copied().filter(|row| row["pid"] == program.pid()).collect()
}

fn start(mut command: Command, text: &str, arguments: &[&str]) -> Program {
    command.args(["/usr/bin/python3", "-c", text]).args(arguments);
    Program::start(command)
}

#[test]
fn each_connection_is_listed_with_its_path_and_the_reason() {
    let lab = Lab::start();
    let list = || -> Value {
        let listed = lab.command(&["sockets", "--json"]).ok();
        serde_json::from_str(&listed.text).unwrap_or_else(|error| panic!("{error}: {}", listed.text))
    };
    let mut server = start(accelerated::<&str>(&[]), SERVER, &["0"]);
    let port: u16 = server.next_line(LIMIT).trim().replace("port ", "").parse().expect("a port");
    let own = port.to_string();
    let mut plain = Command::new("env");
    plain.arg("RDMESH=plain");
    // One after the other: the server's last connection is the accelerated one.
    let mut clients = [plain, accelerated::<&str>(&[])].map(|command| {
        let mut client = start(command, CLIENT, &["127.0.0.1", &own]);
        assert_eq!(client.next_line(LIMIT).trim(), "asked");
        client
    });
    // On a busy machine the ring may come late.
    until(LIMIT, "a ring that carries data", || {
        clients[1].say("more");
        assert_eq!(clients[1].next_line(LIMIT).trim(), "asked");
        let listed = list();
        of(&rows(&listed, port), &clients[1])[0]["ring_bytes_out"].as_u64().filter(|bytes| *bytes >= 5000)
    });
    let listed = list();
    let found = rows(&listed, port);
    // The plain client is not listed; its end at the server is.
    assert_eq!((of(&found, &clients[0]).len(), of(&found, &clients[1]).len(), of(&found, &server).len()), (0, 1, 2));
    let fast = of(&found, &clients[1])[0];
    assert_eq!((&fast["out"], &fast["in"], &fast["rings"]), (&"memory".into(), &"memory".into(), &1.into()), "{fast}");
    assert!(fast["reason"].is_null() && fast["endpoint"].is_null(), "{fast}");
    assert_eq!(fast["command"], "python3", "{fast}");
    let slow = of(&found, &server).into_iter().find(|row| row["out"] == "tcp").expect("a connection on TCP");
    assert!(
        slow["reason"].as_str().is_some_and(|why| why.contains("calls") || why.contains("not been reached")),
        "{slow}"
    );
    // What a ring cannot do is named.
    server.say("splice");
    assert_eq!(server.next_line(LIMIT).trim(), "done");
    let listed = list();
    let found = rows(&listed, port);
    let spliced = of(&found, &server).into_iter().find(|row| row["rings"] == 1).expect("the connection");
    assert_eq!((&spliced["out"], &spliced["reason"]), (&"tcp".into(), &"it is used by splice, tee or sendfile".into()));
    // People see the same.
    let text = lab.command(&["sockets"]).ok().text;
    assert!(text.contains("WHY TCP") && text.contains("splice"), "{text}");
    clients.into_iter().for_each(|mut client| client.kill());
    until(LIMIT, "the connections are gone", || of(&rows(&list(), port), &server).is_empty().then_some(()));
}

#[test]
fn connections_of_endpoints_are_listed_with_their_names() {
    let lab = Lab::start();
    let python = |text: &'static str| ["/usr/bin/python3".to_owned(), "-c".into(), text.into()].to_vec();
    let (at, port) = ("10.7.0.2", "7780");
    let server_at = Endpoint::at("server", "blue", at).with(&["--accel"]);
    let mut server = lab.start_in(&server_at, &[python(SERVER), vec![port.into()]].concat());
    server.next_line(LIMIT);
    let client_at = Endpoint::at("client", "blue", "10.7.0.3").with(&["--accel"]);
    let mut client = lab.start_in(&client_at, &[python(CLIENT), vec![at.into(), port.into()]].concat());
    client.next_line(LIMIT);
    let listed = lab.command(&["sockets", "--json"]).ok();
    let listed: Value = serde_json::from_str(&listed.text).expect("a list");
    let found = rows(&listed, 7780);
    for (program, name) in [(&client, "blue/client"), (&server, "blue/server")] {
        let own = of(&found, program);
        assert_eq!((own.len(), own[0]["endpoint"].as_str()), (1, Some(name)), "{own:?}");
        // On a busy machine the way between the endpoints may come late.
        let is_known = own[0]["out"] == "relay" || own[0]["reason"].is_string();
        assert!(is_known, "{own:?}");
    }
    if !system::is_root() {
        return;
    }
    // Others see nothing of root's programs.
    let mut other = Command::new("setpriv");
    let program = rdmesh_tests::product("rdmesh");
    other.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program).args(["sockets", "--json"]);
    assert_eq!(Program::start(other).finish(LIMIT).ok().text.trim(), "[]");
}

#[test]
fn a_connection_without_room_for_the_way_back_says_so() {
    let lab = Lab::start();
    let python = |text: &'static str| ["/usr/bin/python3".to_owned(), "-c".into(), text.into()].to_vec();
    let (at, port) = ("10.7.0.2", "7781");
    let server_at = Endpoint::at("server", "blue", at).with(&["--accel"]);
    let mut server = lab.start_in(&server_at, &[python(PAUSING), vec![port.into()]].concat());
    server.wait_listening(7781);
    let client_at = Endpoint::at("client", "blue", "10.7.0.3").with(&["--accel"]);
    // Until rings come, more is sent than the buffer takes.
    let late = ["env".to_owned(), "RDMESH_UPGRADE=100".to_owned()].to_vec();
    let mut client = lab.start_in(&client_at, &[late, python(SENDING), vec![at.into(), port.into()]].concat());
    let own = || {
        let listed: Value = serde_json::from_str(&lab.command(&["sockets", "--json"]).ok().text).expect("a list");
        of(&rows(&listed, 7781), &client).first().map(|row| (*row).clone())
    };
    until(LIMIT, "the reason is that there is no room", || {
        own()?["reason"].as_str()?.contains("lacks room to go back").then_some(())
    });
    client.kill();
    server.say("");
    server.finish(LIMIT).ok();
}
