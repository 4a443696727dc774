//! Test harness: connection managers that exchange messages, and the parameters they use.

use crate::cm::*;
use crate::timer::Time;
use core::time::Duration;
use rdmesh_verbs::{Gid, Mtu, Psn, Qkey, QpType, Qpn, Vni};

pub(super) const VNI: Vni = Vni(7);
pub(super) const A: Gid = gid(1);
pub(super) const B: Gid = gid(2);

pub(super) const fn gid(n: u8) -> Gid {
    Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 98, 0, n])
}

pub(super) fn path(local: Gid, remote: Gid) -> CmPath {
    CmPath { vni: VNI, local, remote, external: None }
}

pub(super) fn guid(n: u8) -> [u8; 8] {
    [0x50, 0x54, 0, 0xff, 0xfe, 0, 0, n]
}

pub(super) fn req() -> ReqParams<'static> {
    ReqParams {
        service_id: 0x106_1c06,
        ca_guid: guid(1),
        qpn: Qpn::new(0x11),
        qp_type: QpType::Rc,
        starting_psn: Psn::new(0x79_8a3d),
        pkey: 0xffff,
        mtu: Mtu::B1024,
        responder_resources: 4,
        initiator_depth: 2,
        retry_count: 7,
        rnr_retry_count: 6,
        flow_control: false,
        srq: false,
        remote_cm_response_timeout: 12,
        local_cm_response_timeout: 12,
        max_cm_retries: 15,
        packet_life_time: 10,
        ca_ack_delay: 9,
        flow_label: 0x9_5a8e,
        traffic_class: 0,
        hop_limit: 64,
        sl: 0,
        rate: 0,
        private: b"hello",
    }
}

pub(super) fn rep() -> RepParams<'static> {
    RepParams {
        ca_guid: guid(2),
        qpn: Qpn::new(0x22),
        starting_psn: Psn::new(0x1e_0236),
        responder_resources: 2,
        initiator_depth: 3,
        target_ack_delay: 15,
        failover: 0,
        flow_control: false,
        rnr_retry_count: 5,
        srq: true,
        private: b"welcome",
    }
}

pub(super) fn question() -> SidrParams<'static> {
    SidrParams {
        service_id: 0x111_0001,
        pkey: 0xffff,
        timeout: Duration::from_millis(10),
        max_retries: 3,
        private: b"who?",
    }
}

pub(super) fn found() -> SidrAnswer<'static> {
    SidrAnswer { status: 0, qpn: Qpn::new(9), qkey: Qkey(0x0123_4567), service_id: 0x111_0001, private: b"me" }
}

/// A datagram of one end, as the other end receives it.
pub(super) fn mirrored(mad: Mad) -> Mad {
    Mad { path: CmPath { local: mad.path.remote, remote: mad.path.local, ..mad.path }, ..mad }
}

/// Two ends without a network between them: the test carries the messages.
pub(super) struct Two {
    pub(super) a: Cm,
    pub(super) b: Cm,
    pub(super) now: Time,
}

impl Two {
    pub(super) fn new() -> Self {
        Self { a: Cm::new(1), b: Cm::new(2), now: Time(1_000_000) }
    }

    /// Carries messages until none is left, losing nothing.
    pub(super) fn run(&mut self) {
        loop {
            let (to_b, to_a) = (all(&mut self.a), all(&mut self.b));
            if to_b.is_empty() && to_a.is_empty() {
                return;
            }
            to_b.into_iter().for_each(|mad| self.b.handle_mad(self.now, &mirrored(mad)));
            to_a.into_iter().for_each(|mad| self.a.handle_mad(self.now, &mirrored(mad)));
        }
    }

    pub(super) fn wait(&mut self, d: Duration) {
        self.now = self.now.after(d);
        self.a.handle_timeout(self.now);
        self.b.handle_timeout(self.now);
    }

    /// A asks, and B has heard it.
    pub(super) fn asked() -> (Self, CommId, CommId) {
        let mut two = Self::new();
        let a = two.a.connect(two.now, path(A, B), &req()).unwrap();
        two.run();
        let (b, event) = two.b.poll_event().unwrap();
        assert!(matches!(event, Event::Request { .. }));
        (two, a, b)
    }

    /// B has accepted, and A has heard it.
    pub(super) fn replied() -> (Self, CommId, CommId) {
        let (mut two, a, b) = Self::asked();
        two.b.accept(two.now, b, &rep()).unwrap();
        two.run();
        assert!(matches!(two.a.poll_event(), Some((id, Event::Reply(_))) if id == a));
        (two, a, b)
    }

    pub(super) fn connected() -> (Self, CommId, CommId) {
        let (mut two, a, b) = Self::replied();
        two.a.ready(two.now, a, b"go").unwrap();
        two.run();
        assert!(matches!(two.b.poll_event(), Some((id, Event::Established { .. })) if id == b));
        (two, a, b)
    }

    pub(super) fn states(&self, a: CommId, b: CommId) -> (Option<CmState>, Option<CmState>) {
        (self.a.info(a).map(|info| info.state), self.b.info(b).map(|info| info.state))
    }
}

/// Everything that an end has to send.
pub(super) fn all(cm: &mut Cm) -> Vec<Mad> {
    std::iter::from_fn(|| cm.poll_mad()).collect()
}

/// The one message that an end has to send.
pub(super) fn one(cm: &mut Cm) -> Mad {
    let mads = all(cm);
    assert_eq!(mads.len(), 1, "{:?}", kinds(&mads));
    mads[0]
}

pub(super) fn kinds(mads: &[Mad]) -> Vec<Kind> {
    mads.iter().filter_map(|mad| crate::cm::mad::kind(&mad.bytes)).collect()
}

pub(super) fn events(cm: &mut Cm) -> Vec<(CommId, Event)> {
    std::iter::from_fn(|| cm.poll_event()).collect()
}

/// Numbers that only the seed decides.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        crate::cm::table::mix(self.0)
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}
