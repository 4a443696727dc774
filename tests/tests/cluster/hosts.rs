//! Three hosts, a real etcd, and two tenants with the same addresses: stock programs, and losses of the store, of routers and of
//! hosts.

use rdmesh_tests::{Cluster, Site, all, until};
use std::time::Duration;

/// One site on each of the three hosts, at the same addresses on each network.
fn sites(cluster: &Cluster, net: &str) -> Vec<Site> {
    let sites: Vec<Site> =
        (0..3).map(|host| cluster.site(host, net, &format!("e{host}"), Some(&address(host)))).collect();
    for host in 0..3 {
        let others: Vec<_> = (0..3).filter(|other| *other != host).map(|other| (address(other), other)).collect();
        let others: Vec<_> = others.iter().map(|(address, other)| (address.as_str(), *other)).collect();
        cluster.wait_for(host, net, &others);
    }
    sites
}

fn address(host: usize) -> String {
    format!("10.7.0.{}", host + 2)
}

/// Programs that each pair of a network's sites runs: the kernel's IP, verbs and rdma_cm.
fn exchange(cluster: &Cluster, sites: &mut [Site], server: usize, client: usize) {
    let ip = address(server);
    sites[client].run(&format!("ping -c 2 -i 0.2 -W 5 {ip}"));
    sites[server].serve(&format!("timeout 60 ib_write_bw -F -p {PORT} -s 8192 -n 300"), PORT);
    sites[client].run(&format!("timeout 60 ib_write_bw -F -p {PORT} -s 8192 -n 300 {ip}"));
    sites[server].serve(&format!("timeout 60 iperf3 -s -1 -p {}", PORT + 1), PORT + 1);
    sites[client].run(&format!("timeout 60 iperf3 -c {ip} -p {} -n 2M", PORT + 1));
    let rping = format!("timeout 60 rping -p {} -C 10", PORT + 2);
    sites[server].serve_connections(&format!("{rping} -s -a {ip}"), cluster.lab(server));
    let (is_ok, text) = sites[client].try_run(&format!("{rping} -c -a {ip}"));
    assert!(is_ok || has_closed_its_channel(&text), "rping at {}:\n{text}", address(client));
}

/// Whether rping got through all the same: its thread for events may ask for the next one just after the program has closed their
/// channel, and ends the program with EBADF. It does on kernel devices, too.
fn has_closed_its_channel(text: &str) -> bool {
    text.trim_end().ends_with("client DISCONNECT EVENT...\nrdma_get_cm_event: Bad file descriptor")
}

#[test]
fn two_tenants_with_one_range_talk_among_themselves_only() {
    let cluster = Cluster::start(3, TERMS);
    let mut blue = sites(&cluster, "blue");
    let mut red = sites(&cluster, "red");
    for sites in [&mut blue, &mut red] {
        for (server, client) in [(0, 1), (1, 2), (2, 0)] {
            exchange(&cluster, sites, server, client);
        }
    }
    // A network that no endpoint of this host is on yet.
    cluster.lab(2).command(&["network", "add", "green", "--subnet", "10.9.0.0/16"]).ok();
    let listed = cluster.lab(0).command(&["network", "ls"]).ok().text;
    assert!(["blue", "green", "red"].iter().all(|name| listed.contains(name)), "{listed}");
    // One address that only one of them has, and servers of one at an address that both have.
    let mut only_blue = cluster.site(0, "blue", "only", Some("10.7.0.50"));
    cluster.wait_for(1, "blue", &[("10.7.0.2", 0), ("10.7.0.4", 2), ("10.7.0.50", 0)]);
    blue[1].run("ping -c 1 -W 5 10.7.0.50");
    for (site, ip) in [(&mut only_blue, "10.7.0.50"), (&mut blue[0], "10.7.0.2")] {
        site.serve(&format!("ib_write_bw -F -p {PORT}"), PORT);
        site.serve_connections(&format!("rping -s -P -a {ip} -p {}", PORT + 2), cluster.lab(0));
    }
    assert!(!red[1].try_run("ping -c 1 -W 1 10.7.0.50").0);
    for ip in ["10.7.0.50", "10.7.0.2"] {
        let (is_ok, text) = red[1].try_run(&format!("timeout 3 ib_write_bw -F -p {PORT} {ip}"));
        assert!(!is_ok, "{text}");
        let (is_ok, text) = red[1].try_run(&format!("timeout 20 rping -c -C 1 -a {ip} -p {}", PORT + 2));
        assert!(!is_ok, "{text}");
    }
    blue[1].run(&format!("timeout 20 rping -c -C 1 -a 10.7.0.2 -p {}", PORT + 2));
    assert_eq!(cluster.known(1, "red"), [("10.7.0.2".into(), "host0".into()), ("10.7.0.4".into(), "host2".into())]);
}

