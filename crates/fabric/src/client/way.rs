//! Ways to a router's API.

use super::ClientError;
use crate::state::{Owners, StateDir};
use async_trait::async_trait;
use std::fmt::Debug;
use std::io;
use std::path::PathBuf;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;

/// A connection that carries HTTP.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A way to a router's API.
#[async_trait]
pub trait Connect: Debug + Send + Sync + 'static {
    /// A new connection, whose other end is the router, or passes requests on to it.
    async fn connect(&self) -> Result<Box<dyn Stream>, ClientError>;

    /// A connection has ended with `error` before there was an answer.
    fn broken(&self, error: hyper::Error) -> ClientError {
        ClientError::Broken(error)
    }
}

/// The socket of a router of this host.
#[derive(Debug)]
pub(super) struct OwnSocket {
    path: PathBuf,
}

impl OwnSocket {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }
}

#[async_trait]
impl Connect for OwnSocket {
    /// Checks the owner of the other end before anything is sent.
    async fn connect(&self) -> Result<Box<dyn Stream>, ClientError> {
        let unreachable = |source| ClientError::Unreachable { socket: self.path.clone(), source };
        match self.path.parent().map(|directory| StateDir::new(directory).check()) {
            Some(Err(error)) if error.is_missing() => return Err(unreachable(io::ErrorKind::NotFound.into())),
            Some(Err(error)) => return Err(error.into()),
            _ => {}
        }
        let stream = UnixStream::connect(&self.path).await.map_err(unreachable)?;
        let owner = stream.peer_cred().map_err(unreachable)?.uid();
        if !Owners::own_or_root().include(owner) {
            return Err(ClientError::Foreign { socket: self.path.clone(), owner });
        }
        Ok(Box::new(stream))
    }
}
