//! Errors of several operations that are all tried.

use std::error::Error;
use std::fmt;
use std::io;

/// Errors of several operations, each of which was tried whatever became of the others.
#[derive(Debug)]
pub struct Errors<E>(Vec<E>);

impl<E: From<Self>> Errors<E> {
    /// The errors among `results`: none, the only one as it is, or all of them.
    pub fn all(results: impl IntoIterator<Item = Result<(), E>>) -> Result<(), E> {
        let mut errors: Vec<E> = results.into_iter().filter_map(Result::err).collect();
        match errors.len() {
            0 => Ok(()),
            1 => errors.pop().map_or(Ok(()), Err),
            _ => Err(Self(errors).into()),
        }
    }

    /// The error `first` and, where the operation that followed it failed too, that one's.
    pub fn join(first: E, second: Result<(), E>) -> E {
        match second {
            Ok(()) => first,
            Err(second) => Self(vec![first, second]).into(),
        }
    }
}

impl<E: fmt::Display> fmt::Display for Errors<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            write!(f, "{}{error}", if index == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

impl<E: Error> Error for Errors<E> {}

impl From<Errors<Self>> for io::Error {
    fn from(errors: Errors<Self>) -> Self {
        let kind = errors.0.first().map_or(io::ErrorKind::Other, Self::kind);
        Self::new(kind, errors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> io::Error {
        io::Error::new(io::ErrorKind::NotFound, text.to_owned())
    }

    #[test]
    fn every_error_is_in_the_text() {
        let several = Errors::all([Err(error("a")), Ok(()), Err(error("b"))]).unwrap_err();
        assert_eq!(several.to_string(), "a; b");
        assert_eq!(several.kind(), io::ErrorKind::NotFound);
        assert_eq!(Errors::join(error("a"), Err(error("b"))).to_string(), "a; b");
    }

    #[test]
    fn the_only_error_stays_as_it_is() {
        let only = Errors::all([Ok(()), Err(io::Error::from_raw_os_error(17))]).unwrap_err();
        assert_eq!(only.raw_os_error(), Some(17));
        assert!(Errors::<io::Error>::all([Ok(()), Ok(())]).is_ok());
        assert_eq!(Errors::join(error("a"), Ok(())).to_string(), "a");
    }
}
