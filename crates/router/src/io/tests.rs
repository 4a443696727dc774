//! Tests of the sockets, without an engine.

use super::counters::Counters;
use super::external::{ExternalPathError, NamespaceKey, open_namespace};
use super::outbox::{OpenSockets, Outbox, SocketKey, Trains};
use super::raw;
use super::socket::Socket;
use super::*;
use nix::sched::{CloneFlags, unshare};
use rdmesh_nic::{Datagram, ExternalId, Origin, ROCE_PORT, Target, Time, Train};
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Trains as an engine would have made them.
#[derive(Default)]
struct Made {
    buffer: Vec<u8>,
    trains: Vec<Train>,
}

impl Made {
    /// `len` bytes in datagrams of `segment`; each begins with its number.
    fn add(&mut self, target: Target, traffic_class: u8, segment: usize, len: usize) {
        let start = self.buffer.len();
        for (number, at) in (0..len).step_by(segment).enumerate() {
            self.buffer.extend(std::iter::repeat_n(number as u8, segment.min(len - at)));
        }
        self.trains.push(Train { target, traffic_class, start, len, segment, lane: rdmesh_nic::Lane::default() });
    }
}

impl Trains for Made {
    fn trains(&self) -> &[Train] {
        &self.trains
    }

    fn bytes(&self, train: &Train) -> &[u8] {
        &self.buffer[train.start..train.start + train.len]
    }

    fn clear(&mut self) {
        self.trains.clear();
    }
}

/// Datagrams that arrived.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Arrived {
    origin: Origin,
    traffic_class: u8,
    bytes: Vec<u8>,
}

struct Receiver {
    sockets: Sockets,
    counters: Arc<Counters>,
    clock: Clock,
}

impl Receiver {
    fn new(tunnel: Option<Tunnel>) -> Self {
        let (clock, counters) = (Clock::start(), Arc::<Counters>::default());
        Self { sockets: Sockets::new(0, clock, tunnel, counters.clone()).unwrap(), counters, clock }
    }

    /// The next `count` datagrams. On the loopback interface each came a moment ago.
    fn next(&mut self, count: usize) -> Vec<Arrived> {
        let mut arrived = Vec::new();
        let start = Instant::now();
        while arrived.len() < count {
            assert!(start.elapsed() < Duration::from_secs(10), "{} of {count} arrived", arrived.len());
            self.sockets.receive(self.clock.now(), &mut |now, datagram: &Datagram<'_>| {
                let received = datagram.received.expect("the kernel says when it came");
                assert!(received <= now && now.0 - received.0 < 1_000_000_000);
                let Datagram { origin, traffic_class, bytes, .. } = *datagram;
                arrived.push(Arrived { origin, traffic_class, bytes: bytes.to_vec() });
            });
        }
        assert_eq!(arrived.len(), count);
        arrived
    }
}

/// One socket for everything.
struct Only<'a>(&'a Socket);

impl OpenSockets for Only<'_> {
    fn find(&self, _: SocketKey) -> Option<(&Socket, u32)> {
        Some((self.0, 0))
    }
}

/// A loopback address of this process's, so that tests beside each other do not meet.
fn underlay(number: u8) -> IpAddr {
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, high, low, number).into()
}

fn send(socket: &Socket, made: Made) -> IoStats {
    let counters = Counters::default();
    let mut outbox = Outbox::new(made);
    outbox.flush(&Only(socket), &counters);
    assert!(outbox.blocked().is_none());
    counters.read()
}

fn ends(workers: usize) -> Ends {
    Ends { workers, lanes: 1 }
}

