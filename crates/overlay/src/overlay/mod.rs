//! Overlay: the namespaces, bridges and VXLAN devices of the host's tenant networks.

use crate::bridge::{Bridge, Remote, port_name};
use crate::filter::{Filter, Guarded};
use crate::firewall::FirewallError;
use crate::forwarding::Entry;
use crate::link::{Changes, Interface, LOOPBACK, Links, VethEnd, Vxlan};
use crate::namespace::Namespace;
use crate::{Errors, MacAddress, Underlay};
use ipnet::IpNet;
use rdmesh_fabric::{Endpoint, Isolation, Name, Network, StateDir};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Makes and removes the namespaces of networks and endpoints. Every call may be repeated.
#[derive(Debug)]
pub struct Overlay {
    state: StateDir,
    underlay: Option<Underlay>,
    /// Endpoints on other hosts, by network. The lock admits one change at a time: whether a network's namespace is still
    /// needed depends on the other namespaces.
    remote: Mutex<BTreeMap<Name, Remote>>,
    filters: Mutex<Filters>,
}

/// Filters of networks.
#[derive(Debug, Default)]
struct Filters {
    /// None before it is known what is wanted: until then the filters of a dead router stay.
    wanted: Option<BTreeMap<Name, Filter>>,
    /// Filters in force. Those that a dead router has left are not known.
    applied: BTreeMap<Name, Option<Filter>>,
}

/// A kernel operation that failed, and the cause.
#[derive(Debug, thiserror::Error)]
#[error("{action} failed: {source}{}", hint(.source))]
pub struct OverlayError {
    action: String,
    source: io::Error,
}

impl OverlayError {
    /// Whether something else has the name or the number that was asked for.
    pub fn is_conflict(&self) -> bool {
        self.source.kind() == io::ErrorKind::AlreadyExists
    }
}

impl Overlay {
    /// The overlay whose namespaces are kept in `state`; with an underlay, networks reach over it to other hosts.
    pub fn new(state: StateDir, underlay: Option<Underlay>) -> Result<Self, OverlayError> {
        let directory = state.namespaces();
        fs::create_dir_all(&directory).map_err(|e| failed(format!("making {}", directory.display()), e))?;
        Ok(Self { state, underlay, remote: Mutex::default(), filters: Mutex::default() })
    }

    /// Connects the namespace of `endpoint`, a new one unless it was given ([`Overlay::adopt`]), to `network`. Returns the
    /// namespace's file.
    pub fn add_endpoint(&self, network: &Network, endpoint: &Endpoint) -> Result<PathBuf, OverlayError> {
        let changing = self.changing();
        let file = self.state.endpoint_namespace(endpoint);
        let made = self.ensure_bridge(network, &changing).and_then(|mut bridge| {
            let mtu = self.mtu(network, &mut bridge)?;
            connect(&mut bridge, &file, endpoint, mtu)?;
            configure(&file, network, [endpoint])
        });
        let made = made.map_err(|error| match endpoint.pool {
            // Others of the pool are in the same namespace.
            Some(_) => error,
            None => Errors::join(error, self.remove(endpoint)),
        });
        let action = if endpoint.isolation == Isolation::Given { "connecting" } else { "making" };
        made.map(|()| file).map_err(|e| failed(format!("{action} the network namespace of `{}`", endpoint.name), e))
    }

    /// Gives the namespace that `members`, endpoints of one pool, share all of their addresses; it is made if there is none.
    /// Returns the namespace's file.
    pub fn add_members(&self, network: &Network, members: &[Endpoint]) -> Result<PathBuf, OverlayError> {
        let changing = self.changing();
        let Some(first) = members.first() else { return Ok(PathBuf::new()) };
        let file = self.state.endpoint_namespace(first);
        let made = self.ensure_bridge(network, &changing).and_then(|mut bridge| {
            let mtu = self.mtu(network, &mut bridge)?;
            connect(&mut bridge, &file, first, mtu)?;
            configure(&file, network, members)
        });
        made.map(|()| file).map_err(|e| failed(format!("preparing endpoints of network `{}`", network.name), e))
    }

