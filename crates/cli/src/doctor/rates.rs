//! Endpoints that a rate of a policy holds back.

use super::Finding;
use crate::held;
use rdmesh_fabric::Client;
use rdmesh_fabric::api::{ContextInfo, HeldSeconds};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Looks for a moment at who is held.
pub(super) fn check(client: &Client) -> Vec<Finding> {
    let looked = Instant::now();
    let Ok(before) = client.contexts().map(|contexts| endpoints(&contexts)) else { return Vec::new() };
    // An endpoint that no rate has ever held is not looked at again.
    if before.values().all(|held| *held == HeldSeconds::default()) {
        return Vec::new();
    }
    std::thread::sleep(MOMENT);
    let now = client.contexts().map(|contexts| endpoints(&contexts)).unwrap_or_default();
    findings(&before, &now, looked.elapsed().as_secs_f64())
}

/// The same of one endpoint, as NETWORK/NAME.
pub(crate) fn of(endpoint: &str, client: &Client) -> Vec<Finding> {
    let about = format!("{endpoint} ");
    check(client).into_iter().filter(|finding| finding.message.starts_with(&about)).collect()
}

/// Counts of each endpoint that has a device open.
fn endpoints(contexts: &[ContextInfo]) -> BTreeMap<String, HeldSeconds> {
    contexts.iter().map(|c| (format!("{}/{}", c.network, c.endpoint), c.held)).collect()
}

fn findings(before: &BTreeMap<String, HeldSeconds>, now: &BTreeMap<String, HeldSeconds>, seconds: f64) -> Vec<Finding> {
    let of = |(endpoint, held): (&String, &HeldSeconds)| {
        let (level, share) = held::share(*before.get(endpoint)?, *held, seconds)?;
        if share < MUCH {
            return None;
        }
        let rate = match level {
            "host" => "the rate of its host",
            "tenant" => "the rate of its tenant",
            "endpoint" => "its rate",
            _ => "the rate of its queue pairs",
        };
        let message = format!("{endpoint} waits {:.0} % of the time for {rate}", share * 100.0);
        Some(Finding::warn("rates", message, "see `rdmesh policy ls`; `rdmesh policy set` gives it a higher one"))
    };
    now.iter().filter_map(of).collect()
}

const MOMENT: Duration = Duration::from_millis(300);
/// Part of the time for which it is worth a word.
const MUCH: f64 = 0.5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_held_most_of_the_time_is_named_with_its_level() {
        let at = |tenant| BTreeMap::from([("blue/a".to_owned(), HeldSeconds { tenant, ..HeldSeconds::default() })]);
        let found = findings(&at(1.0), &at(1.9), 1.0);
        assert!(found[0].text().contains("blue/a waits 90 % of the time for the rate of its tenant"), "{found:?}");
        assert!(findings(&at(1.0), &at(1.2), 1.0).is_empty());
        assert!(findings(&BTreeMap::new(), &at(1.9), 1.0).is_empty());
    }
}
