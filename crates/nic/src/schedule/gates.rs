//! Gates: queue pairs whose endpoint, tenant or host has used up its rate wait here, and come through as the rate allows.
//!
//! A queue pair asks before each request packet. One that may not send is held, under its endpoint and tenant, and held queue pairs
//! come through by shares, as busy ones have their turns. One at a time comes through the highest gate above it, for one turn: else
//! all that wait would wake up for what suffices for one.

use super::Order;
use super::turns::{ROOT, Turns};
use crate::policy::{Bucket, Held, Level, Limits, Policy, Rates, Traffic};
use crate::timer::Time;
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

/// The gates of all classes and queue pairs.
pub(super) struct Gates {
    /// By class of an endpoint; none where nothing is limited.
    policies: Vec<Option<Box<Gated>>>,
    /// Budgets of steps of chains, by class of an endpoint.
    steps: Vec<Option<Arc<Bucket>>>,
    /// By class of any level.
    doors: Vec<Door>,
    /// By queue pair.
    qps: Vec<HeldQp>,
    held: Turns,
    /// Times at which a gate opens.
    openings: BTreeSet<(Time, Gate)>,
}

/// The limits above an endpoint's queue pairs.
struct Gated {
    /// Of host, tenant and endpoint, as far as they are limited, the highest first; each with its class.
    levels: Vec<(u32, Limits)>,
    qp: Rates,
    held: Arc<Held>,
    /// Time since which any of its queue pairs has waited for a gate above it, as far as it has not been counted.
    since: Option<Time>,
}

/// State of the gate of a class.
#[derive(Clone, Copy, Default)]
struct Door {
    /// Time until which it is closed.
    until: Option<Time>,
    /// The queue pair that has come through, and has not had its turn yet.
    through: Option<u32>,
}

/// A queue pair before its gates.
#[derive(Default)]
struct HeldQp {
    limits: Limits,
    is_made: bool,
    /// Its part of what it may send before it is another's turn.
    sent: u64,
    /// The order that it joins when it comes through.
    order: Order,
    /// Time at which its own gate opens.
    until: Option<Time>,
    /// Time at which that was closed.
    since: Time,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Gate {
    Class(u32),
    Qp(u32),
}

impl Default for Gates {
    fn default() -> Self {
        let (policies, steps, doors, qps) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { policies, steps, doors, qps, held: Turns::new(QUANTUM), openings: BTreeSet::new() }
    }
}

impl Gates {
    /// Makes room for queue pair and class numbers up to these.
    pub(super) fn reserve(&mut self, qp: u32, class: u32) {
        self.held.reserve(qp, class);
        if self.qps.len() <= qp as usize {
            self.qps.resize_with(qp as usize + 1, HeldQp::default);
        }
        if self.doors.len() <= class as usize {
            self.doors.resize(class as usize + 1, Door::default());
            self.policies.resize_with(class as usize + 1, || None);
            self.steps.resize_with(class as usize + 1, || None);
        }
    }

    /// Sets the limits of an endpoint. Those who wait ask again, unless all is as it was: else a program could lift its limits for
    /// a moment by having the same ones set again. Returns whether the rates of single queue pairs are others.
    pub(super) fn set(&mut self, endpoint: u32, tenant: u32, policy: &Policy) -> bool {
        self.held.set_parent(endpoint, tenant);
        self.held.set_weight(endpoint, policy.weight);
        self.held.set_weight(tenant, policy.tenant_weight);
        self.steps[endpoint as usize] = policy.steps.clone();
        let levels = [(ROOT, &policy.host), (tenant, &policy.tenant), (endpoint, &policy.endpoint)];
        let limited = levels.into_iter().filter(|(_, limits)| !limits.is_unlimited());
        let levels: Vec<_> = limited.map(|(class, limits)| (class, limits.clone())).collect();
        let is_limited = !levels.is_empty() || policy.qp != Rates::default();
        let (qp, held) = (policy.qp, policy.held.clone());
        let new = is_limited.then(|| Box::new(Gated { levels, qp, held, since: None }));
        let before = core::mem::replace(&mut self.policies[endpoint as usize], new);
        let (before, now) = (before.as_deref(), self.policies[endpoint as usize].as_deref());
        let rates = |gated: Option<&Gated>| gated.map_or(Rates::default(), |gated| gated.qp);
        let has_other_rates = rates(before) != rates(now);
        if !has_same_levels(before, now) {
            for class in [ROOT, tenant, endpoint] {
                self.doors[class as usize].through = None;
                self.close_until(class, None);
            }
        }
        has_other_rates
    }

