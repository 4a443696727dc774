//! packaging/kubernetes/daemonset.yaml: its containers on a node, by Docker in the kubelet's place.

use rdmesh_tests::docker::{Container, Docker};
use rdmesh_tests::kubernetes::{Pod, kubelet, order};
use rdmesh_tests::{Namespace, Program, SharedFolder, product, root, until};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(120);
const RESOURCE: &str = "rdmesh.dev/default";
const PRIVILEGE: [&str; 10] = [
    "--cap-drop=ALL",
    "--cap-add=SYS_ADMIN",
    "--cap-add=NET_ADMIN",
    "--cap-add=SYS_PTRACE",
    "--cap-add=DAC_OVERRIDE",
    "--cap-add=CHOWN",
    "--cap-add=KILL",
    "--security-opt=seccomp=unconfined",
    "--security-opt=apparmor=unconfined",
    "--security-opt=systempaths=unconfined",
];
/// The list of plugins of a cluster's network.
const LIST: &str = r#"{ "cniVersion": "1.0.0", "name": "pods", "plugins": [ { "type": "bridge" } ] }"#;

/// The objects in the file, and a node's directories, which are elsewhere than on a real one.
struct Node {
    settings: Value,
    pod: Value,
    folder: TempDir,
    run: SharedFolder,
}

impl Node {
    fn new() -> Self {
        let (folder, run) = (tempfile::tempdir().expect("a temporary folder"), SharedFolder::mount());
        let path = |name: &str| {
            let path = folder.path().join(name);
            fs::create_dir(&path).expect("a folder");
            path.display().to_string()
        };
        let text = fs::read_to_string(root().join("packaging/kubernetes/daemonset.yaml")).expect("the file is there");
        let text = text.replace("/var/lib/kubelet", &path("kubelet")).replace("/run/rdmesh", &run.path());
        let text = text.replace("/opt/cni/bin", &path("bin")).replace("/etc/cni/net.d", &path("net.d"));
        let objects: Vec<Value> = serde_saphyr::from_multiple(&text).expect("it is YAML");
        let object = |kind: &str| objects.iter().find(|object| object["kind"] == kind).expect("it is there").clone();
        let (settings, pod) =
            (object("ConfigMap")["data"].clone(), object("DaemonSet")["spec"]["template"]["spec"].clone());
        Self { settings, pod, folder, run }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts the container `name` of the pod.
    fn start<'d>(&self, docker: &'d Docker, name: &str) -> Container<'d> {
        let container =
            items(&self.pod["containers"]).find(|container| container["name"] == name).expect("it is there");
        let mut options = vec![format!("--env=RDMESH_STATE={}", self.run.path())];
        for (field, option) in [("hostNetwork", "--network=host"), ("hostPID", "--pid=host")] {
            options.extend((self.pod[field] == true).then(|| option.to_owned()));
        }
        let security = &container["securityContext"];
        if security["privileged"] == true {
            // The machine may have fewer privileges to give than all; these are what it is for.
            options.extend(PRIVILEGE.iter().map(|option| (*option).to_owned()));
        }
        options.extend(items(&security["capabilities"]["drop"]).map(|it| format!("--cap-drop={}", word(it))));
        options.extend(items(&container["volumeMounts"]).filter_map(|mount| self.mount(mount)));
        options.extend(items(&container["env"]).filter_map(|variable| self.variable(variable)));
        let entry = items(&container["command"]).map(|it| format!("--entrypoint={}", word(it)));
        options.extend(entry);
        options.push(word(&container["image"]).to_owned());
        // The tunnel's port would be the whole machine's here.
        let arguments = items(&container["args"]).map(|it| word(it).replace("$(NODE_NAME)", "node1"));
        options.extend(arguments.filter(|argument| !["--underlay", "$(NODE_ADDRESS)"].contains(&&**argument)));
        docker.start_image(&format!("rdmesh-test-{name}"), &options)
    }

    fn mount(&self, mount: &Value) -> Option<String> {
        let volume = items(&self.pod["volumes"]).find(|volume| volume["name"] == mount["name"]).expect("a volume");
        let host = match (&volume["hostPath"]["path"], &mount["subPath"]) {
            (Value::String(path), _) => path.clone(),
            (_, Value::String(key)) => {
                let file = self.path(key);
                fs::write(&file, word(&self.settings[key])).expect("a file");
                file.display().to_string()
            }
            _ => {
                assert_eq!(volume["secret"]["optional"], true, "nothing else is left out");
                return None;
            }
        };
        let propagation = if mount["mountPropagation"] == "Bidirectional" { ":rshared" } else { "" };
        Some(format!("--volume={host}:{}{propagation}", word(&mount["mountPath"])))
    }

    fn variable(&self, variable: &Value) -> Option<String> {
        let source = &variable["valueFrom"];
        let key = source["configMapKeyRef"]["key"].as_str()?;
        Some(format!("--env={}={}", word(&variable["name"]), word(&self.settings[key])))
    }
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no word"))
}

