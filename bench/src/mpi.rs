//! MPI: messages of each size, collective operations and a search of graphs, by Open MPI over TCP, with `rdmesh mpi` and without, and over UCX on the device.

use crate::goals::{Goal, goal};
use crate::report::number;
use crate::results::{Results, Unit};
use rdmesh_tests::mpi::{Machines, Mpi, under_rdmesh};
use rdmesh_tests::{Hosts, Lab, Pair};
use std::fmt::Write;
use std::time::Duration;

/// Groups of figures: two ranks that exchange messages, two in collective operations, four that search a graph.
pub(crate) const ONE_HOST: [&str; 3] = ["MPI, one host", "Collective operations, one host", "Graph search, one host"];
pub(crate) const TWO_HOSTS: [&str; 3] =
    ["MPI, two hosts", "Collective operations, two hosts", "Graph search, two hosts"];

/// What the messages go by.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Tcp,
    Rdmesh,
    Ucx,
}

pub(crate) const WAYS: [Way; 3] = [Way::Tcp, Way::Rdmesh, Way::Ucx];

impl Way {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Rdmesh => "TCP under `rdmesh mpi`",
            Self::Ucx => "UCX on the device",
        }
    }

    fn run(self, machines: &Machines<'_>, each: u32, program: &str, options: &[String]) -> String {
        let mpi = if self == Self::Ucx { Mpi::OpenMpiOverUcx } else { Mpi::OpenMpi };
        let program = mpi.program(program);
        let command: Vec<&str> = [program.as_str()].into_iter().chain(options.iter().map(String::as_str)).collect();
        let before: &[&str] = if self == Self::Rdmesh { &under_rdmesh() } else { &[] };
        machines.start(mpi, before, each, &command).finish(LIMIT).ok().text
    }
}

/// Between two endpoints of one host.
pub(crate) fn measure_one_host(results: &mut Results, effort: f64) {
    let lab = Lab::start();
    measure(results, &Machines::of(Pair::of(&lab), "10.7.0.3"), ONE_HOST, effort);
}

/// Between endpoints of two hosts.
pub(crate) fn measure_two_hosts(results: &mut Results, effort: f64) {
    let hosts = Hosts::start();
    measure(results, &Machines::of(hosts.pair(), &Hosts::ip(1)), TWO_HOSTS, effort);
}

fn measure(results: &mut Results, machines: &Machines<'_>, groups: [&str; 3], effort: f64) {
    let [messages, operations, searches] = groups;
    for way in WAYS {
        let rounds = ((800.0 * effort) as u32).to_string();
        for Size { name, microseconds, rate } in sizes(&way.run(machines, 1, "sizes", &[rounds])) {
            results.add(messages, &latency(&name, way), Unit::Microseconds, microseconds);
            results.add(messages, &format!("{name}, a stream, {}", way.name()), Unit::MegabytesPerSecond, rate);
        }
    }
    for way in WAYS {
        let rounds = ((40.0 * effort) as u32).max(2).to_string();
        for (name, microseconds) in times_of_operations(&way.run(machines, 1, "operations", &[rounds])) {
            results.add(operations, &format!("{name}, {}", way.name()), Unit::Microseconds, microseconds);
        }
    }
    let scale = if effort < 1.0 { 10 } else { 17 };
    for aggregation in AGGREGATIONS {
        for way in WAYS {
            let options = [scale, 16, aggregation, 4].map(|number: u32| number.to_string());
            let Some([seconds, share]) = search(&way.run(machines, 2, "bfs", &options)) else { continue };
            let name = |what: &str| format!("{} KiB, {what}, {}", aggregation >> 10, way.name());
            results.add(searches, &name("time"), Unit::Milliseconds, seconds * 1e3);
            results.add(searches, &name(IN_MPI), Unit::Milliseconds, seconds * share * 1e3);
        }
    }
}

/// Bytes of a graph search's messages.
const AGGREGATIONS: [u32; 3] = [4 << 10, 64 << 10, 1 << 20];
const IN_MPI: &str = "of it in MPI";

/// Times of messages by their length in bytes.
pub(crate) fn times(results: &Results, group: &str, way: Way) -> Vec<(f64, f64)> {
    let ending = format!(", each way, {}", way.name());
    let of_group = results.figures.iter().filter(|figure| figure.group == group);
    let times = of_group.filter_map(|figure| {
        let (number, unit) = figure.name.strip_suffix(&ending)?.split_once(' ')?;
        let scale = match unit {
            "B" => 1.0,
            "KiB" => 1024.0,
            _ => 1_048_576.0,
        };
        Some((number.parse::<f64>().ok()? * scale, figure.median))
    });
    times.collect()
}

fn latency(size: &str, way: Way) -> String {
    format!("{size}, each way, {}", way.name())
}

/// A row of the program `sizes`.
struct Size {
    name: String,
    microseconds: f64,
    rate: f64,
}

fn sizes(text: &str) -> Vec<Size> {
    let row = |line: &str| {
        let [bytes, microseconds, rate] = line.split(' ').collect::<Vec<_>>()[..] else { return None };
        let name = length(bytes.parse().ok()?);
        Some(Size { name, microseconds: microseconds.parse().ok()?, rate: rate.parse().ok()? })
    };
    text.lines().filter_map(row).collect()
}

