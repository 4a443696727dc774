//! Endpoints of a pool, beside endpoints that are made one by one, by the router and by `ip`.
//!
//! Each way ends with endpoints of which the last one has answered a TCP connection from another namespace. Before the time is
//! taken nothing of them is there, apart from the pool, which is what a pool is for; what it takes to make one is a figure of its own.

use crate::goals::{Goal, goal};
use crate::report::number;
use crate::results::{Results, Unit};
use rdmesh_fabric::api::{AcquireEndpoints, CreateEndpoint, EndpointInfo, Lifetime, ReleaseEndpoints};
use rdmesh_fabric::{Client, Name, Pool, Quota};
use rdmesh_tests::{Endpoint, Lab, Program};
use std::fmt::Write;
use std::net::IpAddr;
use std::process::Command;
use std::time::{Duration, Instant};

/// Groups of figures.
pub(crate) const ACQUIRED: &str = "endpoints of a pool";
pub(crate) const ONE_BY_ONE: &str = "endpoints with a namespace of their own";
pub(crate) const BY_IP: &str = "namespace, veth and address by ip";
const PREPARED: &str = "making the pool";
const TURNOVER: &str = "one endpoint, beside 1,000 in use";
/// Numbers of endpoints.
pub(crate) const COUNTS: [u32; 5] = [1, 10, 100, 1000, 4000];

/// Name of the figure of so many endpoints.
pub(crate) fn figure(count: u32) -> String {
    format!("{count}, ready")
}

/// Measures all ways. Those whose time grows with the number are not taken to its end.
pub(crate) fn measure(results: &mut Results, effort: f64) {
    let most = if effort < 1.0 { 100 } else { 4000 };
    for count in COUNTS.into_iter().filter(|count| *count <= most) {
        let lab = Lab::start();
        let mut bench = Bench::new(&lab);
        let (prepared, acquired) = bench.acquire(count);
        results.add(PREPARED, &figure(count), Unit::Milliseconds, milliseconds(prepared));
        results.add(ACQUIRED, &figure(count), Unit::Milliseconds, milliseconds(acquired));
        if count == most.min(1000) {
            turnover(results, &bench, if effort < 1.0 { 100 } else { 2000 });
        }
    }
    let (most, most_by_ip) = if effort < 1.0 { (10, 10) } else { (100, 1000) };
    for count in COUNTS {
        if count <= most {
            let lab = Lab::start();
            let made = Bench::new(&lab).make_each(count);
            results.add(ONE_BY_ONE, &figure(count), Unit::Milliseconds, milliseconds(made));
        }
        if count <= most_by_ip {
            results.add(BY_IP, &figure(count), Unit::Milliseconds, milliseconds(by_ip(count)));
        }
    }
}

/// A router, and a program in an endpoint that says whether others are there.
struct Bench {
    client: Client,
    network: Name,
    pool: Name,
    prober: Program,
}

impl Bench {
    fn new(lab: &Lab) -> Self {
        let endpoint = Endpoint::new("prober").with(&["--net", NETWORK]);
        let mut prober = lab.start_in(&endpoint, &["python3", "-u", "-c", PROBE]);
        prober.next_line(LIMIT);
        let client = Client::new(lab.dir().join("api.sock"));
        let [network, pool] = [NETWORK, "fn"].map(|name| name.parse().expect("a name"));
        Self { client, network, pool, prober }
    }

    /// Takes `count` endpoints of a new pool. Returns how long making the pool and taking them took.
    fn acquire(&mut self, count: u32) -> (Duration, Duration) {
        let begin = Instant::now();
        let mut size = 0;
        while size < count {
            size = count.min(size + STEP);
            let pool = Pool {
                network: self.network.clone(),
                name: self.pool.clone(),
                size,
                rest_seconds: 0,
                quota: Quota::default(),
                allowed_uid: None,
                // Nothing is started in them: any host can make such a pool.
                shares_addresses: true,
            };
            self.client.set_pool(&pool).expect("the pool can be made");
        }
        let prepared = begin.elapsed();
        let begin = Instant::now();
        let acquired = self.take(count);
        wait_for(&mut self.prober, address_of(acquired.last().expect("there is one")));
        let taken = begin.elapsed();
        // Not only the last one.
        acquired.iter().step_by(97).for_each(|endpoint| wait_for(&mut self.prober, address_of(endpoint)));
        (prepared, taken)
    }

    fn take(&self, count: u32) -> Vec<EndpointInfo> {
        let request = AcquireEndpoints { count, lifetime: Lifetime::Persistent, enters: false };
        self.client.acquire_endpoints(&self.network, &self.pool, &request).expect("they are ready")
    }

    fn release(&self, names: Vec<Name>) {
        let request = ReleaseEndpoints { names };
        self.client.release_endpoints(&self.network, &self.pool, &request).expect("they were acquired");
    }

    /// Makes endpoints with a namespace each; returns how long it took.
    fn make_each(&mut self, count: u32) -> Duration {
        let begin = Instant::now();
        let mut last = None;
        for number in 0..count {
            let name = format!("e{number}").parse().expect("a name");
            let request = CreateEndpoint::new(self.network.clone(), name);
            last = Some(self.client.create_endpoint(&request).expect("there is room"));
        }
        wait_for(&mut self.prober, address_of(&last.expect("there is one")));
        begin.elapsed()
    }
}

