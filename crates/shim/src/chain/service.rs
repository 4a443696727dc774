//! Services: chains in queues, each for one client.
#![allow(unsafe_code)]

use super::area::Area;
use super::border::{Failure, Result, code, free, given, list, object, store, text};
use super::calls::Device;
use super::group::{Fault, Stats, group};
use super::queue::{How as Manage, Queue};
use super::text::Verified;
use crate::libibverbs::objects::{CountingCq, QueuePair, Sizes};
use crate::libibverbs::{Pd, Qp};
use libc::{c_char, c_int, c_void};
use rdmesh_chain::Installed;
use rdmesh_chain::program::{Chain, Content, Region, Remote};
use rdmesh_preload::replace;
use rdmesh_uverbs::session::chain::{Group, QueueSide};
use rdmesh_verbs::Access;
use rdmesh_verbs::chain::ChainOp;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// An installed chain. Objects are destroyed in the order of the fields.
pub(super) struct Service {
    queues: Vec<Member>,
    cqs: Vec<CountingCq>,
    areas: Vec<Arc<Area>>,
    device: Device,
    chain: Chain,
    group: u32,
    /// The queues that lead to the client, by number; the first has the client's messages.
    clients: Vec<usize>,
}

/// A queue pair of a service.
struct Member {
    managed: Queue,
    qp: QueuePair,
    is_looped: bool,
}

/// `struct rdmesh_table`.
#[repr(C)]
struct Table {
    name: *const c_char,
    address: *mut c_void,
    length: u64,
    key: u32,
    reserved: u32,
}

/// `struct rdmesh_install`.
#[repr(C)]
struct Install {
    beside: *const Service,
    group: u32,
    num_tables: u32,
    tables: *const Table,
}

/// Wishes of the program.
#[derive(Default)]
struct How<'a> {
    beside: Option<&'a Service>,
    group: u32,
    tables: Vec<(&'a str, &'a Table)>,
}

impl Install {
    /// # Safety
    /// Its pointers are null or valid.
    unsafe fn parse(&self) -> Result<How<'_>> {
        // SAFETY: by the contract.
        unsafe {
            let tables = list(self.tables, self.num_tables as usize, "the list of tables")?;
            let tables = tables.iter().map(|table| Ok((text(table.name, "the name of a table")?, table)));
            Ok(How { beside: self.beside.as_ref(), group: self.group, tables: tables.collect::<Result<_>>()? })
        }
    }
}

impl How<'_> {
    fn table(&self, name: &str) -> Option<&Table> {
        self.tables.iter().find(|(of, _)| *of == name).map(|(_, table)| *table)
    }
}

impl Table {
    fn area(&self, length: u64) -> Result<Area> {
        if self.address.is_null() || self.length < length || !self.address.addr().is_multiple_of(8) {
            return Err(Failure::invalid(format_args!(
                "a table of the program's has {length} bytes from a whole word on"
            )));
        }
        Area::of_program(self.address, self.length, self.key)
    }
}

impl Service {
    /// Installs a chain.
    fn install(chain: &Chain, pd: &Pd, how: &How<'_>) -> Result<Self> {
        // SAFETY: the program's protection domain is one of libibverbs', as the header says.
        let device = unsafe { Device::of_pd(pd)? };
        if how.beside.is_some_and(|other| !other.device.is(&device)) {
            return Err(Failure::invalid("the service beside is of another device"));
        }
        let group = if how.group == 0 { NEXT_GROUP.fetch_add(1, Ordering::Relaxed) } else { how.group };
        let (areas, mut installed) = regions(chain, pd, how)?;
        let make_cq =
            |name: &String| CountingCq::create(pd).map_err(|errno| Failure::of(errno, format_args!("cq `{name}`")));
        let cqs: Vec<CountingCq> = chain.cqs.iter().map(make_cq).collect::<Result<_>>()?;
        installed.cqs = cqs.iter().map(CountingCq::handle).collect();
        let mut service =
            Self { queues: Vec::new(), cqs, areas, device, chain: chain.clone(), group, clients: leading(chain) };
        service.make_queues(pd, &mut installed)?;
        service.fill(&installed)?;
        service.start()?;
        Ok(service)
    }

