//! Options of commands that serve something about the router until they are ended.

use std::net::SocketAddr;
use std::path::PathBuf;

/// Options of `rdmesh page`.
#[derive(Debug, clap::Args)]
pub(crate) struct PageOptions {
    /// Loopback address and port; port 0 stands for any that is free
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    pub(crate) listen: SocketAddr,
}

/// Options of `rdmesh gateway`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct GatewayOptions {
    /// Address and port; port 0 stands for any that is free
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7443")]
    pub(crate) listen: SocketAddr,
    /// The host's certificate in PEM, followed by those of authorities between it and the one that callers know
    #[arg(long, value_name = "FILE")]
    pub(crate) cert: PathBuf,
    /// Its private key in PEM
    #[arg(long, value_name = "FILE")]
    pub(crate) key: PathBuf,
    /// Certificates of the authorities of callers in PEM
    #[arg(long, value_name = "FILE")]
    pub(crate) client_ca: PathBuf,
    /// Revocation lists of these authorities in PEM: certificates on them are refused; with one list, each authority needs one
    #[arg(long, value_name = "FILE")]
    pub(crate) revoked: Vec<PathBuf>,
}
