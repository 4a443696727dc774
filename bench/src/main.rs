//! `rdmesh-bench`: what rdmesh costs, beside the same work done in other ways, in one run on one machine.
//!
//! Every figure is taken once a round and reported as the median over the rounds. What matters are the ratios: all
//! figures of a run come from the same machine in the same minutes.

mod chart;
mod contention;
mod copy;
mod crc;
mod device;
mod goals;
mod hosts;
mod perftest;
mod pingpong;
mod registration;
mod report;
mod results;
mod setup;
mod shared;
mod tcp;
mod ucx;

use clap::{Parser, Subcommand};
use results::Results;
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
    /// Copy the results to docs/ too.
    #[arg(long)]
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
    /// How the router's workers wait: spin, adaptive or sleep.
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
}

fn main() {
    let arguments = Arguments::parse();
    match arguments.part {
        Some(Part::Player(player)) => player.play(),
        Some(Part::TcpServer { port }) => tcp::serve(port),
        Some(Part::TcpClient(client)) => {
            println!("{}", client.measure().iter().map(f64::to_string).collect::<Vec<_>>().join(" "));
        }
        Some(Part::BusyLoop) => contention::compute(),
        Some(Part::Contention) | None => benchmark(&arguments),
    }
}

fn benchmark(arguments: &Arguments) {
    let rounds = if arguments.quick { 1 } else { arguments.rounds.max(1) };
    let effort = if arguments.quick { 0.1 } else { 1.0 };
    let mut results = Results::new(&arguments.mode, rounds);
    for round in 1..=rounds {
        let begin = Instant::now();
        eprint!("round {round} of {rounds}: ");
        if matches!(arguments.part, Some(Part::Contention)) {
            contention::measure_one_host(&mut results, effort, &arguments.mode);
            contention::measure_two_hosts(&mut results, effort, &arguments.mode);
            continue;
        }
        if arguments.setup {
            device::measure_setup(&mut results, effort, &arguments.mode);
            hosts::measure_setup(&mut results, effort, &arguments.mode);
            continue;
        }
        if arguments.authentication {
            hosts::measure_authentication(&mut results, effort, &arguments.mode);
            continue;
        }
        if arguments.hosts != Some(2) {
            pingpong::measure(&mut results, effort);
            copy::measure(&mut results, effort);
            tcp::measure_loopback(&mut results, effort);
            ucx::measure(&mut results, effort);
            device::measure(&mut results, effort, &arguments.mode);
        }
        if arguments.hosts != Some(1) {
            crc::measure(&mut results, effort);
            hosts::measure(&mut results, effort, &arguments.mode);
        }
        eprintln!("{:.0} s", begin.elapsed().as_secs_f64());
    }
    let goals = goals::judge(&results);
    print!("{}", report::table(&results, &goals));
    report::write(&results, &goals, arguments.publish);
}
