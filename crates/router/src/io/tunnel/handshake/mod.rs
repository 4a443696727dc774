//! Session handshake between two hosts: one for each direction, started by its sender.
//!
//! | message | from | says |
//! |---|---|---|
//! | `Ask` | sender | chance of its own, the *nonce*, and which session it accepts from the other |
//! | `Grant` | receiver | the nonce, and a *cookie*: the time, and a tag of it and the nonce under a secret of this process |
//! | `Open` | sender | both again |
//! | `Opened` | receiver | the same |
//!
//! All are signed with the pair's key. The session's key is made of nonce and cookie. The receiver keeps nothing before `Open`,
//! so that recorded or endless `Ask`s change nothing. A recorded `Grant` has another nonce; a recorded `Open` has a cookie of
//! another process, or one that is not later than the open session's. So a host that has restarted accepts nothing that was
//! sent before, and no clock but the process's own counts.
//!
//! Of two keys the newer one is used as soon as a handshake with it succeeds, which shows that the other host has it; until then
//! the older session goes on. When both directions have the newer key, the older one is forgotten.

use super::control::{Kind, Message};
use super::keys::{KeyId, PairKeys};
use super::session::SessionSecret;
use arrayvec::ArrayVec;
use hmac::{Hmac, Mac};
use rdmesh_fabric::TunnelKey;
use rdmesh_nic::Time;
use rdmesh_nic::wire::geneve::{CONTROL_BODY, CONTROL_LEN};
use sha2::Sha256;
use std::net::IpAddr;
use std::time::Duration;

/// Handshake state with another host.
pub(super) struct Handshake {
    own: IpAddr,
    peer: IpAddr,
    /// The newest first.
    keys: ArrayVec<PairKeys, 2>,
    /// For cookies; of this process.
    secret: [u8; 32],
    attempt: Option<Attempt>,
    tries: u32,
    /// Time of the next attempt; none where both sessions are established.
    next: Option<Time>,
    sending: Option<Agreed>,
    /// The other host may not know the session to it any more.
    is_doubtful: bool,
    receiving: Option<Agreed>,
    /// The time at which the session before the open one is to be forgotten.
    previous_until: Option<Time>,
    /// The time in the last cookie, and in the open session's.
    granted: u64,
    opened: u64,
    /// The time at which the other host was last told that a session is lost.
    told: Option<Time>,
}

/// A session that is in use.
#[derive(Clone, Copy)]
struct Agreed {
    reference: u64,
    key: KeyId,
    since: Time,
}

/// A handshake that was begun here.
#[derive(Clone, Copy)]
struct Attempt {
    key: KeyId,
    nonce: [u8; 16],
    /// Once it is granted.
    cookie: Option<[u8; 16]>,
}

/// Result of a message or a time-out.
#[derive(Default)]
pub(super) struct Outcome {
    /// To be sent to the other host.
    pub(super) packet: Option<[u8; CONTROL_LEN]>,
    /// Session for transmitted packets, from now on.
    pub(super) send: Option<SessionSecret>,
    /// Session for received packets, beside the previous one.
    pub(super) receive: Option<SessionSecret>,
    /// Only the last one is to be accepted.
    pub(super) forget_previous: bool,
}

/// Reason why a message is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unheard {
    /// It is signed with a key that is not known here.
    OtherKey,
    /// It is not signed with the key that it names, or is no message.
    Forged,
}

/// Chance.
pub(super) type Random<'a> = &'a mut dyn FnMut() -> [u8; 16];

impl Handshake {
    /// A handshake with the host at `peer`, which has `key` too; to be begun at once. `secret` is for this process only.
    pub(super) fn new(own: IpAddr, peer: IpAddr, key: &TunnelKey, secret: [u8; 32], now: Time) -> Self {
        let keys = std::iter::once(PairKeys::new(key, own, peer)).collect();
        Self {
            own,
            peer,
            keys,
            secret,
            attempt: None,
            tries: 0,
            next: Some(now),
            sending: None,
            is_doubtful: false,
            receiving: None,
            previous_until: None,
            granted: 0,
            opened: 0,
            told: None,
        }
    }

    /// Replaces the key; the one before is accepted until the other host has the new one.
    pub(super) fn set_key(&mut self, key: &TunnelKey, now: Time) {
        let keys = PairKeys::new(key, self.own, self.peer);
        if self.keys[0].id() == keys.id() {
            return;
        }
        self.keys.truncate(1);
        self.keys.insert(0, keys);
        self.begin(now);
    }

