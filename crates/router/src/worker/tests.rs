use super::exchange::forward;
use super::link::{DATAGRAMS, Link};
use super::*;
use crate::io::IoConfig;
use rdmesh_nic::cm::{CmPath, Mad};
use rdmesh_nic::wire::{Header, IpUdp, Op, Service, geneve};
use rdmesh_nic::{Datagram, Network, ReceivedMad, Route, TUNNEL_PORT};
use rdmesh_uverbs::page::{CONTEXT_PAGE_LEN, ContextPage, WORKERS_LEN, WorkerFlags};
use rdmesh_uverbs::shared::SharedMemory;
use rdmesh_verbs::DeviceLimits;
use rdmesh_verbs::{Gid, Vni};
use rustix::io;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, recv};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[test]
fn a_worker_that_never_sleeps_sends_late_events_too() {
    let config = WorkerConfig { count: 1, mode: Mode::Spin, limits: DeviceLimits::default(), io: IoConfig::default() };
    let workers = Workers::start(config).unwrap();
    let (events, program) = EventSocket::pair().unwrap();
    let page = ContextPage::new(SharedMemory::create("page", CONTEXT_PAGE_LEN).unwrap().0).unwrap();
    let wake = wait::new_eventfd().unwrap();
    let network = Network {
        vni: rdmesh_verbs::Vni(1),
        endpoint: 1,
        gids: Vec::new(),
        external: None,
        mtu: rdmesh_verbs::Mtu::B4096,
    };
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
        let io = IoConfig { underlay: Some(underlay(number)), faults: None, is_insecure: true, ..IoConfig::default() };
        let workers = Workers::start(WorkerConfig { count: 1, mode, limits: DeviceLimits::default(), io }).unwrap();
        let shard = &workers.shards()[0];
        let sender = std::net::UdpSocket::bind((underlay(99), 0)).unwrap();
        for sent in 1..=3 {
            wait_until("it sleeps", || mode == Mode::Spin || shard.desk().link.is_sleeping());
            sender.send_to(&[0; 100], (underlay(number), TUNNEL_PORT)).unwrap();
            wait_until("it receives", || shard.stats().io.received_datagrams == sent);
        }
        assert_eq!(shard.stats().io.received_bytes, 300);
    }
}

#[test]
fn a_worker_without_traffic_sleeps_on() {
    let io = IoConfig { underlay: Some(underlay(103)), faults: None, is_insecure: true, ..IoConfig::default() };
    let config = WorkerConfig { count: 1, mode: Mode::Adaptive, limits: DeviceLimits::default(), io };
    let workers = Workers::start(config).unwrap();
    let shard = &workers.shards()[0];
    wait_until("it sleeps", || shard.desk().link.is_sleeping());
    let polls = shard.stats().polls;
    wait_until("time passes", {
        let start = std::time::Instant::now();
        move || start.elapsed() > Duration::from_millis(20)
    });
    assert!(shard.stats().polls - polls < 2, "nothing wakes it");
}

/// Link of one of two workers.
fn link(number: u32) -> Link {
    let flags = WorkerFlags::new(SharedMemory::create("workers", WORKERS_LEN).unwrap().0).unwrap();
    Link::new(number, 2, flags).unwrap()
}

#[test]
fn a_datagram_for_another_worker_is_handed_over_or_counted() {
    let (from, to) = (link(0), link(1));
    let origin = rdmesh_nic::Origin::External {
        id: rdmesh_nic::ExternalId(0),
        from: underlay(1),
        from_port: 1,
        to: underlay(2),
    };
    // A SEND of one packet.
    let bytes: [u8; 64] = std::array::from_fn(|at| if at == 0 { 4 } else { 0 });
    let datagram = Datagram { origin, traffic_class: 0, received: None, bytes: &bytes };
    let opened = rdmesh_nic::Opened::new(&datagram).unwrap();
    for _ in 0..DATAGRAMS + 3 {
        forward(&from, &to, &opened);
    }
    let stats = from.io.read();
    assert_eq!((stats.forwarded, stats.forward_drops), (DATAGRAMS as u64, 3));
    assert!(to.mailbox.take(|opened| assert_eq!(opened.apart().1, bytes)));
    forward(&from, &to, &opened);
    assert_eq!(from.io.read().forwarded, DATAGRAMS as u64 + 1);
}

