//! Account of an endpoint: what its programs hold, what they may hold, and what they did wrong.
//!
//! A program is charged before anything is made for it. A [`Charge`] counts against the endpoint's quota and against the router's
//! budget, and gives back when it is dropped. The quota is given back when an object is destroyed, the budget when what it took
//! has really gone.

use super::failed_requests::{FailedRequest, FailedRequests};
use super::held_times::HeldTimes;
use super::lookups::Seeker;
use super::objects::{ObjectCounts, ObjectKind};
use super::program::Program;
use super::spec::EndpointSpec;
use crate::budget::{self, Exhausted, Resource, Share};
use crate::disposal::Disposal;
use crate::io::ExternalPathError;
use rdmesh_nic::policy::{Bucket, Policy, Rate};
use rdmesh_verbs::DeviceLimits;
use rustix::io::Errno;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The account. Clones share it.
#[derive(Clone)]
pub(super) struct Account(Arc<Shared>);

/// The fixed parts of an account.
struct Shared {
    spec: EndpointSpec,
    /// Its share of the router's budget.
    share: Share,
    /// Unmaps the memory and closes the descriptors of its programs.
    disposal: Disposal,
    /// Lookups for its programs, with the back-off for slow ones, and for unreachable memory.
    seeker: Seeker,
    limits: DeviceLimits,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    held: Held,
    /// Rates and priority of its queue pairs.
    policy: Policy,
    /// Recent failed requests of its programs.
    failed_requests: FailedRequests,
    /// The limit that was reached last, until it has been recorded.
    refusal: Option<&'static str>,
    warned: HashSet<&'static str>,
    log_messages: u32,
    /// Indices beyond the ends of their queues that its programs have written.
    bad_indices: u64,
}

/// Amounts that count against the quota.
#[derive(Clone, Copy, Default)]
struct Held {
    connections: u64,
    contexts: u64,
    pinned: u64,
    groups: u64,
    objects: ObjectCounts,
}

/// Something that is charged for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Item {
    /// A connection of a process.
    Connection,
    /// An opened device.
    Context,
    /// An object of a device.
    Object(ObjectKind),
    /// A byte of registered memory that may not go away.
    Pinned,
    /// A membership in a multicast group.
    Group,
}

/// Charge for some of an item; given back when it is dropped.
pub(super) struct Charge {
    account: Account,
    item: Item,
    amount: u64,
    budget: BudgetCharge,
}

/// The part of a charge that is of the router's budget.
pub(super) struct BudgetCharge {
    memory: budget::Charge,
    descriptors: budget::Charge,
}

impl Account {
    /// The account of an endpoint that holds nothing yet.
    pub(super) fn new(spec: EndpointSpec, limits: DeviceLimits, disposal: Disposal, seeker: Seeker) -> Self {
        let share = disposal.share().clone();
        let policy = Policy { steps: Some(steps(spec.quota.chain_steps)), ..spec.policy.clone() };
        let state = Mutex::new(State { policy, ..State::default() });
        Self(Arc::new(Shared { spec, share, disposal, seeker, limits, state }))
    }

    /// Its programs have written `count` more indices beyond the ends of their queues.
    pub(super) fn note_bad_indices(&self, count: u64) {
        self.lock().bad_indices += count;
    }

    /// Indices beyond the ends of their queues that its programs have written.
    pub(super) fn bad_indices(&self) -> u64 {
        self.lock().bad_indices
    }

    /// Charges for `amount` of an item. A quota that is reached is ENOMEM.
    pub(super) fn charge(&self, item: Item, amount: u64) -> Result<Charge, Errno> {
        let (limit, advice) = self.limit(item);
        let mut state = self.lock();
        let held = state.held.get(item);
        if held.checked_add(amount).is_none_or(|sum| sum > limit) {
            state.refuse(self.spec(), advice, limit);
            return Err(Errno::NOMEM);
        }
        let budget = BudgetCharge::new(
            self.share(),
            item.memory().saturating_mul(amount),
            item.descriptors().saturating_mul(amount),
        )?;
        state.held.set(item, held + amount);
        drop(state);
        Ok(Charge { account: self.clone(), item, amount, budget })
    }

    /// Checks the term of a lease. One that is too long is ENOMEM, as other limits that are reached.
    pub(super) fn admit_term(&self, term: Duration) -> Result<(), Errno> {
        let longest = u64::from(self.spec().quota.linger_seconds);
        if term <= Duration::from_secs(longest) {
            return Ok(());
        }
        self.lock().refuse(self.spec(), "seconds of a lease: raise the quota `linger_seconds`", longest);
        Err(Errno::NOMEM)
    }