/// Another program of the machine may have the port at all addresses for a moment.
fn tunnel(address: IpAddr) -> Tunnel {
    let begin = Instant::now();
    loop {
        match Tunnel::open(address, ends(1), None) {
            Ok(mut tunnels) => return tunnels.remove(0),
            Err(rustix::io::Errno::ADDRINUSE) if begin.elapsed() < Duration::from_secs(20) => {
                std::thread::sleep(Duration::from_millis(50));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn trains_arrive(from: IpAddr, to: IpAddr) {
    let (sender, mut receiver) = (tunnel(from), Receiver::new(Some(tunnel(to))));
    let mut made = Made::default();
    let target = Target::Host(to);
    made.add(target, 0x02, 1072, 40 * 1072 + 100);
    made.add(target, 0x68, 60, 60);
    made.add(target, 0x68, 61, 61);
    let stats = send(&sender.senders[0], made);
    assert_eq!((stats.sent_datagrams, stats.sent_trains, stats.send_errors), (43, 3, 0));
    let arrived = receiver.next(43);
    for (number, datagram) in arrived.iter().enumerate() {
        let (class, first, len) = match number {
            40 => (0x02, 40, 100),
            41 | 42 => (0x68, 0, 19 + number),
            _ => (0x02, number as u8, 1072),
        };
        let expected = Arrived { origin: Origin::Host(from), traffic_class: class, bytes: vec![first; len] };
        assert_eq!(*datagram, expected, "number {number}");
    }
    let stats = receiver.counters.read();
    assert_eq!((stats.received_datagrams, stats.received_bytes), (43, 40 * 1072 + 100 + 121));
    assert!(stats.received_trains < 10, "the kernel leaves a train together: {stats:?}");
}

#[test]
fn a_train_arrives_as_its_datagrams() {
    trains_arrive(underlay(1), underlay(2));
}

#[test]
fn a_train_arrives_over_ipv6_too() {
    // The loopback interface has one IPv6 address only, so that all tests would share the tunnel's port there.
    in_namespace(|_| {
        let address: IpAddr = Ipv6Addr::LOCALHOST.into();
        if UdpSocket::bind((address, 0)).is_err() {
            return eprintln!("skipped: no IPv6 here");
        }
        // The sender is the receiver.
        let mut receiver = Receiver::new(Some(tunnel(address)));
        let sender = Socket::open((address, 0).into(), socket::Purpose::default()).unwrap();
        let mut made = Made::default();
        made.add(Target::Host(address), 0x03, 1000, 5000);
        send(&sender, made);
        for (number, datagram) in receiver.next(5).into_iter().enumerate() {
            assert_eq!((datagram.traffic_class, datagram.bytes), (3, vec![number as u8; 1000]));
        }
    });
}

#[test]
fn what_cannot_be_segmented_is_sent_one_by_one() {
    let (sender, mut receiver) = (tunnel(underlay(3)), Receiver::new(Some(tunnel(underlay(4)))));
    let mut made = Made::default();
    // More datagrams than the kernel makes of one message.
    made.add(Target::Host(underlay(4)), 0, 20, 20 * 200);
    made.add(Target::Host(underlay(4)), 0, 30, 60);
    let stats = send(&sender.senders[0], made);
    assert_eq!((stats.sent_datagrams, stats.sent_bytes, stats.send_errors), (202, 4060, 0));
    assert_eq!(stats.sent_trains, 201, "the next train is sent as one again");
    let arrived = receiver.next(202);
    assert!(arrived[..200].iter().enumerate().all(|(number, d)| d.bytes == [number as u8; 20]));
}

#[test]
fn what_the_kernel_refuses_is_lost_and_counted() {
    let (sender, mut receiver) = (tunnel(underlay(5)), Receiver::new(Some(tunnel(underlay(6)))));
    let mut made = Made::default();
    made.add(Target::Host(underlay(6)), 0, 10, 10);
    // Another network, which is unreachable from the loopback interface.
    made.add(Target::Host([192, 0, 2, 1].into()), 0, 10, 30);
    made.add(Target::Host(underlay(6)), 0, 12, 12);
    let stats = send(&sender.senders[0], made);
    assert_eq!((stats.sent_datagrams, stats.send_errors), (2, 3));
    let lens: Vec<usize> = receiver.next(2).iter().map(|d| d.bytes.len()).collect();
    assert_eq!(lens, [10, 12]);
}

#[test]
fn the_tunnels_port_is_not_shared_with_others() {
    let _first = Tunnel::open(underlay(7), ends(2), None).unwrap();
    assert_eq!(Tunnel::open(underlay(7), ends(2), None).err(), Some(rustix::io::Errno::ADDRINUSE));
}

#[test]
fn each_worker_receives_what_is_for_its_queue_pairs() {
    const WORKERS: usize = 3;
    let tunnels = Tunnel::open(underlay(8), ends(WORKERS), None).unwrap();
    let mut receivers: Vec<Receiver> = tunnels.into_iter().map(|tunnel| Receiver::new(Some(tunnel))).collect();
    arrive_at(underlay(8), &mut receivers, |qpn| qpn as usize % WORKERS);
}

#[test]
fn a_table_steers_each_queue_pair_to_any_worker() {
    const WORKERS: usize = 3;
    let tunnels = Tunnel::open(underlay(9), ends(WORKERS), None).unwrap();
    let Some(steering) = Tunnel::steer(&tunnels) else {
        assert!(!rustix::process::geteuid().is_root() || std::env::var_os("CI").is_none(), "root may use bpf(2)");
        return eprintln!("skipped: the kernel gives no table");
    };
    let mut receivers: Vec<Receiver> = tunnels.into_iter().map(|tunnel| Receiver::new(Some(tunnel))).collect();
    for round in 0..WORKERS {
        let worker = |qpn: u32| (qpn as usize / 2 + round) % WORKERS;
        QUEUE_PAIRS.for_each(|qpn| steering.set(rdmesh_verbs::Qpn::new(qpn), worker(qpn) as u32));
        arrive_at(underlay(9), &mut receivers, worker);
    }
}

const QUEUE_PAIRS: std::ops::Range<u32> = 0x12_3450..0x12_3456;

/// Sends datagrams for some queue pairs, over IPv4 and IPv6, and sees them arrive at the workers that `worker` tells.
fn arrive_at(to: IpAddr, receivers: &mut [Receiver], worker: impl Fn(u32) -> usize) {
    let sender = UdpSocket::bind((to, 0)).unwrap();
    for (protocol, transport) in [([0x08, 0x00], 36), ([0x86, 0xdd], 56)] {
        for qpn in QUEUE_PAIRS {
            let mut bytes = vec![0; transport + 16];
            bytes[2..4].copy_from_slice(&protocol);
            // The bits before the number are not part of it.
            bytes[transport + 4..transport + 8].copy_from_slice(&(qpn | 0xff00_0000).to_be_bytes());
            sender.send_to(&bytes, (to, rdmesh_nic::TUNNEL_PORT)).unwrap();
            let arrived = receivers[worker(qpn)].next(1);
            assert_eq!(arrived[0].bytes, bytes, "{qpn:#x}");
        }
    }
}

#[test]
fn faults_are_put_in_and_end() {
    let (sender, mut receiver) = (tunnel(underlay(10)), Receiver::new(Some(tunnel(underlay(11)))));
    let train = |len| {
        let mut made = Made::default();
        made.add(Target::Host(underlay(11)), 0, 10, len);
        made
    };
    receiver.sockets.set_faults(Some("duplicate=100%,ce=100%".parse().unwrap()));
    send(&sender.senders[0], train(100));
    let arrived = receiver.next(20);
    assert!(arrived.iter().all(|datagram| datagram.traffic_class == 3));
    assert_eq!(receiver.counters.read().faults, 20);
    receiver.sockets.set_faults(Some("reorder=100%".parse().unwrap()));
    send(&sender.senders[0], train(10));
    assert_eq!(receiver.next(1).len(), 1, "nothing overtakes it, and still it comes");
    receiver.sockets.set_faults(None);
    send(&sender.senders[0], train(100));
    assert_eq!(receiver.next(10).len(), 10);
}

/// Runs `test` in a network namespace of its own, with a loopback interface; not without root.
fn in_namespace(test: impl FnOnce(OwnedFd) + Send + 'static) {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: network namespaces need root");
    }
    let inside = || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        if !Command::new("ip").args(["link", "set", "lo", "up"]).status().is_ok_and(|status| status.success()) {
            return eprintln!("skipped: there is no ip(8)");
        }
        test(open_namespace("/proc/thread-self/ns/net").unwrap());
    };
    std::thread::spawn(inside).join().unwrap();
}

fn copy(fd: &OwnedFd) -> Result<OwnedFd, rustix::io::Errno> {
    rustix::io::fcntl_dupfd_cloexec(fd, 0)
}

fn terms() -> Terms {
    Terms { charge: None, wait: Duration::from_secs(10) }
}

fn local() -> Vec<IpAddr> {
    vec![Ipv4Addr::LOCALHOST.into()]
}

#[test]
fn contexts_of_a_namespace_share_its_sockets_until_the_last_is_closed() {
    in_namespace(|namespace| {
        let (sender, reports) = std::sync::mpsc::channel();
        let external_paths = ExternalPaths::new(Ok(()), Reports(sender));
        let acquire = || external_paths.acquire(copy(&namespace), local(), 0, terms());
        let first = acquire();
        assert_eq!(first.interface.unwrap().mtu, 65_536);
        let (first, second) = (first.external.unwrap(), acquire().external.unwrap());
        assert!(Arc::ptr_eq(first.sockets(), second.sockets()));
        let taken = UdpSocket::bind((Ipv4Addr::LOCALHOST, ROCE_PORT));
        assert!(taken.is_err(), "no other program gets what is for them");
        drop(first);
        assert_eq!(reports.try_iter().collect::<Vec<_>>(), ["opened 0"]);
        drop(second);
        assert_eq!(reports.try_iter().collect::<Vec<_>>(), ["closed 0"]);
        UdpSocket::bind((Ipv4Addr::LOCALHOST, ROCE_PORT)).unwrap();
        UdpSocket::bind((Ipv6Addr::LOCALHOST, ROCE_PORT)).unwrap();
        assert_eq!(acquire().external.unwrap().sockets().id(), ExternalId(1));
    });
}

#[test]
fn searches_in_one_namespace_open_its_sockets_once() {
    in_namespace(|namespace| {
        let external_paths = ExternalPaths::new(Ok(()), Unserved);
        let namespace = Arc::new(namespace);
        let searches: Vec<_> = (0..8)
            .map(|_| {
                let (external_paths, namespace) = (external_paths.clone(), Arc::clone(&namespace));
                std::thread::spawn(move || {
                    // Each ends, too, while others are under key.
                    (0..20).all(|_| external_paths.acquire(copy(&namespace), local(), 0, terms()).external.is_ok())
                })
            })
            .collect();
        assert!(searches.into_iter().all(|search| search.join().unwrap()));
    });
}

/// Nothing is done with the sockets.
struct Unserved;

impl ExternalPathWatcher for Unserved {
    fn opened(&self, _: &Arc<ExternalSockets>) {}
    fn closed(&self, _: ExternalId) {}
}

/// Events of the sockets are reported.
struct Reports(std::sync::mpsc::Sender<String>);

impl ExternalPathWatcher for Reports {
    fn opened(&self, sockets: &Arc<ExternalSockets>) {
        self.0.send(format!("opened {}", sockets.id().0)).unwrap();
    }

    fn closed(&self, id: ExternalId) {
        let _ = self.0.send(format!("closed {}", id.0));
    }
}

#[test]
fn a_namespace_without_sockets_says_why() {
    in_namespace(|namespace| {
        let external_paths = ExternalPaths::new(Ok(()), Unserved);
        let unknown = external_paths.acquire(copy(&namespace), vec![[10, 7, 0, 2].into()], 0, terms());
        assert_eq!((unknown.interface, unknown.external.err()), (None, Some(ExternalPathError::NoInterface)));
        let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, ROCE_PORT)).unwrap();
        let taken = external_paths.acquire(copy(&namespace), local(), 0, terms());
        assert_eq!(taken.external.err(), Some(ExternalPathError::PortTaken));
        assert!(taken.interface.is_some(), "the interface is known all the same");
        drop(socket);
        let gone = external_paths.acquire(Err(rustix::io::Errno::SRCH), local(), 0, terms());
        assert_eq!(gone.external.err(), Some(ExternalPathError::Unknown(rustix::io::Errno::SRCH)));
        let probed = Err(ProbeError::Lost);
        let unfit = ExternalPaths::new(probed, Unserved).acquire(copy(&namespace), local(), 0, terms());
        assert_eq!(unfit.external.err(), Some(ExternalPathError::Probe(ProbeError::Lost)));
        assert!(unfit.interface.is_some());
    });
}

