use super::*;
use proptest::prelude::*;
use rdmesh_uverbs::abi::netlink::{NetlinkHeader, netlink_flag, nldev, nldev_attr as attr, nldev_type};
use rdmesh_verbs::QpType;
use rustix::io::Errno;
use zerocopy::IntoBytes;

const LIST: u16 = netlink_flag::REQUEST | netlink_flag::DUMP;

fn header(kind: u16, flags: u16) -> NetlinkHeader {
    NetlinkHeader { len: 16, kind, flags, seq: 7, port_id: 9 }
}

/// A request with these attributes.
fn request(command: u16, flags: u16, attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut message = Message::new(header(nldev_type(command), flags));
    attributes.iter().for_each(|(kind, value)| message.bytes(*kind, value));
    message.finish().unwrap()
}

fn question(bytes: &[u8]) -> Result<Question<'_>, Errno> {
    Request::parse(bytes)?.question
}

const ZERO: (u16, &[u8]) = (attr::DEV_INDEX, &[0, 0, 0, 0]);
const ONE: (u16, &[u8]) = (attr::PORT_INDEX, &[1, 0, 0, 0]);

#[test]
fn questions_are_understood() {
    assert_eq!(question(&request(nldev::GET, LIST, &[])), Ok(Question::Device));
    assert_eq!(question(&request(nldev::GET, 1, &[ZERO])), Ok(Question::Device));
    assert_eq!(question(&request(nldev::PORT_GET, LIST, &[ZERO])), Ok(Question::Port));
    assert_eq!(question(&request(nldev::RES_QP_GET, LIST, &[ZERO])), Ok(Question::Objects(Kind::Qp, None)));
    let number = (attr::RES_LQPN, &[5, 0, 0, 0][..]);
    assert_eq!(
        question(&request(nldev::RES_QP_GET, 1, &[ZERO, ONE, number])),
        Ok(Question::Objects(Kind::Qp, Some(5)))
    );
    let uverbs = (attr::CHARDEV_TYPE, &b"uverbs\0"[..]);
    let chardev = Question::Chardev { kind: b"uverbs", of_device: true };
    assert_eq!(question(&request(nldev::GET_CHARDEV, 1, &[ZERO, uverbs])), Ok(chardev));
    assert_eq!(question(&request(nldev::STAT_GET, 1, &[ZERO, ONE])), Ok(Question::Statistic));
}

#[test]
fn questions_without_sense_are_refused_as_a_kernel_does() {
    let other = (attr::DEV_INDEX, &[1, 0, 0, 0][..]);
    let port = (attr::PORT_INDEX, &[2, 0, 0, 0][..]);
    let short = (attr::DEV_INDEX, &[0, 0, 0][..]);
    let unended = (attr::CHARDEV_TYPE, &b"uverbs"[..]);
    for bytes in [
        request(nldev::GET, 1, &[]),
        request(nldev::GET, 1, &[other]),
        request(nldev::GET, 1, &[short]),
        request(nldev::PORT_GET, 1, &[ZERO]),
        request(nldev::PORT_GET, 1, &[ZERO, port]),
        request(nldev::RES_QP_GET, 1, &[ZERO, (attr::RES_LQPN, &[5, 0, 0, 0])]),
        request(nldev::RES_CQ_GET, 1, &[ZERO, ONE, (attr::RES_CQN, &[5, 0, 0, 0])]),
        request(nldev::RES_PD_GET, 1, &[ZERO]),
        request(nldev::GET_CHARDEV, 1, &[ZERO]),
        request(nldev::GET_CHARDEV, 1, &[ZERO, unended]),
        request(nldev::STAT_GET, LIST, &[ZERO]),
        request(nldev::SYS_GET, LIST, &[]),
        request(8, 1, &[]),
        request(1000, LIST, &[]),
    ] {
        assert_eq!(question(&bytes), Err(Errno::INVAL), "{bytes:?}");
    }
    let others = header(4 << 10 | 1, 1);
    assert_eq!(question(others.as_bytes()), Err(Errno::INVAL), "the host's local services");
    for command in [nldev::SET, nldev::NEWLINK, nldev::DELLINK, nldev::SYS_SET, nldev::STAT_SET, nldev::NEWDEV] {
        assert_eq!(question(&request(command, 1, &[ZERO])), Err(Errno::PERM), "{command}");
    }
}

#[test]
fn a_message_says_how_long_it_and_its_attributes_are() {
    let mut message = Message::new(header(nldev_type(nldev::GET), 0));
    message.nest(attr::RES_SUMMARY, |message| message.text(attr::RES_SUMMARY_ENTRY_NAME, "cm"));
    let bytes = message.finish().unwrap();
    let attributes = [12, 0, 15, 0, 7, 0, 17, 0, b'c', b'm', 0, 0];
    assert_eq!((&bytes[..4], &bytes[16..]), (&[28, 0, 0, 0][..], &attributes[..]));
}

#[test]
fn what_does_not_fit_leaves_no_trace() {
    let mut message = Message::new(header(nldev_type(nldev::RES_QP_GET), LIST));
    let resource = Resource::Qp {
        qpn: 1,
        qp_type: QpType::Rc,
        state: rdmesh_verbs::QpState::Rts,
        port: 1,
        pd: 1,
        peer: 1,
        rq_psn: 1,
        sq_psn: 1,
        migration: 0,
    };
    let mut count = 0;
    while message.try_nest(attr::RES_QP_ENTRY, |message| describe_resource(message, &resource, Some(1))) {
        count += 1;
    }
    assert!((20..100).contains(&count), "{count}");
    let bytes = message.finish().unwrap();
    assert!(bytes.len() < 4096 && (bytes.len() - 16).is_multiple_of(count), "{} of {count}", bytes.len());
    let mut too_much = Message::new(header(nldev_type(nldev::GET), 0));
    too_much.bytes(attr::DEV_NAME, &[0; 4096]);
    assert_eq!(too_much.finish(), None);
}

#[test]
fn a_shared_receive_queue_tells_of_as_many_queue_pairs_as_fit() {
    let qps = (0..10_000).map(|n| n * 2).collect();
    let srq = Resource::Srq { number: u32::MAX, pd: u32::MAX, qps };
    let mut message = Message::new(header(nldev_type(nldev::RES_SRQ_GET), LIST));
    assert!(message.try_nest(attr::RES_SRQ_ENTRY, |message| describe_resource(message, &srq, Some(1))));
}

proptest! {
    #[test]
    fn any_bytes_are_a_request_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), command in 0u16..40) {
        let _ = Request::parse(&bytes);
        let mut framed = header(nldev_type(command), LIST).as_bytes().to_vec();
        framed.extend(&bytes);
        for flags in [1u16, LIST] {
            let len = framed.len() as u32;
            framed[..4].copy_from_slice(&len.to_ne_bytes());
            framed[6..8].copy_from_slice(&flags.to_ne_bytes());
            if let Ok(request) = Request::parse(&framed) {
                prop_assert_eq!(request.header.kind, nldev_type(command));
            }
        }
    }
}
