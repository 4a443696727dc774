//! Tokens: secrets by which processes come to objects that others have opened.

use rdmesh_uverbs::session::Token;
use rustix::io;
use rustix::rand::{GetRandomFlags, getrandom};

/// A new token.
pub(super) fn random_token() -> io::Result<Token> {
    let mut token = Token([0; 16]);
    // The kernel gives up to 256 bytes whole (getrandom(2)).
    getrandom(&mut token.0, GetRandomFlags::empty())?;
    Ok(token)
}
