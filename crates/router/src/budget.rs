//! Resource budgets: the router's address space, mappings, descriptors, threads and memory, and each endpoint's share.
//!
//! Everything that a tenant can make the router hold is charged to the tenant's endpoint before it is mapped, opened, started
//! or allocated. A [`Charge`] gives back when it is dropped. An exhausted budget is an error for the tenant that asks, long
//! before the kernel has nothing left for the router itself.
//!
//! A quarter of each limit is guaranteed to the endpoints, in equal parts. Of the rest an endpoint gets at most half of what
//! its neighbours left: each that takes all it can leaves as much to the next.

use rdmesh_uverbs::guard;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::process::{Resource as Rlimit, getrlimit};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A limited resource of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resource {
    /// Bytes mapped.
    AddressSpace,
    /// Mappings (`vm.max_map_count`).
    Mappings,
    /// Open descriptors (`RLIMIT_NOFILE`).
    Descriptors,
    /// Threads that may be blocked by a tenant's files or memory.
    Threads,
    /// Bytes of the router's own memory, page tables included.
    Memory,
}

/// Number of kinds.
const KINDS: usize = 5;

/// A resource has run out for one endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}", .0.advice())]
pub struct Exhausted(pub Resource);

/// Amount of each resource that can be handed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits([u64; KINDS]);

/// The router's budget.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Mutex<Accounts>>);

#[derive(Debug)]
struct Accounts {
    limits: Limits,
    next: u64,
    held: BTreeMap<u64, [u64; KINDS]>,
}

/// Account of one endpoint in the budget. Clones share the account, which ends with the last clone and the last charge.
#[derive(Clone, Debug)]
pub struct Share(Arc<Account>);

#[derive(Debug)]
struct Account {
    budget: Budget,
    number: u64,
    /// The endpoint's own limit on mappings.
    max_mappings: u64,
    /// The resource that was refused last, until a caller has taken note of it.
    refused: Mutex<Option<Resource>>,
}

/// An amount of one resource, given back on drop.
#[derive(Debug)]
pub struct Charge {
    share: Share,
    resource: Resource,
    amount: AtomicU64,
}

impl Resource {
    /// The exhausted resource, and the remedy.
    pub fn advice(self) -> &'static str {
        match self {
            Self::AddressSpace => "address space of the router: register less memory at a time",
            Self::Mappings => "mappings of queues and memory: raise the quota `mappings` and sysctl vm.max_map_count",
            Self::Descriptors => "descriptors of the router for one endpoint: start it with a higher `ulimit -Hn`",
            Self::Threads => "threads of the router: the endpoint's programs keep too many waiting",
            Self::Memory => "memory of the router: raise the memory limit of its control group",
        }
    }

    /// The error that a program gets.
    pub fn errno(self) -> Errno {
        match self {
            Self::Descriptors => Errno::NFILE,
            Self::Threads => Errno::AGAIN,
            Self::AddressSpace | Self::Mappings | Self::Memory => Errno::NOMEM,
        }
    }
}

impl From<Exhausted> for Errno {
    fn from(Exhausted(resource): Exhausted) -> Self {
        resource.errno()
    }
}

impl Limits {
    /// The limits of this process, less a reserve for its own needs.
    pub fn of_this_process() -> Self {
        let address_space = getrlimit(Rlimit::As).current.unwrap_or(u64::MAX).min(ADDRESS_SPACE);
        let files = getrlimit(Rlimit::Nofile).current.unwrap_or(u64::MAX).min(1 << 20);
        Self([
            address_space - address_space / 4,
            max_map_count().saturating_sub(MAPPINGS_RESERVE).max(MAPPINGS_RESERVE),
            files.saturating_sub(DESCRIPTORS_RESERVE.min(files / 2)),
            THREADS,
            memory_limit(),
        ])
    }

    /// The limit of one resource.
    pub fn of(&self, resource: Resource) -> u64 {
        self.0[resource as usize]
    }

    /// The same with another limit on one resource.
    #[must_use]
    pub fn with(mut self, resource: Resource, limit: u64) -> Self {
        self.0[resource as usize] = limit;
        self
    }
}

