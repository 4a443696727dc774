//! The launcher's side of a job: it takes the ranks' connections, passes their frames on, and adds up their reports.

mod measuring;

use crate::control::{Frame, Job, Kind, Ready};
use crate::report::Report;
use measuring::{Measuring, Order};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// A job whose ranks may join.
#[derive(Debug)]
pub struct Launcher {
    job: Job,
    ranks: Arc<Mutex<Ranks>>,
}

#[derive(Debug, Default)]
struct Ranks {
    /// Those that are connected now.
    connected: HashMap<Member, Connected>,
    /// Ranks of each world that have joined, those that have left among them.
    joined: HashMap<Arc<str>, u32>,
    measuring: HashMap<Arc<str>, Measuring>,
    report: Report,
}

#[derive(Debug)]
struct Connected {
    /// Where to put frames for it.
    outlet: Sender<Frame>,
    /// How many ranks its world has.
    size: u32,
    /// How far it has come in leaving, and how far it was told that all have.
    leaving: u8,
    told: u8,
}

/// A rank of one of the worlds that were started under this launcher, one after the other or at the same time.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Member {
    world: Arc<str>,
    rank: u32,
}

impl Launcher {
    /// Listens at a free port of all addresses of this network namespace.
    pub fn start() -> io::Result<Self> {
        let listener =
            TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)))?;
        let mut secret = [0; 16];
        rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())?;
        let job = Job { addresses: own_addresses(), port: listener.local_addr()?.port(), secret };
        let ranks = Arc::default();
        let launcher = Self { job: job.clone(), ranks: Arc::clone(&ranks) };
        thread::Builder::new().name("ranks".to_owned()).spawn(move || {
            for stream in listener.incoming().flatten() {
                let (job, ranks) = (job.clone(), Arc::clone(&ranks));
                // A rank without a thread does without the launcher: its messages go MPI's own way.
                let _ = thread::Builder::new().name("rank".to_owned()).spawn(move || serve(stream, &job, &ranks));
            }
        })?;
        Ok(launcher)
    }

    /// What the ranks' environment says of the job.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// How the messages of the ranks that have ended went.
    pub fn report(&self) -> Report {
        lock(&self.ranks).report.clone()
    }
}

/// Passes on what a rank sends, until it ends.
fn serve(mut stream: TcpStream, job: &Job, ranks: &Mutex<Ranks>) {
    let Some((member, size)) = Frame::read(&mut stream).ok().and_then(|frame| joined(&frame, job)) else { return };
    let Ok(writer) = stream.set_nodelay(true).and_then(|()| stream.try_clone()) else { return };
    let (outlet, frames) = channel::<Frame>();
    let connected = Connected { outlet: outlet.clone(), size, leaving: 0, told: 0 };
    lock(ranks).join(member.clone(), connected);
    let spawned = thread::Builder::new().name("rank-writer".to_owned()).spawn(move || {
        let mut writer = writer;
        while let Ok(frame) = frames.recv() {
            if frame.write(&mut writer).is_err() {
                return;
            }
        }
    });
    while let (Ok(_), Ok(frame)) = (&spawned, Frame::read(&mut stream)) {
        pass_on(frame, &member, ranks, &outlet);
    }
    lock(ranks).part(&member);
}

/// The rank that a first frame tells of, if it knows the secret, and the number of ranks of its world.
fn joined(frame: &Frame, job: &Job) -> Option<(Member, u32)> {
    let (secret, rest) = frame.body.split_at_checked(job.secret.len())?;
    let (&size, world) = rest.split_first_chunk()?;
    let is_right = frame.kind == Kind::Join && secret == job.secret;
    is_right
        .then(|| (Member { world: String::from_utf8_lossy(world).into(), rank: frame.rank }, u32::from_le_bytes(size)))
}

fn pass_on(frame: Frame, from: &Member, ranks: &Mutex<Ranks>, outlet: &Sender<Frame>) {
    let mut ranks = lock(ranks);
    match frame.kind {
        Kind::Report => {
            if let Some(report) = Report::parse(&frame.body) {
                ranks.report.add(&report);
            }
        }
        Kind::Leaving => {
            let is_whole = ranks.is_whole(from);
            if let (Some(connected), Some(&stage)) = (ranks.connected.get_mut(from), frame.body.first()) {
                connected.leaving = stage;
                let told = if is_whole { connected.told } else { ALONE };
                let _ = outlet.send(Frame::new(Kind::Leaving, 0, vec![told]));
            }
            ranks.tell_who_leave(&from.world);
        }
        Kind::Ready => {
            ranks.measure(from, |measuring, size| measuring.on_ready(from.rank, Ready::parse(&frame.body), size))
        }
        Kind::Measured => {
            let threshold = frame.body.as_array().map_or(u64::MAX, |&bytes| u64::from_le_bytes(bytes));
            ranks.measure(from, |measuring, _| measuring.on_measured(from.rank, threshold));
        }
        kind => {
            let rank = frame.rank;
            let to = ranks.connected.get(&Member { world: Arc::clone(&from.world), rank });
            let passed = to.is_some_and(|to| to.outlet.send(Frame { rank: from.rank, ..frame }).is_ok());
            if !passed && kind == Kind::Hello {
                let _ = outlet.send(Frame::new(Kind::Absent, rank, Vec::new()));
            }
        }
    }
}

