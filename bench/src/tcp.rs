//! Kernel TCP: a stream of messages of one size, and a ping-pong of two bytes.

use crate::SIZES;
use crate::copy::size_name;
use crate::results::{Results, Unit};
use clap::Args;
use rdmesh_tests::Program;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

/// Group of the figures over the loopback device.
pub(crate) const LOOPBACK: &str = "kernel TCP, loopback";
/// Group of the figures over the endpoints' own veth devices.
pub(crate) const VETH: &str = "kernel TCP, veth";
/// Name of the latency figure in both groups.
pub(crate) const LATENCY: &str = "2 B half round trip";
/// Port of the server.
pub(crate) const PORT: u16 = 18_900;

const PING: u64 = 0;

/// A client of [`serve`].
#[derive(Args)]
pub(crate) struct Client {
    /// Host and port.
    server: String,
    /// Bytes of a message; 0 for a ping-pong of two bytes.
    size: u64,
    /// How long to measure.
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
    /// MB/s that arrived, or microseconds of half a round trip.
    pub(crate) fn measure(&self) -> f64 {
        let run = || if self.size == PING { self.ping() } else { self.stream() };
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

    fn ping(&self) -> std::io::Result<f64> {
        let mut stream = self.connect()?;
        let mut word = [1; 2];
        let (begin, limit) = (Instant::now(), Duration::from_secs_f64(self.seconds));
        let mut rounds = 0u32;
        while !rounds.is_multiple_of(100) || begin.elapsed() < limit {
            stream.write_all(&word)?;
            stream.read_exact(&mut word)?;
            rounds += 1;
        }
        Ok(begin.elapsed().as_secs_f64() * 1e6 / f64::from(rounds) / 2.0)
    }
}

/// Measures between two processes on the host.
pub(crate) fn measure_loopback(results: &mut Results, effort: f64) {
    let program = std::env::current_exe().expect("this program has a path");
    let mut command = Command::new(&program);
    command.args(["tcp-server", &PORT.to_string()]);
    let mut server = Program::start(command);
    server.wait_listening(PORT);
    measure_with(results, LOOPBACK, effort, |size, seconds| {
        let mut client = Command::new(&program);
        client.args(["tcp-client", &format!("127.0.0.1:{PORT}"), &size, &seconds]);
        Program::start(client).finish(Duration::from_secs(60)).ok().text
    });
    server.kill();
}

/// Measures with clients that `run` starts with a size and a number of seconds, and whose output it returns.
pub(crate) fn measure_with(
    results: &mut Results,
    group: &'static str,
    effort: f64,
    run: impl Fn(String, String) -> String,
) {
    let figure = |size: u64| {
        let text = run(size.to_string(), effort.to_string());
        text.trim().parse::<f64>().unwrap_or_else(|_| panic!("the TCP client said: {text}"))
    };
    results.add(group, LATENCY, Unit::Microseconds, figure(PING));
    for bytes in SIZES {
        results.add(group, &size_name(bytes), Unit::MegabytesPerSecond, figure(bytes));
    }
}