/// Nothing of rdmesh is installed on the node.
#[test]
fn pods_have_endpoints_on_a_node_with_the_daemon_sets_pod() {
    let Some(docker) = Docker::with_routers_image(&["/usr/bin/ibv_devinfo"]) else { return };
    let node = Node::new();
    let mut kubelet = kubelet(&node.path("kubelet"));
    let list = node.path("net.d").join("10-pods.conflist");
    fs::write(&list, LIST).expect("a file");
    let router = node.start(&docker, "router");
    until(LIMIT, "the router serves", || router.log().contains("serving socket").then_some(()));
    let plugin = node.start(&docker, "device-plugin");
    let devices = json!({ "do": "devices", "resource": RESOURCE });
    until(LIMIT, "devices", || (order(&mut kubelet, &devices)["healthy"] == 256).then_some(()));
    let part = until(LIMIT, "the plugin is in the list", || {
        let list: Value = serde_json::from_str(&fs::read_to_string(&list).ok()?).ok()?;
        items(&list["plugins"]).find(|plugin| plugin["type"] == "rdmesh-cni").cloned()
    });
    // The kubelet admits a pod; the runtime runs the network's plugins, as they are in the list, and then the container.
    let given = order(&mut kubelet, &json!({ "do": "admit", "pod": "team/a", "resource": RESOURCE }));
    let directory =
        PathBuf::from(given["mounts"][0]["host"].as_str().unwrap_or_else(|| panic!("{given}; {}", plugin.log())));
    let device = word(&given["device"]).to_owned();
    let pod = Pod { name: "team/a", namespace: Namespace::new(), device, directory };
    let result = pod.cni_by(&node.path("bin").join("rdmesh-cni"), "ADD", &part);
    assert_eq!(result["interfaces"][1]["name"], "rdmesh0", "{result}");
    assert_eq!(order(&mut kubelet, &json!({ "do": "start", "pod": "team/a" })), json!({}));
    let sees_device = || {
        let program = pod.namespace.start_on(&pod.directory, &["librdmesh.so"], &["ibv_devinfo"]);
        program.finish(LIMIT).text.contains("PORT_ACTIVE")
    };
    assert!(sees_device());
    // As when the image of the next version comes.
    router.restart();
    let endpoints = || router.execute(&["rdmesh", "endpoint", "ls", "--json"]);
    until(LIMIT, "the next router serves", || endpoints().status.success().then_some(()));
    let kept: Value = serde_json::from_str(&endpoints().ok().text).expect("JSON");
    assert!(
        items(&kept).any(|endpoint| endpoint["name"] == *pod.device),
        "{kept}; the router: {}; the plugin: {}",
        router.log(),
        plugin.log()
    );
    assert!(sees_device());
    let mut down = Command::new(product("rdmesh"));
    down.args(["--state-dir", &node.run.path(), "down"]);
    Program::start(down).finish(LIMIT).ok();
}
