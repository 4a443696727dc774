//! Devices of this driver in a claim's allocation, with their parameters.

use k8s_openapi::api::resource::v1::{DeviceAllocationConfiguration, ResourceClaim};
use rdmesh_fabric::{Labels, Name};
use rdmesh_kubelet::DRIVER;
use serde::Deserialize;
use std::collections::BTreeSet;

/// Devices of this node that a claim has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Allocated {
    pub(crate) devices: Vec<Device>,
    /// Labels of the endpoints: the pod that the claim is reserved for, the first where there are several.
    pub(crate) labels: Labels,
}

/// A device that a claim has: an endpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Device {
    /// The request in the claim. One of a list of alternatives is `REQUEST/ALTERNATIVE`.
    pub(crate) request: String,
    pub(crate) network: Name,
    pub(crate) endpoint: Name,
    pub(crate) is_accelerated: bool,
}

/// Error of a claim that cannot be prepared.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum ClaimError {
    #[error("the claim is another one by now")]
    Replaced,
    #[error("nothing is allocated to the claim")]
    NotAllocated,
    #[error("`{pool}/{device}` is no device of node `{node}`")]
    Foreign { pool: String, device: String, node: String },
    #[error("request `{0}` has several endpoints: a container has one, so let each request ask for one")]
    Several(String),
    #[error("parameters of request `{request}`: {reason}; known is `accel`")]
    Parameters { request: String, reason: String },
}

/// Parameters in a claim or its class, as opaque configuration for this driver.
#[derive(Clone, Copy, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    /// Whether programs load the library for faster sockets, too.
    accel: Option<bool>,
}

impl Allocated {
    /// Devices of the node in the allocation of a claim with this UID; their names begin with `prefix`. `is_accelerated` is the default
    /// of the parameter `accel`.
    pub(crate) fn of(
        claim: &ResourceClaim,
        uid: &str,
        node: &str,
        prefix: &str,
        is_accelerated: bool,
    ) -> Result<Self, ClaimError> {
        if claim.metadata.uid.as_deref() != Some(uid) {
            return Err(ClaimError::Replaced);
        }
        let status = claim.status.as_ref().ok_or(ClaimError::NotAllocated)?;
        let allocation = status.allocation.as_ref().and_then(|allocation| allocation.devices.as_ref());
        let allocation = allocation.ok_or(ClaimError::NotAllocated)?;
        let (mut devices, mut requests) = (Vec::new(), BTreeSet::new());
        for result in allocation.results.iter().flatten().filter(|result| result.driver == DRIVER) {
            let foreign = || ClaimError::Foreign {
                pool: result.pool.clone(),
                device: result.device.clone(),
                node: node.to_owned(),
            };
            let network = result.pool.strip_prefix(node).and_then(|rest| rest.strip_prefix('/')).ok_or_else(foreign)?;
            let endpoint = Some(&result.device).filter(|device| device.starts_with(prefix)).ok_or_else(foreign)?;
            if !requests.insert(&result.request) {
                return Err(ClaimError::Several(result.request.clone()));
            }
            let wanted = parameters(allocation.config.iter().flatten(), &result.request)?;
            devices.push(Device {
                request: result.request.clone(),
                network: network.parse().map_err(|_| foreign())?,
                endpoint: endpoint.parse().map_err(|_| foreign())?,
                is_accelerated: wanted.accel.unwrap_or(is_accelerated),
            });
        }
        let pod = status.reserved_for.iter().flatten().find(|consumer| consumer.resource == "pods");
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let labels = pod.map(|pod| Labels::of_pod(namespace, &pod.name)).unwrap_or_default();
        Ok(Self { devices, labels })
    }
}

