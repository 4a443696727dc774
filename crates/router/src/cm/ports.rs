//! Port spaces of an endpoint: port allocation by the kernel's rules (`cma_use_port`, `cma_alloc_any_port`).

use super::id::PortSpace;
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::ops::RangeInclusive;

/// Ephemeral ports (`ip_local_port_range`).
const EPHEMERAL: RangeInclusive<u16> = 32_768..=60_999;

/// Binding of an identifier to an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Binding {
    /// The `rdma_cm_id`.
    pub(super) owner: u32,
    pub(super) address: SocketAddr,
    /// Shares the port with other bindings that share it (SO_REUSEADDR).
    pub(super) reuse: bool,
    /// Binds its own address family only.
    pub(super) only_family: bool,
}

/// The bindings of one endpoint.
#[derive(Default, Debug)]
pub(super) struct Ports {
    /// By owner.
    bound: HashMap<(PortSpace, u16), BTreeMap<u32, Binding>>,
    /// Those of them that listen: at most one for each address, where thousands may share a port.
    listening: HashMap<(PortSpace, u16), Vec<Binding>>,
    next: u16,
}

impl Ports {
    /// An empty table. The search for free ports begins at a random place.
    pub(super) fn new(seed: u64) -> Self {
        let span = u64::from(EPHEMERAL.end() - EPHEMERAL.start());
        Self { bound: HashMap::new(), listening: HashMap::new(), next: EPHEMERAL.start() + (seed % span) as u16 }
    }

    /// Binds; returns the port, which is a free one where `binding` names none.
    pub(super) fn bind(&mut self, space: PortSpace, mut binding: Binding) -> Result<u16, Errno> {
        let port = match binding.address.port() {
            0 => self.free_port(space).ok_or(Errno::ADDRINUSE)?,
            port => {
                self.check(space, port, &binding)?;
                port
            }
        };
        binding.address.set_port(port);
        self.bound.entry((space, port)).or_default().insert(binding.owner, binding);
        Ok(port)
    }

    /// Whether `binding` is compatible with the others of a port (`cma_check_port`).
    fn check(&self, space: PortSpace, port: u16, binding: &Binding) -> Result<(), Errno> {
        for other in self.others(space, port, binding.owner) {
            let share = binding.reuse && other.reuse;
            let apart =
                binding.only_family && other.only_family && binding.address.is_ipv4() != other.address.is_ipv4();
            if share || apart {
                continue;
            }
            if binding.address.ip().is_unspecified() || other.address.ip().is_unspecified() {
                return Err(Errno::ADDRNOTAVAIL);
            }
            if binding.address.ip() == other.address.ip() {
                return Err(Errno::ADDRINUSE);
            }
        }
        Ok(())
    }

    /// Makes a binding the only one of its address and port, which then listens.
    pub(super) fn claim(&mut self, space: PortSpace, port: u16, owner: u32) -> Result<(), Errno> {
        let found = self.bound.get(&(space, port)).and_then(|all| all.get(&owner)).copied();
        let Some(binding) = found else { return Ok(()) };
        let alone = Binding { reuse: false, ..binding };
        if binding.reuse {
            self.check(space, port, &alone)?;
            self.edit(space, port, owner, |binding| *binding = alone);
        }
        self.listening.entry((space, port)).or_default().push(alone);
        Ok(())
    }

    /// Changes whether a binding shares its port.
    pub(super) fn edit(&mut self, space: PortSpace, port: u16, owner: u32, change: impl FnOnce(&mut Binding)) {
        if let Some(binding) = self.bound.get_mut(&(space, port)).and_then(|all| all.get_mut(&owner)) {
            change(binding);
        }
    }

    /// Gives a port back.
    pub(super) fn release(&mut self, space: PortSpace, port: u16, owner: u32) {
        let key = (space, port);
        if let Some(bindings) = self.bound.get_mut(&key) {
            bindings.remove(&owner);
            if bindings.is_empty() {
                self.bound.remove(&key);
            }
        }
        if let Some(listening) = self.listening.get_mut(&key) {
            listening.retain(|binding| binding.owner != owner);
            if listening.is_empty() {
                self.listening.remove(&key);
            }
        }
    }

    /// Whether an identifier is bound to a port, listening or not.
    pub(super) fn is_bound(&self, space: PortSpace, port: u16) -> bool {
        self.bound.contains_key(&(space, port))
    }

    /// The listeners of a port.
    pub(super) fn listeners(&self, space: PortSpace, port: u16) -> &[Binding] {
        self.listening.get(&(space, port)).map_or(&[], Vec::as_slice)
    }

