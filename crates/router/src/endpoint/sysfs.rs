//! The sysfs tree of an endpoint, which programs see as `/sys`.
//!
//! Its layout is that of the kernel's software RDMA device: the entries below `class` and `dev` are links to directories below
//! `devices/virtual`. All links are relative and stay in the tree, so that the kernel resolves them below the endpoint's
//! directory as the library does below `/sys`; only the interface is linked by its path. Counters are empty files: the library
//! asks the router for the value when one is opened.
//!
//! The kernel's software device has no place on a bus, and no `device`. Ours has one that names the interface and no NUMA
//! node: programs that begin with an interface or an address find the device through it.

use super::counters::COUNTERS;
use super::{DEVICE_NAME, gids, lids};
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;
use rdmesh_fabric::Endpoint;
use rdmesh_uverbs::abi::CM_ABI_VERSION;
use rdmesh_uverbs::session::{CM_DEVICE, DeviceNumber, VERBS_DEVICE};
use rdmesh_verbs::Gid;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

/// Writes the tree of `endpoint`, whose GID table is `table`, into the new directory `root`.
pub(super) fn write(root: &Path, endpoint: &Endpoint, table: &[Gid]) -> io::Result<()> {
    let interface = interface(endpoint);
    let mut tree = Tree { root, folder: PathBuf::new() };
    for (path, content) in files(endpoint, table, interface.as_deref()) {
        tree.write(&path, &(content + "\n"))?;
    }
    for (name, _) in COUNTERS {
        tree.make_empty(&port().join(name))?;
    }
    links()
        .into_iter()
        .chain(interface.iter().map(|interface| interface_link(interface)))
        .try_for_each(|(path, target)| symlink(target, tree.place(Path::new(&path))?))
}

/// A tree in the making. It has some hundred entries, and each endpoint has one: few system calls for each.
struct Tree<'a> {
    root: &'a Path,
    /// Where the last entry was made.
    folder: PathBuf,
}

impl Tree<'_> {
    fn write(&mut self, path: &Path, content: &str) -> io::Result<()> {
        let place = self.place(path)?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(READ_ONLY).open(place)?;
        file.write_all(content.as_bytes())
    }

    fn make_empty(&mut self, path: &Path) -> io::Result<()> {
        Ok(mknodat(CWD, self.place(path)?, FileType::RegularFile, Mode::from_raw_mode(READ_ONLY), 0)?)
    }

    /// The whole of `path`, whose folder is there afterwards.
    fn place(&mut self, path: &Path) -> io::Result<PathBuf> {
        let folder = path.parent().unwrap_or(Path::new(""));
        if self.folder != folder {
            fs::create_dir_all(self.root.join(folder))?;
            folder.clone_into(&mut self.folder);
        }
        Ok(self.root.join(path))
    }
}

/// Nothing that the files say can be changed by writing to them. The router's umask lets everybody read.
const READ_ONLY: u32 = 0o444;

/// The name of the interface with the endpoint's address, where it is known: in a namespace where the router made it, or
/// with the router in the host's own. A container's interface is not known before a program runs in it.
fn interface(endpoint: &Endpoint) -> Option<String> {
    if endpoint.isolation.has_interface() {
        return Some(endpoint.interface.to_string());
    }
    let address = |address: &SockaddrStorage| -> Option<IpAddr> {
        let v4 = address.as_sockaddr_in().map(|v4| v4.ip().into());
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().into()))
    };
    let mut interfaces = getifaddrs().ok()?;
    let is_ours = |found: &SockaddrStorage| address(found).is_some_and(|ip| endpoint.addresses.contains(&ip));
    interfaces.find(|found| found.address.as_ref().is_some_and(is_ours)).map(|found| found.interface_name)
}

fn links() -> Vec<(String, String)> {
    let nodes = [(VERBS, "infiniband_verbs", VERBS_DEVICE), (CM, "misc", CM_DEVICE)];
    let mut links = vec![
        (format!("class/infiniband/{DEVICE_NAME}"), format!("../../{}", device().display())),
        (format!("{}/subsystem", device().display()), "../../../../class/infiniband".to_owned()),
        (format!("{}/device", device().display()), format!("../../rdmesh/{DEVICE_NAME}")),
        (format!("{VERBS}/device"), format!("../../rdmesh/{DEVICE_NAME}")),
    ];
    for (place, class, number) in nodes {
        let name = place.rsplit('/').next().unwrap_or_default();
        links.push((format!("class/{class}/{name}"), format!("../../{place}")));
        links.push((format!("dev/char/{}", device_number(number)), format!("../../{place}")));
        links.push((format!("{place}/subsystem"), format!("../../../../class/{class}")));
    }
    links
}

