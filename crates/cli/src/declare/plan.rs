//! Plans: the changes from what a router has to what a file says.

use super::declaration::{Declaration, DeclarationError, Object};
use crate::args::Kind;
use rdmesh_fabric::{Client, ClientError};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Changes, in the order in which they can be made.
pub(super) struct Plan {
    changes: Vec<Change>,
    unchanged: usize,
}

/// Kind of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Action {
    Create,
    Change,
    Remove,
}

/// One change.
pub(super) struct Change {
    action: Action,
    object: Object,
    differences: Vec<Difference>,
}

/// A field that is to have another value.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Difference {
    /// Its path, as in `policy.rate.bits_per_second`.
    field: String,
    from: Value,
    to: Value,
}

impl Plan {
    /// The changes after which there is what is `wanted`, beside what is there. An error where an object has to be removed first.
    pub(super) fn new(wanted: &Declaration, present: &Declaration) -> Result<Self, DeclarationError> {
        let present: BTreeMap<_, _> = present.objects().map(|object| ((object.kind(), object.key()), object)).collect();
        let has_quotas = present.values().any(Object::lowers_quotas);
        let mut plan = Self { changes: Vec::new(), unchanged: 0 };
        for object in wanted.objects() {
            let differences = match present.get(&(object.kind(), object.key())) {
                Some(there) => Some(differences(&object, there, has_quotas)?),
                None if object.is_none() => Some(Vec::new()),
                None => None,
            };
            let action = match &differences {
                Some(differences) if differences.is_empty() => {
                    plan.unchanged += 1;
                    continue;
                }
                Some(_) if object.is_none() => Action::Remove,
                Some(_) => Action::Change,
                None => Action::Create,
            };
            plan.changes.push(Change { action, object, differences: differences.unwrap_or_default() });
        }
        Ok(plan)
    }

    /// Removes, last, the objects of some kinds that are present and not wanted: what is on a network before the network.
    pub(super) fn prune(&mut self, kinds: &[Kind], wanted: &Declaration, present: &Declaration) {
        let wanted: BTreeSet<_> = wanted.objects().map(|object| (object.kind(), object.key())).collect();
        let is_pruned = |object: &Object| {
            kinds.iter().any(|kind| object.is_of(*kind)) && !wanted.contains(&(object.kind(), object.key()))
        };
        let pruned: Vec<Object> = present.objects().filter(is_pruned).collect();
        let removal = |object| Change { action: Action::Remove, object, differences: Vec::new() };
        self.changes.extend(pruned.into_iter().rev().map(removal));
    }

    pub(super) fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Number of objects that are as they are wanted.
    pub(super) fn unchanged(&self) -> usize {
        self.unchanged
    }

    pub(super) fn count(&self, action: Action) -> usize {
        self.changes.iter().filter(|change| change.action == action).count()
    }

    /// The whole of it, for programs.
    pub(super) fn report(&self, is_dry_run: bool) -> Value {
        let change = |change: &Change| {
            let Change { action, object, differences } = change;
            json!({ "action": action, "kind": object.kind(), "name": object.key(), "differences": differences })
        };
        let changes: Vec<Value> = self.changes.iter().map(change).collect();
        json!({ "dry_run": is_dry_run, "changes": changes, "unchanged": self.unchanged })
    }
}

impl Change {
    pub(super) fn object(&self) -> &Object {
        &self.object
    }

    pub(super) fn carry_out(&self, client: &Client) -> Result<(), ClientError> {
        match self.action {
            Action::Remove => self.object.remove(client),
            Action::Create | Action::Change => self.object.set(client),
        }
    }

