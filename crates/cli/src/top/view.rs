//! The live view: what it shows, and what keys change.

use super::rows::{Column, Row};
use crate::show::bytes;
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{self, Paragraph, Sparkline, Table, TableState};
use rdmesh_fabric::printable;
use std::collections::VecDeque;

/// State of the view.
pub(super) struct View {
    rows: Vec<Row>,
    sorted_by: Column,
    is_reversed: bool,
    filter: String,
    is_typing: bool,
    is_paused: bool,
    selection: TableState,
    /// Bytes that all programs have sent in a second, the latest last.
    history: VecDeque<u64>,
    trouble: Option<String>,
}

impl View {
    /// Nothing to show yet.
    pub(super) fn new() -> Self {
        Self {
            rows: Vec::new(),
            sorted_by: Column::SentBytes,
            is_reversed: false,
            filter: String::new(),
            is_typing: false,
            is_paused: false,
            selection: TableState::default(),
            history: VecDeque::new(),
            trouble: None,
        }
    }

    /// Takes new rates, or the reason why there are none: what is shown stays then.
    pub(super) fn update(&mut self, news: Result<Vec<Row>, String>) {
        self.trouble = news.as_ref().err().cloned();
        let Ok(rows) = news else { return };
        if self.history.len() >= HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(rows.iter().map(Row::sent_bytes).sum());
        if !self.is_paused {
            self.rows = rows;
        }
    }

    /// A key was pressed. Returns whether the view is to end.
    pub(super) fn press(&mut self, key: KeyEvent) -> bool {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return true;
        }
        if self.is_typing {
            self.edit(key.code);
            return false;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char(' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('r') => self.is_reversed = !self.is_reversed,
            KeyCode::Left => self.sort_beside(-1),
            KeyCode::Right => self.sort_beside(1),
            KeyCode::Up => self.selection.select_previous(),
            KeyCode::Down => self.selection.select_next(),
            KeyCode::PageUp => self.selection.scroll_up_by(PAGE),
            KeyCode::PageDown => self.selection.scroll_down_by(PAGE),
            KeyCode::Home => self.selection.select_first(),
            KeyCode::End => self.selection.select_last(),
            _ => {}
        }
        false
    }

    fn edit(&mut self, key: KeyCode) {
        match key {
            KeyCode::Char(c) => self.filter.push(c),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => (self.is_typing, self.filter) = (false, String::new()),
            _ => {}
        }
    }

    /// Sorts by the column beside the present one.
    fn sort_beside(&mut self, step: isize) {
        let at = Column::ALL.iter().position(|column| *column == self.sorted_by).unwrap_or_default();
        let next = at.saturating_add_signed(step).min(Column::ALL.len() - 1);
        (self.sorted_by, self.is_reversed) = (Column::ALL[next], false);
    }

    /// The rows that are shown, in their order.
    fn shown(&self) -> Vec<&Row> {
        let wanted = self.filter.to_lowercase();
        let is_wanted = |row: &&Row| {
            let names = [Column::Network, Column::Endpoint, Column::Pid, Column::Command];
            names.iter().any(|column| row.cell(*column).to_lowercase().contains(&wanted))
        };
        let mut shown: Vec<&Row> = self.rows.iter().filter(is_wanted).collect();
        shown.sort_by(|a, b| {
            let order = a.compare(b, self.sorted_by);
            if self.is_reversed { order.reverse() } else { order }
        });
        shown
    }

