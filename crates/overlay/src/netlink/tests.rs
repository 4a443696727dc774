//! Tests of the matching of answers, and of the kernel's explanations.

use super::*;
use crate::namespace::Namespace;
use netlink_packet_core::{NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_CREATE, NLM_F_EXCL, NLM_F_MULTIPART};
use netlink_packet_core::{NLMSG_DONE, NLMSG_ERROR};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};

const EPERM: i32 = 1;
const ENODEV: i32 = 19;

fn framed(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(16 + payload.len()).unwrap();
    let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes()].concat();
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(payload);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn acknowledgement(sequence: u32, errno: i32) -> Vec<u8> {
    let request = framed(16, 0, sequence, &[]);
    framed(NLMSG_ERROR, NLM_F_CAPPED, sequence, &[&(-errno).to_ne_bytes()[..], &request].concat())
}

fn text(text: &str) -> Vec<u8> {
    let length = u16::try_from(4 + text.len() + 1).unwrap();
    let mut bytes = [&length.to_ne_bytes()[..], &1u16.to_ne_bytes(), text.as_bytes(), &[0]].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn link(sequence: u32, name: &str, flags: u16) -> Vec<u8> {
    let mut message = LinkMessage::default();
    message.attributes = vec![LinkAttribute::IfName(name.to_owned())];
    let mut bytes = Vec::new();
    Request { message: RouteNetlinkMessage::NewLink(message), flags }.append_to(&mut bytes, sequence);
    bytes
}

fn names(answer: &Answer) -> Vec<String> {
    let objects = answer.as_ref().unwrap().iter();
    let name = |object: &io::Result<RouteNetlinkMessage>| match object {
        Ok(RouteNetlinkMessage::NewLink(link)) => link.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name.clone()),
            _ => None,
        }),
        _ => None,
    };
    objects.filter_map(name).collect()
}

fn refusal(code: i32, text: Option<&str>) -> Answer {
    Err(Refusal { code, text: text.map(str::to_owned) })
}

fn code(answer: &Answer) -> Result<usize, i32> {
    answer.as_ref().map(Vec::len).map_err(|refusal| refusal.code)
}

#[test]
fn answers_out_of_order_find_their_requests() {
    let mut exchange = Exchange::new(7, 3);
    exchange.take(&acknowledgement(9, ENODEV)).unwrap();
    exchange.take(&[link(8, "b", 0), acknowledgement(7, EPERM)].concat()).unwrap();
    assert!(!exchange.is_complete());
    exchange.take(&acknowledgement(8, 0)).unwrap();
    assert!(exchange.is_complete());
    let answers = exchange.into_answers();
    assert_eq!(answers.iter().map(code).collect::<Vec<_>>(), [Err(EPERM), Ok(1), Err(ENODEV)]);
    assert_eq!(names(&answers[1]), ["b"]);
}

#[test]
fn sequence_numbers_wrap_around() {
    let mut exchange = Exchange::new(u32::MAX, 2);
    exchange.take(&[acknowledgement(0, ENODEV), acknowledgement(u32::MAX, 0)].concat()).unwrap();
    assert_eq!(exchange.into_answers().iter().map(code).collect::<Vec<_>>(), [Ok(0), Err(ENODEV)]);
}

#[test]
fn an_unexpected_sequence_number_is_an_error() {
    let mut exchange = Exchange::new(7, 2);
    assert_eq!(exchange.take(&acknowledgement(9, 0)), Err(AnswerError::Unexpected(9)));
    exchange.take(&acknowledgement(7, 0)).unwrap();
    assert_eq!(exchange.take(&acknowledgement(7, 0)), Err(AnswerError::Unexpected(7)));
    assert!(!exchange.is_complete());
}

#[test]
fn late_answers_to_an_earlier_batch_are_no_answers_to_this_one() {
    let mut exchange = Exchange::new(7, 1);
    exchange.take(&acknowledgement(6, EPERM)).unwrap();
    assert!(!exchange.is_complete());
    exchange.take(&acknowledgement(7, 0)).unwrap();
    assert_eq!(exchange.into_answers().iter().map(code).collect::<Vec<_>>(), [Ok(0)]);
}

#[test]
fn truncated_answers_are_errors() {
    let whole = [link(7, "a", 0), acknowledgement(7, EPERM)].concat();
    let first = link(7, "a", 0).len();
    for len in (1..whole.len()).filter(|&len| len != first) {
        let mut exchange = Exchange::new(7, 1);
        assert_eq!(exchange.take(&whole[..len]), Err(AnswerError::Truncated), "{len} bytes");
        assert!(!exchange.is_complete());
    }
    let no_errno = framed(NLMSG_ERROR, 0, 7, &[]);
    assert_eq!(Exchange::new(7, 1).take(&no_errno), Err(AnswerError::Truncated));
    let less_than_a_header = [15u32.to_ne_bytes(), [0; 4], 7u32.to_ne_bytes(), [0; 4]].concat();
    assert_eq!(Exchange::new(7, 1).take(&less_than_a_header), Err(AnswerError::Truncated));
}

