//! perftest output: the tables that its programs print.

/// One line of figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Bytes of a message.
    pub bytes: u64,
    /// Messages.
    pub iterations: u64,
    /// The columns after these two.
    pub figures: Vec<f64>,
}

/// Rows of a bandwidth test: `figures` are peak and average bandwidth in MiB/s, and million messages per second.
pub fn bandwidth_rows(text: &str) -> Vec<Row> {
    rows(text, 3)
}

/// Rows of a latency test by iterations: `figures` are minimum, maximum, typical, average, deviation and the 99 and
/// 99.9 percentiles in microseconds.
pub fn latency_rows(text: &str) -> Vec<Row> {
    rows(text, 7)
}

fn rows(text: &str, columns: usize) -> Vec<Row> {
    text.lines().filter_map(|line| row(line, columns)).collect()
}

fn row(line: &str, columns: usize) -> Option<Row> {
    let mut fields = line.split_whitespace();
    let bytes = fields.next()?.parse().ok()?;
    let iterations = fields.next()?.parse().ok()?;
    let figures = fields.map(|f| f.parse().ok()).collect::<Option<Vec<f64>>>()?;
    (figures.len() == columns).then_some(Row { bytes, iterations, figures })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bandwidth_table_is_read() {
        let text = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                    65536      5000             5000.10            4990.53 \t\t   0.079849\n-----\n";
        let rows = bandwidth_rows(text);
        assert_eq!(rows, [Row { bytes: 65536, iterations: 5000, figures: vec![5000.10, 4990.53, 0.079849] }]);
    }
}
