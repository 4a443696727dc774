//! `rdmesh policy`: rates, priorities and weights of hosts, tenants and endpoints.

use crate::args::OutputOptions;
use crate::failure::Failure;
use crate::show::{print_json, print_line};
use crate::table::Table;
use rdmesh_fabric::api::ScopePolicy;
use rdmesh_fabric::{Client, Policy, PolicyScope, Priority, Rate};

/// Lists policies.
pub(crate) fn list(options: &OutputOptions, client: &Client) -> Result<(), Failure> {
    let policies = client.policies()?;
    if options.json {
        return print_json(&policies);
    }
    if policies.is_empty() {
        return print_line("No policy: nothing is limited but by quotas. `rdmesh policy set --help`");
    }
    let mut table = Table::new(&["SCOPE", "RATE", "QP-RATE", "PRIORITY", "WEIGHT"]);
    for ScopePolicy { scope, policy } in policies {
        let Policy { rate, qp_rate, priority, weight, .. } = policy.unwrap_or_default();
        let priority = priority.map_or("-", |priority| match priority {
            Priority::High => "high",
            Priority::Normal => "normal",
            Priority::Low => "low",
        });
        let weight = weight.map_or_else(|| "-".into(), |weight| weight.to_string());
        table.row([scope.to_string(), describe(rate), describe(qp_rate), priority.into(), weight]);
    }
    print_line(table)
}

/// Sets the policy of a scope, or removes it.
pub(crate) fn set(scope: &PolicyScope, policy: Option<Policy>, client: &Client) -> Result<(), Failure> {
    let done = if policy.is_some() { "set" } else { "removed" };
    client.set_policy(&ScopePolicy { scope: scope.clone(), policy })?;
    print_line(format!("policy of {scope} {done}"))
}

fn describe(rate: Option<Rate>) -> String {
    let Some(rate) = rate else { return "-".into() };
    let bits = rate.bits_per_second.map(|bits| format!("{}bit/s", decimal(bits)));
    let messages = rate.messages_per_second.map(|messages| format!("{} messages/s", decimal(messages).trim_end()));
    bits.into_iter().chain(messages).collect::<Vec<_>>().join(", ")
}

/// A number with the largest decimal prefix that loses nothing.
fn decimal(number: u64) -> String {
    let units = [(1_000_000_000_000, " T"), (1_000_000_000, " G"), (1_000_000, " M"), (1000, " k")];
    let found = units.into_iter().find(|(factor, _)| number >= *factor && number.is_multiple_of(*factor));
    found.map_or_else(|| format!("{number} "), |(factor, unit)| format!("{}{unit}", number / factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_shown_as_they_are_given() {
        assert_eq!(describe(Some(Rate::bits(2_500_000_000))), "2500 Mbit/s");
        let both = Rate { messages_per_second: Some(7), ..Rate::bits(10_000_000_000) };
        assert_eq!(describe(Some(both)), "10 Gbit/s, 7 messages/s");
    }
}
