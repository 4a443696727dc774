//! `rdmesh chain top`: live rates of chains.

use super::state;
use crate::args::TopOptions;
use crate::failure::Failure;
use crate::show::bytes;
use crate::table::Table;
use crate::top::repeat;
use rdmesh_fabric::Client;
use rdmesh_fabric::api::ChainInfo;
use std::collections::BTreeMap;

/// A chain: network, endpoint, process, device, group.
type Chain = (String, String, i32, u32, u32);

/// Shows the rates of every chain, busiest first, again and again.
pub(crate) fn top(options: &TopOptions, client: &Client) -> Result<(), Failure> {
    repeat(options, || Ok(chains(client.chains()?)), table)
}

fn chains(chains: Vec<ChainInfo>) -> BTreeMap<Chain, ChainInfo> {
    let key = |c: &ChainInfo| (c.network.to_string(), c.endpoint.to_string(), c.pid, c.device, c.group);
    chains.into_iter().map(|chain| (key(&chain), chain)).collect()
}

fn table(before: &BTreeMap<Chain, ChainInfo>, now: &BTreeMap<Chain, ChainInfo>, seconds: f64) -> Table {
    // A group that was made anew counts from 0, which must not give a negative rate.
    let since = |chain: &Chain, count: fn(&ChainInfo) -> u64| {
        let earlier = before.get(chain).map_or(0, count);
        now.get(chain).map_or(0, count).saturating_sub(earlier)
    };
    let rate = |chain: &Chain, count| (since(chain, count) as f64 / seconds) as u64;
    let mut rows: Vec<_> = now.iter().map(|(key, chain)| (rate(key, |c| c.steps), key, chain)).collect();
    rows.sort_by_key(|(steps, ..)| std::cmp::Reverse(*steps));
    let mut table = Table::new(&[
        "NETWORK",
        "ENDPOINT",
        "PID",
        "COMMAND",
        "DEVICE",
        "GROUP",
        "STATE",
        "STEPS/s",
        "LAPS/s",
        "BYTES/s",
        "",
        "SOFT FAULTS/s",
        "STARVED",
    ]);
    for (steps, key, chain) in rows {
        let earlier = before.get(key).map_or(0.0, |chain| chain.starved_seconds);
        let starved = (chain.starved_seconds - earlier).max(0.0) / seconds;
        let (number, unit) = split(&bytes(rate(key, |c| c.bytes)));
        table.row([
            chain.network.to_string(),
            chain.endpoint.to_string(),
            chain.pid.to_string(),
            chain.command.clone(),
            chain.device.to_string(),
            chain.group.to_string(),
            state(chain).to_owned(),
            steps.to_string(),
            rate(key, |c| c.laps).to_string(),
            number,
            unit,
            rate(key, |c| c.soft_faults).to_string(),
            format!("{:.0} %", starved * 100.0),
        ]);
    }
    table
}

/// A number and its unit.
fn split(text: &str) -> (String, String) {
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    (number.to_owned(), unit.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::tests::info;
    use super::*;

    #[test]
    fn rates_are_differences_and_the_busiest_comes_first() {
        let (quiet, mut busy) = (info(1), ChainInfo { steps: 100, ..info(2) });
        let before = chains(vec![quiet.clone(), busy.clone()]);
        (busy.steps, busy.laps, busy.starved_seconds, busy.spinning) = (300, 4, 1.0, true);
        let shown = table(&before, &chains(vec![quiet, busy]), 2.0).to_string();
        let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
        let expected = ["blue", "a", "7", "kv", "0", "2", "spinning", "100", "2", "0", "B", "0", "50", "%"];
        assert_eq!(lines[1], expected);
        assert_eq!((lines[2][5], lines[2][6], lines[2][7]), ("1", "running", "0"));
    }
}
