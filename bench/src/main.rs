//! `rdmesh-bench`: cost of rdmesh compared with the same work done in other ways, in one run on one machine.
//!
//! Every figure is taken once a round and reported as the median over the rounds. Only the ratios are significant: all figures
//! of a run come from the same machine in the same minutes.

mod chains;
mod chart;
mod contention;
mod copy;
mod crc;
mod device;
mod endpoints;
mod goals;
mod hosts;
mod mpi;
mod neighbours;
mod page;
mod perftest;
mod pingpong;
mod policies;
mod pools;
mod processor;
mod registration;
mod report;
mod results;
mod setup;
mod shared;
mod sockets;
mod tcp;
mod ucx;

use clap::{Parser, Subcommand};
use report::Files;
use results::Results;
use std::process::ExitCode;
use std::time::Instant;

/// Bytes of the messages whose bandwidth is measured.
const SIZES: [u64; 4] = [2 << 10, 8 << 10, 64 << 10, 1 << 20];

/// Measures rdmesh, on one host and on two, beside shared memory, memcpy, kernel TCP and UCX.
#[derive(Parser)]
struct Arguments {
    /// Rounds; medians are reported.
    #[arg(long, default_value_t = 3, global = true)]
    rounds: usize,
    /// One short round: to see that everything runs.
    #[arg(long, global = true)]
    quick: bool,
    /// Copy the results to docs/ too, and write the figures into the page there; not of a quick run.
    #[arg(long, global = true)]
    publish: bool,
    /// Only what is measured on one host, or on two.
    #[arg(long, value_name = "1|2", value_parser = clap::value_parser!(u8).range(1..=2), conflicts_with = "publish")]
    hosts: Option<u8>,
    /// Only what it takes to make queue pairs and connections.
    #[arg(long, conflicts_with = "publish")]
    setup: bool,
    /// Only what authentication of the tunnel costs.
    #[arg(long, conflicts_with_all = ["publish", "setup", "hosts"])]
    authentication: bool,
    /// Only what lost packets between two hosts cost.
    #[arg(long, conflicts_with_all = ["publish", "setup", "hosts", "authentication"])]
    losses: bool,
    /// Waiting strategy of the router's workers: spin, adaptive or sleep.
    #[arg(long, default_value = "adaptive", global = true)]
    mode: String,
    #[command(subcommand)]
    part: Option<Part>,
}

/// Parts that the benchmark runs as processes of their own.
#[derive(Subcommand)]
enum Part {
    /// One process of a shared-memory ping-pong.
    #[command(hide = true)]
    Player(pingpong::Player),
    /// A TCP server that serves clients until it is killed.
    #[command(hide = true)]
    TcpServer {
        /// Port to listen on.
        port: u16,
    },
    /// A TCP client: prints its figure.
    #[command(hide = true)]
    TcpClient(tcp::Client),
    /// A program that computes until its parent goes.
    #[command(hide = true)]
    BusyLoop,
    /// Only latency and bandwidth beside other load, on one host and on two.
    Contention,
    /// Only what attacks of a program leave to its neighbours.
    Neighbours,
    /// Only chains, beside other ways to get a value.
    Chains,
    /// Only policies: rates, their cost, shares and priorities.
    Policies,
    /// Only accelerated sockets, beside kernel TCP and Unix sockets.
    Sockets,
    /// Only endpoints of pools, beside others.
    Endpoints,
    /// Only MPI, with large messages by RDMA and without.
    Mpi,
    /// Writes the figures of docs/benchmark.json into docs/benchmark.md.
    #[command(hide = true)]
    Page,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.part {
        Some(Part::Player(player)) => player.play(),
        Some(Part::TcpServer { port }) => tcp::serve(port),
        Some(Part::TcpClient(client)) => {
            println!("{}", client.measure().iter().map(f64::to_string).collect::<Vec<_>>().join(" "));
        }
        Some(Part::BusyLoop) => contention::compute(),
        Some(Part::Page) => page::PAGES.iter().for_each(|page| page.update(&rdmesh_tests::root())),
        Some(
            Part::Contention
            | Part::Neighbours
            | Part::Chains
            | Part::Policies
            | Part::Sockets
            | Part::Endpoints
            | Part::Mpi,
        )
        | None => {
            return benchmark(&arguments);
        }
    }
    ExitCode::SUCCESS
}

