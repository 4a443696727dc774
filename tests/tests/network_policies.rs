//! NetworkPolicies of Kubernetes for RDMA: `rdmesh-network-policies`, stock programs on endpoints with pods' labels, and
//! `tests/programs/apiserver.py` as the API server.

use rdmesh_tests::kubernetes::ApiServer;
use rdmesh_tests::{Lab, Output, Program, product, until};
use serde_json::{Value, json};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// A router, an API server, and the program between them.
struct Site {
    lab: Lab,
    server: ApiServer,
    _program: Program,
}

impl Site {
    fn start() -> Self {
        let (lab, server) = (Lab::start(), ApiServer::start());
        let mut program = Command::new(product("rdmesh-network-policies"));
        program.arg("--state-dir").arg(lab.dir()).env("KUBECONFIG", server.kubeconfig());
        Self { lab, server, _program: Program::start(program) }
    }

    fn set(&mut self, object: Value) {
        self.server.set(object);
    }

    fn remove(&mut self, object: Value) {
        self.server.remove(object);
    }

    /// A pod of namespace `team` with an endpoint of its name.
    fn pod(&mut self, name: &str, app: &str) {
        let labels = ["kubernetes.io/namespace=team".to_owned(), format!("kubernetes.io/pod={name}")];
        let add =
            ["endpoint", "add", name, "--net", "blue", "--namespace", "--label", &labels[0], "--label", &labels[1]];
        self.lab.command(&add).ok();
        self.set(json!({
            "kind": "Pod",
            "metadata": { "name": name, "namespace": "team", "labels": { "app": app } },
            "spec": { "containers": [{ "name": "main" }] },
        }));
    }

    /// Waits until the groups have these members, by the ends of the groups' names.
    fn wait_for_groups(&self, wanted: &[(&str, &[&str])]) {
        until(LIMIT, &format!("the groups are {wanted:?}"), || {
            let groups = self.lab.api("/v1/groups");
            let has = |(end, members): &(&str, &[&str])| {
                let is_it = |group: &&Value| group["name"].as_str().is_some_and(|name| name.ends_with(end));
                let group = groups.as_array()?.iter().find(is_it)?;
                (group["members"] == json!(members)).then_some(())
            };
            let count = groups.as_array().map_or(0, Vec::len);
            (count == wanted.len() && wanted.iter().all(|group| has(group).is_some())).then_some(())
        });
    }

    /// Starts a program in a pod, on its endpoint.
    fn start_in(&self, pod: &str, command: &[&str]) -> Program {
        let directory = self.lab.dir().join(format!("endpoints/blue.{pod}"));
        let namespace = self.lab.dir().join(format!("netns/blue.{pod}"));
        let mut inside = Command::new("nsenter");
        inside.arg(format!("--net={}", namespace.display())).args(command);
        inside.env("RDMESH_ENDPOINT", &directory).env("LD_PRELOAD", directory.join("librdmesh.so"));
        Program::start(inside)
    }

    fn address(&self, pod: &str) -> String {
        let endpoint = self.lab.api(&format!("/v1/endpoints/blue/{pod}"));
        endpoint["addresses"][0].as_str().expect("an address").to_owned()
    }

    /// Has a program of pod `client` exchange messages with one of `server`.
    fn exchange(&self, server: &str, client: &str) -> Output {
        self.exchange_within(60, server, client)
    }

    /// The same, ended after some seconds: packets that a policy forbids are dropped.
    fn exchange_within(&self, seconds: u32, server: &str, client: &str) -> Output {
        let mut waiting = self.start_in(server, &["ibv_rc_pingpong", "-g", "1"]);
        waiting.wait_listening(18515);
        let (limit, address) = (seconds.to_string(), self.address(server));
        let command = ["timeout", &limit, "ibv_rc_pingpong", "-g", "1", &address];
        let output = self.start_in(client, &command).finish(LIMIT);
        waiting.kill();
        output
    }
}

