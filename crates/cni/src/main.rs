//! `rdmesh-cni`: a plugin of the Container Network Interface (CNI specification 1.1), which gives a container an endpoint.
//!
//! A runtime (containerd, CRI-O, podman, nerdctl) executes it for each container, with a command in the environment and the network's
//! configuration on standard input, and reads a result from standard output. The plugin is small: the router does the work.
//!
//! * [`call`]: the runtime's command; [`config`]: the network's configuration.
//! * [`operation`]: the six operations; [`attachment`]: names of the endpoints that they make.
//! * [`devices`]: the operations on endpoints that pods of Kubernetes have as devices.
//! * [`ipam`]: plugins that hand out addresses; [`interface`]: the container's interface as it is.
//! * [`outcome`]: results and errors.

mod attachment;
mod call;
mod config;
mod devices;
mod interface;
mod ipam;
mod operation;
mod outcome;

use call::Call;
use config::Config;
use outcome::Error;
use std::io::{Read, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut input = String::new();
    let read = std::io::stdin().read_to_string(&mut input);
    let answer = read.map_err(|error| Error::input(&error)).and_then(|_| answer(&input));
    let (text, code) = match answer {
        Ok(text) => (text, ExitCode::SUCCESS),
        Err(error) => (error.text(&config::version(&input)), ExitCode::FAILURE),
    };
    // A runtime that does not read has ended.
    let _ = std::io::stdout().write_all(text.as_bytes());
    code
}

/// The text for standard output; empty where an operation has no result.
fn answer(input: &str) -> Result<String, Error> {
    let call = Call::from_environment()?;
    if let Call::Version = call {
        return Ok(outcome::versions(&config::version(input)));
    }
    let config = Config::parse(input)?;
    operation::perform(&call, &config, input)
}
