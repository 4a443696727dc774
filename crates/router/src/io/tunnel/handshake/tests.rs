//! Handshake tests: two hosts, their messages, and an attacker who reads and repeats them.

use super::*;
use rdmesh_nic::wire::geneve::decode_control;

const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

/// A host, the sessions that it was told to use, and its chance.
struct Host {
    handshake: Handshake,
    sends: Vec<u64>,
    receives: Vec<u64>,
    seed: u8,
}

impl Host {
    fn new(own: IpAddr, peer: IpAddr, key: u8, seed: u8) -> Self {
        let handshake = Handshake::new(own, peer, &TunnelKey::from_bytes([key; 32]), [seed; 32], Time(0));
        Self { handshake, sends: Vec::new(), receives: Vec::new(), seed }
    }

    fn follow(&mut self, outcome: Outcome) -> Option<Packet> {
        self.sends.extend(outcome.send.map(|secret| secret.reference));
        self.receives.extend(outcome.receive.map(|secret| secret.reference));
        outcome.packet
    }

    fn poll(&mut self, now: Time) -> Option<Packet> {
        let seed = &mut self.seed;
        let outcome = self.handshake.poll(now, &mut || {
            *seed = seed.wrapping_add(16);
            [*seed; 16]
        });
        self.follow(outcome)
    }

    fn handle(&mut self, now: Time, packet: &Packet) -> Result<Option<Packet>, Unheard> {
        let outcome = self.handshake.handle(now, decode_control(packet).unwrap())?;
        Ok(self.follow(outcome))
    }
}

type Packet = [u8; CONTROL_LEN];

/// Two hosts, a clock, and all that was said.
struct World {
    hosts: [Host; 2],
    now: Time,
    said: Vec<(usize, Packet)>,
    unheard: Vec<Unheard>,
}

impl World {
    fn new(keys: [u8; 2]) -> Self {
        let hosts = [Host::new(A, B, keys[0], 1), Host::new(B, A, keys[1], 2)];
        Self { hosts, now: Time(1), said: Vec::new(), unheard: Vec::new() }
    }

    /// Lets time pass until nothing is due any more, or for `limit`; `is_lost` says what does not arrive.
    fn run(&mut self, limit: Duration, mut is_lost: impl FnMut(usize, Kind) -> bool) {
        let end = self.now.after(limit);
        loop {
            for from in 0..2 {
                let mut next = self.hosts[from].poll(self.now).map(|packet| (from, packet));
                while let Some((from, packet)) = next {
                    self.said.push((from, packet));
                    let kind = Message::decode(decode_control(&packet).unwrap()).unwrap().kind;
                    let to = 1 - from;
                    next = match is_lost(from, kind) {
                        true => None,
                        false => match self.hosts[to].handle(self.now, &packet) {
                            Ok(answer) => answer.map(|packet| (to, packet)),
                            Err(why) => {
                                self.unheard.push(why);
                                None
                            }
                        },
                    };
                }
            }
            let next = self.hosts.iter().filter_map(|host| host.handshake.deadline()).min();
            match next {
                Some(next) if next <= end => self.now = next.max(self.now),
                _ => break,
            }
        }
        self.now = end;
    }

    fn settle(&mut self) {
        self.run(Duration::from_secs(20), |_, _| false);
    }

    fn is_agreed(&self) -> bool {
        let [a, b] = &self.hosts;
        !a.sends.is_empty()
            && a.sends.last() == b.receives.last()
            && !b.sends.is_empty()
            && b.sends.last() == a.receives.last()
    }
}

#[test]
fn both_directions_are_agreed_on_with_four_messages_each() {
    let mut world = World::new([7, 7]);
    world.settle();
    assert!(world.is_agreed());
    assert_eq!((world.said.len(), world.unheard.len()), (8, 0));
    assert_ne!(world.hosts[0].sends, world.hosts[1].sends);
    assert!(world.hosts.iter().all(|host| host.handshake.is_agreed() == (true, true)));
}

#[test]
fn whatever_is_lost_they_agree_in_the_end() {
    for lost in [Kind::Ask, Kind::Grant, Kind::Open, Kind::Opened] {
        for count in 1..8 {
            let mut world = World::new([7, 7]);
            let mut left = count;
            world.run(Duration::from_secs(20), |_, kind| {
                let is_lost = kind == lost && left > 0;
                left -= u32::from(is_lost);
                is_lost
            });
            assert!(world.is_agreed(), "{count} of {lost:?}");
        }
    }
}

#[test]
fn with_another_key_nothing_is_agreed_on() {
    let mut world = World::new([7, 8]);
    world.settle();
    assert!(world.hosts.iter().all(|host| host.sends.is_empty() && host.receives.is_empty()));
    assert!(!world.unheard.is_empty() && world.unheard.iter().all(|why| *why == Unheard::OtherKey));
}

