//! Plugins that hand out addresses (CNI specification, section 4, "Delegation").

use crate::config::{self, Config};
use crate::outcome::Error;
use serde_json::Value;
use std::io::Write;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A plugin, where the configuration names one.
pub(crate) struct Ipam<'a> {
    plugin: Option<&'a str>,
    input: &'a str,
}

impl<'a> Ipam<'a> {
    /// That of a configuration, which the runtime has handed as `input`.
    pub(crate) fn of(config: &'a Config, input: &'a str) -> Self {
        Self { plugin: config.ipam(), input }
    }

    /// Addresses for a container, one of each family at most; none where the router is to choose.
    pub(crate) fn add(&self) -> Result<Vec<IpAddr>, Error> {
        let result = self.execute("ADD")?;
        let entries = result["ips"].as_array().map(Vec::as_slice).unwrap_or_default();
        entries.iter().map(|entry| config::address(entry["address"].as_str().unwrap_or_default())).collect()
    }

    /// Another operation, which gives no result.
    pub(crate) fn pass_on(&self, operation: &str) -> Result<(), Error> {
        self.execute(operation).map(drop)
    }

    fn execute(&self, operation: &str) -> Result<Value, Error> {
        let Some(plugin) = self.plugin else { return Ok(Value::Null) };
        let program = find(plugin)?;
        let failed = |error: &std::io::Error| Error::failed(&format!("{}: {error}", program.display()));
        let mut command = Command::new(&program);
        command.env("CNI_COMMAND", operation).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| failed(&error))?;
        if let Some(mut input) = child.stdin.take() {
            // One that ends before it has read all says why on its output.
            let _ = input.write_all(self.input.as_bytes());
        }
        let output = child.wait_with_output().map_err(|error| failed(&error))?;
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        if output.status.success() {
            return Ok(answer);
        }
        let unclear = || Error::failed(&format!("{}: {}", program.display(), output.status));
        Err(Error::passed_on(&answer).unwrap_or_else(unclear))
    }
}

/// A plugin in the folders of `CNI_PATH`.
fn find(plugin: &str) -> Result<PathBuf, Error> {
    if plugin.contains('/') {
        return Err(Error::config(&format!("`{plugin}` is no name of a plugin")));
    }
    let path = std::env::var_os("CNI_PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).map(|folder| folder.join(plugin));
    let missing = || Error::failed(&format!("the IPAM plugin `{plugin}` is not in CNI_PATH"));
    places.into_iter().find(|place| place.is_file()).ok_or_else(missing)
}
