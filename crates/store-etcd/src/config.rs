//! Address of an etcd cluster, as an operator writes it.

use std::fmt;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Address of an etcd cluster, and credentials.
///
/// As text: `etcd://USER:PASSWORD@HOST:PORT,HOST:PORT/PREFIX?OPTION&OPTION`, all but one HOST of it optional. Options are `tls`,
/// `insecure` (without it `tls` is needed, but for a member on this host), `ca=FILE` (of the certificates' issuer), `cert=FILE` and `key=FILE` (this client's own), `password-file=FILE`, and
/// `timeout=SECONDS` of one request to one member.
///
/// ```
/// let config: rdmesh_store_etcd::EtcdConfig = "etcd://rdmesh:s%40fe@10.0.0.1,10.0.0.2:2379?tls&ca=/etc/ca.pem".parse()?;
/// assert_eq!(config.members(), ["https://10.0.0.1:2379", "https://10.0.0.2:2379"]);
/// # Ok::<(), rdmesh_store_etcd::ConfigError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdConfig {
    hosts: Vec<String>,
    user: Option<(String, String)>,
    prefix: String,
    timeout: Duration,
    tls: Option<Tls>,
}

/// Files of a connection with TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tls {
    pub(crate) ca: PathBuf,
    /// Certificate and key of this client.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
}

/// Error of a text that is not the address of an etcd cluster. It does not show the text, which may have a password in it.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It begins otherwise.
    #[error("the address of a store begins with `etcd://`, as in etcd://10.0.0.1:2379,10.0.0.2:2379")]
    Scheme,
    /// No host, or no text for one.
    #[error("`{0}` is not HOST or HOST:PORT")]
    Host(String),
    /// A percent sign without two digits, or another encoding than UTF-8.
    #[error("user and password must be percent-encoded")]
    Encoding,
    /// An unknown option.
    #[error(
        "`{0}` is none of the options tls, insecure, ca=FILE, cert=FILE, key=FILE, password-file=FILE, timeout=SECONDS"
    )]
    Option(String),
    /// A path that another process would take for another one.
    #[error("`{0}` must be given an absolute path")]
    Relative(String),
    /// A member on another host without TLS: who is on the way could write in this host's name.
    #[error(
        "`{0}` is asked without TLS, so that everybody on the way can write in this host's name: add tls&ca=FILE to its address, or \
         `insecure` where nobody is"
    )]
    Plain(String),
    /// A time that is none.
    #[error("timeout must be a number of seconds from 1 to 60")]
    Timeout,
    /// Options that need each other.
    #[error("`{0}` needs `{1}`")]
    Needs(&'static str, &'static str),
    /// Files that are no certificates or keys.
    #[error("the certificates of `ca`, `cert` and `key` cannot be used")]
    Tls,
    /// A file of a password, a certificate or a key.
    #[error("{}: {source}", .path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// The options of a text.
#[derive(Default)]
struct Options {
    tls: bool,
    insecure: bool,
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    password_file: Option<PathBuf>,
    timeout: Option<Duration>,
}

impl EtcdConfig {
    /// The members' addresses, as URLs.
    pub fn members(&self) -> Vec<String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        self.hosts.iter().map(|host| format!("{scheme}://{host}")).collect()
    }

    /// The same cluster, with every key below another prefix.
    pub fn with_prefix(self, prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), ..self }
    }

    /// Whether it is to be asked without a user: whoever reaches it may write there.
    pub fn is_open(&self) -> bool {
        let has_certificate = self.tls.as_ref().is_some_and(|tls| tls.identity.is_some());
        self.user.is_none() && !has_certificate
    }

    /// Whether it is asked over TLS.
    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    pub(crate) fn user(&self) -> Option<&(String, String)> {
        self.user.as_ref()
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }
}

impl FromStr for EtcdConfig {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let rest = text.strip_prefix("etcd://").ok_or(ConfigError::Scheme)?;
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let options = Options::parse(options)?;
        // A password may have a slash in it, a host may not.
        let (user, rest) = rest.rsplit_once('@').map_or((None, rest), |(user, rest)| (Some(user), rest));
        let (hosts, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = if prefix.is_empty() { DEFAULT_PREFIX } else { prefix };
        let (is_plain, timeout) = (!options.tls && !options.insecure, options.timeout.unwrap_or(DEFAULT_TIMEOUT));
        let user = user.map(|user| credentials(user, options.password_file.as_ref())).transpose()?;
        let tls = options.tls()?;
        let hosts = hosts.split(',').map(host).collect::<Result<Vec<_>, _>>()?;
        if let Some(host) = hosts.iter().find(|host| is_plain && !is_own(host)) {
            return Err(ConfigError::Plain(host.clone()));
        }
        Ok(Self { hosts, user, prefix: format!("{}/", prefix.trim_end_matches('/')), timeout, tls })
    }
}

