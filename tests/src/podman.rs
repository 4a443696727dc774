//! podman for a test, with storage, configuration and an image of its own.

use crate::program::{Output, Program};
use crate::{product, system};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);
const IMAGE: &str = "rdmesh-test-programs";

/// A podman whose containers and images go on drop.
pub struct Podman {
    folder: TempDir,
}

impl Podman {
    /// With an image that holds `programs` and the distribution's rdma-core, and these networks of the CNI plugin, by name and
    /// configuration; or why there is none.
    pub fn start(programs: &[&str], networks: &[(&str, String)]) -> Result<Self, String> {
        if !system::is_root() {
            return Err("needs root".to_owned());
        }
        if !Path::new("/usr/bin/podman").exists() || !Path::new("/usr/sbin/runc").exists() {
            return Err("packages podman and runc are not installed".to_owned());
        }
        let folder = tempfile::Builder::new().prefix("rdmesh-podman-").tempdir().expect("a temporary folder");
        let podman = Self { folder };
        podman.configure(networks);
        podman.make_image(programs);
        Ok(podman)
    }

    fn configure(&self, networks: &[(&str, String)]) {
        let path = |name: &str| self.folder.path().join(name);
        for folder in ["plugins", "networks"] {
            fs::create_dir(path(folder)).expect("the folder is ours");
        }
        fs::copy(product("rdmesh-cni"), path("plugins/rdmesh-cni")).expect("the product is built");
        for (name, configuration) in networks {
            fs::write(path(&format!("networks/{name}.conflist")), configuration).expect("the folder is ours");
        }
        // Some sandboxes let nobody raise limits, which podman does by default.
        fs::write(path("runtime"), RUNTIME).expect("the folder is ours");
        fs::set_permissions(path("runtime"), fs::Permissions::from_mode(0o755)).expect("the folder is ours");
        let at = |name: &str| path(name).display().to_string();
        let text = format!(
            "[engine]\ncgroup_manager = \"cgroupfs\"\n[network]\nnetwork_backend = \"cni\"\n\
             cni_plugin_dirs = [\"{}\"]\nnetwork_config_dir = \"{}\"\n",
            at("plugins"),
            at("networks")
        );
        fs::write(path("containers.conf"), text).expect("the folder is ours");
    }

    /// Starts a container, which ends with what is returned.
    pub fn start_container(&self, name: &str, options: &[String], command: &str) -> Program {
        let mut podman = self.command(&["run", "--rm", "--name", name]);
        podman.args(options).args([IMAGE, "/bin/sh", "-c", command]);
        Program::start(podman)
    }

    /// Runs a container to its end.
    pub fn run_container(&self, name: &str, options: &[String], command: &str) -> Output {
        self.start_container(name, options, command).finish(LIMIT)
    }

    /// Runs a podman command.
    pub fn run(&self, arguments: &[&str]) -> Output {
        Program::start(self.command(arguments)).finish(LIMIT)
    }

    /// Waits until a container's program listens on TCP `port`.
    pub fn wait_listening(&self, name: &str, port: u16) {
        crate::until(LIMIT, "the container's program listens", || {
            let output = self.run(&["inspect", "--format", "{{.State.Pid}}", name]);
            let pid: u32 = output.text.trim().parse().ok().filter(|pid| *pid != 0)?;
            system::listens(pid, port).then_some(())
        });
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let at = |name: &str| self.folder.path().join(name);
        let mut podman = Command::new("podman");
        podman.env("CONTAINERS_CONF", at("containers.conf"));
        podman.arg("--root").arg(at("root")).arg("--runroot").arg(at("run")).arg("--tmpdir").arg(at("tmp"));
        podman.args(["--storage-driver", "vfs", "--runtime"]).arg(at("runtime")).args(arguments);
        podman
    }

    fn make_image(&self, programs: &[&str]) {
        let archive = crate::docker::make_archive(self.folder.path(), programs);
        let archive = archive.display().to_string();
        self.run(&["import", &archive, IMAGE]).ok();
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        self.run(&["rm", "--all", "--force", "--time", "0"]);
        // Layers have files that only podman's storage unlocks.
        self.run(&["rmi", "--all", "--force"]);
    }
}

/// runc, with the limits that containers inherit.
const RUNTIME: &str = r#"#!/usr/bin/env python3
import json, os, sys
if "create" in sys.argv and "--bundle" in sys.argv:
    path = os.path.join(sys.argv[sys.argv.index("--bundle") + 1], "config.json")
    with open(path) as file:
        config = json.load(file)
    config["process"].pop("rlimits", None)
    with open(path, "w") as file:
        json.dump(config, file)
os.execv("/usr/sbin/runc", ["runc"] + sys.argv[1:])
"#;