#[test]
fn a_network_is_removed_when_no_host_is_on_it_and_is_another_when_it_is_made_again() {
    let cluster = Cluster::start(2, TERMS);
    let remove = |host: usize| cluster.lab(host).command(&["network", "rm", "blue"]);
    let first = cluster.site(1, "blue", "first", None);
    cluster.lab(0).command(&["group", "set", "db", "--net", "blue", "--member", "first", "--from", "any"]).ok();
    let refused = remove(0);
    assert!(!refused.status.success() && refused.text.contains("still has endpoints"), "{}", refused.text);
    let here = remove(1);
    assert!(!here.status.success() && here.text.contains("still has endpoint `first`"), "{}", here.text);
    first.end();
    until(LIMIT, "the network is removed", || remove(0).status.success().then_some(()));
    assert!(!remove(0).status.success(), "there is none");
    cluster.lab(0).command(&["network", "add", "blue", "--vni", "77", "--subnet", "10.9.0.0/16"]).ok();
    // The other host takes no address of the network that it has known.
    let second = cluster.site(1, "blue", "second", None);
    assert!(second.address().starts_with("10.9."), "{}", second.address());
    let listed = cluster.lab(1).command(&["network", "ls"]).ok().text;
    assert!(listed.contains("77") && !listed.contains("10.77."), "{listed}");
    assert!(!cluster.lab(1).command(&["group", "ls"]).ok().text.contains("first"), "groups go with the network");
    let third = cluster.site(0, "blue", "third", None);
    cluster.wait_for(0, "blue", &[(second.address(), 1)]);
    assert_ne!(second.address(), third.address());
}

#[test]
fn a_store_that_is_away_stops_nothing() {
    let seconds = if all() { 60 } else { 10 };
    // The store is away for longer than a session may last.
    let mut cluster = Cluster::start(3, "session=3,tenure=240,quarantine=2,reserve=10");
    let mut sites = sites(&cluster, "blue");
    let stream = format!("timeout 200 ib_write_bw -F -p {PORT} -s 8192 -D {}", seconds + 6);
    sites[0].serve(&stream, PORT);
    sites[1].start_job(&format!("{stream} 10.7.0.2"));
    cluster.stop_store();
    std::thread::sleep(Duration::from_secs(seconds));
    exchange_briefly(&mut sites, 2, 0);
    let offline = cluster.site(0, "blue", "offline", None);
    let address = offline.address().to_owned();
    sites[0].run(&format!("ping -c 1 -W 5 {address}"));
    // On a network that this host knows nothing of there is none in reserve.
    let refused = cluster.lab(0).command(&["endpoint", "add", "new", "--net", "unheard-of"]);
    assert!(!refused.status.success() && refused.text.contains("the store cannot be reached"), "{}", refused.text);
    cluster.start_store();
    until(LIMIT, "the endpoint is known elsewhere", || {
        let known: Vec<String> = cluster.known(1, "blue").into_iter().map(|(address, _)| address).collect();
        let were_there = ["10.7.0.2", "10.7.0.4"].iter().all(|there| known.iter().any(|known| known == there));
        assert!(were_there, "the sessions that have ended cut hosts off: {known:?}");
        known.contains(&address).then_some(())
    });
    sites[1].run(&format!("ping -c 1 -W 5 {address}"));
    let (is_ok, text) = sites[1].outcome();
    assert!(is_ok, "the traffic was cut off:\n{text}");
    exchange_briefly(&mut sites, 1, 2);
    assert_eq!(address, offline.address());
}

#[test]
fn a_host_that_loses_only_the_store_loses_nothing() {
    let seconds = if all() { 40 } else { 12 };
    let cluster = Cluster::start(3, "session=3,tenure=240,quarantine=2");
    let mut sites = sites(&cluster, "blue");
    let stream = |port| format!("timeout 200 ib_write_bw -F -p {port} -s 8192 -D {}", seconds + 8);
    // One that the lost host receives, and one that it sends.
    for (server, client, port) in [(2, 0, PORT + 2), (1, 2, PORT + 3)] {
        sites[server].serve(&stream(port), port);
        sites[client].start_job(&format!("{} {}", stream(port), address(server)));
    }
    cluster.cut_from_store(2);
    std::thread::sleep(Duration::from_secs(seconds));
    for (server, client) in [(2, 1), (0, 2)] {
        exchange_briefly(&mut sites, server, client);
    }
    let said = [
        (0, "host host2 is lost, or the store is to it: its endpoint on network blue (1) may not answer"),
        (2, "s others may be given this host's addresses"),
    ];
    for (host, sentence) in said {
        let text = cluster.lab(host).command(&["doctor"]).text;
        assert!(text.contains(sentence), "no {sentence:?} in:\n{text}");
    }
    // What it had before, it has afterwards; what came meanwhile, it learns.
    let come = cluster.site(0, "blue", "come", None);
    cluster.join_to_store(2);
    cluster.wait_for(2, "blue", &[("10.7.0.2", 0), ("10.7.0.3", 1), (come.address(), 0)]);
    cluster.wait_for(1, "blue", &[("10.7.0.2", 0), ("10.7.0.4", 2), (come.address(), 0)]);
    sites[2].run(&format!("ping -c 1 -W 5 {}", come.address()));
    for client in [0, 2] {
        let (is_ok, text) = sites[client].outcome();
        assert!(is_ok, "the traffic was cut off:\n{text}");
    }
}