impl Options {
    fn parse(text: &str) -> Result<Self, ConfigError> {
        let mut options = Self::default();
        for option in text.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=').unwrap_or((option, "")) {
                ("tls", "") => options.tls = true,
                ("insecure", "") => options.insecure = true,
                ("ca" | "cert" | "key" | "password-file", file) if !file.starts_with('/') => {
                    return Err(ConfigError::Relative(option.to_owned()));
                }
                ("ca", file) => options.ca = Some(file.into()),
                ("cert", file) => options.cert = Some(file.into()),
                ("key", file) => options.key = Some(file.into()),
                ("password-file", file) => options.password_file = Some(file.into()),
                ("timeout", seconds) => options.timeout = Some(timeout(seconds)?),
                (name, _) => return Err(ConfigError::Option(name.to_owned())),
            }
        }
        Ok(options)
    }

    fn tls(self) -> Result<Option<Tls>, ConfigError> {
        match (self.tls, self.ca, self.cert, self.key) {
            (false, None, None, None) => Ok(None),
            (false, ..) => Err(ConfigError::Needs("ca, cert and key", "tls")),
            (true, None, ..) => Err(ConfigError::Needs("tls", "ca=FILE")),
            (true, Some(ca), None, None) => Ok(Some(Tls { ca, identity: None })),
            (true, Some(ca), Some(cert), Some(key)) => Ok(Some(Tls { ca, identity: Some((cert, key)) })),
            (true, Some(_), None, Some(_)) => Err(ConfigError::Needs("key", "cert=FILE")),
            (true, Some(_), Some(_), None) => Err(ConfigError::Needs("cert", "key=FILE")),
        }
    }
}

impl fmt::Debug for EtcdConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.as_ref().map(|(name, _)| name);
        f.debug_struct("EtcdConfig").field("members", &self.members()).field("user", &user).finish_non_exhaustive()
    }
}

fn host(text: &str) -> Result<String, ConfigError> {
    let invalid = || ConfigError::Host(text.to_owned());
    // The last colon of an IPv6 address without a port is within brackets.
    let has_port = text.rsplit_once(':').filter(|(_, port)| !port.contains(']'));
    let (name, port) = has_port.map_or((text, Ok(DEFAULT_PORT)), |(name, port)| (name, port.parse::<u16>()));
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '[' | ']');
    match port {
        Ok(port) if !name.is_empty() && name.chars().all(allowed) => Ok(format!("{name}:{port}")),
        _ => Err(invalid()),
    }
}

/// Whether a member is on this host: what goes there passes nobody.
fn is_own(host: &str) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    name == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

fn credentials(text: &str, password_file: Option<&PathBuf>) -> Result<(String, String), ConfigError> {
    let (name, password) = text.split_once(':').unwrap_or((text, ""));
    let password = match password_file {
        Some(path) => {
            let read = fs::read_to_string(path).map_err(|source| ConfigError::File { path: path.clone(), source })?;
            read.trim_end_matches('\n').to_owned()
        }
        None => decoded(password)?,
    };
    Ok((decoded(name)?, password))
}

/// Text with percent signs replaced by what they stand for.
fn decoded(text: &str) -> Result<String, ConfigError> {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2).ok_or(ConfigError::Encoding)?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| ConfigError::Encoding)?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).map_err(|_| ConfigError::Encoding)
}

fn timeout(text: &str) -> Result<Duration, ConfigError> {
    match text.parse::<u64>() {
        Ok(seconds @ 1..=60) => Ok(Duration::from_secs(seconds)),
        _ => Err(ConfigError::Timeout),
    }
}

const DEFAULT_PORT: u16 = 2379;
const DEFAULT_PREFIX: &str = "rdmesh";
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWORD: &str = "pass-word";

    fn parse(text: &str) -> Result<EtcdConfig, ConfigError> {
        text.parse()
    }

    #[test]
    fn an_address_has_members_and_a_user() {
        let config = parse("etcd://a:p%2Fq%40@10.0.0.1,[fd00::1],h.example:99/site/x?timeout=7&insecure").unwrap();
        assert_eq!(config.members(), ["http://10.0.0.1:2379", "http://[fd00::1]:2379", "http://h.example:99"]);
        assert_eq!(config.user(), Some(&("a".to_owned(), "p/q@".to_owned())));
        assert_eq!((config.prefix(), config.timeout().as_secs()), ("site/x/", 7));
        assert!(!format!("{config:?}").contains("p/q@"), "{config:?}");
        let secure = parse("etcd://h?tls&ca=/ca.pem&cert=/c.pem&key=/k.pem").unwrap();
        assert!(
            ["127.0.0.9", "[::1]:9", "localhost"].iter().all(|own| parse(&format!("etcd://{own}")).unwrap().is_open())
        );
        assert_eq!((secure.members()[0].as_str(), secure.is_open()), ("https://h:2379", false));
        assert_eq!((secure.members()[0].as_str(), secure.prefix()), ("https://h:2379", "rdmesh/"));
    }

    #[test]
    fn a_password_may_be_in_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "secret\n").unwrap();
        let config = parse(&format!("etcd://a@h?insecure&password-file={}", file.path().display())).unwrap();
        assert_eq!(config.user(), Some(&("a".to_owned(), "secret".to_owned())));
        assert!(matches!(parse("etcd://a@h?insecure&password-file=/none"), Err(ConfigError::File { .. })));
    }

    #[test]
    fn a_mistake_is_named_and_the_password_is_not() {
        let cases = [
            ("http://h", "begins with `etcd://`"),
            ("etcd://", "is not HOST"),
            ("etcd://a:pass-word@h:port", "`h:port` is not HOST"),
            ("etcd://a:%s@h", "percent-encoded"),
            ("etcd://127.0.0.1,h", "`h:2379` is asked without TLS"),
            ("etcd://h?tsl", "`tsl` is none of the options"),
            ("etcd://h?tls", "`tls` needs `ca=FILE`"),
            ("etcd://h?ca=/x", "needs `tls`"),
            ("etcd://h?tls&ca=/x&cert=/y", "`cert` needs `key=FILE`"),
            ("etcd://h?tls&ca=x", "`ca=x` must be given an absolute path"),
            ("etcd://h?timeout=0", "1 to 60"),
        ];
        for (text, error) in cases {
            let said = parse(text).unwrap_err().to_string();
            assert!(said.contains(error) && !said.contains(PASSWORD), "{text}: {said}");
        }
    }
}
