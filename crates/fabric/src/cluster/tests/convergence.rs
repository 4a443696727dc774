//! Groups and policies, changed by several hosts over stores that fail: all followers come to the same.

use super::faulty::Faulty;
use super::*;
use crate::store::{Revision, Store};
use crate::{Policy, PolicyScope, PolicyTree, Priority, SecurityGroup};
use proptest::prelude::*;

/// Step of an operator, or end of a follower's connection.
#[derive(Clone, Debug)]
enum Step {
    Group { host: usize, group: u8, members: Vec<u8> },
    Ungroup { host: usize, group: u8 },
    Policy { host: usize, scope: String, weight: Option<u16> },
    Away { host: usize, is_away: bool },
    Follow { host: usize },
    Compact,
}

const HOSTS: usize = 3;

fn step() -> impl Strategy<Value = Step> {
    let host = || 0..HOSTS;
    let scope = prop_oneof![
        (0..3).prop_map(|n| format!("host/h{n}")),
        (0..2).prop_map(|n| format!("tenant/t{n}")),
        (0..3).prop_map(|n| format!("endpoint/blue/e{n}")),
    ];
    prop_oneof![
        (host(), 0..3_u8, proptest::collection::vec(0..4_u8, 0..3)).prop_map(|(host, group, members)| Step::Group {
            host,
            group,
            members
        }),
        (host(), 0..3_u8).prop_map(|(host, group)| Step::Ungroup { host, group }),
        (host(), scope, proptest::option::of(1..500_u16)).prop_map(|(host, scope, weight)| Step::Policy {
            host,
            scope,
            weight
        }),
        (host(), any::<bool>()).prop_map(|(host, is_away)| Step::Away { host, is_away }),
        host().prop_map(|host| Step::Follow { host }),
        Just(Step::Compact),
    ]
}

/// A host that follows the network and the cluster.
struct Watcher {
    store: Faulty,
    cluster: Cluster,
    network: Follower<NetworkView>,
    common: Follower<CommonView>,
}

impl Watcher {
    fn new(store: &Embedded, seed: u64) -> Self {
        let faulty = Faulty::new(store.clone(), seed);
        let cluster = Cluster::new(Arc::new(faulty.clone()));
        let network = Follower::of_network(cluster.clone(), &name("blue"));
        let common = Follower::of_cluster(cluster.clone());
        Self { store: faulty, cluster, network, common }
    }

    /// Takes what has come, and errors too.
    async fn follow_a_little(&mut self) {
        let moment = Duration::from_millis(1);
        let _ = tokio::time::timeout(moment, self.network.follow()).await;
        let _ = tokio::time::timeout(moment, self.common.follow()).await;
    }

    async fn follow_up_to(&mut self, network: Revision, common: Revision) {
        while self.network.revision() < network {
            let _ = self.network.follow().await;
        }
        while self.common.revision() < common {
            let _ = self.common.follow().await;
        }
    }

    /// All policies that it knows.
    fn policies(&self) -> PolicyTree {
        let scope = |name: &Name| PolicyScope::Endpoint { network: self::name("blue"), name: name.clone() };
        let own = self.network.view().policies().map(|(name, policy)| (scope(name), policy.clone()));
        let common = self.common.view().policies().iter();
        own.chain(common.map(|(scope, policy)| (scope.clone(), policy.clone()))).collect()
    }
}

async fn perform(step: Step, hosts: &mut [Watcher], store: &Embedded) {
    // An operation whose store fails, or whose answer is lost, may have been done or not.
    match step {
        Step::Group { host, group, members } => {
            let group = SecurityGroup {
                name: name(&format!("g{group}")),
                network: name("blue"),
                members: members.into_iter().map(|n| name(&format!("e{n}"))).collect(),
                allow_from: vec![format!("group/g{group}@7-{host}9").parse().unwrap()],
                allow_to: Vec::new(),
                covers_ip: false,
            };
            let _ = hosts[host].cluster.set_group(&group).await;
        }
        Step::Ungroup { host, group } => {
            let _ = hosts[host].cluster.remove_group(&name("blue"), &name(&format!("g{group}"))).await;
        }
        Step::Policy { host, scope, weight } => {
            let policy = weight.map(|weight| Policy { weight: Some(weight), ..Policy::default() });
            let _ = hosts[host].cluster.set_policy(&scope.parse().unwrap(), policy.as_ref()).await;
        }
        Step::Away { host, is_away } => hosts[host].store.set_away(is_away),
        Step::Follow { host } => hosts[host].follow_a_little().await,
        Step::Compact => {
            let now = Store::list(store, "", None).await.unwrap().revision;
            let _ = Store::compact(store, now).await;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn groups_and_policies_converge_to_the_same_on_all_hosts(
        steps in proptest::collection::vec(step(), 0..60),
        seed in any::<u64>(),
    ) {
        run(async {
            let store = Time::default().store();
            let operator = Cluster::new(Arc::new(store.clone()));
            operator.add_network(&network("10.7.0.0/24")).await.unwrap();
            let mut hosts: Vec<_> = (0..HOSTS).map(|host| Watcher::new(&store, seed.rotate_left(host as u32))).collect();
            for step in steps {
                perform(step, &mut hosts, &store).await;
            }
            hosts.iter().for_each(|host| host.store.set_away(false));
            let last = Policy { priority: Some(Priority::High), ..Policy::default() };
            let own = operator.set_policy(&"endpoint/blue/last".parse().unwrap(), Some(&last)).await.unwrap();
            let common = operator.set_policy(&"tenant/last".parse().unwrap(), Some(&last)).await.unwrap();
            for host in &mut hosts {
                host.follow_up_to(own, common).await;
            }
            let (groups, policies) = (operator.groups(&name("blue")).await.unwrap(), operator.policies().await.unwrap());
            for host in &hosts {
                assert!(host.network.view().groups().eq(&groups));
                assert_eq!(host.policies(), policies);
            }
        });
    }
}