    /// Whether devices that outlive their programs may keep so many bytes together. The log tells of the first that may not.
    pub(super) fn admit_lingering(&self, bytes: u64) -> bool {
        let limit = self.spec().quota.linger_bytes;
        if bytes > limit {
            let what = "bytes of a device that outlives its program: raise the quota `linger_bytes`";
            self.lock().warn(self.spec(), what, limit);
        }
        bytes <= limit
    }

    /// Whether one more of an item would be within the quota.
    pub(super) fn has_room_for(&self, item: Item) -> bool {
        self.lock().held.get(item) < self.limit(item).0
    }

    /// Amount of an item that is charged.
    pub(super) fn held(&self, item: Item) -> u64 {
        self.lock().held.get(item)
    }

    /// Rates and priority of its queue pairs.
    pub(super) fn policy(&self) -> Policy {
        self.lock().policy.clone()
    }

    /// Changes it, but for the budget of chains, which is a quota, and the time that has been counted.
    pub(super) fn set_policy(&self, policy: Policy) {
        let mut state = self.lock();
        state.policy = Policy { steps: state.policy.steps.take(), held: state.policy.held.clone(), ..policy };
    }

    /// Time for which rates have held its queue pairs.
    pub(super) fn held_by_rates(&self) -> HeldTimes {
        let policy = self.policy();
        HeldTimes::new(|level| Duration::from_nanos(policy.held.by(level)))
    }

    /// Changes the steps of chains in a second that its programs have together.
    pub(super) fn set_chain_steps(&self, per_second: u64) {
        self.lock().policy.steps = Some(steps(per_second));
    }

    /// Counts of its objects.
    pub(super) fn objects(&self) -> ObjectCounts {
        self.lock().held.objects
    }

    /// Records that a resource of the router is exhausted for it.
    pub(super) fn exhausted(&self, resource: Resource) {
        // What it holds is as much as it may, with the neighbours that it has.
        self.lock().refuse(self.spec(), resource.advice(), self.share().held(resource));
    }

    /// The limit that was reached since the last call.
    pub(super) fn take_refusal(&self) -> Option<&'static str> {
        self.lock().refusal.take()
    }

    /// Name, network, addresses and quota of the endpoint.
    pub(super) fn spec(&self) -> &EndpointSpec {
        &self.0.spec
    }

    /// Its share of the router's budget.
    pub(super) fn share(&self) -> &Share {
        &self.0.share
    }

    /// Unmapping and closing, on other threads, of what its programs held.
    pub(super) fn disposal(&self) -> &Disposal {
        &self.0.disposal
    }

    /// Lookups for its programs, with the back-off for slow ones, and for unreachable memory.
    pub(super) fn seeker(&self) -> &Seeker {
        &self.0.seeker
    }

    /// Records a failed request.
    pub(super) fn note(&self, request: FailedRequest, program: &Program) {
        let process = program.process();
        self.lock().failed_requests.note(request, process.pid, || process.comm());
    }

    /// Looks at, or changes, its failed requests.
    pub(super) fn failed_requests<R>(&self, f: impl FnOnce(&mut FailedRequests) -> R) -> R {
        f(&mut self.lock().failed_requests)
    }

    /// Logs, once, why programs do not reach external peers.
    pub(super) fn report_external(&self, error: Option<&ExternalPathError>) {
        let Some(error) = error.filter(|_| self.is_first("external")) else { return };
        let (endpoint, network) = (&self.spec().name, &self.spec().network);
        match error {
            // An endpoint without such an address is not expected to be reachable there.
            ExternalPathError::NoInterface => tracing::info!(endpoint, network, "RDMA stays within rdmesh: {error}"),
            _ => tracing::warn!(endpoint, network, "RDMA stays within rdmesh: {error}"),
        }
    }

    /// Whether `subject` occurs for the first time; events that a tenant can repeat are logged once.
    pub(super) fn is_first(&self, subject: &'static str) -> bool {
        self.lock().warned.insert(subject)
    }

    /// Whether a message about a program may still be logged: the number is limited for each endpoint.
    pub(super) fn may_log(&self) -> bool {
        let mut state = self.lock();
        state.log_messages = state.log_messages.saturating_add(1);
        state.log_messages <= MAX_LOG_MESSAGES
    }

    fn limit(&self, item: Item) -> (u64, &'static str) {
        let (quota, limits) = (&self.spec().quota, &self.0.limits);
        let (limit, advice) = match item {
            Item::Pinned => {
                return (quota.pinned_bytes, "bytes of registered memory: raise the quota `pinned_bytes`");
            }
            // Some for every context's forked children, and one for each of rdma_cm's channels.
            Item::Connection => {
                let channels = quota.qps.saturating_mul(2).min(MAX_CHANNELS);
                (quota.contexts.saturating_mul(4).saturating_add(channels).saturating_add(16), "connections")
            }
            Item::Context => (quota.contexts, "device contexts: raise the quota `contexts`"),
            Item::Group => (MAX_GROUPS, "multicast group memberships"),
            Item::Object(kind) => match kind {
                ObjectKind::Pd => (limits.max_pd, "protection domains"),
                ObjectKind::Mr => (quota.mrs.min(limits.max_mr), "memory regions: raise the quota `mrs`"),
                ObjectKind::Mw => (quota.mrs.min(limits.max_mw), "memory windows: raise the quota `mrs`"),
                ObjectKind::Cq => (quota.cqs.min(limits.max_cq), "completion queues: raise the quota `cqs`"),
                ObjectKind::Channel => (quota.cqs, "completion channels: raise the quota `cqs`"),
                ObjectKind::Qp => (quota.qps.min(limits.max_qp), "queue pairs: raise the quota `qps`"),
                ObjectKind::Srq => (quota.qps.min(limits.max_srq), "shared receive queues: raise the quota `qps`"),
                ObjectKind::Ah => (limits.max_ah, "address handles"),
            },
        };
        (limit.into(), advice)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn refuse(&mut self, spec: &EndpointSpec, what: &'static str, limit: u64) {
        self.warn(spec, what, limit);
        self.refusal = Some(what);
    }

    fn warn(&mut self, spec: &EndpointSpec, what: &'static str, limit: u64) {
        if self.warned.insert(what) {
            tracing::warn!(endpoint = spec.name, network = spec.network, limit, "no more {what}");
        }
    }
}