#[test]
fn a_changed_message_is_not_listened_to() {
    let mut world = World::new([7, 7]);
    world.settle();
    let (from, good) = world.said[0];
    for at in geneve_body(&good) {
        let mut bad = good;
        bad[at] ^= 0x40;
        assert!(world.hosts[1 - from].handle(world.now, &bad).is_err(), "byte {at}");
    }
    assert_eq!(world.hosts[from].handle(world.now, &good), Err(Unheard::Forged), "one's own is not the other's");
}

fn geneve_body(packet: &Packet) -> std::ops::Range<usize> {
    packet.len() - CONTROL_BODY..packet.len()
}

#[test]
fn whatever_was_said_before_changes_nothing_when_it_is_said_again() {
    let mut world = World::new([7, 7]);
    world.settle();
    let said = world.said.clone();
    for restarted in [false, true] {
        if restarted {
            // The same host with the same key, as it runs again.
            world.hosts[1] = Host { seed: 99, ..Host::new(B, A, 7, 3) };
            world.settle();
            assert!(world.is_agreed(), "they agree anew");
        }
        let before = world.hosts.each_ref().map(|host| (host.sends.clone(), host.receives.clone()));
        for (from, packet) in said.iter().chain(&said) {
            let _ = world.hosts[1 - from].handle(world.now, packet);
        }
        let after = world.hosts.each_ref().map(|host| (host.sends.clone(), host.receives.clone()));
        assert_eq!(before, after, "restarted: {restarted}");
    }
}

#[test]
fn a_host_that_restarts_is_agreed_with_anew_in_both_directions() {
    let mut world = World::new([7, 7]);
    world.settle();
    let before = world.hosts[0].sends.clone();
    world.hosts[1] = Host { seed: 99, ..Host::new(B, A, 7, 3) };
    world.hosts[1].handshake.next = Some(world.now);
    world.settle();
    assert!(world.is_agreed());
    assert!(world.hosts[0].sends.len() > before.len());
}

#[test]
fn one_that_restarts_at_once_is_agreed_with_anew_too() {
    let mut world = World::new([7, 7]);
    world.run(Duration::from_millis(5), |_, _| false);
    assert!(world.is_agreed());
    world.hosts[1] = Host { seed: 99, ..Host::new(B, A, 7, 3) };
    world.hosts[1].handshake.next = Some(world.now);
    world.settle();
    assert!(world.is_agreed());
}

#[test]
fn recorded_messages_do_not_replace_sessions_again_and_again() {
    let mut world = World::new([7, 7]);
    world.settle();
    let asks: Vec<_> =
        world.said.iter().copied().filter(|(_, packet)| packet[packet.len() - CONTROL_BODY] == 1).collect();
    let before = world.hosts[0].sends.len() + world.hosts[1].sends.len();
    for _ in 0..50 {
        for (from, packet) in &asks {
            let _ = world.hosts[1 - from].handle(world.now, packet);
        }
        world.run(Duration::from_millis(10), |_, _| false);
    }
    let after = world.hosts[0].sends.len() + world.hosts[1].sends.len();
    assert!(after - before <= 4, "{} sessions in half a second", after - before);
    world.settle();
    assert!(world.is_agreed());
}

#[test]
fn who_is_told_that_a_session_is_lost_asks_for_another() {
    let mut world = World::new([7, 7]);
    world.settle();
    let reference = *world.hosts[0].sends.last().unwrap();
    // Packets that come in a session that there is not: one notice for many.
    assert!(world.hosts[1].handshake.lost(world.now, 12345).is_some());
    assert!(world.hosts[1].handshake.lost(world.now, reference).is_none());
    let told = world.hosts[1].handshake.lost(world.now.after(SHORTEST), reference).unwrap();
    world.hosts[0].handle(world.now, &told).unwrap();
    world.settle();
    assert!(world.is_agreed());
    assert_eq!(world.hosts[0].sends.len(), 2);
}

#[test]
fn a_new_key_replaces_the_old_one_when_both_have_it() {
    let mut world = World::new([7, 7]);
    world.settle();
    let new = TunnelKey::from_bytes([8; 32]);
    world.hosts[0].handshake.set_key(&new, world.now);
    world.settle();
    // The other one has only the old key: the old sessions go on.
    assert_eq!((world.hosts[0].sends.len(), world.hosts[0].handshake.is_changing()), (1, true));
    assert!(world.is_agreed());
    // The other one restarts with the old key meanwhile.
    world.hosts[1] = Host { seed: 99, ..Host::new(B, A, 7, 3) };
    world.hosts[1].handshake.next = Some(world.now);
    world.settle();
    assert!(world.is_agreed());
    world.hosts[1].handshake.set_key(&new, world.now);
    world.settle();
    assert!(world.is_agreed());
    assert!(world.hosts.iter().all(|host| !host.handshake.is_changing()));
    // Messages with only the old key are refused now.
    let mut old = Host::new(B, A, 7, 4);
    let ask = old.poll(world.now).unwrap();
    assert_eq!(world.hosts[0].handle(world.now, &ask), Err(Unheard::OtherKey));
}
