//! Tests of what a key opens.

use super::world::{ALL, BASE, Bytes};
use crate::command::MwType;
use crate::memory::{AccessDenied, BindRequest, KeyTable};
use rdmesh_verbs::{Access, Key, Qpn, Sge};

const PD: u32 = 1;
const QPN: Qpn = Qpn::new(20);

fn table(access: Access) -> (KeyTable<Bytes>, Key) {
    let mut keys = KeyTable::new(10, 7);
    let (_, key) = keys.add_region(PD, BASE, 64, access, Bytes::new(64)).unwrap();
    (keys, key)
}

fn offset(found: Result<(&Bytes, u64), AccessDenied>) -> Result<u64, AccessDenied> {
    found.map(|(_, offset)| offset)
}

#[test]
fn a_region_opens_in_its_protection_domain_for_its_rights() {
    let (keys, key) = table(Access::REMOTE_READ);
    let remote = |pd, access| offset(keys.remote(pd, QPN, key, BASE + 8, 8, access));
    assert_eq!(remote(PD, Access::REMOTE_READ), Ok(8));
    assert_eq!(remote(PD + 1, Access::REMOTE_READ), Err(AccessDenied));
    assert_eq!(remote(PD, Access::REMOTE_WRITE), Err(AccessDenied));
    let sge = Sge { addr: BASE + 8, length: 8, lkey: key };
    assert_eq!(offset(keys.local(PD, &sge, Access::empty())), Ok(8));
    assert_eq!(offset(keys.local(PD + 1, &sge, Access::empty())), Err(AccessDenied));
    assert_eq!(offset(keys.local(PD, &sge, Access::LOCAL_WRITE)), Err(AccessDenied));
}

#[test]
fn a_range_lies_within_its_region() {
    let (keys, key) = table(ALL);
    for (addr, len, found) in [
        (BASE, 64, Ok(0)),
        (BASE + 64, 0, Ok(64)),
        (BASE, 65, Err(AccessDenied)),
        (BASE + 57, 8, Err(AccessDenied)),
        (BASE - 1, 2, Err(AccessDenied)),
        (BASE + 1, u64::MAX, Err(AccessDenied)),
    ] {
        assert_eq!(offset(keys.remote(PD, QPN, key, addr, len, Access::REMOTE_WRITE)), found, "{addr:#x} {len}");
    }
}

#[test]
fn a_window_of_type_2_serves_the_queue_pair_that_bound_it() {
    let (mut keys, mr) = table(ALL);
    let access = Access::REMOTE_WRITE;
    for (kind, others) in [(MwType::Type1, Ok(0)), (MwType::Type2, Err(AccessDenied))] {
        let (_, mw) = keys.add_window(PD, kind).unwrap();
        let new_key = Key(mw.0 ^ 1);
        let request = BindRequest { mw, new_key, mr, addr: BASE, length: 8, access };
        keys.bind(PD, QPN, &request).unwrap();
        assert_eq!(offset(keys.remote(PD, QPN, new_key, BASE, 8, access)), Ok(0));
        assert_eq!(offset(keys.remote(PD, Qpn::new(21), new_key, BASE, 8, access)), others);
        assert_eq!(offset(keys.remote(PD + 1, QPN, new_key, BASE, 8, access)), Err(AccessDenied));
        assert_eq!(offset(keys.remote(PD, QPN, mw, BASE, 8, access)), Err(AccessDenied), "its key before");
        assert_eq!(offset(keys.remote(PD, QPN, new_key, BASE, 9, access)), Err(AccessDenied));
        assert_eq!(offset(keys.remote(PD, QPN, new_key, BASE, 8, Access::REMOTE_READ)), Err(AccessDenied));
    }
}

#[test]
fn a_protection_domain_with_very_many_keys_costs_no_more_than_another() {
    const KEYS: u32 = 100_000;
    let mut keys = KeyTable::new(KEYS, 7);
    let memory = Bytes::new(64);
    for _ in 0..KEYS {
        keys.add_region(PD, BASE, 64, ALL, memory.clone()).unwrap();
    }
    let before = keys.lookups();
    assert!(keys.uses_pd(PD) && !keys.uses_pd(PD + 1));
    assert_eq!(keys.lookups(), before, "no key is looked at");
    for handle in 1..=KEYS {
        assert!(keys.uses_pd(PD));
        keys.remove(handle);
    }
    assert!(!keys.uses_pd(PD));
    let each = (keys.lookups() - before) / KEYS as usize;
    assert!(each <= 2, "{each} keys were looked at for each that was removed");
}

#[test]
fn tags_of_keys_are_spread_and_say_nothing_of_each_other() {
    const KEYS: u32 = 1 << 16;
    let mut keys = KeyTable::<Bytes>::new(KEYS, 7);
    let tags: Vec<u8> = (0..KEYS).map(|_| keys.add_window(PD, MwType::Type1).unwrap().1.tag()).collect();
    // 256 places with 256 each: by chance none is off by six times the square root of that.
    let is_even = |counts: &[u32; 256]| counts.iter().all(|count| count.abs_diff(256) < 6 * 16);
    let (mut single, mut steps) = ([0; 256], [0; 256]);
    tags.iter().for_each(|tag| single[usize::from(*tag)] += 1);
    tags.windows(2).for_each(|two| steps[usize::from(two[1].wrapping_sub(two[0]))] += 1);
    assert!(is_even(&single) && is_even(&steps));
}

#[test]
fn the_key_before_opens_nothing_in_the_same_place() {
    let mut keys = KeyTable::new(1, 7);
    let mut before = None;
    for _ in 0..2_000 {
        let (handle, key) = keys.add_region(PD, BASE, 64, ALL, Bytes::new(64)).unwrap();
        assert_ne!(before.replace(key), Some(key));
        keys.remove(handle);
    }
}