    /// Whether there is a session for sending, and one for receiving.
    pub(super) fn is_agreed(&self) -> (bool, bool) {
        (self.sending.is_some(), self.receiving.is_some())
    }

    /// Whether an older key is still accepted.
    pub(super) fn is_changing(&self) -> bool {
        self.keys.len() > 1
    }

    /// The time at which [`Handshake::poll`] has something to do.
    pub(super) fn deadline(&self) -> Option<Time> {
        [self.next, self.previous_until].into_iter().flatten().min()
    }

    /// Handles expired deadlines.
    pub(super) fn poll(&mut self, now: Time, random: Random<'_>) -> Outcome {
        let mut outcome = Outcome::default();
        if self.previous_until.is_some_and(|until| now >= until) {
            self.previous_until = None;
            outcome.forget_previous = true;
        }
        if self.next.is_some_and(|next| now >= next) {
            outcome.packet = Some(self.attempt(now, random));
        }
        outcome
    }

    /// Takes a message that came from the other host's address.
    pub(super) fn handle(&mut self, now: Time, body: &[u8; CONTROL_BODY]) -> Result<Outcome, Unheard> {
        let message = Message::decode(body).ok_or(Unheard::Forged)?;
        let at = self.keys.iter().position(|keys| keys.id() == message.key).ok_or(Unheard::OtherKey)?;
        if !Message::is_from(&self.keys[at], body) {
            return Err(Unheard::Forged);
        }
        Ok(match message.kind {
            Kind::Ask => self.on_ask(now, at, &message),
            Kind::Grant => self.on_grant(now, at, &message),
            Kind::Open => self.on_open(now, at, &message),
            Kind::Opened => self.on_opened(now, at, &message),
            Kind::Lost => self.on_lost(now, &message),
        })
    }

    /// The message that reports packets of an unknown session, if it is time for one.
    pub(super) fn lost(&mut self, now: Time, reference: u64) -> Option<[u8; CONTROL_LEN]> {
        if self.told.is_some_and(|told| now < told.after(SHORTEST)) {
            return None;
        }
        self.told = Some(now);
        let nonce = told(reference);
        let keys = &self.keys[0];
        Some(Message { kind: Kind::Lost, key: keys.id(), nonce, cookie: [0; 16] }.packet(keys))
    }

    fn begin(&mut self, now: Time) {
        (self.attempt, self.tries, self.next) = (None, 0, Some(now));
    }

    /// Sends an `Ask`, or repeats the last message without an answer.
    fn attempt(&mut self, now: Time, random: Random<'_>) -> [u8; CONTROL_LEN] {
        let wait = SHORTEST * (1 << self.tries.min(6));
        self.next = Some(now.after(wait.min(LONGEST)));
        self.tries = self.tries.saturating_add(1);
        let key = self.key_to_try();
        let goes_on =
            |attempt: &Attempt| !self.tries.is_multiple_of(AFRESH) && (attempt.cookie.is_some() || attempt.key == key);
        let attempt = self.attempt.filter(goes_on).unwrap_or_else(|| Attempt { key, nonce: random(), cookie: None });
        self.attempt = Some(attempt);
        let keys = self.keys.iter().find(|keys| keys.id() == attempt.key).unwrap_or(&self.keys[0]);
        let kind = if attempt.cookie.is_some() { Kind::Open } else { Kind::Ask };
        let cookie = attempt.cookie.unwrap_or_else(|| told(self.receiving.map_or(0, |receiving| receiving.reference)));
        Message { kind, key: keys.id(), nonce: attempt.nonce, cookie }.packet(keys)
    }

    /// The newer key; without an established session, alternately the older one, since the other host may not have the newer
    /// one.
    fn key_to_try(&self) -> KeyId {
        let at = if self.sending.is_none() || self.is_doubtful { self.tries as usize % self.keys.len() } else { 0 };
        self.keys[at].id()
    }

    fn on_ask(&mut self, now: Time, at: usize, asked: &Message) -> Outcome {
        // It may have the newer key now, or run again.
        if self.sending.is_none_or(|sending| at == 0 && sending.key != self.keys[0].id()) && self.tries > 1 {
            self.begin(now);
        }
        // Where it has restarted it knows nothing of the session to it.
        if self.sending.is_some_and(|sending| told(sending.reference) != asked.cookie) {
            self.doubt(now);
        }
        self.granted = now.0.max(self.granted + 1);
        let cookie = self.cookie(self.granted, asked);
        let packet = Message { kind: Kind::Grant, cookie, ..*asked }.packet(&self.keys[at]);
        Outcome { packet: Some(packet), ..Outcome::default() }
    }