    /// Draws all of it.
    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let parts = [Constraint::Length(1), Constraint::Length(GRAPH), Constraint::Fill(1), Constraint::Length(1)];
        let [title, graph, table, keys] = Layout::vertical(parts).areas(frame.area());
        frame.render_widget(Paragraph::new(self.title()), title);
        let recent = self.history.iter().rev().take(graph.width.into()).rev().copied();
        frame.render_widget(Sparkline::default().data(recent.collect::<Vec<u64>>()), graph);
        self.draw_table(frame, table);
        frame.render_widget(Paragraph::new(self.footer()), keys);
    }

    fn title(&self) -> String {
        if self.history.is_empty() {
            return "rdmesh top: the first rates follow in a moment".to_owned();
        }
        let sent = self.history.back().copied().unwrap_or_default();
        let most = self.history.iter().copied().max().unwrap_or_default();
        let paused = if self.is_paused { ", the table is paused" } else { "" };
        format!("rdmesh top: {} programs, {}/s sent (at most {}/s){paused}", self.rows.len(), bytes(sent), bytes(most))
    }

    fn footer(&self) -> Line<'static> {
        if let Some(trouble) = &self.trouble {
            return Line::styled(printable(trouble).into_owned(), Style::new().add_modifier(Modifier::REVERSED));
        }
        if self.is_typing || !self.filter.is_empty() {
            let hint = if self.is_typing { "  Enter: keep, Esc: all" } else { "  /: change, then Esc: all" };
            return Line::from(vec![Span::raw(format!("filter: {}", printable(&self.filter))), Span::raw(hint)]);
        }
        Line::raw("q: end  /: filter  \u{2190} \u{2192}: sort by  r: reverse  space: pause  \u{2191} \u{2193}: select")
    }

    fn draw_table(&mut self, frame: &mut Frame<'_>, area: Rect) {
        let columns: Vec<Column> = Column::ALL.into_iter().filter(|column| fits(*column, area.width)).collect();
        let shown = self.shown();
        let cells: Vec<Vec<String>> = shown
            .iter()
            .map(|row| columns.iter().map(|column| printable(&row.cell(*column)).into_owned()).collect())
            .collect();
        let titles: Vec<String> = columns.iter().map(|column| self.heading(*column)).collect();
        let widths: Vec<Constraint> = (0..columns.len())
            .map(|at| {
                let longest = cells.iter().map(|row| row[at].chars().count()).max().unwrap_or_default();
                Constraint::Length(longest.max(titles[at].chars().count()).try_into().unwrap_or(u16::MAX))
            })
            .collect();
        let header = widgets::Row::new(titles).style(Style::new().add_modifier(Modifier::BOLD));
        let table = Table::new(cells.into_iter().map(widgets::Row::new), widths)
            .header(header)
            .column_spacing(2)
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        frame.render_stateful_widget(table, area, &mut self.selection);
    }

    /// The heading of a column, marked where the table is sorted by it.
    fn heading(&self, column: Column) -> String {
        let title = match column {
            Column::SentBytes | Column::ReceivedBytes => "BYTES/s",
            other => other.title(),
        };
        match (column == self.sorted_by, self.is_reversed) {
            (true, false) => format!("{title}\u{25bc}"),
            (true, true) => format!("{title}\u{25b2}"),
            (false, _) => title.to_owned(),
        }
    }
}

/// Whether a column is shown in so many characters: of a narrow terminal the least wanted are left out.
fn fits(column: Column, width: u16) -> bool {
    match column {
        Column::Endpoint | Column::Command | Column::SentBytes | Column::ReceivedBytes => true,
        Column::Network | Column::Pid | Column::Held => width >= 80,
        Column::Qps | Column::SentMessages | Column::ReceivedMessages | Column::Retransmitted => width >= 120,
    }
}

/// Lines of the graph.
const GRAPH: u16 = 3;
/// Rates that the graph remembers: as many as the widest terminal shows.
const HISTORY: usize = 512;
/// Rows of a page.
const PAGE: u16 = 20;

#[cfg(test)]
mod tests {
    use super::super::rows::{Traffic, rows};
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use rdmesh_fabric::api::ContextInfo;

