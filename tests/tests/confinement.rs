//! Address discipline: programs of a pool's endpoints, which share a network namespace, are held to their own addresses.

use rdmesh_tests::{Endpoint, Lab, Program, root, system, until};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
/// The system's own, which all users may execute.
const PYTHON: &str = "/usr/bin/python3";
const NOBODY: &[&str] = &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

/// A pool of two endpoints, and an ordinary endpoint beside it, on a network whose name no other test process uses.
struct Functions {
    lab: Lab,
    net: String,
    script: PathBuf,
    addresses: [String; 2],
    outside: Endpoint,
}

impl Functions {
    /// None, with a word, where the host has no such control groups.
    fn new() -> Option<Self> {
        if system::cgroup2().is_none() {
            println!("skipped: this host has no control groups of version 2");
            return None;
        }
        let (lab, net) = (Lab::start(), format!("net-{}", std::process::id()));
        lab.command(&["pool", "create", "fn", "--net", &net, "--size", "2", "--rest", "0"]).ok();
        let endpoints = lab.api("/v1/endpoints");
        let address = |at: usize| endpoints[at]["addresses"][0].as_str().expect("an address").to_owned();
        let script = lab.share(&root().join("tests/programs/pools/function.py"));
        let addresses = [address(0), address(1)];
        let outside = Endpoint::new("outside").with(&["--net", &net]);
        Some(Self { lab, net, script, addresses, outside })
    }

    /// Starts what `function.py` calls `name`; endpoints are taken in their order.
    fn start(&self, before: &[&str], name: &str, neighbour: usize, arguments: &[&str]) -> Program {
        let mut run = self.lab.rdmesh();
        run.args(["run", "--net", &self.net, "--pool", "fn", "--"]).args(before).arg(PYTHON).arg(&self.script);
        Program::start({
            run.args([name, &self.addresses[neighbour]]).args(arguments);
            run
        })
    }

    /// Control groups of the network's endpoints that there are, below this process's own.
    fn groups(&self) -> Vec<PathBuf> {
        let own = fs::read_to_string("/proc/self/cgroup").expect("this process's groups");
        let own = own.lines().find_map(|line| line.strip_prefix("0::/")).expect("one of version 2");
        let below = system::cgroup2().expect("the hierarchy").join(own);
        let prefix = format!("rdmesh-{}.", self.net);
        let entries = fs::read_dir(below).expect("its directory").flatten();
        entries
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
            .map(|entry| entry.path())
            .collect()
    }
}

/// Lines of a program up to `ready`.
fn lines(program: &mut Program) -> Vec<String> {
    std::iter::repeat_with(|| program.next_line(LIMIT).trim().to_owned()).take_while(|line| line != "ready").collect()
}

#[test]
fn unmodified_programs_share_a_namespace_and_no_ports() {
    let Some(functions) = Functions::new() else { return };
    let expected = [
        "wildcard True",
        "loopback 127.0.0.1",
        "connection 127.0.0.1 127.0.0.1 127.0.0.1 127.0.0.1 127.0.0.1",
        "bytes 100000",
        "dual stack True",
        "datagrams 127.0.0.1 127.0.0.1 18773",
    ];
    // The same ports, twice.
    let mut first = functions.start(&[], "ordinary", 1, &[]);
    assert_eq!(lines(&mut first), expected);
    let mut second = functions.start(NOBODY, "ordinary", 0, &[]);
    assert_eq!(lines(&mut second), expected);
    second.close_stdin();
    second.finish(LIMIT).ok();
    until(LIMIT, "the endpoint is ready again", || (functions.lab.api("/v1/pools")[0]["ready"] == 1).then_some(()));
    // Another router of this host, with the same names, takes nothing of it.
    let elsewhere = Functions::new().expect("the same host");
    let mut other = elsewhere.start(&[], "ordinary", 1, &[]);
    assert_eq!((lines(&mut other).len(), functions.groups().len()), (expected.len(), 2));
    assert!(first.is_running());
    other.kill();
    // A neighbour reaches what is bound to the address and not what is bound to loopback, and is seen with its own.
    let reached = functions.start(&[], "reach", 0, &[]).finish(LIMIT).ok();
    assert_eq!(reached.text.trim(), "wildcard done\nsource True\nloopback True\nown loopback True");
}