    /// Number of ports in use.
    pub(super) fn len(&self) -> usize {
        self.bound.len()
    }

    fn others(&self, space: PortSpace, port: u16, owner: u32) -> impl Iterator<Item = &Binding> {
        let bindings = self.bound.get(&(space, port)).into_iter().flat_map(BTreeMap::values);
        bindings.filter(move |binding| binding.owner != owner)
    }

    fn free_port(&mut self, space: PortSpace) -> Option<u16> {
        for _ in EPHEMERAL {
            let port = self.next;
            self.next = if port >= *EPHEMERAL.end() { *EPHEMERAL.start() } else { port + 1 };
            if !self.bound.contains_key(&(space, port)) {
                return Some(port);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding(owner: u32, address: &str) -> Binding {
        let address: SocketAddr = address.parse().unwrap();
        // As the kernel sets it for IPv4.
        Binding { owner, address, reuse: false, only_family: address.is_ipv4() }
    }

    #[test]
    fn a_port_has_one_owner_for_each_address() {
        let mut ports = Ports::new(1);
        let space = PortSpace::Tcp;
        assert_eq!(ports.bind(space, binding(1, "10.0.0.1:7471")), Ok(7471));
        assert_eq!(ports.bind(space, binding(2, "10.0.0.1:7471")), Err(Errno::ADDRINUSE));
        assert_eq!(ports.bind(space, binding(3, "0.0.0.0:7471")), Err(Errno::ADDRNOTAVAIL));
        assert_eq!(ports.bind(space, binding(4, "10.0.0.2:7471")), Ok(7471));
        assert_eq!(ports.bind(PortSpace::Udp, binding(5, "10.0.0.1:7471")), Ok(7471));
        // An IPv6 wildcard takes IPv4 too, unless it is told not to.
        assert_eq!(ports.bind(space, binding(6, "[::]:7471")), Err(Errno::ADDRNOTAVAIL));
        assert_eq!(ports.bind(space, Binding { only_family: true, ..binding(6, "[::]:7471") }), Ok(7471));
        for owner in [1, 4, 6] {
            ports.release(space, 7471, owner);
        }
        assert_eq!(ports.bind(space, binding(3, "0.0.0.0:7471")), Ok(7471));
        assert_eq!(ports.len(), 2);
    }

    #[test]
    fn sharing_ends_with_listening() {
        let mut ports = Ports::new(1);
        let space = PortSpace::Tcp;
        let sharing = |owner| Binding { reuse: true, ..binding(owner, "0.0.0.0:80") };
        assert_eq!(ports.bind(space, sharing(1)), Ok(80));
        assert_eq!(ports.bind(space, sharing(2)), Ok(80));
        assert_eq!(ports.claim(space, 80, 1), Err(Errno::ADDRNOTAVAIL));
        ports.release(space, 80, 2);
        assert_eq!(ports.claim(space, 80, 1), Ok(()));
        assert_eq!(ports.bind(space, sharing(3)), Err(Errno::ADDRNOTAVAIL));
    }

    #[test]
    fn only_listeners_are_asked() {
        let mut ports = Ports::new(1);
        let space = PortSpace::Tcp;
        for owner in 0..1000 {
            assert_eq!(ports.bind(space, Binding { reuse: true, ..binding(owner, "10.0.0.1:80") }), Ok(80));
        }
        assert_eq!(ports.bind(space, binding(1000, "10.0.0.2:80")), Ok(80));
        assert_eq!(ports.listeners(space, 80), []);
        assert_eq!(ports.claim(space, 80, 1000), Ok(()));
        assert_eq!(ports.listeners(space, 80), [binding(1000, "10.0.0.2:80")]);
        ports.release(space, 80, 1000);
        assert_eq!(ports.listeners(space, 80), []);
    }

    #[test]
    fn any_port_is_a_free_one_until_there_is_none() {
        let mut ports = Ports::new(0xffff_ffff);
        let mut seen = std::collections::HashSet::new();
        for owner in 0..EPHEMERAL.len() as u32 {
            let port = ports.bind(PortSpace::Tcp, binding(owner, "10.0.0.1:0")).unwrap();
            assert!(EPHEMERAL.contains(&port) && seen.insert(port));
        }
        assert_eq!(ports.bind(PortSpace::Tcp, binding(u32::MAX, "10.0.0.1:0")), Err(Errno::ADDRINUSE));
        ports.release(PortSpace::Tcp, 40_000, 0);
        ports.bound.remove(&(PortSpace::Tcp, 40_000));
        assert_eq!(ports.bind(PortSpace::Tcp, binding(u32::MAX, "10.0.0.1:0")), Ok(40_000));
    }
}
