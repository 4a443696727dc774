//! Error responses of the API.

use crate::daemon::{ChainError, HostError, MoveError};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Json, extract};
use rdmesh_fabric::RegistryError;
use rdmesh_fabric::api::ApiError;
use rdmesh_fabric::cluster::ClusterError;

/// An error response.
#[derive(Debug)]
pub(super) struct Refusal(pub(super) StatusCode, pub(super) String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, Json(ApiError { error: self.1 })).into_response()
    }
}

impl From<HostError> for Refusal {
    fn from(error: HostError) -> Self {
        let status = match &error {
            HostError::Registry(registry) => of_registry(registry),
            HostError::Cluster(cluster) => of_cluster(cluster),
            HostError::NotJoined | HostError::StoreAway => StatusCode::SERVICE_UNAVAILABLE,
            HostError::NoSuchPool { .. }
            | HostError::NoSuchPolicy(_)
            | HostError::NoSuchGroup { .. }
            | HostError::Move(MoveError::NoDevice)
            | HostError::Chain(ChainError::NoSuchChain) => StatusCode::NOT_FOUND,
            HostError::PoolEmpty { .. }
            | HostError::PoolInUse { .. }
            | HostError::PoolDiffers(_)
            | HostError::OfPool { .. }
            | HostError::Confined { .. }
            | HostError::NotAcquired { .. } => StatusCode::CONFLICT,
            HostError::Chain(ChainError::Ended | ChainError::NoRoom) => StatusCode::CONFLICT,
            HostError::Overlay(error) if error.is_conflict() => StatusCode::CONFLICT,
            HostError::Move(MoveError::NoSuchWorker { .. })
            | HostError::Rootless
            | HostError::Unconfined { .. }
            | HostError::OfNoPool(_)
            | HostError::EntersOne
            | HostError::Given(_)
            | HostError::NeedlessNetns
            | HostError::MissingNetns
            | HostError::MissingPool
            | HostError::NeedlessInterface
            | HostError::NoNamespaces
            | HostError::NoUnderlay
            | HostError::OwnHost(_)
            | HostError::NoKey(_)
            | HostError::Insecure
            | HostError::KeysInStore
            | HostError::NoKeysInStore
            | HostError::Family { .. }
            | HostError::NoRouterAt(_)
            | HostError::NoAddressFor(_)
            | HostError::ProbeCount(_)
            | HostError::Owner { .. } => StatusCode::BAD_REQUEST,
            HostError::TooManyProbes => StatusCode::TOO_MANY_REQUESTS,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        if status.is_server_error() {
            tracing::warn!(%error, "a request failed");
        }
        Self(status, error.to_string())
    }
}

fn of_registry(registry: &RegistryError) -> StatusCode {
    match registry {
        RegistryError::EndpointExists { .. }
        | RegistryError::AddressTaken { .. }
        | RegistryError::VniDiffers { .. }
        | RegistryError::VniTaken { .. }
        | RegistryError::NetworkExists(_)
        | RegistryError::TooManyNetworks(_)
        | RegistryError::TooManyEndpoints(_)
        | RegistryError::TenantInUse(_)
        | RegistryError::NetworkInUse { .. }
        | RegistryError::HostAddressTaken { .. } => StatusCode::CONFLICT,
        RegistryError::NoSuchEndpoint { .. }
        | RegistryError::NoSuchHost(_)
        | RegistryError::NoSuchNetwork(_)
        | RegistryError::NoSuchTenant(_)
        | RegistryError::NoSuchAddress { .. } => StatusCode::NOT_FOUND,
        RegistryError::NetworkFull(_) | RegistryError::NoVniLeft => StatusCode::INSUFFICIENT_STORAGE,
        RegistryError::Store(_) => StatusCode::SERVICE_UNAVAILABLE,
        RegistryError::NotInNetwork { .. }
        | RegistryError::TooManyAddresses
        | RegistryError::NoAddress
        | RegistryError::InvalidVni(_)
        | RegistryError::VniUnknown(_)
        | RegistryError::Invalid(_)
        | RegistryError::Scope(_)
        | RegistryError::Name(_) => StatusCode::BAD_REQUEST,
    }
}

fn of_cluster(error: &ClusterError) -> StatusCode {
    match error {
        ClusterError::Exists { .. }
        | ClusterError::VniTaken { .. }
        | ClusterError::TooManyNetworks(_)
        | ClusterError::TenantInUse(_)
        | ClusterError::InUse(_)
        | ClusterError::AddressTaken { .. }
        | ClusterError::Elsewhere { .. } => StatusCode::CONFLICT,
        ClusterError::Missing { .. } => StatusCode::NOT_FOUND,
        ClusterError::NetworkFull(_) => StatusCode::INSUFFICIENT_STORAGE,
        ClusterError::Invalid(_) | ClusterError::NotInNetwork { .. } => StatusCode::BAD_REQUEST,
        ClusterError::Store(_)
        | ClusterError::Unreadable { .. }
        | ClusterError::Lapsed
        | ClusterError::Contended(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

impl From<extract::rejection::JsonRejection> for Refusal {
    fn from(rejection: extract::rejection::JsonRejection) -> Self {
        Self(rejection.status(), rejection.body_text())
    }
}
