//! The thread that keeps this host's registry and the cluster in agreement.

use super::SharedStore;
use super::allocator::{Absent, Allocator};
use super::view::{self, Known, Target};
use crate::daemon::endpoints::Endpoints;
use crate::daemon::full_name::FullName;
use crate::daemon::peers::PeerHosts;
use rdmesh_fabric::cluster::{
    Absences, Announced, Cluster, ClusterError, CommonView, Follower, Member, NetworkView, Renewal, View,
};
use rdmesh_fabric::store::{LocalStore, StoreError};
use rdmesh_fabric::{Endpoint, Host as HostRecord, Name, Network, Registry};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{AbortHandle, spawn_blocking};
use tokio::time::{sleep, timeout};

/// The thread, before and after its start. Dropping it ends the thread, which tells the cluster what it still can.
pub(in crate::daemon) struct Agent {
    allocator: Arc<Allocator>,
    runtime: Option<Runtime>,
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

/// State of the thread.
pub(in crate::daemon) struct Parts {
    pub(in crate::daemon) store: SharedStore,
    pub(in crate::daemon) local: Arc<dyn LocalStore>,
    pub(in crate::daemon) host: HostRecord,
    pub(in crate::daemon) registry: Registry,
    pub(in crate::daemon) peers: Arc<PeerHosts>,
    pub(in crate::daemon) endpoints: Arc<Endpoints>,
}

impl Agent {
    /// An agent that does nothing yet.
    pub(in crate::daemon) fn new(registry: Registry) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let allocator = Arc::new(Allocator::new(registry, runtime.handle().clone()));
        Ok(Self { allocator, runtime: Some(runtime), stop: Arc::default(), thread: None })
    }

    /// Networks and addresses for new endpoints.
    pub(in crate::daemon) fn allocator(&self) -> Arc<Allocator> {
        Arc::clone(&self.allocator)
    }

    /// Starts the thread.
    pub(in crate::daemon) fn start(&mut self, parts: Parts) -> io::Result<()> {
        let Some(runtime) = self.runtime.take() else { return Ok(()) };
        let (allocator, stop) = (self.allocator(), Arc::clone(&self.stop));
        let thread = thread::Builder::new().name("rdmesh-cluster".to_owned());
        self.thread = Some(thread.spawn(move || runtime.block_on(run(parts, allocator, &stop)))?);
        Ok(())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported already.
            let _ = thread.join();
        }
    }
}

async fn run(parts: Parts, allocator: Arc<Allocator>, stop: &Notify) {
    let mut work = tokio::select! {
        () = stop.notified() => return,
        work = Work::join(parts, allocator) => work,
    };
    tokio::select! {
        () = stop.notified() => {}
        () = work.follow() => {}
    }
    // A store that is away finds out by the leases.
    if timeout(FAREWELL, work.leave()).await.is_err() {
        tracing::warn!("cannot tell the cluster that this router ends");
    }
}

/// The thread's state once the host has joined.
struct Work {
    parts: Parts,
    allocator: Arc<Allocator>,
    member: Arc<Member>,
    /// Endpoints that the cluster knows.
    published: BTreeSet<FullName>,
    /// Announcement of this host that the cluster has.
    announced: Announced,
    known: Known,
    followers: BTreeMap<Name, Followed>,
    /// Origin of the times of absence.
    began: Instant,
    /// Of what all hosts follow.
    _common: AbortOnDrop,
    news: (UnboundedSender<News>, UnboundedReceiver<News>),
}

/// A network that is followed.
struct Followed {
    _task: AbortOnDrop,
    /// The last one; none where nothing is known yet.
    view: Option<NetworkView>,
    absences: Absences,
}

impl Followed {
    fn take_in(&mut self, view: NetworkView, now: Duration) {
        let before = self.view.take().unwrap_or_default();
        for host in self.absences.observe(&before, &view, now) {
            tracing::warn!(%host, "a host is lost, or the store is to it; its endpoints stay known for the tenure");
        }
        self.view = Some(view);
    }

    /// With what absent hosts have.
    fn complete(&self) -> Option<NetworkView> {
        self.view.as_ref().map(|view| self.absences.complete(view))
    }
}

