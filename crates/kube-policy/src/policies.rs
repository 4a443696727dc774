//! Security groups from objects of Kubernetes: what NetworkPolicies say of pods, said of their endpoints.
//!
//! A NetworkPolicy isolates the pods that it selects, for connections to them (ingress), from them (egress) or both, and lists whom
//! they may still speak with; several policies add up. A security group isolates its members both ways. So each policy becomes a group
//! on each network where it selects endpoints, and two further groups open the way that no policy has closed: [`OPEN_IN`] and
//! [`OPEN_OUT`].

use crate::objects::{Member, Objects, PortName};
use ipnet::IpNet;
use k8s_openapi::api::networking::v1::{
    IPBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use rdmesh_fabric::{Counterpart, Name, Rule, SecurityGroup, short_hash};
use std::collections::{BTreeMap, BTreeSet};

/// Beginning of the names of all groups that are made here.
pub(crate) const PREFIX: &str = "np-";
/// Group of the endpoints that policies isolate for connections from them only.
const OPEN_IN: &str = "np-open-in";
/// Group of the endpoints that policies isolate for connections to them only.
const OPEN_OUT: &str = "np-open-out";

/// The groups of all networks, in order.
pub(crate) fn groups(objects: &Objects) -> Vec<SecurityGroup> {
    let networks: BTreeSet<&Name> = objects.members.iter().map(|member| &member.network).collect();
    networks.into_iter().flat_map(|network| groups_of(objects, network)).collect()
}

fn groups_of(objects: &Objects, network: &Name) -> Vec<SecurityGroup> {
    let mut groups = Vec::new();
    let mut isolated: BTreeMap<&Name, Directions> = BTreeMap::new();
    for policy in &objects.policies {
        let (Some(own), Some(spec)) = (policy.metadata.namespace.as_deref(), policy.spec.as_ref()) else { continue };
        let selected: Vec<&Member> = objects
            .on(network)
            .filter(|member| member.namespace == own && member.is_selected(spec.pod_selector.as_ref()))
            .collect();
        if selected.is_empty() {
            continue;
        }
        let directions = Directions::of(spec);
        for member in &selected {
            let known = isolated.entry(&member.endpoint).or_default();
            known.ingress |= directions.ingress;
            known.egress |= directions.egress;
        }
        let scene = Scene { objects, network, own, selected: &selected };
        groups.push(SecurityGroup {
            name: name_of(own, policy),
            network: network.clone(),
            members: selected.iter().map(|member| member.endpoint.clone()).collect(),
            allow_from: if directions.ingress { scene.ingress(spec) } else { Vec::new() },
            allow_to: if directions.egress { scene.egress(spec) } else { Vec::new() },
            covers_ip: true,
        });
    }
    let open = |is_open: fn(&Directions) -> bool| -> BTreeSet<Name> {
        isolated.iter().filter(|(_, directions)| is_open(directions)).map(|(name, _)| (*name).clone()).collect()
    };
    let any = vec![Rule::from(Counterpart::Any)];
    let group = |name: &str, members, allow_from, allow_to| SecurityGroup {
        name: name.parse().expect("a short name"),
        network: network.clone(),
        members,
        allow_from,
        allow_to,
        covers_ip: true,
    };
    groups.push(group(OPEN_IN, open(|directions| !directions.ingress), any.clone(), Vec::new()));
    groups.push(group(OPEN_OUT, open(|directions| !directions.egress), Vec::new(), any));
    groups.retain(|group| !group.members.is_empty());
    groups
}

/// For which connections a policy isolates pods.
#[derive(Clone, Copy, Default, Debug)]
struct Directions {
    ingress: bool,
    egress: bool,
}

impl Directions {
    /// Where a policy does not say, it is about ingress, and about egress if it has rules for that.
    fn of(spec: &NetworkPolicySpec) -> Self {
        match spec.policy_types.as_deref() {
            None | Some([]) => {
                Self { ingress: true, egress: spec.egress.as_ref().is_some_and(|rules| !rules.is_empty()) }
            }
            Some(types) => {
                let has = |kind: &str| types.iter().any(|known| known == kind);
                Self { ingress: has("Ingress"), egress: has("Egress") }
            }
        }
    }
}

/// A policy on a network, and the endpoints that it selects there.
struct Scene<'a> {
    objects: &'a Objects,
    network: &'a Name,
    /// The policy's namespace.
    own: &'a str,
    selected: &'a [&'a Member],
}

