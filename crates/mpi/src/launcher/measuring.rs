//! Plan of the measuring of a world's thresholds: pairs of ranks measure for all, one after the other where they share a machine.

use crate::control::{Measured, Ready, Site, Start};
use std::collections::{BTreeMap, BTreeSet};

/// How far a world is with it.
#[derive(Debug)]
pub(super) struct Measuring {
    stage: Stage,
    found: Measured,
}

#[derive(Debug)]
enum Stage {
    /// Ranks come, each with its place.
    Gathering {
        sites: BTreeMap<u32, Site>,
        /// A rank has been given its threshold: nothing is measured.
        is_fixed: bool,
    },
    /// The first round runs: `open` are the pairs that have not answered, by their first ranks.
    Running {
        all: Vec<u32>,
        rounds: Vec<Round>,
        open: BTreeSet<u32>,
    },
    Over,
}

/// Pairs of which none has a machine in common with another.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Round {
    is_same_machine: bool,
    pairs: Vec<Pair>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pair {
    first: u32,
    second: u32,
}

/// Order to a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// To measure with another.
    Measure { rank: u32, with: u32, is_first: bool },
    /// To go on.
    GoOn { rank: u32, start: Start },
}

impl Measuring {
    pub(super) fn new() -> Self {
        Self { stage: Stage::Gathering { sites: BTreeMap::new(), is_fixed: false }, found: Measured::default() }
    }

    /// The result; none before the end, and where nothing was measured.
    pub(super) fn result(&self) -> Option<Measured> {
        let is_over = matches!(self.stage, Stage::Over);
        (is_over && self.found != Measured::default()).then_some(self.found)
    }

    /// A rank is ready at a place; or, without one, will not wait until all are ready.
    pub(super) fn on_ready(&mut self, rank: u32, ready: Option<Ready>, size: u32) -> Vec<Order> {
        match (&mut self.stage, ready) {
            (Stage::Gathering { sites, is_fixed }, Some(ready)) => {
                sites.insert(rank, ready.site);
                *is_fixed |= ready.is_fixed;
                if sites.len() < size as usize {
                    return Vec::new();
                }
                let (all, rounds) =
                    (sites.keys().copied().collect(), if *is_fixed { Vec::new() } else { rounds(sites) });
                self.stage = Stage::Running { all, rounds, open: BTreeSet::new() };
                self.next_round()
            }
            (Stage::Gathering { sites, .. }, None) => {
                let ready: BTreeSet<u32> = sites.keys().copied().chain([rank]).collect();
                self.stage = Stage::Over;
                go_on(ready, Start::default())
            }
            // Too late: it is told when the others are.
            (Stage::Running { .. }, _) => Vec::new(),
            (Stage::Over, _) => go_on([rank], Start::default()),
        }
    }

    /// A pair has measured.
    pub(super) fn on_measured(&mut self, rank: u32, threshold: u64) -> Vec<Order> {
        let Stage::Running { rounds, open, .. } = &mut self.stage else { return Vec::new() };
        if !open.remove(&rank) {
            return Vec::new();
        }
        let (is_last, is_same_machine) = (open.is_empty(), rounds.first().is_some_and(|round| round.is_same_machine));
        let found = if is_same_machine { &mut self.found.same_machine } else { &mut self.found.other_machine };
        *found = Some(found.map_or(threshold, |found| found.max(threshold)));
        if !is_last {
            return Vec::new();
        }
        rounds.remove(0);
        self.next_round()
    }

    /// A rank is gone: the others wait for nobody.
    pub(super) fn on_part(&mut self) -> Vec<Order> {
        let all = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Gathering { sites, .. } => sites.into_keys().collect(),
            Stage::Running { all, .. } => {
                self.found = Measured::default();
                all
            }
            Stage::Over => Vec::new(),
        };
        go_on(all, Start::default())
    }

    fn next_round(&mut self) -> Vec<Order> {
        let Stage::Running { all, rounds, open } = &mut self.stage else { return Vec::new() };
        let Some(round) = rounds.first() else {
            let all = std::mem::take(all);
            self.stage = Stage::Over;
            let start = Start { is_whole: true, thresholds: self.result().map(Measured::thresholds) };
            return go_on(all, start);
        };
        open.extend(round.pairs.iter().map(|pair| pair.first));
        let orders = round.pairs.iter().flat_map(|&Pair { first, second }| {
            [(second, first, false), (first, second, true)].map(|(rank, with, is_first)| Order::Measure {
                rank,
                with,
                is_first,
            })
        });
        orders.collect()
    }
}

fn go_on(ranks: impl IntoIterator<Item = u32>, start: Start) -> Vec<Order> {
    ranks.into_iter().map(|rank| Order::GoOn { rank, start }).collect()
}

/// On each machine one pair of two of its namespaces; then two machines each.
fn rounds(sites: &BTreeMap<u32, Site>) -> Vec<Round> {
    let mut machines: BTreeMap<u128, BTreeMap<u64, u32>> = BTreeMap::new();
    for (&rank, site) in sites {
        machines.entry(site.machine).or_default().entry(site.namespace).or_insert(rank);
    }
    let leaders: Vec<Vec<u32>> = machines.into_values().map(|namespaces| namespaces.into_values().collect()).collect();
    let within = leaders.iter().filter_map(|ranks| pair(ranks.iter()));
    let firsts: Vec<u32> = leaders.iter().filter_map(|ranks| ranks.first().copied()).collect();
    let between = firsts.chunks(2).filter_map(|two| pair(two.iter()));
    let rounds = [(true, within.collect()), (false, between.collect())];
    let rounds = rounds.map(|(is_same_machine, pairs): (_, Vec<_>)| Round { is_same_machine, pairs });
    rounds.into_iter().filter(|round| !round.pairs.is_empty()).collect()
}

