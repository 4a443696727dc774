//! Pods of Kubernetes: `rdmesh-device-plugin`, and the CNI plugin behind that of the pods' network.
//!
//! The kubelet is `tests/programs/kubelet.py`: it speaks to plugins as the kubelet does, and pods are network namespaces.

use rdmesh_tests::kubernetes::{self, Pod, kubelet};
use rdmesh_tests::{Lab, Namespace, Program, product, until};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(120);
const RESOURCE: &str = "rdmesh.dev/blue";

/// A node of a cluster: a kubelet, and the plugin with four devices.
struct Node<'a> {
    lab: &'a Lab,
    folder: TempDir,
    kubelet: Program,
    _plugin: Program,
}

impl<'a> Node<'a> {
    fn start(lab: &'a Lab, more: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let kubelet = kubelet(folder.path());
        let mut plugin = Command::new(product("rdmesh-device-plugin"));
        plugin.args(["--network", "blue:4", "--kubelet-dir"]).arg(folder.path());
        plugin.arg("--state-dir").arg(lab.dir()).args(more);
        let mut node = Self { lab, folder, kubelet, _plugin: Program::start(plugin) };
        node.wait_healthy(4);
        node
    }

    fn order(&mut self, order: &Value) -> Value {
        kubernetes::order(&mut self.kubelet, order)
    }

    fn wait_healthy(&mut self, wanted: u64) {
        let is_so = || {
            let devices = self.order(&json!({ "do": "devices", "resource": RESOURCE }));
            (devices["healthy"] == wanted).then_some(())
        };
        until(LIMIT, "devices of another health", is_so);
    }

    /// Admits a pod whose container has a device.
    fn admit<'p>(&mut self, name: &'p str) -> Pod<'p> {
        let given = self.order(&json!({ "do": "admit", "pod": name, "resource": RESOURCE }));
        let mounts = given["mounts"].as_array().unwrap_or_else(|| panic!("{given}"));
        assert_eq!(mounts.len(), 1, "{given}");
        assert_eq!((&mounts[0]["inside"], &mounts[0]["read_only"]), (&json!("/run/rdmesh/endpoint"), &json!(true)));
        let directory = PathBuf::from(mounts[0]["host"].as_str().expect("a path"));
        // The runtime mounts it before the endpoint is made.
        assert!(directory.is_dir(), "{given}");
        let libraries = given["variables"]["LD_PRELOAD"].as_str().expect("libraries").to_owned();
        assert!(libraries.starts_with("/run/rdmesh/endpoint/librdmesh.so"), "{given}");
        let device = given["device"].as_str().expect("a device").to_owned();
        Pod { name, namespace: Namespace::new(), device, directory }
    }

    /// Starts a pod's container, for the first time or again.
    fn begin(&mut self, pod: &Pod<'_>) {
        assert_eq!(self.order(&json!({ "do": "start", "pod": pod.name })), json!({}));
    }

    fn end(&mut self, pod: &Pod<'_>) {
        assert_eq!(self.order(&json!({ "do": "end", "pod": pod.name })), json!({}));
    }

    /// Has the CNI plugin do something for a pod, behind a plugin that has made `eth0`.
    fn cni(&self, command: &str, pod: &Pod<'_>) -> Value {
        pod.cni(command, self.lab, self.folder.path())
    }

    /// The endpoint of a pod, if there is one.
    fn endpoint(&self, pod: &Pod<'_>) -> Option<Value> {
        let all = self.lab.api("/v1/endpoints");
        all.as_array().expect("a list").iter().find(|one| one["name"] == pod.device.as_str()).cloned()
    }
}

#[test]
fn pods_have_endpoints_as_devices_and_faster_sockets_between_them() {
    let lab = Lab::start();
    let mut node = Node::start(&lab, &["--accel"]);
    let pods = ["team/server", "team/client"].map(|name| {
        let pod = node.admit(name);
        let result = node.cni("ADD", &pod);
        assert_eq!(result["interfaces"][1]["name"], "rdmesh0", "{result}");
        node.begin(&pod);
        node.cni("CHECK", &pod);
        pod
    });
    let [server, client] = &pods;
    assert_ne!(server.device, client.device);
    let labels = &node.endpoint(server).expect("an endpoint")["labels"];
    assert_eq!(*labels, json!({ "kubernetes.io/namespace": "team", "kubernetes.io/pod": "server" }));
    let ip = node.endpoint(server).expect("an endpoint")["addresses"][0].as_str().expect("an address").to_owned();
    let libraries = ["librdmesh.so", "librdmesh-sockets.so"];
    let start = |pod: &Pod<'_>, command: &[&str]| pod.namespace.start_on(&pod.directory, &libraries, command);
    let mut pong = start(server, &["ibv_rc_pingpong", "-g", "1", "-c"]);
    pong.wait_listening(18515);
    start(client, &["ibv_rc_pingpong", "-g", "1", "-c", &ip]).finish(LIMIT).ok();
    pong.finish(LIMIT).ok();
    let mut redis = start(server, &["redis-server", "--port", "7777", "--save", "", "--protected-mode", "no"]);
    redis.wait_listening(7777);
    let benchmark = ["redis-benchmark", "-h", &ip, "-p", "7777", "-t", "set", "-n", "20000", "-c", "20", "--csv"];
    assert!(start(client, &benchmark).finish(LIMIT).ok().text.contains("\"SET\""));
    assert!(lab.metric("rdmesh_relay_sent_bytes_total") > 100_000.0);
    redis.terminate(Duration::from_secs(10));
    // A container of the pod that starts again has the same endpoint.
    node.begin(server);
    assert_eq!(node.endpoint(server).expect("an endpoint")["addresses"][0], ip.as_str());
    // Its network is set up again where the runtime has lost it.
    node.cni("ADD", server);
    for pod in &pods {
        node.cni("DEL", pod);
        node.cni("DEL", pod);
        node.end(pod);
        assert_eq!((node.endpoint(pod), pod.namespace.interfaces()), (None, vec!["lo".to_owned()]));
    }
}