/// The parameters of a request: of several configurations the last counts, which is the claim's and not its class's.
fn parameters<'a>(
    all: impl Iterator<Item = &'a DeviceAllocationConfiguration>,
    request: &str,
) -> Result<Parameters, ClaimError> {
    let main = request.split('/').next().unwrap_or_default();
    let mut found = Parameters::default();
    for configuration in all {
        let Some(opaque) = configuration.opaque.as_ref().filter(|opaque| opaque.driver == DRIVER) else { continue };
        let requests = configuration.requests.as_deref().unwrap_or_default();
        if requests.is_empty() || requests.iter().any(|one| one == request || one == main) {
            let parsed = Parameters::deserialize(&opaque.parameters.0);
            let failed = |error: serde_json::Error| ClaimError::Parameters {
                request: request.to_owned(),
                reason: error.to_string(),
            };
            found.accel = parsed.map_err(failed)?.accel.or(found.accel);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn claim(results: &Value, config: &Value) -> ResourceClaim {
        let claim = json!({
            "metadata": { "name": "net", "namespace": "team", "uid": "u1" },
            "spec": {},
            "status": {
                "allocation": { "devices": { "results": results, "config": config } },
                "reservedFor": [{ "resource": "pods", "name": "web-0", "uid": "p1" }],
            },
        });
        serde_json::from_value(claim).unwrap()
    }

    fn result(request: &str, pool: &str, device: &str) -> Value {
        json!({ "request": request, "driver": DRIVER, "pool": pool, "device": device })
    }

    fn opaque(source: &str, requests: &[&str], parameters: &Value) -> Value {
        json!({ "source": source, "requests": requests, "opaque": { "driver": DRIVER, "parameters": parameters } })
    }

    fn of(claim: &ResourceClaim) -> Result<Allocated, ClaimError> {
        Allocated::of(claim, "u1", "node-1", "claim-ab-", false)
    }

    #[test]
    fn a_claim_has_the_devices_of_this_driver() {
        let other = json!({ "request": "gpu", "driver": "gpu.example.com", "pool": "node-1", "device": "gpu-0" });
        let results =
            json!([result("a", "node-1/blue", "claim-ab-3"), other, result("b/fast", "node-1/red", "claim-ab-0")]);
        let config = json!([
            opaque("FromClass", &[], &json!({ "accel": true })),
            opaque("FromClaim", &["b"], &json!({ "accel": false })),
        ]);
        let found = of(&claim(&results, &config)).unwrap();
        let shown: Vec<_> = found
            .devices
            .iter()
            .map(|one| (one.request.as_str(), one.network.as_str(), one.endpoint.as_str(), one.is_accelerated))
            .collect();
        assert_eq!(shown, [("a", "blue", "claim-ab-3", true), ("b/fast", "red", "claim-ab-0", false)]);
        assert_eq!(found.labels, Labels::of_pod("team", "web-0"));
    }

    #[test]
    fn a_claim_that_cannot_be_prepared_is_refused() {
        let nothing = json!([]);
        let refused = |results: Value, config: &Value| of(&claim(&results, config)).unwrap_err().to_string();
        assert!(refused(json!([result("a", "node-2/blue", "claim-ab-3")]), &nothing).contains("no device of node"));
        assert!(refused(json!([result("a", "node-1/blue", "claim-cd-3")]), &nothing).contains("no device of node"));
        let twice = json!([result("a", "node-1/blue", "claim-ab-3"), result("a", "node-1/blue", "claim-ab-4")]);
        assert!(refused(twice, &nothing).contains("several endpoints"));
        let wrong = json!([opaque("FromClaim", &[], &json!({ "speed": 1 }))]);
        assert!(refused(json!([result("a", "node-1/blue", "claim-ab-3")]), &wrong).contains("unknown field `speed`"));
        let known = claim(&nothing, &nothing);
        assert_eq!(Allocated::of(&known, "u2", "node-1", "claim-ab-", false), Err(ClaimError::Replaced));
        assert_eq!(of(&ResourceClaim { status: None, ..known }), Err(ClaimError::NotAllocated));
    }
}