fn pair<'a>(mut ranks: impl Iterator<Item = &'a u32>) -> Option<Pair> {
    Some(Pair { first: *ranks.next()?, second: *ranks.next()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Thresholds;

    fn ready(machine: u128, namespace: u64) -> Option<Ready> {
        Some(Ready { site: Site { machine, namespace }, is_fixed: false })
    }

    /// Two endpoints on one machine, with two ranks each, and a third one on another machine.
    const SITES: [(u128, u64); 5] = [(1, 10), (1, 10), (1, 11), (1, 11), (2, 10)];

    fn all_ready() -> (Measuring, Vec<Order>) {
        let mut measuring = Measuring::new();
        let mut orders = Vec::new();
        for (rank, (machine, namespace)) in (0..).zip(SITES) {
            assert_eq!(orders, []);
            orders = measuring.on_ready(rank, ready(machine, namespace), SITES.len() as u32);
        }
        (measuring, orders)
    }

    fn pair_orders(first: u32, second: u32) -> [Order; 2] {
        [
            Order::Measure { rank: second, with: first, is_first: false },
            Order::Measure { rank: first, with: second, is_first: true },
        ]
    }

    #[test]
    fn a_pair_on_each_machine_measures_then_one_of_two_machines_and_all_are_told() {
        let (mut measuring, orders) = all_ready();
        assert_eq!(orders, pair_orders(0, 2));
        assert_eq!(measuring.on_measured(4, 1), [], "not asked");
        assert_eq!(measuring.on_measured(0, 32768), pair_orders(0, 4));
        let thresholds = Some(Thresholds { same_machine: 32768, other_machine: u64::MAX });
        let start = Start { is_whole: true, thresholds };
        let told: Vec<Order> = (0..5).map(|rank| Order::GoOn { rank, start }).collect();
        assert_eq!(measuring.on_measured(0, u64::MAX), told);
        let measured = Measured { same_machine: Some(32768), other_machine: Some(u64::MAX) };
        assert_eq!(measuring.result(), Some(measured));
    }

    #[test]
    fn pairs_of_one_round_share_no_machine_and_the_worst_counts() {
        let mut measuring = Measuring::new();
        let orders: Vec<_> =
            (0..4).flat_map(|rank| measuring.on_ready(rank, ready(u128::from(rank / 2), u64::from(rank)), 4)).collect();
        assert_eq!(orders, [pair_orders(0, 1), pair_orders(2, 3)].concat());
        assert_eq!(measuring.on_measured(2, 16384), []);
        assert_eq!(measuring.on_measured(2, 4096), [], "it has answered");
        assert_eq!(measuring.on_measured(0, 8192), pair_orders(0, 2));
        assert_eq!(measuring.on_measured(0, 65536).len(), 4);
        assert_eq!(measuring.result(), Some(Measured { same_machine: Some(16384), other_machine: Some(65536) }));
    }

    #[test]
    fn nobody_waits_for_a_rank_that_takes_no_part_or_is_gone() {
        let nothing = |rank| Order::GoOn { rank, start: Start::default() };
        let mut measuring = Measuring::new();
        assert_eq!(measuring.on_ready(3, ready(1, 1), 4), []);
        assert_eq!(measuring.on_ready(0, None, 4), [nothing(0), nothing(3)]);
        assert_eq!(measuring.on_ready(1, ready(1, 2), 4), [nothing(1)], "it comes later");
        let (mut measuring, _) = all_ready();
        measuring.on_measured(0, 32768);
        assert_eq!(measuring.on_ready(1, None, 5), [], "it is told with the others");
        assert_eq!(measuring.on_part(), [0, 1, 2, 3, 4].map(nothing));
        assert_eq!(measuring.on_measured(0, 5), []);
        assert_eq!(measuring.result(), None);
    }

    #[test]
    fn ranks_of_one_endpoint_have_nothing_to_measure() {
        let mut measuring = Measuring::new();
        assert_eq!(measuring.on_ready(0, ready(1, 1), 2), []);
        assert_eq!(measuring.on_ready(1, ready(1, 1), 2), ALL_THERE);
    }

    #[test]
    fn ranks_with_a_given_threshold_wait_for_each_other_and_measure_nothing() {
        let mut measuring = Measuring::new();
        assert_eq!(measuring.on_ready(0, ready(1, 1), 2), []);
        let given = ready(1, 2).map(|ready| Ready { is_fixed: true, ..ready });
        assert_eq!(measuring.on_ready(1, given, 2), ALL_THERE);
        assert_eq!(measuring.result(), None);
    }

    const ALL_THERE: [Order; 2] = {
        let start = Start { is_whole: true, thresholds: None };
        [Order::GoOn { rank: 0, start }, Order::GoOn { rank: 1, start }]
    };
}
