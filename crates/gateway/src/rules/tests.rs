//! Rules, as they are for a router with networks of two tenants.

use super::*;
use serde_json::json;

fn networks() -> Vec<Network> {
    let network = |name: &str, tenant: &str| {
        let mut network = Network::around(name.parse().expect("a name"), 7, &[]);
        network.tenant = tenant.parse().expect("a name");
        network
    };
    vec![network("blue", "acme"), network("green", "acme"), network("red", "other")]
}

fn acme() -> Role {
    Role::Tenant("acme".parse().expect("a name"))
}

fn ask(role: &Role, method: &str, path: &str, body: &Value) -> Result<Order, Refusal> {
    let method = method.parse().expect("a method");
    decide(role, &method, path, body.to_string().into_bytes(), &networks())
}

#[track_caller]
fn assert_forbidden(role: &Role, method: &str, path: &str, body: &Value) {
    let decided = ask(role, method, path, body);
    assert!(matches!(decided, Err(Refusal::Forbidden(_))), "{role:?} {method} {path} {body}: {decided:?}");
}

#[track_caller]
fn assert_allowed(role: &Role, method: &str, path: &str, body: &Value, seen: Seen) {
    match ask(role, method, path, body) {
        Ok(order) => assert_eq!(order.seen, seen, "{role:?} {method} {path}"),
        refused => panic!("{role:?} {method} {path} {body}: {refused:?}"),
    }
}

#[test]
fn readers_read() {
    for path in ["/v1/status", "/v1/endpoints", "/metrics", "/v1/events/7"] {
        assert_allowed(&Role::Reader, "GET", path, &Value::Null, Seen::All);
    }
    for (method, path) in [
        ("POST", "/v1/shutdown"),
        ("DELETE", "/v1/endpoints/blue/a"),
        ("PUT", "/v1/policies"),
        ("GET", "/v1/captures/3"),
        ("HEAD", "/v1/captures/3"),
    ] {
        assert_forbidden(&Role::Reader, method, path, &Value::Null);
    }
}

#[test]
fn admins_do_everything_but_for_what_goes_with_a_process() {
    assert_allowed(&Role::Admin, "POST", "/v1/shutdown", &Value::Null, Seen::All);
    assert_allowed(&Role::Admin, "POST", "/v1/endpoints", &json!({"name": "a", "network": "red"}), Seen::All);
    let with_process = json!({"name": "a", "network": "red", "lifetime": "caller"});
    assert_forbidden(&Role::Admin, "POST", "/v1/endpoints", &with_process);
    for (netns, is_allowed) in [(json!(7), false), (json!("/run/netns/a"), true)] {
        let given = json!({"name": "a", "network": "red", "netns": netns});
        if is_allowed {
            assert_allowed(&Role::Admin, "POST", "/v1/endpoints", &given, Seen::All);
        } else {
            assert_forbidden(&Role::Admin, "POST", "/v1/endpoints", &given);
        }
    }
    for body in [json!({"lifetime": "caller"}), json!({"enters": true})] {
        assert_forbidden(&Role::Admin, "POST", "/v1/pools/blue/p/acquire", &body);
    }
}

#[test]
fn tenants_see_their_own() {
    assert_allowed(&acme(), "GET", "/v1/networks", &Value::Null, Seen::OwnRows("name"));
    for path in ["/v1/endpoints", "/v1/groups", "/v1/contexts", "/v1/connections"] {
        assert_allowed(&acme(), "GET", path, &Value::Null, Seen::OwnRows("network"));
    }
    for path in ["/v1/endpoints/blue/a", "/v1/networks/green/endpoints", "/v1/networks/green/interfaces"] {
        assert_allowed(&acme(), "GET", path, &Value::Null, Seen::All);
    }
    let rows = json!([{"network": "blue"}, {"network": "red"}, {"network": 7}, {"name": "blue"}, "blue", {"network": "green", "n": 1}]);
    let acme = "acme".parse().expect("a name");
    let own = own_rows(&acme, &networks(), "network", rows.to_string().as_bytes()).expect("a list");
    assert_eq!(own, json!([{"network": "blue"}, {"network": "green", "n": 1}]).to_string().into_bytes());
    assert_eq!(own_rows(&acme, &networks(), "network", b"{}"), None);
}

#[test]
fn tenants_see_and_change_nothing_of_others() {
    for (method, path) in [
        ("GET", "/v1/endpoints/red/a"),
        ("DELETE", "/v1/endpoints/red/a"),
        ("DELETE", "/v1/groups/red/g"),
        ("GET", "/v1/networks/red/endpoints"),
        ("GET", "/v1/endpoints/none/a"),
        // Other writings of paths.
        ("DELETE", "/v1/endpoints/blue/../red/a"),
        ("DELETE", "/v1/endpoints/%72ed/a"),
        ("DELETE", "/v1//endpoints/blue/a"),
        ("GET", "v1/networks"),
        // Of the host, or of all.
        ("GET", "/v1/status"),
        ("GET", "/v1/stats"),
        ("GET", "/metrics"),
        ("GET", "/v1/events"),
        ("GET", "/v1/policies"),
        ("PUT", "/v1/policies"),
        ("POST", "/v1/networks"),
        ("DELETE", "/v1/networks/blue"),
        ("POST", "/v1/captures"),
        ("POST", "/v1/shutdown"),
        ("POST", "/v1/networks/blue/interfaces"),
    ] {
        assert_forbidden(&acme(), method, path, &Value::Null);
    }
}

#[test]
fn tenants_make_endpoints_and_groups_on_their_networks_only() {
    let endpoint = json!({"name": "a", "network": "blue", "addresses": ["10.7.0.9"]});
    assert_allowed(&acme(), "POST", "/v1/endpoints", &endpoint, Seen::All);
    assert_allowed(&acme(), "PUT", "/v1/groups", &json!({"name": "g", "network": "green"}), Seen::All);
    assert_forbidden(&acme(), "POST", "/v1/endpoints", &json!({"name": "a", "network": "red"}));
    assert_forbidden(&acme(), "POST", "/v1/endpoints", &json!({"name": "a", "network": "new"}));
    assert_forbidden(&acme(), "PUT", "/v1/groups", &json!({"name": "g", "network": "red"}));
    for (field, value) in [
        ("lifetime", json!("caller")),
        ("take_over", json!(true)),
        ("isolation", json!("none")),
        ("netns", json!({"path": "/proc/1/ns/net"})),
        ("vni", json!(9)),
        ("allowed_uid", json!(0)),
        ("quota", json!({"qps": 1_000_000})),
    ] {
        let mut asked = endpoint.clone();
        asked[field] = value;
        let decided = ask(&acme(), "POST", "/v1/endpoints", &asked);
        assert!(decided.is_err(), "{field}: {decided:?}");
    }
    // A field twice: the router could take the other one.
    let twice = br#"{"name": "a", "network": "red", "network": "blue"}"#.to_vec();
    let decided = decide(&acme(), &Method::POST, "/v1/endpoints", twice, &networks());
    assert!(matches!(decided, Err(Refusal::Malformed(_))), "{decided:?}");
}
