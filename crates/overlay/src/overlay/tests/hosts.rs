//! Tests of networks that span several hosts.

use super::*;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, State};

/// Hosts, each a namespace with `eth0` on a common wire, and a world of its own.
struct Hosts {
    worlds: Vec<(Namespace, World)>,
    _wire: Bridge,
    directory: tempfile::TempDir,
}

impl Hosts {
    /// Hosts with these addresses.
    fn new(addresses: &[&str]) -> Option<Self> {
        may_make_namespaces().then(|| {
            let directory = tempfile::tempdir().unwrap();
            let mut wire = Bridge::ensure(&directory.path().join("wire")).unwrap();
            let mut host = |&address: &&str| {
                let namespace = machine(&mut wire, &directory, address);
                let underlay = namespace.run(|| Ok(Underlay::find(address.parse().unwrap()).unwrap())).unwrap();
                (namespace, World::with_underlay(Some(underlay)))
            };
            Self { worlds: addresses.iter().map(&mut host).collect(), _wire: wire, directory }
        })
    }

    /// Adds `endpoint` on one host and tells the others.
    fn add(&self, host: usize, network: &Network, name: &str, addresses: &[&str]) -> Endpoint {
        let endpoint = endpoint(network, name, addresses);
        let (namespace, world) = &self.worlds[host];
        namespace.run(|| Ok(world.overlay.add_endpoint(network, &endpoint).unwrap())).unwrap();
        endpoint
    }

    fn tell(&self, host: usize, remote: &[(&Endpoint, &str)]) {
        let remote = remote.iter().map(|&(endpoint, host)| (endpoint, host.parse().unwrap()));
        self.worlds[host].1.overlay.set_remote(remote, &BTreeSet::new()).unwrap();
    }

    /// Tells a host that there is nobody else on `network`.
    fn tell_all(&self, host: usize, network: &Network, remote: &[(&Endpoint, &str)]) {
        let remote = remote.iter().map(|&(endpoint, host)| (endpoint, host.parse().unwrap()));
        self.worlds[host].1.overlay.set_remote(remote, &[network.name.clone()].into()).unwrap();
    }

    /// Frames that a host has sent to others on the network `blue`.
    fn sent(&self, host: usize) -> u64 {
        let blue = self.worlds[host].1.overlay.state.network_namespace(&"blue".parse().unwrap());
        let network = Namespace::open(&blue).unwrap().unwrap();
        let table = network.run(|| fs::read_to_string("/proc/thread-self/net/dev")).unwrap();
        let line = table.lines().find_map(|line| line.trim().strip_prefix("vxlan0:")).unwrap();
        line.split_whitespace().nth(9).unwrap().parse().unwrap()
    }

    /// The same, once nothing has been sent for a while: a kernel reports the multicast groups of a new interface up to a second
    /// later, and once more (RFC 3810, 9.11).
    fn sent_at_rest(&self, host: usize) -> u64 {
        let begin = Instant::now();
        let (mut sent, mut since) = (self.sent(host), Instant::now());
        while since.elapsed() < Duration::from_millis(1500) {
            assert!(begin.elapsed() < Duration::from_secs(30), "frames without end");
            thread::sleep(Duration::from_millis(10));
            let now = self.sent(host);
            if now != sent {
                (sent, since) = (now, Instant::now());
            }
        }
        sent
    }

    /// Waits until everything that was made on the network `blue` has a carrier.
    fn settle(&self, endpoints: &[(usize, &Endpoint)]) {
        for &(host, endpoint) in endpoints {
            let blue = self.worlds[host].1.overlay.state.network_namespace(&"blue".parse().unwrap());
            settle(&Namespace::open(&blue).unwrap().unwrap());
            settle(&self.namespace(host, endpoint));
            settle(&self.worlds[host].0);
        }
    }

    /// The namespace of an endpoint of a host.
    fn namespace(&self, host: usize, endpoint: &Endpoint) -> Namespace {
        self.worlds[host].1.namespace(endpoint)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for (namespace, world) in self.worlds.drain(..) {
            let end = || {
                drop(world);
                Ok(())
            };
            namespace.run(end).unwrap();
        }
        for file in files_in(self.directory.path()).unwrap() {
            Namespace::remove(&self.directory.path().join(file)).unwrap();
        }
    }
}