impl Budget {
    /// Nothing of it is held yet.
    pub fn new(limits: Limits) -> Self {
        Self(Arc::new(Mutex::new(Accounts { limits, next: 0, held: BTreeMap::new() })))
    }

    /// An account for one endpoint, whose own limit on mappings is `max_mappings`.
    pub fn share(&self, max_mappings: u32) -> Share {
        let mut accounts = self.lock();
        let number = accounts.next;
        accounts.next += 1;
        accounts.held.insert(number, [0; KINDS]);
        Share(Arc::new(Account {
            budget: self.clone(),
            number,
            max_mappings: max_mappings.into(),
            refused: Mutex::default(),
        }))
    }

    /// Total charges of all endpoints.
    pub fn held(&self, resource: Resource) -> u64 {
        self.lock().held.values().map(|held| held[resource as usize]).sum()
    }

    fn lock(&self) -> MutexGuard<'_, Accounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Accounts {
    /// Charges `amount` to account `number`.
    fn take(&mut self, number: u64, resource: Resource, amount: u64) -> Result<(), Exhausted> {
        let kind = resource as usize;
        let mine = self.held.get(&number).map_or(0, |held| held[kind]);
        let wanted = mine.checked_add(amount).ok_or(Exhausted(resource))?;
        let guaranteed = self.guaranteed(kind);
        if wanted > guaranteed {
            let excess = |(of, held): (&u64, &[u64; KINDS])| {
                if *of == number { 0 } else { held[kind].saturating_sub(guaranteed) }
            };
            let neighbours: u64 = self.held.iter().map(excess).sum();
            let limit = self.limits.0[kind];
            let shared = (limit - limit / GUARANTEED).saturating_sub(neighbours);
            if wanted - guaranteed > shared / 2 {
                return Err(Exhausted(resource));
            }
        }
        if let Some(held) = self.held.get_mut(&number) {
            held[kind] = wanted;
        }
        Ok(())
    }

    /// The part that every endpoint can have, independent of its neighbours. Rounded so that it rarely changes as endpoints
    /// come.
    fn guaranteed(&self, kind: usize) -> u64 {
        let parts = (self.held.len() as u64).next_power_of_two().max(FEWEST_PARTS);
        self.limits.0[kind] / GUARANTEED / parts
    }
}

impl Share {
    /// Charges `amount`.
    pub fn take(&self, resource: Resource, amount: u64) -> Result<Charge, Exhausted> {
        let charge = Charge { share: self.clone(), resource, amount: AtomicU64::new(0) };
        charge.grow(amount)?;
        Ok(charge)
    }