    /// Takes the addresses of `members`, endpoints of one pool, from the namespace that they share, which stays, with the address
    /// of the first one.
    pub fn remove_members(&self, members: &[Endpoint]) -> Result<(), OverlayError> {
        let _changing = self.changing();
        let Some(first) = members.first() else { return Ok(()) };
        let removed = Namespace::open(&self.state.endpoint_namespace(first)).and_then(|namespace| {
            let Some(namespace) = namespace else { return Ok(()) };
            let mut links = Links::of(&namespace)?;
            let Some(interface) = links.find(first.interface.as_str())? else { return Ok(()) };
            let all = members.iter().filter(|member| !is_first(member)).flat_map(|member| &member.addresses);
            let remove = |changes: Changes<'static>, address: &IpAddr| {
                changes.remove_address(interface.index, IpNet::from(*address))
            };
            links.apply_each(all.fold(Changes::default(), remove))
        });
        removed.map_err(|e| failed("removing endpoints of a pool".to_owned(), e))
    }

    /// Gives `endpoint`, which is to be added, the network namespace in `file` instead of a new one. It is held until the endpoint
    /// is removed, and stays as it was before.
    pub fn adopt(&self, endpoint: &Endpoint, file: &Path) -> Result<(), OverlayError> {
        let _changing = self.changing();
        // An earlier endpoint of that name may have left links that could be taken for this one's.
        let adopted = self.remove(endpoint).and_then(|()| {
            let held = self.state.endpoint_namespace(endpoint);
            Namespace::hold(file, &held).map_err(|error| Errors::join(error, Namespace::remove(&held)))
        });
        adopted.map_err(|e| failed(format!("taking the network namespace of `{}`", endpoint.name), e))
    }

    /// Sets the endpoints on other hosts, each with the address of its host: networks reach those. On the networks that are
    /// `complete` nobody is anywhere else, apart from machines behind interfaces that are attached to this host.
    pub fn set_remote<'a>(
        &self,
        endpoints: impl IntoIterator<Item = (&'a Endpoint, IpAddr)>,
        complete: &BTreeSet<Name>,
    ) -> Result<(), OverlayError> {
        let mut wanted = BTreeMap::<Name, Remote>::new();
        for (endpoint, host) in endpoints {
            wanted.entry(endpoint.network.clone()).or_default().entries.extend(entries_of(endpoint, host));
        }
        for network in complete {
            wanted.entry(network.clone()).or_default().is_complete = true;
        }
        let mut known = self.changing();
        let networks: BTreeSet<Name> = known.keys().chain(wanted.keys()).cloned().collect();
        let changed = networks.iter().map(|network| {
            let (before, now) = (known.remove(network).unwrap_or_default(), wanted.remove(network).unwrap_or_default());
            let done = self.reach(network, &before, &now);
            // Failed changes are tried again with the next change.
            let current = if done.is_ok() { now } else { before };
            if current != Remote::default() {
                known.insert(network.clone(), current);
            }
            done.map_err(|e| io::Error::new(e.kind(), format!("network `{network}`: {e}")))
        });
        Errors::all(changed).map_err(|e| failed("telling VXLAN devices where their peers are".to_owned(), e))
    }

    /// Sets the endpoints of this host whose IP is filtered, by network. They hold when this returns, and for networks to come.
    pub fn set_filters(&self, guarded: &BTreeMap<Name, Vec<Guarded>>) -> Result<(), OverlayError> {
        let _changing = self.changing();
        let mut filters = self.filters();
        let wanted = guarded.iter().map(|(network, guarded)| (network.clone(), Filter::new(guarded)));
        let wanted: BTreeMap<Name, Filter> = wanted.collect();
        let networks: BTreeSet<Name> = wanted.keys().chain(filters.applied.keys()).cloned().collect();
        filters.wanted = Some(wanted);
        let applied = networks.iter().map(|network| self.filter(network, &mut filters));
        Errors::all(applied).map_err(|e| failed("filtering IP on networks".to_owned(), e))
    }

    /// Makes the interface `name` of the calling thread's namespace a part of `network`.
    pub fn attach(&self, network: &Network, name: &str) -> Result<(), OverlayError> {
        let changing = self.changing();
        let attached = self.take_in(network, name, &changing);
        let attached = attached.map_err(|error| Errors::join(error, self.remove_if_empty(&network.name)));
        attached.map_err(|e| failed(format!("attaching interface `{name}` to network `{}`", network.name), e))
    }

    /// Gives the interface `name`, which was attached to `network`, back to the calling thread's namespace.
    pub fn detach(&self, network: &Network, name: &str) -> Result<(), OverlayError> {
        let changing = self.changing();
        let detached = match Bridge::open(&self.state.network_namespace(&network.name)) {
            Ok(Some(mut bridge)) => bridge.give_back(name).and_then(|()| self.tune(network, &mut bridge, &changing)),
            Ok(None) => Err(io::Error::new(io::ErrorKind::NotFound, "nothing is attached to it")),
            Err(error) => Err(error),
        };
        let detached = detached.and_then(|()| self.remove_if_empty(&network.name));
        detached.map_err(|e| failed(format!("detaching interface `{name}` from network `{}`", network.name), e))
    }

    /// The interfaces that are attached to `network`.
    pub fn attached(&self, network: &Name) -> Result<Vec<String>, OverlayError> {
        let _changing = self.changing();
        let bridge = Bridge::open(&self.state.network_namespace(network));
        let guests = bridge.and_then(|bridge| bridge.map_or(Ok(Vec::new()), |mut bridge| bridge.guests()));
        let names = guests.map(|guests| guests.into_iter().map(|guest| guest.name).collect());
        names.map_err(|e| failed(format!("listing the interfaces of network `{network}`"), e))
    }

    /// Removes the interface of `endpoint` and its namespace, with all that share it, unless that was given, and the namespace of
    /// its network if this was its last endpoint here.
    pub fn remove_endpoint(&self, endpoint: &Endpoint) -> Result<(), OverlayError> {
        let _changing = self.changing();
        let action = format!("removing the network namespace of `{}`", endpoint.name);
        self.remove(endpoint).map_err(|e| failed(action, e))
    }

    /// Takes over the namespaces of a dead router: those of `endpoints`, and of those of `networks` that have an endpoint or an
    /// interface, stay with all that is in them. The others are removed.
    pub fn take_over(&self, networks: &[Network], endpoints: &[Endpoint]) -> Result<(), OverlayError> {
        let changing = self.changing();
        let directory = self.state.namespaces();
        let kept: BTreeSet<String> = endpoints.iter().map(Endpoint::namespace_name).collect();
        let take_over = |name: &String| match name.contains('.') {
            true if kept.contains(name) => Ok(()),
            true => Namespace::remove(&directory.join(name)),
            false => self.take_over_network(name, networks, endpoints, &changing),
        };
        let files = files_in(&directory);
        let taken = files.and_then(|files| {
            // A network is removed after its endpoints, which are found by their files.
            let (of_endpoints, of_networks): (Vec<_>, Vec<_>) = files.into_iter().partition(|name| name.contains('.'));
            Errors::all(of_endpoints.iter().chain(&of_networks).map(take_over))
        });
        taken.map_err(|e| failed(format!("taking over the namespaces in {}", directory.display()), e))
    }

    fn take_over_network(
        &self,
        name: &str,
        networks: &[Network],
        endpoints: &[Endpoint],
        remote: &BTreeMap<Name, Remote>,
    ) -> io::Result<()> {
        let file = self.state.namespaces().join(name);
        let Some(network) = networks.iter().find(|network| network.name.as_str() == name) else {
            return Errors::all([Bridge::dissolve(&file), Namespace::remove(&file)]);
        };
        let Some(mut bridge) = Bridge::open(&file)? else { return Namespace::remove(&file) };
        self.filters().applied.insert(network.name.clone(), None);
        let ports = endpoints
            .iter()
            .filter(|endpoint| endpoint.network == network.name)
            .map(|e| port_name(mac_of(e)))
            .collect();
        // The VXLAN device is none of them: it knows the dead router's peers, and its address.
        bridge.remove_ports_but(&ports)?;
        self.remove_if_empty(&network.name)?;
        if Bridge::open(&file)?.is_some() {
            self.ensure_bridge(network, remote)?;
        }
        Ok(())
    }

    /// Removes all namespaces in the state directory, including those of earlier routers; attached interfaces are given back.
    pub fn clear(&self) -> Result<(), OverlayError> {
        let _changing = self.changing();
        let directory = self.state.namespaces();
        let remove = |name: String| {
            let file = directory.join(&name);
            let dissolved = if name.contains('.') { Ok(()) } else { Bridge::dissolve(&file) };
            Errors::all([dissolved, Namespace::remove(&file)])
        };
        let removed = files_in(&directory).and_then(|files| Errors::all(files.into_iter().map(remove)));
        removed.map_err(|e| failed(format!("removing the namespaces in {}", directory.display()), e))
    }

    fn changing(&self) -> MutexGuard<'_, BTreeMap<Name, Remote>> {
        self.remote.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn filters(&self) -> MutexGuard<'_, Filters> {
        self.filters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a network's filter into force, where the network is there.
    fn filter(&self, network: &Name, filters: &mut Filters) -> io::Result<()> {
        let Some(wanted) = &filters.wanted else { return Ok(()) };
        let wanted = wanted.get(network).cloned().unwrap_or_default();
        let applied = filters.applied.get(network).cloned().unwrap_or_else(|| Some(Filter::default()));
        if applied.as_ref() == Some(&wanted) {
            return Ok(());
        }
        let Some(namespace) = Namespace::open(&self.state.network_namespace(network))? else {
            filters.applied.remove(network);
            return Ok(());
        };
        match namespace.run(|| Ok(wanted.apply()))? {
            Ok(()) => drop(filters.applied.insert(network.clone(), Some(wanted))),
            // A router before may have had it, and then its rules stay: they let through no more than they did.
            Err(FirewallError::NoProgram) if wanted == Filter::default() => {}
            Err(error) => return Err(io::Error::other(error)),
        }
        Ok(())
    }

    fn ensure_bridge(&self, network: &Network, remote: &BTreeMap<Name, Remote>) -> io::Result<Bridge> {
        let mut bridge = Bridge::ensure(&self.state.network_namespace(&network.name))?;
        if let Some(underlay) = self.underlay {
            let vxlan = Vxlan { vni: network.vni, local: underlay.address(), mtu: self.mtu(network, &mut bridge)? };
            if bridge.ensure_vxlan(vxlan)?
                && let Some(remote) = remote.get(&network.name)
            {
                bridge.reach(&Remote::default(), remote)?;
            }
        }
        self.filter(&network.name, &mut self.filters())?;
        Ok(bridge)
    }

    fn reach(&self, network: &Name, before: &Remote, now: &Remote) -> io::Result<()> {
        if self.underlay.is_none() || before == now {
            return Ok(());
        }
        let bridge = Bridge::open(&self.state.network_namespace(network))?;
        bridge.map_or(Ok(()), |mut bridge| bridge.reach(before, now))
    }

    /// The MTU of a network: its own, or the smallest of all its parts.
    fn mtu(&self, network: &Network, bridge: &mut Bridge) -> io::Result<u32> {
        let most = self.underlay.map_or(MTU_ALONE, |underlay| underlay.tenant_mtu());
        let most = network.mtu.map_or(most, |mtu| most.min(mtu.into()));
        // The kernel keeps a bridge at its ports' smallest. Asking for each port takes longer with each endpoint.
        if bridge.mtu()? == most {
            return Ok(most);
        }
        Ok(bridge.guests()?.iter().map(|guest| guest.mtu).fold(most, u32::min))
    }

    fn take_in(&self, network: &Network, name: &str, remote: &BTreeMap<Name, Remote>) -> io::Result<()> {
        let refused = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, why.to_owned()));
        let missing =
            || io::Error::new(io::ErrorKind::NotFound, "there is no such interface: `ip link` lists those there are");
        let interface = Links::open()?.all()?.into_iter().find(|link| link.name == name).ok_or_else(missing)?;
        if interface.index == LOOPBACK || self.underlay.map_or(Ok(false), |u| u.is_on(interface.index))? {
            return refused("the host needs it itself");
        }
        if interface.mtu < LEAST_MTU {
            return refused("its MTU is smaller than 1280");
        }
        let mut bridge = self.ensure_bridge(network, remote)?;
        bridge.take_in(&interface)?;
        self.tune(network, &mut bridge, remote)
    }

    /// Sets what depends on the attached interfaces of a network: the MTU of everything on it, and what goes to other hosts.
    fn tune(&self, network: &Network, bridge: &mut Bridge, remote: &BTreeMap<Name, Remote>) -> io::Result<()> {
        bridge.flood(remote.get(&network.name).unwrap_or(&Remote::default()))?;
        let mtu = self.mtu(network, bridge)?;
        bridge.set_mtu(mtu)?;
        let ports = bridge.own_ports()?;
        let directory = self.state.namespaces();
        let prefix = format!("{}.", network.name);
        let tune = |file: &String| {
            let Some(namespace) = Namespace::open(&directory.join(file))? else { return Ok(()) };
            let mut links = Links::of(&namespace)?;
            // Whatever its name is now, it leads to a port; a given namespace has other interfaces too.
            let leads_here = |link: &&Interface| link.mac.is_some_and(|mac| ports.contains(&port_name(mac)));
            let all = links.all()?;
            let ours = all.iter().filter(leads_here);
            links.apply_each(ours.fold(Changes::default(), |changes, link| changes.set_mtu(&link.name, mtu)))
        };
        Errors::all(files_in(&directory)?.iter().filter(|file| file.starts_with(&prefix)).map(tune))
    }

    fn remove(&self, endpoint: &Endpoint) -> io::Result<()> {
        // The link goes first and at once. The kernel would remove it with the namespace, but later, and only when no
        // process is left in it; a given namespace stays.
        let bridge = Bridge::open(&self.state.network_namespace(&endpoint.network));
        let unlinked = bridge
            .and_then(|bridge| bridge.map_or(Ok(()), |mut bridge| bridge.remove_port(&port_name(mac_of(endpoint)))));
        let removed = Namespace::remove(&self.state.endpoint_namespace(endpoint));
        Errors::all([unlinked, removed, self.remove_if_empty(&endpoint.network)])
    }

    /// Removes the namespace of `network` when there is no endpoint with a namespace on it, and nothing is attached to it.
    fn remove_if_empty(&self, network: &Name) -> io::Result<()> {
        let prefix = format!("{network}.");
        let file = self.state.network_namespace(network);
        let is_used = files_in(&self.state.namespaces())?.iter().any(|name| name.starts_with(&prefix));
        let is_empty = |mut bridge: Bridge| bridge.guests().map(|guests| guests.is_empty());
        if is_used || !Bridge::open(&file)?.map_or(Ok(true), is_empty)? {
            return Ok(());
        }
        self.filters().applied.remove(network);
        Errors::all([Bridge::dissolve(&file), Namespace::remove(&file)])
    }
}

