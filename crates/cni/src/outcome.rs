//! Results and errors for the runtime (CNI specification, section 5).

use ipnet::IpNet;
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt::Display;

/// Versions of the specification that the plugin speaks, the newest last.
pub(crate) const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// Error of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Error {
    code: u32,
    message: String,
}

/// An interface with its addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Interface {
    pub(crate) name: String,
    /// Link-layer address.
    pub(crate) mac: Option<String>,
    pub(crate) mtu: Option<u32>,
    pub(crate) addresses: Vec<IpNet>,
}

#[derive(Serialize)]
struct InterfaceEntry<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    mac: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<u32>,
    sandbox: &'a str,
}

impl Interface {
    /// The result of an ADD in this version: what plugins before this one have made, and this interface in namespace `sandbox`.
    pub(crate) fn result(&self, before: Option<&Value>, version: &str, sandbox: &str) -> Value {
        let mut result = before.cloned().unwrap_or_else(|| json!({ "dns": {} }));
        result["cniVersion"] = version.into();
        let entry = InterfaceEntry {
            name: &self.name,
            mac: self.mac.as_deref(),
            // Since 1.1.
            mtu: self.mtu.filter(|_| version == VERSIONS[VERSIONS.len() - 1]),
            sandbox,
        };
        let index = append(&mut result["interfaces"], json!(entry));
        // The project's own plugins take each address of a chain's result for one of their interface when they are to check it.
        let own = if before.is_some() { &[][..] } else { &self.addresses };
        for address in own {
            let mut ip = json!({ "address": address, "interface": index });
            if version.starts_with("0.") {
                ip["version"] = if address.addr().is_ipv4() { "4" } else { "6" }.into();
            }
            append(&mut result["ips"], ip);
        }
        result
    }
}

/// Appends to a list, made if there is none; returns the place.
fn append(list: &mut Value, value: Value) -> usize {
    if !list.is_array() {
        *list = json!([]);
    }
    let entries = list.as_array_mut().expect("just made");
    entries.push(value);
    entries.len() - 1
}

/// The result of VERSION.
pub(crate) fn versions(version: &str) -> String {
    json!({ "cniVersion": version, "supportedVersions": VERSIONS }).to_string()
}

impl Error {
    /// The version is none that the plugin speaks.
    pub(crate) fn version(version: &str) -> Self {
        Self::new(1, &format!("CNI version {version} is not supported: this plugin speaks {}", VERSIONS.join(", ")))
    }

    /// There is no such container, or no interface of it.
    pub(crate) fn unknown_container(message: &impl Display) -> Self {
        Self::new(3, message)
    }

    /// A variable of the environment is missing or wrong.
    pub(crate) fn environment(message: &(impl Display + ?Sized)) -> Self {
        Self::new(4, message)
    }

    /// Standard input cannot be read.
    pub(crate) fn input(message: &impl Display) -> Self {
        Self::new(5, message)
    }

    /// Standard input is no configuration.
    pub(crate) fn content(message: &impl Display) -> Self {
        Self::new(6, message)
    }

    /// The configuration is wrong.
    pub(crate) fn config(message: &(impl Display + ?Sized)) -> Self {
        Self::new(7, message)
    }

    /// It may succeed later.
    pub(crate) fn try_again_later(message: &impl Display) -> Self {
        Self::new(11, message)
    }

    /// The plugin can connect no container (STATUS).
    pub(crate) fn unavailable(message: &impl Display) -> Self {
        Self::new(50, message)
    }

    /// The router refuses, or another plugin fails.
    pub(crate) fn failed(message: &(impl Display + ?Sized)) -> Self {
        Self::new(100, message)
    }

    /// The error in another plugin's answer; none where that is no error of the specification.
    pub(crate) fn passed_on(answer: &Value) -> Option<Self> {
        let code = u32::try_from(answer["code"].as_u64()?).ok()?;
        Some(Self { code, message: format!("{}{}", answer["msg"].as_str()?, details(answer)) })
    }

    fn new(code: u32, message: &(impl Display + ?Sized)) -> Self {
        Self { code, message: message.to_string() }
    }

    /// The text for standard output.
    pub(crate) fn text(&self, version: &str) -> String {
        json!({ "cniVersion": version, "code": self.code, "msg": self.message }).to_string()
    }

    #[cfg(test)]
    pub(crate) fn code(&self) -> u32 {
        self.code
    }
}

fn details(answer: &Value) -> String {
    answer["details"].as_str().map(|details| format!("; {details}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface() -> Interface {
        let addresses = vec!["10.7.0.2/24".parse().unwrap(), "fd00::2/64".parse().unwrap()];
        Interface { name: "eth0".into(), mac: Some("02:00:00:00:00:01".into()), mtu: Some(1450), addresses }
    }

    #[test]
    fn a_result_has_the_interface_and_its_addresses() {
        let result = interface().result(None, "1.1.0", "/run/netns/a");
        let expected = json!({
            "cniVersion": "1.1.0",
            "interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:01", "mtu": 1450, "sandbox": "/run/netns/a"}],
            "ips": [{"address": "10.7.0.2/24", "interface": 0}, {"address": "fd00::2/64", "interface": 0}],
            "dns": {},
        });
        assert_eq!(result, expected);
    }

    #[test]
    fn old_versions_have_the_family_and_no_mtu() {
        let result = interface().result(None, "0.4.0", "/run/netns/a");
        assert_eq!((&result["ips"][0]["version"], &result["ips"][1]["version"]), (&json!("4"), &json!("6")));
        assert_eq!(result["interfaces"][0]["mtu"], Value::Null);
    }

    #[test]
    fn the_result_of_plugins_before_stays() {
        let before = json!({
            "interfaces": [{"name": "bridge0"}, {"name": "eth0", "sandbox": "/run/netns/a"}],
            "ips": [{"address": "172.16.0.2/16", "interface": 1}],
            "routes": [{"dst": "0.0.0.0/0"}],
        });
        let result = interface().result(Some(&before), "1.0.0", "/run/netns/a");
        assert_eq!(result["interfaces"].as_array().map(Vec::len), Some(3));
        assert_eq!((&result["ips"], &result["routes"]), (&before["ips"], &before["routes"]));
    }

    #[test]
    fn errors_of_other_plugins_are_passed_on() {
        let answer = json!({"code": 11, "msg": "no address is left", "details": "range 1"});
        let error = Error::passed_on(&answer).unwrap();
        assert_eq!((error.code(), error.text("1.0.0").contains("no address is left; range 1")), (11, true));
        assert_eq!(Error::passed_on(&json!({"code": "x"})), None);
    }
}