#[test]
fn an_underlay_address_that_is_not_ours_is_named() {
    let io = IoConfig { underlay: Some([192, 0, 2, 1].into()), faults: None, is_insecure: true, ..IoConfig::default() };
    let config = WorkerConfig { count: 1, mode: Mode::Sleep, limits: DeviceLimits::default(), io };
    let error = Workers::start(config).err().unwrap();
    assert!(error.to_string().starts_with("UDP port 6081 of the underlay address 192.0.2.1: "), "{error}");
}

fn workers(count: usize, number: u8) -> Workers {
    let io = IoConfig { underlay: Some(underlay(number)), faults: None, is_insecure: true, ..IoConfig::default() };
    Workers::start(WorkerConfig { count, mode: Mode::Adaptive, limits: DeviceLimits::default(), io }).unwrap()
}

fn gid(number: u8) -> Gid {
    Gid::from_ip([10, 0, 0, number].into())
}

/// Has `workers` put management datagrams into a queue.
fn mad_queue(workers: &Workers) -> (MadQueue, Arc<OwnedFd>) {
    let wake = Arc::new(wait::new_eventfd().unwrap());
    let queue = MadQueue::new(wake.clone());
    for shard in workers.shards() {
        let queue = queue.clone();
        shard.call(move |shard| shard.set_mad_queue(queue));
    }
    (queue, wake)
}

fn send_mads(from: &ShardHandle, count: usize) {
    let path = CmPath { vni: Vni(1), local: gid(1), remote: gid(2), external: None };
    from.post(move |shard| {
        let now = shard.now();
        for _ in 0..count {
            shard.engine().send_mad(now, &Mad { path, bytes: [7; 256] }).unwrap();
        }
    });
}

/// Has addresses lead to the hosts with these numbers.
fn set_routes(workers: &Workers, places: &[(u8, u8)]) {
    workers.shards()[0].routes().change(|routes| {
        places.iter().for_each(|(n, host)| routes.insert(Vni(1), gid(*n), Route::Host(underlay(*host))));
    });
}

#[test]
fn a_management_datagram_reaches_the_thread_that_waits_on_another_host() {
    let (here, there) = (workers(1, 104), workers(2, 105));
    for workers in [&here, &there] {
        set_routes(workers, &[(1, 104), (2, 105)]);
    }
    let (received, wake) = mad_queue(&there);
    for _ in 0..3 {
        send_mads(&here.shards()[0], 1);
        let mut count = [0; 8];
        wait_until("the reader is woken", || io::read(&wake, &mut count).is_ok());
        let mad = received.take().unwrap();
        let expected =
            ReceivedMad { external_origin: None, vni: Some(Vni(1)), source: gid(1), dest: gid(2), bytes: [7; 256] };
        assert_eq!(mad, expected);
    }
    let total = |of: fn(&WorkerStats) -> u64| there.shards().iter().map(|shard| of(&shard.stats())).sum::<u64>();
    assert_eq!((total(|stats| stats.mads), total(|stats| stats.io.forwarded)), (3, 0));
}

#[test]
fn final_messages_leave_before_their_sockets() {
    let here = workers(1, 108);
    set_routes(&here, &[(1, 108), (2, 109)]);
    let has_more = here.shards()[0].call(|shard| {
        let (now, path) = (shard.now(), CmPath { vni: Vni(1), local: gid(1), remote: gid(2), external: None });
        for _ in 0..200 {
            shard.engine().send_mad(now, &Mad { path, bytes: [7; 256] }).unwrap();
        }
        shard.remove_external(rdmesh_nic::ExternalId(1));
        shard.engine().has_final_packets()
    });
    assert!(!has_more);
}