#[test]
fn a_pod_without_devices_has_the_network_of_the_plugin_before() {
    let lab = Lab::start();
    let node = Node::start(&lab, &[]);
    let other = Pod { name: "team/other", namespace: Namespace::new(), device: "none".into(), directory: "".into() };
    assert_eq!(node.cni("ADD", &other), other.network_before());
    node.cni("CHECK", &other);
    node.cni("DEL", &other);
    assert_eq!(lab.api("/v1/endpoints"), json!([]));
}

#[test]
fn endpoints_of_pods_that_have_ended_are_removed() {
    let lab = Lab::start();
    let mut node = Node::start(&lab, &["--grace", "1"]);
    // Without the CNI plugin: the pod keeps its network, and has the device.
    let pods = ["team/idle", "team/busy"].map(|name| {
        let pod = node.admit(name);
        node.begin(&pod);
        pod
    });
    let [idle, busy] = &pods;
    let endpoint = node.endpoint(idle).expect("an endpoint");
    assert_eq!((&endpoint["isolation"], &endpoint["labels"]["kubernetes.io/pod"]), (&json!("none"), &json!("idle")));
    let mut program = busy.namespace.start_on(&busy.directory, &["librdmesh.so"], &["ibv_rc_pingpong", "-g", "1"]);
    program.wait_listening(18515);
    pods.iter().for_each(|pod| node.end(pod));
    until(LIMIT, "the endpoint of a pod that has ended", || node.endpoint(idle).is_none().then_some(()));
    // A device that is open is kept: the kubelet may only have started and not know its pods yet.
    assert!(node.endpoint(busy).is_some());
    program.kill();
    until(LIMIT, "the endpoint of a pod that has ended, and its program", || {
        node.endpoint(busy).is_none().then_some(())
    });
    // Their devices are free for other pods, with nothing of the ones before in them.
    let next = node.admit("team/next");
    assert!(pods.iter().any(|pod| pod.device == next.device));
    assert_eq!(node.endpoint(&next), None);
    node.begin(&next);
    assert!(node.endpoint(&next).is_some());
}

#[test]
fn a_container_that_a_slot_is_given_to_finds_nothing_of_the_one_before() {
    let lab = Lab::start();
    let mut node = Node::start(&lab, &[]);
    let before = node.admit("team/before");
    node.begin(&before);
    let mut program = before.namespace.start_on(&before.directory, &["librdmesh.so"], &["ibv_rc_pingpong", "-g", "1"]);
    program.wait_listening(18515);
    node.end(&before);
    let after = node.admit("other/after");
    assert_eq!((&after.device, node.endpoint(&after)), (&before.device, None));
    assert_eq!(lab.api("/v1/contexts"), json!([]));
    node.begin(&after);
    assert!(node.endpoint(&after).is_some());
}

#[test]
fn devices_follow_the_router_and_the_kubelet() {
    let lab = Lab::start();
    let mut node = Node::start(&lab, &[]);
    let two = node.order(&json!({ "do": "admit", "pod": "team/two", "resource": RESOURCE, "count": 2 }));
    assert_eq!(two["error"], "INVALID_ARGUMENT", "{two}");
    assert!(two["words"].as_str().is_some_and(|words| words.contains("ask for `rdmesh.dev/blue: 1`")), "{two}");
    let pod = node.admit("team/a");
    node.begin(&pod);
    // Another kubelet finds no plugins, and removes their sockets.
    node.kubelet.kill();
    node.kubelet = kubelet(node.folder.path());
    node.wait_healthy(4);
    lab.command(&["down"]).ok();
    node.wait_healthy(0);
    lab.up_again();
    node.wait_healthy(4);
    // The router has removed all endpoints; a container that starts again has one.
    assert_eq!(node.endpoint(&pod), None);
    let again = node.admit("team/a");
    node.begin(&again);
    assert!(node.endpoint(&again).is_some());
}
