//! Tests of the `ioctl()` form: the commands made from attributes.

use super::*;
use rdmesh_uverbs::abi::{
    CommandHeader, CreateCqResponse, ExCreateCq, ExCreateCqResponse, ExtendedCommandHeader, GetContextResponse,
    GidEntry, QueryPortResponse, RegMrResponse, ioctl_method as method, ioctl_object as object,
};

const MANDATORY: u64 = 1;
const VALID: u64 = 2;
const QUERY_PORT: u64 = 2;
const REQ_NOTIFY_CQ: u64 = 23;
const POST_SEND: u64 = 28;
const UHW_OUT: u64 = 0x1001;

/// An attribute: two words.
fn attr(id: u64, len: usize, data: u64) -> [u64; 2] {
    [id | (len as u64) << 16 | MANDATORY << 32, data]
}

/// Room for `T` as an attribute.
fn room<T>(id: u64, place: &mut T) -> [u64; 2] {
    attr(id, size_of::<T>(), std::ptr::from_mut(place) as u64)
}

/// A method: header and attributes.
struct Method(Vec<u64>);

impl Method {
    fn new(object: u16, method: u16, attrs: &[[u64; 2]]) -> Self {
        let head = (24 + 16 * attrs.len() as u64) | u64::from(object) << 16 | u64::from(method) << 32;
        let words = [head | (attrs.len() as u64) << 48, 0, 14];
        Self(words.into_iter().chain(attrs.iter().flatten().copied()).collect())
    }

    fn call(&mut self, fd: RawFd) -> Result<(), Errno> {
        verbs_ioctl(fd, self.0.as_mut_ptr().cast())
    }

    fn is_valid(&self, at: usize) -> bool {
        self.0[3 + 2 * at] >> 32 & VALID != 0
    }

    fn data(&self, at: usize) -> u64 {
        self.0[4 + 2 * at]
    }
}

fn invoke(command: u64, attrs: &[[u64; 2]]) -> Method {
    let all: Vec<_> = attrs.iter().copied().chain([attr(2, 8, command)]).collect();
    Method::new(object::DEVICE, method::INVOKE_WRITE, &all)
}

#[test]
fn malformed_methods_never_reach_the_router() {
    let router = Router::start();
    let fd = router.open();
    let destroy = |attrs: &[[u64; 2]]| Method::new(object::PD, method::PD_DESTROY, attrs);
    let good = [attr(0, 0, 9)];
    let broken = |change: fn(&mut Vec<u64>)| {
        let mut method = destroy(&good);
        change(&mut method.0);
        method.call(fd)
    };
    assert_eq!(verbs_ioctl(fd, std::ptr::null_mut()), Err(Errno::FAULT));
    assert_eq!(broken(|words| words[0] -= 1), Err(Errno::INVAL), "length");
    assert_eq!(broken(|words| words[0] += 1 << 48), Err(Errno::INVAL), "count");
    assert_eq!(broken(|words| words[0] = words[0] & !0xffff_0000_0000_ffff | 255 << 48 | 4104), Err(Errno::INVAL));
    assert_eq!(broken(|words| words[1] = 1), Err(Errno::PROTONOSUPPORT), "reserved");
    assert_eq!(broken(|words| words[2] = 14 | 1 << 32), Err(Errno::PROTONOSUPPORT), "reserved");
    assert_eq!(broken(|words| words[2] = 1), Err(Errno::INVAL), "another driver");
    assert_eq!(Method::new(object::DEVICE, 99, &[]).call(fd), Err(Errno::PROTONOSUPPORT));
    assert_eq!(Method::new(14, 0, &good).call(fd), Err(Errno::PROTONOSUPPORT), "device memory");
    assert_eq!(destroy(&[]).call(fd), Err(Errno::INVAL), "an attribute is missing");
    assert_eq!(destroy(&[good[0], good[0]]).call(fd), Err(Errno::INVAL), "twice");
    assert_eq!(destroy(&[attr(0, 4, 9)]).call(fd), Err(Errno::INVAL), "a handle has no length");
    assert_eq!(destroy(&[[1 << 48, 9]]).call(fd), Err(Errno::INVAL), "nor anything else");
    assert_eq!(destroy(&[attr(0, 0, 1 << 32)]).call(fd), Err(Errno::NOENT));
    assert_eq!(destroy(&[good[0], attr(7, 0, 0)]).call(fd), Err(Errno::PROTONOSUPPORT));
    let many = vec![[7, 0]; 254];
    assert_eq!(destroy(&many).call(fd), Err(Errno::INVAL), "unknown ones count for nothing");
    assert_eq!(Method::new(object::MR, method::REG_DMABUF_MR, &[]).call(fd), Err(Errno::INVAL));
    assert!(router.heard_nothing());
    close(fd);
}

