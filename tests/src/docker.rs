//! Docker engine for a test: the one that runs, or one that is started and stopped again.

use crate::program::{Output, Program};
use crate::system;
use crate::wait::until;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);
const IMAGE: &str = "rdmesh-test-programs";
const NETWORK: &str = "rdmesh-test-net";

/// A Docker engine with the test's image and network. Both go on drop, and the engine too where it was started here.
pub struct Docker {
    host: Option<String>,
    engine: Option<Program>,
    folder: TempDir,
}

/// A container that runs in the background.
pub struct Container<'a> {
    docker: &'a Docker,
    name: String,
}

impl Docker {
    /// The engine, with an image that holds `programs` and the distribution's rdma-core; or why there is none.
    pub fn start(programs: &[&str]) -> Result<Self, String> {
        Self::start_with(programs, None)
    }

    /// Likewise; with a runtime that containers may ask for as `--runtime rdmesh`, the engine is one of the test's own.
    pub fn start_with(programs: &[&str], runtime: Option<&Path>) -> Result<Self, String> {
        Self::launch(programs, runtime, runtime.is_some())
    }

    /// An engine of the test's own with the router's image, and another with `programs`; none, with the reason printed, where there
    /// can be no engine.
    pub fn with_routers_image(programs: &[&str]) -> Option<Self> {
        let docker = Self::launch(programs, None, true).map_err(|why| println!("skipped: {why}")).ok()?;
        let archive = std::env::var("RDMESH_IMAGE").expect("`./dev test docker` makes an image");
        docker.run(&["load", "--input", &archive]).ok();
        Some(docker)
    }

    fn launch(programs: &[&str], runtime: Option<&Path>, is_own: bool) -> Result<Self, String> {
        if !system::is_root() {
            return Err("needs root".to_owned());
        }
        if !Path::new("/usr/sbin/dockerd").exists() {
            return Err("package docker.io is not installed".to_owned());
        }
        let folder = tempfile::Builder::new().prefix("rdmesh-docker-").tempdir().expect("a temporary folder");
        let mut docker = Self { host: None, engine: None, folder };
        if is_own || !docker.answers() {
            docker.start_engine(runtime)?;
        }
        docker.make_image(programs);
        docker.run(&["network", "create", NETWORK]).ok();
        Ok(docker)
    }

    /// Runs a container to its end, with no privilege beyond Docker's default.
    pub fn run_container(&self, options: &[String], command: &str, limit: Duration) -> Output {
        let mut docker = self.command(&["run", "--rm", "--network", NETWORK]);
        docker.args(options).args([IMAGE, "/bin/sh", "-c", command]);
        Program::start(docker).finish(limit)
    }

    /// Starts a container in the background.
    pub fn start_container(&self, name: &str, options: &[String], command: &str) -> Container<'_> {
        let mut docker = self.command(&["run", "--detach", "--name", name, "--network", NETWORK]);
        docker.args(options).args([IMAGE, "/bin/sh", "-c", command]);
        Program::start(docker).finish(LIMIT).ok();
        Container { docker: self, name: name.to_owned() }
    }

    /// Starts a container of another image in the background; `words` are its options, the image and its arguments.
    pub fn start_image(&self, name: &str, words: &[String]) -> Container<'_> {
        let mut docker = self.command(&["run", "--detach", "--name", name]);
        docker.args(words);
        Program::start(docker).finish(LIMIT).ok();
        Container { docker: self, name: name.to_owned() }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut docker = Command::new("docker");
        docker.args(arguments);
        if let Some(host) = &self.host {
            docker.env("DOCKER_HOST", host);
        }
        docker
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Program::start(self.command(arguments)).finish(LIMIT)
    }

    fn answers(&self) -> bool {
        self.run(&["info", "--format", "{{.ServerVersion}}"]).status.success()
    }

    fn start_engine(&mut self, runtime: Option<&Path>) -> Result<(), String> {
        let mut why = String::new();
        for driver in ["overlay2", "vfs"] {
            let at = |name: &str| self.folder.path().join(name).display().to_string();
            let mut engine = Command::new("dockerd");
            // It must leave the host's firewall, routes and bridges alone.
            engine.args(["--iptables=false", "--ip-masq=false", "--ip-forward=false", "--bridge=none"]);
            engine.args(["--storage-driver", driver, "--data-root", &at("data"), "--exec-root", &at("exec")]);
            if let Some(runtime) = runtime {
                engine.arg("--add-runtime").arg(format!("rdmesh={}", runtime.display()));
            }
            engine.args(["--pidfile", &at("pid"), "--host", &format!("unix://{}", at("docker.sock"))]);
            let mut engine = Program::start(engine);
            self.host = Some(format!("unix://{}", at("docker.sock")));
            let running = until(LIMIT, "dockerd starts or ends", || {
                if !engine.is_running() { Some(false) } else { self.answers().then_some(true) }
            });
            if running {
                self.engine = Some(engine);
                return Ok(());
            }
            why = engine.text();
        }
        Err(format!("dockerd does not start: {}", why.lines().last().unwrap_or_default()))
    }

    fn make_image(&self, programs: &[&str]) {
        let archive = make_archive(self.folder.path(), programs).display().to_string();
        self.run(&["import", &archive, IMAGE]).ok();
    }
}