    fn on_grant(&mut self, now: Time, at: usize, granted: &Message) -> Outcome {
        let Some(attempt) = &mut self.attempt else { return Outcome::default() };
        if (attempt.key, attempt.nonce, attempt.cookie) != (granted.key, granted.nonce, None) {
            return Outcome::default();
        }
        attempt.cookie = Some(granted.cookie);
        (self.tries, self.next) = (1, Some(now.after(SHORTEST)));
        let packet = Message { kind: Kind::Open, ..*granted }.packet(&self.keys[at]);
        Outcome { packet: Some(packet), ..Outcome::default() }
    }

    fn on_open(&mut self, now: Time, at: usize, open: &Message) -> Outcome {
        let issued = u64::from_be_bytes(std::array::from_fn(|i| open.cookie[i]));
        if self.cookie(issued, open) != open.cookie {
            return Outcome::default();
        }
        let secret = self.keys[at].receive_session(&open.nonce, &open.cookie);
        let packet = Some(Message { kind: Kind::Opened, ..*open }.packet(&self.keys[at]));
        if self.receiving.is_some_and(|receiving| receiving.reference == secret.reference) {
            // The answer was lost.
            return Outcome { packet, ..Outcome::default() };
        }
        if issued <= self.opened || now > Time(issued).after(VALID) {
            return Outcome::default();
        }
        self.opened = issued;
        self.receiving = Some(Agreed { reference: secret.reference, key: open.key, since: now });
        self.previous_until = Some(now.after(GRACE));
        self.retire();
        Outcome { packet, receive: Some(secret), ..Outcome::default() }
    }

    fn on_opened(&mut self, now: Time, at: usize, opened: &Message) -> Outcome {
        let is_meant = |attempt: &Attempt| {
            (attempt.key, attempt.nonce, attempt.cookie) == (opened.key, opened.nonce, Some(opened.cookie))
        };
        if !self.attempt.as_ref().is_some_and(is_meant) {
            return Outcome::default();
        }
        let secret = self.keys[at].send_session(&opened.nonce, &opened.cookie);
        self.sending = Some(Agreed { reference: secret.reference, key: opened.key, since: now });
        self.is_doubtful = false;
        // With an older key all is well for the moment.
        let has_newest = at == 0;
        (self.attempt, self.tries) = (None, if has_newest { 0 } else { 6 });
        self.next = (!has_newest).then(|| now.after(LONGEST));
        self.retire();
        Outcome { send: Some(secret), ..Outcome::default() }
    }

    fn on_lost(&mut self, now: Time, lost: &Message) -> Outcome {
        if self.sending.is_some_and(|sending| told(sending.reference) == lost.nonce) {
            self.doubt(now);
        }
        Outcome::default()
    }

    /// Replaces the session to the other host, by one with either key. It is not done before packets of the previous session
    /// have expired: the message that causes it may be a replay.
    fn doubt(&mut self, now: Time) {
        if !self.is_doubtful {
            self.is_doubtful = true;
            self.begin(self.sending.map_or(now, |sending| now.max(sending.since.after(LONGEST))));
        }
    }

    /// Forgets the older key when nothing needs it.
    fn retire(&mut self) {
        let newest = self.keys[0].id();
        if [self.sending, self.receiving].iter().all(|agreed| agreed.is_some_and(|agreed| agreed.key == newest)) {
            self.keys.truncate(1);
        }
    }

    fn cookie(&self, issued: u64, asked: &Message) -> [u8; 16] {
        let mac = Hmac::<Sha256>::new_from_slice(&self.secret).expect("HMAC takes keys of any length");
        let issued = issued.to_be_bytes();
        let tag = mac.chain_update(issued).chain_update(asked.key.0).chain_update(asked.nonce).finalize().into_bytes();
        std::array::from_fn(|i| if i < 8 { issued[i] } else { tag[i] })
    }
}

/// A session's reference, as the nonce of a message.
fn told(reference: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&reference.to_be_bytes());
    bytes
}

/// Interval between the first two attempts, and between two `Lost` messages.
const SHORTEST: Duration = Duration::from_millis(20);
/// Between two tries, at last.
const LONGEST: Duration = Duration::from_secs(1);
/// Attempts to open a session, after which the handshake begins anew.
const AFRESH: u32 = 5;
/// Validity of a cookie.
const VALID: Duration = Duration::from_secs(10);
/// Grace period in which packets of the previous session are accepted.
const GRACE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