    /// The queue pairs, managed, with keys of their rings.
    fn make_queues(&mut self, pd: &Pd, installed: &mut Installed) -> Result<()> {
        let chain = self.chain.clone();
        let client = self.clients.first().copied().filter(|_| chain.receives.len() < 2);
        let client = client.ok_or_else(|| Failure::invalid("a chain has a queue, and at most one `receive`"))?;
        let access = if chain.is_looped_back() { ALL } else { Access::LOCAL_WRITE };
        for (number, queue) in chain.queues.iter().enumerate() {
            let receive = chain.receives.first().filter(|_| number == client);
            let elements =
                chain.queues[number].slots.iter().map(|slot| chain.slots[*slot].sges.len()).max().unwrap_or(0);
            let most = receive.map_or(0, |receive| receive.slots.iter().map(Vec::len).max().unwrap_or(0));
            let (cq, recv_cq) = (&self.cqs[queue.cq], &self.cqs[receive.map_or(queue.cq, |receive| receive.cq)]);
            let sizes = Sizes {
                send: (entries(queue.slots.len()), elements.max(1) as u32),
                receive: (entries(receive.map_or(0, |receive| receive.slots.len())), most.max(1) as u32),
            };
            let failed = |errno| Failure::of(errno, format_args!("the queue pair of `{}`", queue.name));
            let qp = QueuePair::create(pd, cq, recv_cq, sizes).map_err(failed)?;
            let how = Manage {
                group: self.group,
                sends: 1,
                receives: receive.is_some().into(),
                send_cycle: queue.slots.len() as u32,
                receive_cycle: receive.map_or(0, |receive| receive.slots.len() as u32),
            };
            let managed = Queue::manage(self.device.clone(), qp.handle(), &how)?;
            let key = managed.register(QueueSide::Send, None, access.bits())?;
            installed.queues.push((qp.handle(), key.key));
            installed.strides.push(key.stride as usize);
            installed.receives.extend(receive.map(|_| qp.handle()));
            self.queues.push(Member { managed, qp, is_looped: !self.clients.contains(&number) });
        }
        Ok(())
    }

