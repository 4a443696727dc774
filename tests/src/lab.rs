//! Test router with a state directory of its own, and its endpoints.

use crate::program::{Output, Program};
use crate::wait::until;
use crate::{system, trace};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// A running router. It is taken down, and its directory removed, on drop.
pub struct Lab {
    folder: TempDir,
    options: Options,
    traced: Option<Program>,
}

/// Options of a router.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Further arguments of `rdmesh up`.
    pub up: Vec<String>,
    /// Without privilege, on the host's network.
    pub rootless: bool,
    /// As the user with this id, instead of the one that runs the tests.
    pub user: Option<u32>,
    /// In the network namespace with this name, which stands for a host.
    pub netns: Option<String>,
    /// Under strace from beginning to end, see [`Lab::end_traced`].
    pub traced: bool,
    /// A script for `sh` that is run before the router, in its process: limits for it.
    pub before: Option<String>,
}

impl Options {
    /// Without privilege: as `nobody` where the tests run as root.
    pub fn ordinary_user() -> Self {
        const NOBODY: u32 = 65534;
        Self { rootless: true, user: system::is_root().then_some(NOBODY), ..Self::default() }
    }
}

/// Location of a program: one endpoint of a [`Lab`].
#[derive(Clone, Debug)]
pub struct Endpoint {
    name: String,
    options: Vec<String>,
}

impl Lab {
    /// Starts a router with its defaults.
    pub fn start() -> Self {
        Self::start_with(Options::default())
    }

    /// Starts a router.
    pub fn start_with(options: Options) -> Self {
        let folder = tempfile::Builder::new().prefix("rdmesh-test-").tempdir().expect("a temporary folder");
        if let Some(uid) = options.user {
            std::os::unix::fs::chown(folder.path(), Some(uid), Some(uid)).expect("the folder is ours to give");
        }
        let mut lab = Self { folder, options, traced: None };
        if lab.options.user.is_some() {
            // The user need not be able to reach the repository.
            for file in ["rdmesh", "librdmesh.so"] {
                lab.share(&crate::product(file));
            }
        }
        lab.up();
        lab
    }

    fn up(&mut self) {
        let mut up = self.rdmesh();
        up.arg("up").args(&self.options.up);
        if self.options.rootless {
            up.arg("--rootless");
        }
        if let Some(before) = &self.options.before {
            let mut limited = Command::new("sh");
            limited.args(["-c", &format!("{before}\nexec \"$@\""), "sh"]).arg(up.get_program()).args(up.get_args());
            up = {
                limited.env("RDMESH_STATE", self.dir()).current_dir(self.folder.path());
                limited
            };
        }
        if !self.options.traced {
            Program::start(up).finish(Duration::from_secs(30)).ok();
            return;
        }
        let [strace, arguments @ ..] = &trace::strace(&self.trace_table())[..] else { return };
        let mut traced = Command::new(strace);
        traced.args(arguments).arg(up.get_program()).args(up.get_args()).arg("--foreground");
        traced.env("RDMESH_STATE", self.dir());
        self.traced = Some(Program::start(traced));
        until(Duration::from_secs(30), "the router serves", || UnixStream::connect(self.dir().join("api.sock")).ok());
    }

    /// Starts a router again that was killed or taken down, as the first one was started.
    pub fn up_again(&self) {
        let mut up = self.rdmesh();
        up.arg("up").args(&self.options.up);
        Program::start(up).finish(Duration::from_secs(30)).ok();
    }

    /// Ends a traced router; returns how many system calls it made in all its life, yields apart.
    pub fn end_traced(&mut self) -> u64 {
        let strace = self.traced.take().expect("the router was started to be traced");
        self.command(&["down"]).ok();
        strace.finish(Duration::from_secs(30)).ok();
        trace::total(&self.trace_table())
    }

    fn trace_table(&self) -> PathBuf {
        self.folder.path().join("strace.router")
    }

