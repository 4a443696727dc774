//! The page `docs/software.md`.

use super::Row;
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::path::Path;

/// The figures of a run, by the rows' names: on one host and on two.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    rows: Map<String, Value>,
}

impl Measured {
    /// Content of a file; empty where there is none.
    pub fn load(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        Self { rows: serde_json::from_str(&text).unwrap_or_default() }
    }

    /// Adds a figure of `row`, taken on so many hosts; returns it as the page shows it.
    pub fn add(&mut self, row: &Row, hosts: usize, value: f64) -> String {
        let entry = self.rows.entry(row.name.clone()).or_insert_with(|| json!({}));
        entry[hosts.to_string()] = json!((value * 100.0).round() / 100.0);
        self.cell(row, hosts)
    }

    /// Writes all into a file.
    pub fn save(&self, path: &Path) {
        let text = serde_json::to_string_pretty(&self.rows).expect("figures are JSON");
        std::fs::write(path, text + "\n").unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }

    fn cell(&self, row: &Row, hosts: usize) -> String {
        let Some(figure) = row.figure else { return "works".to_owned() };
        let value = self.rows.get(&row.name).and_then(|entry| entry[hosts.to_string()].as_f64());
        value.map_or_else(|| "–".to_owned(), |value| format!("{} {}", digits(value), figure.unit.name()))
    }
}

/// The page about `rows`, with the figures of `measured`.
pub fn page(rows: &[Row], measured: &Measured) -> String {
    let mut page = HEAD.to_owned();
    let mut theme = "";
    for row in rows {
        if row.theme != theme {
            theme = row.theme;
            let _ = write!(
                page,
                "\n## {theme}\n\n| program | in `a` | in `b` | one host | two hosts |\n|---|---|---|---|---|\n"
            );
        }
        let [one, two] = [1, 2].map(|hosts| measured.cell(row, hosts));
        let _ = writeln!(page, "| {} | `{}` | `{}` | {one} | {two} |", row.name, row.server, row.client);
    }
    page
}

/// Three digits that matter.
fn digits(value: f64) -> String {
    let decimals = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.decimals$}")
}

const HEAD: &str = "# Software that runs

What is tested with other people's programs, unmodified, as Debian 12 has them. `./dev test software` runs every row of this page between two endpoints of one host and between two
hosts, and holds the page to what it ran; `./dev software --publish` writes the figures anew. They were taken on a virtual machine with two cores, on which both routers and all programs
run, by short runs: they say that it works and roughly how fast, [docs/benchmark.md](benchmark.md) says it carefully.

`a` and `b` are two endpoints on network `blue`. The commands are typed in the repository, after

```
rdmesh run --name a --net blue --ip 10.7.0.2 --
rdmesh run --name b --net blue --ip 10.7.0.3 --
```

the one in `a` first. MPI ranks and launchers meet as on any cluster, by ssh or, here, by a small program in its place. No row uses TCP or shared memory for its data; the libraries' own
reports of their transports are checked. The programs of the MPI and example rows are built by `./dev test software`.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        assert_eq!([2.0, 12.345, 1234.5].map(digits), ["2.00", "12.3", "1234"].map(str::to_owned));
    }
}
