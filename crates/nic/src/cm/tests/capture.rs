//! Tests against a capture of two Linux hosts with the rxe driver: their messages on QP 1.

use super::world::*;
use crate::cm::mad;
use crate::cm::messages::{Drep, Dreq, Rtu};
use crate::cm::*;
use rdmesh_verbs::{Psn, Qpn};

/// The connection managers' datagrams of the capture, with the last byte of the source address.
fn captured() -> Vec<(u8, [u8; MAD_LEN])> {
    let capture = include_bytes!("../../../tests/data/rxe.pcap");
    let mut records = &capture[24..];
    let mut mads = Vec::new();
    while let Some((header, rest)) = records.split_at_checked(16) {
        let len = u32::from_le_bytes(*header[8..].first_chunk().unwrap()) as usize;
        let (frame, rest) = rest.split_at(len);
        records = rest;
        let ip = &frame[14..];
        if frame[12..14] == [8, 0] && ip[9] == 17 && ip[28] == 0x64 && ip[33..36] == [0, 0, 1] {
            mads.push((ip[15], *ip[48..].first_chunk().unwrap()));
        }
    }
    mads
}

#[test]
fn what_linux_says_is_decoded_and_encoded_again() {
    let mut seen = Vec::new();
    for (_, bytes) in captured() {
        let kind = mad::kind(&bytes).expect("a message");
        let tid = mad::tid(&bytes);
        let again = match kind {
            Kind::Req => Req::decode(&bytes).unwrap().encode(tid),
            Kind::Rep => Rep::decode(&bytes).encode(tid),
            Kind::Rtu => Rtu::decode(&bytes).encode(tid),
            Kind::Dreq => Dreq::decode(&bytes).encode(tid),
            Kind::Drep => Drep::decode(&bytes).encode(tid),
            other => panic!("{other:?}"),
        };
        assert_eq!(again, bytes, "{kind:?}");
        seen.push(kind);
    }
    let (opened, closed) = ([Kind::Req, Kind::Rep, Kind::Rtu], [Kind::Dreq, Kind::Drep]);
    let whole = [&opened[..], &closed, &opened, &opened, &closed, &closed].concat();
    assert_eq!(seen, whole);
}

/// The parameters of the first host's REQ.
fn linux_req(private: &[u8]) -> ReqParams<'_> {
    ReqParams {
        responder_resources: 1,
        initiator_depth: 1,
        rnr_retry_count: 7,
        remote_cm_response_timeout: 20,
        local_cm_response_timeout: 20,
        packet_life_time: 18,
        ca_ack_delay: 15,
        flow_label: 0x9_5a8e,
        private,
        ..req()
    }
}

fn linux_rep() -> RepParams<'static> {
    RepParams {
        qpn: Qpn::new(0x11),
        starting_psn: Psn::new(0x1e_0236),
        responder_resources: 1,
        initiator_depth: 1,
        rnr_retry_count: 7,
        srq: false,
        private: b"",
        ..rep()
    }
}

#[test]
fn the_active_end_says_what_linux_says() {
    let captured = captured();
    let mut cm = Cm::new(3);
    let theirs = Req::decode(&captured[0].1).unwrap();
    let id = cm.connect(Time(0), path(A, B), &linux_req(&theirs.private)).unwrap();
    let sent = one(&mut cm);
    let named = Req { local_comm_id: id.0, service_id: theirs.service_id, ..theirs.clone() };
    assert_eq!(Req::decode(&sent.bytes).unwrap(), Req { service_id: 0x106_1c06, ..named });
    let tid = mad::tid(&sent.bytes);

    let reply = Rep { remote_comm_id: id.0, ..Rep::decode(&captured[1].1) };
    cm.handle_mad(Time(1), &Mad { path: path(A, B), bytes: reply.encode(tid) });
    assert_eq!(cm.poll_event(), Some((id, Event::Reply(reply.clone()))));
    let info = cm.info(id).unwrap();
    // As in the packets that followed: QP 0x11 was sent 0x1e0236 first, and sent 0x798a3d first.
    assert_eq!((info.sq_psn, info.rq_psn), (Psn::new(0x1e_0236), Psn::new(0x79_8a3d)));
    assert_eq!((info.remote_qpn, info.rnr_retry_count, info.ack_timeout), (Qpn::new(0x11), 7, 19));

    cm.ready(Time(2), id, b"").unwrap();
    let expected = Rtu { local_comm_id: id.0, remote_comm_id: reply.local_comm_id, ..Rtu::decode(&captured[2].1) };
    assert_eq!(one(&mut cm).bytes, expected.encode(tid));
    cm.disconnect(Time(3), id, b"").unwrap();
    let expected = Dreq { local_comm_id: id.0, remote_comm_id: reply.local_comm_id, ..Dreq::decode(&captured[3].1) };
    // Linux's, too, has the transaction ID of the connection.
    assert_eq!(mad::tid(&captured[3].1), mad::tid(&captured[0].1));
    assert_eq!(one(&mut cm).bytes, expected.encode(tid));
}

#[test]
fn the_passive_end_says_what_linux_says() {
    let captured = captured();
    let mut cm = Cm::new(4);
    cm.handle_mad(Time(0), &Mad { path: path(B, A), bytes: captured[0].1 });
    let (id, event) = cm.poll_event().unwrap();
    let Event::Request { req, .. } = event else { panic!("{event:?}") };
    assert_eq!((req.service_id, req.max_cm_retries, req.path.ack_timeout), (0x106_1c06, 15, 19));

    cm.accept(Time(1), id, &linux_rep()).unwrap();
    let expected = Rep { local_comm_id: id.0, ..Rep::decode(&captured[1].1) };
    assert_eq!(one(&mut cm).bytes, expected.encode(mad::tid(&captured[0].1)));
    let info = cm.info(id).unwrap();
    assert_eq!((info.sq_psn, info.rq_psn), (Psn::new(0x79_8a3d), Psn::new(0x1e_0236)));
    assert_eq!((info.remote_qpn, info.ack_timeout), (Qpn::new(0x11), 19));

    let to_us = |kind: usize| {
        let mut bytes = captured[kind].1;
        mad::put(&mut bytes, 4, &id.0.to_be_bytes());
        Mad { path: path(B, A), bytes }
    };
    cm.handle_mad(Time(2), &to_us(2));
    assert!(matches!(cm.poll_event(), Some((_, Event::Established { .. }))));
    cm.handle_mad(Time(3), &to_us(3));
    assert!(matches!(cm.poll_event(), Some((_, Event::DisconnectRequested { .. }))));
    cm.disconnect(Time(4), id, b"").unwrap();
    let expected = Drep { local_comm_id: id.0, ..Drep::decode(&captured[4].1) };
    assert_eq!(one(&mut cm).bytes, expected.encode(mad::tid(&captured[3].1)));
}
