//! Kernel TCP: a stream of messages of one size, and a ping-pong of two bytes.

use crate::SIZES;
use crate::copy::size_name;
use crate::results::{Results, Unit};
use clap::Args;
use rdmesh_tests::{Pair, Program};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

/// Group of the figures over the loopback device.
pub(crate) const LOOPBACK: &str = "kernel TCP, loopback";
/// Group of the figures over the endpoints' own veth devices.
pub(crate) const VETH: &str = "kernel TCP, veth";
/// Name of the latency figure in all groups.
pub(crate) const LATENCY: &str = "2 B half round trip";
/// Port of the server.
const PORT: u16 = 18_900;

const PING: u64 = 0;

/// A client of [`serve`].
#[derive(Args)]
pub(crate) struct Client {
    /// Host and port.
    server: String,
    /// Bytes of a message; 0 for a ping-pong of two bytes.
    size: u64,
    /// Duration of the measurement.
    seconds: f64,
}

/// Serves one client after the other until the process is killed.
pub(crate) fn serve(port: u16) {
    let listener = TcpListener::bind(("0.0.0.0", port)).expect("the port is free");
    for stream in listener.incoming().flatten() {
        // A client that goes away ends its stream with an error, which is how a measurement ends.
        let _ = serve_one(stream);
    }
}

fn serve_one(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut size = [0; 8];
    stream.read_exact(&mut size)?;
    let size = u64::from_le_bytes(size);
    let mut buffer = vec![0; size.max(2) as usize];
    let mut received = 0u64;
    loop {
        if size == PING {
            stream.read_exact(&mut buffer)?;
            stream.write_all(&buffer)?;
        } else {
            match stream.read(&mut buffer)? {
                0 => return stream.write_all(&received.to_le_bytes()),
                n => received += n as u64,
            }
        }
    }
}

impl Client {
    /// MB/s that arrived, or microseconds of half a round trip: mean, median and 99th percentile.
    pub(crate) fn measure(&self) -> Vec<f64> {
        let run = || if self.size == PING { self.ping() } else { Ok(vec![self.stream()?]) };
        run().expect("the server answers")
    }

    fn connect(&self) -> std::io::Result<TcpStream> {
        let mut stream = TcpStream::connect(&self.server)?;
        stream.set_nodelay(true)?;
        stream.write_all(&self.size.to_le_bytes())?;
        Ok(stream)
    }

    fn stream(&self) -> std::io::Result<f64> {
        let mut stream = self.connect()?;
        let buffer = vec![1; self.size as usize];
        let (begin, limit) = (Instant::now(), Duration::from_secs_f64(self.seconds));
        while begin.elapsed() < limit {
            for _ in 0..(1 << 20) / self.size.max(1) {
                stream.write_all(&buffer)?;
            }
            if self.size >= 1 << 20 {
                stream.write_all(&buffer)?;
            }
        }
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut received = [0; 8];
        stream.read_exact(&mut received)?;
        Ok(u64::from_le_bytes(received) as f64 / begin.elapsed().as_secs_f64() / 1e6)
    }

    fn ping(&self) -> std::io::Result<Vec<f64>> {
        let mut stream = self.connect()?;
        let mut word = [1; 2];
        let (begin, limit) = (Instant::now(), Duration::from_secs_f64(self.seconds));
        let mut times = Vec::new();
        let mut last = begin;
        while last - begin < limit || times.len() < 100 {
            stream.write_all(&word)?;
            stream.read_exact(&mut word)?;
            let now = Instant::now();
            times.push((now - last).as_secs_f64() * 1e6 / 2.0);
            last = now;
        }
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        times.sort_by(f64::total_cmp);
        let percentile = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
        Ok(vec![mean, percentile(50), percentile(99)])
    }
}

/// One of two processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Server,
    Client,
}

/// Measures between two processes on the host.
pub(crate) fn measure_loopback(results: &mut Results, effort: f64) {
    measure(results, LOOPBACK, &SIZES, effort, "127.0.0.1", |_, words| {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        Program::start(command)
    });
}

/// Starts the two processes in two endpoints, for [`measure`].
pub(crate) fn between(pair: &Pair<'_>) -> impl Fn(Side, &[String]) -> Program {
    move |side, words| {
        let (lab, endpoint) = if side == Side::Server { &pair.server } else { &pair.client };
        lab.start_in(endpoint, words)
    }
}

/// A server, and what starts clients of it.
pub(crate) struct Tcp<'a, S> {
    server: Program,
    address: &'a str,
    start: S,
}

impl<'a, S: Fn(Side, &[String]) -> Program> Tcp<'a, S> {
    /// A server at `address`. `start` starts the commands, where each belongs.
    pub(crate) fn start(address: &'a str, start: S) -> Self {
        let mut server = start(Side::Server, &[program(), "tcp-server".to_owned(), PORT.to_string()]);
        server.wait_listening(PORT);
        Self { server, address, start }
    }

    /// See [`Client::measure`].
    pub(crate) fn ping(&self, seconds: f64) -> Vec<f64> {
        self.client(PING, seconds)
    }

    /// MB/s of messages of `size` bytes.
    pub(crate) fn bandwidth(&self, size: u64, seconds: f64) -> f64 {
        self.client(size, seconds)[0]
    }

    fn client(&self, size: u64, seconds: f64) -> Vec<f64> {
        let server = format!("{}:{PORT}", self.address);
        let words = [program(), "tcp-client".to_owned(), server, size.to_string(), seconds.to_string()];
        let text = (self.start)(Side::Client, &words).finish(LIMIT).ok().text;
        let figures: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        assert!(!figures.is_empty(), "the TCP client said: {text}");
        figures
    }
}

impl<S> Drop for Tcp<'_, S> {
    fn drop(&mut self) {
        self.server.kill();
    }
}

/// Measures latency, and bandwidth by size, to a server at `address`. `start` starts the commands, where each belongs.
pub(crate) fn measure(
    results: &mut Results,
    group: &str,
    sizes: &[u64],
    effort: f64,
    address: &str,
    start: impl Fn(Side, &[String]) -> Program,
) {
    let tcp = Tcp::start(address, start);
    results.add(group, LATENCY, Unit::Microseconds, tcp.ping(effort)[0]);
    for &bytes in sizes {
        results.add(group, &size_name(bytes), Unit::MegabytesPerSecond, tcp.bandwidth(bytes, effort));
    }
}

/// This program.
fn program() -> String {
    std::env::current_exe().expect("this program has a path").display().to_string()
}

/// Time-out of a client.
const LIMIT: Duration = Duration::from_secs(60);