#[test]
fn sizes_and_pointers_are_checked() {
    let router = Router::start();
    let fd = router.open();
    let mut port = [0u64; 8];
    let query = |len: usize, data: u64| {
        Method::new(object::DEVICE, method::QUERY_PORT, &[attr(0, 8, 1), attr(1, len, data)]).call(fd)
    };
    assert_eq!(query(48, 0), Err(Errno::FAULT));
    assert_eq!(query(40, port.as_mut_ptr() as u64), Err(Errno::INVAL));
    let mut cap = [0u8; 24];
    let qp = |len: usize, data: u64| {
        let attrs = [attr(0, 0, 0), attr(7, 8, 0), attr(8, len, data), attr(9, 8, 2)];
        Method::new(object::QP, method::QP_CREATE, &attrs).call(fd)
    };
    assert_eq!(qp(20, 0), Err(Errno::FAULT));
    assert_eq!(qp(19, cap.as_ptr() as u64), Err(Errno::INVAL));
    cap[23] = 1;
    assert_eq!(qp(24, cap.as_ptr() as u64), Err(Errno::OPNOTSUPP), "a field that is not known");
    assert!(router.heard_nothing());
    close(fd);
}

#[test]
fn a_command_in_attributes_is_the_command() {
    let router = Router::start();
    let fd = router.open();
    assert_eq!(invoke(1, &[]).call(fd), Err(Errno::NOSPC), "by which rdma-core knows that there is the method");
    assert_eq!(invoke(200, &[]).call(fd), Err(Errno::OPNOTSUPP));
    assert_eq!(invoke(1 << 16, &[]).call(fd), Err(Errno::INVAL));
    assert_eq!(invoke(1 << 32, &[]).call(fd), Err(Errno::INVAL));
    let (core, mut out) = ([0xffu64, 1, 0], [0xaau8; 48]);
    router.answer_next(Answer { response: vec![7; 40], ..Answer::default() });
    let mut query = invoke(QUERY_PORT, &[attr(0, 24, core.as_ptr() as u64), room(1, &mut out)]);
    assert_eq!(query.call(fd), Ok(()));
    assert_eq!((&out[..40], &out[40..]), (&[7; 40][..], &[0; 8][..]));
    assert!(query.is_valid(1) && !query.is_valid(0));
    let request = router.request();
    assert_eq!((request.kind, request.command), (RequestKind::Verbs, legacy(QUERY_PORT as u32, 10, &[0xff, 1])));
    let newer = [0xffu64, 1, 1];
    let mut query = invoke(QUERY_PORT, &[attr(0, 24, newer.as_ptr() as u64), room(1, &mut out)]);
    assert_eq!(query.call(fd), Err(Errno::OPNOTSUPP), "the newer field is not known");
    assert!(router.heard_nothing());
    close(fd);
}