/// A namespace with `address` on `wire`.
fn machine(wire: &mut Bridge, directory: &tempfile::TempDir, address: &str) -> Namespace {
    let net: IpNet = format!("{address}/{}", if address.contains(':') { 64 } else { 24 }).parse().unwrap();
    let mac = MacAddress::of(net.addr());
    let namespace = Namespace::ensure(&directory.path().join(mac.to_string())).unwrap();
    let port = format!("p{}", net.addr()).replace(['.', ':'], "");
    wire.ensure_port(&port, 1500, VethEnd { name: INTERFACE, mac, namespace: namespace.as_fd() }).unwrap();
    let up = namespace.run(|| {
        let mut links = Links::open()?;
        let interface = links.find(INTERFACE)?.unwrap().index;
        links.apply(Changes::default().set_address(interface, net).set_up(INTERFACE))
    });
    up.unwrap();
    namespace
}

/// Whether `client` gets a TCP connection to `address` in `server`; on a busy machine the first SYN may be lost.
fn connects(server: &Namespace, client: &Namespace, address: &str) -> bool {
    connects_within(server, client, address, Duration::from_secs(20))
}

/// Whether `client` gets no TCP connection to `address` in `server` for a while.
fn is_cut_off(server: &Namespace, client: &Namespace, address: &str) -> bool {
    !connects_within(server, client, address, Duration::from_millis(500))
}

fn connects_within(server: &Namespace, client: &Namespace, address: &str, limit: Duration) -> bool {
    let address: IpAddr = address.parse().unwrap();
    let listener = server.run(|| TcpListener::bind((address, 0))).unwrap();
    let target = listener.local_addr().unwrap();
    client.run(|| TcpStream::connect_timeout(&target, limit)).is_ok()
}

fn mtu(namespace: &Namespace) -> u32 {
    let links = namespace.run(|| Links::open()?.all()).unwrap();
    links.iter().find(|link| link.name == INTERFACE).unwrap().mtu
}

fn is_reached_across(addresses: [&str; 2]) {
    let Some(hosts) = Hosts::new(&addresses) else { return };
    let (blue, red) = (network("blue"), Network { vni: 8, ..network("red") });
    let a = hosts.add(0, &blue, "a", &["10.7.0.2", "fd00:7::2"]);
    let b = hosts.add(1, &blue, "b", &["10.7.0.3", "fd00:7::3"]);
    let stranger = hosts.add(1, &red, "b", &["10.7.0.3"]);
    hosts.tell(0, &[(&b, addresses[1])]);
    hosts.tell(1, &[(&a, addresses[0])]);
    let (at_a, at_b) = (hosts.namespace(0, &a), hosts.namespace(1, &b));
    assert!(connects(&at_b, &at_a, "10.7.0.3"));
    assert!(connects(&at_a, &at_b, "fd00:7::2"));
    assert!(is_cut_off(&at_a, &hosts.namespace(1, &stranger), "10.7.0.2"));
    assert_eq!([mtu(&at_a), mtu(&at_b)], [1354; 2]);
    hosts.tell(0, &[]);
    // The first host still hears from the second one, and must not learn from that where its endpoints are.
    assert!(is_cut_off(&at_a, &at_b, "10.7.0.2"));
    assert!(is_cut_off(&at_b, &at_a, "10.7.0.3"));
    hosts.tell(1, &[]);
    assert!(is_cut_off(&at_b, &at_a, "10.7.0.3"));
}

#[test]
fn a_network_spans_hosts_and_another_stays_apart() {
    is_reached_across(["192.0.2.1", "192.0.2.2"]);
}

#[test]
fn a_network_spans_hosts_with_ipv6() {
    is_reached_across(["2001:db8::1", "2001:db8::2"]);
}

#[test]
fn a_network_has_the_mtu_that_it_is_given() {
    let Some(hosts) = Hosts::new(&["192.0.2.1"]) else { return };
    let small = Network { mtu: Some(1300), ..network("small") };
    let a = hosts.add(0, &small, "a", &["10.7.0.2"]);
    let b = hosts.add(0, &small, "b", &["10.7.0.3"]);
    assert_eq!([mtu(&hosts.namespace(0, &a)), mtu(&hosts.namespace(0, &b))], [1300; 2]);
    // No more than goes over the underlay.
    let large = Network { mtu: Some(9000), vni: 8, ..network("large") };
    let c = hosts.add(0, &large, "c", &["10.7.0.2"]);
    assert_eq!(mtu(&hosts.namespace(0, &c)), 1354);
}

