//! JSON types of what has happened on a host: changes, orders, and what a user should know.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The latest events (`GET /v1/events?after=NUMBER&wait=SECONDS`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Events {
    /// Events after the one that was named, the oldest first.
    pub events: Vec<Event>,
    /// Events that are no longer kept, of those after the one that was named.
    pub missed: u64,
}

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Its number: that of the event before it and one, also across a router's restart larger than all earlier ones.
    pub number: u64,
    /// Time in UTC, as RFC 3339 writes it.
    pub time: String,
    /// How much it matters.
    pub level: EventLevel,
    /// Sort of the event: text that is the same for all of a sort.
    pub what: String,
    /// What it is about: `network`, `name`, `host`, `error`, `uid` …
    pub about: BTreeMap<String, String>,
}

/// How much an event matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EventLevel {
    /// Something does not work.
    Error,
    /// Something does not work as it could.
    Warn,
    /// All is well.
    Info,
}

/// Sort of an event: somebody has asked for a change (`what`). It is about the `order`, its HTTP `status`, and the `uid`, `pid` and
/// `command` of who asked.
pub const ORDER: &str = "order";
