//! Control messages between routers, which establish sessions.

use super::keys::{KeyId, PairKeys};
use rdmesh_nic::wire::geneve::{CONTROL_BODY, CONTROL_LEN, encode_control};

/// A message. It is not authenticated before [`Message::is_from`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Message {
    pub(super) kind: Kind,
    /// The key that it is signed with.
    pub(super) key: KeyId,
    /// The requester's random number; of [`Kind::Lost`], the session.
    pub(super) nonce: [u8; 16],
    /// The receiver's cookie, made from the nonce and a secret of its own.
    pub(super) cookie: [u8; 16],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Asks for a session from the sender.
    Ask,
    /// Grants it: only the host that sent this `Ask`, not a recorded one, can open it.
    Grant,
    /// Opens it: the sender has received this `Grant`, not a recorded one.
    Open,
    /// It is open.
    Opened,
    /// Packets arrive in an unknown session.
    Lost,
}

impl Message {
    /// The packet that carries it, signed.
    pub(super) fn packet(&self, keys: &PairKeys) -> [u8; CONTROL_LEN] {
        let mut body = self.unsigned();
        let tag = keys.sign(&body[..SIGNED]);
        body[SIGNED..].copy_from_slice(&tag);
        encode_control(&body)
    }

    /// Parses `body`.
    pub(super) fn decode(body: &[u8; CONTROL_BODY]) -> Option<Self> {
        let kind = match body[0] {
            1 => Kind::Ask,
            2 => Kind::Grant,
            3 => Kind::Open,
            4 => Kind::Opened,
            5 => Kind::Lost,
            _ => return None,
        };
        let key = KeyId(*body[4..].first_chunk()?);
        let message = Self { kind, key, nonce: *body[8..].first_chunk()?, cookie: *body[24..].first_chunk()? };
        (message.unsigned()[..SIGNED] == body[..SIGNED]).then_some(message)
    }

    /// Whether `body`, which decodes to this message, is signed by the host that has `keys` too.
    pub(super) fn is_from(keys: &PairKeys, body: &[u8; CONTROL_BODY]) -> bool {
        let (signed, tag) = body.split_at(SIGNED);
        tag.try_into().is_ok_and(|tag| keys.is_signed(signed, tag))
    }

    fn unsigned(&self) -> [u8; CONTROL_BODY] {
        let mut body = [0; CONTROL_BODY];
        body[0] = match self.kind {
            Kind::Ask => 1,
            Kind::Grant => 2,
            Kind::Open => 3,
            Kind::Opened => 4,
            Kind::Lost => 5,
        };
        body[4..8].copy_from_slice(&self.key.0);
        body[8..24].copy_from_slice(&self.nonce);
        body[24..40].copy_from_slice(&self.cookie);
        body
    }
}

/// Bytes before the tag.
const SIGNED: usize = CONTROL_BODY - 16;