    /// The queue pair's own limits are made anew when it sends next.
    pub(super) fn renew(&mut self, qp: u32) {
        let held = &mut self.qps[qp as usize];
        (held.limits, held.is_made, held.sent) = (Limits::default(), false, 0);
    }

    /// Whether the queue pair of the endpoint with `class` may send a packet; where it may not, it is held until it is due in
    /// that order.
    pub(super) fn admit(&mut self, qp: u32, class: u32, order: Order, now: Time) -> bool {
        let Some(Some(gated)) = self.policies.get(class as usize) else { return true };
        if let Some((top, _)) = gated.levels.first() {
            let top = *top;
            let through = self.doors[top as usize].through;
            if through != Some(qp) && (through.is_some() || self.held.waiting(top) != 0) {
                self.hold(qp, class, order, now);
                return false;
            }
            let closed = gated.levels.iter().filter_map(|(class, limits)| Some((*class, limits.wait(now)?)));
            if let Some((closed, at)) = closed.max_by_key(|(_, at)| *at) {
                gated.held.add(level(closed, class), now, at.min(now.after(LONGEST)));
                self.end_turn(qp, class);
                self.close_until(closed, Some(at));
                self.hold(qp, class, order, now);
                return false;
            }
        }
        self.admit_alone(qp, class, order, now)
    }

    /// Whether the queue pair's own limits let it send.
    fn admit_alone(&mut self, qp: u32, class: u32, order: Order, now: Time) -> bool {
        let Some(Some(gated)) = self.policies.get(class as usize) else { return true };
        let held = &mut self.qps[qp as usize];
        if !held.is_made {
            (held.limits, held.is_made) = (Limits::new(gated.qp), true);
        }
        let Some(at) = held.limits.wait(now) else { return true };
        if held.until.is_none() {
            (held.until, held.order, held.since) = (Some(at), order, now);
            gated.held.add(Level::Qp, now, at.min(now.after(LONGEST)));
            self.openings.insert((at, Gate::Qp(qp)));
        }
        self.end_turn(qp, class);
        false
    }

    /// The queue pair of the endpoint with `class` has sent something.
    pub(super) fn charge(&mut self, qp: u32, class: u32, now: Time, traffic: Traffic) {
        let Some(Some(gated)) = self.policies.get(class as usize) else { return };
        gated.levels.iter().for_each(|(_, limits)| limits.charge(now, traffic));
        self.qps[qp as usize].limits.charge(now, traffic);
        if let Some((_, top)) = gated.levels.first() {
            let cost = top.cost(traffic);
            self.held.charge(class, cost);
            self.qps[qp as usize].sent += cost;
        }
    }

    /// The next queue pair that comes through, and the order that it joins.
    pub(super) fn next(&mut self, now: Time, class_of: impl Fn(u32) -> u32) -> Option<(u32, Order)> {
        while let Some((_, gate)) = self.openings.first().copied().filter(|(at, _)| *at <= now) {
            match gate {
                Gate::Class(class) => self.close_until(class, None),
                Gate::Qp(qp) => {
                    if let Some(Some(gated)) = self.policies.get(class_of(qp) as usize) {
                        gated.held.add(Level::Qp, self.qps[qp as usize].since, now);
                    }
                    return Some((qp, self.release(qp)));
                }
            }
        }
        let qp = self.held.next()?;
        self.count_wait(class_of(qp), now);
        if let Some(top) = self.top(class_of(qp)) {
            self.doors[top as usize].through = Some(qp);
            self.update(top);
        }
        Some((qp, self.release(qp)))
    }

    /// The queue pair goes, which had the class.
    pub(super) fn leave(&mut self, qp: u32, class: u32) {
        self.held.remove(class, qp);
        if let Some(Some(gated)) = self.policies.get_mut(class as usize)
            && self.held.waiting(class) == 0
        {
            gated.since = None;
        }
        self.end_turn(qp, class);
        self.release(qp);
        self.renew(qp);
    }

