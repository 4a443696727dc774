//! Folders in which mounts of one namespace are seen in others.

use crate::Program;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// A folder that is shared between mount namespaces, as `/run` is where systemd has started the host.
pub struct SharedFolder(TempDir);

impl SharedFolder {
    /// A new one, which goes on drop.
    pub fn mount() -> Self {
        let folder = tempfile::Builder::new().prefix("rdmesh-test-run-").tempdir().expect("a temporary folder");
        let path = folder.path().display().to_string();
        for command in [&["mount", "-t", "tmpfs", "-o", "mode=755", "none"][..], &["mount", "--make-shared"]] {
            let mut mount = Command::new(command[0]);
            mount.args(&command[1..]).arg(&path);
            Program::start(mount).finish(LIMIT).ok();
        }
        Self(folder)
    }

    /// Path in every mount namespace that shares it.
    pub fn path(&self) -> String {
        self.0.path().display().to_string()
    }
}

impl Drop for SharedFolder {
    fn drop(&mut self) {
        let mut unmount = Command::new("umount");
        unmount.arg("--recursive").arg(self.0.path());
        Program::start(unmount).finish(LIMIT);
    }
}

const LIMIT: Duration = Duration::from_secs(60);