impl Scene<'_> {
    fn ingress(&self, spec: &NetworkPolicySpec) -> Vec<Rule> {
        let rules = spec.ingress.iter().flatten();
        let rules = rules.flat_map(|rule| {
            let (peers, ports) = (rule.from.as_deref(), rule.ports.as_deref());
            // A named port is one of the pod that is connected to.
            self.sides(peers).flat_map(move |side| self.with_ports(&side, ports, self.selected)).collect::<Vec<_>>()
        });
        distinct(rules)
    }

    fn egress(&self, spec: &NetworkPolicySpec) -> Vec<Rule> {
        let rules = spec.egress.iter().flatten();
        let rules = rules.flat_map(|rule| {
            let (peers, ports) = (rule.to.as_deref(), rule.ports.as_deref());
            let with_ports = |side: Side<'_>| {
                let targets: Vec<&Member> = side.member.into_iter().collect();
                self.with_ports(&side, ports, &targets)
            };
            self.sides(peers).flat_map(with_ports).collect::<Vec<_>>()
        });
        distinct(rules)
    }

    /// The other sides that a rule names: all where it names none.
    fn sides<'s>(&'s self, peers: Option<&'s [NetworkPolicyPeer]>) -> Box<dyn Iterator<Item = Side<'s>> + 's> {
        match peers {
            None | Some([]) => Box::new(std::iter::once(Side { counterpart: Counterpart::Any, member: None })),
            Some(peers) => Box::new(peers.iter().flat_map(|peer| self.sides_of(peer))),
        }
    }

    fn sides_of<'s>(&'s self, peer: &'s NetworkPolicyPeer) -> Vec<Side<'s>> {
        if let Some(block) = &peer.ip_block {
            let range = |range| Side { counterpart: Counterpart::Range(range), member: None };
            return ranges(block).into_iter().map(range).collect();
        }
        let is_meant = |member: &&Member| {
            let is_near = match &peer.namespace_selector {
                Some(selector) => self.objects.has_namespace(&member.namespace, selector),
                None => member.namespace == self.own,
            };
            is_near && member.is_selected(peer.pod_selector.as_ref())
        };
        let members = self.objects.on(self.network).filter(is_meant);
        let side = |member: &'s Member| Side {
            counterpart: Counterpart::Endpoint(member.endpoint.clone()),
            member: Some(member),
        };
        members.map(side).collect()
    }

    /// The rules for a side: one for all ports where none are named, else one for each. A port of a protocol that rdma_cm has no
    /// ports of allows nothing.
    fn with_ports(&self, side: &Side<'_>, ports: Option<&[NetworkPolicyPort]>, targets: &[&Member]) -> Vec<Rule> {
        let rule = |ports| Rule { peer: side.counterpart.clone(), ports };
        match ports {
            None | Some([]) => vec![rule(None)],
            Some(ports) => ports.iter().flat_map(|port| numbers(port, targets)).map(rule).collect(),
        }
    }
}

/// The other side of a rule.
struct Side<'a> {
    counterpart: Counterpart,
    /// The pod's endpoint, where it is one.
    member: Option<&'a Member>,
}

/// First and last number of a port, for each meaning that it has at the pods that are connected to; none: all.
fn numbers(port: &NetworkPolicyPort, targets: &[&Member]) -> Vec<Option<(u16, u16)>> {
    let protocol = port.protocol.as_deref().unwrap_or("TCP");
    if !["TCP", "UDP"].contains(&protocol) {
        return Vec::new();
    }
    let number = |number: i32| u16::try_from(number).ok();
    match &port.port {
        None => vec![None],
        Some(IntOrString::Int(first)) => {
            let first = number(*first);
            let last = port.end_port.map_or(first, number);
            first.zip(last).map(Some).into_iter().collect()
        }
        Some(IntOrString::String(name)) => {
            let name = PortName { name: name.clone(), protocol: protocol.to_owned() };
            let named = targets.iter().filter_map(|member| member.ports.get(&name));
            let numbers: BTreeSet<u16> = named.copied().collect();
            numbers.into_iter().map(|number| Some((number, number))).collect()
        }
    }
}

/// The addresses of a block without its exceptions.
fn ranges(block: &IPBlock) -> Vec<IpNet> {
    let Ok(all) = block.cidr.parse::<IpNet>() else { return Vec::new() };
    let except = block.except.iter().flatten().filter_map(|text| text.parse::<IpNet>().ok());
    except.fold(vec![all.trunc()], |ranges, except| {
        ranges.into_iter().flat_map(|range| without(range, &except.trunc())).collect()
    })
}

/// `range` without the addresses of `except`.
fn without(range: IpNet, except: &IpNet) -> Vec<IpNet> {
    if except.contains(&range) {
        return Vec::new();
    }
    if !range.contains(except) {
        return vec![range];
    }
    let halves = range.subnets(range.prefix_len() + 1).into_iter().flatten();
    halves.flat_map(|half| without(half, except)).collect()
}

