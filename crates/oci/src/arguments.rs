//! The engine's command, as it would be for `runc`.

use std::ffi::OsString;
use std::path::PathBuf;

/// A command with all its words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Arguments {
    pub(crate) all: Vec<OsString>,
    /// Words before the command: options of the runtime as a whole.
    pub(crate) global: Vec<OsString>,
    /// Where errors are to be written, as JSON.
    pub(crate) log: Option<PathBuf>,
    pub(crate) command: Command,
}

/// Commands that concern endpoints.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Command {
    Create { id: String, bundle: PathBuf, pid_file: Option<PathBuf> },
    Delete { id: String },
    Other,
}

impl Arguments {
    pub(crate) fn parse(words: impl Iterator<Item = OsString>) -> Self {
        let all: Vec<OsString> = words.collect();
        let mut words = Words { left: &all };
        let (mut log, mut command) = (None, None);
        let mut global = 0;
        while let Some(word) = words.next() {
            match word {
                Word::Option { name, value } if GLOBAL.contains(&name.as_str()) => {
                    let value = words.value(value);
                    log = if name == "log" { value.map(PathBuf::from) } else { log };
                }
                Word::Option { .. } => {}
                Word::Plain(name) => {
                    global = all.len() - words.left.len() - 1;
                    command = Some(name);
                    break;
                }
            }
        }
        let command = match command.as_deref() {
            Some("create") => words.create(),
            Some("delete") => words.delete(),
            _ => None,
        };
        let global = all[..global].to_vec();
        Self { all, global, log, command: command.unwrap_or(Command::Other) }
    }
}

struct Words<'a> {
    left: &'a [OsString],
}

enum Word {
    /// `--name`, or `--name=value`.
    Option {
        name: String,
        value: Option<String>,
    },
    Plain(String),
}

impl Words<'_> {
    fn next(&mut self) -> Option<Word> {
        let (first, rest) = self.left.split_first()?;
        self.left = rest;
        let text = first.to_string_lossy().into_owned();
        let Some(option) = text.strip_prefix('-') else { return Some(Word::Plain(text)) };
        let option = option.strip_prefix('-').unwrap_or(option);
        Some(match option.split_once('=') {
            Some((name, value)) => Word::Option { name: name.to_owned(), value: Some(value.to_owned()) },
            None => Word::Option { name: option.to_owned(), value: None },
        })
    }

    /// The value of an option: what it has, or the next word.
    fn value(&mut self, own: Option<String>) -> Option<String> {
        own.or_else(|| {
            let (first, rest) = self.left.split_first()?;
            self.left = rest;
            Some(first.to_string_lossy().into_owned())
        })
    }

    fn create(&mut self) -> Option<Command> {
        let (mut id, mut bundle, mut pid_file) = (None, PathBuf::from("."), None);
        while let Some(word) = self.next() {
            match word {
                Word::Plain(word) => id = Some(word),
                Word::Option { name, value } => match name.as_str() {
                    "bundle" | "b" => bundle = self.value(value).map_or(bundle, PathBuf::from),
                    "pid-file" => pid_file = self.value(value).map(PathBuf::from),
                    "console-socket" | "preserve-fds" => drop(self.value(value)),
                    _ => {}
                },
            }
        }
        Some(Command::Create { id: id?, bundle, pid_file })
    }

    fn delete(&mut self) -> Option<Command> {
        let mut id = None;
        while let Some(word) = self.next() {
            if let Word::Plain(word) = word {
                id = Some(word);
            }
        }
        Some(Command::Delete { id: id? })
    }
}

/// Options of the runtime as a whole that have a value.
const GLOBAL: [&str; 6] = ["root", "log", "log-format", "criu", "cgroup-manager", "rootless"];

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Arguments {
        Arguments::parse(text.split_whitespace().map(OsString::from))
    }

    #[test]
    fn the_commands_of_engines_are_understood() {
        // containerd's and conmon's words.
        let create = "--root /run/docker/runtime-runc/moby --log /run/log.json --log-format json --systemd-cgroup create \
                      --bundle /run/bundle --pid-file /run/init.pid abc";
        let parsed = parse(create);
        let expected =
            Command::Create { id: "abc".into(), bundle: "/run/bundle".into(), pid_file: Some("/run/init.pid".into()) };
        assert_eq!((parsed.command, parsed.log), (expected, Some("/run/log.json".into())));
        assert_eq!(parsed.global.len(), 7);
        let parsed =
            parse("--log=/log --log-format=json create -b=/b --pid-file /p --console-socket /c --no-pivot abc");
        let expected = Command::Create { id: "abc".into(), bundle: "/b".into(), pid_file: Some("/p".into()) };
        assert_eq!((parsed.command, parsed.log, parsed.global.len()), (expected, Some("/log".into()), 2));
        assert_eq!(parse("--root /r delete --force abc").command, Command::Delete { id: "abc".into() });
    }

    #[test]
    fn other_commands_are_passed_on_as_they_are() {
        for text in ["--root create start abc", "--version", "", "exec --process /p create", "create", "delete"] {
            let parsed = parse(text);
            assert_eq!((parsed.command, parsed.all.len()), (Command::Other, text.split_whitespace().count()), "{text}");
        }
    }
}
