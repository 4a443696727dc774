//! Members of an etcd cluster.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// An etcd cluster, which ends with this value.
pub struct Etcd {
    directory: TempDir,
    members: Vec<Option<Child>>,
    security: Security,
    site: Site,
}

/// Addresses of the members.
struct Site {
    address: String,
    /// None: the present one.
    netns: Option<String>,
}

/// Proof of clients, and of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// Not at all.
    None,
    /// Members and clients have certificates, and clients a user and a password as well.
    TlsAndPassword,
}

impl Etcd {
    /// Starts a cluster of so many members, and waits until it has a leader.
    pub fn start(count: usize, security: Security) -> Self {
        Self::start_on(Site { address: "127.0.0.1".to_owned(), netns: None }, count, security)
    }

    /// Starts a single member at an address of the network namespace `netns`.
    pub fn start_at(address: &str, netns: &str) -> Self {
        let site = Site { address: address.to_owned(), netns: Some(netns.to_owned()) };
        Self::start_on(site, 1, Security::None)
    }

    fn start_on(site: Site, count: usize, security: Security) -> Self {
        let directory = tempfile::tempdir().expect("a folder");
        let mut etcd = Self { directory, members: (0..count).map(|_| None).collect(), security, site };
        if security == Security::TlsAndPassword {
            make_certificates(etcd.directory.path());
        }
        (0..count).for_each(|index| etcd.launch(index, "new"));
        (0..count).for_each(|index| etcd.wait_for(index));
        if security == Security::TlsAndPassword {
            etcd.control(&["user", "add", "root:secret"]);
            etcd.control(&["user", "grant-role", "root", "root"]);
            etcd.control(&["auth", "enable"]);
        }
        etcd
    }

    /// The address of all members for `--store`, with what it takes to get in.
    pub fn url(&self) -> String {
        let hosts: Vec<String> =
            (0..self.members.len()).map(|index| format!("{}:{}", self.site.address, client_port(index))).collect();
        self.url_of(&hosts.join(","), "root:secret")
    }

    /// The same for other hosts, or another user.
    pub fn url_of(&self, hosts: &str, user: &str) -> String {
        let file = |name: &str| self.file(name).display().to_string();
        match self.security {
            Security::None => format!("etcd://{hosts}?timeout=1&insecure"),
            Security::TlsAndPassword => {
                let (ca, cert, key) = (file("ca.pem"), file("client.pem"), file("client.key"));
                format!("etcd://{user}@{hosts}?timeout=1&tls&ca={ca}&cert={cert}&key={key}")
            }
        }
    }

    /// Port of a member for clients.
    pub fn port(&self, index: usize) -> u16 {
        client_port(index)
    }

    /// Kills a member.
    pub fn kill(&mut self, index: usize) {
        if let Some(mut child) = self.members[index].take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts a member that was killed, and waits until it answers.
    pub fn restart(&mut self, index: usize) {
        self.launch(index, "existing");
        self.wait_for(index);
    }

    /// All keys and values, a line each.
    pub fn contents(&self) -> String {
        let mut all = self.etcdctl(&["get", "", "--prefix"], &[0]);
        if self.security == Security::TlsAndPassword {
            all.args(["--user", "root:secret"]);
        }
        let output = all.output().expect("etcdctl");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("keys and values are text")
    }

    fn launch(&mut self, index: usize, state: &str) {
        let client = format!("{}://{}:{}", self.scheme(), self.site.address, client_port(index));
        let peer = peer_url(index);
        let cluster: Vec<String> =
            (0..self.members.len()).map(|index| format!("m{index}={}", peer_url(index))).collect();
        let log = File::create(self.file(&format!("m{index}.log"))).expect("a log");
        let mut command = self.site.command("etcd");
        command.args(["--name", &format!("m{index}"), "--initial-cluster", &cluster.join(",")]);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        // The shortest lease is one and a half of the longest time without a leader.
        command.args(["--initial-cluster-state", state, "--heartbeat-interval", "30", "--election-timeout", "300"]);
        command.arg("--data-dir").arg(self.file(&format!("m{index}")));
        if self.security == Security::TlsAndPassword {
            command.arg("--cert-file").arg(self.file("server.pem")).arg("--key-file").arg(self.file("server.key"));
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(self.file("ca.pem"));
        }
        let child = command.stdout(Stdio::null()).stderr(log).spawn().expect("etcd (`./dev setup cluster`)");
        self.members[index] = Some(child);
    }

    fn wait_for(&self, index: usize) {
        crate::until(Duration::from_secs(30), "etcd answers", || {
            let mut health = self.etcdctl(&["endpoint", "health"], &[index]);
            health.stdout(Stdio::null()).stderr(Stdio::null()).status().ok()?.success().then_some(())
        });
    }

    fn control(&self, arguments: &[&str]) {
        let output = self.etcdctl(arguments, &[0]).output().expect("etcdctl");
        assert!(output.status.success(), "etcdctl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn etcdctl(&self, arguments: &[&str], members: &[usize]) -> Command {
        let members: Vec<String> = members
            .iter()
            .map(|&index| format!("{}://{}:{}", self.scheme(), self.site.address, client_port(index)))
            .collect();
        let mut command = self.site.command("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--command-timeout", "2s", "--endpoints", &members.join(",")]);
        if self.security == Security::TlsAndPassword {
            command.arg("--cacert").arg(self.file("ca.pem"));
            command.arg("--cert").arg(self.file("client.pem")).arg("--key").arg(self.file("client.key"));
        }
        command.args(arguments);
        command
    }

    fn scheme(&self) -> &str {
        if self.security == Security::None { "http" } else { "https" }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

impl Site {
    fn command(&self, program: &str) -> Command {
        let Some(netns) = &self.netns else { return Command::new(program) };
        let mut command = Command::new("nsenter");
        command.args([&format!("--net=/run/netns/{netns}"), "--", program]);
        command
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        (0..self.members.len()).for_each(|index| self.kill(index));
    }
}

fn client_port(index: usize) -> u16 {
    2379 + 10 * u16::try_from(index).expect("a small cluster")
}

fn peer_url(index: usize) -> String {
    format!("http://127.0.0.1:{}", client_port(index) + 1)
}

/// An issuer, a server's certificate for 127.0.0.1, and a client's.
fn make_certificates(directory: &Path) {
    fs::write(directory.join("names"), "subjectAltName=IP:127.0.0.1\n").expect("a file");
    let run = |arguments: &str| {
        let output = Command::new("openssl").args(arguments.split(' ')).current_dir(directory).output();
        let output = output.expect("openssl");
        assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    run(&format!("req -x509 {key} -subj /CN=issuer -days 2 -keyout ca.key -out ca.pem"));
    // etcd takes the common name of a client for its user where there is no token.
    for name in ["server", "client"] {
        run(&format!("req {key} -subj /O={name} -keyout {name}.key -out {name}.csr"));
        let sign = "x509 -req -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names";
        run(&format!("{sign} -in {name}.csr -out {name}.pem"));
    }
}
