//! Failures of the command line: a message and an exit status.

use rdmesh_fabric::printable_lines;
use std::fmt;
use std::process::ExitCode;

/// A message for the user, without terminal control characters, and the exit status.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    code: u8,
}

impl Failure {
    /// Exit status 1.
    pub(crate) fn new(message: impl fmt::Display) -> Self {
        Self::with_code(message, 1)
    }

    /// Another exit status.
    pub(crate) fn with_code(message: impl fmt::Display, code: u8) -> Self {
        Self { message: printable_lines(&message.to_string()).into_owned(), code }
    }

    /// A closed standard output (`| head`): the exit status is that of a program which SIGPIPE has ended, as shells report it,
    /// without a message.
    pub(crate) fn unread() -> Self {
        Self { message: String::new(), code: 128 + SIGPIPE }
    }

    /// Whether there is nothing to say.
    pub(crate) fn is_silent(&self) -> bool {
        self.message.is_empty()
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

const SIGPIPE: u8 = 13;