    /// The class goes; no queue pair of it waits.
    pub(super) fn forget(&mut self, class: u32) {
        self.close_until(class, None);
        self.doors[class as usize] = Door::default();
        (self.policies[class as usize], self.steps[class as usize]) = (None, None);
        self.held.forget(class);
    }

    /// Budget of steps of the chains of the endpoint with `class`.
    pub(super) fn steps(&self, class: u32) -> Option<&Bucket> {
        self.steps.get(class as usize)?.as_deref()
    }

    /// Whether somebody comes through now.
    pub(super) fn has_due(&self) -> bool {
        self.held.len() != 0
    }

    /// Time at which the next gate opens.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.openings.first().map(|(at, _)| *at)
    }

    /// The queue pair waits for its turn, which it keeps as long as it has not sent its part.
    fn hold(&mut self, qp: u32, class: u32, order: Order, now: Time) {
        if let Some(Some(gated)) = self.policies.get_mut(class as usize) {
            gated.since.get_or_insert(now);
        }
        let held = &mut self.qps[qp as usize];
        held.order = order;
        if (1..QUANTUM as u64).contains(&held.sent) {
            self.held.add_first(class, qp);
        } else {
            held.sent = 0;
            self.held.add(class, qp);
        }
    }

    /// A queue pair of the endpoint with `class` has come through: the time that it and its neighbours have waited is the highest gate's,
    /// as far as no lower one was closed.
    fn count_wait(&mut self, class: u32, now: Time) {
        let is_waiting = self.held.waiting(class) != 0;
        let Some(Some(gated)) = self.policies.get_mut(class as usize) else { return };
        let Some((top, _)) = gated.levels.first() else { return };
        if let Some(since) = gated.since.take() {
            gated.held.add(level(*top, class), since, now);
        }
        gated.since = is_waiting.then_some(now);
    }

    /// The queue pair is held no more by its own gate; returns the order that it joins.
    fn release(&mut self, qp: u32) -> Order {
        let held = &mut self.qps[qp as usize];
        if let Some(until) = held.until.take() {
            self.openings.remove(&(until, Gate::Qp(qp)));
        }
        held.order
    }

    /// The queue pair has had its turn, or needs none: if it had come through, the next one may.
    pub(super) fn end_turn(&mut self, qp: u32, class: u32) {
        let Some(top) = self.top(class) else { return };
        if self.doors[top as usize].through == Some(qp) {
            self.doors[top as usize].through = None;
            self.update(top);
        }
    }

    /// The gate of a class is closed until then, or open.
    fn close_until(&mut self, class: u32, until: Option<Time>) {
        let before = core::mem::replace(&mut self.doors[class as usize].until, until);
        if let Some(before) = before {
            self.openings.remove(&(before, Gate::Class(class)));
        }
        if let Some(until) = until {
            self.openings.insert((until, Gate::Class(class)));
        }
        self.update(class);
    }

    /// The class of the highest gate above an endpoint.
    fn top(&self, endpoint: u32) -> Option<u32> {
        self.policies.get(endpoint as usize)?.as_ref()?.levels.first().map(|(class, _)| *class)
    }

    fn update(&mut self, class: u32) {
        let Door { until, through } = self.doors[class as usize];
        if until.is_some() || through.is_some() {
            self.held.close(class);
        } else {
            self.held.open(class);
        }
    }
}

/// Level of the gate with class `gate` above an endpoint.
fn level(gate: u32, endpoint: u32) -> Level {
    match gate {
        ROOT => Level::Host,
        _ if gate == endpoint => Level::Endpoint,
        _ => Level::Tenant,
    }
}

fn has_same_levels(one: Option<&Gated>, other: Option<&Gated>) -> bool {
    let levels = |gated: Option<&Gated>| gated.map_or(0, |gated| gated.levels.len());
    let pairs =
        || one.into_iter().flat_map(|gated| &gated.levels).zip(other.into_iter().flat_map(|gated| &gated.levels));
    levels(one) == levels(other) && pairs().all(|((a, one), (b, other))| a == b && one.is_same(other))
}

/// Time that is counted beforehand, at most: the rest of it when it has passed.
const LONGEST: Duration = Duration::from_secs(1);
/// Bytes that one sends before it is another's turn: at 1 Mb/s it lasts 65 ms.
const QUANTUM: i64 = 8 * 1024;