    /// Programs that have sent so much within a second.
    fn programs(sent: &[(&str, u64)]) -> Vec<Row> {
        let context = |(command, bytes): &(&str, u64)| -> ContextInfo {
            let qp = serde_json::json!({
                "qpn": 5, "kind": "RC", "state": "RTS", "sent_messages": 1, "sent_bytes": bytes, "received_messages": 0,
                "received_bytes": 0, "retries": 0, "next_psn": 0, "unacked_psn": 0, "expected_psn": 0, "retransmitted": 0,
                "rnr_naks": 0, "duplicates": 0, "out_of_order": 0, "cnps_sent": 0, "cnps_received": 0
            });
            let context = serde_json::json!({
                "endpoint": "a", "network": "blue", "pid": 7, "uid": 0, "command": command, "pds": 1, "cqs": 1, "srqs": 0,
                "mrs": 1, "mws": 0, "pinned_bytes": 0, "qps": [qp]
            });
            serde_json::from_value(context).unwrap()
        };
        let counts = Traffic::of(&sent.iter().map(context).collect::<Vec<_>>());
        rows(&Default::default(), &counts, 1.0)
    }

    fn press(view: &mut View, keys: &[KeyCode]) -> bool {
        keys.iter().any(|key| view.press(KeyEvent::new(*key, KeyModifiers::NONE)))
    }

    /// Lines of a terminal that shows the view.
    fn lines(view: &mut View, width: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, 12)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..12).map(line).collect()
    }

    #[test]
    fn keys_sort_filter_pause_and_end() {
        let mut view = View::new();
        view.update(Ok(programs(&[("idle", 0), ("busy", 1 << 20), ("some\x1bthing", 2048)])));
        let shown = lines(&mut view, 140);
        assert!(shown[0].contains("3 programs, 1.0 MiB/s sent"), "{shown:#?}");
        assert!(shown[4].contains("BYTES/s\u{25bc}"), "{shown:#?}");
        assert!(
            shown[5].contains("busy") && shown[6].contains("some\\x1bthing") && shown[7].contains("idle"),
            "{shown:#?}"
        );
        press(&mut view, &[KeyCode::Char('r')]);
        assert!(lines(&mut view, 140)[5].contains("idle"));
        // To the column of commands.
        press(&mut view, &[KeyCode::Left, KeyCode::Left, KeyCode::Left]);
        let shown = lines(&mut view, 140);
        assert!(
            shown[4].contains("COMMAND\u{25bc}") && shown[5].contains("busy") && shown[6].contains("idle"),
            "{shown:#?}"
        );
        press(&mut view, &[KeyCode::Char('/'), KeyCode::Char('I'), KeyCode::Char('d'), KeyCode::Enter]);
        let shown = lines(&mut view, 140);
        assert!(shown[5].contains("idle") && shown[6].is_empty() && shown[11].starts_with("filter: Id"), "{shown:#?}");
        press(&mut view, &[KeyCode::Char('/'), KeyCode::Esc, KeyCode::Char(' ')]);
        view.update(Ok(programs(&[("new", 1)])));
        let shown = lines(&mut view, 140);
        assert!(shown[0].contains("paused") && shown[5].contains("busy"), "{shown:#?}");
        press(&mut view, &[KeyCode::Char(' ')]);
        view.update(Ok(programs(&[("new", 1)])));
        assert!(lines(&mut view, 140)[5].contains("new"));
        assert!(press(&mut view, &[KeyCode::Char('q')]));
        assert!(view.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
    }

    #[test]
    fn a_narrow_terminal_has_the_columns_that_matter() {
        let mut view = View::new();
        view.update(Ok(programs(&[("busy", 5 << 20)])));
        let shown = lines(&mut view, 50);
        assert!(shown[4].contains("ENDPOINT") && !shown[4].contains("RETRANSMITTED"), "{shown:#?}");
        assert!(shown[5].contains("busy") && shown[5].contains("5.0 MiB"), "{shown:#?}");
        lines(&mut view, 1);
    }

    #[test]
    fn trouble_is_named_and_the_last_rates_stay() {
        let mut view = View::new();
        view.update(Ok(programs(&[("busy", 1)])));
        view.update(Err("no router runs".to_owned()));
        let shown = lines(&mut view, 100);
        assert!(shown[11].contains("no router runs") && shown[5].contains("busy"), "{shown:#?}");
        view.update(Ok(Vec::new()));
        assert!(lines(&mut view, 100)[11].starts_with("q: end"));
    }
}
