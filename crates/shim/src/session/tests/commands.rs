//! Tests of commands: the messages to the router, and the responses.

use super::*;

const QUERY_PORT: u32 = 2;
const DEALLOC_PD: u32 = 4;
const REG_MR: u32 = 9;
const REQ_NOTIFY_CQ: u32 = 23;
const POST_SEND: u32 = 28;
const MODIFY_SRQ: u32 = 33;
const RTS: u8 = 3;

#[test]
fn a_response_goes_where_the_command_says_and_no_further() {
    let router = Router::start();
    let fd = router.open();
    let mut room = [0xaau8; 16];
    router.answer_next(Answer { response: (0..16).collect(), ..Answer::default() });
    let command = legacy(QUERY_PORT, 3, &[room.as_mut_ptr() as u64, 1]);
    assert_eq!(write_command(fd, &command), Ok(()));
    assert_eq!(room, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0xaa, 0xaa, 0xaa, 0xaa]);
    let request = router.request();
    assert_eq!((request.kind, request.command), (RequestKind::Verbs, command));
    assert!(request.fd.is_none() && request.segments.is_empty());
    close(fd);
}

#[test]
fn an_extended_command_names_its_response_in_its_header() {
    let router = Router::start();
    let fd = router.open();
    let mut room = [0u8; 32];
    let mut command = legacy(0x8000_0001, 2, &[room.as_mut_ptr() as u64, pair(1 | 1 << 16, 0), 5, 6]);
    command[4..6].copy_from_slice(&1u16.to_ne_bytes());
    router.answer_next(Answer { response: vec![9; 32], ..Answer::default() });
    assert_eq!(write_command(fd, &command), Ok(()));
    assert_eq!(room[..24], [9; 24], "two words of the core's and one of the provider's");
    assert_eq!(room[24..], [0; 8]);
    assert_eq!(router.request().command, command);
    close(fd);
}

#[test]
fn errors_of_the_router_are_the_programs() {
    let router = Router::start();
    let fd = router.open();
    let mut room = [1u8; 8];
    router.answer_next(Answer { errno: Errno::BUSY.raw_os_error() as u32, response: vec![2; 8], ..Answer::default() });
    let command = legacy(QUERY_PORT, 2, &[room.as_mut_ptr() as u64]);
    assert_eq!(write_command(fd, &command), Err(Errno::BUSY));
    assert_eq!(room, [1; 8]);
    close(fd);
}

#[test]
fn malformed_commands_never_reach_the_router() {
    let router = Router::start();
    let fd = router.open();
    let good = legacy(DEALLOC_PD, 0, &[1]);
    assert_eq!(write_command(fd, &good[..good.len() - 1]), Err(Errno::INVAL));
    assert_eq!(write_command(fd, &good[..7]), Err(Errno::INVAL));
    assert_eq!(write_command(fd, &[]), Err(Errno::INVAL));
    let mut wrong = good.clone();
    wrong[4] += 1;
    assert_eq!(write_command(fd, &wrong), Err(Errno::INVAL));
    let extended = legacy(0x8000_0001, 2, &[0, 0]);
    assert_eq!(write_command(fd, &extended), Err(Errno::INVAL), "room for a response that has no address");
    assert_eq!(write_command(fd, &legacy(DEALLOC_PD, 0, &vec![0; 10_000])), Err(Errno::INVAL));
    assert!(router.heard_nothing());
    close(fd);
}

#[test]
fn a_doorbell_is_no_message() {
    let router = Router::start();
    let fd = router.open();
    let mut bad_wr = 5u32;
    let post = legacy(POST_SEND, 1, &[(&raw mut bad_wr) as u64, pair(70, 0), 0]);
    assert_eq!(write_command(fd, &post), Err(Errno::INVAL), "the state is not yet one for sending");
    router.page().set_qp_state(70, RTS);
    assert_eq!(write_command(fd, &post), Ok(()));
    assert_eq!(bad_wr, 0);
    let mut rung = Vec::new();
    router.page().take_doorbells(|qp| rung.push(qp));
    assert_eq!(rung, [70]);
    let woken = || rustix::io::read(&router.wake, &mut [0u8; 8]).is_ok();
    assert!(!woken());
    router.workers.set_sleeping(0, true);
    assert_eq!(write_command(fd, &post), Ok(()));
    assert!(woken());
    assert_eq!(
        write_command(fd, &legacy(POST_SEND, 1, &[0, pair(70, 1), 0])),
        Err(Errno::INVAL),
        "requests in the command"
    );
    assert!(router.heard_nothing());
    close(fd);
}

#[test]
fn arming_a_queue_is_no_message() {
    let router = Router::start();
    let fd = router.open();
    assert_eq!(write_command(fd, &legacy(REQ_NOTIFY_CQ, 0, &[pair(3, 1)])), Ok(()));
    assert!(!router.page().take_arm(3, false) && router.page().take_arm(3, true));
    assert_eq!(write_command(fd, &legacy(REQ_NOTIFY_CQ, 0, &[pair(4, 0)])), Ok(()));
    assert!(router.page().take_arm(4, false));
    assert!(router.heard_nothing());
    close(fd);
}

