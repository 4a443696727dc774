//! Policies on this host: what the operator has said of scopes, as the buckets and weights that the workers' engines share.

use rdmesh_fabric::{
    EffectivePolicy, Endpoint, Name, Network, Policy, PolicyScope, PolicyTree, Registry, RegistryError,
};
use rdmesh_nic::policy::{Limits, Policy as EnginePolicy, Priority, Rate, Rates, Weight};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The policies, and the buckets of what they limit.
pub(super) struct Policies {
    host: Name,
    registry: Registry,
    state: Mutex<State>,
}

struct State {
    tree: PolicyTree,
    /// By scope: a bucket is kept as long as its rate is the same, so that other changes lift no limit for a moment.
    buckets: BTreeMap<PolicyScope, (rdmesh_fabric::Rate, Limits)>,
}

impl Policies {
    /// Those that the registry has.
    pub(super) fn new(host: Name, registry: Registry) -> Result<Self, RegistryError> {
        let state = State { tree: registry.policies()?, buckets: BTreeMap::new() };
        Ok(Self { host, registry, state: Mutex::new(state) })
    }

    /// All of them, by scope.
    pub(super) fn all(&self) -> Vec<(PolicyScope, Policy)> {
        self.lock().tree.iter().map(|(scope, policy)| (scope.clone(), policy.clone())).collect()
    }

    /// Sets the policy of a scope, or removes it. Returns whether there was one.
    pub(super) fn set(&self, scope: PolicyScope, policy: Option<Policy>) -> Result<bool, RegistryError> {
        let mut state = self.lock();
        self.registry.set_policy(&scope, policy.as_ref())?;
        Ok(state.tree.set(scope, policy).is_some())
    }

    /// Whether there are any.
    pub(super) fn has_any(&self) -> bool {
        self.lock().tree.iter().next().is_some()
    }

    /// The policy of an endpoint, together with those around it.
    pub(super) fn effective(&self, tenant: &Name, network: &Name, name: &Name) -> EffectivePolicy {
        self.lock().tree.effective(&self.host, tenant, network, name)
    }

    /// The same, for engines.
    pub(super) fn of(&self, network: &Network, endpoint: &Endpoint) -> EnginePolicy {
        let mut state = self.lock();
        let effective = state.tree.effective(&self.host, &network.tenant, &network.name, &endpoint.name);
        let own = PolicyScope::Endpoint { network: network.name.clone(), name: endpoint.name.clone() };
        let scopes = [PolicyScope::Host(self.host.clone()), PolicyScope::Tenant(network.tenant.clone()), own];
        let [host, tenant, endpoint] = [0, 1, 2].map(|level| state.limits(&scopes[level], effective.rates[level]));
        EnginePolicy {
            host,
            tenant,
            endpoint,
            qp: effective.qp_rate.map(rates).unwrap_or_default(),
            steps: None,
            priority: priority(effective.priority),
            weight: weight(effective.weight),
            tenant_weight: weight(effective.tenant_weight),
            held: Default::default(),
        }
    }

    /// The endpoint goes, and its bucket with it.
    pub(super) fn forget(&self, network: &Name, name: &Name) {
        self.lock().buckets.remove(&PolicyScope::Endpoint { network: network.clone(), name: name.clone() });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn limits(&mut self, scope: &PolicyScope, rate: Option<rdmesh_fabric::Rate>) -> Limits {
        let Some(rate) = rate else {
            self.buckets.remove(scope);
            return Limits::default();
        };
        if let Some((_, limits)) = self.buckets.get(scope).filter(|(known, _)| *known == rate) {
            return limits.clone();
        }
        let limits = Limits::new(rates(rate));
        self.buckets.insert(scope.clone(), (rate, limits.clone()));
        limits
    }
}

fn rates(rate: rdmesh_fabric::Rate) -> Rates {
    let of = |per_second: u64, burst: Option<u64>, least: u64| match burst {
        Some(burst) => Rate { per_second, burst },
        None => Rate::with_usual_burst(per_second, least),
    };
    Rates {
        bytes: rate.bits_per_second.map(|bits| of(bits.div_ceil(8), rate.burst_bytes, LEAST_BURST)),
        messages: rate.messages_per_second.map(|messages| of(messages, rate.burst_messages, LEAST_MESSAGES)),
    }
}

fn priority(priority: rdmesh_fabric::Priority) -> Priority {
    match priority {
        rdmesh_fabric::Priority::High => Priority::High,
        rdmesh_fabric::Priority::Normal => Priority::Normal,
        rdmesh_fabric::Priority::Low => Priority::Low,
    }
}

fn weight(weight: u16) -> Weight {
    Weight::new(weight).unwrap_or_default()
}

/// Bytes of the least burst that is usual: a message within the host is cut into pieces of this size.
const LEAST_BURST: u64 = 64 * 1024;
/// Messages of the least burst that is usual.
const LEAST_MESSAGES: u64 = 16;