#[test]
fn doorbells_in_attributes_are_no_messages() {
    let router = Router::start();
    let fd = router.open();
    let (core, mut out) = ([0u64, pair(70, 0), 0], 5u32);
    let mut post = invoke(POST_SEND, &[attr(0, 24, core.as_ptr() as u64), room(1, &mut out)]);
    assert_eq!(post.call(fd), Err(Errno::INVAL), "the state is not yet one for sending");
    router.page().set_qp_state(70, 3);
    assert_eq!((post.call(fd), out), (Ok(()), 0));
    let mut rung = Vec::new();
    router.page().take_doorbells(|qp| rung.push(qp));
    assert_eq!(rung, [70]);
    assert_eq!(invoke(REQ_NOTIFY_CQ, &[attr(0, 8, pair(3, 1))]).call(fd), Ok(()));
    assert!(!router.page().take_arm(3, false) && router.page().take_arm(3, true));
    assert_eq!(invoke(REQ_NOTIFY_CQ, &[attr(0, 4, 3)]).call(fd), Err(Errno::NOSPC));
    assert!(router.heard_nothing());
    close(fd);
}

#[test]
fn a_queue_is_made_by_the_extended_command() {
    let router = Router::start();
    let fd = router.open();
    let base = CreateCqResponse { cq_handle: 6, cqe: 127 };
    let response = ExCreateCqResponse { base, comp_mask: 0, response_length: 16 };
    router.answer_next(Answer { response: [response.as_bytes(), &[3; 16]].concat(), ..Answer::default() });
    let (mut cqe, mut driver) = (0u32, [0u8; 16]);
    let attrs = [
        attr(0, 0, 0),
        attr(1, 4, 100),
        attr(2, 8, 0xabc),
        attr(4, 4, 0),
        room(6, &mut cqe),
        room(UHW_OUT, &mut driver),
        [900, 1],
    ];
    let mut create = Method::new(object::CQ, method::CQ_CREATE, &attrs);
    assert_eq!(create.call(fd), Ok(()));
    assert_eq!((create.data(0), cqe, driver), (6, 127, [3; 16]));
    assert!(create.is_valid(4) && create.is_valid(5) && !create.is_valid(0));
    let header = CommandHeader { command: 0x8000_0012, in_words: 4, out_words: 2 };
    let more = ExtendedCommandHeader { response: 1, provider_out_words: 2, ..Default::default() };
    let core = ExCreateCq { user_handle: 0xabc, cqe: 100, comp_channel: -1, ..Default::default() };
    assert_eq!(router.request().command, [header.as_bytes(), more.as_bytes(), core.as_bytes()].concat());
    let with = |extra: [u64; 2]| {
        let all: Vec<_> = attrs.iter().copied().chain([extra]).collect();
        Method::new(object::CQ, method::CQ_CREATE, &all).call(fd)
    };
    assert_eq!(with(attr(3, 0, 77)), Err(Errno::BADF), "no such channel");
    assert_eq!(with(attr(7, 0, fd as u64)), Err(Errno::BADF), "not for events");
    assert_eq!(with(attr(5, 4, 8)), Err(Errno::INVAL), "no such flag");
    assert!(router.heard_nothing());
    close(fd);
}

#[test]
fn what_is_destroyed_says_how_many_events_it_had() {
    let router = Router::start();
    let fd = router.open();
    let mut events = [0u32; 2];
    router.answer_next(Answer { response: pair(4, 5).to_ne_bytes().to_vec(), ..Answer::default() });
    let attrs = [room(1, &mut events), attr(0, 0, 6)];
    assert_eq!(Method::new(object::CQ, method::CQ_DESTROY, &attrs).call(fd), Ok(()));
    assert_eq!(events, [4, 5]);
    assert_eq!(router.request().command, legacy(20, 2, &[0, 6]));
    assert_eq!(Method::new(object::QP, method::QP_DESTROY, &attrs).call(fd), Err(Errno::INVAL), "too much room");
    router.answer_next(Answer { errno: Errno::NOENT.raw_os_error() as u32, ..Answer::default() });
    assert_eq!(Method::new(object::PD, method::PD_DESTROY, &attrs[1..]).call(fd), Err(Errno::NOENT));
    close(fd);
}

