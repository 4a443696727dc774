//! The metrics on a TCP port, for Prometheus: nothing else of the API is there, and nothing can be changed.
//!
//! Programs of tenants may reach the port, too. So there are few connections at a time, each with one request, and none stays for long:
//! whoever holds them keeps other readers out for a while, and takes nothing from endpoints.

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// A port that is bound.
pub(super) struct Scrape {
    listener: TcpListener,
}

impl Scrape {
    pub(super) fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener })
    }

    /// Serves `page` from now on, as a task of this runtime.
    pub(super) fn begin(self, page: Router) -> io::Result<()> {
        let listener = tokio::net::TcpListener::from_std(self.listener)?;
        tracing::info!(address = %listener.local_addr()?, "serving metrics");
        tokio::spawn(Self::serve(listener, page));
        Ok(())
    }

    async fn serve(listener: tokio::net::TcpListener, page: Router) -> Infallible {
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            // The semaphore is never closed.
            let place = Arc::clone(&places).acquire_owned().await;
            let Ok((stream, _)) = listener.accept().await else {
                // Descriptors are scarce, or the peer has gone.
                sleep(PAUSE).await;
                continue;
            };
            let service = TowerToHyperService::new(page.clone());
            tokio::spawn(async move {
                let _place = place;
                let connection =
                    http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service);
                // Whatever becomes of it is the reader's concern.
                let _ = timeout(LONGEST, connection).await;
            });
        }
    }
}

/// Connections at a time.
const CONNECTIONS: usize = 8;
/// Time for a connection.
const LONGEST: Duration = Duration::from_secs(5);
/// Time until the next attempt to accept one.
const PAUSE: Duration = Duration::from_millis(100);
