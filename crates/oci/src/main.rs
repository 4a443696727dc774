//! `rdmesh-runtime`: an OCI runtime that gives containers endpoints, and leaves everything else to `runc`.
//!
//! Docker, containerd, CRI-O and podman start a container by a runtime's `create` and `start`. Between the two the container's
//! namespaces are there and its program is not: then the endpoint is made, in the container's own network namespace. What the
//! container is to have is said by its environment, as with other vendors' runtimes ([`wish`]). A container whose environment says
//! nothing is `runc`'s alone.
//!
//! * [`arguments`]: the engine's command; [`bundle`]: the container's configuration.
//! * [`wish`]: what a container is to have; [`endpoint`]: its endpoint.
//! * [`runc`]: the runtime behind this one.

mod arguments;
mod bundle;
mod endpoint;
mod failure;
mod runc;
mod wish;

use arguments::{Arguments, Command};
use bundle::Bundle;
use endpoint::Router;
use failure::Failure;
use std::process::ExitCode;
use wish::Wish;

fn main() -> ExitCode {
    let arguments = Arguments::parse(std::env::args_os().skip(1));
    let done = match &arguments.command {
        Command::Create { id, bundle, pid_file } => create(&arguments, id, bundle, pid_file.as_deref()),
        Command::Delete { id } => delete(&arguments, id),
        Command::Other => Err(runc::become_it(&arguments)),
    };
    match done {
        Ok(code) => code,
        Err(failure) => {
            failure.report(arguments.log.as_deref());
            ExitCode::FAILURE
        }
    }
}

/// Creates a container, and its endpoint if it is to have one.
fn create(
    arguments: &Arguments,
    id: &str,
    bundle: &std::path::Path,
    pid_file: Option<&std::path::Path>,
) -> Result<ExitCode, Failure> {
    let mut bundle = Bundle::open(bundle)?;
    let allowed = std::env::var("RDMESH_NETWORKS").ok();
    let Some(wish) = Wish::of(|name| bundle.variable(name), allowed.as_deref())? else {
        return Err(runc::become_it(arguments));
    };
    let pid_file = pid_file.ok_or(Failure::NoPidFile)?;
    let router = Router::find()?;
    let directory = router.prepare(id, &wish)?;
    bundle.give(&directory, wish.is_accelerated)?;
    let created = runc::run(arguments)?;
    if !created.success() {
        router.remove(id)?;
        return Ok(runc::code(created));
    }
    let made = router.make(id, &wish, pid_file);
    if made.is_err() {
        // The engine deletes nothing of a container that was not created.
        let _ = runc::delete(arguments, id);
        let _ = router.remove(id);
    }
    made.map(|()| ExitCode::SUCCESS)
}

/// Deletes a container, then its endpoint.
fn delete(arguments: &Arguments, id: &str) -> Result<ExitCode, Failure> {
    let deleted = runc::run(arguments)?;
    if deleted.success() {
        Router::find()?.remove(id)?;
    }
    Ok(runc::code(deleted))
}
