//! Snapshot of a router: all that the page shows, as one JSON answer.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use rdmesh_fabric::api::{ChainInfo, ContextInfo, EndpointInfo, Events, Metric, ScopePolicy, Status, Tunnel};
use rdmesh_fabric::{Client, ClientError, Network};
use serde::Serialize;

/// A router at one time. It holds no key and no secret.
#[derive(Serialize)]
struct Snapshot {
    status: Status,
    networks: Vec<Network>,
    endpoints: Vec<EndpointInfo>,
    contexts: Vec<ContextInfo>,
    tunnel: Tunnel,
    policies: Vec<ScopePolicy>,
    chains: Vec<ChainInfo>,
    /// Those of the router as a whole.
    counters: Vec<Metric>,
    events: Events,
}

impl Snapshot {
    fn take(client: &Client) -> Result<Self, ClientError> {
        Ok(Self {
            status: client.status()?,
            networks: client.networks()?,
            endpoints: client.endpoints()?,
            contexts: client.contexts()?,
            tunnel: client.tunnel()?,
            policies: client.policies()?,
            chains: client.chains()?,
            counters: client.stats()?.metrics.into_iter().filter(|metric| metric.labels.is_empty()).collect(),
            events: client.events(None)?,
        })
    }
}

/// Answers with one; where the router does not answer, with its client's words.
pub(crate) async fn get(State(client): State<Client>) -> Response {
    match tokio::task::spawn_blocking(move || Snapshot::take(&client)).await {
        Ok(Ok(snapshot)) => Json(snapshot).into_response(),
        Ok(Err(error)) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
