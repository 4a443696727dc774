//! Names of endpoints that the plugin makes.
//!
//! An attachment is a network's configuration, a container and an interface (CNI specification, section 2). A runtime names it by these in each of
//! its commands, so the endpoint's name follows from them, and the plugin keeps no state of its own.

use rdmesh_fabric::{Name, short_hash};

/// The attachments of a network's configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attachments<'a> {
    /// Name of the configuration.
    pub(crate) network: &'a str,
}

impl Attachments<'_> {
    /// The endpoint of a container's interface: `cni-`, the configuration's hash, the beginning of the container's id, and a hash of
    /// id and interface.
    pub(crate) fn endpoint(self, container: &str, interface: &str) -> Name {
        let plain = |c: &char| c.is_ascii_alphanumeric() || *c == '_' || *c == '-';
        let id: String = container.chars().filter(plain).take(ID).collect();
        let own = short_hash(&[container, interface]);
        format!("{}{id}-{own}", self.prefix()).parse().expect("four parts of letters, digits and dashes are a name")
    }

    /// Whether an endpoint is one of them.
    pub(crate) fn include(self, endpoint: &Name) -> bool {
        endpoint.as_str().starts_with(&self.prefix())
    }

    fn prefix(self) -> String {
        format!("cni-{}-", short_hash(&[self.network]))
    }
}

/// Characters of a container's id in a name, as many as `docker ps` and `crictl ps` show at least.
const ID: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_from_the_attachment() {
        let (blue, red) = (Attachments { network: "blue" }, Attachments { network: "red" });
        let id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        let name = blue.endpoint(id, "eth0");
        assert_eq!(name, blue.endpoint(id, "eth0"));
        assert!(name.as_str().contains("-0123456789ab-"), "{name}");
        let others = [blue.endpoint(id, "net1"), red.endpoint(id, "eth0"), blue.endpoint(&id[..63], "eth0")];
        assert!(others.iter().all(|other| *other != name), "{others:?}");
        assert!(blue.include(&name) && !red.include(&name));
        assert!(!blue.include(&"cni".parse().unwrap()));
        // A container's id is no more than a text.
        assert!(blue.include(&blue.endpoint("k8s/pod.1:ä", "eth0")));
    }
}