#[test]
fn a_list_ends_with_its_end_and_may_fail_there() {
    let mut exchange = Exchange::new(7, 1);
    exchange.take(&[link(7, "a", NLM_F_MULTIPART), link(7, "b", NLM_F_MULTIPART)].concat()).unwrap();
    assert!(!exchange.is_complete());
    exchange.take(&framed(NLMSG_DONE, NLM_F_MULTIPART, 7, &0i32.to_ne_bytes())).unwrap();
    assert_eq!(names(&exchange.into_answers()[0]), ["a", "b"]);
    let mut exchange = Exchange::new(7, 1);
    let end = [&(-EPERM).to_ne_bytes()[..], &text("not now")].concat();
    exchange.take(&framed(NLMSG_DONE, NLM_F_ACK_TLVS, 7, &end)).unwrap();
    assert_eq!(code(&exchange.into_answers()[0]), Err(EPERM));
}

#[test]
fn the_explanation_lies_behind_the_request() {
    let request = framed(16, 0, 7, b"refused");
    let payload = |request: &[u8]| [&(-EPERM).to_ne_bytes()[..], request, &text("because")].concat();
    for (flags, request) in [(NLM_F_ACK_TLVS, &request[..]), (NLM_F_ACK_TLVS | NLM_F_CAPPED, &request[..16])] {
        let mut exchange = Exchange::new(7, 1);
        exchange.take(&framed(NLMSG_ERROR, flags, 7, &payload(request))).unwrap();
        let [answer] = &exchange.into_answers()[..] else { panic!("one answer") };
        let expected = refusal(EPERM, Some("because"));
        assert_eq!(answer.as_ref().unwrap_err(), &expected.unwrap_err());
        assert!(answer.as_ref().unwrap_err().to_string().ends_with(": because"));
    }
    // Without the flag what follows is not read.
    let mut exchange = Exchange::new(7, 1);
    exchange.take(&framed(NLMSG_ERROR, 0, 7, &payload(&request))).unwrap();
    assert_eq!(exchange.into_answers()[0].as_ref().unwrap_err().text, None);
}

/// Runs `test` in a network namespace of its own; not, and with a line that says why, without root.
fn in_own_namespace(test: impl FnOnce() -> io::Result<()> + Send) {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: network namespaces need root");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("own");
    let namespace = Namespace::ensure(&file).unwrap();
    let done = namespace.run(test);
    Namespace::remove(&file).unwrap();
    done.unwrap();
}

fn bridge(name: &str, more: impl IntoIterator<Item = LinkAttribute>) -> Request {
    let mut message = LinkMessage::default();
    message.attributes =
        vec![LinkAttribute::IfName(name.to_owned()), LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge)])];
    message.attributes.extend(more);
    Request::new(RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)
}

#[test]
fn the_kernels_explanation_is_part_of_the_error() {
    in_own_namespace(|| {
        let mut netlink = Netlink::open()?;
        let answers = netlink.execute(vec![bridge("a", [LinkAttribute::Mtu(1)]), bridge("b", [])])?;
        let refused = answers[0].as_ref().unwrap_err();
        assert_eq!(refused.code, rustix::io::Errno::INVAL.raw_os_error());
        let text = refused.text.as_deref().expect("an explanation");
        assert!(refused.to_string().contains("(os error 22)") && refused.to_string().ends_with(text), "{refused}");
        assert!(text.contains("mtu"), "{text}");
        // What follows a refused request is executed.
        assert!(answers[1].is_ok());
        Ok(())
    });
}

#[test]
fn strict_checking_is_on() {
    in_own_namespace(|| {
        let mut netlink = Netlink::open()?;
        let mut message = LinkMessage::default();
        // A list has no use for an MTU.
        message.attributes = vec![LinkAttribute::Mtu(1)];
        let answers = netlink.execute(vec![Request::dump(RouteNetlinkMessage::GetLink(message))])?;
        assert_eq!(code(&answers[0]), Err(rustix::io::Errno::INVAL.raw_os_error()));
        Ok(())
    });
}

#[test]
fn more_requests_than_a_batch_takes_are_all_answered() {
    in_own_namespace(|| {
        let mut netlink = Netlink::open()?;
        let count = 3 * MOST_REQUESTS + 1;
        let requests = (0..count).map(|_| bridge("a", [])).collect();
        let answers = netlink.execute(requests)?;
        assert_eq!(answers.len(), count);
        assert!(answers[0].is_ok());
        let exists = rustix::io::Errno::EXIST.raw_os_error();
        assert!(answers[1..].iter().all(|answer| code(answer) == Err(exists)));
        Ok(())
    });
}
