//! Simulation of many seeds, each with faults of its own.

use rdmesh_sim::run_many;

/// Every property holds in every seed, and all that should be met was met. `RDMESH_SIM_SEEDS` says how many seeds, if not 10,000, and
/// `RDMESH_SIM_FIRST` which is the first.
#[test]
fn every_seed_holds_and_together_they_meet_everything() {
    let number = |name, otherwise| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(otherwise);
    let count = number("RDMESH_SIM_SEEDS", 10_000);
    let outcome = run_many(number("RDMESH_SIM_FIRST", 0), count);
    let failures: Vec<_> = outcome.failures.iter().map(ToString::to_string).collect();
    assert!(failures.is_empty(), "{} of {count} seeds fail:\n{}", failures.len(), failures.join("\n"));
    if count >= 1000 {
        let missing: Vec<_> = outcome.seen.missing().into_iter().map(|seen| seen.text()).collect();
        assert!(missing.is_empty(), "never met: {missing:?}");
    }
}
