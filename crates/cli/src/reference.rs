//! Reference of the command line, generated from its definition: man pages, a page of the book, and a configuration file.
//!
//! `./dev reference` writes the files; the test holds them to the program.

use crate::args::Args;
use clap::{Arg, Command, CommandFactory};
use clap_mangen::Man;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Columns of help texts.
const WIDTH: usize = 100;
/// Set to write the files.
const WRITE: &str = "RDMESH_WRITE_REFERENCE";

/// Columns of the configuration file.
const FILE_WIDTH: usize = 100;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn folder() -> PathBuf {
    root().join("docs/reference")
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

/// The configuration file of the packages: each option of `rdmesh up` with its default, or a placeholder, as a comment.
fn configuration() -> String {
    let commands = commands();
    let router = commands.iter().find(|command| command.get_name() == "router").expect("a command");
    let is_shown = |arg: &&Arg| !arg.is_hide_set() && !matches!(arg.get_id().as_str(), "config" | "state_dir" | "help");
    let options: String = router.get_arguments().filter(is_shown).map(option).collect();
    format!(
        "# Configuration of the router: options of `rdmesh up`, see rdmesh-up(1). Those on a command line override these.\n\
         # Paths are relative to this file. The router reads it when it starts.\n{options}"
    )
}

fn option(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let default = arg.get_default_values().first().map(|value| value.to_string_lossy().into_owned());
    let choices: Vec<_> = arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    let value = match (default, arg.get_value_names()) {
        _ if !arg.get_action().takes_values() => "true".to_owned(),
        (Some(number), _) if number.parse::<u64>().is_ok() => number,
        (Some(text), _) => format!("\"{text}\""),
        (None, names) => format!("\"{}\"", names.and_then(<[_]>::first).map_or("VALUE", |name| name.as_str())),
    };
    let choices = if choices.len() > 1 { format!(" [{}]", choices.join(", ")) } else { String::new() };
    let lines: String =
        wrapped(&(help + &choices)).into_iter().map(|line| format!("# {line}").trim_end().to_owned() + "\n").collect();
    format!("\n{lines}#{} = {value}\n", arg.get_long().expect("options have long names"))
}

/// Lines of at most so many columns, where words allow it.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for paragraph in text.split('\n') {
        for word in paragraph.split_whitespace() {
            let line = lines.last_mut().expect("there is one");
            if line.len() + word.len() >= FILE_WIDTH && !line.is_empty() {
                lines.push(word.to_owned());
            } else {
                *line = if line.is_empty() { word.to_owned() } else { format!("{line} {word}") };
            }
        }
        lines.push(String::new());
    }
    lines.truncate(lines.iter().rposition(|line| !line.is_empty()).map_or(0, |last| last + 1));
    lines
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

#[test]
fn the_configuration_file_has_every_option() {
    let (file, text) = (root().join("packaging/config.toml"), configuration());
    if std::env::var_os(WRITE).is_some() {
        fs::write(&file, &text).expect("a file");
    }
    assert!(
        fs::read_to_string(&file).unwrap_or_default() == text,
        "{} is not the program's: run ./dev reference",
        file.display()
    );
    // Without its comment each is an assignment to an option that the router knows.
    let is_option = |line: &&str| line.starts_with('#') && line.len() > 1 && !line.starts_with("# ");
    let options: toml::Table = text
        .lines()
        .filter(is_option)
        .map(|line| format!("{}\n", &line[1..]))
        .collect::<String>()
        .parse()
        .expect("TOML");
    let router = commands().into_iter().find(|command| command.get_name() == "router").expect("a command");
    assert!(options.len() > 10, "{options:?}");
    for name in options.keys() {
        assert!(router.get_arguments().any(|arg| arg.get_long() == Some(name)), "{name}");
    }
}
