//! Failed requests of programs, as the router has recorded them.

use super::Finding;
use rdmesh_fabric::Client;
use rdmesh_fabric::api::FailedRequest;

const SUBJECT: &str = "programs";

pub(super) fn check(client: &Client) -> Vec<Finding> {
    match client.failed_requests() {
        Ok(failed_requests) if failed_requests.is_empty() => {
            vec![Finding::ok(SUBJECT, "none asked for what cannot work")]
        }
        Ok(failed_requests) => failed_requests.iter().map(finding).collect(),
        Err(error) => vec![Finding::warn(SUBJECT, error.to_string(), "see router.log in the state directory")],
    }
}

fn finding(request: &FailedRequest) -> Finding {
    let FailedRequest { endpoint, network, pid, command, what, .. } = request;
    let times = if request.count == 1 { "once".to_owned() } else { format!("{} times", request.count) };
    let message =
        format!("{command} (process {pid}, endpoint {endpoint} of {network}): {what} ({times}, last {})", ago(request));
    Finding { fix: request.fix.clone(), ..Finding::warn(SUBJECT, message, "") }
}

fn ago(request: &FailedRequest) -> String {
    match request.seconds_ago as u64 {
        seconds @ ..120 => format!("{seconds} s ago"),
        seconds @ ..7200 => format!("{} min ago", seconds / 60),
        seconds => format!("{} h ago", seconds / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_request_is_a_warning_with_its_own_fix() {
        let request = FailedRequest {
            endpoint: "a".parse().unwrap(),
            network: "blue".parse().unwrap(),
            pid: 7,
            command: "ib_write_bw".to_owned(),
            what: "ibv_create_qp: type XRC_SEND is not supported".to_owned(),
            fix: None,
            count: 2,
            seconds_ago: 130.0,
        };
        let text = finding(&request).text();
        assert_eq!(
            text,
            "warn  programs: ib_write_bw (process 7, endpoint a of blue): ibv_create_qp: type XRC_SEND is not supported \
             (2 times, last 2 min ago)"
        );
    }
}