impl Held {
    fn get(&self, item: Item) -> u64 {
        match item {
            Item::Connection => self.connections,
            Item::Context => self.contexts,
            Item::Pinned => self.pinned,
            Item::Group => self.groups,
            Item::Object(kind) => self.objects.get(kind).into(),
        }
    }

    fn set(&mut self, item: Item, amount: u64) {
        match item {
            Item::Connection => self.connections = amount,
            Item::Context => self.contexts = amount,
            Item::Pinned => self.pinned = amount,
            Item::Group => self.groups = amount,
            // Limited to 32 bits by its quota.
            Item::Object(kind) => self.objects.set(kind, amount as u32),
        }
    }
}

impl Item {
    /// Bytes of the router's memory that one takes, with what is kept of it in tables, but without its queues.
    fn memory(self) -> u64 {
        match self {
            Self::Connection => CONNECTION_MEMORY,
            // Tables that grow with its objects are counted with those.
            Self::Context => 32 << 10,
            Self::Object(kind) => kind.memory(),
            Self::Pinned | Self::Group => 0,
        }
    }

    fn descriptors(self) -> u64 {
        match self {
            // The socket and the program's pidfd.
            Self::Connection => 2,
            // The wake-up, both ends of the asynchronous events, the queue memory.
            Self::Context => 4,
            Self::Object(kind) => kind.descriptors(),
            Self::Pinned | Self::Group => 0,
        }
    }
}

impl Charge {
    /// Item that the charge is for.
    pub(super) fn item(&self) -> Item {
        self.item
    }

    /// The amount.
    pub(super) fn amount(&self) -> u64 {
        self.amount
    }

    /// Takes over another charge of the same account for the same item.
    pub(super) fn absorb(&mut self, mut other: Self) {
        debug_assert!(Arc::ptr_eq(&self.account.0, &other.account.0) && self.item == other.item);
        self.amount += std::mem::take(&mut other.amount);
        self.budget.memory.absorb(other.budget.memory.split());
        self.budget.descriptors.absorb(other.budget.descriptors.split());
    }

    /// Gives some of it back.
    pub(super) fn give_back(&mut self, amount: u64) {
        self.give_back_quota(amount);
        self.budget.memory.shrink(self.item.memory() * amount);
        self.budget.descriptors.shrink(self.item.descriptors() * amount);
    }

