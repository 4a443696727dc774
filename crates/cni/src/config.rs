//! The network's configuration, on standard input (CNI specification, section 1).

use crate::outcome::{Error, VERSIONS};
use ipnet::IpNet;
use rdmesh_fabric::{InterfaceName, Name, Quota};
use serde::Deserialize;
use serde_json::Value;
use std::net::IpAddr;
use std::path::PathBuf;

/// A configuration.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Config {
    /// Version of the specification that the runtime speaks.
    pub(crate) cni_version: String,
    /// Name of the configuration.
    pub(crate) name: String,
    /// Network of the endpoints; where none is given, that of the configuration's name.
    network: Option<Name>,
    /// State directory of the router; where none is given, root's.
    pub(crate) state_dir: Option<PathBuf>,
    /// Directory of the kubelet, where the endpoints are those that pods have as devices.
    pub(crate) kubelet_dir: Option<PathBuf>,
    /// Name of the interface where a plugin before this one has made that of the runtime.
    #[serde(default = "chained_interface")]
    chained_interface: InterfaceName,
    /// Limits on the objects of each container's programs.
    #[serde(default)]
    pub(crate) quota: Quota,
    #[serde(default)]
    ipam: Ipam,
    /// Result of the plugins before this one.
    pub(crate) prev_result: Option<Value>,
    #[serde(default)]
    runtime_config: Wishes,
    #[serde(default)]
    args: Arguments,
    #[serde(default, rename = "cni.dev/valid-attachments", alias = "cni.dev/attachments")]
    pub(crate) valid_attachments: Vec<ValidAttachment>,
}

/// An attachment that a runtime knows, in a GC.
#[derive(Debug, Deserialize)]
pub(crate) struct ValidAttachment {
    #[serde(rename = "containerID")]
    pub(crate) container: String,
    #[serde(rename = "ifname")]
    pub(crate) interface: String,
}

#[derive(Debug, Default, Deserialize)]
struct Ipam {
    #[serde(default, rename = "type")]
    kind: String,
}

#[derive(Debug, Default, Deserialize)]
struct Arguments {
    #[serde(default)]
    cni: Wishes,
}

/// Addresses that are asked for, with or without the length of their range.
#[derive(Debug, Default, Deserialize)]
struct Wishes {
    #[serde(default)]
    ips: Vec<String>,
}

impl Config {
    pub(crate) fn parse(input: &str) -> Result<Self, Error> {
        let config: Self = serde_json::from_str(input).map_err(|error| Error::content(&error))?;
        if VERSIONS.contains(&config.cni_version.as_str()) {
            return Ok(config);
        }
        Err(Error::version(&config.cni_version))
    }

    /// Network of the endpoints.
    pub(crate) fn network(&self) -> Result<Name, Error> {
        self.network.clone().map_or_else(|| self.name.parse().map_err(|error| Error::config(&error)), Ok)
    }

    /// Name of the interface, which the runtime wants to be `asked`.
    pub(crate) fn interface(&self, asked: &str) -> Result<InterfaceName, Error> {
        match self.prev_result {
            Some(_) => Ok(self.chained_interface.clone()),
            None => asked.parse().map_err(|error| Error::environment(&format!("CNI_IFNAME: {error}"))),
        }
    }

    /// The plugin that hands out addresses; none where the router does.
    pub(crate) fn ipam(&self) -> Option<&str> {
        Some(self.ipam.kind.as_str()).filter(|kind| !kind.is_empty() && *kind != "rdmesh")
    }

    /// Addresses that are asked for: by the runtime's `ips`, else by `args`, else by `IP` of `CNI_ARGS`.
    pub(crate) fn addresses(&self, argument: Option<&str>) -> Result<Vec<IpAddr>, Error> {
        let lists = [&self.runtime_config.ips, &self.args.cni.ips];
        let texts: Vec<&str> = match lists.into_iter().find(|list| !list.is_empty()) {
            Some(list) => list.iter().map(String::as_str).collect(),
            None => argument.into_iter().flat_map(|texts| texts.split(',')).collect(),
        };
        texts.into_iter().map(address).collect()
    }
}

/// The version that an input names, whatever else is wrong with it; the newest where it names none.
pub(crate) fn version(input: &str) -> String {
    let config: Value = serde_json::from_str(input).unwrap_or_default();
    config["cniVersion"].as_str().unwrap_or(VERSIONS[VERSIONS.len() - 1]).to_owned()
}

/// An address, with or without the length of its range.
pub(crate) fn address(text: &str) -> Result<IpAddr, Error> {
    let plain = text.parse().or_else(|_| text.parse().map(|range: IpNet| range.addr()));
    plain.map_err(|_| Error::config(&format!("`{text}` is no IP address")))
}

fn chained_interface() -> InterfaceName {
    "rdmesh0".parse().expect("a short name")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Config {
        Config::parse(text).unwrap()
    }

    #[test]
    fn the_least_configuration_names_the_network() {
        let config = parse(r#"{"cniVersion":"1.1.0","name":"blue","type":"rdmesh-cni"}"#);
        assert_eq!(config.network().unwrap().as_str(), "blue");
        assert_eq!(config.interface("eth0").unwrap().as_str(), "eth0");
        assert_eq!((config.ipam(), config.addresses(None).unwrap()), (None, vec![]));
        assert_eq!(config.addresses(Some("10.7.0.9")).unwrap(), ["10.7.0.9".parse::<IpAddr>().unwrap()]);
    }

    #[test]
    fn a_runtimes_wishes_go_first() {
        let text = r#"{"cniVersion":"0.4.0","name":"a.b","network":"blue","prevResult":{},"ipam":{"type":"host-local"},
            "runtimeConfig":{"ips":["10.7.0.2/24","fd00::2/64"]},"args":{"cni":{"ips":["10.7.0.3"]}}}"#;
        let config = parse(text);
        assert_eq!((config.network().unwrap().as_str(), config.ipam()), ("blue", Some("host-local")));
        assert_eq!(config.interface("eth0").unwrap().as_str(), "rdmesh0");
        let wanted: [IpAddr; 2] = ["10.7.0.2".parse().unwrap(), "fd00::2".parse().unwrap()];
        assert_eq!(config.addresses(Some("10.7.0.9")).unwrap(), wanted);
    }

    #[test]
    fn mistakes_have_the_codes_of_the_specification() {
        let code = |text: &str| Config::parse(text).unwrap_err().code();
        assert_eq!(code("{"), 6);
        assert_eq!(code(r#"{"cniVersion":"9.0.0","name":"blue"}"#), 1);
        let config = parse(r#"{"cniVersion":"1.0.0","name":"a b"}"#);
        assert_eq!(config.network().unwrap_err().code(), 7);
        assert_eq!(config.addresses(Some("ten")).unwrap_err().code(), 7);
        assert_eq!(config.interface("no/name").unwrap_err().code(), 4);
        assert_eq!((version("{"), version(r#"{"cniVersion":"0.4.0"}"#)), ("1.1.0".to_owned(), "0.4.0".to_owned()));
    }
}
