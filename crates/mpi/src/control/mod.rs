//! The way between a rank and the launcher of its job, and through it to the other ranks.
//!
//! Ranks find each other, exchange queue pairs and repair what a failed connection has left over this way. It is TCP on the
//! tenant's own network, so that the tenant's firewall decides who talks to whom.

mod frame;
mod thresholds;

pub use frame::{Frame, Kind, MAX_BODY};
pub use thresholds::{Measured, Ready, Site, Start, Thresholds};

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::str::FromStr;
use std::time::Duration;

/// Environment variable that tells a rank of its job: [`Job`].
pub const JOB_ENV: &str = "RDMESH_MPI";

/// Secret of a job: what no stranger knows, and no message of the program contains but by guessing.
pub type Secret = [u8; 16];

/// Where a job's launcher listens, and the job's secret: `ADDRESS,…/PORT/SECRET`, the secret in hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Job {
    /// The launcher's addresses.
    pub addresses: Vec<IpAddr>,
    /// TCP port of the launcher, on all of these addresses.
    pub port: u16,
    /// Proof that a rank belongs to this job.
    pub secret: Secret,
}

/// A text that names no job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoJob;

impl FromStr for Job {
    type Err = NoJob;

    fn from_str(text: &str) -> Result<Self, NoJob> {
        let mut parts = text.split('/');
        let (Some(addresses), Some(port), Some(digits), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(NoJob);
        };
        let mut secret = Secret::default();
        if digits.len() != 2 * secret.len() || !digits.is_ascii() {
            return Err(NoJob);
        }
        for (at, byte) in secret.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).map_err(|_| NoJob)?;
        }
        Ok(Self {
            addresses: addresses.split(',').map(str::parse).collect::<Result<_, _>>().map_err(|_| NoJob)?,
            port: port.parse().map_err(|_| NoJob)?,
            secret,
        })
    }
}

impl std::fmt::Display for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let addresses: Vec<_> = self.addresses.iter().map(IpAddr::to_string).collect();
        write!(f, "{}/{}/", addresses.join(","), self.port)?;
        self.secret.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The ranks of one `MPI_COMM_WORLD`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct World<'a> {
    /// Tells it from the others of a job.
    pub name: &'a str,
    /// Number of its ranks.
    pub size: u32,
}

/// A rank's connection to its launcher.
#[derive(Debug)]
pub struct Control {
    stream: TcpStream,
}

impl Control {
    /// Joins the job as `rank` of a world.
    pub fn join(job: &Job, rank: u32, world: World<'_>) -> io::Result<Self> {
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for &address in &job.addresses {
            match TcpStream::connect_timeout(&SocketAddr::new(address, job.port), CONNECT_TIMEOUT) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    let mut control = Self { stream };
                    let body = [&job.secret[..], &world.size.to_le_bytes(), world.name.as_bytes()].concat();
                    control.send(Kind::Join, rank, body)?;
                    return Ok(control);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Sends a frame to a rank.
    pub fn send(&mut self, kind: Kind, rank: u32, body: Vec<u8>) -> io::Result<()> {
        Frame::new(kind, rank, body).write(&mut self.stream)
    }

    /// The same connection, for the thread that reads from it.
    pub fn reader(&self) -> io::Result<TcpStream> {
        self.stream.try_clone()
    }
}

/// Limit for a connection to one address of the launcher.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_read_as_it_is_written() {
        let job = Job {
            addresses: vec!["10.7.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
            port: 40123,
            secret: *b"0123456789abcdef",
        };
        assert_eq!(job.to_string().parse(), Ok(job));
        for wrong in [
            "",
            "10.0.0.1/1",
            "10.0.0.1/1/00",
            "x/1/30313233343536373839616263646566",
            "10.0.0.1/70000/30313233343536373839616263646566",
        ] {
            assert_eq!(wrong.parse::<Job>(), Err(NoJob), "{wrong}");
        }
    }
}
