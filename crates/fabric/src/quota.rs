//! Quotas: limits on the resources of one endpoint.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Limits on what the programs of one endpoint hold together. `Default` is generous: it stops runaways, not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Quota {
    /// Open device contexts.
    pub contexts: u32,
    /// Queue pairs.
    pub qps: u32,
    /// Completion queues.
    pub cqs: u32,
    /// Memory regions and windows.
    pub mrs: u32,
    /// Bytes of registered memory; on-demand regions do not count.
    pub pinned_bytes: u64,
    /// Mappings in the router: one for each neighbourhood (64 MiB) of registered memory, and some for queues, of which
    /// hundreds share one. The kernel limits those of the whole router (`vm.max_map_count`).
    pub mappings: u32,
    /// Seconds for which a device may outlive its program, if that asks for it; none where it is 0. What lingers is memory that no
    /// process has, beyond the limits of control groups: the operator grants it.
    pub linger_seconds: u32,
    /// Bytes of registered memory that devices may keep which outlive their programs. A device that exceeds them ends with its
    /// program.
    pub linger_bytes: u64,
    /// Steps of chains in a second: a step is a request, or 4096 bytes that it moves. Where there are none, no chain runs. The default
    /// is more than a processor executes: a chain that spins has its endpoint's share of a worker, as any busy queue pair.
    pub chain_steps: u64,
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            contexts: 1024,
            qps: 16_384,
            cqs: 16_384,
            mrs: 1 << 19,
            pinned_bytes: 1 << 40,
            mappings: 16_384,
            linger_seconds: 0,
            linger_bytes: 1 << 30,
            chain_steps: 100_000_000,
        }
    }
}

impl Quota {
    /// The lower of both, limit by limit.
    #[must_use]
    pub fn within(self, other: Self) -> Self {
        Self {
            contexts: self.contexts.min(other.contexts),
            qps: self.qps.min(other.qps),
            cqs: self.cqs.min(other.cqs),
            mrs: self.mrs.min(other.mrs),
            pinned_bytes: self.pinned_bytes.min(other.pinned_bytes),
            mappings: self.mappings.min(other.mappings),
            linger_seconds: self.linger_seconds.min(other.linger_seconds),
            linger_bytes: self.linger_bytes.min(other.linger_bytes),
            chain_steps: self.chain_steps.min(other.chain_steps),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_quota_keeps_the_other_defaults() {
        let quota: Quota = serde_json::from_str(r#"{"qps": 4}"#).unwrap();
        assert_eq!(quota, Quota { qps: 4, ..Quota::default() });
    }
}
