//! Parts of a cluster of Kubernetes: `tests/programs/kubelet.py`, `tests/programs/apiserver.py`, and pods, which are network namespaces.

use crate::{Lab, Namespace, Program, product, root};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);

/// A pod with one container, as the kubelet creates it.
pub struct Pod<'a> {
    /// `NAMESPACE/NAME`.
    pub name: &'a str,
    /// Stands for all of the pod's namespaces.
    pub namespace: Namespace,
    /// Its device, which is an endpoint's name.
    pub device: String,
    /// Directory of the endpoint on the host.
    pub directory: PathBuf,
}

impl Pod<'_> {
    /// Has the CNI plugin do something for the pod, behind a plugin that has made `eth0`, on the node with this kubelet.
    pub fn cni(&self, command: &str, lab: &Lab, kubelet: &Path) -> Value {
        self.cni_by(&product("rdmesh-cni"), command, &json!({ "stateDir": lab.dir(), "kubeletDir": kubelet }))
    }

    /// The same by this program, with its part of a list of plugins.
    pub fn cni_by(&self, program: &Path, command: &str, part: &Value) -> Value {
        let (namespace, name) = self.name.split_once('/').expect("a namespace and a name");
        let mut config =
            json!({ "cniVersion": "1.1.0", "name": "pods", "type": "rdmesh-cni", "prevResult": self.network_before() });
        for (field, value) in part.as_object().expect("an object") {
            config[field] = value.clone();
        }
        let mut plugin = Command::new(program);
        plugin.env_clear().env("CNI_COMMAND", command).env("CNI_CONTAINERID", self.name.replace('/', "-"));
        plugin.env("CNI_IFNAME", "eth0").env("CNI_NETNS", self.namespace.file());
        plugin.env("CNI_ARGS", format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name}"));
        let mut child = plugin.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the plugin starts");
        let mut input = child.stdin.take().expect("a pipe");
        input.write_all(config.to_string().as_bytes()).expect("the plugin reads");
        drop(input);
        let output = child.wait_with_output().expect("the plugin ends");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{command}: {text}");
        if text.is_empty() { Value::Null } else { serde_json::from_str(&text).expect("a result") }
    }

    /// The result of the plugin that has made the pod's own network.
    pub fn network_before(&self) -> Value {
        json!({ "cniVersion": "1.1.0", "interfaces": [{ "name": "eth0", "sandbox": self.namespace.file() }], "dns": {} })
    }
}

/// Has a kubelet do something; returns its answer.
pub fn order(kubelet: &mut Program, order: &Value) -> Value {
    kubelet.say(&order.to_string());
    let line = kubelet.next_line(LIMIT);
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

/// Starts a kubelet whose directory is `folder`.
pub fn kubelet(folder: &Path) -> Program {
    let mut command = Command::new("/usr/bin/python3");
    command.arg(root().join("tests/programs/kubelet.py")).arg(folder);
    Program::start(command)
}

/// An API server, and a kubeconfig for it.
pub struct ApiServer {
    program: Program,
    folder: TempDir,
}

impl ApiServer {
    /// Starts one without objects.
    pub fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = Command::new("/usr/bin/python3");
        command.arg(root().join("tests/programs/apiserver.py"));
        let mut program = Program::start(command);
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{ "name": "test", "cluster": { "server": format!("http://127.0.0.1:{}", program.next_line(LIMIT)) } }],
            "users": [{ "name": "test", "user": {} }],
            "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }],
        });
        fs::write(folder.path().join("kubeconfig"), config.to_string()).expect("the folder is ours");
        Self { program, folder }
    }

    /// File for `KUBECONFIG`.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// The object is there, as it is now.
    pub fn set(&mut self, object: Value) {
        self.order(&json!({ "set": object }));
    }

    /// The object is there no more.
    pub fn remove(&mut self, object: Value) {
        self.order(&json!({ "remove": object }));
    }

    /// Objects of a kind.
    pub fn list(&mut self, kind: &str) -> Vec<Value> {
        self.program.say(&json!({ "list": kind }).to_string());
        serde_json::from_str(&self.program.next_line(LIMIT)).expect("a list")
    }

    fn order(&mut self, order: &Value) {
        self.program.say(&order.to_string());
        assert_eq!(self.program.next_line(LIMIT), "");
    }
}
