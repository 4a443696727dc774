//! The router's API: HTTP and JSON on a Unix socket.
//!
//! One table, [`operations`](routes::operations), lists the operations; the routes and the OpenAPI description are both made
//! from it.

mod capture;
mod chain_rows;
mod chains;
mod convert;
mod events;
mod groups;
mod metrics;
mod openapi;
mod operation;
mod peers;
mod policies;
mod pools;
mod refusal;
mod routes;
mod state;
mod tunnel;

pub use state::Caller;

use crate::daemon::Host;
use crate::events::EventLog;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use refusal::Refusal;
use state::Api;
use std::sync::Arc;
use tokio::sync::Notify;

/// The API of `host` with its `event_log`; a request to shut down notifies `stop`.
pub fn router(host: Arc<Host>, event_log: EventLog, stop: Arc<Notify>) -> Router {
    let mut router = Router::new();
    for operation in routes::operations() {
        router = router.route(operation.path, operation.handler);
    }
    let recorded = axum::middleware::from_fn(events::record);
    router.fallback(nothing_there).layer(recorded).with_state(Api::new(host, event_log, stop))
}

/// The metrics of `host` alone, at `/metrics`.
pub fn metrics_page(host: Arc<Host>) -> Router {
    Router::new().route("/metrics", get(routes::prometheus)).with_state(Api::new(
        host,
        EventLog::default(),
        Arc::default(),
    ))
}

async fn nothing_there() -> Refusal {
    Refusal(StatusCode::NOT_FOUND, "there is nothing here; /v1/openapi.json says what there is".to_owned())
}
