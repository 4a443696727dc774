//! Probes to the other hosts: whether packets get there and back, full ones too.

use super::Finding;
use rdmesh_fabric::api::{EndpointInfo, PathProbe, ProbePath};
use rdmesh_fabric::{Client, Name, Peer};
use std::net::IpAddr;
use std::thread;

/// A path to another host: from an endpoint here to one there, of one network and family.
struct Way<'a> {
    host: &'a Peer,
    network: &'a Name,
    endpoint: &'a Name,
    to: IpAddr,
}

/// Outcome of the probes to a host.
enum Shown {
    /// Full packets get there.
    Through {
        /// Time there and back, in µs.
        time: f64,
        /// Version of the router there.
        version: String,
    },
    /// Only short ones do.
    ShortOnly {
        bytes: u32,
    },
    Nothing,
    /// The router has sent none: the reason.
    Unsent(String),
}

/// Probes each host that has an endpoint on a network of this one's, at a time so many that no silent one makes others wait.
pub(super) fn check(client: &Client) -> Vec<Finding> {
    let (Ok(endpoints), Ok(peers)) = (client.endpoints(), client.peers()) else { return Vec::new() };
    let ways: Vec<Way<'_>> = peers.hosts.iter().filter_map(|host| way(host, &endpoints)).take(MOST_HOSTS).collect();
    let mut shown = Vec::new();
    for some in ways.chunks(AT_A_TIME) {
        let of_some = thread::scope(|scope| {
            let probing: Vec<_> = some.iter().map(|way| scope.spawn(|| probe(way, client))).collect();
            probing.into_iter().map(|probing| probing.join().expect("no probe panics")).collect::<Vec<_>>()
        });
        shown.extend(of_some);
    }
    findings(&ways, &shown)
}

fn way<'a>(host: &'a Peer, endpoints: &'a [EndpointInfo]) -> Option<Way<'a>> {
    host.endpoints.iter().find_map(|there| {
        endpoints.iter().map(|info| &info.endpoint).filter(|here| here.network == there.network).find_map(|here| {
            let is_like = |to: &&IpAddr| here.addresses.iter().any(|own| own.is_ipv4() == to.is_ipv4());
            let to = *there.addresses.iter().find(is_like)?;
            Some(Way { host, network: &here.network, endpoint: &here.name, to })
        })
    })
}

fn probe(way: &Way<'_>, client: &Client) -> Shown {
    let ask = |is_full| {
        let order = ProbePath { to: way.to, count: PROBES, is_full };
        client.probe_path(way.network, way.endpoint, &order)
    };
    let round_trip = |probes: &[PathProbe]| {
        let mut times: Vec<f64> =
            probes.iter().filter_map(|probe| Some(probe.answer.as_ref()?.round_trip_us)).collect();
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied()
    };
    let full = match ask(true) {
        Ok(full) => full,
        Err(error) => return Shown::Unsent(error.to_string()),
    };
    if let Some(time) = round_trip(&full) {
        let version = full.iter().find_map(|probe| Some(probe.answer.as_ref()?.version.clone()));
        return Shown::Through { time, version: version.unwrap_or_default() };
    }
    let bytes = full.first().map_or(0, |probe| probe.bytes);
    match ask(false) {
        Ok(short) if round_trip(&short).is_some() => Shown::ShortOnly { bytes },
        Ok(_) => Shown::Nothing,
        Err(error) => Shown::Unsent(error.to_string()),
    }
}

fn findings(ways: &[Way<'_>], shown: &[Shown]) -> Vec<Finding> {
    let mut found = Vec::new();
    let times: Vec<f64> = shown
        .iter()
        .filter_map(|shown| if let Shown::Through { time, .. } = shown { Some(*time) } else { None })
        .collect();
    if let Some(slowest) = times.iter().copied().max_by(f64::total_cmp) {
        let hosts =
            if times.len() == 1 { "1 host answers".to_owned() } else { format!("{} hosts answer", times.len()) };
        found.push(Finding::ok(SUBJECT, format!("{hosts} full packets, the slowest after {slowest:.0} us")));
    }
    for (Way { host, network, endpoint, to }, shown) in ways.iter().zip(shown) {
        let place = format!("host {} at {}", host.name, host.address);
        let trace = format!("rdmesh trace {network}/{endpoint} {network}/{to}");
        match shown {
            Shown::Through { version, .. } if version != OWN_VERSION => found.push(Finding::warn(
                "versions",
                format!("{place} runs version {version}, this one {OWN_VERSION}"),
                "the same version on all hosts: what one of them can do, the other may not",
            )),
            Shown::Through { .. } => {}
            Shown::ShortOnly { bytes } => found.push(Finding::fail(
                SUBJECT,
                format!("{place} answers short packets, and none with {bytes} bytes: the network between carries less than this host's MTU"),
                format!("the MTU of the interface towards it, on both hosts, to what the network carries; {trace}"),
            )),
            Shown::Nothing => found.push(Finding::warn(
                SUBJECT,
                format!("{place} does not answer: {PROBES} full packets and {PROBES} short ones were sent"),
                format!("is its router running, does it know this host's endpoints, is UDP port 6081 open? {trace}"),
            )),
            Shown::Unsent(why) => found.push(Finding::warn(SUBJECT, format!("{place} was not probed: {why}"), trace)),
        }
    }
    found
}

const SUBJECT: &str = "paths";
const OWN_VERSION: &str = env!("CARGO_PKG_VERSION");
/// Probes of each size to a host: one may be lost.
const PROBES: u32 = 3;
/// Hosts that are probed at a time, and in all.
const AT_A_TIME: usize = 16;
const MOST_HOSTS: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use rdmesh_fabric::PeerEndpoint;

    #[test]
    fn hosts_that_answer_are_one_line_and_each_other_has_its_own() {
        let host = |name: &str| Peer {
            name: name.parse().unwrap(),
            address: [192, 0, 2, 2].into(),
            key: None,
            endpoints: vec![PeerEndpoint {
                network: "blue".parse().unwrap(),
                vni: None,
                addresses: vec!["fd00::3".parse().unwrap(), "10.7.0.3".parse().unwrap()],
                link: None,
            }],
        };
        let hosts = ["b", "c", "d", "e"].map(host);
        let (network, endpoint): (Name, Name) = ("blue".parse().unwrap(), "a".parse().unwrap());
        let way = |host| Way { host, network: &network, endpoint: &endpoint, to: [10, 7, 0, 3].into() };
        let ways: Vec<Way<'_>> = hosts.iter().map(way).collect();
        let shown = [
            Shown::Through { time: 60.0, version: OWN_VERSION.into() },
            Shown::Through { time: 80.4, version: "9.0.0".into() },
            Shown::ShortOnly { bytes: 4096 },
            Shown::Nothing,
        ];
        let text: Vec<String> = findings(&ways, &shown).iter().map(Finding::text).collect();
        assert_eq!(text[0], "ok    paths: 2 hosts answer full packets, the slowest after 80 us");
        assert!(text[1].starts_with("warn  versions: host c") && text[1].contains("runs version 9.0.0"), "{text:?}");
        assert!(text[2].starts_with("FAIL  paths: host d") && text[2].contains("none with 4096 bytes"), "{text:?}");
        assert!(
            text[3].starts_with("warn  paths: host e") && text[3].contains("rdmesh trace blue/a blue/10.7.0.3"),
            "{text:?}"
        );
        assert!(findings(&[], &[]).is_empty());
    }
}
