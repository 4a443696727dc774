//! The key that a browser has to show.

use axum::http::{HeaderMap, Uri, header};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use std::fmt::{self, Display, Formatter};

/// 128 random bits.
pub(crate) struct Key([u8; 16]);

impl Key {
    pub(crate) fn random() -> Result<Self, Errno> {
        let mut bytes = [0; 16];
        // So few come at once.
        getrandom(&mut bytes, GetRandomFlags::empty()).map(|_| Self(bytes))
    }

    /// The header by which a browser is to keep it until it ends, for this address alone.
    pub(crate) fn cookie(&self) -> String {
        format!("{NAME}={self}; HttpOnly; SameSite=Strict; Path=/")
    }

    pub(crate) fn is_in_cookie(&self, headers: &HeaderMap) -> bool {
        let values = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(';')).any(|pair| self.is_in(pair.trim()))
    }

    pub(crate) fn is_in_query(&self, uri: &Uri) -> bool {
        uri.query().unwrap_or_default().split('&').any(|pair| self.is_in(pair))
    }

    /// Takes as long for each wrong key.
    fn is_in(&self, pair: &str) -> bool {
        let Some(claimed) = pair.strip_prefix(NAME).and_then(|rest| rest.strip_prefix('=')) else { return false };
        let own = self.to_string();
        let differ = own.bytes().zip(claimed.bytes()).fold(0, |all, (own, claimed)| all | (own ^ claimed));
        own.len() == claimed.len() && differ == 0
    }
}

impl Display for Key {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Of the parameter and of the cookie.
pub(crate) const NAME: &str = "rdmesh-page-key";

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn cookies(text: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::COOKIE, HeaderValue::from_str(text).expect("plain text"))])
    }

    #[test]
    fn only_the_whole_key_opens() {
        let key = Key([0xab; 16]);
        let (text, other) = ("ab".repeat(16), "ac".repeat(16));
        assert!(key.is_in_cookie(&cookies(&format!("theme=dark; {NAME}={text}"))));
        assert!(key.is_in_query(&Uri::try_from(format!("/?{NAME}={text}")).expect("a path")));
        for wrong in [other, text[..30].to_owned(), format!("{text}ab"), String::new()] {
            assert!(!key.is_in_cookie(&cookies(&format!("{NAME}={wrong}"))), "{wrong}");
            assert!(!key.is_in_query(&Uri::try_from(format!("/?{NAME}={wrong}")).expect("a path")), "{wrong}");
        }
        assert!(!key.is_in_cookie(&HeaderMap::new()));
    }
}