#[test]
fn endpoints_with_addresses_of_both_families_keep_to_both() {
    let Some(_) = system::cgroup2() else { return println!("skipped: this host has no control groups of version 2") };
    let lab = Lab::start();
    lab.command(&["network", "add", "dual", "--subnet", "10.50.0.0/24", "--subnet", "fd50::/64"]).ok();
    lab.command(&["pool", "create", "fn", "--net", "dual", "--size", "2"]).ok();
    let endpoints = lab.api("/v1/endpoints");
    let address =
        |endpoint: usize, at: usize| endpoints[endpoint]["addresses"][at].as_str().expect("an address").to_owned();
    let mut run = lab.rdmesh();
    run.args(["run", "--net", "dual", "--pool", "fn", "--", PYTHON]);
    run.arg(lab.share(&root().join("tests/programs/pools/function.py")));
    run.args(["both_families", &address(1, 1), &address(0, 0), &address(0, 1)]);
    let expected = [
        "only IPv6 True True",
        "dual stack True",
        "loopback ::1 ::1 ::1 ::1",
        "source True",
        "datagrams ::1",
        "bind EADDRNOTAVAIL",
        "bind EADDRNOTAVAIL",
    ];
    assert_eq!(Program::start(run).finish(LIMIT).ok().text.trim(), expected.join("\n"));
}

#[test]
fn no_way_leads_to_another_address() {
    let Some(functions) = Functions::new() else { return };
    for before in [&[][..], NOBODY] {
        let mut observer = functions.lab.start_in(&functions.outside, &["python3", "-c", OBSERVER]);
        let observer_address = observer.next_line(LIMIT).trim().to_owned();
        let mut program = functions.start(before, "escapes", 1, &[&observer_address]);
        let mut lines = lines(&mut program);
        let datagrams = lines.pop().expect("a line").replace("datagrams ", "");
        let listener = lines.pop().expect("a line").replace("listener ", "");
        let mut expected = vec![
            "bind EADDRNOTAVAIL",
            "bind mapped EADDRNOTAVAIL",
            "free bind EADDRNOTAVAIL",
            "transparent EPERM",
            "raw EPERM",
            "packet EPERM",
            "address EPERM",
            "device EADDRNOTAVAIL",
        ];
        if !before.is_empty() {
            expected.push("group EACCES");
        }
        expected.push("source done");
        assert_eq!(lines, expected);
        // From outside: the own address is served, the neighbour's is not.
        observer.say(&format!("{} {} {listener} {datagrams}", functions.addresses[0], functions.addresses[1]));
        assert_eq!(observer.next_line(LIMIT).trim(), "own connected, other timeout");
        let rest = program.finish(LIMIT).ok().text;
        assert_eq!(
            rest.trim().lines().collect::<Vec<_>>()[lines.len() + 3..],
            ["accepted True", "accepted another's timeout", "received timeout"]
        );
        // Each datagram came from the own address.
        observer.close_stdin();
        let seen = observer.finish(LIMIT).ok().text;
        let own = &functions.addresses[0];
        assert!(seen.contains(&format!("from {own} {own}\n")), "{seen}");
        until(LIMIT, "the endpoint is ready", || (functions.lab.api("/v1/pools")[0]["ready"] == 2).then_some(()));
        // The other one comes first now; a round gives it back behind this one.
        functions.start(&[], "leave", 1, &[]).finish(LIMIT).ok();
        until(LIMIT, "the endpoint is ready", || (functions.lab.api("/v1/pools")[0]["ready"] == 2).then_some(()));
    }
}

/// Prints its address, gets two datagrams at 18774, then tries the listener and the datagram socket of a function.
const OBSERVER: &str = "
import socket, sys
with open('/sys/class/infiniband/rxe0/ports/1/gids/1') as gid:
    own = socket.inet_ntoa(bytes.fromhex(gid.read().strip().replace(':', ''))[12:])
d = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
d.bind((own, 18774)); d.settimeout(20)
print(own, flush=True)
address, other, listener, datagrams = sys.stdin.readline().split()
senders = [d.recvfrom(64)[1][0] for _ in range(2)]
s = socket.create_connection((address, int(listener)), 5)
try:
    socket.create_connection((other, int(listener)), 1); result = 'connected'
except (TimeoutError, OSError) as error:
    result = 'timeout' if isinstance(error, TimeoutError) else str(error)
d.sendto(b'for another', (other, int(datagrams)))
print('own connected, other', result, flush=True)
print('from', *senders, flush=True)
sys.stdin.read()
";

#[test]
fn sockets_stay_those_of_the_endpoint_that_made_them() {
    let Some(functions) = Functions::new() else { return };
    let way = functions.lab.shared().join("way");
    let way = way.to_str().expect("a path");
    let mut giver = functions.start(&[], "give", 1, &[way]);
    assert_eq!(lines(&mut giver), Vec::<String>::new());
    let taken = functions.start(&[], "take", 0, &[way]).finish(LIMIT).ok();
    assert_eq!(taken.text.trim(), "given True\nfresh EADDRNOTAVAIL");
    giver.close_stdin();
    giver.finish(LIMIT).ok();
}

#[test]
fn what_a_program_leaves_behind_is_ended_with_it() {
    let Some(functions) = Functions::new() else { return };
    functions.start(&[], "leave", 1, &[]).finish(LIMIT).ok();
    // The same endpoint, whose port the daemon held.
    until(LIMIT, "both are ready", || (functions.lab.api("/v1/pools")[0]["ready"] == 2).then_some(()));
    for neighbour in [0, 1] {
        functions.start(&[], "leave", neighbour, &[]).finish(LIMIT).ok();
    }
    until(LIMIT, "no group is left", || functions.groups().is_empty().then_some(()));
    let held = "import socket; socket.create_connection(('{}', 18778), 2)";
    for address in &functions.addresses {
        let tried = functions.lab.run_in(&functions.outside, LIMIT, &["python3", "-c", &held.replace("{}", address)]);
        assert!(tried.text.contains("refused"), "{}", tried.text);
    }
}

#[test]
fn discipline_outlives_the_router() {
    let Some(functions) = Functions::new() else { return };
    let mut program = functions.start(&[], "ordinary", 1, &[]);
    lines(&mut program);
    system::kill(functions.lab.router_pid());
    functions.lab.up_again();
    assert_eq!(functions.groups().len(), 1);
    let reached = functions.start(&[], "reach", 0, &[]);
    assert!(reached.finish(LIMIT).ok().text.contains("loopback True"));
    program.kill();
    until(LIMIT, "no group is left", || functions.groups().is_empty().then_some(()));
}

