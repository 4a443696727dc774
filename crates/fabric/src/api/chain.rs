//! Groups of managed queues (chains) in the API.

use crate::Name;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A group of managed queues (`GET /v1/chains`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ChainInfo {
    /// Name of its endpoint.
    pub endpoint: Name,
    /// Name of the endpoint's network.
    pub network: Name,
    /// The process that opened its device.
    pub pid: i32,
    /// That process's name.
    pub command: String,
    /// Number of the device: no other of the endpoint has it.
    pub device: u32,
    /// Number of the group in its device, which its program chose.
    pub group: u32,
    /// Its state.
    pub state: ChainState,
    /// Numbers of its queue pairs.
    pub qps: Vec<u32>,
    /// The error that ended it.
    pub fault: Option<ChainFault>,
    /// Executed requests that move data, and NOPs.
    pub copies: u64,
    /// Executed atomic operations.
    pub atomics: u64,
    /// Executed WAITs and ENABLEs.
    pub orders: u64,
    /// Charged steps: one for each request, and one for each 4096 bytes that it moves.
    pub steps: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Failed checks of SOFT reads.
    pub soft_faults: u64,
    /// Whether a queue of it goes on and on without a WAIT.
    pub spinning: bool,
    /// Laps that its queues have ended.
    pub laps: u64,
    /// Times that a queue stood still because the endpoint's budget of steps was spent.
    pub starved: u64,
    /// Seconds for which queues have so stood still.
    pub starved_seconds: f64,
}

/// A group of managed queues with its queues (`GET /v1/endpoints/{network}/{name}/chains/{device}/{group}`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ChainDetail {
    /// The group.
    pub chain: ChainInfo,
    /// Its queues.
    pub queues: Vec<ChainQueue>,
}

/// A managed queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChainQueue {
    /// Number of its queue pair.
    pub qpn: u32,
    /// Handle of its queue pair, by which ENABLEs name it.
    pub handle: u32,
    /// Whether it is the receive queue.
    pub is_receive: bool,
    /// The request that is started next, counted from the first.
    pub next: u64,
    /// Requests before this one may be executed.
    pub limit: u64,
    /// Slots of a lap.
    pub cycle: u64,
    /// The reason for which it does not run.
    pub waits_for: String,
    /// The first slots of a lap, as they would be fetched now: at most 1024.
    pub slots: Vec<ChainSlot>,
}

/// A slot of a managed queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChainSlot {
    /// Its label, if its program gave it one.
    pub label: Option<String>,
    /// The request that it is now.
    pub request: String,
}

/// Records the requests that a group executes, for some time, and asks for those that were recorded
/// (`POST /v1/endpoints/{network}/{name}/chain-trace`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceChain {
    /// Number of the device.
    #[serde(default)]
    pub device: u32,
    /// Number of the group in the device.
    pub group: u32,
    /// Seconds from now on for which requests are recorded.
    pub seconds: u32,
    /// Requests from this number on are asked for.
    #[serde(default)]
    pub from: u64,
}

/// A request that a group has executed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChainStep {
    /// Its number among those that were recorded. Only the last 1024 are kept: where numbers are missing, more were executed.
    pub number: u64,
    /// Nanoseconds since the router started.
    pub nanoseconds: u64,
    /// Number of the queue pair.
    pub qpn: u32,
    /// The request, counted from the queue's first.
    pub index: u64,
    /// Its label, if its program gave it one.
    pub label: Option<String>,
    /// The operation that it had become; `RECV` of a receive request, when its message has come.
    pub operation: String,
    /// Bytes that it moved.
    pub bytes: u64,
}

/// State of a group of managed queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ChainState {
    /// Requests are executed.
    Running,
    /// By command: none is.
    Stopped,
    /// By an error, or by command: its queue pairs are in error.
    Ended,
}

/// The error that has ended a group of managed queues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChainFault {
    /// Number of the queue pair, while there is one.
    pub qpn: Option<u32>,
    /// Whether its receive queue failed.
    pub is_receive: bool,
    /// The request, counted from the queue's first.
    pub index: u64,
    /// Label of the request, if its program gave it one.
    pub label: Option<String>,
    /// Its failure, as `enum ibv_wc_status`.
    pub status: u32,
    /// Its failure, in words.
    pub reason: String,
    /// The address that it named.
    pub addr: u64,
    /// The key that it named.
    pub key: u32,
}

/// Stops, resumes or ends a group (`POST /v1/endpoints/{network}/{name}/chain`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ControlChain {
    /// Number of the device.
    #[serde(default)]
    pub device: u32,
    /// Number of the group in the device.
    pub group: u32,
    /// The operation.
    pub action: ChainAction,
}

/// Operation on a group of managed queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ChainAction {
    /// No request starts, and no message is received, until it is resumed.
    Stop,
    /// It goes on.
    Resume,
    /// Its queue pairs are in error at once.
    Kill,
}

/// Sets the budget of an endpoint's chains (`PUT /v1/endpoints/{network}/{name}/chain-steps`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetChainSteps {
    /// Steps in a second, of all chains of the endpoint together.
    pub per_second: u64,
}
