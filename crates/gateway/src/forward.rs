//! Requests on their way to the router, and answers on their way back.

use crate::caller::{Caller, Role};
use crate::rules::{Refusal, Seen, decide, own_rows};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use rdmesh_fabric::api::{ApiError, CALLER_HEADER};
use rdmesh_fabric::{Client, ClientError, Network};
use std::fmt::Display;
use std::time::Duration;
use tokio::time::timeout;

/// Passes a request of `caller` on; the router's answer, as far as the caller may see it, or a refusal.
pub(crate) async fn forward(client: &Client, caller: &Caller, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let exchanged = timeout(PATIENCE, exchange(client, caller, request)).await;
    let late = |_| Err(Unanswered(StatusCode::GATEWAY_TIMEOUT, "the router does not answer".to_owned()));
    let response = exchanged.unwrap_or_else(late).unwrap_or_else(Response::from);
    let status = response.status().as_u16();
    if method != Method::GET || status == StatusCode::FORBIDDEN {
        tracing::info!(caller = caller.name, order = %format_args!("{method} {path}"), status, "order");
    }
    response
}

/// The status and the words of an answer in place of one of the router.
pub(crate) struct Unanswered(pub(crate) StatusCode, pub(crate) String);

impl From<Unanswered> for Response<Full<Bytes>> {
    fn from(Unanswered(status, error): Unanswered) -> Self {
        // Text alone always becomes JSON.
        respond(status, HeaderValue::from_static(JSON), serde_json::to_vec(&ApiError { error }).unwrap_or_default())
    }
}

impl From<Refusal> for Unanswered {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Forbidden(why) => Self(StatusCode::FORBIDDEN, why),
            Refusal::Malformed(why) => Self(StatusCode::BAD_REQUEST, why),
        }
    }
}

impl From<ClientError> for Unanswered {
    fn from(error: ClientError) -> Self {
        senseless(error)
    }
}

/// The router cannot be asked, or its answer cannot be read.
fn senseless(error: impl Display) -> Unanswered {
    Unanswered(StatusCode::BAD_GATEWAY, error.to_string())
}

async fn exchange(
    client: &Client,
    caller: &Caller,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Unanswered> {
    let (head, body) = request.into_parts();
    let path = head.uri.path();
    let unread = |error| Unanswered(StatusCode::PAYLOAD_TOO_LARGE, format!("the request's body: {error}"));
    let body = Limited::new(body, LARGEST_BODY).collect().await.map_err(unread)?.to_bytes();
    let networks = match caller.role {
        Role::Tenant(_) => networks(client).await?,
        Role::Admin | Role::Reader => Vec::new(),
    };
    let order = decide(&caller.role, &head.method, path, body.into(), &networks)?;
    // Nothing of the caller's own headers goes on.
    let passed = Request::builder()
        .method(head.method)
        .uri(path)
        .header(HOST, "rdmesh")
        .header(CALLER_HEADER, &caller.name)
        .header(CONTENT_TYPE, JSON)
        .body(Full::new(Bytes::from(order.body)))
        .map_err(|error| Unanswered(StatusCode::BAD_REQUEST, error.to_string()))?;
    let (head, body) = client.pass_on(passed).await?.into_parts();
    let content = head.headers.get(CONTENT_TYPE).cloned().unwrap_or(HeaderValue::from_static(JSON));
    let body = match (order.seen, &caller.role) {
        (Seen::OwnRows(field), Role::Tenant(tenant)) if head.status.is_success() => {
            own_rows(tenant, &networks, field, &body).ok_or_else(|| senseless("the router's answer is no list"))?
        }
        _ => body.into(),
    };
    Ok(respond(head.status, content, body))
}

/// All networks of the router.
async fn networks(client: &Client) -> Result<Vec<Network>, Unanswered> {
    let request = Request::builder().uri("/v1/networks").header(HOST, "rdmesh").body(Full::default());
    let body = client.pass_on(request.map_err(senseless)?).await?.into_body();
    serde_json::from_slice(&body).map_err(senseless)
}

fn respond(status: StatusCode, content: HeaderValue, body: Vec<u8>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content);
    response
}

const JSON: &str = "application/json";
/// Bytes of a request.
const LARGEST_BODY: usize = 1 << 20;
/// Time for an answer; a request for events waits for 20 seconds.
const PATIENCE: Duration = Duration::from_secs(60);
