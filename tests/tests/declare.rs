//! `rdmesh apply` and `rdmesh get`: a file says what there is to be.

use rdmesh_tests::{Lab, Options, Output};
use serde_json::Value;
use std::fs;

const SITE: &str = "
tenants:
- name: acme
  max_networks: 2
networks:
- name: blue
  tenant: acme
  subnets: [10.7.0.0/24]
groups:
- network: blue
  name: db
  members: [server]
  allow_from: [endpoint/client@7471]
policies:
- scope: endpoint/blue/server
  policy:
    rate: {bits_per_second: 1000000000}
    weight: 200
    quota: {qps: 7}
endpoints:
- network: blue
  name: server
  addresses: [10.7.0.9]
  isolation: none
";

#[test]
fn a_router_becomes_what_a_file_says_and_tells_it_again() {
    let lab = Lab::start_with(Options { rootless: true, ..Options::default() });
    let file = lab.dir().with_file_name("site.yaml");
    let path = file.to_str().expect("a path");
    let apply = |text: &str, more: &[&str]| -> Output {
        fs::write(&file, text).expect("a file");
        lab.command(&[&["apply", "-f", path], more].concat())
    };
    let planned = apply(SITE, &["--dry-run"]).ok().text;
    assert!(planned.contains("would create network `blue`") && planned.contains("created: 5"), "{planned}");
    assert_eq!(lab.api("/v1/tenants").as_array().map(Vec::len), Some(0), "nothing is done");

    let done = apply(SITE, &[]).ok().text;
    assert!(done.contains("created endpoint `blue/server`") && done.contains("created: 5, changed: 0"), "{done}");
    let made = &lab.api("/v1/endpoints")[0];
    assert_eq!(
        (&made["addresses"][0], &made["quota"]["qps"]),
        (&"10.7.0.9".into(), &7.into()),
        "the policy's quota holds"
    );
    let again = apply(SITE, &[]).ok().text;
    assert_eq!(again.trim(), "created: 0, changed: 0, removed: 0, unchanged: 5");
    // What is there reads as the file does, in both formats.
    for format in ["yaml", "json"] {
        let told = lab.command(&["get", "-o", format]).ok().text;
        let same = apply(&told, &[]).ok().text;
        assert!(same.starts_with("created: 0, changed: 0, removed: 0"), "{told}\n{same}");
    }
    let wide = lab.command(&["get", "-o", "wide", "groups", "networks"]).ok().text;
    assert!(wide.lines().count() == 3 && wide.contains("allow_from=endpoint/client@7471"), "{wide}");
    let groups = lab.command(&["get", "groups"]).ok().text;
    assert!(groups.contains("endpoint/client@7471") && !groups.contains("tenants"), "{groups}");

    let other = SITE.replace("1000000000", "2000000000").replace("max_networks: 2", "max_networks: 3");
    let changed: Value = serde_json::from_str(&apply(&other, &["--json"]).ok().text).expect("JSON");
    let names: Vec<_> = changed["changes"].as_array().into_iter().flatten().map(|change| &change["name"]).collect();
    assert_eq!(names, ["acme", "endpoint/blue/server"]);
    assert_eq!(changed["changes"][1]["differences"][0]["field"], "policy.rate.bits_per_second");
    assert!(lab.command(&["policy", "ls"]).ok().text.contains("2 Gbit/s"));

    // What is no longer in the file stays, unless its kind is pruned.
    let without_group = SITE.split("groups:").next().expect("the beginning");
    let stays = apply(without_group, &[]).ok().text;
    assert!(stays.contains("removed: 0"), "{stays}");
    let planned = apply(without_group, &["--prune", "groups,policies,endpoints", "--dry-run"]).ok().text;
    assert!(planned.contains("would remove endpoint `blue/server`") && planned.contains("removed: 3"), "{planned}");
    assert_eq!(lab.api("/v1/groups").as_array().map(Vec::len), Some(1), "nothing is done");
    let refused = apply("tenants: []", &["--prune", "networks"]);
    assert!(!refused.status.success() && refused.text.contains("still has endpoint `server`"), "{}", refused.text);
    let pruned = apply(without_group, &["--prune", "groups,policies,endpoints"]).ok().text;
    assert!(pruned.contains("removed group `blue/db`") && pruned.contains("removed: 3"), "{pruned}");
    let all = apply("tenants: []", &["--prune", "networks,tenants"]).ok().text;
    assert!(all.contains("removed network `blue`\nremoved tenant `acme`"), "{all}");
    assert_eq!(lab.command(&["get", "-o", "json"]).ok().text.trim(), "{}");
    assert!(!lab.command(&["network", "rm", "blue"]).status.success());
    apply(&other, &[]).ok();

    // Nothing is done of a file with something that cannot be.
    let refused = apply(&SITE.replace("10.7.0.0/24", "10.0.0.0/8").replace("weight: 200", "weight: 7"), &[]);
    assert!(!refused.status.success() && refused.text.contains("cannot be changed"), "{}", refused.text);
    let unknown = apply("tenants:\n- name: acme\n  max_network: 2\n", &[]);
    assert!(!unknown.status.success() && unknown.text.contains("max_network"), "{}", unknown.text);
    assert!(lab.command(&["policy", "ls"]).ok().text.contains("2 Gbit/s"));
}
