//! `rdmesh-guest`: the agent of a virtual machine, and programs on its device.

use clap::{Parser, Subcommand};
use rdmesh_vm::guest::{Agent, DIRECTORY, doctor};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// RDMA device of the host's for programs in a virtual machine
#[derive(Parser)]
#[command(version)]
struct Args {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Serve the programs of this virtual machine, as root
    ///
    /// Example: rdmesh-guest serve
    Serve {
        /// Directory in which programs find the device
        #[arg(long, default_value = DIRECTORY)]
        directory: PathBuf,
    },
    /// Examine what the device needs in this virtual machine, as root
    ///
    /// Example: rdmesh-guest doctor
    Doctor {
        /// Directory that the agent was given
        #[arg(long, default_value = DIRECTORY)]
        directory: PathBuf,
    },
    /// Execute a program that sees the device
    ///
    /// Example: rdmesh-guest run ibv_devinfo
    Run {
        /// Directory that the agent was given
        #[arg(long, default_value = DIRECTORY)]
        directory: PathBuf,
        /// Program and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
}

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Verb::Serve { directory } => serve(&directory),
        Verb::Doctor { directory } => return examine(&directory),
        Verb::Run { directory, command } => run(&directory, &command),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rdmesh-guest: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(directory: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let agent = Agent::join(directory)?;
    println!("rdmesh-guest: the device is at {}", agent.directory().display());
    agent.serve()?;
    Err("the host has closed the device".into())
}

fn examine(directory: &Path) -> ExitCode {
    let findings = doctor::examine(directory);
    for finding in &findings {
        match &finding.result {
            Ok(text) => println!("ok       {}: {text}", finding.subject),
            Err(text) => println!("missing  {}: {text}", finding.subject),
        }
    }
    if findings.iter().all(|finding| finding.result.is_ok()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(directory: &Path, command: &[OsString]) -> Result<(), Box<dyn std::error::Error>> {
    let library = directory.join("librdmesh.so");
    if !library.exists() {
        return Err(format!("{} does not exist: start `rdmesh-guest serve` as root", library.display()).into());
    }
    let mut preload = library.into_os_string();
    if let Some(existing) = std::env::var_os("LD_PRELOAD").filter(|existing| !existing.is_empty()) {
        preload.push(":");
        preload.push(existing);
    }
    let [program, arguments @ ..] = command else { return Ok(()) };
    let error =
        Command::new(program).args(arguments).env("LD_PRELOAD", preload).env("RDMESH_ENDPOINT", directory).exec();
    Err(format!("{}: {error}", program.display()).into())
}