fn length(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

/// Operations with their lengths, and microseconds, of an output of the program `operations`.
fn times_of_operations(text: &str) -> Vec<(String, f64)> {
    let row = |line: &str| {
        let [name, bytes, microseconds] = line.split(' ').collect::<Vec<_>>()[..] else { return None };
        let length = length(bytes.parse().ok()?);
        name.starts_with("MPI_").then_some((format!("{name} of {length}"), microseconds.parse().ok()?))
    };
    text.lines().filter_map(row).collect()
}

/// Seconds, and the share of them in MPI, of an output of the program `bfs`.
fn search(text: &str) -> Option<[f64; 2]> {
    let row = |line: &str| {
        let numbers: Vec<f64> = line.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
        let [seconds, share, _] = numbers[..] else { return None };
        Some([seconds, share])
    };
    text.lines().find_map(row)
}

/// Figures against their bounds: much faster on one host, and nowhere slower.
pub(crate) fn judge(results: &Results) -> Vec<Option<Goal>> {
    let bounds = [(ONE_HOST, "one host", [("1 MiB", 4.0), ("64 KiB", 1.67), ("16 KiB", 0.95), ("1 KiB", 0.95)])]
        .into_iter()
        .chain([(TWO_HOSTS, "two hosts", [("1 MiB", 0.95), ("64 KiB", 0.95), ("16 KiB", 0.95), ("1 KiB", 0.95)])]);
    let mut goals = Vec::new();
    for ([messages, operations, searches], host, sizes) in bounds {
        for (size, bound) in sizes {
            let [tcp, rdmesh] = [Way::Tcp, Way::Rdmesh].map(|way| results.median(messages, &latency(size, way)));
            let ratio = Some(()).and_then(|()| Some(tcp? / rdmesh?));
            goals.push(goal(&format!("{host}: MPI message of {size}, TCP / `rdmesh mpi`"), ratio, bound, true));
        }
        for operation in ["MPI_Bcast", "MPI_Allreduce", "MPI_Alltoall"] {
            let time = |way: Way| results.median(operations, &format!("{operation} of 1 MiB, {}", way.name()));
            let ratio = Some(()).and_then(|()| Some(time(Way::Tcp)? / time(Way::Rdmesh)?));
            let bound = if host == "one host" { 2.0 } else { 0.95 };
            goals.push(goal(&format!("{host}: {operation} of 1 MiB, TCP / `rdmesh mpi`"), ratio, bound, true));
        }
        let in_mpi = |way: Way| results.median(searches, &format!("1024 KiB, {IN_MPI}, {}", way.name()));
        let share = Some(()).and_then(|()| Some(in_mpi(Way::Rdmesh)? / in_mpi(Way::Tcp)?));
        let bound = if host == "one host" { 0.7 } else { 1.05 };
        let what = format!("{host}: time in MPI of a graph search, messages of 1 MiB, `rdmesh mpi` / TCP");
        goals.push(goal(&what, share, bound, false));
    }
    goals
}

/// Tables for the page: a row for each size, a column for each way.
pub(crate) fn page(results: &Results) -> String {
    let mut text = String::from("\n![Time of a message by its size](mpi.svg)\n");
    for group in [ONE_HOST, TWO_HOSTS].concat() {
        let ways = WAYS.map(Way::name);
        let _ = writeln!(text, "\n| {group} | {} |\n|---|---|---|---|", ways.join(" | "));
        let ending = format!(", {}", Way::Tcp.name());
        let of_group = results.figures.iter().filter(|figure| figure.group == group);
        for figure in of_group {
            let Some(what) = figure.name.strip_suffix(&ending) else { continue };
            let cell = |way: &str| {
                let found = results.median(group, &format!("{what}, {way}"));
                found.map_or("–".to_owned(), |value| format!("{} {}", number(value), figure.unit.name()))
            };
            let _ = writeln!(text, "| {what} | {} |", ways.map(cell).join(" | "));
        }
    }
    text
}

const LIMIT: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_the_programs_are_understood() {
        let found = sizes("8 16.4 3\n1048576 54.9 12767\nrdmesh mpi: messages of 2 ranks, from one to another:\n");
        let names: Vec<_> = found.iter().map(|size| (size.name.as_str(), size.microseconds, size.rate)).collect();
        assert_eq!(names, [("8 B", 16.4, 3.0), ("1 MiB", 54.9, 12767.0)]);
        let mut results = Results::new("", 1);
        for size in found {
            results.add(ONE_HOST[0], &latency(&size.name, Way::Ucx), Unit::Microseconds, size.microseconds);
        }
        assert_eq!(times(&results, ONE_HOST[0], Way::Ucx), [(8.0, 16.4), (1_048_576.0, 54.9)]);
        let operations =
            times_of_operations("MPI_Bcast 65536 20.5\nrdmesh mpi: messages\nMPI_Alltoall 1048576 300.0\n");
        assert_eq!(operations, [("MPI_Bcast of 64 KiB".to_owned(), 20.5), ("MPI_Alltoall of 1 MiB".to_owned(), 300.0)]);
        assert_eq!(search("0.0350 0.128 59978726\n"), Some([0.0350, 0.128]));
    }
}
