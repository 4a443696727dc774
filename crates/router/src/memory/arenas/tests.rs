use super::*;
use crate::budget::{Budget, Limits};
use crate::disposal::Reclaimer;
use rdmesh_nic::platform::Memory as _;
use rdmesh_uverbs::session::SegmentKind;
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create};
use std::os::fd::{AsFd, OwnedFd};

const MIB: u64 = 1 << 20;

/// An arena as the library makes it: sparse, and much larger than what is in it.
struct Tenant {
    budget: Budget,
    arenas: Arenas,
    fd: OwnedFd,
}

impl Tenant {
    fn new() -> Self {
        Self::limited(Limits::of_this_process())
    }

    fn limited(limits: Limits) -> Self {
        assert!(guard::install(), "this kernel has no userfaultfd");
        let budget = Budget::new(limits);
        let arenas = Arenas::new(Disposal::new(budget.share(u32::MAX), &Reclaimer::new()));
        let fd = memfd_create("arena", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, 1 << 50).unwrap();
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        Self { budget, arenas, fd }
    }

    fn fill(&self, offset: u64, len: u64) {
        fallocate(&self.fd, FallocateFlags::empty(), offset, len).unwrap();
    }

    fn punch(&self, offset: u64, len: u64) {
        fallocate(&self.fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len).unwrap();
    }

    fn register(&mut self, offset: u64, len: u64) -> Result<TenantMemory, RegionError> {
        self.register_as(1, offset, len)
    }

    fn register_as(&mut self, user: u32, offset: u64, len: u64) -> Result<TenantMemory, RegionError> {
        let arena = ArenaFile::sent(self.fd.as_fd())?;
        region(&mut self.arenas, user, arena, offset, len)
    }

    fn id(&self) -> ArenaId {
        ArenaFile::sent(self.fd.as_fd()).unwrap().id()
    }

    /// Without the descriptor.
    fn register_known(&mut self, user: u32, offset: u64, len: u64) -> Result<TenantMemory, RegionError> {
        let arena = ArenaFile::known(self.id());
        region(&mut self.arenas, user, arena, offset, len)
    }

    /// Mappings that are held once unused ones have gone.
    fn held(&self, resource: Resource) -> u64 {
        self.arenas.disposal.finish();
        self.budget.held(resource)
    }

    /// Whether mappings were evicted.
    fn evict(&mut self) -> bool {
        let mut evicted = Evicted::default();
        self.arenas.evict(&mut evicted);
        self.arenas.disposal.finish();
        assert!(evicted.is_gone());
        !evicted.is_empty()
    }
}

fn region(
    arenas: &mut Arenas,
    user: u32,
    arena: ArenaFile<'_>,
    offset: u64,
    len: u64,
) -> Result<TenantMemory, RegionError> {
    let segment = Segment { addr: 4096, len, kind: SegmentKind::Arena as u32, reserved: 0, offset };
    arenas.region(user, 4096, len, &[segment], Some(arena), None)
}

#[test]
fn neighbours_share_a_mapping_and_known_memory_makes_none() {
    let mut tenant = Tenant::new();
    tenant.fill(0, 8 * MIB);
    let regions: Vec<_> = (0..2048).map(|page| tenant.register(page * PAGE, PAGE).unwrap()).collect();
    assert_eq!((tenant.held(Resource::Mappings), tenant.held(Resource::AddressSpace)), (1, CHUNK));
    let memory = tenant.held(Resource::Memory);
    drop(regions);
    let again = tenant.register(100, 8 * MIB - 100).unwrap();
    assert_eq!((tenant.held(Resource::Mappings), tenant.held(Resource::Memory)), (1, memory));
    again.write(7, b"hello").unwrap();
    let mut bytes = [0; 5];
    rustix::io::pread(&tenant.fd, &mut bytes, 107).unwrap();
    assert_eq!(&bytes, b"hello");
}

#[test]
fn a_region_across_mappings_replaces_them() {
    let mut tenant = Tenant::new();
    let edge = CHUNK - PAGE;
    tenant.fill(edge, 2 * PAGE);
    let left = tenant.register(edge, PAGE).unwrap();
    drop(tenant.register(CHUNK, PAGE).unwrap());
    assert_eq!(tenant.held(Resource::Mappings), 2);
    let _both = tenant.register(edge, 2 * PAGE).unwrap();
    // The one in use lives as long as its region.
    assert_eq!(tenant.held(Resource::Mappings), 2);
    drop(left);
    assert_eq!((tenant.held(Resource::Mappings), tenant.held(Resource::AddressSpace)), (1, 2 * CHUNK));
    drop(tenant.register(edge, PAGE).unwrap());
    assert_eq!(tenant.held(Resource::Mappings), 1);
}

