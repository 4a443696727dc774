//! Keys by which hosts authenticate each other.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A secret of 32 bytes: of two hosts, of all hosts of a mesh, or the private key of one. As text it is 64 hexadecimal digits. It is
/// never shown, except by [`TunnelKey::to_text`], for the user who made it.
#[derive(Clone, PartialEq, Eq, JsonSchema)]
#[schemars(with = "String")]
pub struct TunnelKey([u8; TunnelKey::LEN]);

/// The public key of a host, for a Diffie–Hellman exchange over Curve25519 (RFC 7748). As text it is 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, JsonSchema)]
#[schemars(with = "String")]
pub struct PublicKey([u8; PublicKey::LEN]);

/// A key that is replaced now and then. Both are accepted; packets have the newest one as soon as the other host knows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Rotated<K> {
    /// The one in use.
    pub newest: K,
    /// The one before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub older: Option<K>,
}

/// Error of a text or a file that is not a key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// Not the text of one.
    #[error("a key has 64 hexadecimal digits: `rdmesh peer key > FILE` makes one")]
    Form,
    /// Others may read it.
    #[error(
        "others can read it or its group can change it (mode {0:o}): `chmod 600` it, and make a new key if somebody may have seen this one"
    )]
    Public(u32),
    /// It cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl TunnelKey {
    /// Bytes of a key.
    pub const LEN: usize = 32;

    /// The key with these bytes.
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// A new key, from the kernel's random numbers.
    pub fn generate() -> io::Result<Self> {
        let mut bytes = [0; Self::LEN];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// Its text.
    pub fn to_text(&self) -> String {
        to_digits(&self.0)
    }

    /// The key in a file that only its owner, and at most its group, can read.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        read_secret(path)?.trim().parse()
    }
}

impl PublicKey {
    /// Bytes of a key: a coordinate of Curve25519 (RFC 7748, section 5).
    pub const LEN: usize = 32;

    /// The key with these bytes.
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// The coordinate, least significant byte first.
    pub fn bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

impl<K> Rotated<K> {
    /// The same with a newer key.
    pub fn followed_by(self, newest: K) -> Self {
        Self { newest, older: Some(self.newest) }
    }

    /// Both keys, as `derive` makes them of these.
    pub fn map<D>(&self, derive: impl Fn(&K) -> D) -> Rotated<D> {
        Rotated { newest: derive(&self.newest), older: self.older.as_ref().map(derive) }
    }

    /// The key from before the last rotation, or the only one.
    pub fn oldest(&self) -> &K {
        self.older.as_ref().unwrap_or(&self.newest)
    }
}

impl<K> From<K> for Rotated<K> {
    fn from(newest: K) -> Self {
        Self { newest, older: None }
    }
}

/// The text in a file, if others cannot read it.
pub fn read_secret(path: &Path) -> Result<String, KeyError> {
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    let mode = metadata.mode() & 0o777;
    if metadata.is_file() && mode & OTHERS != 0 {
        return Err(KeyError::Public(mode));
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text)
}

impl std::str::FromStr for TunnelKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        from_digits(text).map(Self)
    }
}

impl std::str::FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        from_digits(text).map(Self)
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({})", to_digits(&self.0))
    }
}

impl Serialize for PublicKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&to_digits(&self.0))
    }
}

impl<'de> Deserialize<'de> for PublicKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl fmt::Debug for TunnelKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TunnelKey(..)")
    }
}

impl Serialize for TunnelKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_text())
    }
}

impl<'de> Deserialize<'de> for TunnelKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

fn to_digits(bytes: &[u8; 32]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_digits(text: &str) -> Result<[u8; 32], KeyError> {
    let digits = text.as_bytes();
    let digit = |c: u8| char::from(c).to_digit(16).ok_or(KeyError::Form);
    let mut bytes = [0; 32];
    if digits.len() != 2 * bytes.len() {
        return Err(KeyError::Form);
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Ok(bytes)
}

/// Others reading or writing, and the group writing.
const OTHERS: u32 = 0o027;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_key_is_its_text_and_shows_in_no_log() {
        let key = TunnelKey::generate().unwrap();
        assert_eq!(key.to_text().parse::<TunnelKey>().unwrap(), key);
        assert_ne!(key, TunnelKey::generate().unwrap());
        assert!(!format!("{key:?}").contains(&key.to_text()[..8]));
        for text in ["", "abc", &"g".repeat(64), &"a".repeat(63), &"ä".repeat(32)] {
            assert!(text.parse::<TunnelKey>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let key = TunnelKey::generate().unwrap();
        std::fs::write(file.path(), format!("{}\n", key.to_text())).unwrap();
        for (mode, is_good) in [(0o600, true), (0o640, true), (0o644, false), (0o604, false), (0o660, false)] {
            std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            let read = TunnelKey::read(file.path());
            assert_eq!(read.is_ok(), is_good, "{mode:o}: {read:?}");
        }
    }
}