/// Connects the namespace in `file`, which is made if there is none and none was given, to `bridge`.
fn connect(bridge: &mut Bridge, file: &Path, endpoint: &Endpoint, mtu: u32) -> io::Result<()> {
    let namespace = match endpoint.isolation {
        Isolation::Given => {
            Namespace::open(file)?.ok_or_else(|| io::Error::other("the given namespace is held no longer"))?
        }
        _ => Namespace::ensure(file)?,
    };
    let (name, port) = (endpoint.interface.as_str(), port_name(mac_of(endpoint)));
    let end = VethEnd { name, mac: mac_of(endpoint), namespace: namespace.as_fd() };
    let mut links = Links::of(&namespace)?;
    match (links.find(name)?, bridge.has_port(&port)?) {
        (Some(_), true) => bridge.ensure_port(&port, mtu, end)?,
        (Some(_), false) => return Err(taken(name)),
        // A port of that name is one of an earlier namespace, in which a process lingers.
        (None, _) => bridge.replace_port(&port, mtu, end)?,
    }
    namespace.run(|| {
        // Its own link-local address is unique too: without this it could not be sent from for a second or two. A failure is
        // ignored.
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{name}/accept_dad"), "0");
        Ok(())
    })
}

/// Gives the interface that `endpoints` have in the namespace in `file` their addresses, and switches it on.
fn configure<'a>(
    file: &Path,
    network: &Network,
    endpoints: impl IntoIterator<Item = &'a Endpoint> + Clone,
) -> io::Result<()> {
    let Some(first) = endpoints.clone().into_iter().next() else { return Ok(()) };
    let name = first.interface.as_str();
    let mut links = Links::of(&Namespace::open(file)?.ok_or(io::ErrorKind::NotFound)?)?;
    let interface = links.find(name)?.ok_or(io::ErrorKind::NotFound)?.index;
    let changes = Changes::default().set_up(LOOPBACK_NAME);
    let all = endpoints.into_iter().flat_map(|endpoint| addresses_of(network, endpoint));
    let changes = all.fold(changes, |changes, address| changes.set_address(interface, address));
    links.apply(changes.set_up(name))
}

