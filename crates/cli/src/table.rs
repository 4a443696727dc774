//! Plain-text tables.

use rdmesh_fabric::printable;
use std::fmt;

/// Rows of columns, each as wide as its widest cell. The last column is not padded. Cells are one line each, without terminal
/// control characters.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with `header` on top.
    pub(crate) fn new(header: &[&str]) -> Self {
        Self { rows: vec![header.iter().map(|&cell| cell.to_owned()).collect()] }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl AsRef<[String]>) {
        self.rows.push(cells.as_ref().iter().map(|cell| printable(cell).into_owned()).collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| self.rows.iter().filter_map(|r| r.get(column)).map(|c| c.chars().count()).max();
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        for (index, row) in self.rows.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
            f.write_str(cells.join("  ").trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_no_commands_to_the_terminal() {
        let mut table = Table::new(&["NAME"]);
        table.row(["\x1b[2Jevil\nname".into()]);
        assert_eq!(table.to_string(), "NAME\n\\x1b[2Jevil\\x0aname");
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["NAME", "X"]);
        table.row(["a".into(), "1".into()]);
        table.row(["longer".into(), "2".into()]);
        assert_eq!(table.to_string(), "NAME    X\na       1\nlonger  2");
    }
}
