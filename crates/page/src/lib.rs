//! A page about a router, for its operator's browser: hosts, networks, endpoints, queue pairs and their paths, traffic, limits, chains
//! and events.
//!
//! A process of the operator serves it on a loopback port and asks the router by its Unix socket, so nothing is shown that its user
//! could not ask for by `rdmesh ps`, and nothing can be changed. Every program of the host reaches a loopback port: who asks has to
//! show a key, which is in the address that the operator is given, and in a cookie from then on.

#![forbid(unsafe_code)]

mod assets;
mod key;
mod snapshot;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use key::Key;
use rdmesh_fabric::Client;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

/// Error of [`Page::bind`] and [`Page::serve`].
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// It would be offered to other hosts, in clear.
    #[error(
        "{0} can be reached from other hosts, and the page is not encrypted: serve it on a loopback address, and reach it from there \
         by `ssh -L PORT:127.0.0.1:PORT HOST`"
    )]
    NotLoopback(SocketAddr),
    /// The port cannot be had.
    #[error("cannot serve the page on {address}: {source}")]
    Bind {
        /// Loopback address and port that were asked for.
        address: SocketAddr,
        /// Error of `bind(2)`.
        source: io::Error,
    },
    /// The process lacks something that a server needs.
    #[error("cannot serve the page: {0}")]
    Serve(#[from] io::Error),
}

/// A page on a port that is bound.
pub struct Page {
    listener: TcpListener,
    key: Arc<Key>,
    client: Client,
}

impl Page {
    /// Binds a loopback `address`, with port 0 for any free one. `client` asks the router.
    pub fn bind(address: SocketAddr, client: Client) -> Result<Self, PageError> {
        if !address.ip().is_loopback() {
            return Err(PageError::NotLoopback(address));
        }
        let listener = TcpListener::bind(address).map_err(|source| PageError::Bind { address, source })?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, key: Arc::new(Key::random().map_err(io::Error::from)?), client })
    }

    /// The address for the browser, with the key.
    pub fn url(&self) -> io::Result<String> {
        Ok(format!("http://{}/?{}={}", self.listener.local_addr()?, key::NAME, self.key))
    }

    /// Serves the page for as long as the process lives.
    pub fn serve(self) -> Result<(), PageError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(self.listener)?;
            let routes = Router::new()
                .route("/snapshot.json", get(snapshot::get))
                .with_state(self.client)
                .merge(assets::routes())
                .layer(from_fn_with_state(self.key, require_key))
                .layer(from_fn(harden));
            axum::serve(listener, routes).await
        })?;
        Ok(())
    }
}

/// Passes on what has the key: in a cookie, or in the address, which a cookie takes the place of.
async fn require_key(State(key): State<Arc<Key>>, request: Request, next: Next) -> Response {
    if key.is_in_cookie(request.headers()) {
        return next.run(request).await;
    }
    if !key.is_in_query(request.uri()) {
        let text = "The key is missing or of another run: open the address that `rdmesh page` printed.\n";
        return (StatusCode::FORBIDDEN, text).into_response();
    }
    ([(header::SET_COOKIE, key.cookie())], Redirect::to("/")).into_response()
}

/// Nothing of the page comes from elsewhere, goes elsewhere, or is kept.
async fn harden(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";
