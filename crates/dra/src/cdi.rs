//! CDI files of prepared claims, one each: what containers with a claim mount, and what is to be undone when it ends.

use crate::claim::Device;
use rdmesh_fabric::{ENDPOINT_MOUNT, Name, mounted_libraries};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The folder of the files.
pub(crate) struct Files(PathBuf);

/// A file's content (CDI specification 0.6).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Prepared {
    cdi_version: String,
    kind: String,
    pub(crate) devices: Vec<PreparedDevice>,
}

/// A device of a claim.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PreparedDevice {
    /// Unique among all claims.
    name: String,
    pub(crate) annotations: Origin,
    container_edits: Edits,
}

/// Endpoint and request behind a device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Origin {
    #[serde(rename = "rdmesh.dev/request")]
    pub(crate) request: String,
    #[serde(rename = "rdmesh.dev/network")]
    pub(crate) network: Name,
    #[serde(rename = "rdmesh.dev/endpoint")]
    pub(crate) endpoint: Name,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Edits {
    env: Vec<String>,
    mounts: Vec<Mount>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mount {
    host_path: PathBuf,
    container_path: String,
    options: Vec<String>,
}

impl Prepared {
    /// The devices of the claim `uid`, whose endpoints have their directories in `endpoints`.
    pub(crate) fn new(uid: &str, devices: &[Device], endpoints: &Path) -> Self {
        let prepared = devices.iter().map(|device| PreparedDevice::new(uid, device, endpoints)).collect();
        Self { cdi_version: "0.6.0".to_owned(), kind: KIND.to_owned(), devices: prepared }
    }
}

impl PreparedDevice {
    fn new(uid: &str, device: &Device, endpoints: &Path) -> Self {
        let Device { request, network, endpoint, is_accelerated } = device;
        let mount = Mount {
            host_path: endpoints.join(format!("{network}.{endpoint}")),
            container_path: ENDPOINT_MOUNT.to_owned(),
            options: ["ro", "nosuid", "nodev", "bind"].map(str::to_owned).to_vec(),
        };
        Self {
            name: format!("{uid}-{network}-{endpoint}"),
            annotations: Origin { request: request.clone(), network: network.clone(), endpoint: endpoint.clone() },
            container_edits: Edits {
                env: vec![format!("LD_PRELOAD={}", mounted_libraries(*is_accelerated))],
                mounts: vec![mount],
            },
        }
    }

    /// Name by which a container runtime finds it (CDI: fully qualified device name).
    pub(crate) fn id(&self) -> String {
        format!("{KIND}={}", self.name)
    }
}

impl Files {
    pub(crate) fn new(folder: &Path) -> Self {
        Self(folder.to_owned())
    }

    /// Devices prepared for a claim; none where nothing was.
    pub(crate) fn read(&self, uid: &str) -> io::Result<Option<Prepared>> {
        match fs::read(self.path(uid)?) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Remembers what is prepared for a claim. Runtimes may read the file at any time: it appears whole or not at all.
    pub(crate) fn write(&self, uid: &str, prepared: &Prepared) -> io::Result<()> {
        let path = self.path(uid)?;
        let new = path.with_extension("new");
        fs::create_dir_all(&self.0)?;
        fs::write(&new, serde_json::to_vec_pretty(prepared)?)?;
        fs::rename(new, path)
    }

    pub(crate) fn remove(&self, uid: &str) -> io::Result<()> {
        match fs::remove_file(self.path(uid)?) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes the files of claims that name an endpoint: another claim is given it, so these have ended unnoticed.
    pub(crate) fn forget(&self, network: &Name, endpoint: &Name) -> io::Result<()> {
        let files = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            files => files?,
        };
        for file in files {
            let name = file?.file_name();
            let uid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(".json"));
            let Some(uid) = uid else { continue };
            let is_named =
                |one: &PreparedDevice| one.annotations.network == *network && one.annotations.endpoint == *endpoint;
            if self.read(uid)?.is_some_and(|prepared| prepared.devices.iter().any(is_named)) {
                self.remove(uid)?;
            }
        }
        Ok(())
    }

    /// The file of a claim, whose UID is no path.
    fn path(&self, uid: &str) -> io::Result<PathBuf> {
        let is_uid = !uid.is_empty() && uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let path = is_uid.then(|| self.0.join(format!("{PREFIX}{uid}.json")));
        path.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("`{uid}` is no UID of a claim")))
    }
}

/// Vendor and class of the devices.
const KIND: &str = "rdmesh.dev/claim";
/// Beginning of the files' names.
const PREFIX: &str = "rdmesh.dev-claim-";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn device(network: &str, endpoint: &str) -> Device {
        Device {
            request: "a".to_owned(),
            network: network.parse().unwrap(),
            endpoint: endpoint.parse().unwrap(),
            is_accelerated: true,
        }
    }

    #[test]
    fn a_file_says_what_containers_mount() {
        let prepared = Prepared::new("u1", &[device("blue", "claim-ab-3")], Path::new("/state/endpoints"));
        let expected = json!({
            "cdiVersion": "0.6.0",
            "kind": "rdmesh.dev/claim",
            "devices": [{
                "name": "u1-blue-claim-ab-3",
                "annotations": {
                    "rdmesh.dev/request": "a",
                    "rdmesh.dev/network": "blue",
                    "rdmesh.dev/endpoint": "claim-ab-3",
                },
                "containerEdits": {
                    "env": ["LD_PRELOAD=/run/rdmesh/endpoint/librdmesh.so:/run/rdmesh/endpoint/librdmesh-sockets.so"],
                    "mounts": [{
                        "hostPath": "/state/endpoints/blue.claim-ab-3",
                        "containerPath": "/run/rdmesh/endpoint",
                        "options": ["ro", "nosuid", "nodev", "bind"],
                    }],
                },
            }],
        });
        assert_eq!(serde_json::to_value(&prepared).unwrap(), expected);
        assert_eq!(prepared.devices[0].id(), "rdmesh.dev/claim=u1-blue-claim-ab-3");
    }

    #[test]
    fn a_claim_is_remembered_until_its_endpoint_is_anothers() {
        let folder = tempfile::tempdir().unwrap();
        let files = Files::new(&folder.path().join("cdi"));
        let [first, other] = ["claim-ab-3", "claim-ab-4"].map(|endpoint| device("blue", endpoint));
        let prepared = Prepared::new("u1", std::slice::from_ref(&first), Path::new("/e"));
        assert_eq!(files.read("u1").unwrap(), None);
        files.forget(&first.network, &first.endpoint).unwrap();
        files.write("u1", &prepared).unwrap();
        assert_eq!(files.read("u1").unwrap(), Some(prepared));
        files.forget(&other.network, &other.endpoint).unwrap();
        assert!(files.read("u1").unwrap().is_some());
        files.forget(&first.network, &first.endpoint).unwrap();
        assert_eq!(files.read("u1").unwrap(), None);
        files.remove("u1").unwrap();
    }

    #[test]
    fn a_uid_is_no_path() {
        let files = Files::new(Path::new("/nowhere"));
        for wrong in ["", "../u1", "a/b", "a.b"] {
            assert_eq!(files.read(wrong).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{wrong}");
        }
    }
}
