//! Requests to a server on a Unix socket.

use prost::Message;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

/// Failure of a request to the kubelet.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// No server accepts connections at the socket.
    #[error("{}: {reason}", .socket.display())]
    Unreachable {
        /// Path of the socket that was asked.
        socket: PathBuf,
        /// Text of the innermost error.
        reason: String,
    },
    /// The server has answered with an error.
    #[error("{}: {}", .socket.display(), .status.message())]
    Refused {
        /// Path of the socket that was asked.
        socket: PathBuf,
        /// gRPC's status.
        status: Status,
    },
    /// No answer in time.
    #[error("{}: no answer within {} s", .0.display(), LIMIT.as_secs())]
    TimedOut(PathBuf),
}

/// Sends a request to the server at `socket`. `path` is gRPC's: the service and its method.
pub(crate) async fn ask<Q, A>(socket: &Path, path: &'static str, message: Q) -> Result<A, KubeletError>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let unreachable = |reason: String| KubeletError::Unreachable { socket: socket.to_owned(), reason };
    let asked = async {
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()));
        let endpoint = endpoint.map_err(|error| unreachable(error.to_string()))?;
        let channel = endpoint.connect().await.map_err(|error| unreachable(cause(&error)))?;
        let mut client = Grpc::new(channel).max_decoding_message_size(LARGEST);
        client.ready().await.map_err(|error| unreachable(cause(&error)))?;
        let codec = ProstCodec::<Q, A>::default();
        let answer = client.unary(Request::new(message), PathAndQuery::from_static(path), codec).await;
        let refused = |status| KubeletError::Refused { socket: socket.to_owned(), status };
        answer.map(tonic::Response::into_inner).map_err(refused)
    };
    timeout(LIMIT, asked).await.unwrap_or_else(|_| Err(KubeletError::TimedOut(socket.to_owned())))
}

/// The innermost cause of an error: "No such file or directory" and not "transport error".
fn cause(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// Most time for a request, as the kubelet's own for device plugins.
const LIMIT: Duration = Duration::from_secs(10);
/// Largest answer, as the kubelet's own clients have it.
const LARGEST: usize = 16 << 20;
