//! Shared-memory ping-pong, the lower bound for latency: a word is handed from process to process, directly and through a third
//! process in the router's place, under each waiting strategy.

use crate::results::{Results, Unit};
use crate::shared::Mapping;
use clap::{Args, ValueEnum};
use rustix::thread::{futex, sched_yield};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// Group of these figures.
pub(crate) const GROUP: &str = "shared memory, 4 B, half round trip";

const MAPPING_LEN: usize = 4096;
const FUTEX_SPINS: u32 = 200;
const LOOKS: u32 = 8;

/// Waiting strategy of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Policy {
    /// It looks again at once.
    Spin,
    /// It gives up the processor between looks.
    Yield,
    /// It gives up the processor after eight looks, as programs and router do on a machine with few processors.
    Mixed,
    /// It looks a few times, then sleeps in the kernel until it is woken.
    Futex,
}

/// One process of the chain. It waits on word `listen` and answers on word `tell`, both ways when it is in the middle.
#[derive(Args)]
pub(crate) struct Player {
    path: PathBuf,
    policy: Policy,
    /// Pairs "listen:tell".
    routes: Vec<String>,
}

impl Player {
    /// Passes on received values until a zero.
    pub(crate) fn play(&self) {
        let memory = Mapping::open(&self.path, MAPPING_LEN).expect("the memory of the process that started this one");
        let routes: Vec<(usize, usize)> = self.routes.iter().filter_map(|r| parse_route(r)).collect();
        let ready = memory.word(READY);
        ready.fetch_add(1, Ordering::AcqRel);
        wake(ready);
        let mut seen = vec![0; routes.len()];
        loop {
            for (i, &(listen, tell)) in routes.iter().enumerate() {
                // In the middle it knows where the word is next: there and back alternate.
                let value = wait_change(memory.word(listen), seen[i], self.policy);
                seen[i] = value;
                hand_over(memory.word(tell), value, self.policy);
                if value == END {
                    return;
                }
            }
        }
    }
}

/// Half a round trip by way of a third process, in the better of the two ways to yield.
pub(crate) fn relayed(results: &Results) -> Option<f64> {
    let of = |policy: &str| results.median(GROUP, &format!("with a third between, {policy}"));
    Some(of("yield")?.min(of("yield after 8 looks")?))
}

/// Measures both chains under all policies.
pub(crate) fn measure(results: &mut Results, effort: f64) {
    let policies = [
        (Policy::Spin, "spin"),
        (Policy::Yield, "yield"),
        (Policy::Mixed, "yield after 8 looks"),
        (Policy::Futex, "futex after 200"),
    ];
    for (policy, name) in policies {
        let direct = half_round_trip(policy, &[&["0:1"]], iterations(policy, false, effort));
        results.add(GROUP, &format!("two processes, {name}"), Unit::Microseconds, direct);
        let relayed = half_round_trip(policy, &[&["0:2", "3:1"], &["2:3"]], iterations(policy, true, effort));
        results.add(GROUP, &format!("with a third between, {name}"), Unit::Microseconds, relayed);
    }
}

/// Three processes that never give up the processor stop each other on two cores: a few rounds take seconds then.
fn iterations(policy: Policy, relayed: bool, effort: f64) -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let crowded = policy == Policy::Spin && cores < if relayed { 3 } else { 2 };
    if crowded { 20 } else { (100_000.0 * effort) as u32 }
}

const READY: usize = 8;
const END: u32 = u32::MAX;

/// Word 0 leads away from us, word 1 back.
fn half_round_trip(policy: Policy, players: &[&[&str]], iterations: u32) -> f64 {
    let memory = Mapping::shared(MAPPING_LEN).expect("memory");
    let mut children: Vec<Child> = players.iter().map(|routes| start(&memory, policy, routes)).collect();
    let ready = memory.word(READY);
    while ready.load(Ordering::Acquire) < players.len() as u32 {
        let _ = futex::wait(ready, futex::Flags::empty(), ready.load(Ordering::Acquire), Some(&TICK));
    }
    let (there, back) = (memory.word(0), memory.word(1));
    let mut begin = Instant::now();
    let warm_up = iterations / 10;
    for i in 1..=warm_up + iterations {
        if i == warm_up + 1 {
            begin = Instant::now();
        }
        hand_over(there, i, policy);
        wait_change(back, i - 1, policy);
    }
    let elapsed = begin.elapsed();
    hand_over(there, END, policy);
    for child in &mut children {
        child.wait().expect("the child is ours");
    }
    elapsed.as_secs_f64() * 1e6 / f64::from(iterations) / 2.0
}

const TICK: rustix::time::Timespec = rustix::time::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

fn start(memory: &Mapping, policy: Policy, routes: &[&str]) -> Child {
    let policy = policy.to_possible_value().expect("no policy is hidden");
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command.arg("player").arg(memory.path()).arg(policy.get_name()).args(routes);
    command.spawn().expect("this program can be started again")
}

fn parse_route(route: &str) -> Option<(usize, usize)> {
    let (listen, tell) = route.split_once(':')?;
    Some((listen.parse().ok()?, tell.parse().ok()?))
}

fn wait_change(word: &AtomicU32, old: u32, policy: Policy) -> u32 {
    let mut looks = 0;
    loop {
        let value = word.load(Ordering::Acquire);
        if value != old {
            return value;
        }
        looks += 1;
        match policy {
            Policy::Yield => sched_yield(),
            Policy::Mixed if looks % LOOKS == 0 => sched_yield(),
            Policy::Futex if looks > FUTEX_SPINS => {
                let _ = futex::wait(word, futex::Flags::empty(), old, None);
            }
            Policy::Spin | Policy::Mixed | Policy::Futex => std::hint::spin_loop(),
        }
    }
}

fn hand_over(word: &AtomicU32, value: u32, policy: Policy) {
    word.store(value, Ordering::Release);
    if policy == Policy::Futex {
        wake(word);
    }
}

fn wake(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::empty(), 1);
}
