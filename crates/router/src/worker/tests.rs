use super::*;
use rdmesh_nic::Network;
use rdmesh_uverbs::page::{CONTEXT_PAGE_LEN, ContextPage};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, recv};

#[test]
fn a_worker_that_never_sleeps_sends_late_events_too() {
    let config = WorkerConfig { count: 1, mode: Mode::Spin, limits: DeviceLimits::default(), io: IoConfig::default() };
    let workers = Workers::start(config).unwrap();
    let (events, program) = EventSocket::pair().unwrap();
    let page = ContextPage::new(SharedMemory::create("page", CONTEXT_PAGE_LEN).unwrap().0).unwrap();
    let wake = wait::new_eventfd().unwrap();
    let network = Network { vni: rdmesh_verbs::Vni(1), gids: Vec::new(), plain: None, mtu: rdmesh_verbs::Mtu::B4096 };
    let sent = workers.shards()[0].call(move |shard| {
        let id = shard.open(network, page, wake, events);
        shard.fill_events(id)
    });
    set_socket_timeout(&program, Timeout::Recv, Some(Duration::from_secs(10))).unwrap();
    for element in 0..sent {
        let mut bytes = [0; 16];
        let (_, len) = recv(&program, &mut bytes, RecvFlags::empty()).expect("every event comes");
        assert_eq!((len, &bytes[..8]), (16, &element.to_ne_bytes()[..]));
    }
}

fn underlay(number: u8) -> IpAddr {
    let [.., high, low] = std::process::id().to_be_bytes();
    std::net::Ipv4Addr::new(127, high, low, number).into()
}

fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !happened() {
        assert!(start.elapsed() < Duration::from_secs(10), "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_datagram_wakes_a_worker_that_sleeps() {
    for (number, mode) in [(100, Mode::Sleep), (101, Mode::Adaptive), (102, Mode::Spin)] {
        let io = IoConfig { underlay: Some(underlay(number)), faults: None };
        let workers = Workers::start(WorkerConfig { count: 1, mode, limits: DeviceLimits::default(), io }).unwrap();
        let shard = &workers.shards()[0];
        let sender = std::net::UdpSocket::bind((underlay(99), 0)).unwrap();
        for sent in 1..=3 {
            wait_until("it sleeps", || mode == Mode::Spin || shard.0.page.is_sleeping());
            sender.send_to(&[0; 100], (underlay(number), TUNNEL_PORT)).unwrap();
            wait_until("it receives", || shard.stats().io.received_datagrams == sent);
        }
        assert_eq!(shard.stats().io.received_bytes, 300);
    }
}

#[test]
fn a_worker_without_traffic_sleeps_on() {
    let io = IoConfig { underlay: Some(underlay(103)), faults: None };
    let config = WorkerConfig { count: 1, mode: Mode::Adaptive, limits: DeviceLimits::default(), io };
    let workers = Workers::start(config).unwrap();
    let shard = &workers.shards()[0];
    wait_until("it sleeps", || shard.0.page.is_sleeping());
    let polls = shard.stats().polls;
    wait_until("time passes", {
        let start = std::time::Instant::now();
        move || start.elapsed() > Duration::from_millis(20)
    });
    assert!(shard.stats().polls - polls < 2, "nothing wakes it");
}

#[test]
fn a_datagram_for_another_worker_is_handed_over_or_counted() {
    let (from, to) = (Link::new(2).unwrap().0, Link::new(2).unwrap().0);
    let origin = rdmesh_nic::Origin::Host(underlay(1));
    let datagram = Datagram { origin, traffic_class: 0, received: None, bytes: &[7; 64] };
    for _ in 0..DATAGRAMS + 3 {
        forward(&from, &to, &datagram);
    }
    let stats = from.io.read();
    assert_eq!((stats.forwarded, stats.forward_drops), (DATAGRAMS as u64, 3));
    assert!(to.mailbox.take(|datagram| assert_eq!(datagram.bytes, [7; 64])));
    forward(&from, &to, &datagram);
    assert_eq!(from.io.read().forwarded, DATAGRAMS as u64 + 1);
}

#[test]
fn an_underlay_address_that_is_not_ours_is_named() {
    let io = IoConfig { underlay: Some([192, 0, 2, 1].into()), faults: None };
    let config = WorkerConfig { count: 1, mode: Mode::Sleep, limits: DeviceLimits::default(), io };
    let error = Workers::start(config).err().unwrap();
    assert!(error.to_string().starts_with("UDP port 6081 of the underlay address 192.0.2.1: "), "{error}");
}
