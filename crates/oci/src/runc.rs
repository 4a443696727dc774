//! The runtime behind this one: `runc`, or what `RDMESH_RUNC` names.

use crate::arguments::Arguments;
use crate::failure::Failure;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode, ExitStatus};

/// Executes it in this process's place, with the engine's words. Returns only where that fails.
pub(crate) fn become_it(arguments: &Arguments) -> Failure {
    let program = program();
    let source = Command::new(&program).args(&arguments.all).exec();
    Failure::Runc { program, source }
}

/// Runs it with the engine's words.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitStatus, Failure> {
    let program = program();
    Command::new(&program).args(&arguments.all).status().map_err(|source| Failure::Runc { program, source })
}

/// Has it delete a container that was just created.
pub(crate) fn delete(arguments: &Arguments, id: &str) -> Result<ExitStatus, Failure> {
    let program = program();
    let mut command = Command::new(&program);
    command.args(&arguments.global).args(["delete", "--force", id]);
    command.status().map_err(|source| Failure::Runc { program, source })
}

/// The exit code for what it has ended with.
pub(crate) fn code(status: ExitStatus) -> ExitCode {
    // As a shell's.
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

fn program() -> String {
    std::env::var("RDMESH_RUNC").ok().filter(|program| !program.is_empty()).unwrap_or_else(|| "runc".to_owned())
}
