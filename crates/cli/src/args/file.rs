//! Configuration file of the router: the options of `rdmesh up`, in TOML.

use crate::failure::Failure;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The command line with the options of the file that `--config` names before its own: those override them.
pub(crate) fn expand(arguments: impl IntoIterator<Item = OsString>) -> Result<Vec<OsString>, Failure> {
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    let Some(command) = arguments.iter().position(|argument| argument == "up" || argument == "router") else {
        return Ok(arguments);
    };
    let Some(file) = named(&arguments[command + 1..]) else { return Ok(arguments) };
    let text = fs::read_to_string(&file).map_err(|error| Failure::new(format!("{}: {error}", file.display())))?;
    let options = options(&text, &file).map_err(|why| Failure::new(format!("{}: {why}", file.display())))?;
    arguments.splice(command + 1..command + 1, options);
    Ok(arguments)
}

/// The argument of `--config`.
fn named(arguments: &[OsString]) -> Option<PathBuf> {
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        if argument == OPTION {
            return arguments.next().map(PathBuf::from);
        }
        if let Some(file) = argument.to_str().and_then(|argument| argument.strip_prefix(OPTION)?.strip_prefix('=')) {
            return Some(PathBuf::from(file));
        }
    }
    None
}

/// The options in `text`, as they would be on the command line. Relative paths are relative to the file.
fn options(text: &str, file: &Path) -> Result<Vec<OsString>, String> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
    let mut options = Vec::new();
    for (name, value) in table {
        let option = format!("--{name}");
        if option == OPTION {
            return Err("`config` cannot be in the file itself".to_owned());
        }
        let mut with = |value: &OsStr| options.extend([OsString::from(&option), value.to_owned()]);
        match value {
            Value::String(path) if PATHS.contains(&name.as_str()) => {
                let directory = file.parent().unwrap_or(Path::new("."));
                with(directory.join(path).as_os_str());
            }
            Value::String(text) => with(text.as_ref()),
            Value::Integer(number) => with(number.to_string().as_ref()),
            Value::Boolean(true) => options.push(option.into()),
            Value::Boolean(false) => {}
            _ => return Err(format!("`{name}` is neither a text, nor a number, nor true or false")),
        }
    }
    Ok(options)
}

const OPTION: &str = "--config";
/// Options whose value is the path of a file.
const PATHS: [&str; 2] = ["key", "peers"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command};
    use clap::Parser;
    use std::io::Write;

    const FILE: &str = r#"
host = "a"
underlay = "192.0.2.1"
key = "mesh.key"
workers = 2
firewall = true
insecure = false
"#;

    /// The command line `rdmesh OPTIONS`, in which FILE stands for a file with `text`.
    fn expanded(text: &str, options: &[&str]) -> Result<Vec<OsString>, Failure> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let path = file.path().to_str().unwrap();
        let options = options.iter().map(|option| option.replace("FILE", path).into());
        expand(std::iter::once("rdmesh".into()).chain(options))
    }

    #[test]
    fn options_of_the_command_line_override_those_of_the_file() {
        for options in [["up", "--config", "FILE", "--workers", "3"], ["up", "--workers", "3", "--config", "FILE"]] {
            let args = Args::parse_from(expanded(FILE, &options).unwrap());
            let Command::Up(options) = args.command else { panic!("not up") };
            let router = options.router;
            assert_eq!((router.workers, router.firewall, router.insecure), (Some(3), true, false));
            assert_eq!(router.key.unwrap(), std::env::temp_dir().join("mesh.key"));
            assert_eq!(router.host.unwrap().as_str(), "a");
        }
    }

    #[test]
    fn an_option_that_is_none_is_named() {
        let arguments = expanded("hots = \"a\"", &["up", "--config=FILE"]).unwrap();
        let refused = Args::try_parse_from(arguments).err().unwrap().to_string();
        assert!(refused.contains("--hots") && refused.contains("--host"), "{refused}");
    }

    #[test]
    fn what_is_no_option_is_refused() {
        for text in ["host = ", "host = [1]", "config = \"x\""] {
            assert!(expanded(text, &["up", "--config", "FILE"]).is_err(), "{text}");
        }
        assert!(expand(["rdmesh", "up", "--config", "/nonexistent"].map(OsString::from)).is_err());
    }

    #[test]
    fn other_commands_have_no_such_file() {
        let arguments: Vec<_> = ["rdmesh", "run", "--", "x", "--config", "/nonexistent"].map(OsString::from).into();
        assert_eq!(expand(arguments.clone()).unwrap(), arguments);
    }
}
