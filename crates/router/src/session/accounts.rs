//! Accounts: the endpoints, the budget that they share, and counters of all.

use super::account::Account;
use super::endpoint::Endpoint;
use super::failed_requests::{FailedRequestInfo, PastFailedRequests};
use super::info::{BadIndices, HeldEndpoint, SessionTotals};
use super::lookups::Seeker;
use super::spec::EndpointSpec;
use crate::budget::{Budget, Limits, Resource};
use crate::disposal::{Disposal, Reclaimer};
use crate::endpoint::EndpointId;
use crate::memory::Evicted;
use rdmesh_verbs::DeviceLimits;
use std::collections::HashMap;

/// The endpoints that are open.
pub(super) struct Accounts {
    endpoints: HashMap<EndpointId, Endpoint>,
    limits: DeviceLimits,
    /// The budget of all endpoints.
    budget: Budget,
    reclaimer: Reclaimer,
    past_failed_requests: PastFailedRequests,
    totals: SessionTotals,
}

impl Accounts {
    /// No endpoints. Devices have these limits; memory goes by way of `reclaimer`.
    pub(super) fn new(limits: DeviceLimits, reclaimer: Reclaimer) -> Self {
        Self {
            endpoints: HashMap::new(),
            limits,
            budget: Budget::new(Limits::of_this_process()),
            reclaimer,
            past_failed_requests: PastFailedRequests::default(),
            totals: SessionTotals::default(),
        }
    }

    /// Opens an account.
    pub(super) fn add(&mut self, spec: EndpointSpec) -> &Endpoint {
        let share = self.budget.share(spec.quota.mappings);
        let disposal = Disposal::new(share.clone(), &self.reclaimer);
        let (id, seeker) = (spec.id, Seeker::new(share, spec.addresses(), spec.namespace.clone()));
        let account = Account::new(spec, self.limits, disposal, seeker);
        self.endpoints.entry(id).insert_entry(Endpoint::new(account)).into_mut()
    }

    /// Closes an account. Its failed requests are kept for a while.
    pub(super) fn remove(&mut self, id: EndpointId) -> Option<Endpoint> {
        let endpoint = self.endpoints.remove(&id)?;
        let failed_requests = endpoint.account.failed_requests(std::mem::take);
        self.past_failed_requests.keep(
            &endpoint.account.spec().name,
            &endpoint.account.spec().network,
            failed_requests,
        );
        Some(endpoint)
    }

    /// An endpoint.
    pub(super) fn get(&self, id: EndpointId) -> Option<&Endpoint> {
        self.endpoints.get(&id)
    }

    /// An endpoint, to be changed.
    pub(super) fn get_mut(&mut self, id: EndpointId) -> Option<&mut Endpoint> {
        self.endpoints.get_mut(&id)
    }

    /// An endpoint and the counters of all, to be changed.
    pub(super) fn with_totals(&mut self, id: EndpointId) -> Option<(&mut Endpoint, &mut SessionTotals)> {
        Some((self.endpoints.get_mut(&id)?, &mut self.totals))
    }

    /// Counters of all, and what they hold of the budget.
    pub(super) fn totals(&self) -> SessionTotals {
        SessionTotals {
            held_descriptors: self.budget.held(Resource::Descriptors),
            held_mappings: self.budget.held(Resource::Mappings),
            held_memory: self.budget.held(Resource::Memory),
            ..self.totals
        }
    }

    /// Counters of all, to be changed.
    pub(super) fn totals_mut(&mut self) -> &mut SessionTotals {
        &mut self.totals
    }

    /// The names of all.
    pub(super) fn ids(&self) -> Vec<EndpointId> {
        self.endpoints.keys().copied().collect()
    }

    /// The limits of devices.
    pub(super) fn limits(&self) -> DeviceLimits {
        self.limits
    }

    /// Gives up the mappings that no region needs, of all endpoints.
    pub(super) fn evict(&mut self) -> Evicted {
        let mut evicted = Evicted::default();
        self.endpoints.values_mut().for_each(|endpoint| endpoint.arenas.evict(&mut evicted));
        evicted
    }

    /// Unmaps memory for all.
    pub(super) fn reclaimer(&self) -> &Reclaimer {
        &self.reclaimer
    }

    /// Indices beyond the ends of their queues that programs have written, for each endpoint.
    pub(super) fn bad_indices(&self) -> Vec<BadIndices> {
        let of = |Endpoint { account, .. }: &Endpoint| BadIndices {
            name: account.spec().name.clone(),
            network: account.spec().network.clone(),
            count: account.bad_indices(),
        };
        self.endpoints.values().map(of).collect()
    }

    /// Time for which rates have held queue pairs, for each endpoint.
    pub(super) fn held(&self) -> Vec<HeldEndpoint> {
        let of = |Endpoint { account, .. }: &Endpoint| HeldEndpoint {
            name: account.spec().name.clone(),
            network: account.spec().network.clone(),
            times: account.held_by_rates(),
        };
        self.endpoints.values().map(of).collect()
    }

    /// Failed requests, the latest at the end.
    pub(super) fn failed_requests(&self) -> Vec<FailedRequestInfo> {
        let of = |endpoint: &Endpoint| {
            let spec = endpoint.account.spec();
            endpoint
                .account
                .failed_requests(|failed_requests| failed_requests.infos(&spec.name, &spec.network).collect::<Vec<_>>())
        };
        let mut all: Vec<_> = self.past_failed_requests.infos().chain(self.endpoints.values().flat_map(of)).collect();
        all.sort_by_key(|info| std::cmp::Reverse(info.age));
        all
    }
}
