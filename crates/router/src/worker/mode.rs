//! Waiting strategies of threads that poll.

/// Waiting strategy of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// Poll for ever: least latency, one processor per worker.
    Spin,
    /// Poll while in use, sleep when idle.
    #[default]
    Adaptive,
    /// Sleep whenever there is nothing to do: least processor time.
    Sleep,
}
