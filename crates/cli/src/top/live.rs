//! The terminal of the live view: it is drawn when there are new rates, a key was pressed or its size has changed.

use super::rows::{Counts, Row, Traffic, rows};
use super::view::View;
use crate::failure::Failure;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use rdmesh_fabric::Client;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// New rates, or why there are none.
type News = Result<Vec<Row>, String>;

/// Shows the view until a key ends it. Without a router it does not begin; one that goes later is waited for.
pub(super) fn run(interval: Duration, client: &Client) -> Result<(), Failure> {
    let first = Traffic::of(&client.contexts()?);
    let (sender, news) = mpsc::channel();
    let client = client.clone();
    // It ends with the process, which does not wait for an answer of the router.
    thread::Builder::new().name("rates".to_owned()).spawn(move || collect(first, interval, &client, &sender))?;
    let mut terminal = ratatui::try_init()?;
    let shown = show(&mut terminal, &news);
    ratatui::try_restore()?;
    shown
}

/// Counts again and again, as long as the rates are wanted.
fn collect(mut before: Counts, interval: Duration, client: &Client, news: &Sender<News>) {
    let mut taken = Instant::now();
    loop {
        thread::sleep(interval);
        let counted = client.contexts().map(|contexts| Traffic::of(&contexts)).map_err(|error| error.to_string());
        let seconds = taken.elapsed().as_secs_f64();
        let new = counted.map(|now| {
            let rows = rows(&before, &now, seconds);
            (before, taken) = (now, Instant::now());
            rows
        });
        if news.send(new).is_err() {
            return;
        }
    }
}

fn show(terminal: &mut DefaultTerminal, news: &Receiver<News>) -> Result<(), Failure> {
    let mut view = View::new();
    terminal.draw(|frame| view.draw(frame))?;
    loop {
        let is_told = news.try_iter().map(|new| view.update(new)).count() > 0;
        let is_pressed = event::poll(LOOK)?;
        // A release is reported by some terminals only.
        if is_pressed
            && let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
            && view.press(key)
        {
            return Ok(());
        }
        if is_told || is_pressed {
            terminal.draw(|frame| view.draw(frame))?;
        }
    }
}

/// Longest time between two looks at new rates.
const LOOK: Duration = Duration::from_millis(100);