#[test]
fn a_network_can_be_made_again_at_once() {
    let Some(hosts) = Hosts::new(&["192.0.2.1"]) else { return };
    let blue = network("blue");
    for _ in 0..3 {
        let a = hosts.add(0, &blue, "a", &["10.7.0.2"]);
        let (namespace, world) = &hosts.worlds[0];
        namespace.run(|| world.overlay.remove_endpoint(&a).map_err(io::Error::other)).unwrap();
    }
    hosts.add(0, &blue, "a", &["10.7.0.2"]);
    let same = Network { name: "red".parse().unwrap(), ..blue };
    let (namespace, world) = &hosts.worlds[0];
    let refused =
        namespace.run(|| Ok(world.overlay.add_endpoint(&same, &endpoint(&same, "a", &["10.7.0.2"])))).unwrap();
    assert!(refused.unwrap_err().to_string().contains("--vni"));
}

#[test]
fn an_attached_interface_joins_the_network_and_comes_back() {
    let Some(hosts) = Hosts::new(&["192.0.2.1"]) else { return };
    let (host, world) = &hosts.worlds[0];
    let blue = network("blue");
    let a = hosts.add(0, &blue, "a", &["10.7.0.2"]);
    // A cable from the host to a machine that has never heard of rdmesh.
    let outside = Namespace::ensure(&hosts.directory.path().join("outside")).unwrap();
    let mut cable = Bridge::ensure(&hosts.directory.path().join("cable")).unwrap();
    for (namespace, name, address) in [(host, "nic0", "10.7.9.1"), (&outside, INTERFACE, "10.7.0.9")] {
        let mac = MacAddress::of(address.parse().unwrap());
        cable.ensure_port(&format!("p{name}"), 1300, VethEnd { name, mac, namespace: namespace.as_fd() }).unwrap();
        let up = namespace.run(|| {
            let mut links = Links::open()?;
            let interface = links.find(name)?.unwrap().index;
            let net = format!("{address}/24").parse().unwrap();
            links.apply(Changes::default().set_address(interface, net).set_up(name))
        });
        up.unwrap();
    }
    let on_host = |work: &(dyn Fn() -> Result<(), OverlayError> + Sync)| host.run(|| Ok(work())).unwrap();
    assert!(on_host(&|| world.overlay.attach(&blue, INTERFACE)).is_err(), "the underlay's own");
    assert!(on_host(&|| world.overlay.attach(&blue, "nic1")).is_err(), "there is none");
    on_host(&|| world.overlay.attach(&blue, "nic0")).unwrap();
    assert_eq!(world.overlay.attached(&blue.name).unwrap(), ["nic0"]);
    assert!(connects(&outside, &hosts.namespace(0, &a), "10.7.0.9"));
    assert_eq!(mtu(&hosts.namespace(0, &a)), 1300);
    // The network stays for it when the last endpoint goes.
    on_host(&|| world.overlay.remove_endpoint(&a)).unwrap();
    assert_eq!(world.files(), ["blue"]);
    on_host(&|| world.overlay.detach(&blue, "nic0")).unwrap();
    assert_eq!(world.files(), [] as [&str; 0]);
    on_host(&|| world.overlay.attach(&blue, "nic0")).unwrap();
    on_host(&|| world.overlay.clear()).unwrap();
    assert!(host.run(|| Links::open()?.find("nic0")).unwrap().is_some());
}