    /// Fills in rings and constants, and seals.
    fn fill(&self, installed: &Installed) -> Result<()> {
        for (number, region) in self.chain.regions.iter().enumerate() {
            if region.content.is_constant() {
                let area = &self.areas[number];
                area.put(installed.bases[number], &self.chain.constant(number, installed));
            }
        }
        for (number, member) in self.queues.iter().enumerate() {
            member.managed.ring(QueueSide::Send)?.write(0, &self.chain.ring(number, installed))?;
            let slots = self.chain.sealed(number, installed).into_iter();
            let slots: Vec<_> = slots.map(|slot| (slot.bytes, slot.holes, slot.allowed)).collect();
            member.managed.seal(QueueSide::Send, &slots)?;
        }
        let member = &self.queues[self.clients[0]];
        for number in 0..self.chain.receives.len() {
            let ring = member.managed.ring(QueueSide::Receive)?;
            let bytes = self.chain.receive_ring(number, ring.stride(), installed);
            ring.write(0, &bytes)?;
            let slots = bytes.chunks(ring.stride()).map(|slot| (slot.to_vec(), vec![0; ring.stride() / 8], u64::MAX));
            member.managed.seal(QueueSide::Receive, &slots.collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// Connects what is looped back, and enables everything.
    fn start(&self) -> Result<()> {
        for (member, queue) in self.queues.iter().zip(&self.chain.queues).filter(|(member, _)| member.is_looped) {
            let failed = |errno| Failure::of(errno, format_args!("connecting `{}` to itself", queue.name));
            member.qp.loop_back().map_err(failed)?;
        }
        for receive in &self.chain.receives {
            self.queues[self.clients[0]].managed.enable(QueueSide::Receive, receive.enabled)?;
        }
        for (member, queue) in self.queues.iter().zip(&self.chain.queues) {
            member.managed.enable(QueueSide::Send, queue.enabled)?;
        }
        Ok(())
    }

    /// The memory of the first regions of another chain, if this one has the same there.
    pub(super) fn areas_of(&self, other: &Chain, count: usize) -> Option<Vec<Arc<Area>>> {
        let is_same = |(own, other): (&Region, &Region)| own.name == other.name && own.content == other.content;
        let has_all = self.chain.regions.len() >= count && other.regions.len() >= count;
        let is_its = has_all && self.chain.regions.iter().zip(&other.regions).take(count).all(is_same);
        is_its.then(|| self.areas[..count].to_vec())
    }

    /// The memory of a table or of shared memory by its name, and its length.
    pub(super) fn named(&self, name: &str) -> Result<(&Arc<Area>, u64)> {
        let is_it = |region: &Region| region.name == name && region.content.is_foreign();
        let found = self.chain.regions.iter().zip(&self.areas).find(|(region, _)| is_it(region));
        let (region, area) =
            found.ok_or_else(|| Failure::invalid(format_args!("the chain has no table or shared memory `{name}`")))?;
        Ok((area, region.content.length()))
    }

    /// The memory of a region of another chain's that this one has, too.
    fn same(&self, region: &Region) -> Result<&Arc<Area>> {
        let found = self.chain.regions.iter().position(|r| r.name == region.name && r.content == region.content);
        let area = found.and_then(|number| self.areas.get(number));
        area.ok_or_else(|| Failure::invalid(format_args!("the service beside has no `{}` of that length", region.name)))
    }

    fn state(&self) -> Result<Group> {
        group(&self.device, self.group)
    }

    /// The author's name for a request of a queue pair at an index.
    fn label(&self, qp: u32, is_receive: bool, index: u64) -> String {
        let number = self.queues.iter().position(|member| member.qp.handle() == qp);
        match number {
            Some(_) if is_receive => {
                self.chain.receives.first().map_or_else(String::new, |receive| receive.name.clone())
            }
            Some(number) => self.chain.label(number, index).to_owned(),
            None => String::new(),
        }
    }
}

/// The queues that send something to the client; of a chain that never does, one that could. All others are looped back.
fn leading(chain: &Chain) -> Vec<usize> {
    let sends = |slot: &usize| {
        let slot = &chain.slots[*slot];
        let mut ops = std::iter::once(slot.control.op).chain(slot.may.iter().map(|control| control.op));
        !slot.is_local() && ops.any(ChainOp::sends_data) && !matches!(slot.remote, Remote::Own(_))
    };
    let numbers = || 0..chain.queues.len();
    let leads = |number: &usize| chain.queues[*number].to_client && chain.queues[*number].slots.iter().any(sends);
    let found: Vec<usize> = numbers().filter(leads).collect();
    if found.is_empty() { numbers().filter(|number| chain.queues[*number].to_client).take(1).collect() } else { found }
}

/// Memory for the regions, each with its first address in its area. What clients name offsets in has areas of its own.
fn regions(chain: &Chain, pd: &Pd, how: &How<'_>) -> Result<(Vec<Arc<Area>>, Installed)> {
    let looped = if chain.is_looped_back() { Access::REMOTE_READ } else { Access::empty() };
    let written = Access::LOCAL_WRITE | if chain.is_looped_back() { ALL } else { Access::empty() };
    let access = |content: &Content| if content.is_writable() { written } else { looped };
    let own = |content: &Content| !content.is_foreign();
    // Constants together, and scratch memory together: nothing but the chain names places in them.
    let mut packed = [0, 0];
    let mut bases = Vec::new();
    for region in &chain.regions {
        let end = &mut packed[usize::from(region.content.is_writable())];
        bases.push(if own(&region.content) {
            std::mem::replace(end, *end + region.content.length().next_multiple_of(8))
        } else {
            0
        });
    }
    let [constants, scratch] =
        [(packed[0], looped), (packed[1], written)].map(|(len, access)| Area::new(pd, len, access).map(Arc::new));
    let (constants, scratch) = (constants?, scratch?);
    let mut areas = Vec::new();
    for region in &chain.regions {
        let content = &region.content;
        areas.push(match (how.table(&region.name), how.beside) {
            _ if own(content) && content.is_writable() => scratch.clone(),
            _ if own(content) => constants.clone(),
            (Some(table), _) => Arc::new(table.area(content.length())?),
            (None, Some(other)) => other.same(region)?.clone(),
            (None, None) => Arc::new(Area::new(pd, content.length(), access(content))?),
        });
    }
    let regions = areas.iter().map(|area| area.key()).collect();
    Ok((areas, Installed { regions, bases, ..Installed::default() }))
}

/// Work requests to be asked for: the ring then has as few slots as it can for them.
fn entries(slots: usize) -> u32 {
    slots.saturating_sub(1).max(1) as u32
}

const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// Numbers of groups that the program leaves to the library: far from those that it chooses.
static NEXT_GROUP: AtomicU32 = AtomicU32::new(0x1000_0000);

replace! {
    /// See `rdmesh_chain.h`, as for all of these.
    fn rdmesh_chain_install(chain: *const Verified, pd: *const Pd, how: *const Install) -> *mut Service {
        object(|| {
            // SAFETY: what the program passes is as the header says; so it is below.
            let (chain, pd) = unsafe { (given(chain, "the chain")?, given(pd, "the protection domain")?) };
            // SAFETY: as above.
            let how = unsafe { how.as_ref().map_or(Ok(How::default()), |how| how.parse())? };
            Service::install(chain.chain(), pd, &how)
        })
    }

    /// A queue pair for the client.
    fn rdmesh_service_qp(service: *const Service, number: u32) -> *mut Qp {
        // SAFETY: as above.
        let service = unsafe { service.as_ref() };
        let member = service.and_then(|service| service.queues.get(*service.clients.get(number as usize)?));
        member.map_or(std::ptr::null_mut(), |member| member.qp.as_ptr())
    }

    /// A region.
    fn rdmesh_service_region(service: *const Service, name: *const c_char, length: *mut u64) -> *mut c_void {
        let mut found = std::ptr::null_mut();
        let failed = code(|| {
            // SAFETY: as above.
            let (service, name) = unsafe { (given(service, "the service")?, text(name, "the name")?) };
            let (area, len) = service.named(name)?;
            found = area.address();
            // SAFETY: as above.
            unsafe { store(length, len) };
            Ok(0)
        });
        if failed != 0 {
            crate::errno::set(Errno::INVAL);
        }
        found
    }

    /// The number of the group.
    fn rdmesh_service_group(service: *const Service) -> u32 {
        // SAFETY: as above.
        unsafe { service.as_ref() }.map_or(0, |service| service.group)
    }

    /// State and counts.
    fn rdmesh_service_stats(service: *const Service, stats: *mut Stats) -> c_int {
        code(|| {
            // SAFETY: as above.
            let found = unsafe { given(service, "the service")? }.state()?;
            // SAFETY: as above.
            unsafe { store(stats, Stats::from(&found)) };
            Ok(0)
        })
    }

    /// The request that ended it.
    fn rdmesh_service_last_error(service: *const Service, fault: *mut Fault) -> c_int {
        code(|| {
            // SAFETY: as above.
            let service = unsafe { given(service, "the service")? };
            let label = |qp, is_receive, index| service.label(qp, is_receive, index);
            let Some(found) = Fault::of(&service.state()?, label) else { return Ok(0) };
            // SAFETY: as above.
            unsafe { store(fault, found) };
            Ok(1)
        })
    }

    /// Destroys a service.
    fn rdmesh_service_close(service: *mut Service) -> () {
        // SAFETY: as above.
        unsafe { free(service) }
    }
}