/// Endpoints that come and go beside those that stay.
fn turnover(results: &mut Results, bench: &Bench, rounds: usize) {
    let pool = bench.client.pools().expect("it answers").remove(0).pool;
    let size = pool.size + 100;
    bench.client.set_pool(&Pool { size, ..pool }).expect("the pool can grow");
    let (mut acquired, mut released) = (Vec::with_capacity(rounds), Vec::with_capacity(rounds));
    for _ in 0..rounds {
        let begin = Instant::now();
        let taken = bench.take(1);
        acquired.push(begin.elapsed());
        let begin = Instant::now();
        bench.release(taken.into_iter().map(|taken| taken.endpoint.name).collect());
        released.push(begin.elapsed());
    }
    for (what, mut times) in [("acquired", acquired), ("released", released)] {
        times.sort_unstable();
        for (name, place) in [("p50", rounds / 2), ("p99", rounds * 99 / 100)] {
            results.add(TURNOVER, &format!("{what}, {name}"), Unit::Microseconds, milliseconds(times[place]) * 1e3);
        }
    }
}

/// Endpoints made by `ip`, with six commands for each, as scripts do.
fn by_ip(count: u32) -> Duration {
    let bridge = Namespace::new("bench");
    bridge.ip("link add br0 type bridge");
    bridge.ip("link set br0 up");
    bridge.ip("address add 10.99.0.1/16 dev br0");
    bridge.ip("link set lo up");
    let mut prober = Command::new("ip");
    prober.args(["netns", "exec", &bridge.0, "python3", "-u", "-c", PROBE]);
    let mut prober = Program::start(prober);
    prober.next_line(LIMIT);
    let mut all = Vec::new();
    let begin = Instant::now();
    let address = |number: u32| format!("10.99.{}.{}", 1 + number / 250, 1 + number % 250);
    for number in 0..count {
        let namespace = Namespace::new(&format!("bench{number}"));
        bridge.ip(&format!("link add v{number} type veth peer name eth0 netns {}", namespace.0));
        bridge.ip(&format!("link set v{number} master br0 up"));
        namespace.ip("link set lo up");
        namespace.ip(&format!("address add {}/16 dev eth0", address(number)));
        namespace.ip("link set eth0 up");
        all.push(namespace);
    }
    wait_for(&mut prober, address(count - 1).parse().expect("an address"));
    let taken = begin.elapsed();
    prober.kill();
    taken
}

/// A network namespace of `ip netns`, which goes with this.
struct Namespace(String);

impl Namespace {
    fn new(name: &str) -> Self {
        let name = format!("rdmesh-{name}-{}", std::process::id());
        run(&["netns", "add", &name]);
        Self(name)
    }

    fn ip(&self, command: &str) {
        let words: Vec<&str> = ["-n", self.0.as_str()].into_iter().chain(command.split(' ')).collect();
        run(&words);
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
    }
}

fn run(words: &[&str]) {
    let status = Command::new("ip").args(words).status().expect("ip can be started");
    assert!(status.success(), "ip {words:?}: {status}");
}

/// Waits until `prober` reaches an address.
fn wait_for(prober: &mut Program, address: IpAddr) {
    prober.say(&address.to_string());
    assert_eq!(prober.next_line(LIMIT), "there", "{address}");
}

fn address_of(endpoint: &EndpointInfo) -> IpAddr {
    endpoint.endpoint.addresses[0]
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Figures against their bounds.
pub(crate) fn judge(results: &Results) -> Vec<Option<Goal>> {
    let acquired = |count| results.median(ACQUIRED, &figure(count));
    let turnover = results.median(TURNOVER, "acquired, p99");
    vec![
        goal("100 endpoints of a pool ready, ms", acquired(100), 30.0, false),
        goal("1,000 endpoints of a pool ready, ms", acquired(1000), 50.0, false),
        goal("4,000 endpoints of a pool ready, ms", acquired(4000), 250.0, false),
        goal("one endpoint acquired beside 1,000, p99, µs", turnover, 1000.0, false),
    ]
}

/// Tables for the page.
pub(crate) fn page(results: &Results) -> String {
    let mut text = String::from("\n![Time until the last of many endpoints is reachable](endpoints.svg)\n");
    for group in [ACQUIRED, PREPARED, ONE_BY_ONE, BY_IP, TURNOVER] {
        let _ = writeln!(text, "\n| {group} | median | of the rounds |\n|---|---|---|");
        for figure in results.figures.iter().filter(|figure| figure.group == group) {
            let [least, most] =
                [f64::min, f64::max].map(|pick| figure.samples.iter().copied().reduce(pick).unwrap_or(0.0));
            let (unit, name) = (figure.unit.name(), &figure.name);
            let [median, least, most] = [figure.median, least, most].map(number);
            let _ = writeln!(text, "| {name} | {median} {unit} | {least} to {most} |");
        }
    }
    text
}

const NETWORK: &str = "blue";
/// Endpoints that are made with one request.
const STEP: u32 = 256;
const LIMIT: Duration = Duration::from_secs(120);
/// Connects to a port that nobody listens on: the refusal says that the address is there.
const PROBE: &str = "import socket, sys
print('ready')
for line in sys.stdin:
    while True:
        s = socket.socket()
        s.settimeout(1)
        try:
            s.connect((line.strip(), 9))
        except ConnectionRefusedError:
            break
        except OSError:
            continue
        finally:
            s.close()
    print('there')
";