#[test]
fn another_namespace_is_entered_for_its_sockets() {
    in_namespace(|inside| {
        let enter = move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            let outside = open_namespace("/proc/thread-self/ns/net").unwrap();
            assert_ne!(NamespaceKey::of(outside.as_fd()), NamespaceKey::of(inside.as_fd()));
            let uplink = ExternalPaths::new(Ok(()), Unserved).acquire(copy(&inside), local(), 0, terms());
            assert!(uplink.external.is_ok());
            let still = open_namespace("/proc/thread-self/ns/net").unwrap();
            assert_eq!(NamespaceKey::of(outside.as_fd()), NamespaceKey::of(still.as_fd()));
            UdpSocket::bind((Ipv4Addr::UNSPECIFIED, ROCE_PORT)).expect("the port is taken in the other one");
        };
        std::thread::spawn(enter).join().unwrap();
    });
}

#[test]
fn plain_datagrams_say_whom_they_are_for() {
    in_namespace(|namespace| {
        let external =
            ExternalPaths::new(Ok(()), Unserved).acquire(Ok(namespace), local(), 0, terms()).external.unwrap();
        let id = external.sockets().id();
        let mut receiver = Receiver::new(None);
        receiver.sockets.add_external(external.sockets().clone()).unwrap();
        let addresses: [(IpAddr, IpAddr); 2] = [
            (Ipv4Addr::LOCALHOST.into(), Ipv4Addr::new(127, 0, 0, 2).into()),
            (Ipv6Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()),
        ];
        for (from, to) in addresses {
            let mut made = Made::default();
            made.add(Target::External { id, from, to }, 0x69, 100, 250);
            send(external.sockets().socket(from.is_ipv4()).unwrap(), made);
            let origin = Origin::External { id, from, from_port: ROCE_PORT, to };
            let expected = [(0, 100), (1, 100), (2, 50)].map(|(first, len)| Arrived {
                origin,
                traffic_class: 0x69,
                bytes: vec![first; len],
            });
            assert_eq!(receiver.next(3), expected);
        }
        receiver.sockets.remove_external(id);
        drop(external);
        // A process that another test starts has copies of all sockets until it is executed.
        let deadline = Instant::now() + Duration::from_secs(10);
        while let Err(error) = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, ROCE_PORT)) {
            assert!(Instant::now() < deadline, "something holds the port: {error}");
            std::thread::yield_now();
        }
    });
}

