//! The router's API: HTTP and JSON on a Unix socket.
//!
//! One table, [`operations`](routes::operations), lists the operations; the routes and the OpenAPI description are both made
//! from it.

mod capture;
mod chain_rows;
mod chains;
mod convert;
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
use axum::Router;
use axum::http::StatusCode;
use refusal::Refusal;
use state::Api;
use std::sync::Arc;
use tokio::sync::Notify;

/// The API of `host`; a request to shut down notifies `stop`.
pub fn router(host: Arc<Host>, stop: Arc<Notify>) -> Router {
    let mut router = Router::new();
    for operation in routes::operations() {
        router = router.route(operation.path, operation.handler);
    }
    router.fallback(nothing_there).with_state(Api::new(host, stop))
}

async fn nothing_there() -> Refusal {
    Refusal(StatusCode::NOT_FOUND, "there is nothing here; /v1/openapi.json says what there is".to_owned())
}
