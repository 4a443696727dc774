//! Fuzz target for the connection manager: a peer that sends arbitrary messages, and an owner that makes arbitrary calls.
//!
//! Nothing panics, no message is answered by more than a refusal and one disconnect, and nothing is left when everything has
//! been given up.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rdmesh_nic::Time;
use rdmesh_nic::cm::*;
use rdmesh_verbs::{Gid, Mtu, Psn, Qkey, QpType, Qpn, Vni};
use std::time::Duration;

fuzz_target!(|data: &[u8]| {
    let mut world = World { cms: [Cm::new(1), Cm::new(2)], now: Time(0), ids: Vec::new(), heard: Vec::new() };
    let mut script = data.iter().copied();
    while let Some(op) = script.next() {
        world.step(op, &mut script);
    }
    world.end();
});

struct World {
    cms: [Cm; 2],
    now: Time,
    ids: Vec<(usize, CommId)>,
    /// Sent datagrams, as their receiver sees them.
    heard: Vec<Mad>,
}

impl World {
    fn step(&mut self, op: u8, script: &mut impl Iterator<Item = u8>) {
        let arg = script.next().unwrap_or(0);
        let Some((node, id)) = self.ids.get(usize::from(arg) % self.ids.len().max(1)).copied() else {
            return self.connect(usize::from(arg & 1));
        };
        let (cm, now) = (&mut self.cms[node], self.now);
        match op % 16 {
            0 => self.connect(usize::from(arg & 1)),
            1 => _ = cm.accept(now, id, &rep(arg)),
            2 => _ = cm.ready(now, id, b"ready"),
            3 => _ = cm.reject(now, id, RejectReason(arg.into()), b"more", b"no"),
            4 => _ = cm.prepare(now, id, arg, b"wait"),
            5 => _ = cm.notify_established(now, id),
            6 => _ = cm.disconnect(now, id, b"bye"),
            7 => cm.destroy(now, id),
            8 => _ = cm.answer_service(now, id, &answer(arg)),
            9 => self.ask(usize::from(arg & 1)),
            10 => self.now = now.after(Duration::from_millis(arg.into())),
            _ => self.deliver(op, arg, script),
        }
        self.collect();
    }

    fn connect(&mut self, node: usize) {
        let id = self.cms[node].connect(self.now, path(node), &req(self.ids.len() as u32));
        self.ids.extend(id.map(|id| (node, id)));
        self.collect();
    }

    fn ask(&mut self, node: usize) {
        let (timeout, max_retries) = (Duration::from_millis(20), 2);
        let sidr = SidrParams { service_id: 1, pkey: 0xffff, timeout, max_retries, private: b"who" };
        let id = self.cms[node].resolve_service(self.now, path(node), &sidr);
        self.ids.extend(id.map(|id| (node, id)));
    }

    /// Something that was said is heard, now or again, as it was or not.
    fn deliver(&mut self, op: u8, which: u8, script: &mut impl Iterator<Item = u8>) {
        let newest = self.heard.len().wrapping_sub(1 + usize::from(which));
        let Some(mut mad) = self.heard.get(newest).copied() else { return };
        for _ in 0..op >> 6 {
            let (at, value) = (script.next().unwrap_or(0), script.next().unwrap_or(0));
            mad.bytes[usize::from(at)] = value;
        }
        if op & 0x30 == 0x30 {
            mad.bytes[24..].iter_mut().zip(script).for_each(|(to, from)| *to = from);
        }
        let node = usize::from(mad.path.local == gid(1));
        self.cms[node].handle_mad(self.now, &mad);
        let count = self.carry(node);
        assert!(count <= 2, "{count} answers");
    }

    fn collect(&mut self) {
        for node in 0..2 {
            self.cms[node].handle_timeout(self.now);
            self.carry(node);
            while let Some((id, _)) = self.cms[node].poll_event() {
                assert!(self.cms[node].info(id).is_some());
                if !self.ids.contains(&(node, id)) {
                    self.ids.push((node, id));
                }
            }
        }
    }

    fn carry(&mut self, node: usize) -> usize {
        let sent: Vec<_> = std::iter::from_fn(|| self.cms[node].poll_mad()).collect();
        for Mad { path, bytes } in &sent {
            let path = CmPath { local: path.remote, remote: path.local, ..*path };
            self.heard.push(Mad { path, bytes: *bytes });
        }
        sent.len()
    }

    fn end(mut self) {
        self.collect();
        for (node, id) in std::mem::take(&mut self.ids) {
            self.cms[node].destroy(self.now, id);
        }
        for _ in 0..10 {
            self.now = self.now.after(Duration::from_secs(100));
            self.collect();
        }
        for cm in &self.cms {
            assert_eq!((cm.poll_timeout(), cm.counters().live, cm.counters().time_wait), (None, 0, 0));
        }
    }
}

fn gid(n: usize) -> Gid {
    Gid([n as u8; 16])
}

fn path(node: usize) -> CmPath {
    CmPath { vni: Vni(1), local: gid(node), remote: gid(1 - node), external: None }
}

fn req(n: u32) -> ReqParams<'static> {
    ReqParams {
        service_id: 1,
        ca_guid: [1; 8],
        qpn: Qpn::new(n),
        qp_type: if n % 4 == 0 { QpType::Uc } else { QpType::Rc },
        starting_psn: Psn::new(n),
        pkey: 0xffff,
        mtu: Mtu::B1024,
        responder_resources: 1,
        initiator_depth: 2,
        retry_count: 7,
        rnr_retry_count: 7,
        flow_control: true,
        srq: false,
        remote_cm_response_timeout: 12,
        local_cm_response_timeout: 12,
        max_cm_retries: 3,
        packet_life_time: 10,
        ca_ack_delay: 9,
        flow_label: 1,
        traffic_class: 2,
        hop_limit: 64,
        sl: 3,
        rate: 4,
        private: b"hello",
    }
}

fn rep(n: u8) -> RepParams<'static> {
    RepParams {
        ca_guid: [1; 8],
        qpn: Qpn::new(n.into()),
        starting_psn: Psn::new(n.into()),
        responder_resources: 1,
        initiator_depth: 1,
        target_ack_delay: n,
        failover: 0,
        flow_control: false,
        rnr_retry_count: 7,
        srq: true,
        private: b"welcome",
    }
}

fn answer(n: u8) -> SidrAnswer<'static> {
    SidrAnswer { status: n & 3, qpn: Qpn::new(n.into()), qkey: Qkey(1), service_id: 1, private: b"me" }
}