/// Waits until the kernel has seen that all interfaces in `namespace` have a carrier: what is sent before may be lost.
fn settle(namespace: &Namespace) {
    let is_up = |message: &RouteNetlinkMessage| match message {
        RouteNetlinkMessage::NewLink(link) => {
            let down = |attribute: &LinkAttribute| matches!(attribute, LinkAttribute::OperState(state) if !matches!(state, State::Up | State::Unknown));
            !link.header.flags.contains(LinkFlags::Up) || !link.attributes.iter().any(down)
        }
        _ => true,
    };
    let all = RouteNetlinkMessage::GetLink(Default::default());
    let begin = Instant::now();
    while !Links::of(namespace).unwrap().list(all.clone()).unwrap().iter().all(is_up) {
        assert!(begin.elapsed() < Duration::from_secs(30), "no carrier");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Sends a datagram from `client` to `address`, which may be a broadcast address.
fn send(client: &Namespace, address: &str, port: u16) {
    let address: IpAddr = address.parse().unwrap();
    let any: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = client.run(|| UdpSocket::bind((any, 0))).unwrap();
    socket.set_broadcast(true).unwrap();
    socket.send_to(b"x", (address, port)).unwrap();
}

/// Sends a datagram from `client` to `address` in `server`, and waits for it.
fn reaches(server: &Namespace, client: &Namespace, address: &str) {
    let ip: IpAddr = address.parse().unwrap();
    let receiver = server.run(|| UdpSocket::bind((ip, 0))).unwrap();
    receiver.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    send(client, address, receiver.local_addr().unwrap().port());
    receiver.recv(&mut [0; 8]).unwrap();
}

/// Two hosts of one network, each with an endpoint of which the other has been told.
fn two_hosts() -> Option<(Hosts, Network, [Endpoint; 2])> {
    let hosts = Hosts::new(&TWO)?;
    let blue = network("blue");
    let a = hosts.add(0, &blue, "a", &["10.7.0.2", "fd00:7::2"]);
    let b = hosts.add(1, &blue, "b", &["10.7.0.3", "fd00:7::3"]);
    hosts.tell_all(0, &blue, &[(&b, TWO[1])]);
    hosts.tell_all(1, &blue, &[(&a, TWO[0])]);
    Some((hosts, blue, [a, b]))
}

const TWO: [&str; 2] = ["192.0.2.1", "192.0.2.2"];

#[test]
fn who_has_a_known_address_is_asked_on_no_wire() {
    let Some((hosts, _, [a, b])) = two_hosts() else { return };
    hosts.settle(&[(0, &a), (1, &b)]);
    let (at_a, at_b) = (hosts.namespace(0, &a), hosts.namespace(1, &b));
    let before = hosts.sent_at_rest(0);
    reaches(&at_b, &at_a, "10.7.0.3");
    assert_eq!(hosts.sent(0) - before, 1, "the datagram and nothing else");
    reaches(&at_b, &at_a, "fd00:7::3");
    assert_eq!(hosts.sent(0) - before, 2, "the datagrams and nothing else");
    // Whether somebody else has an address is asked on this host only; the last datagram goes after all such questions.
    ["10.7.0.9", "fd00:7::9", "10.7.0.255"].into_iter().for_each(|address| send(&at_a, address, 9));
    reaches(&at_b, &at_a, "10.7.0.3");
    assert_eq!(hosts.sent(0) - before, 3, "and nothing for addresses that nobody has");
    // Where not everybody is known they must be asked for.
    hosts.tell(0, &[(&b, TWO[1])]);
    let before = hosts.sent(0);
    ["10.7.0.10", "fd00:7::10"].into_iter().for_each(|address| send(&at_a, address, 9));
    reaches(&at_b, &at_a, "10.7.0.3");
    assert!(hosts.sent(0) - before >= 3);
}

#[test]
fn who_is_known_stays_known_as_endpoints_come_and_go() {
    let Some((hosts, blue, [a, b])) = two_hosts() else { return };
    // The bridge's ends of their links have random addresses, of which one is surely lower than any before.
    let others: Vec<Endpoint> =
        (10..26).map(|n| hosts.add(0, &blue, &format!("c{n}"), &[format!("10.7.0.{n}").as_str()])).collect();
    let (host, world) = &hosts.worlds[0];
    for other in &others[..8] {
        host.run(|| world.overlay.remove_endpoint(other).map_err(io::Error::other)).unwrap();
    }
    hosts.settle(&[(0, &a), (1, &b)]);
    let at_a = hosts.namespace(0, &a);
    ["10.7.0.3", "fd00:7::3"].into_iter().for_each(|address| reaches(&hosts.namespace(1, &b), &at_a, address));
}

#[test]
fn an_endpoint_that_moves_is_reached_at_once() {
    let addresses = ["192.0.2.1", "192.0.2.2", "192.0.2.3"];
    let Some(hosts) = Hosts::new(&addresses) else { return };
    let blue = network("blue");
    let a = hosts.add(0, &blue, "a", &["10.7.0.2", "fd00:7::2"]);
    let b = hosts.add(1, &blue, "b", &["10.7.0.3", "fd00:7::3"]);
    let at_a = hosts.namespace(0, &a);
    hosts.tell_all(0, &blue, &[(&b, addresses[1])]);
    hosts.settle(&[(0, &a), (1, &b)]);
    reaches(&hosts.namespace(1, &b), &at_a, "10.7.0.3");
    let (old, world) = &hosts.worlds[1];
    old.run(|| world.overlay.remove_endpoint(&b).map_err(io::Error::other)).unwrap();
    hosts.add(2, &blue, "b", &["10.7.0.3", "fd00:7::3"]);
    hosts.tell_all(0, &blue, &[(&b, addresses[2])]);
    hosts.settle(&[(2, &b)]);
    let before = hosts.sent_at_rest(0);
    reaches(&hosts.namespace(2, &b), &at_a, "10.7.0.3");
    reaches(&hosts.namespace(2, &b), &at_a, "fd00:7::3");
    assert_eq!(hosts.sent(0) - before, 2);
    // And on this host, where it is now no other's.
    hosts.tell_all(0, &blue, &[]);
    let back = hosts.add(0, &blue, "b", &["10.7.0.3", "fd00:7::3"]);
    hosts.settle(&[(0, &back)]);
    reaches(&hosts.namespace(0, &back), &at_a, "10.7.0.3");
}

#[test]
fn a_forged_source_address_moves_no_endpoint() {
    let addresses = ["192.0.2.1", "192.0.2.2"];
    let Some(hosts) = Hosts::new(&addresses) else { return };
    let blue = network("blue");
    let a = hosts.add(0, &blue, "a", &["10.7.0.2"]);
    let b = hosts.add(1, &blue, "b", &["10.7.0.3"]);
    let thief = hosts.add(0, &blue, "thief", &["10.7.0.4"]);
    hosts.tell_all(0, &blue, &[(&b, addresses[1])]);
    hosts.tell_all(1, &blue, &[(&a, addresses[0])]);
    let taken = hosts.namespace(0, &thief).run(|| {
        let mut links = Links::open()?;
        links.apply(Changes::default().set_mac(INTERFACE, mac_of(&b)))
    });
    taken.unwrap();
    hosts.settle(&[(0, &a), (0, &thief), (1, &b)]);
    send(&hosts.namespace(0, &thief), "10.7.0.255", 9);
    reaches(&hosts.namespace(1, &b), &hosts.namespace(0, &a), "10.7.0.3");
}

#[test]
fn a_thousand_endpoints_of_other_hosts_are_told_of_at_once() {
    let addresses = ["192.0.2.1", "192.0.2.2"];
    let Some(hosts) = Hosts::new(&addresses) else { return };
    let blue =
        Network { subnets: vec!["10.7.0.0/16".parse().unwrap(), "fd00:7::/64".parse().unwrap()], ..network("blue") };
    let a = hosts.add(0, &blue, "a", &["10.7.0.2", "fd00:7::2"]);
    let last = hosts.add(1, &blue, "last", &["10.7.4.231", "fd00:7::4e7"]);
    let others = (0..1000u32).map(|n| {
        let (v4, v6) = (format!("10.7.{}.{}", 1 + n / 250, n % 250), format!("fd00:7::1:{n:x}"));
        endpoint(&blue, &format!("e{n}"), &[&v4, &v6])
    });
    let others: Vec<_> = others.filter(|endpoint| endpoint.addresses[0] != last.addresses[0]).collect();
    let remote: Vec<_> = others.iter().chain([&last]).map(|endpoint| (endpoint, addresses[1])).collect();
    hosts.tell_all(0, &blue, &remote);
    hosts.settle(&[(0, &a), (1, &last)]);
    let before = hosts.sent_at_rest(0);
    reaches(&hosts.namespace(1, &last), &hosts.namespace(0, &a), "fd00:7::4e7");
    assert_eq!(hosts.sent(0) - before, 1);
    hosts.tell_all(0, &blue, &[]);
    let neighbours = hosts.worlds[0].1.overlay.state.network_namespace(&blue.name);
    let mut links = Links::of(&Namespace::open(&neighbours).unwrap().unwrap()).unwrap();
    let bridge = links.find("br0").unwrap().unwrap().index;
    assert_eq!(links.neighbours(bridge).unwrap(), []);
}
