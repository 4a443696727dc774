//! Operations on tenants, networks and security groups.

use super::operation::{Operation, json, names, parse_name, read, schema};
use super::refusal::Refusal;
use super::state::Api;
use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{delete, get, post, put};
use rdmesh_fabric::api::CreateNetwork;
use rdmesh_fabric::{Endpoint, Network, SecurityGroup, Tenant};

/// The operations.
pub(super) fn operations() -> Vec<Operation> {
    let change = |method, path, summary, request, response, handler| Operation {
        method,
        path,
        summary,
        request,
        response,
        handler,
    };
    let (group, tenant) = (schema::<SecurityGroup>(), schema::<Tenant>());
    vec![
        read("/v1/tenants", "All tenants that have limits", json::<Vec<Tenant>>(), get(tenants)),
        change("put", "/v1/tenants", "Add a tenant, or change its limits", tenant, json::<Tenant>(), put(set_tenant)),
        change(
            "delete",
            "/v1/tenants/{name}",
            "Remove a tenant that has no networks",
            None,
            json::<()>(),
            delete(remove_tenant),
        ),
        read(
            "/v1/networks/{network}/endpoints",
            "The endpoints of a network, on all hosts of the cluster",
            json::<Vec<Endpoint>>(),
            get(endpoints),
        ),
        change(
            "post",
            "/v1/networks",
            "Make a network",
            schema::<CreateNetwork>(),
            json::<Network>(),
            post(add_network),
        ),
        change(
            "delete",
            "/v1/networks/{network}",
            "Remove a network that nothing is on",
            None,
            json::<()>(),
            delete(remove_network),
        ),
        read("/v1/groups", "All security groups", json::<Vec<SecurityGroup>>(), get(groups)),
        change(
            "put",
            "/v1/groups",
            "Add a security group, or change one",
            group,
            json::<SecurityGroup>(),
            put(set_group),
        ),
        change(
            "delete",
            "/v1/groups/{network}/{name}",
            "Remove a security group",
            None,
            json::<()>(),
            delete(remove_group),
        ),
    ]
}

async fn tenants(State(api): State<Api>) -> Result<Json<Vec<Tenant>>, Refusal> {
    Ok(Json(api.blocking(|host| host.records().tenants()).await??))
}

async fn set_tenant(
    State(api): State<Api>,
    request: Result<Json<Tenant>, JsonRejection>,
) -> Result<Json<Tenant>, Refusal> {
    let Json(tenant) = request?;
    let asked = tenant.clone();
    api.blocking(move |host| host.records().set_tenant(&asked)).await??;
    Ok(Json(tenant))
}

async fn remove_tenant(State(api): State<Api>, Path(name): Path<String>) -> Result<Json<()>, Refusal> {
    let name = parse_name(name)?;
    api.blocking(move |host| host.records().remove_tenant(&name)).await??;
    Ok(Json(()))
}

async fn add_network(
    State(api): State<Api>,
    request: Result<Json<CreateNetwork>, JsonRejection>,
) -> Result<(StatusCode, Json<Network>), Refusal> {
    let Json(request) = request?;
    let made = api.blocking(move |host| host.records().add_network(request.into())).await??;
    Ok((StatusCode::CREATED, Json(made)))
}

async fn remove_network(State(api): State<Api>, Path(network): Path<String>) -> Result<Json<()>, Refusal> {
    let network = parse_name(network)?;
    api.blocking(move |host| host.remove_network(&network)).await??;
    Ok(Json(()))
}

async fn endpoints(State(api): State<Api>, Path(network): Path<String>) -> Result<Json<Vec<Endpoint>>, Refusal> {
    let network = parse_name(network)?;
    Ok(Json(api.blocking(move |host| host.records().endpoints(&network)).await??))
}

async fn groups(State(api): State<Api>) -> Result<Json<Vec<SecurityGroup>>, Refusal> {
    Ok(Json(api.blocking(|host| host.records().groups()).await??))
}

async fn set_group(
    State(api): State<Api>,
    request: Result<Json<SecurityGroup>, JsonRejection>,
) -> Result<Json<SecurityGroup>, Refusal> {
    let Json(group) = request?;
    let asked = group.clone();
    api.blocking(move |host| host.records().set_group(&asked)).await??;
    Ok(Json(group))
}

async fn remove_group(State(api): State<Api>, key: Path<(String, String)>) -> Result<Json<()>, Refusal> {
    let (network, name) = names(key)?;
    api.blocking(move |host| host.records().remove_group(&network, &name)).await??;
    Ok(Json(()))
}