/// Measures all parts, or those that were asked for. The results so far are written after each of them, so that a failure of
/// the next loses nothing.
fn benchmark(arguments: &Arguments) -> ExitCode {
    let rounds = if arguments.quick { 1 } else { arguments.rounds.max(1) };
    let effort = if arguments.quick { 0.1 } else { 1.0 };
    let mut results = Results::new(&arguments.mode, rounds);
    let files = Files::new(match arguments.part {
        Some(Part::Contention) => "contention",
        Some(Part::Neighbours) => "neighbours",
        Some(Part::Chains) => "chains",
        Some(Part::Policies) => "policies",
        Some(Part::Sockets) => "sockets",
        Some(Part::Endpoints) => "endpoints",
        Some(Part::Mpi) => "mpi",
        _ => "results",
    });
    for round in 1..=rounds {
        let begin = Instant::now();
        eprint!("round {round} of {rounds}: ");
        for (name, measure) in parts(arguments) {
            results.part(round, name, |results| measure(results, effort, &arguments.mode));
            files.write(&results, &goals::judge(&results));
        }
        eprintln!("{:.0} s", begin.elapsed().as_secs_f64());
    }
    let goals = goals::judge(&results);
    print!("{}", report::table(&results, &goals));
    files.announce();
    let page = match arguments.part {
        None => Some(&page::BENCHMARK),
        Some(Part::Neighbours) => Some(&page::NEIGHBOURS),
        Some(Part::Chains) => Some(&page::CHAINS),
        Some(Part::Policies) => Some(&page::POLICIES),
        Some(Part::Sockets) => Some(&page::SOCKETS),
        Some(Part::Endpoints) => Some(&page::ENDPOINTS),
        Some(Part::Mpi) => Some(&page::MPI),
        _ => None,
    };
    match arguments.part {
        None => files.draw(chart::draw, &results),
        Some(Part::Chains) => files.draw(chart::draw_chains, &results),
        Some(Part::Policies) => files.draw(chart::draw_policies, &results),
        Some(Part::Endpoints) => files.draw(chart::draw_endpoints, &results),
        Some(Part::Mpi) => files.draw(chart::draw_mpi, &results),
        _ => {}
    }
    match page.filter(|_| !arguments.quick) {
        _ if !arguments.publish => {}
        Some(page) => files.publish(page),
        None => eprintln!("not published: a quick run, or a part, is not the benchmark"),
    }
    if results.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

type Measure = fn(&mut Results, f64, &str);

const CONTENTION: [(&str, Measure); 2] =
    [("contention, one host", contention::measure_one_host), ("contention, two hosts", contention::measure_two_hosts)];

/// What is measured of a part that is measured alone.
fn alone(part: &Part) -> Option<Vec<(&'static str, Measure)>> {
    Some(match part {
        Part::Contention => CONTENTION.to_vec(),
        Part::Neighbours => vec![
            ("neighbours, one host", neighbours::measure_one_host),
            ("neighbours, two hosts", neighbours::measure_two_hosts),
        ],
        Part::Chains => {
            vec![("chains, one host", chains::measure_one_host), ("chains, two hosts", chains::measure_two_hosts)]
        }
        Part::Policies => vec![
            ("policies, one host", policies::measure_one_host),
            ("policies, two hosts", policies::measure_two_hosts),
        ],
        Part::Mpi => vec![
            ("MPI, one host", |results, effort, _| mpi::measure_one_host(results, effort)),
            ("MPI, two hosts", |results, effort, _| mpi::measure_two_hosts(results, effort)),
        ],
        Part::Endpoints => vec![("endpoints", |results, effort, _| pools::measure(results, effort))],
        Part::Sockets => vec![("sockets", |results, effort, _| sockets::measure(results, effort))],
        _ => return None,
    })
}

fn parts(arguments: &Arguments) -> Vec<(&'static str, Measure)> {
    let endpoints: (&str, Measure) = ("endpoints", |results, _, _| endpoints::measure(results));
    let setup: [(&str, Measure); 3] =
        [endpoints, ("setup, one host", device::measure_setup), ("setup, two hosts", hosts::measure_setup)];
    if let Some(alone) = arguments.part.as_ref().and_then(alone) {
        return alone;
    }
    if arguments.setup {
        return setup.to_vec();
    }
    if arguments.authentication {
        return vec![("authentication", hosts::measure_authentication)];
    }
    if arguments.losses {
        return vec![("losses", hosts::measure_losses)];
    }
    let one: [(&str, Measure); 7] = [
        ("shared memory", |results, effort, _| pingpong::measure(results, effort)),
        ("memcpy", |results, effort, _| copy::measure(results, effort)),
        ("kernel TCP, loopback", |results, effort, _| tcp::measure_loopback(results, effort)),
        ("UCX", |results, effort, _| ucx::measure(results, effort)),
        ("one host", device::measure),
        endpoints,
        CONTENTION[0],
    ];
    let two: [(&str, Measure); 3] = [
        ("invariant CRC", |results, effort, _| crc::measure(results, effort)),
        ("two hosts", hosts::measure),
        CONTENTION[1],
    ];
    let one = one.into_iter().filter(|_| arguments.hosts != Some(2));
    one.chain(two.into_iter().filter(|_| arguments.hosts != Some(1))).collect()
}