    /// `rdmesh` with this router's state directory.
    pub fn rdmesh(&self) -> Command {
        let mut command = match (self.options.user, &self.options.netns) {
            (None, None) => Command::new(crate::product("rdmesh")),
            (None, Some(netns)) => {
                // Not `ip netns exec`, which makes a mount namespace too: what a router mounts would stay in it.
                let mut command = Command::new("nsenter");
                command.arg(format!("--net=/run/netns/{netns}")).arg("--").arg(crate::product("rdmesh"));
                command
            }
            (Some(uid), _) => {
                let mut command = Command::new("setpriv");
                command.args([format!("--reuid={uid}"), format!("--regid={uid}"), "--clear-groups".to_owned()]);
                command.arg(self.shared().join("rdmesh")).env("HOME", self.folder.path()).env_remove("XDG_RUNTIME_DIR");
                command
            }
        };
        command.env("RDMESH_STATE", self.dir()).current_dir(self.folder.path());
        command
    }

    /// The state directory.
    pub fn dir(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// A copy of `file` where every user that the lab runs programs as can reach it.
    pub fn share(&self, file: &Path) -> PathBuf {
        let copy = self.shared().join(file.file_name().expect("a file"));
        fs::create_dir_all(self.shared()).and_then(|()| fs::copy(file, &copy)).expect("the folder is ours");
        copy
    }

    /// The folder of [`Lab::share`].
    pub fn shared(&self) -> PathBuf {
        self.folder.path().join("shared")
    }

    /// The user that programs run as, where it is not the tests' own.
    pub fn user(&self) -> Option<u32> {
        self.options.user
    }

    /// Starts `command` in `endpoint`.
    pub fn start_in<S: AsRef<OsStr>>(&self, endpoint: &Endpoint, command: &[S]) -> Program {
        let mut run = self.rdmesh();
        run.arg("run").args(["--name", &endpoint.name]).args(&endpoint.options);
        if self.options.rootless {
            run.arg("--host-network");
        }
        run.arg("--").args(command);
        Program::start(run)
    }

    /// Runs `command` in `endpoint` to its end.
    pub fn run_in<S: AsRef<OsStr>>(&self, endpoint: &Endpoint, limit: Duration, command: &[S]) -> Output {
        self.start_in(endpoint, command).finish(limit)
    }

    /// Runs a subcommand of `rdmesh` to its end.
    pub fn command(&self, arguments: &[&str]) -> Output {
        let mut command = self.rdmesh();
        command.args(arguments);
        Program::start(command).finish(Duration::from_secs(60))
    }

    /// `rdmesh stats --json`.
    pub fn stats(&self) -> Value {
        let text = self.command(&["stats", "--json"]).ok().text;
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("stats are not JSON ({e}):\n{text}"))
    }

    /// Sum, over all labels, of the metric `name` in [`Lab::stats`].
    pub fn metric(&self, name: &str) -> f64 {
        let stats = self.stats();
        let metrics = stats["metrics"].as_array().expect("a list of metrics");
        let mut values = metrics.iter().filter(|m| m["name"] == name).filter_map(|m| m["value"].as_f64()).peekable();
        assert!(values.peek().is_some(), "no metric {name} in {stats}");
        values.sum()
    }

