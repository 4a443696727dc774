//! Services: chains in queues, each for one client.
#![allow(unsafe_code)]

use super::area::Area;
use super::border::{Failure, Result, code, free, given, object, store, text};
use super::calls::Device;
use super::group::{Fault, Stats, group};
use super::queue::{How, Queue};
use super::text::Verified;
use crate::interpose::replace;
use crate::libibverbs::objects::{CountingCq, QueuePair, Sizes};
use crate::libibverbs::{Pd, Qp};
use libc::{c_char, c_int, c_void};
use rdmesh_chain::Installed;
use rdmesh_chain::program::{Chain, Content};
use rdmesh_uverbs::session::chain::{Group, QueueSide};
use rdmesh_verbs::Access;
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
    /// The queue pair that leads to the client.
    client: usize,
}

/// A queue pair of a service.
struct Member {
    managed: Queue,
    qp: QueuePair,
    is_looped: bool,
}

impl Service {
    /// Installs a chain.
    fn install(chain: &Chain, pd: &Pd, beside: Option<&Self>, group: u32) -> Result<Self> {
        // SAFETY: the program's protection domain is one of libibverbs', as the header says.
        let device = unsafe { Device::of_pd(pd)? };
        if beside.is_some_and(|other| !other.device.is(&device)) {
            return Err(Failure::invalid("the service beside is of another device"));
        }
        let group = if group == 0 { NEXT_GROUP.fetch_add(1, Ordering::Relaxed) } else { group };
        let (areas, mut installed) = regions(chain, pd, beside)?;
        let make_cq =
            |name: &String| CountingCq::create(pd).map_err(|errno| Failure::of(errno, format_args!("cq `{name}`")));
        let cqs: Vec<CountingCq> = chain.cqs.iter().map(make_cq).collect::<Result<_>>()?;
        installed.cqs = cqs.iter().map(CountingCq::handle).collect();
        let mut service = Self { queues: Vec::new(), cqs, areas, device, chain: chain.clone(), group, client: 0 };
        service.make_queues(pd, &mut installed)?;
        service.fill(&installed)?;
        service.start()?;
        Ok(service)
    }

    /// The queue pairs, managed, with keys of their rings.
    fn make_queues(&mut self, pd: &Pd, installed: &mut Installed) -> Result<()> {
        let chain = self.chain.clone();
        if chain.receives.len() > 1
            || chain.queues.iter().filter(|queue| queue.to_client).count() > 1 && !chain.is_looped_back()
        {
            return Err(Failure::invalid("the chain has several queues to its client; install one that has one"));
        }
        let client = chain.queues.iter().position(|queue| queue.to_client);
        let client = client
            .ok_or_else(|| Failure::invalid("the chain has no queue with `to=client` that could take requests"))?;
        self.client = client;
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
            let how = How {
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
            self.queues.push(Member { managed, qp, is_looped: !queue.to_client });
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
        let member = &self.queues[self.client];
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
            self.queues[self.client].managed.enable(QueueSide::Receive, receive.enabled)?;
        }
        for (member, queue) in self.queues.iter().zip(&self.chain.queues) {
            member.managed.enable(QueueSide::Send, queue.enabled)?;
        }
        Ok(())
    }

    /// The memory of a region by its number.
    pub(super) fn area(&self, region: usize) -> Option<&Arc<Area>> {
        self.areas.get(region)
    }

    /// Whether the region has this name and length.
    pub(super) fn has_region(&self, number: usize, name: &str, length: u64) -> bool {
        self.chain.regions.get(number).is_some_and(|region| region.name == name && region.content.length() == length)
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

/// Memory for the regions, each with its first address in its area. What clients name offsets in has areas of its own.
fn regions(chain: &Chain, pd: &Pd, beside: Option<&Service>) -> Result<(Vec<Arc<Area>>, Installed)> {
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
        areas.push(match beside {
            _ if own(content) && content.is_writable() => scratch.clone(),
            _ if own(content) => constants.clone(),
            Some(other) => {
                let same = other.chain.regions.iter().position(|r| r.name == region.name && r.content == *content);
                let area = same.and_then(|number| other.areas.get(number));
                area.ok_or_else(|| {
                    Failure::invalid(format_args!("the service beside has no `{}` of that length", region.name))
                })?
                .clone()
            }
            None => Arc::new(Area::new(pd, content.length(), access(content))?),
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
    fn rdmesh_chain_install(chain: *const Verified, pd: *const Pd, beside: *const Service, group: u32) -> *mut Service {
        object(|| {
            // SAFETY: what the program passes is as the header says; so it is below.
            let (chain, pd) = unsafe { (given(chain, "the chain")?, given(pd, "the protection domain")?) };
            // SAFETY: as above.
            Service::install(chain.chain(), pd, unsafe { beside.as_ref() }, group)
        })
    }

    /// The client's queue pair.
    fn rdmesh_service_qp(service: *const Service) -> *mut Qp {
        // SAFETY: as above.
        let service = unsafe { service.as_ref() };
        service.and_then(|service| service.queues.get(service.client)).map_or(std::ptr::null_mut(), |member| member.qp.as_ptr())
    }

    /// A region.
    fn rdmesh_service_region(service: *const Service, name: *const c_char, length: *mut u64) -> *mut c_void {
        let mut found = std::ptr::null_mut();
        let failed = code(|| {
            // SAFETY: as above.
            let (service, name) = unsafe { (given(service, "the service")?, text(name, "the name")?) };
            let number = service.chain.regions.iter().position(|region| region.name == name && region.content.is_foreign());
            let number = number.ok_or_else(|| Failure::invalid(format_args!("the chain has no table or shared memory `{name}`")))?;
            found = service.areas[number].address();
            // SAFETY: as above.
            unsafe { store(length, service.chain.regions[number].content.length()) };
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
