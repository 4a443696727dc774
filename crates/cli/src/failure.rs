//! What the program says when it cannot do what was asked.

use std::fmt;
use std::process::ExitCode;

/// A message for the user, and the exit status that goes with it.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    code: u8,
}

impl Failure {
    /// Exit status 1.
    pub(crate) fn new(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), code: 1 }
    }

    /// Another exit status.
    pub(crate) fn with_code(message: impl fmt::Display, code: u8) -> Self {
        Self { message: message.to_string(), code }
    }

    /// The exit status.
    pub(crate) fn code(&self) -> ExitCode {
        self.code.into()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::new(error)
    }
}
