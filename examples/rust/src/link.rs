//! Reliable connection: one end, with a block of memory that the other end writes into.

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::address::{AddressHandleAttribute, Gid};
use sideway::ibverbs::completion::{BasicCompletionQueue, GenericCompletionQueue};
use sideway::ibverbs::device::{Device, DeviceInfo, DeviceList};
use sideway::ibverbs::device_context::Mtu;
use sideway::ibverbs::memory_region::MemoryRegion;
use sideway::ibverbs::queue_pair::{
    ExtendedQueuePair, PostSendGuard, QueuePair, QueuePairAttribute, QueuePairState, SetInlineData,
    SetScatterGatherEntry, WorkRequestFlags,
};
use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

/// Bytes that are written in one go.
pub const BLOCK: usize = 4096;
/// Bytes of a SEND.
const WORD: usize = 8;

const WRITE: u64 = 1;
const TELL: u64 = 2;
const TOLD: u64 = 3;
/// GID 0 is the link-local address, 1 the IPv4 one.
const GID_INDEX: u8 = 1;
const PORT: u8 = 1;

/// A connected queue pair and its memory.
pub struct Link {
    qp: ExtendedQueuePair,
    cq: Arc<BasicCompletionQueue>,
    out: Region,
    /// For the other end's block, and behind it for its word that the block is there.
    place: Region,
    /// Key and address of the other end's `place`.
    target: (u32, u64),
    /// Completions that came while another one was awaited.
    early: Vec<u64>,
}

/// Memory that the device may access.
struct Region {
    mr: Arc<MemoryRegion>,
    bytes: Box<[u8]>,
}

impl Link {
    /// Makes a queue pair and connects it with the one at the other end of `stream`.
    pub fn connect(stream: &TcpStream) -> Result<Self, Box<dyn Error>> {
        let devices = DeviceList::new()?;
        let device: Device = devices.iter().next().ok_or("there is no RDMA device: is this run by `rdmesh run`?")?;
        println!("device {}", device.name());
        let context = device.open()?;
        let pd = context.alloc_pd()?;
        let region = || -> Result<Region, Box<dyn Error>> {
            let bytes = vec![0; BLOCK + WORD].into_boxed_slice();
            let access = AccessFlags::LocalWrite | AccessFlags::RemoteWrite;
            // SAFETY: the memory lives as long as its registration, see `Region`.
            let mr = unsafe { pd.reg_mr(bytes.as_ptr() as usize, bytes.len(), access)? };
            Ok(Region { mr, bytes })
        };
        let (out, place) = (region()?, region()?);
        // Not `build_ex`: rdma-core's rxe provider loses its place in an extended queue that is polled to its end.
        let cq = context.create_cq_builder().setup_cqe(16).build()?;
        let handle = GenericCompletionQueue::from(Arc::clone(&cq));
        let mut builder = pd.create_qp_builder();
        builder.setup_send_cq(handle.clone()).setup_recv_cq(handle);
        builder.setup_max_send_wr(4).setup_max_recv_wr(4).setup_max_inline_data(WORD as u32);
        let qp = builder.build_ex()?;
        let mut link = Self { qp, cq, out, place, target: (0, 0), early: Vec::new() };
        let gid = context.query_gid(PORT, GID_INDEX.into())?;
        link.join(stream, gid)?;
        Ok(link)
    }

    /// Tells the other end of us, and brings the queue pair to the state in which it sends.
    fn join(&mut self, mut stream: &TcpStream, gid: Gid) -> Result<(), Box<dyn Error>> {
        stream.write_all(&self.qp.qp_number().to_be_bytes())?;
        stream.write_all(&gid.raw)?;
        stream.write_all(&self.place.mr.rkey().to_be_bytes())?;
        stream.write_all(&(self.place.bytes.as_ptr() as u64).to_be_bytes())?;
        let remote_qpn = u32::from_be_bytes(read(stream)?);
        let remote_gid = Gid { raw: read(stream)? };
        self.target = (u32::from_be_bytes(read(stream)?), u64::from_be_bytes(read(stream)?));

        let mut init = QueuePairAttribute::new();
        init.setup_state(QueuePairState::Init).setup_pkey_index(0).setup_port(PORT);
        init.setup_access_flags(AccessFlags::LocalWrite | AccessFlags::RemoteWrite);
        self.qp.modify(&init)?;
        self.expect_word()?;

        let mut way = AddressHandleAttribute::new();
        way.setup_port(PORT).setup_grh_src_gid_index(GID_INDEX).setup_grh_dest_gid(&remote_gid);
        way.setup_grh_hop_limit(64);
        let mut receive = QueuePairAttribute::new();
        receive.setup_state(QueuePairState::ReadyToReceive).setup_path_mtu(Mtu::Mtu1024);
        receive.setup_dest_qp_num(remote_qpn).setup_rq_psn(0).setup_address_vector(&way);
        receive.setup_max_dest_read_atomic(1).setup_min_rnr_timer(12);
        self.qp.modify(&receive)?;

        let mut send = QueuePairAttribute::new();
        send.setup_state(QueuePairState::ReadyToSend).setup_sq_psn(0).setup_max_read_atomic(1);
        send.setup_timeout(14).setup_retry_cnt(7).setup_rnr_retry(7);
        self.qp.modify(&send)?;
        wait_for_each_other(stream)
    }

