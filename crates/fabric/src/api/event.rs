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
    /// Message of the log line, the same for all events of a sort: `endpoint added`, `order` …
    pub what: String,
    /// Fields of the log line: `network`, `name`, `host`, `error`, `uid` … Values are cut at 512 bytes.
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

/// [`Event::what`] of the audit record: a request of the API that was to change something. [`Event::about`] has its method and path
/// (`order`), the HTTP `status` of its answer, and the `uid`, `pid` and `command` of the process that made it.
pub const ORDER: &str = "order";
