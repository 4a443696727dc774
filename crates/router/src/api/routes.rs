//! Operations of the API, as one table.

use super::operation::{Content, Operation, done, json, names, read, schema};
use super::refusal::Refusal;
use super::state::{Api, Caller};
use super::{capture, chains, convert, events, groups, metrics, openapi, peers, policies, pools, tunnel};
use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{ConnectInfo, Path, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{delete, get, post, put};
use rdmesh_fabric::Network;
use rdmesh_fabric::api::{
    ConfineEndpoint, ConnectionInfo, ContextInfo, CreateEndpoint, EndLingering, EndedDevices, EndpointInfo,
    FailedRequest, MoveDevices, MovedDevices, PathProbe, ProbePath, Stats, Status,
};
use serde_json::Value;

/// All operations.
pub(super) fn operations() -> Vec<Operation> {
    let mut operations = own_operations();
    operations.extend(device_operations());
    operations.extend(chains::operations());
    operations.extend(pools::operations());
    operations.extend(groups::operations());
    operations.extend(policies::operations());
    operations.extend(peers::operations());
    operations.extend(tunnel::operations());
    operations.extend(capture::operations());
    operations.extend(events::operations());
    operations
}

fn own_operations() -> Vec<Operation> {
    vec![
        read("/v1/status", "The router as a whole", json::<Status>(), get(status)),
        read("/v1/networks", "All networks", json::<Vec<Network>>(), get(networks)),
        read("/v1/endpoints", "All endpoints", json::<Vec<EndpointInfo>>(), get(endpoints)),
        Operation {
            method: "post",
            path: "/v1/endpoints",
            summary: "Make an endpoint",
            request: schema::<CreateEndpoint>(),
            response: json::<EndpointInfo>(),
            handler: post(create_endpoint),
        },
        read(ENDPOINT, "One endpoint", json::<EndpointInfo>(), get(endpoint)),
        Operation {
            method: "delete",
            path: ENDPOINT,
            summary: "Remove an endpoint",
            request: None,
            response: json::<EndpointInfo>(),
            handler: delete(remove_endpoint),
        },
        read("/v1/contexts", "All open device contexts", json::<Vec<ContextInfo>>(), get(contexts)),
        read("/v1/connections", "All identifiers of rdma_cm", json::<Vec<ConnectionInfo>>(), get(connections)),
        read(
            "/v1/failed-requests",
            "Recent failed requests of programs",
            json::<Vec<FailedRequest>>(),
            get(failed_requests),
        ),
        read("/v1/stats", "All counters", json::<Stats>(), get(stats)),
        read("/metrics", "All counters, for Prometheus", Content::Text, get(prometheus)),
        read("/v1/openapi.json", "This description", json::<Value>(), get(description)),
        Operation {
            method: "post",
            path: "/v1/shutdown",
            summary: "Remove everything and end",
            request: None,
            response: json::<Status>(),
            handler: post(shutdown),
        },
    ]
}

/// Operation on the devices of an endpoint.
fn device_operations() -> Vec<Operation> {
    vec![
        Operation {
            method: "put",
            path: "/v1/endpoints/{network}/{name}/cgroup",
            summary: "Hold the processes of a control group to the addresses of an acquired endpoint",
            request: schema::<ConfineEndpoint>(),
            response: json::<EndpointInfo>(),
            handler: put(confine),
        },
        Operation {
            method: "put",
            path: "/v1/endpoints/{network}/{name}/worker",
            summary: "Move the devices of an endpoint to a worker",
            request: schema::<MoveDevices>(),
            response: json::<MovedDevices>(),
            handler: put(move_devices),
        },
        Operation {
            method: "post",
            path: "/v1/endpoints/{network}/{name}/probe",
            summary: "Measure the path from an endpoint to another by probes",
            request: schema::<ProbePath>(),
            response: done::<Vec<PathProbe>>(),
            handler: post(probe_path),
        },
        Operation {
            method: "post",
            path: "/v1/endpoints/{network}/{name}/lingering/end",
            summary: "End devices that have outlived their programs",
            request: schema::<EndLingering>(),
            response: done::<EndedDevices>(),
            handler: post(end_lingering),
        },
    ]
}

async fn status(State(api): State<Api>) -> Result<Json<Status>, Refusal> {
    Ok(Json(api.blocking(|host| host.status()).await?))
}

async fn networks(State(api): State<Api>) -> Result<Json<Vec<Network>>, Refusal> {
    Ok(Json(api.blocking(|host| host.records().networks()).await??))
}

async fn endpoints(State(api): State<Api>) -> Result<Json<Vec<EndpointInfo>>, Refusal> {
    Ok(Json(api.blocking(|host| host.endpoints().all()).await?))
}

async fn endpoint(State(api): State<Api>, key: Path<(String, String)>) -> Result<Json<EndpointInfo>, Refusal> {
    let (network, name) = names(key)?;
    Ok(Json(api.blocking(|host| host.endpoints().get(network, name)).await??))
}

async fn create_endpoint(
    State(api): State<Api>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    request: Result<Json<CreateEndpoint>, JsonRejection>,
) -> Result<(StatusCode, Json<EndpointInfo>), Refusal> {
    let Json(request) = request?;
    let info = api.blocking(move |host| host.endpoints().create(request, caller.pid.unwrap_or(0))).await??;
    Ok((StatusCode::CREATED, Json(info)))
}

async fn remove_endpoint(State(api): State<Api>, key: Path<(String, String)>) -> Result<Json<EndpointInfo>, Refusal> {
    let (network, name) = names(key)?;
    Ok(Json(api.blocking(|host| host.endpoints().remove(network, name)).await??))
}

async fn confine(
    State(api): State<Api>,
    key: Path<(String, String)>,
    request: Result<Json<ConfineEndpoint>, JsonRejection>,
) -> Result<Json<EndpointInfo>, Refusal> {
    let ((network, name), Json(request)) = (names(key)?, request?);
    Ok(Json(api.blocking(move |host| host.endpoints().confined().confine(network, name, &request)).await??))
}

async fn move_devices(
    State(api): State<Api>,
    key: Path<(String, String)>,
    request: Result<Json<MoveDevices>, JsonRejection>,
) -> Result<Json<MovedDevices>, Refusal> {
    let ((network, name), Json(request)) = (names(key)?, request?);
    let devices = api.blocking(move |host| host.endpoints().move_devices(network, name, request)).await??;
    Ok(Json(MovedDevices { devices }))
}

async fn probe_path(
    State(api): State<Api>,
    key: Path<(String, String)>,
    request: Result<Json<ProbePath>, JsonRejection>,
) -> Result<Json<Vec<PathProbe>>, Refusal> {
    let ((network, name), Json(order)) = (names(key)?, request?);
    Ok(Json(api.blocking(move |host| host.probe_path(network, name, &order)).await??))
}

async fn end_lingering(
    State(api): State<Api>,
    key: Path<(String, String)>,
    request: Result<Json<EndLingering>, JsonRejection>,
) -> Result<Json<EndedDevices>, Refusal> {
    let ((network, name), Json(EndLingering { device })) = (names(key)?, request?);
    let devices = api.blocking(move |host| host.endpoints().end_lingering(network, name, device)).await??;
    Ok(Json(EndedDevices { devices }))
}

async fn contexts(State(api): State<Api>) -> Result<Json<Vec<ContextInfo>>, Refusal> {
    Ok(Json(api.blocking(convert::contexts).await?))
}

async fn connections(State(api): State<Api>) -> Result<Json<Vec<ConnectionInfo>>, Refusal> {
    Ok(Json(api.blocking(convert::connections).await?))
}

async fn failed_requests(State(api): State<Api>) -> Result<Json<Vec<FailedRequest>>, Refusal> {
    Ok(Json(api.blocking(convert::failed_requests).await?))
}

async fn stats(State(api): State<Api>) -> Result<Json<Stats>, Refusal> {
    Ok(Json(api.blocking(|host| Stats { metrics: metrics::collect(host) }).await?))
}

pub(super) async fn prometheus(State(api): State<Api>) -> Result<impl IntoResponse, Refusal> {
    let text = api.blocking(metrics::page).await?;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text))
}

async fn description() -> Json<Value> {
    Json(openapi::document(&operations()))
}

async fn shutdown(State(api): State<Api>) -> Result<Json<Status>, Refusal> {
    let status = api.blocking(|host| host.status()).await?;
    api.stop();
    Ok(Json(status))
}

const ENDPOINT: &str = "/v1/endpoints/{network}/{name}";
