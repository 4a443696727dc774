//! rdmesh on one host: measurements between two endpoints of one router.

use crate::SIZES;
use crate::perftest::Perftest;
use crate::results::{Results, Unit};
use crate::tcp;
use crate::{registration, setup};
use rdmesh_tests::{Endpoint, Lab, Options, Pair, helper, system, trace};
use std::ffi::OsString;
use std::time::{Duration, Instant};

/// Groups of these figures.
pub(crate) const LATENCY: &str = "rdmesh, latency, 2 B";
pub(crate) const EVENTS: &str = "rdmesh, latency with events, 2 B";
pub(crate) const WRITE: &str = "rdmesh WRITE";
pub(crate) const SEND: &str = "rdmesh SEND";
pub(crate) const READ: &str = "rdmesh READ";
pub(crate) const RATE: &str = "rdmesh, message rate, 2 B";
pub(crate) const PAIRS: &str = "rdmesh WRITE, 8 KB, by queue pairs";
pub(crate) const COST: &str = "rdmesh, cost";

const SERVER: &str = "10.7.0.2";
const PORT: u16 = 18_515;
const LIMIT: Duration = Duration::from_secs(120);

struct Bench {
    lab: Lab,
    server: Endpoint,
    client: Endpoint,
    effort: f64,
}

/// Measures everything once, with a fresh router.
pub(crate) fn measure(results: &mut Results, effort: f64, mode: &str) {
    let bench = Bench::start(effort, mode);
    let perftest = bench.perftest();
    tcp::measure(results, tcp::VETH, &SIZES, effort, SERVER, tcp::between(&perftest.pair));
    perftest.latencies(results, [LATENCY, EVENTS], 100_000);
    // Enough for about half a second: what the scheduler does in some milliseconds must not count.
    perftest.bandwidths(results, &SIZES, 32 << 30, str::to_owned);
    perftest.rates(results, RATE, 2_000_000);
    perftest.queue_pairs(results, PAIRS, &[1, 8, 64, 512], 1_024_000);
    bench.setup(results, mode);
    registration::measure(results, &bench.lab);
    bench.system_calls(results, mode);
    bench.idle(results);
}

/// Measures only the set-up of queue pairs and connections, once, with a fresh router.
pub(crate) fn measure_setup(results: &mut Results, effort: f64, mode: &str) {
    Bench::start(effort, mode).setup(results, mode);
}

/// Further arguments of `rdmesh up`.
pub(crate) fn up(mode: &str) -> Vec<String> {
    vec!["--mode".to_owned(), mode.to_owned()]
}

impl Bench {
    fn start(effort: f64, mode: &str) -> Self {
        let lab = Lab::start_with(Options { up: up(mode), ..Options::default() });
        let (server, client) = (Endpoint::at("server", "bench", SERVER), Endpoint::at("client", "bench", "10.7.0.3"));
        Self { lab, server, client, effort }
    }

    fn setup(&self, results: &mut Results, mode: &str) {
        let connections = (10_000.0 * self.effort) as u64;
        setup::connections(results, setup::CONNECTIONS, &self.perftest().pair, connections);
        setup::queue_pairs(results, up(mode));
    }

    fn perftest(&self) -> Perftest<'_> {
        let (server, client) = ((&self.lab, self.server.clone()), (&self.lab, self.client.clone()));
        let pair = Pair { server, client, address: SERVER.to_owned() };
        Perftest { pair, options: String::new(), effort: self.effort }
    }

    /// With a router of its own, which strace slows down.
    fn system_calls(&self, results: &mut Results, mode: &str) {
        // Many even in a quick run, since setting up counts too.
        let messages = 300_000;
        let mut lab = Lab::start_with(Options { up: up(mode), traced: true, ..Options::default() });
        let table = lab.dir().with_file_name("strace.client");
        let program = format!("ib_write_bw -F -N -p {PORT} -s 2048 -n {messages}");
        let server: Vec<OsString> = program.split(' ').map(OsString::from).collect();
        let mut client: Vec<OsString> = trace::strace(&table);
        client.extend(server.iter().cloned().chain([SERVER.into()]));
        lab.pair((&self.server, &server), (&self.client, &client), PORT, LIMIT);
        for (name, calls) in
            [("system calls, client", trace::total(&table)), ("system calls, router", lab.end_traced())]
        {
            results.add(COST, name, Unit::PerMessage, calls as f64 / f64::from(messages));
        }
    }

    fn idle(&self, results: &mut Results) {
        let mut idle = self.lab.start_in(&Endpoint::new("idle"), &[helper("idle").into_os_string(), "64".into()]);
        assert_eq!(idle.next_line(LIMIT), "idle");
        let router = self.lab.router_pid();
        // It falls asleep a moment after the last message.
        std::thread::sleep(Duration::from_millis(500));
        let (before, begin) = (system::cpu_seconds(router), Instant::now());
        std::thread::sleep(Duration::from_secs_f64(4.0 * self.effort.max(0.25)));
        let share = (system::cpu_seconds(router) - before) / begin.elapsed().as_secs_f64() * 100.0;
        results.add(COST, "router with 64 idle contexts", Unit::Percent, share);
        idle.close_stdin();
        idle.finish(LIMIT).ok();
    }
}