#[test]
fn a_host_that_loses_the_store_for_its_tenure_is_given_up_and_comes_back() {
    let cluster = Cluster::start(3, TERMS);
    let mut sites = sites(&cluster, "blue");
    let stream = format!("timeout 200 ib_write_bw -F -p {PORT} -s 8192 -D 100");
    sites[2].serve(&stream, PORT);
    sites[0].start_job(&format!("{stream} 10.7.0.4"));
    cluster.cut_from_store(2);
    cluster.wait_for(0, "blue", &[("10.7.0.3", 1)]);
    let (is_ok, text) = sites[0].outcome();
    assert!(!is_ok, "another host may have the address by now:\n{text}");
    cluster.join_to_store(2);
    cluster.wait_for(0, "blue", &[("10.7.0.3", 1), ("10.7.0.4", 2)]);
    exchange_briefly(&mut sites, 2, 0);
}

/// A new connection between two sites.
#[test]
fn a_group_that_covers_ip_holds_for_tcp_and_ping_on_one_host_and_between_hosts() {
    let cluster = Cluster::start(3, TERMS);
    let mut sites = sites(&cluster, "blue");
    sites.push(cluster.site(0, "blue", "e3", Some(&address(3))));
    let (server, here, elsewhere) = (0, 3, 2);
    for site in &mut sites[..2] {
        site.serve("python3 -m http.server 8080 --bind ::", 8080);
    }
    let connect = |sites: &mut [Site], from: usize, to: usize| {
        sites[from].try_run(&format!("timeout 2 bash -c 'exec 3<>/dev/tcp/{}/8080'", address(to))).0
    };
    let text = sites[server].run("ip -6 -o address show dev eth0 scope link");
    let local = text.split_whitespace().find_map(|word| word.strip_suffix("/64")).expect("an address").to_owned();
    let connect_by_local_address = |sites: &mut [Site], from: usize| {
        let create = format!("import socket; socket.create_connection((\"{local}%eth0\", 8080), 2)");
        sites[from].try_run(&format!("python3 -c '{create}'")).0
    };
    let ping = |sites: &mut [Site], from: usize| sites[from].try_run(&format!("ping -c 1 -W 1 {}", address(server))).0;
    let group = |command: &str| {
        let words: Vec<&str> = command.split(' ').collect();
        cluster.lab(1).command(&[&["group"], &words[..]].concat()).ok();
    };
    assert!([1, elsewhere, here].into_iter().all(|from| connect(&mut sites, from, server)));
    until(LIMIT, "the address of the link leads there", || connect_by_local_address(&mut sites, here).then_some(()));
    group("set db --net blue --member e0 --from endpoint/e1@8080 --covers-ip");
    until(LIMIT, "the group holds on the server's host", || (!connect(&mut sites, elsewhere, server)).then_some(()));
    for round in 0..2 {
        assert!(connect(&mut sites, 1, server) && ping(&mut sites, 1), "{round}");
        for stranger in [elsewhere, here] {
            assert!(!connect(&mut sites, stranger, server) && !ping(&mut sites, stranger), "{stranger} {round}");
        }
        assert!(!connect(&mut sites, server, 1), "it may begin nothing");
        assert!(!connect_by_local_address(&mut sites, here), "an address of the link is no way around");
        if round == 0 {
            // Filters outlive a router.
            cluster.kill_router(0);
            assert!(!connect(&mut sites, elsewhere, server));
            cluster.lab(0).up_again();
        }
    }
    group("set db --net blue --member e0 --from endpoint/e1@8081 --to endpoint/e1 --covers-ip");
    until(LIMIT, "the port is another one", || (!connect(&mut sites, 1, server)).then_some(()));
    assert!(connect(&mut sites, server, 1));
    // A group that does not cover IP leaves it alone.
    group("set db --net blue --member e0 --from endpoint/e1@8081");
    until(LIMIT, "IP is not filtered", || connect(&mut sites, elsewhere, server).then_some(()));
    assert!(connect(&mut sites, here, server) && ping(&mut sites, here));
}

