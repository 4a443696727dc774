//! Settings: the environment variables that the library reads when MPI is initialised.

use crate::control::{JOB_ENV, Job};

/// Settings from the environment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    /// The job that this rank belongs to; none where it was not started under a launcher.
    pub(crate) job: Option<Job>,
    /// Shortest message in bytes that is announced; none to measure it.
    pub(crate) threshold: Option<u64>,
    /// Most bytes of memory that stays registered.
    pub(crate) cache: usize,
    /// Name of the RDMA device to use; the first one without it.
    pub(crate) device: Option<String>,
}

impl Settings {
    /// Those of this process.
    pub(crate) fn of_environment() -> Self {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let number = |name: &str| variable(name).and_then(|value| value.parse::<u64>().ok());
        Self {
            job: variable(JOB_ENV).and_then(|text| text.parse().ok()),
            threshold: number(THRESHOLD_ENV).map(|bytes| bytes.max(MIN_THRESHOLD)),
            cache: usize::try_from(number(CACHE_ENV).unwrap_or(DEFAULT_CACHE).saturating_mul(1 << 20))
                .unwrap_or(usize::MAX),
            device: variable(DEVICE_ENV),
        }
    }
}

/// Shortest message in bytes that is read by RDMA; measured in `MPI_Init` where it is not set.
pub const THRESHOLD_ENV: &str = "RDMESH_MPI_THRESHOLD";
/// MiB of memory that may stay registered; 0 registers each message anew.
pub const CACHE_ENV: &str = "RDMESH_MPI_CACHE";
/// Name of the RDMA device.
pub const DEVICE_ENV: &str = "RDMESH_MPI_DEVICE";

/// Threshold where it could not be measured.
pub(crate) const DEFAULT_THRESHOLD: u64 = 16 << 10;
/// An announcement must be much shorter than what it stands for.
pub(crate) const MIN_THRESHOLD: u64 = 2 << 10;
const DEFAULT_CACHE: u64 = 1 << 10;
