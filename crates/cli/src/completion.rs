//! `rdmesh completion`: completion of commands and options in shells.

use crate::args::Args;
use crate::failure::Failure;
use crate::show::print_line;
use clap::CommandFactory;
use clap_complete::{Shell, generate};

/// Prints the script of a shell.
pub(crate) fn completion(shell: Shell) -> Result<(), Failure> {
    print_line(script(shell).trim_end())
}

fn script(shell: Shell) -> String {
    let mut text = Vec::new();
    generate(shell, &mut Args::command(), "rdmesh", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::Command;

    #[test]
    fn bash_completes_a_command_and_an_option() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(script(Shell::Bash).as_bytes()).unwrap();
        let complete = |words: &str| {
            let asked = format!(
                "source {}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
                 _rdmesh rdmesh \"${{COMP_WORDS[-1]}}\" x; echo \"${{COMPREPLY[*]}}\"",
                file.path().display()
            );
            let done = Command::new("bash").arg("-c").arg(asked).output().unwrap();
            String::from_utf8_lossy(&done.stdout).trim().to_owned()
        };
        assert_eq!(complete("rdmesh poo"), "pool");
        assert_eq!(complete("rdmesh pool create --share"), "--share-addresses");
    }
}