impl Ranks {
    fn join(&mut self, member: Member, connected: Connected) {
        *self.joined.entry(Arc::clone(&member.world)).or_default() += 1;
        self.connected.insert(member, connected);
    }

    fn part(&mut self, member: &Member) {
        self.measure(member, |measuring, _| measuring.on_part());
        self.connected.remove(member);
        if !self.connected.keys().any(|other| other.world == member.world) {
            self.joined.remove(&member.world);
            self.measuring.remove(&member.world);
        }
        // The others wait no longer for it.
        self.tell_who_leave(&member.world);
    }

    /// Whether all ranks of its world have joined.
    fn is_whole(&self, member: &Member) -> bool {
        let size = self.connected.get(member).map_or(0, |connected| connected.size);
        self.joined.get(&member.world).is_some_and(|&joined| joined >= size)
    }

    /// Goes on with the measuring of a rank's world, and tells ranks what follows.
    fn measure(&mut self, from: &Member, step: impl FnOnce(&mut Measuring, u32) -> Vec<Order>) {
        let size = self.connected.get(from).map_or(0, |connected| connected.size);
        let measuring = self.measuring.entry(Arc::clone(&from.world)).or_insert_with(Measuring::new);
        let orders = step(measuring, size);
        self.report.measured = measuring.result().or(self.report.measured);
        for order in orders {
            let (rank, frame) = match order {
                Order::Measure { rank, with, is_first } => {
                    (rank, Frame::new(Kind::Measure, with, vec![is_first.into()]))
                }
                Order::GoOn { rank, start } => (rank, Frame::new(Kind::Start, 0, start.to_bytes())),
            };
            if let Some(to) = self.connected.get(&Member { world: Arc::clone(&from.world), rank }) {
                let _ = to.outlet.send(frame);
            }
        }
    }

    /// Tells the ranks of a world how far all of them have come in leaving.
    fn tell_who_leave(&mut self, world: &str) {
        let of_world = self.connected.iter_mut().filter(|(member, _)| *member.world == *world);
        let mut of_world: Vec<&mut Connected> = of_world.map(|(_, connected)| connected).collect();
        let all = of_world.iter().map(|connected| connected.leaving).min().unwrap_or(0);
        for connected in of_world.iter_mut().filter(|connected| connected.told < all) {
            connected.told = all;
            let _ = connected.outlet.send(Frame::new(Kind::Leaving, 0, vec![all]));
        }
    }
}

/// Answer to a rank some of whose world have not joined: it waits for nobody.
const ALONE: u8 = u8::MAX;

/// Addresses of this network namespace, from `/proc/net`; the loopback's only where there is no other.
fn own_addresses() -> Vec<IpAddr> {
    let read = |file| std::fs::read_to_string(file).unwrap_or_default();
    let v4 = v4_addresses(&read("/proc/net/fib_trie")).into_iter().map(IpAddr::from);
    let v6 = v6_addresses(&read("/proc/net/if_inet6")).into_iter().map(IpAddr::from);
    let addresses: Vec<_> = v4.chain(v6).filter(|address| !address.is_loopback()).collect();
    if addresses.is_empty() { vec![Ipv4Addr::LOCALHOST.into()] } else { addresses }
}