/// A program may send to its own namespace's socket without end.
#[test]
fn a_flood_at_one_socket_leaves_the_others_their_turn() {
    const MANY: usize = 500;
    in_namespace(|namespace| {
        let external =
            ExternalPaths::new(Ok(()), Unserved).acquire(Ok(namespace), local(), 0, terms()).external.unwrap();
        let host = Ipv4Addr::new(127, 0, 0, 2);
        let mut receiver = Receiver::new(Some(tunnel(host.into())));
        receiver.sockets.add_external(external.sockets().clone()).unwrap();
        let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        for _ in 0..3 {
            for _ in 0..MANY {
                sender.send_to(&[1; 20], (Ipv4Addr::LOCALHOST, ROCE_PORT)).unwrap();
            }
            sender.send_to(&[2; 20], (host, rdmesh_nic::TUNNEL_PORT)).unwrap();
            let (mut own, mut others) = (0, 0);
            receiver.sockets.look_at_once();
            receiver.sockets.receive(receiver.clock.now(), &mut |_, datagram| match datagram.origin {
                Origin::External { .. } => own += 1,
                Origin::Host(_) => others += 1,
            });
            assert_eq!(others, 1, "in the same round");
            assert!(own > 0 && own < MANY / 4, "{own} of one socket in one round");
        }
    });
}

