//! Claims of pods of Kubernetes: `rdmesh-dra-driver`, with `tests/programs/apiserver.py` and the test itself as the scheduler, and
//! `tests/programs/kubelet.py` as the kubelet.

use rdmesh_tests::kubernetes::{ApiServer, Pod, kubelet};
use rdmesh_tests::{Lab, Namespace, Program, product, until};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);
const DRIVER: &str = "rdmesh.dev";

/// A node of a cluster, with the driver.
struct Node<'a> {
    lab: &'a Lab,
    /// Directory of the kubelet, in which CDI files are, too.
    folder: TempDir,
    server: ApiServer,
    kubelet: Program,
    _driver: Program,
}

/// A ResourceClaim that the scheduler has allocated a device of network `blue` to.
struct Claim {
    name: &'static str,
    uid: &'static str,
    device: String,
}

impl<'a> Node<'a> {
    fn start(lab: &'a Lab, count: usize) -> Self {
        let (folder, mut server) = (tempfile::tempdir().expect("a temporary folder"), ApiServer::start());
        server.set(json!({ "kind": "Node", "metadata": { "name": "node-1", "uid": "n1" } }));
        let mut driver = Command::new(product("rdmesh-dra-driver"));
        driver.arg(format!("--network=blue:{count}")).args(["--node", "node-1", "--kubelet-dir"]).arg(folder.path());
        driver.arg("--cdi-dir").arg(folder.path().join("cdi")).arg("--state-dir").arg(lab.dir());
        driver.env("KUBECONFIG", server.kubeconfig());
        let (kubelet, driver) = (kubelet(folder.path()), Program::start(driver));
        let mut node = Self { lab, folder, server, kubelet, _driver: driver };
        node.wait_for_devices(count);
        node
    }

    /// Waits until the API server knows so many devices of the node.
    fn wait_for_devices(&mut self, count: usize) {
        until(LIMIT, &format!("{count} devices of the node"), || (self.devices().len() == count).then_some(()));
    }

    /// Devices of the node, as the API server knows them.
    fn devices(&mut self) -> Vec<Value> {
        let slices = self.server.list("ResourceSlice");
        slices.iter().flat_map(|slice| slice["spec"]["devices"].as_array().cloned().unwrap_or_default()).collect()
    }

    /// Allocates a device to a claim, for a pod of namespace `team`.
    fn allocate(&mut self, name: &'static str, uid: &'static str, pod: &str, device: &str) -> Claim {
        let result = json!({ "request": "net", "driver": DRIVER, "pool": "node-1/blue", "device": device });
        self.server.set(json!({
            "kind": "ResourceClaim",
            "metadata": { "name": name, "namespace": "team", "uid": uid },
            "spec": {},
            "status": {
                "allocation": { "devices": { "results": [result] } },
                "reservedFor": [{ "resource": "pods", "name": pod, "uid": pod }],
            },
        }));
        Claim { name, uid, device: device.to_owned() }
    }

    fn order(&mut self, what: &str, claim: &Claim, pod: Option<&str>) -> Value {
        let claim = json!({ "namespace": "team", "name": claim.name, "uid": claim.uid });
        let mut order = json!({ "do": what, "driver": DRIVER, "claim": claim });
        if let Some(pod) = pod {
            order["pod"] = json!(pod);
        }
        self.kubelet.say(&order.to_string());
        let line = self.kubelet.next_line(LIMIT);
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// Prepares a claim for a pod. Returns the pod, as a runtime makes it that reads the CDI file.
    fn prepare<'p>(&mut self, claim: &Claim, name: &'p str) -> Pod<'p> {
        let prepared = self.order("prepare", claim, name.split('/').nth(1));
        assert_eq!(prepared["error"], "", "{prepared}");
        let device = &prepared["devices"][0];
        assert_eq!(
            *device,
            json!({
                "requests": ["net"],
                "pool": "node-1/blue",
                "device": claim.device,
                "cdi": [format!("rdmesh.dev/claim={}-blue-{}", claim.uid, claim.device)],
            })
        );
        let text = fs::read_to_string(self.file(claim)).expect("a CDI file");
        let file: Value = serde_json::from_str(&text).expect("JSON");
        let edits = &file["devices"][0]["containerEdits"];
        assert_eq!(edits["env"], json!(["LD_PRELOAD=/run/rdmesh/endpoint/librdmesh.so"]));
        assert_eq!(edits["mounts"][0]["containerPath"], "/run/rdmesh/endpoint");
        let directory = PathBuf::from(edits["mounts"][0]["hostPath"].as_str().expect("a path"));
        assert!(directory.is_dir(), "{file}");
        Pod { name, namespace: Namespace::new(), device: claim.device.clone(), directory }
    }

    fn file(&self, claim: &Claim) -> PathBuf {
        self.folder.path().join(format!("cdi/rdmesh.dev-claim-{}.json", claim.uid))
    }

    fn endpoint(&self, claim: &Claim) -> Option<Value> {
        let all = self.lab.api("/v1/endpoints");
        all.as_array().expect("a list").iter().find(|one| one["name"] == claim.device.as_str()).cloned()
    }

    fn start_in(&self, pod: &Pod<'_>, command: &[&str]) -> Program {
        pod.namespace.start_on(&pod.directory, &["librdmesh.so"], command)
    }
}

