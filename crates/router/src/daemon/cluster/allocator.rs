//! Networks and addresses of new endpoints, from the cluster.

use crate::daemon::error::HostError;
use rdmesh_fabric::api::{AbsentHost, StoreAccess, StoreState};
use rdmesh_fabric::cluster::{Announced, Cluster, ClusterError, Member};
use rdmesh_fabric::{
    DEFAULT_TENANT, Endpoint, InterfaceName, Isolation, Labels, Name, Network, NetworkGroups, PublicKey, Quota,
    Registry, RegistryError, Rotated,
};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::timeout;

/// State that the threads which make and remove endpoints share with the one that follows the cluster.
pub(in crate::daemon) struct Allocator {
    registry: Registry,
    runtime: Handle,
    state: Mutex<State>,
    changed: Notify,
    /// The cluster has been told of an endpoint that has gone, or cannot be told now.
    told: Condvar,
}

/// Longest time for which a new endpoint waits until the cluster knows that the last one with its address has gone.
const LONGEST_GOING: Duration = Duration::from_secs(5);
/// Time for an answer of a store that has not answered the last renewal of the leases. Else who asks waits as long as the
/// store's own time-outs say.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Default)]
struct State {
    /// None until the host has joined.
    member: Option<Arc<Member>>,
    /// Endpoints that have gone, of which the cluster has not been told.
    going: Vec<Endpoint>,
    /// Announcement of this host that the cluster is to have.
    announced: Announced,
    /// The last renewal of the leases has failed.
    is_store_away: bool,
    /// End of the host's tenure, unless it is renewed.
    tenure_ends: Option<Instant>,
    /// Hosts that the store has lost, each with the time at which its endpoints are forgotten.
    absent: Vec<Absent>,
}

/// A host that the store has lost, on a network.
#[derive(Clone, Debug)]
pub(super) struct Absent {
    pub(super) host: Name,
    pub(super) network: Name,
    pub(super) endpoints: usize,
    pub(super) until: Instant,
}

impl Allocator {
    /// Nothing is allocated before the host has joined. `runtime` is driven by another thread.
    pub(super) fn new(registry: Registry, runtime: Handle) -> Self {
        Self { registry, runtime, state: Mutex::default(), changed: Notify::new(), told: Condvar::new() }
    }

    /// Addresses for a new endpoint, `asked` or free ones. Its network is known here afterwards, as the cluster knows it. The store is
    /// needed only for a network that is new here, where no address of this host's blocks is fresh, and for those that were asked for.
    pub(in crate::daemon) fn take(
        &self,
        network: &Name,
        vni: Option<u32>,
        endpoint: &Name,
        asked: &[IpAddr],
    ) -> Result<Vec<IpAddr>, HostError> {
        let member = self.state().member.clone().ok_or(HostError::NotJoined)?;
        let families: BTreeSet<bool> = asked.iter().map(IpAddr::is_ipv4).collect();
        if families.len() != asked.len() {
            return Err(RegistryError::TooManyAddresses.into());
        }
        let network = match self.known_network(&member, network)? {
            Some(known) => known,
            None => self.ask(find_network(member.cluster(), network, vni, asked))?,
        };
        self.registry.adopt_network(&network)?;
        self.learn_groups(&member, &network.name);
        self.wait_until_free(&network.name, asked);
        let mut taken = Vec::new();
        let outcome = self.ask(async {
            for &address in asked {
                member.take_exactly(&network, endpoint, address).await?;
                taken.push(address);
            }
            for &range in network.subnets.iter().filter(|_| asked.is_empty()) {
                taken.push(member.take(&network, range).await?);
            }
            Ok(())
        });
        match outcome {
            Ok(()) => Ok(taken),
            Err(error) => {
                self.give_back(&network.name, endpoint, taken);
                Err(error)
            }
        }
    }

    /// The network as it is known here. Of one without endpoints here the cluster is asked whether it was removed meanwhile, and
    /// perhaps made again: then it is forgotten.
    fn known_network(&self, member: &Member, name: &Name) -> Result<Option<Network>, HostError> {
        let Some(known) = self.registry.find_network(name)? else { return Ok(None) };
        if self.registry.check_unused(name).is_err() {
            return Ok(Some(known));
        }
        let is_same = |there: &Network| Network { is_complete: known.is_complete, ..there.clone() } == known;
        match self.ask(member.cluster().network(name)) {
            Ok(there) if there.as_ref().is_some_and(is_same) => Ok(Some(known)),
            Ok(there) => match self.registry.remove_network(name) {
                // Another endpoint that is made now may be on the new one already.
                Ok(()) | Err(RegistryError::NetworkInUse { .. } | RegistryError::NoSuchNetwork(_)) => Ok(there),
                Err(error) => Err(error.into()),
            },
            // Without the store what was known last holds.
            Err(error) => {
                tracing::warn!(network = %name, %error, "the network is taken for what was known last");
                Ok(Some(known))
            }
        }
    }

    /// The answer of the cluster, for which nobody waits long while its store is known to be away.
    fn ask<R>(&self, question: impl Future<Output = Result<R, ClusterError>>) -> Result<R, HostError> {
        if !self.state().is_store_away {
            return Ok(self.runtime.block_on(question)?);
        }
        let answer = self.runtime.block_on(async { timeout(PATIENCE, question).await });
        Ok(answer.map_err(|_| HostError::StoreAway)??)
    }

    /// Notes whether the store has left the last renewal of the leases without an answer; returns what was noted before.
    pub(super) fn set_store_away(&self, is_away: bool) -> bool {
        let was_away = std::mem::replace(&mut self.state().is_store_away, is_away);
        self.told.notify_all();
        was_away
    }

