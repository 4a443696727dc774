//! Servers of gRPC on Unix sockets.

use prost::Message;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::{Grpc, NamedService};
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;

/// An answer that is being made.
pub(crate) type Answering = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

/// Serves `service` at `socket`, in place of what is there, until the returned future is dropped.
pub(crate) fn serve<S>(service: S, socket: &Path) -> io::Result<impl Future<Output = io::Result<()>> + use<S>>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible, Future = Answering>
        + NamedService
        + Clone
        + Send
        + Sync
        + 'static,
{
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let connections = UnixListenerStream::new(UnixListener::bind(socket)?);
    let served = Server::builder().add_service(service).serve_with_incoming(connections);
    Ok(async { served.await.map_err(io::Error::other) })
}

/// Answers a request with one message.
pub(crate) async fn unary<Q, A, E, F>(
    request: http::Request<Body>,
    answer: impl Fn(Q) -> F + Clone,
) -> http::Response<Body>
where
    Q: Message + Default + 'static,
    A: Message + 'static,
    F: Future<Output = Result<A, E>>,
    Status: From<E>,
{
    let service = service_fn(|request: Request<Q>| {
        let answered = answer(request.into_inner());
        async { answered.await.map(Response::new).map_err(Status::from) }
    });
    Grpc::new(ProstCodec::<A, Q>::default()).unary(service, request).await
}

/// The method that a request calls.
pub(crate) fn method(request: &http::Request<Body>) -> String {
    request.uri().path().rsplit('/').next().unwrap_or_default().to_owned()
}
