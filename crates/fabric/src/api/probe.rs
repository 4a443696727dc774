//! JSON types of probes: the path between two endpoints, measured.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Sends probes from an endpoint to another endpoint's address; routers answer them, no program does
/// (`POST /v1/endpoints/{network}/{name}/probe`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProbePath {
    /// Address of the other endpoint, of the family of one of the first endpoint's.
    pub to: IpAddr,
    /// Number of probes, from 1 to 100. Each is waited for, half a second at most.
    pub count: u32,
    /// Whether they are as long as the path's largest packets; else they have 256 bytes.
    #[serde(default)]
    pub is_full: bool,
}

/// A probe. Times are in µs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PathProbe {
    /// Bytes of payload.
    pub bytes: u32,
    /// Until the worker, busy with other packets, took the order.
    pub worker_us: f64,
    /// From there until the packet was made; none if it never was.
    pub send_us: Option<f64>,
    /// Whether security groups, as this router knows them, let the endpoint connect to some port of the address.
    pub is_allowed: bool,
    /// The other router's answer; none if it did not come within half a second.
    pub answer: Option<PathAnswer>,
}

/// The answer to a probe. Times are in µs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PathAnswer {
    /// From the making of the packet until this router's worker had the answer.
    pub round_trip_us: f64,
    /// Of it: in the socket of the other router, until a worker there read it, where its kernel says so.
    pub peer_socket_us: Option<f64>,
    /// Of it: in the other router's worker.
    pub peer_worker_us: f64,
    /// Of it: in the socket of this router.
    pub socket_us: Option<f64>,
    /// Whether the address is an endpoint's there, as the other router knows.
    pub is_endpoint: bool,
    /// Whether security groups, as the other router knows them, let the endpoint connect to some port of the address.
    pub is_allowed: bool,
    /// Version of the other router.
    pub version: String,
}