#[test]
fn a_datagram_to_a_group_is_seen_by_every_worker_once() {
    let workers = workers(3, 106);
    let ip = IpUdp {
        source: gid(1),
        dest: Gid::from_ip([239, 0, 0, 1].into()),
        traffic_class: 0,
        hop_limit: 1,
        flow_label: 0,
        id: 0,
        source_port: 0xc000,
    };
    let header = Header {
        service: Service::Ud,
        op: Op::Datagram { qkey: rdmesh_verbs::Qkey(1), source: rdmesh_verbs::Qpn::new(17), imm: None },
        solicited: false,
        mig: false,
        pkey: 0xffff,
        fecn: false,
        becn: false,
        dest: rdmesh_verbs::Qpn::MULTICAST,
        ack_request: false,
        takes_selective: false,
        is_repeated: false,
        has_telemetry: false,
        psn: rdmesh_verbs::Psn::new(0),
    };
    let mut bytes = vec![0; geneve::LEN + ip.len() + header.len() + 4];
    geneve::encode(Vni(1), false, &mut bytes);
    ip.encode(header.len() + 4, &mut bytes[geneve::LEN..]);
    header.encode(0, &mut bytes[geneve::LEN + ip.len()..]);
    let sender = std::net::UdpSocket::bind((underlay(99), 0)).unwrap();
    sender.send_to(&bytes, (underlay(106), TUNNEL_PORT)).unwrap();
    let seen = || -> Vec<u64> {
        let counters = workers.shards().iter().map(|shard| shard.call(|shard| shard.engine().wire_counters()));
        counters.map(|counters| counters.received).collect()
    };
    wait_until("all have seen it", || seen() == [1, 1, 1]);
    wait_until("time passes", {
        let start = std::time::Instant::now();
        move || start.elapsed() > Duration::from_millis(20)
    });
    assert_eq!(seen(), [1, 1, 1]);
    assert_eq!(workers.shards().iter().map(|shard| shard.stats().io.forwarded).sum::<u64>(), 2);
}

#[test]
fn a_command_for_a_worker_that_sleeps_runs_inline() {
    let here = workers(1, 110);
    let shard = &here.shards()[0];
    set_routes(&here, &[(1, 110), (2, 111)]);
    let runs_inline = || shard.call(|_| std::thread::current().id()) == std::thread::current().id();
    wait_until("a command is run and the worker sleeps on", || {
        let before = shard.stats();
        let is_asleep = || shard.desk().link.is_sleeping();
        is_asleep() && runs_inline() && runs_inline() && is_asleep() && shard.stats().polls == before.polls
    });
    let before = shard.stats();
    // The worker finishes the work that the command leaves.
    shard.call(|shard| {
        let path = CmPath { vni: Vni(1), local: gid(1), remote: gid(2), external: None };
        let now = shard.now();
        shard.engine().send_mad(now, &Mad { path, bytes: [7; 256] }).unwrap();
    });
    wait_until("it is sent", || shard.stats().io.sent_datagrams == before.io.sent_datagrams + 1);
}

#[test]
fn commands_run_one_at_a_time_and_in_order() {
    const CALLS: u64 = 3000;
    for (number, mode) in [(112, Mode::Sleep), (113, Mode::Adaptive), (114, Mode::Spin)] {
        let io = IoConfig { underlay: Some(underlay(number)), faults: None, is_insecure: true, ..IoConfig::default() };
        let workers = Workers::start(WorkerConfig { count: 1, mode, limits: DeviceLimits::default(), io }).unwrap();
        let total = AtomicU64::new(0);
        let total: &'static AtomicU64 = Box::leak(Box::new(total));
        // Neither loses what the other adds between its two steps.
        let bump = move |_: &mut Shard| total.store(total.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let shard = &workers.shards()[0];
                    for _ in 0..CALLS {
                        let own: &'static AtomicU64 = Box::leak(Box::new(AtomicU64::new(0)));
                        shard.post(move |shard| {
                            bump(shard);
                            own.store(1, Ordering::Relaxed);
                        });
                        assert_eq!(shard.call(move |_| own.load(Ordering::Relaxed)), 1, "what came before is done");
                        shard.call(bump);
                    }
                });
            }
        });
        assert_eq!(total.load(Ordering::Relaxed), 2 * 3 * CALLS, "{mode:?}");
    }
}