/// The addresses of the table of local routes: the line before each `/32 host LOCAL`.
fn v4_addresses(trie: &str) -> Vec<Ipv4Addr> {
    let lines: Vec<_> = trie.lines().collect();
    let local = lines.windows(2).filter(|two| two[1].contains("/32 host LOCAL"));
    let mut found: Vec<Ipv4Addr> =
        local.filter_map(|two| two[0].trim_start_matches([' ', '|', '-', '+']).trim().parse().ok()).collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// The addresses with a scope beyond the link.
fn v6_addresses(table: &str) -> Vec<Ipv6Addr> {
    let address = |line: &str| {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        let [digits, _, _, "00", ..] = words[..] else { return None };
        u128::from_str_radix(digits, 16).ok().map(Ipv6Addr::from)
    };
    table.lines().filter_map(address).collect()
}

fn lock(ranks: &Mutex<Ranks>) -> MutexGuard<'_, Ranks> {
    ranks.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{Control, World};
    use std::time::Duration;

    const TRIE: &str = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     |-- 10.7.0.2\n        \
                        /32 host LOCAL\n     |-- 10.7.0.255\n        /32 link BROADCAST\n     |-- 127.0.0.1\n        /32 host LOCAL\n";

    #[test]
    fn addresses_are_those_of_the_namespace() {
        assert_eq!(
            v4_addresses(&format!("{TRIE}{TRIE}")),
            ["10.7.0.2", "127.0.0.1"].map(|text| text.parse::<Ipv4Addr>().unwrap())
        );
        let table =
            "fd000000000000000000000000000002 02 40 00 80 eth0\nfe800000000000000000000000000001 02 40 20 80 eth0\n";
        assert_eq!(v6_addresses(table), ["fd00::2".parse::<Ipv6Addr>().unwrap()]);
    }

    fn reader(control: &Control) -> TcpStream {
        let reader = control.reader().unwrap();
        reader.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        reader
    }

    #[test]
    fn frames_reach_the_rank_of_the_same_world_or_are_answered() {
        let launcher = Launcher::start().unwrap();
        let job = Job { addresses: vec![Ipv4Addr::LOCALHOST.into()], ..launcher.job().clone() };
        let mut zero = Control::join(&job, 0, World { name: "w", size: 3 }).unwrap();
        let mut elsewhere = Control::join(&job, 1, World { name: "another", size: 3 }).unwrap();
        zero.send(Kind::Hello, 1, b"first".to_vec()).unwrap();
        assert_eq!(Frame::read(&mut reader(&zero)).unwrap(), Frame::new(Kind::Absent, 1, Vec::new()));
        let one = Control::join(&job, 1, World { name: "w", size: 3 }).unwrap();
        // The launcher takes connections one after the other: the answer says that rank 1 has joined.
        let answer = loop {
            zero.send(Kind::Hello, 1, b"second".to_vec()).unwrap();
            let mut first = reader(&one);
            first.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            if let Ok(frame) = Frame::read(&mut first) {
                break frame;
            }
        };
        assert_eq!(answer, Frame::new(Kind::Hello, 0, b"second".to_vec()));
        elsewhere.send(Kind::Hello, 0, Vec::new()).unwrap();
        assert_eq!(Frame::read(&mut reader(&elsewhere)).unwrap().kind, Kind::Absent);
    }

    #[test]
    fn ranks_leave_when_all_have_come_as_far_or_are_gone() {
        let launcher = Launcher::start().unwrap();
        let job = Job { addresses: vec![Ipv4Addr::LOCALHOST.into()], ..launcher.job().clone() };
        let mut ranks = [0, 1, 2].map(|rank| Control::join(&job, rank, World { name: "w", size: 3 }).unwrap());
        while lock(&launcher.ranks).connected.len() < ranks.len() {
            thread::yield_now();
        }
        for rank in &mut ranks {
            rank.send(Kind::Leaving, 0, vec![1]).unwrap();
            assert_eq!(told(rank), 0);
        }
        assert_eq!(ranks.each_ref().map(told), [1; 3]);
        let [mut zero, one, mut two] = ranks;
        for rank in [&mut zero, &mut two] {
            rank.send(Kind::Leaving, 0, vec![2]).unwrap();
            assert_eq!(told(rank), 1);
        }
        let early = reader(&zero);
        early.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert!(Frame::read(&mut &early).is_err(), "rank 1 has not come");
        drop(one);
        assert_eq!([told(&zero), told(&two)], [2; 2]);
    }

    #[test]
    fn a_rank_leaves_alone_where_others_have_not_joined() {
        let launcher = Launcher::start().unwrap();
        let job = Job { addresses: vec![Ipv4Addr::LOCALHOST.into()], ..launcher.job().clone() };
        for _ in 0..2 {
            let mut one = Control::join(&job, 1, World { name: "", size: 2 }).unwrap();
            one.send(Kind::Leaving, 0, vec![1]).unwrap();
            assert_eq!(told(&one), ALONE);
            drop(one);
            // The next world may have the same name.
            while !lock(&launcher.ranks).connected.is_empty() {
                thread::yield_now();
            }
        }
    }

    /// How far all ranks have come in leaving, as a rank is told next.
    fn told(rank: &Control) -> u8 {
        let frame = Frame::read(&mut reader(rank)).unwrap();
        assert_eq!(frame.kind, Kind::Leaving);
        frame.body[0]
    }

    #[test]
    fn a_stranger_without_the_secret_is_not_heard() {
        let launcher = Launcher::start().unwrap();
        let wrong = Job { addresses: vec![Ipv4Addr::LOCALHOST.into()], secret: [7; 16], ..launcher.job().clone() };
        let mut stranger = Control::join(&wrong, 0, World { name: "w", size: 3 }).unwrap();
        let _ = stranger.send(Kind::Hello, 0, Vec::new());
        let answer = Frame::read(&mut reader(&stranger)).unwrap_err().kind();
        assert!(matches!(answer, io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset), "{answer}");
    }
}