#[test]
fn missing_pages_are_refused_and_not_made() {
    let mut tenant = Tenant::new();
    tenant.fill(0, PAGE);
    tenant.fill(2 * PAGE, PAGE);
    assert!(matches!(tenant.register(0, 3 * PAGE), Err(RegionError::Missing)));
    assert!(matches!(tenant.register(CHUNK * 5, PAGE), Err(RegionError::Missing)));
    assert_eq!(fstat(&tenant.fd).unwrap().st_blocks, 16);
    tenant.fill(PAGE, PAGE);
    tenant.register(0, 3 * PAGE).unwrap();
    tenant.punch(PAGE, PAGE);
    assert!(matches!(tenant.register(0, 3 * PAGE), Err(RegionError::Missing)), "it was there before");
    assert_eq!(fstat(&tenant.fd).unwrap().st_blocks, 16);
}

#[test]
fn what_is_mapped_is_registered_without_the_descriptor() {
    let mut tenant = Tenant::new();
    tenant.fill(0, 4 * PAGE);
    tenant.fill(CHUNK, PAGE);
    let is_unknown = |made: Result<TenantMemory, RegionError>| matches!(made, Err(RegionError::Unknown));
    assert!(is_unknown(tenant.register_known(1, 0, PAGE)), "it was never sent");
    tenant.register(0, PAGE).unwrap();
    // Of the same mapping, also what was not registered before: its pages are looked at.
    let known = tenant.register_known(1, 0, 4 * PAGE).unwrap();
    known.write(3 * PAGE, b"hello").unwrap();
    assert!(matches!(tenant.register_known(1, 0, 5 * PAGE), Err(RegionError::Missing)));
    assert!(is_unknown(tenant.register_known(1, CHUNK, PAGE)), "not mapped");
    assert!(is_unknown(tenant.register_known(2, 0, PAGE)), "another context has not sent it");
    assert_eq!(tenant.held(Resource::Mappings), 1);
    // Once nothing is kept of it, its number may become another file's.
    drop(known);
    assert!(tenant.evict());
    assert!(is_unknown(tenant.register_known(1, 0, PAGE)));
    tenant.register_as(2, 0, PAGE).unwrap();
    assert!(is_unknown(tenant.register_known(1, 0, PAGE)));
    assert!(tenant.register_known(2, 0, PAGE).is_ok());
}

/// Work of the kernel for a range that was registered before: no page fault.
#[test]
fn known_memory_is_registered_without_faults() {
    let mut tenant = Tenant::new();
    tenant.fill(0, 8 * MIB);
    tenant.register(0, 8 * MIB).unwrap();
    let before = thread_faults();
    for _ in 0..100 {
        tenant.register(0, 8 * MIB).unwrap();
    }
    assert!(thread_faults() - before < 10);
}

/// Minor faults of this thread (`/proc/thread-self/stat`, field 10).
fn thread_faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    stat.rsplit(')').next().unwrap().split_whitespace().nth(7).unwrap().parse().unwrap()
}

#[test]
fn pages_taken_away_under_a_region_are_faults() {
    let mut tenant = Tenant::new();
    tenant.fill(0, 4 * PAGE);
    let region = tenant.register(0, 4 * PAGE).unwrap();
    let other = tenant.register(2 * PAGE, 2 * PAGE).unwrap();
    tenant.punch(PAGE, PAGE);
    let len = 3 * PAGE as usize;
    assert!(region.read(0, &mut vec![0; len]).is_err() && region.write(0, &vec![0; len]).is_err());
    assert!(region.copy(0, &other, 0, len).is_err() && other.copy(0, &region, PAGE, 8).is_err());
    assert!(region.fetch_add(PAGE, 1).is_err() && region.compare_swap(PAGE, 0, 1).is_err());
    assert!(region.write_atomic(PAGE, [1; 8]).is_err());
    assert_eq!(fstat(&tenant.fd).unwrap().st_blocks, 24);
    other.write(0, &[3; 100]).unwrap();
    assert_eq!(other.fetch_add(0, 1).unwrap(), u64::from_ne_bytes([3; 8]));
}