#[test]
fn a_worker_beside_other_load_sleeps_and_is_woken_for_every_datagram() {
    const DATAGRAMS: u64 = 50;
    let workers = workers(1, 115);
    let shard = &workers.shards()[0];
    let sender = std::net::UdpSocket::bind((underlay(99), 0)).unwrap();
    let mut sent = 0;
    // The probe may end the contention in between, on a machine that is quiet; then it begins again.
    while shard.stats().io.received_datagrams < DATAGRAMS {
        shard.contention().has_taken(Duration::from_secs(1));
        wait_until("it sleeps", || shard.desk().link.is_sleeping());
        let before = shard.stats();
        sender.send_to(&[0; 100], (underlay(115), TUNNEL_PORT)).unwrap();
        sent += 1;
        wait_until("it receives", || shard.stats().io.received_datagrams == sent);
        wait_until("it sleeps again", || shard.stats().sleeps > before.sleeps);
        assert!(shard.stats().wakeups > before.wakeups, "a datagram has woken it");
    }
}

/// The doorbell of a context that is not polled any more, on a worker that is awake and on one that sleeps.
#[test]
fn a_dormant_context_is_served_again() {
    for (number, mode) in [(117, Mode::Spin), (118, Mode::Adaptive), (119, Mode::Sleep)] {
        let io = IoConfig { underlay: Some(underlay(number)), faults: None, is_insecure: true, ..IoConfig::default() };
        let workers = Workers::start(WorkerConfig { count: 1, mode, limits: DeviceLimits::default(), io }).unwrap();
        let shard = &workers.shards()[0];
        let open = |_| {
            let page = ContextPage::new(SharedMemory::create("page", CONTEXT_PAGE_LEN).unwrap().0).unwrap();
            let ((events, program), wake) = (EventSocket::pair().unwrap(), wait::new_eventfd().unwrap());
            let network =
                Network { vni: Vni(1), endpoint: 1, gids: Vec::new(), external: None, mtu: rdmesh_verbs::Mtu::B4096 };
            let (ours, theirs) = (page.clone(), io::fcntl_dupfd_cloexec(&wake, 0).unwrap());
            shard.call(move |shard| shard.open(network, page, wake, events));
            (ours, theirs, program)
        };
        let contexts: Vec<_> = (0..40).map(open).collect();
        wait_until("contexts fall dormant", || {
            // One that sleeps makes a pass when it is woken.
            wait::notify(&shard.desk().link.inbox);
            shard.call(|shard| shard.contexts().has_dormant())
        });
        for round in 0..3 {
            for (page, wake, _) in &contexts {
                page.ring(round);
                if page.must_wake(shard.desk().common().flags()) {
                    wait::notify(wake);
                }
                wait_until("the doorbell is taken", || !page.has_rung());
            }
        }
    }
}

#[test]
fn threads_that_sleep_are_woken_for_their_own_completions_only() {
    let mut sockets = Vec::new();
    let workers = workers(1, 116);
    let pages: Vec<ContextPage> =
        (0..2).map(|_| ContextPage::new(SharedMemory::create("page", CONTEXT_PAGE_LEN).unwrap().0).unwrap()).collect();
    let mut open = |page: ContextPage| {
        let ((events, program), wake) = (EventSocket::pair().unwrap(), wait::new_eventfd().unwrap());
        sockets.push(program);
        let network =
            Network { vni: Vni(1), endpoint: 1, gids: Vec::new(), external: None, mtu: rdmesh_verbs::Mtu::B4096 };
        workers.shards()[0].call(move |shard| shard.open(network, page, wake, events));
    };
    pages.iter().cloned().for_each(&mut open);
    // Both say that they sleep; a tenant's writes wake no thread without a completion.
    pages.iter().for_each(|page| page.wait_arrival(page.arrivals(), Duration::from_micros(1)));
    assert_eq!(workers.shards()[0].call(|shard| shard.wake_sleepers()), 0);
    let device = pages[1].clone();
    let woken = workers.shards()[0].call(move |shard| {
        device.take_arm(0, false);
        (shard.wake_sleepers(), shard.wake_sleepers())
    });
    assert_eq!(woken, (1, 0));
    assert!(pages[0].wake_sleepers(), "the other was left alone");
}
