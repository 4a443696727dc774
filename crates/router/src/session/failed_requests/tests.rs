use super::super::program::Process;
use super::*;
use rdmesh_uverbs::session::RequestKind;
use std::os::fd::AsFd;

fn program(pid: i32) -> Process {
    let (end, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut process = Process::of(end.as_fd()).unwrap();
    process.pid = pid;
    process
}

fn refused(what: &'static str) -> FailedRequest {
    FailedRequest::Refused { what, errno: Errno::INVAL }
}

#[test]
fn the_same_failure_is_counted_and_only_the_last_ones_are_kept() {
    let mut failed_requests = FailedRequests::default();
    let me = program(i32::try_from(std::process::id()).unwrap());
    for number in 0..100 {
        failed_requests.note(FailedRequest::QpType(number), me.pid, || me.comm());
        failed_requests.note(refused("ibv_reg_mr"), me.pid, || me.comm());
    }
    let infos: Vec<_> = failed_requests.infos("a", "blue").collect();
    assert_eq!(infos.len(), MAX);
    let last = infos.last().unwrap();
    assert_eq!((last.request, last.count), (refused("ibv_reg_mr"), 100));
    assert_eq!(infos[MAX - 2].request, FailedRequest::QpType(99));
    assert!(!last.comm.is_empty());
}

#[test]
fn messages_without_sense_have_a_name() {
    for kind in [RequestKind::Verbs, RequestKind::Ioctl, RequestKind::Cm, RequestKind::Open] {
        for len in 0..64 {
            assert!(!names::subject(kind, &vec![0xff; len]).name().is_empty());
            assert!(!names::subject(kind, &vec![0; len]).name().is_empty());
        }
    }
}

#[test]
fn a_failed_request_says_what_and_what_to_do() {
    let gid = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    let request = FailedRequest::WrongGid { index: 0, gid, better: Some(1), peer: "10.7.0.9".parse().unwrap() };
    assert_eq!(request.to_string(), "a path from GID index 0, which is fe80::1, does not lead to 10.7.0.9");
    assert!(request.fix().unwrap().starts_with("use GID index 1"));
    let request =
        FailedRequest::NoPath { peer: "10.7.0.9".parse().unwrap(), external: Some(ExternalPathError::NoInterface) };
    assert!(request.to_string().contains("no path to 10.7.0.9"));
    assert_eq!(FailedRequest::QpType(9).to_string(), "ibv_create_qp: type XRC_SEND is not supported");
    assert!(FailedRequest::BadIndex.fix().unwrap().contains("valgrind"));
}
