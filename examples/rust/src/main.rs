//! RDMA from Rust, through the crate `sideway`: checked WRITEs and SENDs between two endpoints.
//!
//! `pingpong` serves one client; `pingpong ADDRESS` is the client. Each round the client writes a block of data straight into
//! the server's memory and says so with a SEND; the server checks the block and answers in the same way.

mod link;

use link::Link;
use std::env;
use std::error::Error;
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

const PORT: u16 = 18620;
const ROUNDS: u64 = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    // The sides exchange their connection parameters over plain TCP.
    let server = env::args().nth(1);
    let stream = match &server {
        Some(address) => TcpStream::connect((address.as_str(), PORT))?,
        None => TcpListener::bind(("0.0.0.0", PORT))?.accept()?.0,
    };
    let mut link = Link::connect(&stream)?;
    let begin = Instant::now();
    for round in 0..ROUNDS {
        if server.is_some() {
            link.write_and_tell(2 * round)?;
            link.wait_and_check(2 * round + 1)?;
        } else {
            link.wait_and_check(2 * round)?;
            link.write_and_tell(2 * round + 1)?;
        }
    }
    let half_round_trip = begin.elapsed().as_secs_f64() * 1e6 / (2 * ROUNDS) as f64;
    println!("{ROUNDS} rounds of {} bytes, all of them right: {half_round_trip:.1} us each way", link::BLOCK);
    link.close(stream)
}