    /// Writes the block of `number` into the other end's memory, then sends it the number.
    pub fn write_and_tell(&mut self, number: u64) -> Result<(), Box<dyn Error>> {
        self.out.bytes.iter_mut().zip(pattern(number)).for_each(|(byte, value)| *byte = value);
        let (rkey, address) = self.target;
        let (lkey, from) = (self.out.mr.lkey(), self.out.bytes.as_ptr() as u64);
        let mut requests = self.qp.start_post_send();
        let write = requests.construct_wr(WRITE, WorkRequestFlags::Signaled).setup_write(rkey, address);
        // SAFETY: the memory lives, and stays as it is until the completion that is awaited below.
        unsafe { write.setup_sge(lkey, from, BLOCK as u32) };
        let tell = requests.construct_wr(TELL, WorkRequestFlags::Signaled | WorkRequestFlags::Inline).setup_send();
        tell.setup_inline_data(&number.to_be_bytes());
        requests.post()?;
        self.wait(WRITE)?;
        self.wait(TELL)
    }

    /// Waits for the word that the block of `number` is here, and checks every byte of it.
    pub fn wait_and_check(&mut self, number: u64) -> Result<(), Box<dyn Error>> {
        self.wait(TOLD)?;
        let wrong = self.place.bytes.iter().zip(pattern(number)).position(|(byte, value)| *byte != value);
        match wrong {
            Some(place) => Err(format!("block {number} differs at byte {place}").into()),
            None => self.expect_word(),
        }
    }

    /// Leaves only after the other end is done too.
    pub fn close(self, stream: TcpStream) -> Result<(), Box<dyn Error>> {
        wait_for_each_other(&stream)?;
        Ok(stream.shutdown(Shutdown::Both)?)
    }

    /// Posts a receive for the other end's next SEND.
    fn expect_word(&mut self) -> Result<(), Box<dyn Error>> {
        let mut receives = self.qp.start_post_recv();
        let receive = receives.construct_wr(TOLD);
        let word = self.place.bytes[BLOCK..].as_ptr() as u64;
        // SAFETY: the memory lives, and no other code reads these bytes.
        unsafe { receive.setup_sge(self.place.mr.lkey(), word, WORD as u32) };
        Ok(receives.post()?)
    }

    /// Polls until the work request `id` is done.
    fn wait(&mut self, id: u64) -> Result<(), Box<dyn Error>> {
        loop {
            if let Some(place) = self.early.iter().position(|early| *early == id) {
                self.early.swap_remove(place);
                return Ok(());
            }
            let Ok(completions) = self.cq.start_poll() else {
                // There may be fewer processors than programs that poll.
                std::thread::yield_now();
                continue;
            };
            for completion in completions {
                if completion.status() != 0 {
                    return Err(
                        format!("request {} ended with status {}", completion.wr_id(), completion.status()).into()
                    );
                }
                self.early.push(completion.wr_id());
            }
        }
    }
}

/// The bytes of block `number`.
fn pattern(number: u64) -> impl Iterator<Item = u8> {
    (0..BLOCK as u64).map(move |i| (number.wrapping_mul(31) + i * 7 + i / 256) as u8)
}

fn read<const N: usize>(mut stream: &TcpStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn wait_for_each_other(mut stream: &TcpStream) -> Result<(), Box<dyn Error>> {
    stream.write_all(b"!")?;
    read::<1>(stream)?;
    Ok(())
}
