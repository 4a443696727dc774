//! Operations on groups of managed queues (chains).

use super::chain_rows;
use super::operation::{Operation, done, json, names, read, schema};
use super::refusal::Refusal;
use super::state::Api;
use crate::daemon::{ChainError, HostError};
use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::routing::{get, post, put};
use rdmesh_fabric::api::{ChainDetail, ChainInfo, ChainStep, ControlChain, EndpointInfo, SetChainSteps, TraceChain};

/// The operations.
pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation {
            method: "post",
            path: "/v1/endpoints/{network}/{name}/chain",
            summary: "Stop, resume or end a group of managed queues",
            request: schema::<ControlChain>(),
            response: done::<ControlChain>(),
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
        read(
            "/v1/endpoints/{network}/{name}/chains/{device}/{group}",
            "A group of managed queues, with its queues",
            json::<ChainDetail>(),
            get(show),
        ),
        Operation {
            method: "post",
            path: "/v1/endpoints/{network}/{name}/chain-trace",
            summary: "Record the requests of a group of managed queues, and return those that were recorded",
            request: schema::<TraceChain>(),
            response: done::<Vec<ChainStep>>(),
            handler: post(trace),
        },
        read("/v1/chains", "All groups of managed queues", json::<Vec<ChainInfo>>(), get(list)),
    ]
}

async fn control(
    State(api): State<Api>,
    key: Path<(String, String)>,
    request: Result<Json<ControlChain>, JsonRejection>,
) -> Result<Json<ControlChain>, Refusal> {
    let ((network, name), Json(order)) = (names(key)?, request?);
    api.blocking(move |host| host.endpoints().control_chain(network, name, order)).await??;
    Ok(Json(order))
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
    Ok(Json(api.blocking(chain_rows::all).await?))
}

async fn show(
    State(api): State<Api>,
    Path((network, name, device, group)): Path<(String, String, u32, u32)>,
) -> Result<Json<ChainDetail>, Refusal> {
    let (network, name) = names(Path((network, name)))?;
    let detail = api.blocking(move |host| {
        let is_it = |chain: &ChainInfo| {
            (&chain.network, &chain.endpoint, chain.device, chain.group) == (&network, &name, device, group)
        };
        let chain = chain_rows::all(host).into_iter().find(is_it);
        let rows = host.endpoints().inspect_chain(network.clone(), name.clone(), device, group)?;
        let chain = chain.ok_or(HostError::Chain(ChainError::NoSuchChain))?;
        Ok::<_, HostError>(ChainDetail { chain, queues: rows.iter().map(chain_rows::queue).collect() })
    });
    Ok(Json(detail.await??))
}

async fn trace(
    State(api): State<Api>,
    key: Path<(String, String)>,
    request: Result<Json<TraceChain>, JsonRejection>,
) -> Result<Json<Vec<ChainStep>>, Refusal> {
    let ((network, name), Json(trace)) = (names(key)?, request?);
    let rows = api.blocking(move |host| host.endpoints().trace_chain(network, name, trace)).await??;
    Ok(Json(rows.iter().map(chain_rows::step).collect()))
}