#[test]
fn descriptors_are_installed() {
    let router = Router::start();
    let fd = router.open();
    let (theirs, ours) = rustix::pipe::pipe().unwrap();
    let mut room = [0u32; 4];
    router.answer_next(Answer {
        response: vec![0xff; 16],
        fds: vec![(theirs, FdUse::Install, 4)],
        ..Answer::default()
    });
    assert_eq!(write_command(fd, &legacy(0, 4, &[room.as_mut_ptr() as u64])), Ok(()));
    assert_eq!((room[0], room[2]), (u32::MAX, u32::MAX));
    rustix::io::write(&ours, b"x").unwrap();
    let installed = unsafe { BorrowedFd::borrow_raw(room[1] as RawFd) };
    assert_eq!(rustix::io::read(installed, &mut [0u8; 4]).unwrap(), 1);
    assert!(descriptors::peek(room[1] as RawFd).is_none());
    link::discard(room[1] as RawFd);
    close(fd);
}

#[test]
fn modify_srq_returns_the_new_queue_through_its_pointer() {
    let router = Router::start();
    let fd = router.open();
    let mut info = [0u8; 16];
    router.answer_next(Answer { mminfo: [3; 16], ..Answer::default() });
    let command = legacy(MODIFY_SRQ, 0, &[pair(1, 1), pair(100, 0), (&raw mut info) as u64]);
    assert_eq!(write_command(fd, &command), Ok(()));
    assert_eq!(info, [3; 16]);
    router.answer_next(Answer { mminfo: [4; 16], ..Answer::default() });
    assert_eq!(write_command(fd, &legacy(MODIFY_SRQ, 0, &[pair(1, 1), pair(100, 0), 0])), Ok(()));
    assert_eq!(info, [3; 16]);
    close(fd);
}

#[test]
fn memory_is_registered_with_its_pieces() {
    let router = Router::start();
    let fd = router.open();
    let buffer: Vec<u8> = (0..200_000u32).map(|at| at as u8).collect();
    let start = buffer.as_ptr() as u64 + 3;
    let command = legacy(REG_MR, 0, &[0, start, 150_000, start, pair(1, 0b111)]);
    assert_eq!(write_command(fd, &command), Ok(()));
    let request = router.request();
    assert_eq!(request.command, command);
    let arena = request.fd.unwrap();
    let mut next = start;
    for segment in &request.segments {
        assert_eq!((segment.addr, segment.kind), (next, SegmentKind::Arena as u32));
        let mut bytes = vec![0; segment.len as usize];
        rustix::io::pread(&arena, &mut bytes, segment.offset).unwrap();
        let at = (segment.addr - buffer.as_ptr() as u64) as usize;
        assert_eq!(bytes, buffer[at..at + bytes.len()]);
        next += segment.len;
    }
    assert_eq!(next, start + 150_000);
    // A page that the router misses is made, and it is asked again; once.
    let missed = || Answer { errno: Errno::FAULT.raw_os_error() as u32, ..Answer::default() };
    for (answers, result) in [(vec![missed()], Ok(())), (vec![missed(), missed()], Err(Errno::FAULT))] {
        answers.into_iter().for_each(|answer| router.answer_next(answer));
        assert_eq!(write_command(fd, &command), result);
        assert_eq!([router.request().command, router.request().command], [command.clone(), command.clone()]);
        assert!(router.heard_nothing());
    }
    let nowhere = legacy(REG_MR, 0, &[0, 0x1000, 100, 0x1000, pair(1, 1)]);
    assert_eq!(write_command(fd, &nowhere), Err(Errno::FAULT));
    assert!(router.heard_nothing());
    close(fd);
}

#[test]
fn the_arena_is_sent_once_and_when_the_router_asks_for_it() {
    let router = Router::start();
    let fd = router.open();
    let buffer = vec![1u8; 100_000];
    let start = buffer.as_ptr() as u64;
    let command = legacy(REG_MR, 0, &[0, start, 100_000, start, pair(1, 0b111)]);
    let descriptors = |requests: usize| {
        let sent: Vec<bool> = (0..requests).map(|_| router.request().fd.is_some()).collect();
        assert!(router.heard_nothing());
        sent
    };
    let refused = |errno: Errno| Answer { errno: errno.raw_os_error() as u32, ..Answer::default() };
    // A router that has not taken it is sent it again.
    router.answer_next(refused(Errno::NOMEM));
    assert_eq!(write_command(fd, &command), Err(Errno::NOMEM));
    assert_eq!(write_command(fd, &command), Ok(()));
    assert_eq!(descriptors(2), [true, true]);
    assert_eq!(write_command(fd, &command), Ok(()));
    assert_eq!(descriptors(1), [false]);
    router.answer_next(refused(Errno::NODATA));
    assert_eq!(write_command(fd, &command), Ok(()));
    assert_eq!(write_command(fd, &command), Ok(()));
    assert_eq!(descriptors(3), [false, true, false]);
    // Another connection has heard nothing of it yet.
    let other = router.open();
    assert_eq!(write_command(other, &command), Ok(()));
    assert_eq!(descriptors(1), [true]);
    close(other);
    close(fd);
}
