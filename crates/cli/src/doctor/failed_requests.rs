//! Failed requests of programs, as the router has recorded them.

use super::Finding;
use rdmesh_fabric::Client;
use rdmesh_fabric::api::Mistake;

const SUBJECT: &str = "programs";

pub(super) fn check(client: &Client) -> Vec<Finding> {
    match client.mistakes() {
        Ok(mistakes) if mistakes.is_empty() => vec![Finding::ok(SUBJECT, "none asked for what cannot work")],
        Ok(mistakes) => mistakes.iter().map(finding).collect(),
        Err(error) => vec![Finding::warn(SUBJECT, error.to_string(), "see router.log in the state directory")],
    }
}

fn finding(mistake: &Mistake) -> Finding {
    let Mistake { endpoint, network, pid, command, what, .. } = mistake;
    let times = if mistake.count == 1 { "once".to_owned() } else { format!("{} times", mistake.count) };
    let message =
        format!("{command} (process {pid}, endpoint {endpoint} of {network}): {what} ({times}, last {})", ago(mistake));
    Finding { fix: mistake.fix.clone(), ..Finding::warn(SUBJECT, message, "") }
}

fn ago(mistake: &Mistake) -> String {
    match mistake.seconds_ago as u64 {
        seconds @ ..120 => format!("{seconds} s ago"),
        seconds @ ..7200 => format!("{} min ago", seconds / 60),
        seconds => format!("{} h ago", seconds / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_a_warning_with_its_own_fix() {
        let mistake = Mistake {
            endpoint: "a".parse().unwrap(),
            network: "blue".parse().unwrap(),
            pid: 7,
            command: "ib_write_bw".to_owned(),
            what: "ibv_create_qp: type XRC_SEND is not supported".to_owned(),
            fix: None,
            count: 2,
            seconds_ago: 130.0,
        };
        let text = finding(&mistake).text();
        assert_eq!(
            text,
            "warn  programs: ib_write_bw (process 7, endpoint a of blue): ibv_create_qp: type XRC_SEND is not supported \
             (2 times, last 2 min ago)"
        );
    }
}