/// A view, as a follower has it.
enum News {
    Network(Name, NetworkView),
    Common(CommonView),
}

/// A task that ends with its owner.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Work {
    /// Joins the cluster, as often as it takes.
    async fn join(parts: Parts, allocator: Arc<Allocator>) -> Self {
        let started = Instant::now();
        let mut said = None;
        loop {
            let (cluster, local) = (Cluster::new(parts.store.store()), Arc::clone(&parts.local));
            let clock: rdmesh_fabric::cluster::Clock = Arc::new(move || started.elapsed());
            match Member::join(cluster, local, clock, parts.store.terms(), parts.host.clone()).await {
                Ok((member, _)) => {
                    tracing::info!(host = %parts.host.name, "this host has joined the cluster");
                    return Self::with(parts, allocator, Arc::new(member)).await;
                }
                Err(error) if said.as_ref() != Some(&error) => {
                    tracing::warn!(%error, "this host has not joined the cluster yet");
                    said = Some(error);
                }
                Err(_) => {}
            }
            sleep(RETRY).await;
        }
    }

    async fn with(parts: Parts, allocator: Arc<Allocator>, member: Arc<Member>) -> Self {
        let (published, announced, known) = (BTreeSet::new(), allocator.announced(), Known::default());
        // Before the first endpoint is published.
        member.set_announced(announced.clone());
        let (followers, news) = (BTreeMap::new(), unbounded_channel());
        let common = Follower::of_cluster(member.cluster().clone());
        let common = tokio::spawn(follow(common, News::Common, news.0.clone()));
        let _common = AbortOnDrop(common.abort_handle());
        let began = Instant::now();
        let mut work = Self { parts, allocator, member, published, announced, known, followers, began, _common, news };
        let living = work.living();
        living.iter().for_each(|endpoint| work.member.adopt(endpoint));
        work.allocator.set_member(Arc::clone(&work.member));
        work.allocator.set_tenure_end(work.began + work.parts.store.terms().tenure);
        work.catch_up().await;
        let networks: BTreeSet<&Name> = living.iter().map(|endpoint| &endpoint.network).collect();
        for network in networks {
            if let Err(error) = work.member.reconcile(network, &living).await {
                tracing::warn!(%network, %error, "cannot remove what the last router left in the store, it expires");
            }
        }
        work
    }

    /// Follows this host's endpoints and the cluster.
    async fn follow(&mut self) {
        let mut renewal = Instant::now();
        loop {
            let pause = (renewal + self.member.pause()).saturating_duration_since(Instant::now());
            let allocator = Arc::clone(&self.allocator);
            tokio::select! {
                () = sleep(pause) => {
                    renewal = Instant::now();
                    self.renew().await;
                    self.catch_up().await;
                    self.forget_absent().await;
                }
                () = allocator.changed() => self.catch_up().await,
                Some(news) = self.news.1.recv() => {
                    self.take_in(news);
                    // Views that have come meanwhile are applied together.
                    while let Ok(news) = self.news.1.try_recv() {
                        self.take_in(news);
                    }
                    self.say_who_is_absent();
                    self.apply().await;
                }
            }
        }
    }

    /// Lets operators know which hosts are without a session.
    fn say_who_is_absent(&self) {
        let now = self.began.elapsed();
        let absent = self.followers.iter().flat_map(|(network, followed)| {
            followed.absences.hosts(now).map(|(host, endpoints, left)| Absent {
                host: host.clone(),
                network: network.clone(),
                endpoints,
                until: Instant::now() + left,
            })
        });
        self.allocator.set_absent(absent.collect());
    }

    /// A follower has seen another view. One of a network that was left meanwhile would stay for ever.
    fn take_in(&mut self, news: News) {
        match news {
            News::Common(view) => self.known.common = Some(view),
            News::Network(network, view) => {
                if let Some(followed) = self.followers.get_mut(&network) {
                    followed.take_in(view, self.began.elapsed());
                    self.known.networks.insert(network, followed.complete());
                }
            }
        }
    }

    /// Endpoints of lost hosts go when their tenures may have ended.
    async fn forget_absent(&mut self) {
        let now = self.began.elapsed();
        let mut has_changed = false;
        for (network, followed) in &mut self.followers {
            if followed.absences.forget(now) {
                tracing::info!(%network, "endpoints of a host that stayed away from the store are forgotten");
                self.known.networks.insert(network.clone(), followed.complete());
                has_changed = true;
            }
        }
        if has_changed {
            self.say_who_is_absent();
            self.apply().await;
        }
    }

    async fn renew(&mut self) {
        let asked = Instant::now();
        match self.member.renew().await {
            Ok(Renewal::Kept) => {}
            Ok(Renewal::Anew) => {
                tracing::warn!("the cluster had given this host up; its endpoints are published again");
                self.published.clear();
            }
            Err(error) => {
                if !self.allocator.set_store_away(true) {
                    tracing::warn!(%error, "the store does not answer: traffic goes on, changes wait for it");
                }
                return;
            }
        }
        self.allocator.set_tenure_end(asked + self.parts.store.terms().tenure);
        if self.allocator.set_store_away(false) {
            tracing::info!("the store answers again");
        }
    }

    /// Tells the cluster of endpoints that have come and gone, and follows the networks of those that there are.
    async fn catch_up(&mut self) {
        self.tell_of_host().await;
        let living = self.living();
        // One unanswered question is enough: many would keep the next renewal waiting.
        if let Err(error) = self.tell_of_endpoints(&living).await {
            tracing::debug!(%error, "which endpoints have come and gone is told later");
        }
        let networks: BTreeSet<Name> = living.into_iter().map(|endpoint| endpoint.network).collect();
        self.follow_networks(networks.clone()).await;
        self.stock(&networks).await;
    }

    /// Tells the cluster of endpoints that have gone, and of the `living` ones that it does not know; an error where the store
    /// does not answer.
    async fn tell_of_endpoints(&mut self, living: &[Endpoint]) -> Result<(), StoreError> {
        for endpoint in self.allocator.going() {
            match self.member.release(&endpoint).await {
                Ok(()) => {
                    self.published.remove(&FullName::of(&endpoint));
                    self.allocator.gone(&endpoint);
                }
                Err(ClusterError::Store(error)) if error.is_silence() => return Err(error),
                Err(error) => tracing::debug!(name = %endpoint.name, %error, "an endpoint's end is not told yet"),
            }
        }
        let going = self.allocator.going();
        for endpoint in living {
            let key = FullName::of(endpoint);
            let has_predecessor = going.iter().any(|gone| FullName::of(gone) == key);
            if !self.published.contains(&key) && !has_predecessor && self.publish(endpoint).await? {
                self.published.insert(key);
            }
        }
        Ok(())
    }

    /// Gets addresses for endpoints to come.
    async fn stock(&self, networks: &BTreeSet<Name>) {
        for name in networks {
            let Ok(network) = self.parts.registry.network(name, None, &[]) else { continue };
            if let Err(error) = self.member.stock(&network).await {
                tracing::debug!(network = %name, %error, "the reserve of addresses is not full");
                return;
            }
        }
    }

    /// Tells the others, on the networks with endpoints of this host, what is announced of it.
    async fn tell_of_host(&mut self) {
        let announced = self.allocator.announced();
        if announced == self.announced {
            return;
        }
        // Networks that get endpoints later are told of with them.
        self.member.set_announced(announced.clone());
        for network in self.followers.keys() {
            if let Err(error) = self.member.tell_of_host(network).await {
                tracing::debug!(%network, %error, "the host's keys and attached interfaces are told later");
                return;
            }
        }
        self.announced = announced;
    }

    /// Tells the cluster of an endpoint; whether it knows it now. An error where the store does not answer.
    async fn publish(&self, endpoint: &Endpoint) -> Result<bool, StoreError> {
        let (network, name) = (&endpoint.network, &endpoint.name);
        let Ok(record) = self.parts.registry.network(network, None, &[]) else { return Ok(false) };
        let published = match self.member.cluster().network(network).await {
            Ok(Some(known)) if known.vni == record.vni => self.member.publish(&known, endpoint).await,
            Ok(Some(_)) => Err(ClusterError::Exists { what: "network", name: network.to_string() }),
            Ok(None) => match self.member.cluster().add_network(&Network { is_complete: false, ..record }).await {
                Ok(added) => self.member.publish(&added, endpoint).await,
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        match published {
            Ok(_) => return Ok(true),
            Err(error @ (ClusterError::AddressTaken { .. } | ClusterError::Elsewhere { .. })) => {
                tracing::error!(%network, %name, %error, "endpoint removed: it is another host's now");
                let (endpoints, network, name) = (Arc::clone(&self.parts.endpoints), network.clone(), name.clone());
                let removed = spawn_blocking(move || endpoints.remove(network, name)).await;
                if let Ok(Err(error)) = removed {
                    tracing::error!(%error, "cannot remove it");
                }
            }
            Err(ClusterError::Store(error)) if error.is_silence() => return Err(error),
            Err(ClusterError::Store(error)) => {
                tracing::debug!(%network, %name, %error, "cannot publish endpoint, will retry");
            }
            Err(error) => tracing::error!(%network, %name, %error, "other hosts cannot reach endpoint"),
        }
        Ok(false)
    }

    /// Follows these networks and no others.
    async fn follow_networks(&mut self, networks: BTreeSet<Name>) {
        let left: Vec<Name> = self.followers.keys().filter(|network| !networks.contains(*network)).cloned().collect();
        for network in &left {
            self.followers.remove(network);
            self.known.networks.remove(network);
            if let Err(error) = self.member.leave_network(network).await {
                tracing::debug!(%network, %error, "that this host has left a network is not told");
            }
        }
        for network in networks {
            if !self.followers.contains_key(&network) {
                let follower = Follower::of_network(self.member.cluster().clone(), &network);
                let name = network.clone();
                let news = move |view| News::Network(name.clone(), view);
                let task = tokio::spawn(follow(follower, news, self.news.0.clone()));
                let absences = Absences::new(self.parts.store.terms());
                let followed = Followed { _task: AbortOnDrop(task.abort_handle()), view: None, absences };
                self.followers.insert(network.clone(), followed);
                self.known.networks.insert(network, None);
            }
        }
        if !left.is_empty() {
            self.apply().await;
        }
    }

    /// Brings what the views say into the registry, on a thread that may wait for the kernel.
    async fn apply(&self) {
        let known = self.known.clone();
        let Parts { registry, peers, endpoints, .. } = &self.parts;
        let target = Target {
            own: self.parts.host.name.clone(),
            registry: registry.clone(),
            peers: Arc::clone(peers),
            endpoints: Arc::clone(endpoints),
        };
        match spawn_blocking(move || view::apply(&known, &target)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "cannot reach some endpoints of other hosts"),
            Err(error) => tracing::error!(%error, "cannot reach some endpoints of other hosts"),
        }
    }

    /// Tells the cluster what has gone. A router that leaves nothing behind leaves the cluster.
    async fn leave(&mut self) {
        self.followers.clear();
        for endpoint in self.allocator.going() {
            if self.member.release(&endpoint).await.is_ok() {
                self.allocator.gone(&endpoint);
            }
        }
        if self.living().is_empty()
            && self.allocator.going().is_empty()
            && let Err(error) = self.member.leave().await
        {
            tracing::warn!(%error, "cannot tell the cluster that this router ends");
        }
    }

    /// The endpoints of this host.
    fn living(&self) -> Vec<Endpoint> {
        let all = self.parts.registry.endpoints().unwrap_or_default();
        all.into_iter().filter(|endpoint| endpoint.host == self.parts.host.name).collect()
    }
}

/// Sends each view of a part of the store, through all failures.
async fn follow<V: View>(mut follower: Follower<V>, news: impl Fn(V) -> News + Send, to: UnboundedSender<News>) {
    loop {
        match follower.follow().await {
            Ok(()) if to.send(news(follower.view().clone())).is_err() => return,
            Ok(()) => {}
            Err(error) => {
                tracing::debug!(%error, "the store is followed again soon");
                sleep(RETRY).await;
            }
        }
    }
}

const RETRY: Duration = Duration::from_millis(500);
/// Less than the time in which `rdmesh down` waits.
const FAREWELL: Duration = Duration::from_secs(5);