/// The addresses of `endpoint` as its interface has them. Only the first one of a pool is in the network's range: were all, the
/// kernel would remove them together with the one that came first.
fn addresses_of(network: &Network, endpoint: &Endpoint) -> impl Iterator<Item = IpNet> {
    let is_first = is_first(endpoint);
    let in_range = move |address: IpAddr| {
        let range = network.subnet_of(address).filter(|_| is_first);
        range.and_then(|range| IpNet::new(address, range.prefix_len()).ok()).unwrap_or(IpNet::from(address))
    };
    endpoint.addresses.iter().map(move |address| in_range(*address))
}

/// Whether the link-layer address of its interface is that of its own first address.
fn is_first(endpoint: &Endpoint) -> bool {
    endpoint.addresses.contains(&endpoint.link())
}

/// The namespace has another interface of that name.
fn taken(name: &str) -> io::Error {
    let text =
        format!("it has an interface `{name}` already: choose another name with --interface (`interface` in the API)");
    io::Error::new(io::ErrorKind::AlreadyExists, text)
}

fn mac_of(endpoint: &Endpoint) -> MacAddress {
    MacAddress::of(endpoint.link())
}

/// A network's knowledge of `endpoint` on the host at `host`.
fn entries_of(endpoint: &Endpoint, host: IpAddr) -> Vec<Entry> {
    let mac = mac_of(endpoint);
    let addresses = endpoint.addresses.iter().copied().chain([mac.link_local().into()]);
    let frames = [Entry::Host(MacAddress::ANY, host), Entry::Host(mac, host), Entry::Port(mac)];
    addresses.map(|address| Entry::Neighbour(address, mac)).chain(frames).collect()
}

fn files_in(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

fn failed(action: String, source: io::Error) -> OverlayError {
    OverlayError { action, source }
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            " (network namespaces need root: start the router with `sudo rdmesh up`, or use `rdmesh up --rootless` and \
             `rdmesh run --host-network`)"
        }
        io::ErrorKind::Unsupported => " (the kernel lacks bridge, veth or VXLAN: `modprobe bridge veth vxlan`)",
        _ => "",
    }
}

const LOOPBACK_NAME: &str = "lo";
/// The largest packet on a network that is on this host alone.
const MTU_ALONE: u32 = 9000;
/// IPv6 needs it (RFC 8200, 5).
const LEAST_MTU: u32 = 1280;

#[cfg(test)]
mod tests;
