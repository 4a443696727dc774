//! The container's configuration (OCI runtime specification, `config.json`).

use crate::failure::Failure;
use rdmesh_fabric::{ENDPOINT_MOUNT, mounted_libraries};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// A bundle's configuration.
pub(crate) struct Bundle {
    file: PathBuf,
    config: Value,
}

impl Bundle {
    pub(crate) fn open(directory: &Path) -> Result<Self, Failure> {
        let file = directory.join("config.json");
        let failed = |reason: String| Failure::Bundle { file: file.clone(), reason };
        let text = fs::read(&file).map_err(|error| failed(error.to_string()))?;
        let config = serde_json::from_slice(&text).map_err(|error| failed(error.to_string()))?;
        Ok(Self { file, config })
    }

    /// A variable of the program's environment; the last one of that name counts.
    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        let value = |entry: &Value| entry.as_str()?.strip_prefix(name)?.strip_prefix('=').map(str::to_owned);
        self.config["process"]["env"].as_array()?.iter().rev().find_map(value)
    }

    /// Has the container find an endpoint's directory, and its programs load the libraries there.
    pub(crate) fn give(&mut self, directory: &Path, is_accelerated: bool) -> Result<(), Failure> {
        let mount = json!({
            "destination": ENDPOINT_MOUNT,
            "source": directory,
            "type": "bind",
            "options": ["bind", "ro", "nosuid", "nodev"],
        });
        list(&mut self.config["mounts"]).push(mount);
        let own = std::iter::once(mounted_libraries(is_accelerated));
        let before = self.variable("LD_PRELOAD").filter(|before| !before.is_empty());
        let libraries: Vec<String> = own.chain(before).collect();
        let environment = list(&mut self.config["process"]["env"]);
        environment.retain(|entry| !entry.as_str().is_some_and(|entry| entry.starts_with("LD_PRELOAD=")));
        environment.push(format!("LD_PRELOAD={}", libraries.join(":")).into());
        let failed = |error: std::io::Error| Failure::Bundle { file: self.file.clone(), reason: error.to_string() };
        fs::write(&self.file, self.config.to_string()).map_err(failed)
    }
}

fn list(value: &mut Value) -> &mut Vec<Value> {
    if !value.is_array() {
        *value = json!([]);
    }
    value.as_array_mut().expect("just made")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(config: &Value) -> (tempfile::TempDir, Bundle) {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let bundle = Bundle::open(folder.path()).unwrap();
        (folder, bundle)
    }

    #[test]
    fn the_last_variable_of_a_name_counts() {
        let (_folder, bundle) = bundle(&json!({ "process": { "env": ["A=1", "AB=3", "A=2", "C="] } }));
        let values = ["A", "C", "D"].map(|name| bundle.variable(name));
        assert_eq!(values, [Some("2".into()), Some(String::new()), None]);
    }

    #[test]
    fn a_container_gets_directory_and_libraries_beside_its_own() {
        let config = json!({
            "process": { "args": ["redis"], "env": ["PATH=/bin", "LD_PRELOAD=/lib/own.so"] },
            "mounts": [{ "destination": "/proc" }],
        });
        let (folder, mut bundle) = bundle(&config);
        bundle.give(Path::new("/run/rdmesh/endpoints/blue.a"), true).unwrap();
        let written = Bundle::open(folder.path()).unwrap();
        let libraries = "/run/rdmesh/endpoint/librdmesh.so:/run/rdmesh/endpoint/librdmesh-sockets.so:/lib/own.so";
        assert_eq!(written.variable("LD_PRELOAD").as_deref(), Some(libraries));
        assert_eq!(written.config["process"]["env"].as_array().map(Vec::len), Some(2));
        assert_eq!(written.config["mounts"][1]["source"], "/run/rdmesh/endpoints/blue.a");
        assert_eq!(written.config["process"]["args"], config["process"]["args"]);
    }
}