/// The link from the device to `interface`, in the program's own sysfs.
fn interface_link(interface: &str) -> (String, String) {
    (format!("{FUNCTION}/net/{interface}"), format!("/sys/class/net/{interface}"))
}

fn files(endpoint: &Endpoint, table: &[Gid], interface: Option<&str>) -> Vec<(PathBuf, String)> {
    let (device, port) = (device(), port());
    let guid = colon_groups(&gids::guid(endpoint));
    let mut files = vec![
        (PathBuf::from("class/infiniband_verbs/abi_version"), UVERBS_ABI.to_owned()),
        (PathBuf::from(format!("{VERBS}/abi_version")), RXE_ABI.to_owned()),
        (PathBuf::from(format!("{VERBS}/dev")), device_number(VERBS_DEVICE)),
        (PathBuf::from(format!("{VERBS}/ibdev")), DEVICE_NAME.to_owned()),
        (PathBuf::from(format!("{VERBS}/uevent")), node_event(VERBS_DEVICE, "uverbs0")),
        (PathBuf::from(format!("{CM}/abi_version")), CM_ABI_VERSION.to_string()),
        (PathBuf::from(format!("{CM}/dev")), device_number(CM_DEVICE)),
        (PathBuf::from(format!("{CM}/uevent")), node_event(CM_DEVICE, "rdma_cm")),
        (PathBuf::from(format!("{FUNCTION}/numa_node")), NO_NUMA_NODE.to_owned()),
        (device.join("uevent"), format!("NAME={DEVICE_NAME}")),
        (device.join("node_type"), "1: CA".to_owned()),
        (device.join("node_guid"), guid.clone()),
        (device.join("sys_image_guid"), guid),
        (device.join("node_desc"), format!("rdmesh {}", endpoint.name)),
        (device.join("fw_ver"), String::new()),
        (port.join("pkeys/0"), "0xffff".to_owned()),
        (port.join("lid"), format!("{:#x}", lids::lid(table))),
    ];
    files.extend(interface.map(|interface| (device.join("parent"), interface.to_owned())));
    files.extend(PORT.map(|(name, content)| (port.join(name), content.to_owned())));
    let port = &port;
    let rows = || table.iter().enumerate();
    files.extend(rows().map(|(index, gid)| (port.join(format!("gids/{index}")), colon_groups(&gid.0))));
    // Reading the type of an empty entry is EINVAL in the kernel, which rdma-core takes for version 1; a file that is missing or
    // empty it takes for an error of the whole query.
    let kind = |gid: &Gid| if gid.is_zero() { "IB/RoCE v1" } else { "RoCE v2" }.to_owned();
    files.extend(rows().map(|(index, gid)| (port.join(format!("gid_attrs/types/{index}")), kind(gid))));
    // Without the file the index reads as 0.
    let used = rows().filter(|(_, gid)| !gid.is_zero());
    files.extend(
        used.filter_map(|(index, _)| Some((port.join(format!("gid_attrs/ndevs/{index}")), interface?.to_owned()))),
    );
    files
}

/// `0123:4567:…`, as the kernel writes GIDs and GUIDs.
fn colon_groups(bytes: &[u8]) -> String {
    let groups: Vec<String> = bytes.chunks(2).map(|pair| pair.iter().map(|b| format!("{b:02x}")).collect()).collect();
    groups.join(":")
}

fn device() -> PathBuf {
    Path::new("devices/virtual/infiniband").join(DEVICE_NAME)
}

/// The `uevent` file of a device that has a node in `/dev/infiniband`.
fn node_event(DeviceNumber { major, minor }: DeviceNumber, name: &str) -> String {
    format!("MAJOR={major}\nMINOR={minor}\nDEVNAME=infiniband/{name}\nDEVMODE=0666")
}

fn port() -> PathBuf {
    device().join("ports/1")
}

fn device_number(DeviceNumber { major, minor }: DeviceNumber) -> String {
    format!("{major}:{minor}")
}

/// Attributes of the port; they say what `query_port` says.
const PORT: [(&str, &str); 8] = [
    ("state", "4: ACTIVE"),
    ("phys_state", "5: LinkUp"),
    ("rate", "100 Gb/sec (4X EDR)"),
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
/// The node of the verbs device.
const VERBS: &str = "devices/virtual/infiniband_verbs/uverbs0";
/// The node of the connection manager.
const CM: &str = "devices/virtual/misc/rdma_cm";
/// The parent device: the directory that the device's `device` link leads to.
const FUNCTION: &str = "devices/virtual/rdmesh/rxe0";
/// NUMA node of a device without one, as the kernel shows it.
const NO_NUMA_NODE: &str = "-1";