fn distinct(rules: impl Iterator<Item = Rule>) -> Vec<Rule> {
    rules.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Name of a policy's group: `np-`, a hash of namespace and name, and the beginning of the name.
fn name_of(namespace: &str, policy: &NetworkPolicy) -> Name {
    let name = policy.metadata.name.as_deref().unwrap_or_default();
    let plain: String = name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(LONGEST).collect();
    let hash = short_hash(&[namespace, name]);
    format!("{PREFIX}{hash}-{plain}").parse().expect("letters, digits and dashes are a name")
}

/// Characters of a policy's name in its group's.
const LONGEST: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;
    use rdmesh_fabric::{Labels, Quota};
    use serde_json::{Value, json};

    /// Pods of namespaces `db` (label `team=data`) and `web`, each with an endpoint of its name on network `blue`.
    fn objects(policies: &[Value]) -> Objects {
        let pod = |namespace: &str, name: &str, app: &str| {
            let port = json!({ "name": "redis", "containerPort": if name == "db-2" { 6380 } else { 6379 } });
            json!({
                "metadata": { "namespace": namespace, "name": name, "labels": { "app": app } },
                "spec": { "containers": [{ "name": "main", "ports": [port] }] },
            })
        };
        let pods = [
            pod("db", "db-1", "db"),
            pod("db", "db-2", "db"),
            pod("web", "web-1", "web"),
            pod("web", "batch-1", "batch"),
        ];
        let namespaces = [
            json!({ "metadata": { "name": "db", "labels": { "team": "data" } } }),
            json!({ "metadata": { "name": "web" } }),
        ];
        let endpoint = |pod: &Value| {
            let text = |key: &str| pod["metadata"][key].as_str().unwrap();
            endpoint(text("name"), Labels::of_pod(text("namespace"), text("name")))
        };
        // Not a pod's, or one of a pod that has gone.
        let others = [endpoint_of("vm", ""), endpoint_of("gone", "web")];
        let endpoints: Vec<_> = pods.iter().map(endpoint).chain(others).collect();
        let parse = |value: &Value| serde_json::from_value(value.clone()).unwrap();
        let pods: Vec<Box<_>> = pods.iter().map(|pod| Box::new(serde_json::from_value(pod.clone()).unwrap())).collect();
        let namespaces: Vec<Box<_>> =
            namespaces.iter().map(|one| Box::new(serde_json::from_value(one.clone()).unwrap())).collect();
        Objects::new(&endpoints, &pods, &namespaces, policies.iter().map(parse).collect())
    }

    fn endpoint_of(name: &str, namespace: &str) -> rdmesh_fabric::Endpoint {
        let labels = if namespace.is_empty() { Labels::default() } else { Labels::of_pod(namespace, name) };
        endpoint(name, labels)
    }

    fn endpoint(name: &str, labels: Labels) -> rdmesh_fabric::Endpoint {
        rdmesh_fabric::Endpoint {
            name: name.parse().unwrap(),
            network: "blue".parse().unwrap(),
            host: "host".parse().unwrap(),
            addresses: vec!["10.7.0.2".parse().unwrap()],
            quota: Quota::default(),
            allowed_uid: None,
            owner_pid: None,
            isolation: rdmesh_fabric::Isolation::None,
            interface: rdmesh_fabric::InterfaceName::default(),
            pool: None,
            labels,
        }
    }

    fn policy(namespace: &str, spec: Value) -> Value {
        json!({ "metadata": { "namespace": namespace, "name": "p" }, "spec": spec })
    }

    /// Each group as a line: its name without the hash, members, rules in and out.
    fn lines(policies: &[Value]) -> Vec<String> {
        let join = |texts: Vec<String>| texts.join(" ");
        let line = |group: SecurityGroup| {
            let rules = |rules: &[Rule]| join(rules.iter().map(ToString::to_string).collect());
            let name = group.name.as_str().rsplit('-').next().unwrap().to_owned();
            let members = join(group.members.iter().map(ToString::to_string).collect());
            format!("{name}: {members} < {} > {}", rules(&group.allow_from), rules(&group.allow_to))
        };
        groups(&objects(policies)).into_iter().map(line).collect()
    }

    #[test]
    fn pods_that_no_policy_selects_are_in_no_group() {
        assert_eq!(lines(&[]), [] as [String; 0]);
        assert_eq!(lines(&[policy("other", json!({ "podSelector": {} }))]), [] as [String; 0]);
        let none = json!({ "podSelector": { "matchLabels": { "app": "none" } } });
        assert_eq!(lines(&[policy("db", none)]), [] as [String; 0]);
    }

    #[test]
    fn a_policy_without_rules_closes_the_way_in_and_leaves_the_way_out() {
        let deny = json!({ "podSelector": {}, "policyTypes": ["Ingress"] });
        assert_eq!(lines(&[policy("db", deny)]), ["p: db-1 db-2 <  > ", "out: db-1 db-2 <  > any"]);
        let both = json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"] });
        assert_eq!(lines(&[policy("db", both)]), ["p: db-1 db-2 <  > "]);
        let egress = json!({ "podSelector": {}, "policyTypes": ["Egress"] });
        assert_eq!(lines(&[policy("db", egress)]), ["p: db-1 db-2 <  > ", "in: db-1 db-2 < any > "]);
    }

    #[test]
    fn selectors_mean_pods_of_the_own_namespace_or_of_those_selected() {
        let rule =
            |peer: Value| json!({ "podSelector": { "matchLabels": { "app": "db" } }, "ingress": [{ "from": [peer] }] });
        let from = |peer| lines(&[policy("db", rule(peer))])[0].clone();
        assert_eq!(from(json!({ "podSelector": {} })), "p: db-1 db-2 < endpoint/db-1 endpoint/db-2 > ");
        assert_eq!(from(json!({ "podSelector": { "matchLabels": { "app": "web" } } })), "p: db-1 db-2 <  > ");
        let web = json!({ "namespaceSelector": {}, "podSelector": { "matchLabels": { "app": "web" } } });
        assert_eq!(from(web), "p: db-1 db-2 < endpoint/web-1 > ");
        let not_data =
            json!({ "namespaceSelector": { "matchExpressions": [{ "key": "team", "operator": "DoesNotExist" }] } });
        assert_eq!(from(not_data), "p: db-1 db-2 < endpoint/batch-1 endpoint/web-1 > ");
        let all = json!({ "podSelector": {}, "ingress": [{}] });
        assert_eq!(lines(&[policy("db", all)])[0], "p: db-1 db-2 < any > ");
    }

    #[test]
    fn ports_are_those_of_rdma_cm_and_names_those_of_the_pod_that_is_connected_to() {
        let web = json!([{ "namespaceSelector": {}, "podSelector": { "matchLabels": { "app": "web" } } }]);
        let rule = |ports: Value| json!({ "podSelector": {}, "ingress": [{ "from": web, "ports": ports }] });
        let from = |ports| lines(&[policy("db", rule(ports))])[0].clone();
        assert_eq!(
            from(json!([{ "port": 7471 }, { "port": 8000, "endPort": 8010 }])),
            "p: db-1 db-2 < endpoint/web-1@7471 endpoint/web-1@8000-8010 > "
        );
        assert_eq!(from(json!([{ "port": "redis" }])), "p: db-1 db-2 < endpoint/web-1@6379 endpoint/web-1@6380 > ");
        assert_eq!(from(json!([{ "protocol": "SCTP" }])), "p: db-1 db-2 <  > ");
        assert_eq!(from(json!([{ "protocol": "UDP" }])), "p: db-1 db-2 < endpoint/web-1 > ");
        let to = json!({ "podSelector": { "matchLabels": { "app": "web" } }, "policyTypes": ["Egress"],
            "egress": [{ "to": [{ "namespaceSelector": { "matchLabels": { "team": "data" } } }], "ports": [{ "port": "redis" }] }] });
        assert_eq!(lines(&[policy("web", to)])[0], "p: web-1 <  > endpoint/db-1@6379 endpoint/db-2@6380");
    }

    #[test]
    fn blocks_are_without_their_exceptions() {
        let block = json!({ "cidr": "10.0.0.0/22", "except": ["10.0.1.0/24", "10.0.3.128/25"] });
        let spec = json!({ "podSelector": {}, "ingress": [{ "from": [{ "ipBlock": block }] }] });
        assert_eq!(lines(&[policy("db", spec)])[0], "p: db-1 db-2 < 10.0.0.0/24 10.0.2.0/24 10.0.3.0/25 > ");
        let nothing = json!({ "cidr": "fd00::/64", "except": ["fd00::/16"] });
        let spec = json!({ "podSelector": {}, "ingress": [{ "from": [{ "ipBlock": nothing }] }] });
        assert_eq!(lines(&[policy("db", spec)])[0], "p: db-1 db-2 <  > ");
    }

    #[test]
    fn policies_add_up() {
        let ingress = policy("db", json!({ "podSelector": {}, "policyTypes": ["Ingress"] }));
        let mut egress = policy(
            "db",
            json!({ "podSelector": { "matchExpressions": [
            { "key": "app", "operator": "In", "values": ["db"] }] }, "policyTypes": ["Egress"], "egress": [{}] }),
        );
        egress["metadata"]["name"] = "q".into();
        assert_eq!(lines(&[ingress, egress]), ["p: db-1 db-2 <  > ", "q: db-1 db-2 <  > any"]);
    }
}