#[test]
fn a_containers_group_is_held_to_an_acquired_endpoint() {
    let Some(functions) = Functions::new() else { return };
    let lab = &functions.lab;
    let acquired = lab.command(&["endpoint", "acquire", "fn", "--net", &functions.net, "--json"]).ok();
    let acquired: serde_json::Value = serde_json::from_str(&acquired.text).expect("a list");
    let (name, namespace) = (acquired[0]["name"].as_str().expect("a name"), acquired[0]["namespace"].as_str());
    // As a runtime does: a group, and a process in it.
    let group = Group(system::cgroup2().expect("the hierarchy").join(format!("rdmesh-test-{}", std::process::id())));
    fs::create_dir(&group.0).expect("a group");
    let path = group.0.to_str().expect("a path");
    lab.command(&["endpoint", "confine", name, "--net", &functions.net, "--cgroup", path]).ok();
    let again = lab.command(&["endpoint", "confine", name, "--net", &functions.net, "--cgroup", path]);
    assert!(again.text.contains("has a control group already"), "{}", again.text);
    let own = acquired[0]["addresses"][0].as_str().expect("an address");
    let other = functions.addresses.iter().find(|address| *address != own).expect("another");
    let script = format!(
        "import socket, sys\ndef bound(a):\n  try:\n    socket.socket().bind((a, 0)); return 'bound'\n  except OSError as e: return str(e)\n\
         print(bound('{own}'), bound('{other}'), flush=True)\nsys.stdin.readline()\nprint(bound('{own}'), flush=True)\n\
         d = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ntry: d.sendto(b'x', ('{other}', 1)); print('sent')\nexcept OSError as e: print(e)"
    );
    let mut inside = Command::new("sh");
    inside.args([
        "-c",
        &format!("echo $$ > {path}/cgroup.procs; exec nsenter --net={} python3 -c \"$0\"", namespace.expect("one")),
    ]);
    inside.arg(script);
    let mut inside = Program::start(inside);
    assert_eq!(inside.next_line(LIMIT).trim(), "bound [Errno 99] Cannot assign requested address");
    // Released, it has no address at all.
    lab.command(&["endpoint", "release", name, "--net", &functions.net]).ok();
    inside.say("");
    assert_eq!(inside.next_line(LIMIT).trim(), "[Errno 99] Cannot assign requested address");
    let rest = inside.finish(LIMIT).ok().text;
    assert!(!rest.contains("sent"), "{rest}");
}

/// A control group that is removed on drop.
struct Group(PathBuf);

impl Drop for Group {
    fn drop(&mut self) {
        let gone = || fs::remove_dir(&self.0).is_ok().then_some(());
        until(LIMIT, "the group is empty", gone);
    }
}

#[test]
fn a_pool_may_share_its_addresses() {
    let lab = Lab::start();
    lab.command(&["pool", "create", "fn", "--net", "blue", "--size", "2", "--share-addresses"]).ok();
    let other = lab.api("/v1/endpoints")[1]["addresses"][0].as_str().expect("an address").to_owned();
    let bind = format!("import socket; socket.socket().bind(('{other}', 0))");
    lab.command(&["run", "--net", "blue", "--pool", "fn", "--", "python3", "-c", &bind]).ok();
    lab.command(&["pool", "resize", "fn", "--net", "blue", "--size", "3"]).ok();
    assert_eq!(lab.api("/v1/pools")[0]["shares_addresses"], true);
}

#[test]
fn who_takes_an_endpoint_for_others_stays_where_it_is() {
    let Some(functions) = Functions::new() else { return };
    // Over the API, by a process that the endpoint goes with, and that is not its program.
    let ask = |body: &str| {
        let script = format!(
            "import http.client, socket, json\nclass C(http.client.HTTPConnection):\n  def connect(self):\n    \
             self.sock = socket.socket(socket.AF_UNIX); self.sock.connect('{}')\n\
             before = open('/proc/self/cgroup').read()\nc = C('localhost')\n\
             c.request('POST', '/v1/pools/{}/fn/acquire', json.dumps({body}), {{'Content-Type': 'application/json'}})\n\
             r = c.getresponse(); text = r.read().decode()\nprint(r.status, open('/proc/self/cgroup').read() == before, text)",
            functions.lab.dir().join("api.sock").display(),
            functions.net
        );
        let mut python = Command::new(PYTHON);
        python.args(["-c", &script]);
        Program::start(python).finish(LIMIT).ok().text
    };
    let taken = ask("{'count': 1, 'lifetime': 'caller'}");
    assert!(taken.starts_with("200 True ") && !taken.contains("cgroup"), "{taken}");
    let entered = ask("{'count': 1, 'lifetime': 'caller', 'enters': True}");
    assert!(entered.starts_with("200 False ") && entered.contains("cgroup"), "{entered}");
    for refused in ["{'count': 2, 'lifetime': 'caller', 'enters': True}", "{'count': 1, 'enters': True}"] {
        let answer = ask(refused);
        assert!(answer.starts_with("400 True ") && answer.contains("`enters` is for one"), "{answer}");
    }
}
