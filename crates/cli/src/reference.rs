//! Reference of the command line, generated from its definition: man pages, and a page of the book.
//!
//! `./dev reference` writes the files; the test holds them to the program.

use crate::args::Args;
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Columns of help texts.
const WIDTH: usize = 100;
/// Set to write the files.
const WRITE: &str = "RDMESH_WRITE_REFERENCE";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference")
}

/// The program and its commands, each before those below it.
fn commands() -> Vec<Command> {
    let mut program = Args::command().term_width(WIDTH).disable_help_subcommand(true);
    program.build();
    let mut commands = Vec::new();
    collect(&program, &mut commands);
    commands
}

fn collect(command: &Command, into: &mut Vec<Command>) {
    into.push(command.clone());
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        collect(below, into);
    }
}

/// `rdmesh-endpoint-add`.
fn name(command: &Command) -> String {
    command.get_display_name().unwrap_or(command.get_name()).to_owned()
}

fn page(commands: &[Command]) -> String {
    let section = |command: &Command| {
        let help = command.clone().term_width(WIDTH).render_long_help().to_string();
        let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
        format!(
            "\n## {}\n\n```text\n{}\n```\n",
            command.get_bin_name().unwrap_or(command.get_name()),
            lines.join("\n").trim_end()
        )
    };
    let sections: String = commands.iter().map(section).collect();
    format!(
        "# Command line\n\nThe output of `rdmesh COMMAND --help`, for each command; `man` has the same.\n{sections}"
    )
}

/// The files, by name.
fn files() -> BTreeMap<String, Vec<u8>> {
    let commands = commands();
    let man = |command: &Command| {
        let mut text = Vec::new();
        Man::new(command.clone()).source("rdmesh").manual("rdmesh").render(&mut text).expect("memory takes everything");
        (format!("{}.1", name(command)), text)
    };
    let mut files: BTreeMap<_, _> = commands.iter().map(man).collect();
    files.insert("commands.md".to_owned(), page(&commands).into_bytes());
    files
}

#[test]
fn the_reference_is_the_programs() {
    let (files, folder) = (files(), folder());
    if std::env::var_os(WRITE).is_some() {
        fs::remove_dir_all(&folder).ok();
        fs::create_dir_all(&folder).expect("a folder");
        files.iter().for_each(|(name, text)| fs::write(folder.join(name), text).expect("a file"));
    }
    let present = fs::read_dir(&folder).expect("docs/reference").map(|entry| entry.expect("an entry").file_name());
    let present: Vec<_> = present.filter_map(|name| name.into_string().ok()).collect();
    for name in &present {
        assert!(files.contains_key(name), "docs/reference/{name} is of no command: run ./dev reference");
    }
    for (name, text) in &files {
        let kept = fs::read(folder.join(name)).unwrap_or_default();
        assert!(kept == *text, "docs/reference/{name} is not the program's: run ./dev reference");
    }
    assert!(files.len() > 15, "{:?}", files.keys());
}
