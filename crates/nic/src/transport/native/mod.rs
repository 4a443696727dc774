//! Selective retransmission between rdmesh routers: a loss costs one packet, not all behind it.
//!
//! The packets are RoCEv2's, so that all that [`super::roce`] says of order, duplicates and errors holds. What differs is what
//! follows a loss: the responder keeps what comes behind the gap ([`Reordering`]) and says so in selective acknowledgements; the
//! requester knows of each packet whether it has arrived ([`Scoreboard`]) and sends again only what has not. Which packets are
//! lost is told by time, as RACK does (RFC 8985), so that reordering is not taken for loss and a retransmission may be lost too.
//!
//! A connection may spread its packets over several UDP source ports ([`lanes`]): loss is told lane by lane, so that what overtakes
//! on another path is not taken for loss.
//!
//! Requests are executed in the order in which they were posted, and memory is written in that order: a program that polls the
//! last byte of a WRITE sees no difference. The data of a READ is placed as it comes.

mod lanes;
mod reordering;
mod scoreboard;

pub(crate) use lanes::Lanes;
pub use lanes::MOST_LANES;
pub(crate) use reordering::Reordering;
pub(crate) use scoreboard::{Losses, Scoreboard, Sending};
