//! Servers of gRPC on Unix sockets.

use prost::Message;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::{Grpc, NamedService};
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;

/// The methods of a service.
pub(crate) trait Methods: Send + Sync + 'static {
    /// The service's name, with its package.
    const NAME: &'static str;

    /// Answers a request for a method.
    fn answer(
        self: Arc<Self>,
        method: &str,
        request: http::Request<Body>,
    ) -> impl Future<Output = http::Response<Body>> + Send;
}

/// Serves `methods` at `socket`, in place of what is there, until the returned future is dropped.
pub(crate) fn serve<M: Methods>(
    methods: Arc<M>,
    socket: &Path,
) -> io::Result<impl Future<Output = io::Result<()>> + use<M>> {
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let connections = UnixListenerStream::new(UnixListener::bind(socket)?);
    let served = Server::builder().add_service(Served(methods)).serve_with_incoming(connections);
    Ok(async { served.await.map_err(io::Error::other) })
}

/// gRPC's service of some methods.
struct Served<M>(Arc<M>);

impl<M> Clone for Served<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M: Methods> NamedService for Served<M> {
    const NAME: &'static str = M::NAME;
}

impl<M: Methods> Service<http::Request<Body>> for Served<M> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let methods = Arc::clone(&self.0);
        Box::pin(async move {
            let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
            Ok(methods.answer(&method, request).await)
        })
    }
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

/// The answer to a method that there is not.
pub(crate) fn unimplemented(method: &str) -> http::Response<Body> {
    Status::unimplemented(format!("{method} is not offered")).into_http()
}
