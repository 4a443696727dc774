//! The router's API: HTTP and JSON on a Unix socket.
//!
//! One table, [`operations`](routes::operations), lists the operations; the routes and the OpenAPI description are both made
//! from it.

mod capture;
mod convert;
mod metrics;
mod openapi;
mod peers;
mod routes;

use crate::daemon::{Host, HostError};
use axum::Router;
use axum::extract::connect_info::Connected;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::serve::IncomingStream;
use axum::{Json, extract};
use rdmesh_fabric::RegistryError;
use rdmesh_fabric::api::ApiError;
use std::sync::Arc;
use tokio::net::UnixListener;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;

/// The process at the other end of an API connection, as the kernel names it.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Its process id; none if it is in a pid namespace that this process cannot see.
    pub pid: Option<i32>,
}

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        let pid = stream.io().peer_cred().ok().and_then(|credentials| credentials.pid());
        Self { pid: pid.filter(|&pid| pid > 0) }
    }
}

/// The API of `host`; a request to shut down notifies `stop`.
pub fn router(host: Arc<Host>, stop: Arc<Notify>) -> Router {
    let mut router = Router::new();
    for operation in routes::operations() {
        router = router.route(operation.path, operation.handler);
    }
    router.fallback(nothing_there).with_state(Api { host, stop })
}

/// State shared by the handlers.
#[derive(Clone)]
struct Api {
    host: Arc<Host>,
    stop: Arc<Notify>,
}

impl Api {
    /// Runs `work`, which may wait for the kernel or for other threads, on a thread for blocking work.
    async fn blocking<R: Send + 'static>(&self, work: impl FnOnce(&Host) -> R + Send + 'static) -> Result<R, Refusal> {
        let host = Arc::clone(&self.host);
        spawn_blocking(move || work(&host)).await.map_err(|e| Refusal(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()))
    }
}

/// An error response.
#[derive(Debug)]
struct Refusal(StatusCode, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, Json(ApiError { error: self.1 })).into_response()
    }
}

impl From<HostError> for Refusal {
    fn from(error: HostError) -> Self {
        let status = match &error {
            HostError::Registry(registry) => match registry {
                RegistryError::EndpointExists { .. }
                | RegistryError::AddressTaken { .. }
                | RegistryError::VniDiffers { .. }
                | RegistryError::VniTaken { .. }
                | RegistryError::HostAddressTaken { .. } => StatusCode::CONFLICT,
                RegistryError::NoSuchEndpoint { .. }
                | RegistryError::NoSuchHost(_)
                | RegistryError::NoSuchAddress { .. } => StatusCode::NOT_FOUND,
                RegistryError::NetworkFull(_) | RegistryError::NoVniLeft => StatusCode::INSUFFICIENT_STORAGE,
                RegistryError::Store(_) => StatusCode::SERVICE_UNAVAILABLE,
                RegistryError::NotInNetwork { .. }
                | RegistryError::TooManyAddresses
                | RegistryError::NoAddress
                | RegistryError::InvalidVni(_)
                | RegistryError::VniUnknown(_)
                | RegistryError::Name(_) => StatusCode::BAD_REQUEST,
            },
            HostError::Rootless
            | HostError::Given(_)
            | HostError::NeedlessNetns
            | HostError::MissingNetns
            | HostError::NoNamespaces
            | HostError::NoUnderlay
            | HostError::OwnHost(_)
            | HostError::NoKey(_)
            | HostError::Insecure
            | HostError::Family { .. }
            | HostError::Owner { .. } => StatusCode::BAD_REQUEST,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        if status.is_server_error() {
            tracing::warn!(%error, "a request failed");
        }
        Self(status, error.to_string())
    }
}

impl From<extract::rejection::JsonRejection> for Refusal {
    fn from(rejection: extract::rejection::JsonRejection) -> Self {
        Self(rejection.status(), rejection.body_text())
    }
}

async fn nothing_there() -> Refusal {
    Refusal(StatusCode::NOT_FOUND, "there is nothing here; /v1/openapi.json says what there is".to_owned())
}
