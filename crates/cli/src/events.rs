//! `rdmesh events`: what has happened on this host, and who has asked for what.

use crate::args::EventsOptions;
use crate::failure::Failure;
use crate::show::print_line;
use rdmesh_fabric::Client;
use rdmesh_fabric::api::{Event, EventLevel, Events};
use std::fmt::{self, Display, Formatter};

/// Prints the events that the router keeps, and with `--follow` those to come.
pub(crate) fn events(options: &EventsOptions, client: &Client) -> Result<(), Failure> {
    let mut latest = client.events(None)?;
    let mut last = 0;
    loop {
        last = latest.events.last().map_or(last, |event| event.number);
        print(options, latest)?;
        if !options.follow {
            return Ok(());
        }
        latest = client.events(Some(last))?;
    }
}

fn print(options: &EventsOptions, Events { events, missed }: Events) -> Result<(), Failure> {
    if missed > 0 {
        eprintln!("rdmesh: {missed} earlier events are no longer kept; the router's log has them");
    }
    for event in &events {
        if options.json {
            print_line(serde_json::to_string(event)?)?;
        } else {
            print_line(Line(event))?;
        }
    }
    Ok(())
}

/// An event for a reader.
struct Line<'a>(&'a Event);

impl Display for Line<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Event { time, level, what, about, .. } = self.0;
        let level = match level {
            EventLevel::Error => "error",
            EventLevel::Warn => "warn",
            EventLevel::Info => "info",
        };
        write!(f, "{time} {level:5} {what}")?;
        // What a tenant has a say in does not move the reader's cursor.
        about.iter().try_for_each(|(name, value)| write!(f, " {name}={}", Quoted(value)))
    }
}

/// A value, in quotes where it would not be read as one word.
struct Quoted<'a>(&'a str);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let is_word = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
        if !self.0.is_empty() && self.0.bytes().all(is_word) { f.write_str(self.0) } else { write!(f, "{:?}", self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_line() {
        let about = [("name", "a"), ("text", "two words\u{1b}[2J"), ("none", "")];
        let event = Event {
            number: 7,
            time: "2026-11-27T21:05:36.820374Z".into(),
            level: EventLevel::Warn,
            what: "cannot be added".into(),
            about: about.map(|(name, value)| (name.into(), value.into())).into(),
        };
        let line = "2026-11-27T21:05:36.820374Z warn  cannot be added name=a none=\"\" text=\"two words\\u{1b}[2J\"";
        assert_eq!(Line(&event).to_string(), line);
    }
}