    /// The router's answer to `GET path`.
    pub fn api(&self, path: &str) -> Value {
        let mut socket = UnixStream::connect(self.dir().join("api.sock")).expect("the API's socket");
        let request = format!("GET {path} HTTP/1.1\r\nhost: rdmesh\r\nconnection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).expect("a request");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("an answer");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        serde_json::from_str(body).unwrap_or_else(|e| panic!("{path} is not JSON ({e}):\n{answer}"))
    }

    /// The router as a whole.
    pub fn status(&self) -> Value {
        self.api("/v1/status")
    }

    /// Messages that the queue pairs of all open contexts have sent.
    pub fn messages(&self) -> u64 {
        let contexts = self.api("/v1/contexts");
        let qps = contexts.as_array().into_iter().flatten().flat_map(|c| c["qps"].as_array().into_iter().flatten());
        qps.filter_map(|qp| qp["sent_messages"].as_u64()).sum()
    }

    /// Whether `program`, or a process under it, waits at rdma_cm: for connections, or for datagrams of a multicast group.
    pub fn has_listener(&self, program: &Program) -> bool {
        let family = crate::system::family(program.pid());
        let ids = self.api("/v1/connections");
        let its = |id: &&Value| id["pid"].as_u64().is_some_and(|pid| family.iter().any(|p| u64::from(*p) == pid));
        let mut states = ids.as_array().into_iter().flatten().filter(its).map(|id| &id["state"]);
        states.any(|state| state == "LISTEN" || state == "JOINED")
    }

    /// Process id of the router.
    pub fn router_pid(&self) -> u32 {
        self.status()["pid"].as_u64().and_then(|pid| pid.try_into().ok()).expect("a process id")
    }

    /// Runs `server` in `a` and, when it listens on `port`, `client` in `b`; both must end with success.
    pub fn pair<S: AsRef<OsStr>>(
        &self,
        (a, server): (&Endpoint, &[S]),
        (b, client): (&Endpoint, &[S]),
        port: u16,
        limit: Duration,
    ) -> (Output, Output) {
        self.pair_with((a, server), self, (b, client), port, limit)
    }

    /// The same with the client at another router.
    pub fn pair_with<S: AsRef<OsStr>>(
        &self,
        (a, server): (&Endpoint, &[S]),
        other: &Lab,
        (b, client): (&Endpoint, &[S]),
        port: u16,
        limit: Duration,
    ) -> (Output, Output) {
        let mut server = self.start_in(a, server);
        server.wait_listening(port);
        let client = other.run_in(b, limit, client);
        if !client.status.success() {
            server.kill();
            panic!("the client failed; the server had printed:\n{}\nthe client:\n{}", server.text(), client.ok().text);
        }
        (server.finish(limit).ok(), client)
    }

    /// Waits until no context is open any more.
    pub fn wait_until_empty(&self) {
        until(Duration::from_secs(20), "all contexts are closed", || {
            (self.status()["contexts"].as_u64() == Some(0)).then_some(())
        });
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let mut down = self.rdmesh();
        down.arg("down");
        let output = Program::start(down).finish(Duration::from_secs(30));
        if !std::thread::panicking() {
            output.ok();
        } else if let Ok(log) = fs::read_to_string(self.dir().join("router.log")) {
            let lines: Vec<_> = log.lines().collect();
            eprintln!("the end of the router's log:\n{}", lines[lines.len().saturating_sub(30)..].join("\n"));
        }
    }
}

impl Endpoint {
    /// An endpoint on the default network, with the address that it is given.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), options: Vec::new() }
    }

    /// On tenant network `net`, with address `ip`.
    pub fn at(name: &str, net: &str, ip: &str) -> Self {
        let options = ["--net", net, "--ip", ip].map(str::to_owned).to_vec();
        Self { name: name.to_owned(), options }
    }

    /// With further options of `rdmesh run`.
    pub fn with(mut self, options: &[&str]) -> Self {
        self.options.extend(options.iter().map(|option| (*option).to_owned()));
        self
    }

    /// Its directory in `lab`'s state.
    pub fn dir(&self, lab: &Lab) -> PathBuf {
        lab.dir().join("endpoints").join(format!("{}.{}", self.network(), self.name))
    }

    /// Its network.
    pub fn network(&self) -> &str {
        self.options.get(1).map_or("default", String::as_str)
    }

    /// The scope of its policy.
    pub fn scope(&self) -> String {
        format!("endpoint/{}/{}", self.network(), self.name)
    }
}