#[test]
fn events_have_a_descriptor_when_it_is_asked_for() {
    let router = Router::start();
    let fd = router.open();
    let (theirs, ours) = rustix::pipe::pipe().unwrap();
    let mut alloc = Method::new(object::ASYNC_EVENT, method::ASYNC_EVENT_ALLOC, &[attr(0, 0, 0)]);
    assert_eq!(alloc.call(fd), Err(Errno::INVAL), "no context");
    let (mut vectors, mut support) = (0u32, 0u64);
    let outputs = [room(0, &mut vectors), room(1, &mut support)];
    assert_eq!(Method::new(object::DEVICE, method::QUERY_CONTEXT, &outputs).call(fd), Err(Errno::INVAL));
    let response = GetContextResponse { async_fd: 0, num_comp_vectors: 1 };
    router.answer_next(Answer {
        response: response.as_bytes().to_vec(),
        fds: vec![(theirs, FdUse::Install, 0)],
        ..Answer::default()
    });
    assert_eq!(Method::new(object::DEVICE, method::GET_CONTEXT, &outputs).call(fd), Ok(()));
    assert_eq!((vectors, support), (1, 1));
    assert_eq!(Method::new(object::DEVICE, method::QUERY_CONTEXT, &outputs).call(fd), Ok(()));
    assert_eq!(alloc.call(fd), Ok(()));
    rustix::io::write(&ours, b"x").unwrap();
    let events = alloc.data(0) as RawFd;
    assert!(descriptors::peek(events).is_none());
    assert_eq!(rustix::io::read(unsafe { BorrowedFd::borrow_raw(events) }, &mut [0u8; 4]).unwrap(), 1);
    assert_eq!(alloc.call(fd), Err(Errno::OPNOTSUPP), "there is one");
    link::discard(events);
    close(fd);
}

#[test]
fn the_port_is_told_in_the_newer_struct() {
    let router = Router::start();
    let fd = router.open();
    let legacy = QueryPortResponse { active_speed: 32, gid_tbl_len: 16, ..Default::default() };
    router.answer_next(Answer { response: legacy.as_bytes().to_vec(), ..Answer::default() });
    let mut out = [0xffu8; 56];
    let mut query = Method::new(object::DEVICE, method::QUERY_PORT, &[attr(0, 8, 1), room(1, &mut out)]);
    assert_eq!(query.call(fd), Ok(()));
    assert_eq!(out, *[legacy.as_bytes(), &[0, 0, 0, 0, 32], &[0; 11]].concat());
    assert_eq!(
        Method::new(object::DEVICE, method::QUERY_PORT, &[attr(0, 8, 257), attr(1, 56, 1)]).call(fd),
        Err(Errno::INVAL)
    );
    close(fd);
}

