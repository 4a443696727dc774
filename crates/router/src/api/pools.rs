//! Operations on pools of endpoints.

use super::operation::{Operation, done, json, names, read, schema};
use super::refusal::Refusal;
use super::state::{Api, Caller};
use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{ConnectInfo, Path, State};
use axum::routing::{delete, get, post, put};
use rdmesh_fabric::Pool;
use rdmesh_fabric::api::{AcquireEndpoints, EndpointInfo, PoolInfo, ReleaseEndpoints};

/// The operations.
pub(super) fn operations() -> Vec<Operation> {
    vec![
        read("/v1/pools", "All pools of endpoints", json::<Vec<PoolInfo>>(), get(pools)),
        Operation {
            method: "put",
            path: "/v1/pools",
            summary: "Make a pool of endpoints, or change its size",
            request: schema::<Pool>(),
            response: json::<PoolInfo>(),
            handler: put(set_pool),
        },
        Operation {
            method: "delete",
            path: "/v1/pools/{network}/{name}",
            summary: "Remove a pool of which nothing is acquired",
            request: None,
            response: json::<PoolInfo>(),
            handler: delete(remove_pool),
        },
        Operation {
            method: "post",
            path: "/v1/pools/{network}/{name}/acquire",
            summary: "Take endpoints from a pool",
            request: schema::<AcquireEndpoints>(),
            response: done::<Vec<EndpointInfo>>(),
            handler: post(acquire),
        },
        Operation {
            method: "post",
            path: "/v1/pools/{network}/{name}/release",
            summary: "Give endpoints back to their pool",
            request: schema::<ReleaseEndpoints>(),
            response: done::<PoolInfo>(),
            handler: post(release),
        },
    ]
}

async fn pools(State(api): State<Api>) -> Result<Json<Vec<PoolInfo>>, Refusal> {
    Ok(Json(api.blocking(|host| host.endpoints().pools().all()).await?))
}

async fn set_pool(
    State(api): State<Api>,
    request: Result<Json<Pool>, JsonRejection>,
) -> Result<Json<PoolInfo>, Refusal> {
    let Json(pool) = request?;
    Ok(Json(api.blocking(move |host| host.endpoints().pools().set(pool)).await??))
}

async fn remove_pool(State(api): State<Api>, key: Path<(String, String)>) -> Result<Json<PoolInfo>, Refusal> {
    let (network, name) = names(key)?;
    Ok(Json(api.blocking(move |host| host.endpoints().pools().remove(network, name)).await??))
}

async fn acquire(
    State(api): State<Api>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    key: Path<(String, String)>,
    request: Result<Json<AcquireEndpoints>, JsonRejection>,
) -> Result<Json<Vec<EndpointInfo>>, Refusal> {
    let ((network, name), Json(request), pid) = (names(key)?, request?, caller.pid.unwrap_or(0));
    Ok(Json(api.blocking(move |host| host.endpoints().pools().acquire(network, name, &request, pid)).await??))
}

async fn release(
    State(api): State<Api>,
    key: Path<(String, String)>,
    request: Result<Json<ReleaseEndpoints>, JsonRejection>,
) -> Result<Json<PoolInfo>, Refusal> {
    let ((network, name), Json(request)) = (names(key)?, request?);
    Ok(Json(api.blocking(move |host| host.endpoints().pools().release(network, name, request)).await??))
}
