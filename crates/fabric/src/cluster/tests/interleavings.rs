//! Property: no two living endpoints of a network have one address, whatever the interleaving of allocation, release, crashes of
//! routers, lost answers, absence of the store and ends of leases.

use super::faulty::Faulty;
use super::*;
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;

/// All hosts, and the time.
struct World {
    time: Time,
    store: Embedded,
    network: Network,
    hosts: RefCell<Vec<State>>,
    /// The time at which an address was given back, and the endpoint.
    released: RefCell<BTreeMap<IpAddr, (Duration, Name)>>,
}

/// The state of a host, of which `member` goes when its router dies.
struct State {
    member: Option<Rc<Member>>,
    local: Arc<Embedded>,
    living: Vec<Living>,
    /// Endpoints that have gone, of which the store was not told.
    going: Vec<Endpoint>,
}

struct Living {
    endpoint: Endpoint,
    /// The address is surely this host's: it came with the tenure, or was published under it.
    is_confirmed: bool,
    is_published: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Create { name: u8, address: Option<u8> },
    Remove(u8),
    Renew,
    Away(bool),
    Pass(u8),
    Die { within: u8, loses_all: bool },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..8u8, prop::option::weighted(0.3, 0..16u8)).prop_map(|(name, address)| Step::Create { name, address }),
        4 => any::<u8>().prop_map(Step::Remove),
        5 => Just(Step::Renew),
        1 => any::<bool>().prop_map(Step::Away),
        3 => (0..60u8).prop_map(Step::Pass),
        1 => (1..12u8, prop::bool::weighted(0.2)).prop_map(|(within, loses_all)| Step::Die { within, loses_all }),
    ]
}

impl World {
    /// The property itself.
    fn check(&self) {
        let mut holders: BTreeMap<IpAddr, Name> = BTreeMap::new();
        for state in self.hosts.borrow().iter() {
            if !state.member.as_ref().is_some_and(|member| member.is_valid()) {
                continue;
            }
            for Living { endpoint, .. } in state.living.iter().filter(|living| living.is_confirmed) {
                let holder = holders.insert(endpoint.addresses[0], endpoint.host.clone());
                assert!(holder.is_none(), "{endpoint:?} has the address of an endpoint of {holder:?}");
            }
        }
    }

    /// An endpoint has an address that another one has given back.
    fn check_rest(&self, endpoint: &Endpoint) {
        if let Some((when, name)) = self.released.borrow().get(&endpoint.addresses[0]) {
            let rested = self.time.now() - *when;
            assert!(*name == endpoint.name || rested >= terms().quarantine, "{endpoint:?} after {rested:?}");
        }
    }

    fn with<T>(&self, index: usize, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.hosts.borrow_mut()[index])
    }
}

