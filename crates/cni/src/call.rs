//! The runtime's command, in the environment (CNI specification, section 2, "Parameters").

use crate::outcome::Error;
use std::path::PathBuf;

/// A command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Call {
    /// Connect a container.
    Add(Container),
    /// Disconnect it.
    Del(Container),
    /// See whether it is connected as it should be.
    Check(Container),
    /// Remove what belongs to no container any more.
    Gc,
    /// Say whether containers can be connected now.
    Status,
    /// Say which versions of the specification are known.
    Version,
}

/// An interface of a container.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Container {
    /// `CNI_CONTAINERID`.
    pub(crate) id: String,
    /// `CNI_IFNAME`.
    pub(crate) interface: String,
    /// `CNI_NETNS`; none where it has gone.
    pub(crate) netns: Option<PathBuf>,
    /// `CNI_ARGS`: pairs of key and value.
    arguments: Vec<(String, String)>,
}

/// A pod of Kubernetes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pod<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
}

impl Call {
    pub(crate) fn from_environment() -> Result<Self, Error> {
        Self::parse(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn parse(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let command = variable("CNI_COMMAND").ok_or_else(|| Error::environment("CNI_COMMAND is missing"))?;
        let container = || Container::parse(&variable);
        match command.as_str() {
            "ADD" => container().and_then(Container::with_netns).map(Self::Add),
            "CHECK" => container().and_then(Container::with_netns).map(Self::Check),
            "DEL" => container().map(Self::Del),
            "GC" => Ok(Self::Gc),
            "STATUS" => Ok(Self::Status),
            "VERSION" => Ok(Self::Version),
            _ => Err(Error::environment(&format!("CNI_COMMAND `{command}` is unknown"))),
        }
    }

    /// Its name in the environment.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Add(_) => "ADD",
            Self::Del(_) => "DEL",
            Self::Check(_) => "CHECK",
            Self::Gc => "GC",
            Self::Status => "STATUS",
            Self::Version => "VERSION",
        }
    }
}

impl Container {
    fn parse(variable: &impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let needed = |name: &str| variable(name).ok_or_else(|| Error::environment(&format!("{name} is missing")));
        let arguments = variable("CNI_ARGS").unwrap_or_default();
        let pairs = arguments.split(';').filter_map(|pair| pair.split_once('='));
        Ok(Self {
            id: needed("CNI_CONTAINERID")?,
            interface: needed("CNI_IFNAME")?,
            netns: variable("CNI_NETNS").map(PathBuf::from),
            arguments: pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        })
    }

    fn with_netns(self) -> Result<Self, Error> {
        if self.netns.is_some() { Ok(self) } else { Err(Error::environment("CNI_NETNS is missing")) }
    }

    /// The pod that it is of, if Kubernetes runs it.
    pub(crate) fn pod(&self) -> Option<Pod<'_>> {
        Some(Pod { namespace: self.argument("K8S_POD_NAMESPACE")?, name: self.argument("K8S_POD_NAME")? })
    }

    /// The value of a key of `CNI_ARGS`.
    pub(crate) fn argument(&self, key: &str) -> Option<&str> {
        self.arguments.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(variables: &[(&str, &str)]) -> Result<Call, Error> {
        Call::parse(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn a_command_has_its_container() {
        let all = [
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", "abc"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_NETNS", "/run/netns/a"),
            ("CNI_ARGS", "IgnoreUnknown=1;IP=10.7.0.2"),
        ];
        let Ok(Call::Add(container)) = parse(&all) else { panic!("an ADD") };
        assert_eq!((container.id.as_str(), container.interface.as_str()), ("abc", "eth0"));
        assert_eq!((container.argument("IP"), container.argument("MAC")), (Some("10.7.0.2"), None));
        assert_eq!(parse(&all[..3]).unwrap_err().code(), 4, "ADD needs a namespace");
        let del = [&[("CNI_COMMAND", "DEL")], &all[1..3]].concat();
        assert!(matches!(parse(&del), Ok(Call::Del(Container { netns: None, .. }))), "DEL does not");
    }

    #[test]
    fn commands_without_a_container_and_unknown_ones_are_told_apart() {
        assert_eq!(parse(&[("CNI_COMMAND", "GC")]), Ok(Call::Gc));
        assert_eq!(parse(&[("CNI_COMMAND", "STATUS")]), Ok(Call::Status));
        assert_eq!(parse(&[("CNI_COMMAND", "VERSION")]), Ok(Call::Version));
        for wrong in [&[][..], &[("CNI_COMMAND", "UPDATE")], &[("CNI_COMMAND", "DEL")]] {
            assert_eq!(parse(wrong).unwrap_err().code(), 4, "{wrong:?}");
        }
    }
}
