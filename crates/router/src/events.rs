//! The latest events of this router, for who asks.
//!
//! Whatever the router logs from the level `info` on is an event. This is one more layer of its log, whatever the log itself leaves out.

use rdmesh_fabric::api::{Event, EventLevel, Events};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::Notify;
use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime as Rfc3339};
use tracing_subscriber::layer::{Context, Layer};

/// Ring buffer of the latest 4,096 events. Clones share it.
#[derive(Clone, Debug)]
pub struct EventLog(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    kept: Mutex<Kept>,
    news: Notify,
}

#[derive(Debug)]
struct Kept {
    events: VecDeque<Event>,
    /// Numbers of the first event of all, and of the next one.
    first: u64,
    next: u64,
}

impl Default for EventLog {
    fn default() -> Self {
        // The microseconds of the start: a router that is started again, later, does not come to the same numbers.
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let first = u64::try_from(since.as_micros()).unwrap_or(1);
        let kept = Kept { events: VecDeque::new(), first, next: first };
        Self(Arc::new(Shared { kept: Mutex::new(kept), news: Notify::new() }))
    }
}

impl EventLog {
    /// The events after number `after` that are still kept, at most [`MOST`] of them.
    pub(crate) fn after(&self, after: u64) -> Events {
        let kept = self.kept();
        let oldest = kept.next - kept.events.len() as u64;
        let wanted = after.saturating_add(1).max(kept.first);
        let begin = wanted.max(oldest);
        let known = usize::try_from(begin - oldest).unwrap_or(usize::MAX);
        Events { events: kept.events.iter().skip(known).cloned().collect(), missed: begin - wanted }
    }

    /// Likewise; where there are none, it waits for some.
    pub(crate) async fn wait(&self, after: u64, longest: Duration) -> Events {
        let look = async {
            loop {
                let news = self.0.news.notified();
                let events = self.after(after);
                if !events.events.is_empty() {
                    return events;
                }
                news.await;
            }
        };
        tokio::time::timeout(longest, look).await.unwrap_or_default()
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, level: EventLevel, Fields { what, about }: Fields) {
        let mut time = String::new();
        // A time that cannot be written is left out.
        let _ = Rfc3339.format_time(&mut Writer::new(&mut time));
        let mut kept = self.kept();
        if kept.events.len() == MOST {
            kept.events.pop_front();
        }
        let number = kept.next;
        kept.next += 1;
        kept.events.push_back(Event { number, time, level, what, about });
        drop(kept);
        self.0.news.notify_waiters();
    }
}

impl<S: Subscriber> Layer<S> for EventLog {
    fn on_event(&self, event: &tracing::Event<'_>, _context: Context<'_, S>) {
        let level = match *event.metadata().level() {
            tracing::Level::ERROR => EventLevel::Error,
            tracing::Level::WARN => EventLevel::Warn,
            tracing::Level::INFO => EventLevel::Info,
            _ => return,
        };
        if event.metadata().target().starts_with("rdmesh") {
            let mut fields = Fields::default();
            event.record(&mut fields);
            self.add(level, fields);
        }
    }
}

/// Contents of a log line.
#[derive(Default)]
struct Fields {
    what: String,
    about: BTreeMap<String, String>,
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = write!(text, "{value:?}");
        if text.len() > LONGEST {
            text.truncate(text.floor_char_boundary(LONGEST));
            text.push('…');
        }
        if field.name() == "message" {
            self.what = text;
        } else {
            self.about.insert(field.name().to_owned(), text);
        }
    }
}

/// Events that are kept.
const MOST: usize = 4096;
/// Most bytes of a text in an event: a tenant may have a say in it.
const LONGEST: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::layer::SubscriberExt;

    fn log(act: impl FnOnce()) -> EventLog {
        let events = EventLog::default();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(events.clone()), act);
        events
    }

    #[test]
    fn lines_of_the_log_are_events() {
        let events = log(|| {
            tracing::info!(target: "rdmesh_router::daemon", name = %"a", pid = 7, "endpoint added");
            tracing::warn!(target: "rdmesh_router::daemon", error = ?"no", "cannot be added");
            tracing::debug!(target: "rdmesh_router::daemon", "a detail");
            tracing::info!(target: "hyper", "of others");
        });
        let all = events.after(0);
        let texts: Vec<_> = all.events.iter().map(|event| (event.level, event.what.as_str())).collect();
        assert_eq!(texts, [(EventLevel::Info, "endpoint added"), (EventLevel::Warn, "cannot be added")]);
        assert_eq!(all.events[0].about, [("name".into(), "a".into()), ("pid".into(), "7".into())].into());
        assert!(all.events[0].time.ends_with('Z') && all.missed == 0, "{all:?}");
        assert_eq!(events.after(all.events[0].number).events, all.events[1..]);
        assert_eq!(events.after(all.events[1].number), Events::default());
    }

    #[test]
    fn the_oldest_go_and_who_follows_is_told() {
        let events = log(|| (0..MOST + 10).for_each(|n| tracing::info!(target: "rdmesh_router", n, "one")));
        let all = events.after(0);
        assert_eq!((all.events.len(), all.missed, all.events[0].about["n"].as_str()), (MOST, 10, "10"));
        let first = all.events[0].number;
        assert_eq!(events.after(first - 6).missed, 5);
        assert_eq!((events.after(first - 1).missed, events.after(first).events.len()), (0, MOST - 1));
    }

    #[test]
    fn a_long_text_is_cut() {
        let events = log(|| tracing::warn!(target: "rdmesh_router", text = "ä".repeat(LONGEST), "a text"));
        assert!(events.after(0).events[0].about["text"].len() <= LONGEST + '…'.len_utf8());
    }

    #[tokio::test]
    async fn who_waits_hears_of_the_next_one() {
        let events = log(|| tracing::info!(target: "rdmesh_router", "first"));
        let first = events.after(0).events[0].number;
        assert_eq!(events.wait(first, Duration::from_millis(1)).await, Events::default());
        let (heard, ()) = tokio::join!(events.wait(first, Duration::from_secs(60)), async {
            tracing::subscriber::with_default(tracing_subscriber::registry().with(events.clone()), || {
                tracing::error!(target: "rdmesh_router", "second");
            });
        });
        assert_eq!((heard.events.len(), heard.events[0].what.as_str()), (1, "second"));
    }
}
