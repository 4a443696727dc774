//! A router's API on a TCP port, for operators on other machines and for tenants.
//!
//! A process of the operator serves it by mutual TLS and passes requests on to the router's Unix socket, so that the router itself has
//! no port that others reach, and no keys of TLS. Every caller has a certificate of the operator's authority; the certificate says who
//! the caller is (CN) and in which role (O):
//!
//! | O | may |
//! |---|---|
//! | `rdmesh:admin` | everything that a caller on the host may, but for what goes with the calling process |
//! | `rdmesh:reader` | read everything but captures |
//! | `rdmesh:tenant:NAME` | see the networks of a tenant with what is on them, and make endpoints and security groups there |
//!
//! * [`Gateway`]: the port.
//! * [`Credentials`]: the files of keys and certificates.
//! * [`Remote`]: the way to a router through its gateway, for the command line on other machines.

#![forbid(unsafe_code)]

mod caller;
mod forward;
mod places;
mod remote;
mod renewal;
mod rules;
mod tls;

pub use remote::{Remote, RemoteError};
pub use tls::{Credentials, CredentialsError};

use caller::Caller;
use forward::{Unanswered, forward};
use hyper::StatusCode;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use places::{MOST_OF_CALLER, Places};
use rdmesh_fabric::Client;
use renewal::Renewal;
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Error of [`Gateway::bind`] and [`Gateway::serve`].
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The port cannot be had.
    #[error("cannot serve the API on {address}: {source}")]
    Bind {
        /// Address and port that were asked for.
        address: SocketAddr,
        /// Error of `bind(2)`.
        source: io::Error,
    },
    /// Keys or certificates.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The process lacks something that a server needs.
    #[error("cannot serve the API: {0}")]
    Serve(#[from] io::Error),
}

/// A port that is bound.
pub struct Gateway {
    listener: TcpListener,
    renewal: Renewal,
    client: Client,
}

impl Gateway {
    /// Binds `address`; `client` asks the router.
    pub fn bind(address: SocketAddr, credentials: Credentials, client: Client) -> Result<Self, GatewayError> {
        let renewal = Renewal::start(credentials)?;
        let listener = TcpListener::bind(address).map_err(|source| GatewayError::Bind { address, source })?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, renewal, client })
    }

    /// Base URL, with the port that was bound.
    pub fn url(&self) -> io::Result<String> {
        Ok(format!("https://{}/", self.listener.local_addr()?))
    }

    /// Serves the API for as long as the process lives.
    pub fn serve(self) -> Result<Infallible, GatewayError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(self.listener)?;
            let current = self.renewal.subscribe();
            tokio::spawn(self.renewal.follow());
            // Those who have shown no certificate yet take no place from those who have.
            let (strangers, places) = (Arc::new(Semaphore::new(STRANGERS)), Places::default());
            loop {
                // The semaphore is never closed.
                let stranger = Arc::clone(&strangers).acquire_owned().await;
                let Ok((stream, from)) = listener.accept().await else {
                    // Descriptors are scarce, or the peer has gone.
                    sleep(PAUSE).await;
                    continue;
                };
                let (mut current, client, places) = (current.clone(), self.client.clone(), places.clone());
                tokio::spawn(async move {
                    let acceptor = current.borrow_and_update().clone();
                    let greeted = timeout(GREETING, acceptor.accept(stream)).await;
                    drop(stranger);
                    match greeted.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                        Ok(stream) => serve_connection(stream, &client, &places, current).await,
                        Err(error) => tracing::info!(%from, %error, "connection refused"),
                    }
                });
            }
        })
    }
}

/// Answers the requests of a connection, until another acceptor is in force than the one that has admitted it.
async fn serve_connection(
    stream: TlsStream<TcpStream>,
    client: &Client,
    places: &Places,
    mut current: watch::Receiver<TlsAcceptor>,
) {
    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let caller = certificate.ok_or_else(|| "there is no certificate".to_owned()).and_then(Caller::of_certificate);
    let admitted =
        caller.map_err(|why| (StatusCode::FORBIDDEN, why)).and_then(|caller| match places.take(&caller.name) {
            Some(place) => Ok((caller, place)),
            None => {
                let why = format!("{MOST_OF_CALLER} connections are open already, or too many of all callers");
                Err((StatusCode::TOO_MANY_REQUESTS, why))
            }
        });
    let service = service_fn(|request| async {
        Ok::<_, Infallible>(match &admitted {
            Ok((caller, _place)) => forward(client, caller, request).await,
            Err((status, why)) => Unanswered(*status, why.clone()).into(),
        })
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(IDLE).keep_alive(admitted.is_ok());
    let longest = if admitted.is_ok() { LONGEST } else { GREETING };
    let mut served = pin!(server.serve_connection(TokioIo::new(stream), service));
    let served = async {
        tokio::select! {
            // Whatever becomes of the connection is the caller's concern.
            _ = &mut served => {}
            // Who has sent a request gets the answer, and has to show its certificate again for the next one.
            _ = current.changed() => {
                served.as_mut().graceful_shutdown();
                let _ = served.await;
            }
        }
    };
    // No longer than certificates may have run out meanwhile.
    let _ = timeout(longest, served).await;
}

/// Connections at a time whose callers have shown no certificate yet.
const STRANGERS: usize = 64;
/// Time for a handshake of TLS, and for a refusal.
const GREETING: Duration = Duration::from_secs(5);
/// Time between two requests.
const IDLE: Duration = Duration::from_secs(60);
/// Time for a connection: certificates are looked at anew then.
const LONGEST: Duration = Duration::from_secs(3600);
/// Time until the next attempt to accept a connection.
const PAUSE: Duration = Duration::from_millis(100);
