//! Figures in the output of programs.

/// Figure of a row, and its place in the client's output.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Unit of what `read` returns.
    pub unit: Unit,
    /// The figure in the client's output.
    pub read: fn(&str) -> Option<f64>,
}

/// Units of figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Microseconds, of a message one way or of an operation.
    Microseconds,
    /// 10^6 bytes per second.
    MegabytesPerSecond,
    /// Operations per second.
    PerSecond,
}

impl Unit {
    /// As printed behind a figure.
    pub fn name(self) -> &'static str {
        match self {
            Self::Microseconds => "µs",
            Self::MegabytesPerSecond => "MB/s",
            Self::PerSecond => "/s",
        }
    }
}

/// The last number on the last line that begins with `start`, from its `column`th word on counted from the end.
fn from_end(text: &str, start: &str, column: usize) -> Option<f64> {
    let line = text.lines().rev().find(|line| line.trim_start().starts_with(start))?;
    line.split_whitespace().rev().nth(column)?.parse().ok()
}

/// librdmacm's streams: `64k_bw 64k 1 1k 125m 0.40s 2.63 199.06`, the last two Gbit/s and microseconds.
pub(super) fn stream_rate(text: &str) -> Option<f64> {
    ["64k_bw", "custom", "4k"].iter().find_map(|start| from_end(text, start, 1)).map(|gigabits| gigabits * 125.0)
}

/// cmtime: `connect : 278.32 242.07 8337.00 2783.21`, microseconds, the first is the average of one.
pub(super) fn connect_time(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with("connect "))?;
    line.split_once(':')?.1.split_whitespace().next()?.parse().ok()
}

/// A bandwidth of perftest, average, which counts in 2^20 bytes.
pub(super) fn perftest_rate(text: &str) -> Option<f64> {
    crate::bandwidth_rows(text).first().map(|row| row.figures[1] * 1.048_576)
}

/// A latency of perftest, typical.
pub(super) fn perftest_time(text: &str) -> Option<f64> {
    crate::latency_rows(text).first().map(|row| row.figures[2])
}

/// qperf with `-uu`: `bw = 1157693440 bytes/sec`.
pub(super) fn qperf_rate(text: &str) -> Option<f64> {
    qperf(text, &["bw", "recv_bw"]).map(|bytes| bytes / 1e6)
}

/// qperf with `-uu`: `latency = 28954 ns`.
pub(super) fn qperf_time(text: &str) -> Option<f64> {
    qperf(text, &["latency"]).map(|nanoseconds| nanoseconds / 1e3)
}

/// qperf with `-uu`: `msg_rate = 38690 /sec`.
pub(super) fn qperf_messages(text: &str) -> Option<f64> {
    qperf(text, &["msg_rate"])
}

fn qperf(text: &str, names: &[&str]) -> Option<f64> {
    let lines = text.lines().filter_map(|line| line.split_once('='));
    let mut found = lines.filter(|(name, _)| names.contains(&name.trim()));
    found.next()?.1.split_whitespace().next()?.replace(',', "").parse().ok()
}

/// ucx_perftest's last line: iterations, typical, average and overall time, then two bandwidths in 2^20 bytes.
pub(super) fn ucx_rate(text: &str) -> Option<f64> {
    ucx(text, 5).map(|mebibytes| mebibytes * 1.048_576)
}

/// The same line's typical time.
pub(super) fn ucx_time(text: &str) -> Option<f64> {
    ucx(text, 1)
}

fn ucx(text: &str, column: usize) -> Option<f64> {
    let last = text.lines().rev().find_map(|line| line.trim().strip_prefix("Final:"))?;
    last.split_whitespace().nth(column)?.parse().ok()
}

/// fi_pingpong: `64k 10 =10 1.2m 0.00s 829.04 79.05 0.01`, the time of a transfer of the smallest size.
pub(super) fn libfabric_time(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.contains(" =") && line.contains('k') || line.starts_with("64 "))?;
    line.split_whitespace().rev().nth(1)?.parse().ok()
}

/// iperf: `[  1] 0.0000-2.0009 sec 11.8 GBytes 50.5 Gbits/sec`.
pub(super) fn iperf_rate(text: &str) -> Option<f64> {
    let line = text.lines().rev().find(|line| line.ends_with("bits/sec"))?;
    let mut words = line.split_whitespace().rev();
    let factor = match words.next()? {
        "Gbits/sec" => 125.0,
        "Mbits/sec" => 0.125,
        _ => return None,
    };
    Some(words.next()?.parse::<f64>().ok()? * factor)
}

/// NetPIPE: `81: 65539 bytes 20 times --> 44551.21 Mbps in 11.22 usec`, the last and largest; Mbps are of 2^20 bits.
pub(super) fn netpipe_rate(text: &str) -> Option<f64> {
    let line = text.lines().rev().find(|line| line.contains("-->"))?;
    let megabits: f64 = line.split_once("-->")?.1.split_whitespace().next()?.parse().ok()?;
    Some(megabits * 1.048_576 / 8.0)
}

/// Our own programs: `…: 5.3 us each way`.
pub(super) fn each_way(text: &str) -> Option<f64> {
    text.split_once(" us each way")?.0.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found() {
        assert_eq!(
            stream_rate("64_bw 64 1 1k 1m 0.4s 2.6 199\n64k_bw  64k 1 1k 125m 0.40s 8.00 199.06\n"),
            Some(1000.0)
        );
        assert_eq!(connect_time("connect      :      208.18     206.18   10048.00    2081.81\n"), Some(208.18));
        assert_eq!(qperf_rate("rc_bw:\n    bw  =  1157693440 bytes/sec\n"), Some(1_157.693_44));
        assert_eq!(qperf_time("rc_lat:\n    latency  =  28954 ns\n"), Some(28.954));
        assert_eq!(iperf_rate("[  1] 0.0000-2.0009 sec  11.8 GBytes  8.0 Gbits/sec\n"), Some(1000.0));
        assert_eq!(each_way("1000 rounds, all of them right: 56.0 us each way\n"), Some(56.0));
    }
}
