//! Checks of the cluster's store: whether it answers, and who can write to it.

use super::Finding;
use rdmesh_fabric::api::{AbsentHost, Status, StoreState};

const SUBJECT: &str = "store";

pub(super) fn check(status: &Status) -> Vec<Finding> {
    status.store.as_ref().map_or_else(Vec::new, findings)
}

fn findings(store: &StoreState) -> Vec<Finding> {
    let mut findings = vec![answer(store)];
    findings.extend(store.absent.iter().map(absence));
    if !store.access.is_authenticated {
        findings.push(Finding::warn(
            SUBJECT,
            "it asks for no user: whoever reaches it may write, and so decide where addresses lead",
            "give etcd users and passwords, and the router a user in --store (docs/tutorials/cluster.md)",
        ));
    }
    if !store.access.is_encrypted {
        findings.push(Finding::warn(
            SUBJECT,
            "it is asked without TLS: who is on the way to it can write in this host's name",
            "add `tls&ca=FILE` to --store",
        ));
    }
    findings
}

fn absence(AbsentHost { host, network, endpoints, left_s }: &AbsentHost) -> Finding {
    let (their, them) = if *endpoints == 1 { ("its endpoint", "it") } else { ("its endpoints", "them") };
    Finding::warn(
        SUBJECT,
        format!(
            "host {host} is lost, or the store is to it: {their} on network {network} ({endpoints}) may not answer; in {left_s} s others may be \
             given the addresses"
        ),
        format!("start the router of {host}, or let it reach the store; else nothing: this host forgets {them}"),
    )
}

fn answer(StoreState { access, has_joined, answers, tenure_left_s, .. }: &StoreState) -> Finding {
    let members = access.members.join(", ");
    let fix = format!("is etcd running at {members}, and does a firewall let this host reach it?");
    match (has_joined, answers) {
        (false, _) => Finding::fail(
            SUBJECT,
            "this host has not joined the cluster yet: no endpoint can be made; see the log",
            fix,
        ),
        (true, false) => Finding::fail(
            SUBJECT,
            format!(
                "it does not answer: traffic goes on, new endpoints have addresses of this host's reserve only{}",
                tenure_left_s
                    .map(|left| format!("; in {left} s others may be given this host's addresses"))
                    .unwrap_or_default(),
            ),
            fix,
        ),
        (true, true) => Finding::ok(SUBJECT, format!("answers at {members}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;
    use rdmesh_fabric::api::StoreAccess;

    #[test]
    fn a_store_that_is_away_or_open_to_all_is_found() {
        let access = StoreAccess { members: vec!["https://e:2379".into()], is_encrypted: true, is_authenticated: true };
        let levels = |access: &StoreAccess, has_joined, answers| {
            let store =
                StoreState { access: access.clone(), has_joined, answers, tenure_left_s: None, absent: Vec::new() };
            findings(&store).into_iter().map(|finding| finding.level).collect::<Vec<_>>()
        };
        assert_eq!(levels(&access, true, true), [Level::Ok]);
        assert_eq!(levels(&access, true, false), [Level::Fail]);
        assert_eq!(levels(&access, false, false), [Level::Fail]);
        let open = StoreAccess { is_authenticated: false, is_encrypted: false, ..access };
        assert_eq!(levels(&open, true, true), [Level::Ok, Level::Warn, Level::Warn]);
    }

    #[test]
    fn leases_that_end_and_hosts_that_are_lost_are_told_with_the_time_that_is_left() {
        let access = StoreAccess { members: vec!["https://e:2379".into()], is_encrypted: true, is_authenticated: true };
        let host = "h".parse().expect("a name");
        let absent = vec![AbsentHost { host, network: "blue".parse().expect("a name"), endpoints: 2, left_s: 90 }];
        let store = StoreState { access, has_joined: true, answers: false, tenure_left_s: Some(70), absent };
        let [answer, absence] = &findings(&store)[..] else { panic!("two findings") };
        assert!(answer.level == Level::Fail && answer.message.contains("in 70 s others"), "{}", answer.message);
        let expected =
            "host h is lost, or the store is to it: its endpoints on network blue (2) may not answer; in 90 s";
        assert!(absence.level == Level::Warn && absence.message.starts_with(expected), "{}", absence.message);
    }
}
