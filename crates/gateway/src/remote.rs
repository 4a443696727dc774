//! The other side: a client of a gateway.

use crate::tls::{CERTIFICATE, CredentialsError, authorities, private_key, read_all};
use async_trait::async_trait;
use hyper::Uri;
use rdmesh_fabric::{ClientError, Connect, Stream};
use rustls::ClientConfig;
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// The way to a router through its gateway.
pub struct Remote {
    url: Uri,
    /// The name that the gateway's certificate has to have.
    name: ServerName<'static>,
    connector: TlsConnector,
}

/// Error of [`Remote::new`].
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The URL is not one of a gateway.
    #[error("{0}: a gateway's URL is like https://host1.example:7443")]
    Url(String),
    /// No certificate can have the host in the URL as its name.
    #[error("{host}: {source}")]
    Host {
        /// Host of the URL, without brackets.
        host: String,
        /// Error of its form.
        source: InvalidDnsNameError,
    },
    /// The caller's key or certificates.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
}

impl Remote {
    /// The gateway at `url`, asked by the one whose certificate and key are in `folder`: `cert.pem` and `key.pem`, beside the
    /// certificate of the gateway's authority in `ca.pem`.
    pub fn new(url: &str, folder: &Path) -> Result<Self, RemoteError> {
        let wrong = || RemoteError::Url(url.to_owned());
        let url: Uri = url.parse().map_err(|_| wrong())?;
        let is_complete = url.scheme_str() == Some("https") && matches!(url.path(), "" | "/") && url.query().is_none();
        let host = url.host().filter(|_| is_complete).ok_or_else(wrong)?;
        let host = host.trim_matches(['[', ']']).to_owned();
        let refused = |source| RemoteError::Host { host: host.clone(), source };
        let name = ServerName::try_from(host.clone()).map_err(refused)?;
        let certificates = read_all(&folder.join("cert.pem"), CERTIFICATE)?;
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(CredentialsError::Certificate)?
            .with_root_certificates(authorities(&folder.join("ca.pem"))?)
            .with_client_auth_cert(certificates, private_key(&folder.join("key.pem"))?)
            .map_err(CredentialsError::Certificate)?;
        Ok(Self { url, name, connector: TlsConnector::from(Arc::new(config)) })
    }

    fn failed(&self, message: String) -> ClientError {
        ClientError::Elsewhere { gateway: self.url.to_string(), message }
    }
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Remote({})", self.url)
    }
}

#[async_trait]
impl Connect for Remote {
    async fn connect(&self) -> Result<Box<dyn Stream>, ClientError> {
        let address = (self.name.to_str().into_owned(), self.url.port_u16().unwrap_or(HTTPS));
        let unreachable = |error| self.failed(format!("the gateway cannot be reached: {error}"));
        let stream = TcpStream::connect(address).await.map_err(unreachable)?;
        let unproven = |error| self.failed(format!("no connection by TLS: {error}"));
        Ok(Box::new(self.connector.connect(self.name.clone(), stream).await.map_err(unproven)?))
    }

    fn broken(&self, error: hyper::Error) -> ClientError {
        // A gateway refuses certificates when the handshake is over for the client.
        let cause = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        self.failed(format!("the gateway has ended the connection: {cause}; its log may say why"))
    }
}

/// Port of URLs without one.
const HTTPS: u16 = 443;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_other_things_are_refused() {
        for url in
            ["", "host1:7443", "http://host1:7443", "https://", "https://host1/v1", "https://host1/?a", "https://a b/"]
        {
            assert!(matches!(Remote::new(url, Path::new("/nonexistent")), Err(RemoteError::Url(_))), "{url}");
        }
        for url in ["https://host1:7443", "https://host1", "https://192.0.2.1:7443/", "https://[2001:db8::1]:7443"] {
            assert!(matches!(Remote::new(url, Path::new("/nonexistent")), Err(RemoteError::Credentials(_))), "{url}");
        }
    }
}
