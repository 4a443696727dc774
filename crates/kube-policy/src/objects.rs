//! Objects that groups are computed from: endpoints of pods with the pods' labels, labels of namespaces, policies.

use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt};
use rdmesh_fabric::{Endpoint, Name, POD, POD_NAMESPACE};
use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;

/// All of them at one time.
#[derive(Clone, Default, Debug)]
pub(crate) struct Objects {
    pub(crate) members: Vec<Member>,
    /// Labels of each namespace.
    pub(crate) namespaces: BTreeMap<String, BTreeMap<String, String>>,
    pub(crate) policies: Vec<NetworkPolicy>,
}

/// An endpoint of a pod.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) network: Name,
    pub(crate) endpoint: Name,
    /// The pod's namespace.
    pub(crate) namespace: String,
    /// The pod's labels.
    pub(crate) labels: BTreeMap<String, String>,
    /// Ports that the pod's containers have names for.
    pub(crate) ports: BTreeMap<PortName, u16>,
}

/// Name of a port of a pod.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct PortName {
    pub(crate) name: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub(crate) protocol: String,
}

impl Objects {
    /// The objects of one moment. An endpoint whose pod is not known is no member.
    pub(crate) fn new(
        endpoints: &[Endpoint],
        pods: &[impl Deref<Target = Pod>],
        namespaces: &[impl Deref<Target = Namespace>],
        policies: Vec<NetworkPolicy>,
    ) -> Self {
        let key = |pod: &Pod| Some((pod.metadata.namespace.clone()?, pod.metadata.name.clone()?));
        let pods: HashMap<(String, String), &Pod> = pods.iter().filter_map(|pod| Some((key(pod)?, &**pod))).collect();
        let member = |endpoint: &Endpoint| {
            let label = |key| endpoint.labels.value(key).map(str::to_owned);
            let (namespace, name) = (label(POD_NAMESPACE)?, label(POD)?);
            let pod = pods.get(&(namespace.clone(), name))?;
            Some(Member {
                network: endpoint.network.clone(),
                endpoint: endpoint.name.clone(),
                namespace,
                labels: pod.metadata.labels.clone().unwrap_or_default(),
                ports: ports(pod),
            })
        };
        let labels = |namespace: &Namespace| {
            Some((namespace.metadata.name.clone()?, namespace.metadata.labels.clone().unwrap_or_default()))
        };
        Self {
            members: endpoints.iter().filter_map(member).collect(),
            namespaces: namespaces.iter().filter_map(|namespace| labels(namespace)).collect(),
            policies,
        }
    }

    /// The members on a network.
    pub(crate) fn on(&self, network: &Name) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(move |member| member.network == *network)
    }

    /// Whether a namespace is one that a selector means.
    pub(crate) fn has_namespace(&self, namespace: &str, selector: &LabelSelector) -> bool {
        self.namespaces.get(namespace).is_some_and(|labels| is_selected(labels, selector))
    }
}

impl Member {
    /// Whether its pod is one that a selector means; all are where there is none.
    pub(crate) fn is_selected(&self, selector: Option<&LabelSelector>) -> bool {
        selector.is_none_or(|selector| is_selected(&self.labels, selector))
    }
}

/// Whether labels are such that a selector means them. One that cannot be understood means none.
fn is_selected(labels: &BTreeMap<String, String>, selector: &LabelSelector) -> bool {
    Selector::try_from(selector.clone()).is_ok_and(|selector| selector.matches(labels))
}

fn ports(pod: &Pod) -> BTreeMap<PortName, u16> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let ports = containers.flat_map(|container| container.ports.iter().flatten());
    let named = ports.filter_map(|port| {
        let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
        Some((PortName { name: port.name.clone()?, protocol }, u16::try_from(port.container_port).ok()?))
    });
    named.collect()
}
