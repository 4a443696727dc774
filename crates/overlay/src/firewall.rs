//! Firewall rules (nftables) that let only the router and the kernel send to the ports of the tunnel and of VXLAN.
//!
//! VXLAN does not authenticate senders: any process that can send UDP with a host's address can inject plain IP into a tenant
//! network. These rules keep the host's users, and the containers behind its NAT, from doing so. They are in a table of their
//! own in the router's network namespace, written by the `nft` program.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The rules. A file in the router's state directory marks them as its own.
#[derive(Debug)]
pub struct Firewall {
    mark: PathBuf,
}

/// Error of installing or removing the rules.
#[derive(Debug, thiserror::Error)]
pub enum FirewallError {
    /// There is no program for them.
    #[error("rules of a firewall need the `nft` program: install nftables")]
    NoProgram,
    /// It failed.
    #[error("nft does not set the firewall rules: {0}")]
    Refused(String),
    /// It cannot be run, or the state directory cannot be written.
    #[error("setting firewall rules: {0}")]
    Io(#[from] io::Error),
}

impl Firewall {
    /// The rules of the router with this state directory.
    pub fn new(state: &Path) -> Self {
        Self { mark: state.join("firewall") }
    }

    /// Makes the rules; where they are already there, nothing changes.
    pub fn install(&self) -> Result<(), FirewallError> {
        fs::write(&self.mark, "")?;
        nft(&["-f", "-"], &rules()).map(drop)
    }

    /// Removes the rules if this router, or one before it, has made them.
    pub fn remove(&self) -> Result<(), FirewallError> {
        if !self.mark.exists() {
            return Ok(());
        }
        nft(&["-f", "-"], &removal())?;
        Ok(fs::remove_file(&self.mark)?)
    }

    /// Whether there are such rules in this network namespace, of this router or another.
    pub fn is_active() -> Result<bool, FirewallError> {
        match nft(&["list", "table", "inet", TABLE], "") {
            Ok(text) => Ok(text.contains("skuid") && text.contains("hook output")),
            Err(FirewallError::Refused(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// The table as `nft -f` reads it. The kernel's own packets belong to no user, so that the rule for users does not match them;
/// packets of containers are forwarded, or are addressed to this host over an interface that does not have the address.
fn rules() -> String {
    let ports = format!("udp dport {{ {VXLAN_PORT}, {TUNNEL_PORT} }}");
    let chain = |hook: &str, rule: &str| {
        format!(
            "    chain {hook} {{\n        type filter hook {hook} priority 0; policy accept;\n        {rule} counter drop\n    }}\n"
        )
    };
    format!(
        "{}table inet {TABLE} {{\n{}{}{}}}\n",
        removal(),
        chain("output", &format!("{ports} meta skuid != 0")),
        chain("forward", &ports),
        chain("input", &format!("{ports} iifname != \"lo\" fib daddr . iif type != local")),
    )
}

/// Removes the table, if there is one.
fn removal() -> String {
    format!("add table inet {TABLE}\ndelete table inet {TABLE}\n")
}

/// Runs `nft`; returns its output.
pub(crate) fn nft(arguments: &[&str], input: &str) -> Result<String, FirewallError> {
    let mut command = Command::new("nft");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => FirewallError::NoProgram,
        _ => error.into(),
    })?;
    if let Some(mut stdin) = child.stdin.take() {
        // An `nft` that does not read reports the error itself.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(FirewallError::Refused(said.lines().next().unwrap_or("it says nothing").to_owned()))
}

const TABLE: &str = "rdmesh";
const VXLAN_PORT: u16 = 4789;
const TUNNEL_PORT: u16 = 6081;

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sched::{CloneFlags, unshare};

    #[test]
    fn the_rules_name_both_ports_and_three_ways() {
        let rules = rules();
        assert_eq!(rules.matches("udp dport { 4789, 6081 }").count(), 3);
        for hook in ["hook output", "hook forward", "hook input"] {
            assert!(rules.contains(hook), "{rules}");
        }
    }

    #[test]
    fn rules_come_and_go_and_are_set_twice_without_harm() {
        let state = tempfile::tempdir().unwrap();
        let test = move || {
            if unshare(CloneFlags::CLONE_NEWNET).is_err()
                || matches!(Firewall::is_active(), Err(FirewallError::NoProgram))
            {
                return println!("skipped: needs root and nftables");
            }
            let firewall = Firewall::new(state.path());
            assert!(!Firewall::is_active().unwrap());
            firewall.remove().unwrap();
            for _ in 0..2 {
                firewall.install().unwrap();
                assert!(Firewall::is_active().unwrap());
            }
            Firewall::new(Path::new("/nonexistent")).remove().unwrap();
            assert!(Firewall::is_active().unwrap(), "another router's");
            firewall.remove().unwrap();
            assert!(!Firewall::is_active().unwrap());
        };
        std::thread::spawn(test).join().unwrap();
    }
}
