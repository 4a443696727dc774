//! Endpoints of pools whose programs are held to their addresses.

use super::{Endpoints, no_such};
use crate::daemon::error::HostError;
use crate::daemon::full_name::FullName;
use crate::errands::Job;
use rdmesh_fabric::api::{ConfineEndpoint, EndpointInfo};
use rdmesh_fabric::{Endpoint, Name};
use rdmesh_overlay::{ConfineError, Confinement, ControlGroup};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Directory of the control group that an endpoint of `network` gets for process `pid`. Its name tells it from those of other
/// routers on this host, whose networks and pools may have the same names.
pub(super) fn place(network: &Name, name: &Name, pid: i32) -> Result<PathBuf, HostError> {
    let place = ControlGroup::place(pid, &format!("rdmesh-{network}.{name}.{pid}"));
    place.map_err(|error| unconfined(name, ConfineError::Group(error)))
}

/// The confinement that a router began which has died; none where the group is gone.
pub(super) fn adopt(path: PathBuf, is_own: bool) -> Option<Confinement> {
    let group = if is_own { Some(ControlGroup::left(path)) } else { ControlGroup::given(&path).ok() };
    group.map(Confinement::adopt)
}

/// The endpoints whose programs are held to their addresses.
#[derive(Clone, Copy)]
pub struct Confined<'a> {
    endpoints: &'a Endpoints,
}

impl Endpoints {
    /// Those whose programs are held to their addresses.
    pub fn confined(&self) -> Confined<'_> {
        Confined { endpoints: self }
    }
}

impl Confined<'_> {
    /// Moves process `pid` into a control group in `place`, whose sockets are held to the addresses of the endpoint `name`.
    pub(super) fn move_in(
        &self,
        network: &Name,
        name: &Name,
        place: PathBuf,
        pid: i32,
    ) -> Result<EndpointInfo, HostError> {
        let key = FullName::new(network.clone(), name.clone());
        let group = ControlGroup::make(place).map_err(|error| unconfined(name, ConfineError::Group(error)))?;
        let addresses = self.acquired(&key)?.addresses;
        let mut confinement = Some(Confinement::adopt(group.clone()));
        let confined = Confinement::start(group.clone(), &addresses).and_then(|started| {
            confinement = Some(started);
            group.take_in(pid).map_err(ConfineError::Group)
        });
        let kept = confined.map_err(|source| unconfined(name, source));
        let kept = kept.and_then(|()| self.keep(&key, &mut confinement, Some(pid)));
        // What was not kept goes.
        self.end(&key, confinement);
        kept
    }

    /// Holds the processes of a control group that another program has made to the addresses of an acquired endpoint.
    pub fn confine(
        &self,
        network: Name,
        name: Name,
        ConfineEndpoint { path }: &ConfineEndpoint,
    ) -> Result<EndpointInfo, HostError> {
        let key = FullName::new(network, name);
        let endpoint = self.acquired(&key)?;
        let group = ControlGroup::given(path).map_err(|error| unconfined(&key.name, ConfineError::Group(error)))?;
        let confinement = Confinement::start(group.clone(), &endpoint.addresses);
        let mut confinement = Some(confinement.map_err(|source| unconfined(&key.name, source))?);
        let kept = self.keep(&key, &mut confinement, None);
        if let Some(not_kept) = confinement {
            not_kept.withdraw().map_err(|source| unconfined(&key.name, source))?;
        }
        let kept = kept?;
        self.endpoints.registry.set_cgroup(&key.network, &key.name, group.path().to_owned())?;
        Ok(kept)
    }

    /// Ends the use of an endpoint's addresses by its last user.
    pub(super) fn end(&self, FullName { network, name }: &FullName, confinement: Option<Confinement>) {
        match confinement.map(Confinement::end).transpose() {
            Ok(None | Some(None)) => {}
            Ok(Some(Some(group))) => {
                tracing::info!(%network, %name, cgroup = %group.path().display(), "processes that were left are killed");
                self.endpoints.leftovers.add(0, Leftover { group, since: Instant::now() });
            }
            Err(error) => tracing::warn!(%network, %name, %error, "programs may go on to use an endpoint's addresses"),
        }
    }

    /// An acquired endpoint.
    fn acquired(&self, key: &FullName) -> Result<Endpoint, HostError> {
        let attached = self.endpoints.attached();
        let endpoint =
            attached.endpoints.get(key).map(|endpoint| endpoint.endpoint.clone()).ok_or_else(|| no_such(key))?;
        let Some(pool) = endpoint.pool.as_ref().map(|pool| pool.name.clone()) else {
            return Err(HostError::OfNoPool(key.name.clone()));
        };
        let members = attached.pools.get(&key.beside(pool.clone()));
        if !members.is_some_and(|members| members.acquired.contains(&key.name)) {
            return Err(HostError::NotAcquired { name: key.name.clone(), pool });
        }
        Ok(endpoint)
    }

    /// Takes a confinement for its endpoint, unless that has been released, or has one.
    fn keep(
        &self,
        key: &FullName,
        confinement: &mut Option<Confinement>,
        owner: Option<i32>,
    ) -> Result<EndpointInfo, HostError> {
        let mut attached = self.endpoints.attached();
        let endpoint = attached.endpoints.get_mut(key).ok_or_else(|| no_such(key))?;
        if let Some(known) = &endpoint.confinement {
            return Err(HostError::Confined { name: key.name.clone(), path: known.group().path().to_owned() });
        }
        if endpoint.endpoint.owner_pid != owner {
            // It was released in between.
            return Err(no_such(key));
        }
        endpoint.confinement = confinement.take();
        Ok(endpoint.info())
    }
}

/// A control group whose processes were killed: it is removed when they have ended.
struct Leftover {
    group: ControlGroup,
    since: Instant,
}

impl Job for Leftover {
    fn step(&mut self) -> bool {
        match self.group.kill() {
            Ok(true) => false,
            Ok(false) if self.since.elapsed() < PATIENCE => {
                std::thread::sleep(PAUSE);
                true
            }
            Ok(false) => {
                tracing::warn!(cgroup = %self.group.path().display(), "killed processes have not ended");
                false
            }
            Err(error) => {
                tracing::warn!(cgroup = %self.group.path().display(), %error, "cannot remove a control group");
                false
            }
        }
    }
}

fn unconfined(name: &Name, source: ConfineError) -> HostError {
    HostError::Unconfined { name: name.clone(), source }
}

/// Time in which killed processes end.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(5);
