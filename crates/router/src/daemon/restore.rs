//! Recovery of a dead router's endpoints by the next router.
//!
//! A router records its registry in its state directory (`fabric::store`), namespaces live on in the kernel, and the endpoints'
//! directories, which containers have mounted, stay where they are. The next router starts from these.

use super::error::HostError;
use super::owners::Owners;
use rdmesh_fabric::{Endpoint, Isolation, Name, Owner, Registry, RegistryError, StateDir};
use rdmesh_overlay::{Errors, Overlay};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

/// An endpoint that is to be restored, with its owner, if it has one.
pub(super) struct Survivor {
    pub(super) endpoint: Endpoint,
    pub(super) owner: Option<OwnedFd>,
}

/// Reads the registry, and removes what cannot be restored by the router of `host`: endpoints whose owner has ended, those with
/// a namespace where there is no `overlay`, and, without `underlay`, the other hosts.
pub(super) fn survivors(
    registry: &Registry,
    host: &Name,
    overlay: Option<&Overlay>,
    underlay: Option<IpAddr>,
) -> Result<Vec<Survivor>, HostError> {
    let mut survivors = Vec::new();
    for endpoint in registry.recover(host)? {
        let (network, name) = (endpoint.network.clone(), endpoint.name.clone());
        let owner = match endpoint.owner_pid {
            Some(pid) => living_owner(pid, registry.owner(&network, &name)?.as_ref()).map(Some),
            None => Some(None),
        };
        match owner {
            Some(owner) if endpoint.isolation == Isolation::None || overlay.is_some() => {
                survivors.push(Survivor { endpoint, owner });
            }
            Some(_) => {
                tracing::warn!(%network, %name, "endpoint not restored: it has a network namespace, and the router is rootless");
                registry.remove_endpoint(&network, &name)?;
            }
            None => drop(registry.remove_endpoint(&network, &name)?),
        }
    }
    forget_unreachable_hosts(registry, host, underlay)?;
    if let Some(overlay) = overlay {
        let kept: Vec<Endpoint> = survivors.iter().map(|survivor| survivor.endpoint.clone()).collect();
        let kept: Vec<Endpoint> = kept.into_iter().filter(|e| e.isolation.has_interface()).collect();
        if let Err(error) = overlay.take_over(&registry.networks()?, &kept) {
            tracing::warn!(%error, "cannot remove all that the last router left");
        }
    }
    Ok(survivors)
}

/// Removes the directories of endpoints that are not to be restored.
pub(super) fn remove_stale_directories(state: &StateDir, survivors: &[Survivor]) -> io::Result<()> {
    let kept: BTreeSet<_> = survivors.iter().map(|survivor| survivor.endpoint.directory_name()).collect();
    let is_kept = |entry: &fs::DirEntry| entry.file_name().to_str().is_some_and(|name| kept.contains(name));
    let remove = |entry: io::Result<fs::DirEntry>| match entry? {
        entry if is_kept(&entry) => Ok(()),
        entry => fs::remove_dir_all(entry.path()),
    };
    Errors::all(fs::read_dir(state.endpoints())?.map(remove))
}

/// Identity of process `pid`, which tells it from a later one with the same number.
pub(super) fn identity(pid: i32) -> io::Result<Owner> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name before the last parenthesis may hold anything; field 22 is the 20th behind it.
    let started = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(19)?.parse().ok());
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
    Ok(Owner { boot, started: started.ok_or(io::ErrorKind::InvalidData)? })
}

/// The user that process `pid` runs as; none where it has ended.
pub(super) fn user(pid: i32) -> Option<u32> {
    fs::metadata(format!("/proc/{pid}")).ok().map(|entry| entry.uid())
}

/// The process `pid`, opened, if it still is the recorded one.
pub(super) fn living_owner(pid: i32, noted: Option<&Owner>) -> Option<OwnedFd> {
    let process = Owners::open(pid).ok()?;
    // Checked after the opening, so that it applies to the opened process.
    let is_same = identity(pid).ok().as_ref() == noted && noted.is_some();
    is_same.then_some(process)
}

/// Other hosts are reached from an address of the same family only.
fn forget_unreachable_hosts(registry: &Registry, own: &Name, underlay: Option<IpAddr>) -> Result<(), RegistryError> {
    for peer in registry.peers(own)? {
        if underlay.is_none_or(|underlay| underlay.is_ipv4() != peer.address.is_ipv4()) {
            tracing::warn!(host = %peer.name, "peer not restored: no --underlay address to reach it from");
            registry.remove_host(&peer.name)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_told_from_a_later_process_of_the_same_number() {
        let pid = std::process::id() as i32;
        let own = identity(pid).unwrap();
        assert!(living_owner(pid, Some(&own)).is_some());
        assert!(living_owner(pid, Some(&Owner { started: own.started + 1, ..own.clone() })).is_none());
        assert!(living_owner(pid, Some(&Owner { boot: String::new(), ..own })).is_none());
        assert!(living_owner(pid, None).is_none());
    }
}
