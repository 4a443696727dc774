//! Operations on groups of managed queues (chains).

use super::convert;
use super::operation::{Operation, json, read, schema};
use super::refusal::Refusal;
use super::routes::names;
use super::state::Api;
use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post, put};
use rdmesh_fabric::api::{ChainInfo, ControlChain, EndpointInfo, SetChainSteps};

/// The operations.
pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation {
            method: "post",
            path: "/v1/endpoints/{network}/{name}/chain",
            summary: "Stop, resume or end a group of managed queues",
            request: schema::<ControlChain>(),
            response: json::<ControlChain>(),
            handler: post(control),
        },
        Operation {
            method: "put",
            path: "/v1/endpoints/{network}/{name}/chain-steps",
            summary: "Set the budget of steps of an endpoint's chains",
            request: schema::<SetChainSteps>(),
            response: json::<EndpointInfo>(),
            handler: put(set_steps),
        },
        read("/v1/chains", "All groups of managed queues", json::<Vec<ChainInfo>>(), get(list)),
    ]
}

async fn control(
    State(api): State<Api>,
    key: Path<(String, String)>,
    request: Result<Json<ControlChain>, JsonRejection>,
) -> Result<(StatusCode, Json<ControlChain>), Refusal> {
    let ((network, name), Json(order)) = (names(key)?, request?);
    api.blocking(move |host| host.endpoints().control_chain(network, name, order)).await??;
    Ok((StatusCode::CREATED, Json(order)))
}

async fn set_steps(
    State(api): State<Api>,
    key: Path<(String, String)>,
    request: Result<Json<SetChainSteps>, JsonRejection>,
) -> Result<Json<EndpointInfo>, Refusal> {
    let ((network, name), Json(steps)) = (names(key)?, request?);
    Ok(Json(api.blocking(move |host| host.endpoints().set_chain_steps(network, name, steps)).await??))
}

async fn list(State(api): State<Api>) -> Result<Json<Vec<ChainInfo>>, Refusal> {
    Ok(Json(api.blocking(convert::chains).await?))
}