fn policy(spec: &Value) -> Value {
    json!({ "kind": "NetworkPolicy", "metadata": { "name": "only-web", "namespace": "team" }, "spec": spec })
}

#[test]
fn a_policy_holds_for_rdma_as_long_as_it_is_there() {
    let mut site = Site::start();
    site.set(json!({ "kind": "Namespace", "metadata": { "name": "team" } }));
    for (name, app) in [("db", "db"), ("web", "web"), ("other", "other")] {
        site.pod(name, app);
    }
    site.exchange("db", "other").ok();
    // A connection that is allowed all the time goes on while policies come and go.
    let long = ["ibv_rc_pingpong", "-g", "1", "-n", "100000000", "-p", "18600"];
    let mut serving = site.start_in("db", &long);
    serving.wait_listening(18600);
    let mut asking = site.start_in("web", &[&long[..], &[&site.address("db")]].concat());
    let before = site.lab.messages();
    until(LIMIT, "both are connected", || (site.lab.messages() > before + 1000).then_some(()));
    let only_web = policy(&json!({
        "podSelector": { "matchLabels": { "app": "db" } },
        "ingress": [{ "from": [{ "podSelector": { "matchLabels": { "app": "web" } } }] }],
    }));
    site.set(only_web.clone());
    site.wait_for_groups(&[("only-web", &["db"]), ("np-open-out", &["db"])]);
    site.exchange("db", "web").ok();
    let refused = site.exchange_within(3, "db", "other");
    assert!(!refused.status.success(), "{}", refused.text);
    // A pod that becomes a web server may connect, and a new one as soon as it is there.
    site.set(json!({
        "kind": "Pod",
        "metadata": { "name": "other", "namespace": "team", "labels": { "app": "web" } },
        "spec": { "containers": [{ "name": "main" }] },
    }));
    until(LIMIT, "the other pod may connect", || {
        let groups = site.lab.api("/v1/groups");
        groups.to_string().contains("endpoint/other").then_some(())
    });
    site.exchange("db", "other").ok();
    site.remove(only_web);
    site.wait_for_groups(&[]);
    site.exchange("other", "db").ok();
    assert!(serving.is_running() && asking.is_running(), "{} {}", serving.text(), asking.text());
}

/// More rules than a group may have: nobody may connect, where no group at all would let everybody.
#[test]
fn the_pods_of_a_policy_that_no_group_can_hold_are_closed() {
    let mut site = Site::start();
    site.set(json!({ "kind": "Namespace", "metadata": { "name": "team" } }));
    ["db", "web"].into_iter().for_each(|name| site.pod(name, name));
    let block = |n: u32| json!({ "ipBlock": { "cidr": format!("10.{}.{}.0/24", 100 + n / 250, n % 250) } });
    let from: Vec<Value> = (0..1100).map(block).collect();
    site.set(policy(&json!({
        "podSelector": { "matchLabels": { "app": "db" } },
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{ "from": from }, { "from": [{ "podSelector": {} }] }],
        "egress": [{}],
    })));
    site.wait_for_groups(&[("only-web", &["db"])]);
    assert!(!site.exchange_within(3, "db", "web").status.success());
    assert_eq!(site.lab.api("/v1/groups")[0]["allow_from"], json!([]));
}

#[test]
fn groups_of_operators_stay_and_are_not_needed() {
    let mut site = Site::start();
    site.set(json!({ "kind": "Namespace", "metadata": { "name": "team" } }));
    site.pod("db", "db");
    site.lab.command(&["group", "set", "own", "--net", "blue", "--member", "db", "--from", "any", "--to", "any"]).ok();
    let deny = policy(&json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"] }));
    site.set(deny.clone());
    site.wait_for_groups(&[("only-web", &["db"]), ("own", &["db"])]);
    site.remove(deny);
    site.wait_for_groups(&[("own", &["db"])]);
}