#[test]
fn plain_datagrams_are_numbered_within_their_train() {
    in_namespace(|namespace| {
        let external =
            ExternalPaths::new(Ok(()), Unserved).acquire(Ok(namespace), local(), 0, terms()).external.unwrap();
        let socket = external.sockets().socket(true).unwrap();
        raw::set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 0).unwrap();
        super::external::cut_to_identification(socket).unwrap();
        let mut receiver = Receiver::new(None);
        receiver.sockets.add_external(external.sockets().clone()).unwrap();
        let mut made = Made::default();
        let (from, to) = (Ipv4Addr::LOCALHOST.into(), Ipv4Addr::new(127, 0, 0, 2).into());
        let target = Target::External { id: external.sockets().id(), from, to };
        made.add(target, 0, 100, 1000);
        made.add(target, 0, 90, 270);
        send(socket, made);
        // The first of a train has number 0 and arrives as no byte at all.
        let numbers: Vec<usize> = receiver.next(11).iter().map(|datagram| datagram.bytes.len()).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2]);
    });
}

#[test]
fn a_source_that_is_not_there_cannot_be_sent_from() {
    in_namespace(|namespace| {
        let external =
            ExternalPaths::new(Ok(()), Unserved).acquire(Ok(namespace), local(), 0, terms()).external.unwrap();
        let (from, to) = ([10, 0, 0, 1].into(), Ipv4Addr::new(127, 0, 0, 2).into());
        let mut made = Made::default();
        made.add(Target::External { id: external.sockets().id(), from, to }, 0, 100, 300);
        let stats = send(external.sockets().socket(true).unwrap(), made);
        assert_eq!((stats.sent_datagrams, stats.send_errors), (0, 3));
    });
}

#[test]
fn an_idle_worker_sees_only_what_is_due() {
    let mut receiver = Receiver::new(Some(tunnel(underlay(12))));
    let sender = UdpSocket::bind((underlay(13), 0)).unwrap();
    let look = |receiver: &mut Receiver| receiver.sockets.receive(Time(0), &mut |_, _| {});
    while look(&mut receiver) {}
    sender.send_to(&[1], (underlay(12), rdmesh_nic::TUNNEL_PORT)).unwrap();
    receiver.sockets.after_sleep();
    assert!(look(&mut receiver), "the first pass after a sleep looks at the sockets");
    assert!(!look(&mut receiver));
}