#[test]
fn gids_come_in_entries_of_the_programs_size() {
    let router = Router::start();
    let fd = router.open();
    let entry = |index| GidEntry { gid: [index; 16], gid_index: index.into(), port_num: 1, ..Default::default() };
    let table = [entry(0), entry(1)].as_bytes().to_vec();
    let query = |size: usize, len: usize, out: &mut [u8], count: &mut u64| {
        let attrs = [attr(0, 8, size as u64), attr(1, 4, 0), attr(2, len, out.as_mut_ptr() as u64), room(3, count)];
        Method::new(object::DEVICE, method::QUERY_GID_TABLE, &attrs).call(fd)
    };
    let (mut out, mut count) = ([0xaau8; 128], 0);
    for (size, len) in [(0, 64), (32, 0), (32, 65)] {
        assert_eq!(query(size, len, &mut out, &mut count), Err(Errno::INVAL));
    }
    assert!(router.heard_nothing());
    for (size, len, expected) in [(32, 32, Err(Errno::INVAL)), (32, 64, Ok(())), (24, 48, Ok(())), (40, 120, Ok(()))] {
        router.answer_next(Answer { response: table.clone(), ..Answer::default() });
        assert_eq!(query(size, len, &mut out, &mut count), expected, "{size}");
        if expected.is_ok() {
            assert_eq!((count, out[size]), (2, 1), "{size}");
        }
        assert_eq!(router.request().kind, RequestKind::Ioctl);
    }
    assert_eq!(out[32..40], [0; 8]);
    router.answer_next(Answer { response: entry(1).as_bytes().to_vec(), ..Answer::default() });
    let attrs = [attr(0, 8, 1), attr(1, 8, 1), attr(2, 4, 0), attr(3, 32, out.as_mut_ptr() as u64)];
    assert_eq!(Method::new(object::DEVICE, method::QUERY_GID_ENTRY, &attrs).call(fd), Ok(()));
    assert_eq!(out[..32], *entry(1).as_bytes());
    close(fd);
}

#[test]
fn memory_is_registered_by_the_method_too() {
    let router = Router::start();
    let fd = router.open();
    let buffer = vec![7u8; 50_000];
    let start = buffer.as_ptr() as u64;
    let (mut lkey, mut rkey) = (0u32, 0u32);
    let made = RegMrResponse { mr_handle: 2, lkey: 0x100, rkey: 0x100 };
    router.answer_next(Answer { response: made.as_bytes().to_vec(), ..Answer::default() });
    let attrs = [
        attr(0, 0, 0),
        attr(1, 0, 1),
        attr(3, 8, start),
        attr(4, 8, start),
        attr(5, 8, 50_000),
        attr(6, 4, 7),
        room(9, &mut lkey),
        room(10, &mut rkey),
    ];
    let mut register = Method::new(object::MR, method::REG_MR, &attrs);
    assert_eq!(register.call(fd), Ok(()));
    assert_eq!((register.data(0), lkey, rkey), (2, 0x100, 0x100));
    let request = router.request();
    assert_eq!(request.command, legacy(9, 3, &[0, start, 50_000, start, pair(1, 7)]));
    assert_eq!(request.segments.iter().map(|segment| segment.len).sum::<u64>(), 50_000);
    let without = |at: usize, extra: &[[u64; 2]]| {
        let left = attrs.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, attr)| *attr);
        Method::new(object::MR, method::REG_MR, &left.chain(extra.iter().copied()).collect::<Vec<_>>()).call(fd)
    };
    assert_eq!(without(3, &[]), Err(Errno::INVAL), "neither address nor buffer");
    assert_eq!(without(3, &[attr(7, 0, 1), attr(8, 8, 0)]), Err(Errno::OPNOTSUPP), "a DMA buffer");
    assert!(router.heard_nothing());
    close(fd);
}

#[test]
fn advice_goes_as_it_is() {
    let router = Router::start();
    let fd = router.open();
    let list = [pair(1, 2), pair(3, 4), 5, 6];
    let attrs = [attr(0, 0, 9), attr(1, 8, 2), attr(2, 4, 1), attr(3, 32, list.as_ptr() as u64)];
    assert_eq!(Method::new(object::MR, method::ADVISE_MR, &attrs).call(fd), Ok(()));
    let request = router.request();
    assert_eq!(request.kind, RequestKind::Ioctl);
    let (head, rest) = IoctlHeader::read_from_prefix(&request.command).unwrap();
    assert_eq!((head.object_id, head.method_id, head.num_attrs), (7, 2, 4));
    let expected: Vec<u64> =
        [8 << 16, 9, 1 | 8 << 16, 2, 2 | 4 << 16, 1, 3 | 32 << 16].into_iter().chain(list).collect();
    assert_eq!(rest, expected.as_bytes());
    close(fd);
}
