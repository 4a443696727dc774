//! Keys and certificates.

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

/// Files of keys and certificates, in PEM.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The gateway's certificate, followed by those of authorities between it and the one that clients know.
    pub certificate: PathBuf,
    /// The private key that belongs to it (PKCS #8, PKCS #1 or SEC 1).
    pub key: PathBuf,
    /// The certificates of the authorities of callers.
    pub client_ca: PathBuf,
    /// Revocation lists of these authorities; where there are some, each authority needs one.
    pub revoked: Vec<PathBuf>,
}

/// Error of [`Credentials`].
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// A file cannot be read, or holds something else.
    #[error("{}: {}", .file.display(), described(.source))]
    File {
        /// Path, as it was given.
        file: PathBuf,
        /// Error of the file system, or of the PEM in it.
        source: pem::Error,
    },
    /// A file holds nothing of the kind that it is for.
    #[error("{}: there is no {kind} in it, in PEM", .file.display())]
    Empty {
        /// Path, as it was given.
        file: PathBuf,
        /// Kind of item that the file is for, as in the message.
        kind: &'static str,
    },
    /// The certificate or the key cannot be used, or they do not go together.
    #[error("the certificate and its key: {0}")]
    Certificate(rustls::Error),
    /// A certificate of an authority cannot be used.
    #[error("{}: {source}", .file.display())]
    Authority {
        /// Path of the file with it, as it was given.
        file: PathBuf,
        /// Error of the certificate's form.
        source: rustls::Error,
    },
    /// Authorities or revocation lists cannot be used.
    #[error("the authorities of callers: {0}")]
    Callers(#[from] VerifierBuilderError),
}

impl Credentials {
    /// Accepts connections whose callers have a certificate of one of the authorities, which is valid and for clients.
    pub(crate) fn acceptor(&self) -> Result<TlsAcceptor, CredentialsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let authorities = Arc::new(authorities(&self.client_ca)?);
        let mut verifier = WebPkiClientVerifier::builder_with_provider(authorities, Arc::clone(&provider));
        for file in &self.revoked {
            verifier = verifier.with_crls(read_all::<CertificateRevocationListDer<'static>>(file, "revocation list")?);
        }
        let key = private_key(&self.key)?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(CredentialsError::Certificate)?
            .with_client_cert_verifier(verifier.build()?)
            .with_single_cert(read_all(&self.certificate, CERTIFICATE)?, key)
            .map_err(CredentialsError::Certificate)?;
        // A resumed session would not look at its certificate again: not at its term either.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

/// The authorities whose certificates are in a file.
pub(crate) fn authorities(file: &Path) -> Result<RootCertStore, CredentialsError> {
    let mut authorities = RootCertStore::empty();
    for authority in read_all::<CertificateDer<'static>>(file, CERTIFICATE)? {
        let refused = |source| CredentialsError::Authority { file: file.to_owned(), source };
        authorities.add(authority).map_err(refused)?;
    }
    Ok(authorities)
}

/// The private key in a file.
pub(crate) fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, CredentialsError> {
    PrivateKeyDer::from_pem_file(file).map_err(|source| unusable(file, source))
}

/// The items in a file, of which there is one at least: an empty list of authorities or of revoked certificates would be a mistake.
pub(crate) fn read_all<T: PemObject>(file: &Path, kind: &'static str) -> Result<Vec<T>, CredentialsError> {
    let all: Vec<T> = T::pem_file_iter(file).and_then(Iterator::collect).map_err(|source| unusable(file, source))?;
    if all.is_empty() { Err(CredentialsError::Empty { file: file.to_owned(), kind }) } else { Ok(all) }
}

fn unusable(file: &Path, source: pem::Error) -> CredentialsError {
    CredentialsError::File { file: file.to_owned(), source }
}

/// Words for `error`; those of its crate are for programmers.
fn described(error: &pem::Error) -> String {
    match error {
        pem::Error::Io(error) => error.to_string(),
        pem::Error::NoItemsFound => "there is no private key in it, in PEM".to_owned(),
        other => format!("it is not a file of keys or certificates in PEM ({other})"),
    }
}

/// Items that are read.
pub(crate) const CERTIFICATE: &str = "certificate";
