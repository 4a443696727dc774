//! A client of `examples/chains/hash_server` in Rust, through the crate `sideway`: asks for keys, several at a time.
//!
//! ```text
//! rdmesh run --name a --net blue --ip 10.7.0.2 -- examples/chains/hash_server
//! rdmesh run --name b --net blue --ip 10.7.0.3 -- examples/rust/target/release/hash_client 10.7.0.2 one two nothing
//! ```
//!
//! Messages and replies are encoded by the crate `rdmesh-chain`, which needs no device; all else is plain verbs.

use rdmesh_chain::offload::hash::{Client as Keys, Shape};
use rdmesh_chain::offload::{Answer, Buffer};
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::address::{AddressHandleAttribute, Gid};
use sideway::ibverbs::completion::{BasicCompletionQueue, GenericCompletionQueue};
use sideway::ibverbs::device::{Device, DeviceList};
use sideway::ibverbs::device_context::{DeviceContext, Mtu};
use sideway::ibverbs::memory_region::MemoryRegion;
use sideway::ibverbs::queue_pair::{
    ExtendedQueuePair, PostSendGuard, QueuePair, QueuePairAttribute, QueuePairState, SetScatterGatherEntry,
    WorkRequestFlags,
};
use std::collections::HashMap;
use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

const SERVER_PORT: u16 = 18640;
/// Requests at a time; the server's chain has more instances.
const OUTSTANDING: usize = 4;
/// Bytes of a reply and of a message.
const RECORD: usize = 4096;
const MESSAGE: usize = 64;
/// GID 0 is the link-local address, 1 the IPv4 one.
const GID_INDEX: u8 = 1;
const PORT: u8 = 1;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let server = arguments.next().ok_or("usage: hash_client SERVER KEY...")?;
    let keys: Vec<String> = arguments.collect();
    let mut client = Client::connect(&server)?;
    let answers = client.get(&keys)?;
    for (key, answer) in keys.iter().zip(answers) {
        match answer {
            Answer::Value { value, .. } => println!("{key}: {}", String::from_utf8_lossy(&value)),
            Answer::Miss => println!("{key} (not there)"),
            Answer::OtherKey => println!("{key} (not there any more)"),
            Answer::Torn => println!("{key} (changed meanwhile)"),
            Answer::Stale => println!("{key} (asked twice)"),
        }
    }
    Ok(())
}

/// A reliable connection to the server's chain, and memory for replies and messages.
struct Client {
    qp: ExtendedQueuePair,
    cq: Arc<BasicCompletionQueue>,
    mr: Arc<MemoryRegion>,
    /// A reply for each outstanding request; behind them, their messages.
    bytes: Box<[u8]>,
    keys: Keys,
}

impl Client {
    fn connect(server: &str) -> Result<Self> {
        let devices = DeviceList::new()?;
        let device: Device = devices.iter().next().ok_or("there is no RDMA device: is this run by `rdmesh run`?")?;
        let context = device.open()?;
        let pd = context.alloc_pd()?;
        let bytes = vec![0; OUTSTANDING * (RECORD + MESSAGE)].into_boxed_slice();
        let access = AccessFlags::LocalWrite | AccessFlags::RemoteWrite;
        // SAFETY: the memory lives as long as its registration: both are fields of the client.
        let mr = unsafe { pd.reg_mr(bytes.as_ptr() as usize, bytes.len(), access)? };
        // Not `build_ex`: rdma-core's rxe provider loses its place in an extended queue that is polled to its end.
        let cq = context.create_cq_builder().setup_cqe(4 * OUTSTANDING as u32).build()?;
        let handle = GenericCompletionQueue::from(Arc::clone(&cq));
        let mut builder = pd.create_qp_builder();
        builder.setup_send_cq(handle.clone()).setup_recv_cq(handle);
        builder.setup_max_send_wr(2 * OUTSTANDING as u32).setup_max_recv_wr(2 * OUTSTANDING as u32);
        let mut qp = builder.build_ex()?;
        join(&mut qp, &context, TcpStream::connect((server, SERVER_PORT))?)?;
        // As in `examples/chains/hash_table.h`.
        let shape = Shape { buckets: 1024, records: 512, record_size: RECORD as u64, ..Shape::default() };
        Ok(Self { qp, cq, mr, bytes, keys: Keys::new(shape) })
    }

