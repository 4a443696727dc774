//! Requests about the tunnel to other hosts, and its keys.

use super::operation::{Operation, json, read, schema};
use super::refusal::Refusal;
use super::state::Api;
use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::routing::{get, post, put};
use rdmesh_fabric::api::{SetMeshKey, Tunnel};

/// The operations.
pub(super) fn operations() -> Vec<Operation> {
    vec![
        read("/v1/tunnel", "The tunnel to other hosts, and packets that were refused", json::<Tunnel>(), get(tunnel)),
        Operation {
            method: "put",
            path: "/v1/tunnel/key",
            summary: "Change the secret of the mesh",
            request: schema::<SetMeshKey>(),
            response: json::<Tunnel>(),
            handler: put(set_mesh_key),
        },
        Operation {
            method: "post",
            path: "/v1/tunnel/rotation",
            summary: "Replace this host's key pair, whose public half is in the cluster's store; the one before is accepted until all hosts know the new one",
            request: None,
            response: json::<Tunnel>(),
            handler: post(rotate_key),
        },
    ]
}

async fn tunnel(State(api): State<Api>) -> Result<Json<Tunnel>, Refusal> {
    Ok(Json(api.blocking(|host| host.tunnel_keys().tunnel()).await??))
}

async fn set_mesh_key(
    State(api): State<Api>,
    body: Result<Json<SetMeshKey>, JsonRejection>,
) -> Result<Json<Tunnel>, Refusal> {
    let Json(SetMeshKey { key }) = body?;
    Ok(Json(api.blocking(move |host| host.tunnel_keys().set_mesh(key)).await??))
}

async fn rotate_key(State(api): State<Api>) -> Result<Json<Tunnel>, Refusal> {
    Ok(Json(api.blocking(|host| host.rotate_key()).await??))
}