#[test]
fn pods_have_the_endpoints_that_they_claim() {
    let lab = Lab::start();
    let mut node = Node::start(&lab, 4);
    let devices = node.devices();
    assert_eq!(devices[0]["attributes"], json!({ "network": { "string": "blue" } }));
    let device = |at: usize| devices[at]["name"].as_str().expect("a name").to_owned();
    let claims =
        [node.allocate("first", "c1", "server", &device(0)), node.allocate("second", "c2", "client", &device(1))];
    let [server, client] =
        [(&claims[0], "team/server"), (&claims[1], "team/client")].map(|(claim, name)| node.prepare(claim, name));
    let labels = node.endpoint(&claims[0]).expect("an endpoint")["labels"].clone();
    assert_eq!(labels, json!({ "kubernetes.io/namespace": "team", "kubernetes.io/pod": "server" }));
    // The pods' own network, with the endpoints' addresses beside it.
    for pod in [&server, &client] {
        let result = pod.cni("ADD", &lab, node.folder.path());
        assert_eq!(result["interfaces"][1]["name"], "rdmesh0", "{result}");
        pod.cni("CHECK", &lab, node.folder.path());
    }
    let ip = node.endpoint(&claims[0]).expect("an endpoint")["addresses"][0].as_str().expect("an address").to_owned();
    let mut pong = node.start_in(&server, &["ibv_rc_pingpong", "-g", "1", "-c"]);
    pong.wait_listening(18515);
    node.start_in(&client, &["ibv_rc_pingpong", "-g", "1", "-c", &ip]).finish(LIMIT).ok();
    pong.finish(LIMIT).ok();
    // Another pod with the same claim has the device, and leaves the address where it is.
    let other = node.prepare(&claims[0], "team/other");
    assert_eq!(other.cni("ADD", &lab, node.folder.path()), other.network_before());
    assert_eq!(node.endpoint(&claims[0]).expect("an endpoint")["addresses"][0], ip.as_str());
    // That ends first: the other one has the device still.
    server.cni("DEL", &lab, node.folder.path());
    let endpoint = node.endpoint(&claims[0]).expect("an endpoint");
    assert_eq!((&endpoint["isolation"], &endpoint["labels"]["kubernetes.io/pod"]), (&json!("none"), &json!("other")));
    node.start_in(&other, &["ibv_devinfo"]).finish(LIMIT).ok();
    for claim in &claims {
        assert_eq!(node.order("unprepare", claim, None), json!({ "error": "" }));
        assert_eq!((node.endpoint(claim), node.file(claim).exists()), (None, false));
        assert_eq!(node.order("unprepare", claim, None), json!({ "error": "" }));
    }
}

#[test]
fn a_claim_finds_nothing_of_the_one_before() {
    let lab = Lab::start();
    let mut node = Node::start(&lab, 1);
    let device = node.devices()[0]["name"].as_str().expect("a name").to_owned();
    let before = node.allocate("before", "c1", "before", &device);
    let pod = node.prepare(&before, "team/before");
    let mut program = node.start_in(&pod, &["ibv_rc_pingpong", "-g", "1"]);
    program.wait_listening(18515);
    // Its pod is there still: prepared again, as after a start of the kubelet, nothing changes.
    let address = node.endpoint(&before).expect("an endpoint")["addresses"][0].clone();
    node.prepare(&before, "team/before");
    assert_eq!(node.endpoint(&before).expect("an endpoint")["addresses"][0], address);
    assert_eq!(lab.api("/v1/contexts").as_array().map(Vec::len), Some(1));
    // The kubelet has lost it, and the device is another claim's.
    let after = node.allocate("after", "c2", "after", &device);
    let pod = node.prepare(&after, "team/after");
    assert_eq!((lab.api("/v1/contexts"), node.file(&before).exists()), (json!([]), false));
    program.kill();
    node.start_in(&pod, &["ibv_devinfo"]).finish(LIMIT).ok();
    // Its end comes late, and takes nothing from the claim that has the device now.
    assert_eq!(node.order("unprepare", &before, None), json!({ "error": "" }));
    assert!(node.endpoint(&after).is_some() && node.file(&after).exists());
}

#[test]
fn a_claim_that_cannot_be_prepared_says_why() {
    let lab = Lab::start();
    let mut node = Node::start(&lab, 1);
    let device = node.devices()[0]["name"].as_str().expect("a name").to_owned();
    let foreign = node.allocate("foreign", "c1", "a", "claim-000000-1");
    let missing = Claim { name: "missing", uid: "c2", device: device.clone() };
    let other = node.allocate("replaced", "c3", "a", &device);
    let replaced = Claim { uid: "c4", ..other };
    for (claim, words) in [
        (&foreign, "`node-1/blue/claim-000000-1` is no device of node `node-1`"),
        (&missing, "NotFound"),
        (&replaced, "another one by now"),
    ] {
        let answer = node.order("prepare", claim, Some("a"));
        assert!(answer["error"].as_str().is_some_and(|error| error.contains(words)), "{answer}");
        assert!(!node.file(claim).exists());
    }
    assert_eq!(lab.api("/v1/endpoints"), json!([]));
}

#[test]
fn pools_follow_the_router() {
    let lab = Lab::start();
    let mut node = Node::start(&lab, 200);
    let slices = node.server.list("ResourceSlice");
    let first = &slices[0];
    assert_eq!(first["metadata"]["ownerReferences"][0]["uid"], "n1");
    assert_eq!(first["spec"]["pool"], json!({ "generation": 1, "name": "node-1/blue", "resourceSliceCount": 2 }));
    assert_eq!((slices.len(), &first["spec"]["nodeName"]), (2, &json!("node-1")));
    lab.command(&["down"]).ok();
    node.wait_for_devices(0);
    lab.up_again();
    node.wait_for_devices(200);
    let pool = json!({ "generation": 3, "name": "node-1/blue", "resourceSliceCount": 2 });
    assert!(node.server.list("ResourceSlice").iter().all(|slice| slice["spec"]["pool"] == pool));
}