    /// In one line, with one more for each field that changes.
    pub(super) fn describe(&self, is_dry_run: bool) -> String {
        let done = match (self.action, is_dry_run) {
            (Action::Create, false) => "created",
            (Action::Change, false) => "changed",
            (Action::Remove, false) => "removed",
            (Action::Create, true) => "would create",
            (Action::Change, true) => "would change",
            (Action::Remove, true) => "would remove",
        };
        let fields = self.differences.iter().filter(|_| self.action == Action::Change);
        let fields = fields.map(|Difference { field, from, to }| format!("\n  {field}: {from} -> {to}"));
        format!("{done} {} `{}`{}", self.object.kind(), self.object.key(), fields.collect::<String>())
    }
}

/// Fields of an object that are to change, on a router that `has_quotas` among its policies.
fn differences(wanted: &Object, present: &Object, has_quotas: bool) -> Result<Vec<Difference>, DeclarationError> {
    let (to, from) = (wanted.fields(), present.fields());
    let mut found = Vec::new();
    for (field, to) in to.as_object().into_iter().flatten() {
        let is_left_out = to.is_null() || to.as_array().is_some_and(Vec::is_empty);
        if is_left_out && wanted.is_open(field) {
            continue;
        }
        let before = found.len();
        compare(field, from.get(field).unwrap_or(&Value::Null), to, &mut found);
        if has_quotas && wanted.is_lowered(field) {
            found.retain(|difference| difference.from.as_u64() > difference.to.as_u64());
        }
        if let (Some(difference), Some(remedy)) = (found.get(before), wanted.fixed(field)) {
            let Difference { field, from, to } = difference;
            let why = format!("`{field}` is {from} and cannot be changed to {to}: {remedy}");
            return Err(DeclarationError::Fixed { kind: wanted.kind(), key: wanted.key(), why });
        }
    }
    Ok(found)
}

