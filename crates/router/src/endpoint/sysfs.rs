//! The tree that stands for `/sys`.
//!
//! What rdma-core, UCX and NCCL read of a software RDMA device. Counters are not in it: files do not count.

use super::{DEVICE_NAME, gids};
use rdmesh_fabric::{Endpoint, Isolation};
use rdmesh_verbs::Gid;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Writes the tree of `endpoint`, whose GID table is `table`, into the new directory `root`.
pub(super) fn write(root: &Path, endpoint: &Endpoint, table: &[Gid]) -> io::Result<()> {
    for (path, content) in files(endpoint, table) {
        let path = root.join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, content + "\n")?;
    }
    Ok(())
}

fn files(endpoint: &Endpoint, table: &[Gid]) -> Vec<(PathBuf, String)> {
    let device = PathBuf::from("class/infiniband").join(DEVICE_NAME);
    let port = device.join("ports/1");
    let guid = colon_groups(&gids::guid(endpoint));
    let mut files = vec![
        (PathBuf::from("class/infiniband_verbs/abi_version"), UVERBS_ABI.to_owned()),
        (PathBuf::from("class/infiniband_verbs/uverbs0/abi_version"), RXE_ABI.to_owned()),
        (PathBuf::from("class/infiniband_verbs/uverbs0/dev"), DEVICE_NUMBER.to_owned()),
        (PathBuf::from("class/infiniband_verbs/uverbs0/ibdev"), DEVICE_NAME.to_owned()),
        (device.join("node_type"), "1: CA".to_owned()),
        (device.join("node_guid"), guid.clone()),
        (device.join("sys_image_guid"), guid),
        (device.join("node_desc"), format!("rdmesh {}", endpoint.name)),
        (device.join("fw_ver"), String::new()),
        (port.join("pkeys/0"), "0xffff".to_owned()),
    ];
    files.extend(PORT.map(|(name, content)| (port.join(name), content.to_owned())));
    for (index, gid) in table.iter().enumerate() {
        files.push((port.join(format!("gids/{index}")), colon_groups(&gid.0)));
        // Reading the type of an empty entry is EINVAL in the kernel, which rdma-core takes for version 1; a file that
        // is missing or empty it takes for an error of the whole query.
        let kind = if gid.is_zero() { "IB/RoCE v1" } else { "RoCE v2" };
        files.push((port.join(format!("gid_attrs/types/{index}")), kind.to_owned()));
        // Where the router made no interface, its name is not known: without the file the index reads as 0.
        if !gid.is_zero() && endpoint.isolation == Isolation::Namespace {
            files.push((port.join(format!("gid_attrs/ndevs/{index}")), "eth0".to_owned()));
        }
    }
    files
}

/// `0123:4567:…`, as the kernel writes GIDs and GUIDs.
fn colon_groups(bytes: &[u8]) -> String {
    let groups: Vec<String> = bytes.chunks(2).map(|pair| pair.iter().map(|b| format!("{b:02x}")).collect()).collect();
    groups.join(":")
}

/// Attributes of the port; they say what `query_port` says.
const PORT: [(&str, &str); 9] = [
    ("state", "4: ACTIVE"),
    ("phys_state", "5: LinkUp"),
    ("rate", "100 Gb/sec (4X EDR)"),
    ("lid", "0x0"),
    ("lid_mask_count", "0"),
    ("sm_lid", "0x0"),
    ("sm_sl", "0"),
    ("cap_mask", "0x04010000"),
    ("link_layer", "Ethernet"),
];
/// `IB_USER_VERBS_ABI_VERSION`.
const UVERBS_ABI: &str = "6";
/// `RXE_UVERBS_ABI_VERSION`.
const RXE_ABI: &str = "2";
/// Major and minor number of the kernel's first uverbs device.
const DEVICE_NUMBER: &str = "231:192";