fn exchange_briefly(sites: &mut [Site], server: usize, client: usize) {
    let command = format!("timeout 60 ib_write_bw -F -p {} -s 4096 -n 200", PORT + 1);
    sites[server].serve(&command, PORT + 1);
    sites[client].run(&format!("{command} {}", address(server)));
}

#[test]
fn the_addresses_of_a_dead_host_come_back_after_their_rest() {
    let cluster = Cluster::start(3, TERMS);
    let mut sites = sites(&cluster, "blue");
    // A router that is killed is replaced, and its endpoint is there again.
    cluster.kill_router(1);
    cluster.lab(1).up_again();
    cluster.wait_for(0, "blue", &[("10.7.0.3", 1), ("10.7.0.4", 2)]);
    until(LIMIT, "the endpoint is served again", || sites[0].try_run("ping -c 1 -W 1 10.7.0.3").0.then_some(()));
    // A host that is lost: its endpoints stay known and its addresses rest for its tenure, longer than its session.
    cluster.kill_router(2);
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(cluster.known(0, "blue").len(), 2, "the host may have lost only the store");
    let rests = cluster.lab(0).command(&["endpoint", "add", "heir", "--net", "blue", "--ip", "10.7.0.4"]);
    assert!(rests.text.contains("10.7.0.4"), "{}", rests.text);
    assert!(!rests.status.success(), "the address rests: {}", rests.text);
    cluster.wait_for(0, "blue", &[("10.7.0.3", 1)]);
    cluster.wait_for(1, "blue", &[("10.7.0.2", 0)]);
    let mut heir = cluster.site(0, "blue", "heir", Some("10.7.0.4"));
    heir.run("ping -c 1 -W 5 10.7.0.3");
    cluster.wait_for(1, "blue", &[("10.7.0.2", 0), ("10.7.0.4", 0)]);
}

#[test]
fn an_endpoint_that_moves_keeps_its_address_and_takes_no_packet_of_old_connections() {
    let cluster = Cluster::start(3, TERMS);
    let mut sites = sites(&cluster, "blue");
    let lid = |site: &mut Site| site.run("cat /sys/class/infiniband/*/ports/1/lid");
    let mut roaming = cluster.site(1, "blue", "roaming", Some("10.7.0.9"));
    let before = lid(&mut roaming);
    cluster.wait_for(0, "blue", &[("10.7.0.3", 1), ("10.7.0.4", 2), ("10.7.0.9", 1)]);
    let flows = |what: &str, number: u64| {
        let before = cluster.lab(0).messages();
        until(LIMIT, what, || (cluster.lab(0).messages() > before + number).then_some(()));
    };
    // Nothing that an unreliable connection sends is answered: its sender goes on for a minute.
    let stray = "timeout 100 ib_write_bw -F -c UC -p 18651 -s 1024 -D 60";
    roaming.serve(stray, 18651);
    sites[0].start(&format!("{stray} --rate_limit=1 --rate_units=M --rate_limit_type=SW --burst_size=1 10.7.0.9"));
    flows("unreliable traffic flows", 50);
    let old = "timeout 100 ib_write_bw -F -p 18650 -s 8192 -D 60";
    roaming.serve(old, 18650);
    sites[0].start_job(&format!("{old} 10.7.0.9"));
    flows("reliable traffic flows", 2000);
    roaming.end();
    let mut moved = cluster.site(2, "blue", "roaming", Some("10.7.0.9"));
    assert_eq!(lid(&mut moved), before);
    assert_eq!(moved.address(), "10.7.0.9");
    cluster.wait_for(0, "blue", &[("10.7.0.3", 1), ("10.7.0.4", 2), ("10.7.0.9", 2)]);
    // Connections to the new place, of new peers and of the old one, while one old connection still sends.
    let strays = || [1, 2].map(|host| cluster.lab(host).metric("rdmesh_wire_unknown_qp_total"));
    let before = strays();
    for peer in [1, 0] {
        moved.serve(&format!("timeout 60 ib_write_bw -F -p {PORT} -s 4096 -n 300"), PORT);
        sites[peer].run(&format!("timeout 60 ib_write_bw -F -p {PORT} -s 4096 -n 300 10.7.0.9"));
    }
    until(LIMIT, "packets of the old connection are dropped", || (strays() != before).then_some(()));
    let (is_ok, text) = sites[0].outcome();
    assert!(!is_ok, "the old connection has ended well:\n{text}");
}

const TERMS: &str = "session=3,tenure=12,quarantine=3";
const PORT: u16 = 18_640;
const LIMIT: Duration = Duration::from_secs(60);
