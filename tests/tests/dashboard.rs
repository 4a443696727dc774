//! `docs/grafana.json`: every query of the dashboard, asked of a Prometheus that reads a router.

use rdmesh_tests::{Endpoint, Hosts, Options, Program, helper, root, until};
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// Shows what does not happen here.
const EMPTY: &str = "Refusals";

fn dashboard() -> Value {
    let text = std::fs::read_to_string(root().join("docs/grafana.json")).expect("the dashboard");
    serde_json::from_str(&text).expect("JSON")
}

/// Panels that ask for something.
fn panels(dashboard: &Value) -> impl Iterator<Item = &Value> {
    dashboard["panels"].as_array().expect("panels").iter().filter(|panel| panel["type"] != "row")
}

fn expressions(panel: &Value) -> impl Iterator<Item = &str> {
    panel["targets"].as_array().expect("targets").iter().map(|target| target["expr"].as_str().expect("a query"))
}

/// Names of metrics in a text.
fn metrics(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("rdmesh_")).collect()
}

#[test]
fn panels_have_their_places_and_known_metrics() {
    let page = std::fs::read_to_string(root().join("docs/metrics.md")).expect("the page of metrics");
    let (documented, dashboard) = (metrics(&page), dashboard());
    let mut taken = BTreeSet::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|name| panel["gridPos"][name].as_u64().expect("a number"));
        assert!(x + w <= 24, "{}", panel["title"]);
        let cells = (y..y + h).flat_map(|row| (x..x + w).map(move |column| (row, column)));
        cells.for_each(|cell| assert!(taken.insert(cell), "{} lies on another panel", panel["title"]));
    }
    let ids: BTreeSet<_> = dashboard["panels"].as_array().expect("panels").iter().map(|p| p["id"].as_u64()).collect();
    assert_eq!(ids.len(), dashboard["panels"].as_array().map_or(0, Vec::len));
    for panel in panels(&dashboard) {
        assert!(panel["description"].as_str().is_some_and(|text| !text.is_empty()), "{}", panel["title"]);
        for metric in expressions(panel).flat_map(metrics) {
            assert!(documented.contains(metric), "{}: {metric}", panel["title"]);
        }
    }
}

#[test]
fn every_query_is_answered() {
    let up = ["--metrics", "127.0.0.1:9469"].map(str::to_owned).to_vec();
    let hosts = Hosts::start_with(1500, Options { up, ..Options::default() });
    let many = helper("many").into_os_string();
    let mut holder = hosts.lab(0).start_in(&Endpoint::at("holder", "blue", "10.7.0.9"), &[many, "10".into()]);
    while holder.next_line(LIMIT) != "open" {}
    let prometheus = Prometheus::start(hosts.netns(0));
    // Rates need two samples.
    until(LIMIT, "two samples", || {
        let samples = prometheus.ask("count_over_time(rdmesh_endpoints[1m]) >= 2");
        (samples["data"]["result"].as_array().map_or(0, Vec::len) == 1).then_some(())
    });
    let dashboard = dashboard();
    let mut empty = Vec::new();
    for panel in panels(&dashboard) {
        let mut has_series = false;
        for expression in expressions(panel) {
            let query = expression.replace("$__rate_interval", "1m");
            let query = query.replace("$instance", ".*").replace("$network", "blue|red");
            assert!(!query.contains('$'), "an unknown variable: {query}");
            let answer = prometheus.ask(&query);
            assert_eq!(answer["status"], "success", "{query}: {answer}");
            has_series |= answer["data"]["result"].as_array().is_some_and(|series| !series.is_empty());
        }
        if !has_series {
            empty.push(panel["title"].as_str().expect("a title"));
        }
    }
    assert_eq!(empty, [EMPTY], "panels without series");
}

/// A Prometheus that reads the router of a namespace, in which it runs.
struct Prometheus {
    netns: String,
    _program: Program,
    _directory: tempfile::TempDir,
}

impl Prometheus {
    fn start(netns: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let scrape = "scrape_interval: 1s, static_configs: [ { targets: [ '127.0.0.1:9469' ] } ]";
        let config = format!("scrape_configs: [ {{ job_name: rdmesh, {scrape} }} ]\n");
        let file = directory.path().join("prometheus.yml");
        std::fs::write(&file, config).expect("the directory is ours");
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{netns}")).args(["--", "prometheus"]);
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!("--storage.tsdb.path={}", directory.path().join("data").display()));
        command.arg(format!("--web.listen-address={ADDRESS}"));
        let mut program = Program::start(command);
        program.wait_listening(9090);
        Self { netns: netns.to_owned(), _program: program, _directory: directory }
    }

    /// Its answer to a query.
    fn ask(&self, query: &str) -> Value {
        let mut curl = Command::new("nsenter");
        curl.arg(format!("--net=/run/netns/{}", self.netns)).args(["--", "curl", "-sS", "--max-time", "20", "-G"]);
        curl.args(["--data-urlencode", &format!("query={query}"), &format!("http://{ADDRESS}/api/v1/query")]);
        let text = Program::start(curl).finish(LIMIT).ok().text;
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{query}: {text}"))
    }
}

const ADDRESS: &str = "127.0.0.1:9090";