    /// The resource that was refused since the last call.
    pub fn take_refusal(&self) -> Option<Resource> {
        self.0.refused.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether a resource was refused that no caller has taken note of yet.
    pub fn has_refused(&self) -> bool {
        self.0.refused.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// The account's number: no other of the budget has it.
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// The amount that is charged to the account.
    pub fn held(&self, resource: Resource) -> u64 {
        self.0.budget.lock().held.get(&self.0.number).map_or(0, |held| held[resource as usize])
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.budget.lock().held.remove(&self.number);
    }
}

impl Charge {
    /// Charges `amount` more.
    pub fn grow(&self, amount: u64) -> Result<(), Exhausted> {
        let grown = self.try_grow(amount);
        if let Err(Exhausted(resource)) = grown {
            *self.share.0.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(resource);
        }
        grown
    }

    fn try_grow(&self, amount: u64) -> Result<(), Exhausted> {
        let account = &self.share.0;
        let mut accounts = account.budget.lock();
        let held = accounts.held.get(&account.number).map_or(0, |held| held[Resource::Mappings as usize]);
        if self.resource == Resource::Mappings && held.saturating_add(amount) > account.max_mappings {
            return Err(Exhausted(self.resource));
        }
        accounts.take(account.number, self.resource, amount)?;
        self.amount.fetch_add(amount, Ordering::Relaxed);
        Ok(())
    }

    /// Gives `amount` back.
    pub fn shrink(&self, amount: u64) {
        let account = &self.share.0;
        let mut accounts = account.budget.lock();
        let given = amount.min(self.amount.load(Ordering::Relaxed));
        self.amount.fetch_sub(given, Ordering::Relaxed);
        if let Some(held) = accounts.held.get_mut(&account.number) {
            held[self.resource as usize] -= given;
        }
    }

    /// Takes over another charge of the same account and resource.
    pub fn absorb(&self, other: Self) {
        debug_assert!(Arc::ptr_eq(&self.share.0, &other.share.0) && self.resource == other.resource);
        self.amount.fetch_add(other.amount.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Takes all of the charge out.
    #[must_use]
    pub fn split(&mut self) -> Self {
        let amount = AtomicU64::new(std::mem::take(self.amount.get_mut()));
        Self { share: self.share.clone(), resource: self.resource, amount }
    }

    /// The charged amount.
    pub fn amount(&self) -> u64 {
        self.amount.load(Ordering::Relaxed)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.shrink(u64::MAX);
    }
}

/// Mappings that the kernel allows a process.
fn max_map_count() -> u64 {
    let text = fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    text.trim().parse().unwrap_or(DEFAULT_MAX_MAP_COUNT)
}

/// Bytes that tenants may make the router use: half of what its control group allows, and not more than a part of the machine's.
fn memory_limit() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        total.trim().trim_end_matches(" kB").parse::<u64>().ok()
    });
    // Without the guard tenants' registered memory counts too, and has to have room.
    let divisor = if guard::is_complete() { 8 } else { 2 };
    let part = machine.map_or(u64::MAX, |kib| (kib << 10) / divisor);
    control_group_limit().map_or(part, |limit| part.min(limit / 2)).max(SMALLEST_MEMORY)
}

/// The lowest limit on memory of the control groups that this process is in.
fn control_group_limit() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    groups.lines().filter_map(|line| group_limit(line, Path::new("/sys/fs/cgroup"))).min()
}

/// The limit of the group that a line of `/proc/PID/cgroup` names, and of those that it lies in.
fn group_limit(line: &str, mount: &Path) -> Option<u64> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?.trim_start_matches('/'));
    let (root, file) = match controllers {
        "" => (mount.to_owned(), "memory.max"),
        _ if controllers.split(',').any(|name| name == "memory") => (mount.join("memory"), "memory.limit_in_bytes"),
        _ => return None,
    };
    // In a container the group may be mounted as the root.
    let group = Some(root.join(path)).filter(|group| is_directory(group)).unwrap_or_else(|| root.clone());
    let limit = |group: &Path| fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
    group.ancestors().take_while(|group| group.starts_with(&root)).filter_map(limit).min()
}

fn is_directory(path: &Path) -> bool {
    open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).is_ok()
}

