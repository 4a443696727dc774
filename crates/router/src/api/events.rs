//! Operations of the API on the latest events, and the record of who has asked for what.

use super::operation::{Operation, json, read};
use super::refusal::Refusal;
use super::state::{Api, Caller};
use axum::Json;
use axum::extract::{ConnectInfo, Path, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::get;
use rdmesh_fabric::api::{CALLER_HEADER, Events, ORDER};
use std::time::Duration;

/// The API's operations on events.
pub(super) fn operations() -> Vec<Operation> {
    vec![
        read("/v1/events", "The latest events, the oldest first", json::<Events>(), get(latest)),
        read(
            "/v1/events/{after}",
            "The events after the one of this number; where there are none, the request waits for some, 20 seconds at most",
            json::<Events>(),
            get(next),
        ),
    ]
}

async fn latest(State(api): State<Api>) -> Json<Events> {
    Json(api.events().after(0))
}

async fn next(State(api): State<Api>, Path(after): Path<u64>) -> Result<Json<Events>, Refusal> {
    Ok(Json(api.events().wait(after, LONGEST).await))
}

/// Logs every request that is to change something, with the process that has made it, the caller in whose name it did so, if there is
/// one, and the answer's status.
pub(super) async fn record(request: Request, next: Next) -> Response {
    if request.method() == Method::GET {
        return next.run(request).await;
    }
    let order = format!("{} {}", request.method(), request.uri().path());
    let caller = request.extensions().get::<ConnectInfo<Caller>>().map(|info| info.0);
    let command = caller.and_then(|caller| caller.command());
    let caller_name = request.headers().get(CALLER_HEADER).and_then(|name| name.to_str().ok()).map(str::to_owned);
    let response = next.run(request).await;
    tracing::info!(
        target: AUDIT,
        order,
        status = response.status().as_u16(),
        uid = caller.and_then(|caller| caller.uid),
        pid = caller.and_then(|caller| caller.pid),
        command,
        caller = caller_name,
        "{ORDER}"
    );
    response
}

/// Longest wait of a request for events: shorter than clients' patience.
const LONGEST: Duration = Duration::from_secs(20);
/// Name by which `RDMESH_LOG` turns these lines off (`info,rdmesh_router::audit=off`).
const AUDIT: &str = "rdmesh_router::audit";