/// Notes where two values differ; of objects, in which fields.
fn compare(field: &str, from: &Value, to: &Value, found: &mut Vec<Difference>) {
    match (from, to) {
        (Value::Object(from), Value::Object(to)) => {
            let names = from.keys().chain(to.keys().filter(|name| !from.contains_key(*name)));
            for name in names {
                let value = |of: &serde_json::Map<String, Value>| of.get(name).cloned().unwrap_or_default();
                compare(&format!("{field}.{name}"), &value(from), &value(to), found);
            }
        }
        _ if from == to => {}
        _ => found.push(Difference { field: field.to_owned(), from: from.clone(), to: to.clone() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(wanted: &str, present: &str) -> Result<Vec<String>, String> {
        let [wanted, present] = [wanted, present].map(|text| Declaration::parse(text).unwrap());
        let plan = Plan::new(&wanted, &present).map_err(|error| error.to_string())?;
        Ok(plan.changes().iter().map(|change| change.describe(false)).collect())
    }

    #[test]
    fn only_what_differs_changes() {
        let present = "
tenants: [{name: acme, max_networks: 2}]
networks: [{name: blue, tenant: acme, vni: 7, subnets: [10.7.0.0/24]}]
endpoints: [{network: blue, name: server, addresses: [10.7.0.9]}]
policies: [{scope: host/a, policy: {rate: {bits_per_second: 1000}, weight: 7}}]";
        assert_eq!(plan(present, present), Ok(vec![]));
        let left_out = "
networks: [{name: blue, tenant: acme, subnets: [10.7.0.0/24]}]
endpoints: [{network: blue, name: server}]
policies: [{scope: host/b}]";
        assert_eq!(plan(left_out, present), Ok(vec![]), "what is left out is as it is");
        let other = "
tenants: [{name: acme}, {name: other}]
policies: [{scope: host/a, policy: {rate: {bits_per_second: 2000}}}]";
        let expected = [
            "changed tenant `acme`\n  max_networks: 2 -> null",
            "created tenant `other`",
            "changed policy `host/a`\n  policy.rate.bits_per_second: 1000 -> 2000\n  policy.weight: 7 -> null",
        ];
        assert_eq!(plan(other, present).unwrap(), expected);
        assert_eq!(plan("policies: [{scope: host/a}]", present).unwrap(), ["removed policy `host/a`"]);
    }

    #[test]
    fn what_is_not_wanted_of_some_kinds_goes_last_and_networks_after_what_is_on_them() {
        let present = "
tenants: [{name: acme}, {name: other}]
networks: [{name: blue, vni: 7, subnets: [10.7.0.0/24]}, {name: red, vni: 8, subnets: [10.8.0.0/24]}]
groups: [{network: blue, name: db}, {network: red, name: db}]
policies: [{scope: host/a, policy: {weight: 7}}]
endpoints: [{network: red, name: server, addresses: [10.8.0.9]}]";
        let wanted = "
tenants: [{name: acme, max_networks: 3}]
networks: [{name: blue, vni: 7, subnets: [10.7.0.0/24]}]
groups: [{network: blue, name: db}]";
        let [wanted, present] = [wanted, present].map(|text| Declaration::parse(text).unwrap());
        let pruned = |kinds: &[Kind]| -> Vec<String> {
            let mut plan = Plan::new(&wanted, &present).unwrap();
            plan.prune(kinds, &wanted, &present);
            plan.changes().iter().map(|change| change.describe(true)).collect()
        };
        let change = "would change tenant `acme`\n  max_networks: null -> 3";
        assert_eq!(pruned(&[]), [change]);
        assert_eq!(pruned(&[Kind::Groups]), [change, "would remove group `red/db`"]);
        assert_eq!(
            pruned(&[Kind::Networks, Kind::Endpoints, Kind::Tenants, Kind::Policies]),
            [
                change,
                "would remove endpoint `red/server`",
                "would remove policy `host/a`",
                "would remove network `red`",
                "would remove tenant `other`"
            ]
        );
    }

    #[test]
    fn what_is_fixed_is_refused_before_anything_is_done() {
        let present = "
networks: [{name: blue, vni: 7, subnets: [10.7.0.0/24]}]
pools: [{network: blue, name: fn, size: 8}]
endpoints: [{network: blue, name: server, addresses: [10.7.0.9]}]";
        let refused = |wanted: &str| plan(wanted, present).unwrap_err();
        let network = refused("networks: [{name: blue, subnets: [10.8.0.0/24]}]");
        assert!(
            network.starts_with("network `blue`: `subnets` is [\"10.7.0.0/24\"] and cannot be changed to"),
            "{network}"
        );
        let endpoint = refused("endpoints: [{network: blue, name: server, addresses: [10.7.0.8]}]");
        assert!(endpoint.contains("rdmesh endpoint rm server --net blue"), "{endpoint}");
        assert!(refused("pools: [{network: blue, name: fn, size: 8, rest_seconds: 7}]").contains("rest_seconds"));
        assert_eq!(plan("pools: [{network: blue, name: fn, size: 9}]", present).unwrap().len(), 1);
    }

    #[test]
    fn neither_an_order_nor_a_policys_lower_quota_is_a_difference() {
        let endpoint = |addresses: &str, qps: u32| {
            format!("endpoints: [{{network: blue, name: a, addresses: [{addresses}], quota: {{qps: {qps}}}}}]")
        };
        let policy = "\npolicies: [{scope: host/a, policy: {quota: {qps: 7}}}]";
        let present = endpoint("10.7.0.9, 'fd00::9'", 7);
        assert_eq!(plan(&endpoint("'fd00::9', 10.7.0.9", 7), &present), Ok(vec![]));
        let wanted = endpoint("", 64);
        assert_eq!(plan(&wanted, &(present.clone() + policy)), Ok(vec![]));
        let refused = plan(&wanted, &present).unwrap_err();
        assert!(refused.contains("`quota.qps` is 7 and cannot be changed to 64"), "{refused}");
        let lower = plan(&endpoint("", 3), &(present + policy)).unwrap_err();
        assert!(lower.contains("`quota.qps` is 7 and cannot be changed to 3"), "{lower}");
    }
}
