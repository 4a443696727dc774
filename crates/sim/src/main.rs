//! Command line of the simulator.

use clap::{Parser, Subcommand};
use rdmesh_sim::model::Check;
use rdmesh_sim::schedules::{Exchange, Wire, explore, replay};
use rdmesh_sim::{golden, paths, run_many, run_seed, sharing};
use std::path::Path;
use std::process::ExitCode;

/// Simulates hosts around the NIC engine.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs many seeds and shows what they have met.
    Run {
        /// Number of seeds.
        count: u64,
        /// The first.
        #[arg(long, default_value_t = 0)]
        first: u64,
    },
    /// Runs one seed again.
    Replay {
        /// The seed.
        seed: u64,
        /// Write everything that happens.
        #[arg(long)]
        verbose: bool,
    },
    /// Shows what is carried under loss.
    Golden {
        /// Writes it to the file that the tests compare with.
        #[arg(long)]
        write: bool,
    },
    /// Shows what is carried over several paths.
    Paths {
        /// Writes it to the file that the tests compare with.
        #[arg(long)]
        write: bool,
    },
    /// Shows how connections share a link, by congestion control.
    Sharing {
        /// Writes it to the file that the tests compare with.
        #[arg(long)]
        write: bool,
    },
    /// Runs every schedule of short exchanges.
    Schedules,
}

fn main() -> ExitCode {
    match Args::parse().command {
        Command::Run { count, first } => {
            let outcome = run_many(first, count);
            print!("{}", outcome.seen);
            for failure in &outcome.failures {
                println!("{failure}");
            }
            println!("{} seeds, {} datagrams, {} failures", outcome.seeds, outcome.sent, outcome.failures.len());
            if outcome.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Command::Golden { write } => {
            keep(golden::measure().map(|cells| golden::table(&cells)), write.then_some("golden/goodput.txt"))
        }
        Command::Paths { write } => {
            keep(paths::measure().map(|cells| paths::table(&cells)), write.then_some("golden/paths.txt"))
        }
        Command::Sharing { write } => {
            keep(sharing::measure().map(|cells| sharing::table(&cells)), write.then_some("golden/sharing.txt"))
        }
        Command::Schedules => {
            for (exchange, wire) in Exchange::ALL.into_iter().flat_map(|e| Wire::ALL.map(|wire| (e, wire))) {
                match explore(exchange, wire) {
                    Ok(schedules) => println!("{exchange:?}, {wire:?}: {schedules} schedules hold"),
                    Err(broken) => {
                        println!("{exchange:?}, {wire:?}: {}; choices {:?}", broken.violation, broken.choices);
                        let _ = replay(exchange, wire, &broken.choices);
                        return ExitCode::FAILURE;
                    }
                }
            }
            ExitCode::SUCCESS
        }
        Command::Replay { seed, verbose } => match run_seed(seed, verbose) {
            Ok(summary) => {
                print!("{}", summary.seen);
                println!("seed {seed} holds; hash {:016x}, {} datagrams", summary.hash, summary.sent);
                ExitCode::SUCCESS
            }
            Err(failure) => {
                println!("{failure}");
                ExitCode::FAILURE
            }
        },
    }
}

/// Shows a table, and writes it to a file of this crate.
fn keep(table: Check<String>, file: Option<&str>) -> ExitCode {
    let table = match table {
        Ok(table) => table,
        Err(violation) => {
            println!("{violation}");
            return ExitCode::FAILURE;
        }
    };
    print!("{table}");
    let file = file.map(|file| Path::new(env!("CARGO_MANIFEST_DIR")).join(file));
    if let Some(file) = file
        && let Err(error) = std::fs::write(&file, table)
    {
        println!("{}: {error}", file.display());
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