/// Makes an archive of an image in `folder`, with a shell, `programs` and the distribution's rdma-core.
pub(crate) fn make_archive(folder: &Path, programs: &[&str]) -> PathBuf {
    let script = r#"
        cd "$1"; shift
        add() { mkdir -p "image$(dirname "$1")"; cp -L "$1" "image$1"; }
        for file in "$@" /bin/sh /usr/lib/*/libibverbs/lib*-rdmav*.so; do
            add "$file"
            ldd "$file" | grep -o '/[^ ]*' | while read -r library; do add "$library"; done
        done
        # Parts of every C library package; since glibc 2.34 empty, but older programs still name them.
        for stub in /lib/*-linux-gnu/lib{pthread,dl,rt}.so.*; do add "$stub"; done
        mkdir -p image/etc image/tmp image/run
        cp -r /etc/libibverbs.d image/etc/
        tar -C image -cf image.tar .
    "#;
    let mut make = Command::new("bash");
    make.args(["-euc", script, "bash"]).arg(folder).args(programs);
    Program::start(make).finish(LIMIT).ok();
    folder.join("image.tar")
}

impl Drop for Docker {
    fn drop(&mut self) {
        self.run(&["network", "rm", NETWORK]);
        self.run(&["image", "rm", IMAGE]);
        if let Some(engine) = &mut self.engine {
            // It unmounts what it has mounted only when it is asked to end.
            engine.terminate(LIMIT);
        }
    }
}

impl Container<'_> {
    /// Its address on the test's network.
    pub fn address(&self) -> String {
        self.inspect("{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}")
    }

    /// Waits until its program listens on TCP `port`.
    pub fn wait_listening(&self, port: u16) {
        until(LIMIT, "the container's program listens", || {
            let pid: u32 = self.inspect("{{.State.Pid}}").parse().ok()?;
            assert!(pid != 0, "the container ended:\n{}", self.log());
            system::listens(pid, port).then_some(())
        });
    }

    /// Runs a command in it.
    pub fn execute(&self, command: &[&str]) -> Output {
        self.docker.run(&[&["exec", &self.name], command].concat())
    }

    /// Kills it, and starts it again.
    pub fn crash(&self) {
        self.docker.run(&["kill", &self.name]).ok();
        self.docker.run(&["start", &self.name]).ok();
    }

    /// Asks it to end, and starts it again.
    pub fn restart(&self) {
        self.docker.run(&["restart", "--time", "30", &self.name]).ok();
    }

    /// Asks it to end, and waits for that.
    pub fn stop(&self) {
        self.docker.run(&["stop", "--time", "30", &self.name]).ok();
    }

    /// Its output.
    pub fn log(&self) -> String {
        self.docker.run(&["logs", &self.name]).text
    }

    /// Waits for its end and returns its exit status.
    pub fn wait(&self) -> String {
        self.docker.run(&["wait", &self.name]).ok().text.trim().to_owned()
    }

    fn inspect(&self, format: &str) -> String {
        self.docker.run(&["inspect", "--format", format, &self.name]).ok().text.trim().to_owned()
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        self.docker.run(&["rm", "--force", &self.name]);
    }
}
