//! Operations on policies.

use super::operation::{Operation, json, read, schema};
use super::refusal::Refusal;
use super::state::Api;
use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::routing::{get, put};
use rdmesh_fabric::api::ScopePolicy;

/// The operations.
pub(super) fn operations() -> Vec<Operation> {
    vec![
        read("/v1/policies", "All policies", json::<Vec<ScopePolicy>>(), get(list)),
        Operation {
            method: "put",
            path: "/v1/policies",
            summary: "Set the policy of a scope, or remove it",
            request: schema::<ScopePolicy>(),
            response: json::<ScopePolicy>(),
            handler: put(set),
        },
    ]
}

async fn list(State(api): State<Api>) -> Result<Json<Vec<ScopePolicy>>, Refusal> {
    Ok(Json(api.blocking(|host| host.records().policies()).await??))
}

async fn set(
    State(api): State<Api>,
    request: Result<Json<ScopePolicy>, JsonRejection>,
) -> Result<Json<ScopePolicy>, Refusal> {
    let Json(policy) = request?;
    let asked = policy.clone();
    api.blocking(move |host| host.records().set_policy(asked)).await??;
    Ok(Json(policy))
}