    /// The answers of the server's chain, key by key.
    fn get(&mut self, keys: &[String]) -> Result<Vec<Answer>> {
        let mut answers = vec![Answer::Miss; keys.len()];
        let mut free: Vec<usize> = (0..OUTSTANDING).collect();
        // Key and place of each outstanding request, by the tag of its reply.
        let mut waiting = HashMap::new();
        let mut next = 0;
        while next < keys.len() || !waiting.is_empty() {
            while next < keys.len()
                && let Some(place) = free.pop()
            {
                waiting.insert(self.ask(keys[next].as_bytes(), place)?, (next, place));
                next += 1;
            }
            for (tag, length) in self.replies()? {
                // Another tag is that of a second reply to an earlier request.
                if let Some((key, place)) = waiting.remove(&tag) {
                    answers[key] = self.keys.reply(tag, &self.bytes[place * RECORD..][..length]);
                    free.push(place);
                }
            }
        }
        Ok(answers)
    }

    /// Asks for a key, whose reply comes to a place. Returns the reply's tag.
    fn ask(&mut self, key: &[u8], place: usize) -> Result<u32> {
        let start = self.bytes.as_ptr() as u64;
        let message = self.keys.request(key, Buffer { addr: start + (place * RECORD) as u64, rkey: self.mr.rkey() })?;
        let at = OUTSTANDING * RECORD + place * MESSAGE;
        self.bytes[at..][..message.len()].copy_from_slice(&message);
        // The reply is a WRITE with immediate data, which takes a receive request.
        let mut receives = self.qp.start_post_recv();
        // SAFETY: no byte is received there.
        unsafe { receives.construct_wr(0).setup_sge(self.mr.lkey(), start, 0) };
        receives.post()?;
        let mut sends = self.qp.start_post_send();
        let send = sends.construct_wr(0, WorkRequestFlags::none()).setup_send();
        // SAFETY: the memory lives, and the message stays as it is until its place is free again.
        unsafe { send.setup_sge(self.mr.lkey(), start + at as u64, message.len() as u32) };
        sends.post()?;
        Ok(self.keys.tag())
    }

    /// The replies that have come: tag and length.
    fn replies(&self) -> Result<Vec<(u32, usize)>> {
        let Ok(completions) = self.cq.start_poll() else {
            // There may be fewer processors than programs that poll.
            std::thread::yield_now();
            return Ok(Vec::new());
        };
        let mut replies = Vec::new();
        for completion in completions {
            if completion.status() != 0 {
                return Err(format!("the request ended with status {}", completion.status()).into());
            }
            replies.push((completion.imm_data(), completion.byte_len() as usize));
        }
        Ok(replies)
    }
}

/// Tells the server of us, as `examples/chains/connect.h` does, and brings the queue pair to the state in which it sends.
fn join(qp: &mut ExtendedQueuePair, context: &DeviceContext, mut stream: TcpStream) -> Result<()> {
    let gid = u128::from_be_bytes(context.query_gid(PORT, GID_INDEX.into())?.raw);
    writeln!(stream, "{:x} {gid:032x}", qp.qp_number())?;
    let mut line = String::new();
    let mut reader = BufReader::new(stream.try_clone()?);
    reader.read_line(&mut line)?;
    let (number, gid) = line.trim().split_once(' ').ok_or("the server has gone")?;
    let gid = Gid { raw: u128::from_str_radix(gid, 16)?.to_be_bytes() };

    let mut init = QueuePairAttribute::new();
    init.setup_state(QueuePairState::Init).setup_pkey_index(0).setup_port(PORT);
    init.setup_access_flags(AccessFlags::LocalWrite | AccessFlags::RemoteWrite);
    qp.modify(&init)?;

    let mut way = AddressHandleAttribute::new();
    way.setup_port(PORT).setup_grh_src_gid_index(GID_INDEX).setup_grh_dest_gid(&gid).setup_grh_hop_limit(64);
    let mut receive = QueuePairAttribute::new();
    receive.setup_state(QueuePairState::ReadyToReceive).setup_path_mtu(Mtu::Mtu1024);
    receive.setup_dest_qp_num(u32::from_str_radix(number, 16)?).setup_rq_psn(0).setup_address_vector(&way);
    receive.setup_max_dest_read_atomic(1).setup_min_rnr_timer(1);
    qp.modify(&receive)?;

    let mut send = QueuePairAttribute::new();
    send.setup_state(QueuePairState::ReadyToSend).setup_sq_psn(0).setup_max_read_atomic(1);
    send.setup_timeout(14).setup_retry_cnt(7).setup_rnr_retry(7);
    qp.modify(&send)?;
    // Both ends are ready when each has said so.
    stream.write_all(b".")?;
    Ok(reader.read_exact(&mut [0])?)
}