    /// Waits while the cluster is told that the last endpoint of this host with one of these addresses has gone: who starts a
    /// program anew does so when the last one has ended.
    fn wait_until_free(&self, network: &Name, addresses: &[IpAddr]) {
        let is_going = |going: &Endpoint| {
            going.network == *network && going.addresses.iter().any(|address| addresses.contains(address))
        };
        let state = self.state();
        let is_told_soon = |state: &mut State| !state.is_store_away && state.going.iter().any(is_going);
        let waited = self.told.wait_timeout_while(state, LONGEST_GOING, is_told_soon);
        drop(waited);
    }

    /// Reads the security groups of a network that is not followed yet, so that no endpoint is there before its rules are.
    fn learn_groups(&self, member: &Member, network: &Name) {
        let own = &member.host().name;
        let endpoints = self.registry.endpoints().unwrap_or_default();
        if endpoints.iter().any(|endpoint| endpoint.network == *network && endpoint.host == *own) {
            return;
        }
        let cluster = member.cluster();
        let known = self.ask(async {
            let groups = cluster.groups(network).await?;
            let others = if groups.is_empty() { Vec::new() } else { cluster.endpoints(network).await? };
            Ok(NetworkGroups::new(groups, others.iter().filter(|other| other.host != *own)))
        });
        // Without the store what was known last holds.
        let told = known.and_then(|known| Ok(self.registry.set_groups(network, &known)?));
        if let Err(error) = told {
            tracing::warn!(%network, %error, "the network's security groups are those that were known last");
        }
    }

    /// Result of `work` in the cluster; an error where the host has not joined it.
    pub(in crate::daemon) fn with_cluster<R, F>(&self, work: impl FnOnce(Cluster) -> F) -> Result<R, HostError>
    where
        F: Future<Output = Result<R, ClusterError>>,
    {
        let member = self.state().member.clone().ok_or(HostError::NotJoined)?;
        self.ask(work(member.cluster().clone()))
    }

    /// Gives back addresses of an endpoint that was not made.
    pub(in crate::daemon) fn give_back(&self, network: &Name, endpoint: &Name, addresses: Vec<IpAddr>) {
        let Some(member) = self.state().member.clone().filter(|_| !addresses.is_empty()) else { return };
        self.release(Endpoint {
            name: endpoint.clone(),
            network: network.clone(),
            host: member.host().name.clone(),
            addresses,
            quota: Quota::default(),
            allowed_uid: None,
            owner_pid: None,
            isolation: Isolation::None,
            interface: InterfaceName::default(),
            pool: None,
            labels: Labels::default(),
        });
    }

    /// The cluster is to be told of an endpoint that has come.
    pub(in crate::daemon) fn publish(&self) {
        self.changed.notify_one();
    }

    /// The cluster is to be told whether interfaces of this host are attached to `network`.
    pub(in crate::daemon) fn set_attached(&self, network: &Name, is_attached: bool) {
        let mut state = self.state();
        let attached = &mut state.announced.attached;
        let _ = if is_attached { attached.insert(network.clone()) } else { attached.remove(network) };
        drop(state);
        self.changed.notify_one();
    }

    /// The cluster is to be told of this host's public keys.
    pub(in crate::daemon) fn set_public_keys(&self, keys: Rotated<PublicKey>) {
        self.state().announced.public_keys = Some(keys);
        self.changed.notify_one();
    }

    /// The cluster is to be told that an endpoint has gone.
    pub(in crate::daemon) fn release(&self, endpoint: Endpoint) {
        self.state().going.push(endpoint);
        self.changed.notify_one();
    }

    /// State of the store and of the hosts that it has lost, for operators.
    pub(in crate::daemon) fn store_state(&self, access: StoreAccess) -> StoreState {
        let (state, now) = (self.state(), Instant::now());
        let left = |until: Instant| until.saturating_duration_since(now).as_secs();
        let has_joined = state.member.is_some();
        let absent = state.absent.iter().map(|absent| AbsentHost {
            host: absent.host.clone(),
            network: absent.network.clone(),
            endpoints: absent.endpoints,
            left_s: left(absent.until),
        });
        StoreState {
            access,
            has_joined,
            answers: has_joined && !state.is_store_away,
            tenure_left_s: state.tenure_ends.filter(|_| state.is_store_away).map(left),
            absent: absent.collect(),
        }
    }

    /// The leases were renewed: nobody else is given this host's addresses before that time.
    pub(super) fn set_tenure_end(&self, ends: Instant) {
        self.state().tenure_ends = Some(ends);
    }

    /// These hosts are without a session.
    pub(super) fn set_absent(&self, absent: Vec<Absent>) {
        self.state().absent = absent;
    }

    pub(super) fn set_member(&self, member: Arc<Member>) {
        self.state().member = Some(member);
    }

    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    pub(super) fn announced(&self) -> Announced {
        self.state().announced.clone()
    }

    pub(super) fn going(&self) -> Vec<Endpoint> {
        self.state().going.clone()
    }

    pub(super) fn gone(&self, endpoint: &Endpoint) {
        let mut state = self.state();
        if let Some(at) = state.going.iter().position(|going| going == endpoint) {
            state.going.remove(at);
            self.told.notify_all();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The network `name` in the cluster, made where there is none.
async fn find_network(
    cluster: &Cluster,
    name: &Name,
    vni: Option<u32>,
    addresses: &[IpAddr],
) -> Result<Network, ClusterError> {
    let tenant = DEFAULT_TENANT.parse().expect("the default is a name");
    let known = cluster.network(name).await?;
    match (known, vni) {
        (Some(known), _) => Ok(known),
        (None, Some(vni)) => cluster.add_network(&Network::around(name.clone(), vni, addresses)).await,
        (None, None) => cluster.network_or_new(name, &tenant, addresses).await,
    }
}