/// The router of a host: its steps, with another router after each death.
async fn live(world: Rc<World>, index: usize, seed: u64, steps: Vec<Step>) {
    let mut steps = steps.into_iter();
    let faulty = Faulty::new(world.store.clone(), seed);
    let mut loses_all = false;
    loop {
        let run = async {
            rejoin(&world, index, &faulty).await;
            for step in steps.by_ref() {
                if let Step::Die { within, loses_all: all } = step {
                    loses_all = all;
                    faulty.die_in(Some(within.into()));
                } else {
                    perform(&world, index, &faulty, step).await;
                }
                world.check();
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            () = faulty.death() => {}
            () = run => return,
        }
        world.with(index, |state| {
            state.member = None;
            if loses_all {
                // The machine, with all that was on it.
                (state.local, state.living, state.going) = (Arc::new(world.time.store()), Vec::new(), Vec::new());
            }
        });
        faulty.die_in(None);
        world.time.pass(Duration::from_secs(2));
    }
}

/// Joins, as often as it takes.
async fn rejoin(world: &World, index: usize, faulty: &Faulty) {
    let local = world.with(index, |state| Arc::clone(&state.local));
    for _ in 0..200 {
        let cluster = Cluster::new(Arc::new(faulty.clone()));
        let joined =
            Member::join(cluster, Arc::<Embedded>::clone(&local), world.time.clock(), terms(), host(index as u8));
        match joined.await {
            Ok((member, renewal)) => {
                world.with(index, |state| {
                    state.living.iter().for_each(|living| member.adopt(&living.endpoint));
                    state.living.iter_mut().for_each(|living| living.is_confirmed &= renewal == Renewal::Kept);
                    state.member = Some(Rc::new(member));
                });
                world.check();
                return catch_up(world, index, true).await;
            }
            // The last one's lease lasts still, or the store is away.
            Err(_) => {
                faulty.set_away(false);
                world.time.pass(Duration::from_millis(500));
                tokio::task::yield_now().await;
            }
        }
    }
    panic!("h{index} cannot join");
}

async fn perform(world: &World, index: usize, faulty: &Faulty, step: Step) {
    let member = world.with(index, |state| state.member.clone()).unwrap();
    match step {
        Step::Create { name, address } => create(world, index, &member, &format!("e{name}"), address).await,
        Step::Remove(which) => {
            world.with(index, |state| {
                if !state.living.is_empty() {
                    let gone = state.living.remove(usize::from(which) % state.living.len());
                    state.going.push(gone.endpoint);
                }
            });
            release(world, index, &member).await;
        }
        Step::Renew => {
            let renewal = member.renew().await;
            if let Ok(renewal) = renewal {
                world.with(index, |state| {
                    state.living.iter_mut().for_each(|living| living.is_confirmed &= renewal == Renewal::Kept);
                });
                world.check();
                catch_up(world, index, renewal == Renewal::Anew).await;
            }
        }
        Step::Away(is_away) => faulty.set_away(is_away),
        Step::Pass(tenths) => world.time.pass(Duration::from_millis(u64::from(tenths) * 100)),
        Step::Die { .. } => unreachable!("the caller's"),
    }
}

async fn create(world: &World, index: usize, member: &Rc<Member>, text: &str, address: Option<u8>) {
    let is_known = world.with(index, |state| {
        state.living.iter().map(|l| &l.endpoint).chain(&state.going).any(|endpoint| endpoint.name == name(text))
    });
    if is_known {
        return;
    }
    let taken = match address {
        Some(low) => {
            let address = IpAddr::from([10, 7, 0, low]);
            member.take_exactly(&world.network, &name(text), address).await.map(|()| address)
        }
        None => member.take(&world.network, world.network.subnets[0]).await,
    };
    let Ok(address) = taken else { return };
    let endpoint = endpoint(member.host(), text, address);
    world.check_rest(&endpoint);
    world.with(index, |state| state.living.push(Living { endpoint, is_confirmed: true, is_published: false }));
    world.check();
    catch_up(world, index, false).await;
}

/// Publishes what the store does not know, and releases what has gone.
async fn catch_up(world: &World, index: usize, all: bool) {
    let Some(member) = world.with(index, |state| state.member.clone()) else { return };
    let unknown: Vec<Endpoint> = world.with(index, |state| {
        let unknown = state.living.iter().filter(|living| all || !living.is_published || !living.is_confirmed);
        unknown.map(|living| living.endpoint.clone()).collect()
    });
    for endpoint in unknown {
        let published = member.publish(&world.network, &endpoint).await;
        let confirm = |living: &mut Living| (living.is_confirmed, living.is_published) = (true, true);
        let is_it = |living: &&mut Living| living.endpoint == endpoint;
        match published {
            Ok(_) => world.with(index, |state| state.living.iter_mut().find(is_it).map(confirm)).unwrap_or_default(),
            Err(ClusterError::AddressTaken { .. }) => {
                let was_sure = world.with(index, |state| {
                    let at = state.living.iter().position(|living| living.endpoint == endpoint).unwrap();
                    state.living.remove(at).is_confirmed
                });
                assert!(!was_sure || !member.is_valid(), "{endpoint:?} had its address from its own host");
                member.disuse(&endpoint);
            }
            Err(ClusterError::Elsewhere { .. }) => world.with(index, |state| {
                state.living.retain(|living| living.endpoint != endpoint);
                state.going.push(endpoint);
            }),
            Err(_) => {
                if all {
                    world.with(index, |state| {
                        state.living.iter_mut().for_each(|living| living.is_published &= living.endpoint != endpoint)
                    });
                }
            }
        }
        world.check();
    }
    release(world, index, &member).await;
    if all {
        let living: Vec<_> = world.with(index, |state| state.living.iter().map(|l| l.endpoint.clone()).collect());
        let _ = member.reconcile(&world.network.name, &living).await;
    }
}

async fn release(world: &World, index: usize, member: &Rc<Member>) {
    let going = world.with(index, |state| state.going.clone());
    for endpoint in going {
        let when = world.time.now();
        if member.release(&endpoint).await.is_ok() {
            world.with(index, |state| state.going.retain(|gone| *gone != endpoint));
            world.released.borrow_mut().insert(endpoint.addresses[0], (when, endpoint.name));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn no_two_living_endpoints_have_one_address(
        seed in any::<u64>(),
        plans in prop::collection::vec(prop::collection::vec(step(), 1..60), 3),
    ) {
        let time = Time::default();
        let hosts = plans.iter().map(|_| State { member: None, local: Arc::new(time.store()), living: Vec::new(), going: Vec::new() });
        let world = Rc::new(World {
            store: time.store(),
            network: network("10.7.0.0/28"),
            hosts: RefCell::new(hosts.collect()),
            released: RefCell::default(),
            time,
        });
        run(async {
            let tasks = tokio::task::LocalSet::new();
            for (index, steps) in plans.into_iter().enumerate() {
                let seed = seed.rotate_left(index as u32 * 21);
                tasks.spawn_local(live(Rc::clone(&world), index, seed, steps));
            }
            tasks.await;
        });
        world.check();
    }
}