#[test]
fn a_sparse_file_is_no_address_space() {
    let limit = 16 * CHUNK;
    let mut tenant = Tenant::limited(Limits::of_this_process().with(Resource::AddressSpace, limit));
    let mut regions = Vec::new();
    let refused = (0..).map(|i| i << 40).find_map(|offset| {
        tenant.fill(offset, PAGE);
        tenant.register(offset, PAGE).map(|region| regions.push(region)).err()
    });
    assert!(matches!(refused, Some(RegionError::Exhausted(Exhausted(Resource::AddressSpace)))));
    assert!(tenant.held(Resource::AddressSpace) <= limit);
    // An unused mapping is evicted.
    assert!(!tenant.evict());
    regions.clear();
    assert!(tenant.evict());
    assert_eq!((tenant.held(Resource::AddressSpace), tenant.held(Resource::Memory)), (0, 0));
}

/// A large mapping is unmapped by another thread: the one that gives it up has others to serve.
#[test]
fn unmapping_is_left_to_another_thread() {
    let mut tenant = Tenant::new();
    tenant.fill(0, PAGE);
    drop(tenant.register(0, PAGE).unwrap());
    let (open, gate) = std::sync::mpsc::channel::<()>();
    struct Held(std::sync::mpsc::Receiver<()>);
    impl Drop for Held {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }
    tenant.arenas.disposal.discard(Held(gate));
    let mut evicted = Evicted::default();
    tenant.arenas.evict(&mut evicted);
    assert!(!evicted.is_empty() && !evicted.is_gone());
    let held = tenant.budget.held(Resource::Mappings);
    assert!(held > 0, "charged until it is done");
    drop(open);
    tenant.arenas.disposal.finish();
    assert!(evicted.is_gone());
    assert_eq!(tenant.budget.held(Resource::Mappings), 0);
}

#[test]
fn page_tables_count_as_memory() {
    let mut tenant = Tenant::new();
    tenant.fill(0, PAGE);
    let _first = tenant.register(0, PAGE).unwrap();
    let before = tenant.held(Resource::Memory);
    let _regions: Vec<_> = (1..10)
        .map(|extent| {
            tenant.fill(extent * EXTENT, PAGE);
            tenant.register(extent * EXTENT, PAGE).unwrap()
        })
        .collect();
    assert_eq!(tenant.held(Resource::Memory) - before, 9 * PAGE);
}

#[test]
fn mappings_go_with_the_last_context_that_used_them() {
    let mut tenant = Tenant::new();
    tenant.fill(0, 2 * PAGE);
    drop(tenant.register_as(1, 0, PAGE).unwrap());
    drop(tenant.register_as(2, PAGE, PAGE).unwrap());
    tenant.arenas.forget(1);
    assert_eq!(tenant.held(Resource::Mappings), 1);
    tenant.arenas.forget(2);
    assert_eq!((tenant.held(Resource::Mappings), tenant.held(Resource::Memory)), (0, 0));
}

#[test]
fn what_is_no_sealed_memory_is_refused() {
    let mut tenant = Tenant::new();
    tenant.fd = memfd_create("open", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    assert!(matches!(tenant.register(0, PAGE), Err(RegionError::Map(MapError::NotSealed))));
    tenant.fd = std::fs::File::open("/proc/self/exe").unwrap().into();
    assert!(matches!(tenant.register(0, PAGE), Err(RegionError::Map(_))));
    assert_eq!(tenant.held(Resource::Mappings), 0);
}

#[test]
fn gaps_are_found() {
    let mut bits = Bits::new(200);
    assert_eq!(bits.set(10, 80).len(), 70);
    assert_eq!(bits.set(75, 130), (80..130).collect::<Vec<_>>());
    assert_eq!(
        [bits.next_gap(0, 200), bits.next_gap(10, 200), bits.next_gap(20, 130)],
        [Some((0, 10)), Some((130, 200)), None]
    );
    bits.clear(64);
    assert_eq!(bits.next_gap(20, 130), Some((64, 65)));
    assert_eq!(
        [bits.next_run(0, 200), bits.next_run(64, 200), bits.next_run(130, 200)],
        [Some((10, 64)), Some((65, 130)), None]
    );
}
