//! `rdmesh-guest`: the agent of a virtual machine, and programs on its device.

use clap::{Parser, Subcommand};
use rdmesh_mpi::launch;
use rdmesh_mpi::launcher::Launcher;
use rdmesh_uverbs::session::{LIBRARY_NAME, MPI_LIBRARY_NAME, SOCKETS_LIBRARY_NAME};
use rdmesh_vm::guest::{Agent, DIRECTORY, doctor};
use rdmesh_vm::host::spawn_bound;
use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use tracing_subscriber::EnvFilter;

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
        /// Accelerate the program's TCP connections to programs that are started so too, here or in other endpoints
        #[arg(long)]
        accel: bool,
        /// Program and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
    /// Start an MPI launcher whose ranks send large messages by RDMA, as `rdmesh mpi` does on a host
    ///
    /// Example: rdmesh-guest mpi mpirun --host 10.7.0.2,10.7.0.3 ./program
    Mpi {
        /// Directory that the agent was given
        #[arg(long, default_value = DIRECTORY)]
        directory: PathBuf,
        /// Do not print how the messages went when the launcher has ended
        #[arg(long)]
        quiet: bool,
        /// The launcher (mpirun, mpiexec, …) and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
}

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Verb::Serve { directory } => serve(&directory),
        Verb::Doctor { directory } => return examine(&directory),
        Verb::Run { directory, accel, command } => run(&directory, accel, &command),
        Verb::Mpi { directory, quiet, command } => return mpi(&directory, quiet, &command),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure(&*error),
    }
}

fn failure(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("rdmesh-guest: {error}");
    ExitCode::FAILURE
}

fn serve(directory: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let filter = EnvFilter::try_from_env("RDMESH_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
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

fn run(directory: &Path, is_accelerated: bool, command: &[OsString]) -> Result<(), Box<dyn std::error::Error>> {
    let mut preload = library(directory, LIBRARY_NAME)?.into_os_string();
    if is_accelerated {
        preload.push(":");
        preload.push(library(directory, SOCKETS_LIBRARY_NAME)?);
    }
    if let Some(existing) = std::env::var_os("LD_PRELOAD").filter(|existing| !existing.is_empty()) {
        preload.push(":");
        preload.push(existing);
    }
    let [program, arguments @ ..] = command else { return Ok(()) };
    let error = Command::new(program).args(arguments).env("LD_PRELOAD", preload).env(ENDPOINT_ENV, directory).exec();
    Err(format!("{}: {error}", program.display()).into())
}

/// A library for programs: the agent has it from the host.
fn library(directory: &Path, name: &str) -> Result<PathBuf, String> {
    let library = directory.join(name);
    match library.exists() {
        true => Ok(library),
        false => Err(format!("{} does not exist: start `rdmesh-guest serve` as root", library.display())),
    }
}

/// Where programs find the device.
const ENDPOINT_ENV: &str = "RDMESH_ENDPOINT";

/// The exit status is the launcher's own.
fn mpi(directory: &Path, quiet: bool, command: &[OsString]) -> ExitCode {
    match start_mpi(directory, command) {
        Ok((launcher, status)) => {
            if !quiet {
                eprintln!("rdmesh-guest: {}", launcher.report());
            }
            ExitCode::from(status.code().unwrap_or(128 + status.signal().unwrap_or(0)) as u8)
        }
        Err(error) => failure(&*error),
    }
}

fn start_mpi(directory: &Path, command: &[OsString]) -> Result<(Launcher, ExitStatus), Box<dyn std::error::Error>> {
    let [program, arguments @ ..] = command else { return Err("no command".into()) };
    let libraries = [library(directory, LIBRARY_NAME)?, library(directory, MPI_LIBRARY_NAME)?];
    let launcher = Launcher::start()?;
    // Ranks that ssh starts in other guests find the device at the same place.
    let endpoint = [(ENDPOINT_ENV, directory.into())];
    let mut command = launch::command(program, arguments, &libraries, launcher.job(), &endpoint);
    let status = spawn_bound(&mut command).and_then(|mut child| child.wait());
    Ok((launcher, status.map_err(|error| format!("{}: {error}", program.display()))?))
}