/// A quarter of what processors of 48-bit addresses give a process.
const ADDRESS_SPACE: u64 = 1 << 45;
const DEFAULT_MAX_MAP_COUNT: u64 = 65_530;
/// For stacks, the allocator, libraries and files of the router's own.
const MAPPINGS_RESERVE: u64 = 2048;
/// For the API, sockets, namespaces and the descriptors of one message (253), which are counted after they have come.
const DESCRIPTORS_RESERVE: u64 = 384;
/// Threads that can be stuck at a time.
const THREADS: u64 = 256;
/// With less memory a router cannot serve any endpoint.
const SMALLEST_MEMORY: u64 = 16 << 20;
/// One part in so many of a limit is guaranteed to the endpoints.
const GUARANTEED: u64 = 4;
/// Parts of that, however few endpoints there are.
const FEWEST_PARTS: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(limit: u64) -> Budget {
        Budget::new(Limits([limit; KINDS]))
    }

    #[test]
    fn a_charge_gives_back_on_drop() {
        let budget = budget(1000);
        let share = budget.share(u32::MAX);
        let charge = share.take(Resource::Memory, 100).unwrap();
        charge.grow(50).unwrap();
        charge.shrink(30);
        charge.absorb(share.take(Resource::Memory, 0).unwrap());
        assert_eq!((charge.amount(), share.held(Resource::Memory), budget.held(Resource::Memory)), (120, 120, 120));
        assert_eq!(share.held(Resource::Mappings), 0);
        drop(charge);
        assert_eq!(budget.held(Resource::Memory), 0);
        drop(share);
        assert!(budget.lock().held.is_empty());
    }

    #[test]
    fn an_account_lives_as_long_as_its_charges() {
        let budget = budget(1000);
        let charge = budget.share(u32::MAX).take(Resource::Threads, 1).unwrap();
        assert_eq!(budget.held(Resource::Threads), 1);
        drop(charge);
        assert!(budget.lock().held.is_empty());
    }

    /// Takes one at a time until the budget is exhausted.
    fn take_all(share: &Share, resource: Resource) -> Charge {
        let charge = share.take(resource, 0).unwrap();
        while charge.grow(1).is_ok() {}
        charge
    }

    #[test]
    fn the_greedy_leave_something_to_everybody() {
        let budget = budget(16_000);
        let shares: Vec<Share> = (0..8).map(|_| budget.share(u32::MAX)).collect();
        let charges: Vec<Charge> = shares.iter().map(|share| take_all(share, Resource::Memory)).collect();
        assert_eq!(charges[0].amount(), 500 + 6000);
        assert_eq!(charges[1].amount(), 500 + 3000);
        assert!(charges.iter().all(|charge| charge.amount() >= 500));
        assert!(budget.held(Resource::Memory) <= 16_000);
    }

    #[test]
    fn one_more_endpoint_is_served_when_all_is_taken() {
        let budget = budget(16_000);
        let greedy: Vec<_> = (0..5).map(|_| take_all(&budget.share(u32::MAX), Resource::Descriptors)).collect();
        assert!(take_all(&budget.share(u32::MAX), Resource::Descriptors).amount() >= 500);
        assert!(greedy[0].amount() > 6000);
    }

    #[test]
    fn an_endpoints_own_limit_holds_too() {
        let budget = budget(16_000);
        let share = budget.share(3);
        assert_eq!(take_all(&share, Resource::Mappings).amount(), 3);
        assert_eq!(take_all(&share, Resource::Memory).amount(), 6500);
    }

    #[test]
    fn amounts_cannot_overflow() {
        let share = budget(u64::MAX).share(u32::MAX);
        let _charge = share.take(Resource::Memory, 1 << 40).unwrap();
        assert_eq!(share.take(Resource::Memory, u64::MAX).err(), Some(Exhausted(Resource::Memory)));
        assert_eq!((share.take_refusal(), share.take_refusal()), (Some(Resource::Memory), None));
    }

    #[test]
    fn limits_are_those_of_the_group_and_its_parents() {
        let mount = tempfile::tempdir().unwrap();
        let (v1, v2) = (mount.path().join("memory/a/b"), mount.path().join("x/y"));
        fs::create_dir_all(&v1).unwrap();
        fs::create_dir_all(&v2).unwrap();
        fs::write(v1.join("memory.limit_in_bytes"), "9223372036854771712\n").unwrap();
        fs::write(mount.path().join("memory/a/memory.limit_in_bytes"), "268435456\n").unwrap();
        fs::write(v2.join("memory.max"), "max\n").unwrap();
        fs::write(mount.path().join("x/memory.max"), "1000\n").unwrap();
        let limit = |line| group_limit(line, mount.path());
        assert_eq!(limit("8:memory:/a/b"), Some(268_435_456));
        assert_eq!(limit("0::/x/y"), Some(1000));
        assert_eq!(limit("3:cpu,cpuacct:/a/b"), None);
        assert_eq!(limit("0::/elsewhere"), None);
    }

    #[test]
    fn this_process_has_something_to_hand_out() {
        let limits = Limits::of_this_process();
        let all = [Resource::AddressSpace, Resource::Mappings, Resource::Descriptors, Resource::Threads];
        assert!(all.iter().all(|resource| limits.of(*resource) > 0));
        assert!(limits.of(Resource::Memory) >= SMALLEST_MEMORY);
        assert_eq!(limits.with(Resource::Memory, 7).of(Resource::Memory), 7);
    }
}