    /// Gives all of the quota back. What is returned is of the budget, to be kept until what it is for has gone.
    pub(super) fn end(mut self) -> BudgetCharge {
        self.give_back_quota(self.amount);
        BudgetCharge { memory: self.budget.memory.split(), descriptors: self.budget.descriptors.split() }
    }

    fn give_back_quota(&mut self, amount: u64) {
        let amount = amount.min(self.amount);
        self.amount -= amount;
        let mut state = self.account.lock();
        let held = state.held.get(self.item);
        state.held.set(self.item, held - amount);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.give_back_quota(self.amount);
    }
}

impl BudgetCharge {
    /// Charges for something that takes so many bytes and descriptors.
    pub(super) fn new(share: &Share, memory: u64, descriptors: u64) -> Result<Self, Exhausted> {
        let memory = share.take(Resource::Memory, memory)?;
        Ok(Self { memory, descriptors: share.take(Resource::Descriptors, descriptors)? })
    }
}

/// Budget of an endpoint's chains.
fn steps(per_second: u64) -> Arc<Bucket> {
    Arc::new(Bucket::new(Rate::with_usual_burst(per_second, 1)))
}

/// Bytes of the router's memory that a connection takes, with an answer that waits to be read, or a message that waits for room.
pub(super) const CONNECTION_MEMORY: u64 = 40 << 10;
/// Maximum number of log messages about an endpoint's programs.
const MAX_LOG_MESSAGES: u32 = 32;
/// Channels of rdma_cm: more than programs with one for each of a thousand connections need. Each takes three descriptors.
const MAX_CHANNELS: u32 = 4096;
/// Memberships in multicast groups, of all queue pairs.
const MAX_GROUPS: u32 = 65_536;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::{Budget, Limits};
    use crate::disposal::Reclaimer;
    use crate::endpoint::EndpointId;
    use rdmesh_fabric::Quota;
    use rdmesh_verbs::Vni;

    fn account(quota: Quota) -> Account {
        let spec = EndpointSpec {
            policy: Policy::default(),
            id: EndpointId(1),
            name: "a".into(),
            network: "blue".into(),
            vni: Vni(1),
            gids: Vec::new(),
            quota,
            allowed_uid: None,
            namespace: None,
        };
        let share = Budget::new(Limits::of_this_process()).share(u32::MAX);
        let disposal = Disposal::new(share.clone(), &Reclaimer::new());
        Account::new(spec, DeviceLimits::default(), disposal, Seeker::new(share, Vec::new(), None))
    }

    #[test]
    fn pinned_bytes_cannot_overflow_the_account() {
        let account = account(Quota { pinned_bytes: 1 << 40, ..Quota::default() });
        let _some = account.charge(Item::Pinned, 4096).unwrap();
        assert_eq!(account.charge(Item::Pinned, u64::MAX).err(), Some(Errno::NOMEM));
        assert!(account.take_refusal().is_some());
        assert!(account.charge(Item::Pinned, 4096).is_ok());
        assert_eq!(account.held(Item::Pinned), 4096);
    }

    #[test]
    fn a_charge_gives_back_when_it_is_dropped() {
        let account = account(Quota { qps: 3, ..Quota::default() });
        let qp = Item::Object(ObjectKind::Qp);
        let mut all = account.charge(qp, 1).unwrap();
        all.absorb(account.charge(qp, 2).unwrap());
        assert_eq!((all.amount(), account.held(qp), account.charge(qp, 1).err()), (3, 3, Some(Errno::NOMEM)));
        let memory = account.share().held(Resource::Memory);
        all.give_back(1);
        assert_eq!((account.held(qp), account.share().held(Resource::Memory)), (2, memory / 3 * 2));
        // The quota comes back at the end, the memory when it has really gone.
        let budget = all.end();
        assert_eq!((account.held(qp), account.share().held(Resource::Memory)), (0, memory / 3 * 2));
        drop(budget);
        assert_eq!(account.share().held(Resource::Memory), 0);
        drop(account.charge(Item::Context, 1).unwrap());
        assert_eq!(account.held(Item::Context), 0);
        assert_eq!(account.share().held(Resource::Descriptors), 0);
    }

    #[test]
    fn a_refused_quota_charges_nothing() {
        let account = account(Quota { contexts: 0, ..Quota::default() });
        assert_eq!(account.charge(Item::Context, 1).err(), Some(Errno::NOMEM));
        assert_eq!(account.share().held(Resource::Memory), 0);
    }
}
