//! API operations on other hosts, attached interfaces and injected faults.

use super::operation::{Content, Operation, json, parse_name, read, schema};
use super::refusal::Refusal;
use super::state::Api;
use crate::daemon::Faults;
use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{delete, get, post, put};
use rdmesh_fabric::api::{AttachInterface, FaultsText, SetPeer};
use rdmesh_fabric::{Host, Peer, PeerEndpoint, Peers};
use std::fmt::Display;
use std::net::IpAddr;

/// The API's operations on them.
pub(super) fn operations() -> Vec<Operation> {
    vec![
        read(PEERS, "The other hosts", json::<Peers>(), get(peers)),
        Operation {
            method: "put",
            path: PEER,
            summary: "Add another host, or change its address or its key",
            request: schema::<SetPeer>(),
            response: json::<Host>(),
            handler: put(set_peer),
        },
        removal(PEER, "Remove another host with its endpoints", json::<Peer>(), delete(remove_peer)),
        Operation {
            method: "post",
            path: "/v1/peers/{host}/endpoints",
            summary: "Add an endpoint of another host",
            request: schema::<PeerEndpoint>(),
            response: json::<PeerEndpoint>(),
            handler: post(add_endpoint),
        },
        removal(
            "/v1/peers/{host}/endpoints/{network}/{address}",
            "Remove an endpoint of another host",
            json::<PeerEndpoint>(),
            delete(remove_endpoint),
        ),
        read(INTERFACES, "The host's interfaces that are part of a network", json::<Vec<String>>(), get(interfaces)),
        Operation {
            method: "post",
            path: INTERFACES,
            summary: "Make an interface of the host a part of a network",
            request: schema::<AttachInterface>(),
            response: json::<Vec<String>>(),
            handler: post(attach),
        },
        removal(
            "/v1/networks/{network}/interfaces/{interface}",
            "Give an interface back to the host",
            json::<Vec<String>>(),
            delete(detach),
        ),
        read(FAULTS, "The injected faults", json::<FaultsText>(), get(faults)),
        Operation {
            method: "put",
            path: FAULTS,
            summary: "Inject faults into traffic from other hosts, or end them",
            request: schema::<FaultsText>(),
            response: json::<FaultsText>(),
            handler: put(set_faults),
        },
    ]
}

fn removal(
    path: &'static str,
    summary: &'static str,
    response: Content,
    handler: axum::routing::MethodRouter<Api>,
) -> Operation {
    Operation { method: "delete", path, summary, request: None, response, handler }
}

type Body<T> = Result<Json<T>, JsonRejection>;

async fn peers(State(api): State<Api>) -> Result<Json<Peers>, Refusal> {
    Ok(Json(api.blocking(|host| host.peers().all()).await??))
}

async fn set_peer(
    State(api): State<Api>,
    Path(name): Path<String>,
    body: Body<SetPeer>,
) -> Result<Json<Host>, Refusal> {
    let (name, Json(SetPeer { address, key })) = (parse_name(name)?, body?);
    Ok(Json(api.blocking(move |host| host.peers().set(Host::new(name, address), key)).await??))
}

async fn remove_peer(State(api): State<Api>, Path(name): Path<String>) -> Result<Json<Peer>, Refusal> {
    let name = parse_name(name)?;
    Ok(Json(api.blocking(move |host| host.peers().remove(&name)).await??))
}

async fn add_endpoint(
    State(api): State<Api>,
    Path(name): Path<String>,
    body: Body<PeerEndpoint>,
) -> Result<(StatusCode, Json<PeerEndpoint>), Refusal> {
    let (name, Json(endpoint)) = (parse_name(name)?, body?);
    let added = api.blocking(move |host| host.peers().add_endpoint(&name, endpoint)).await??;
    Ok((StatusCode::CREATED, Json(added)))
}

async fn remove_endpoint(
    State(api): State<Api>,
    Path((name, network, address)): Path<(String, String, String)>,
) -> Result<Json<PeerEndpoint>, Refusal> {
    let (name, network) = (parse_name(name)?, parse_name(network)?);
    let address: IpAddr = address.parse().map_err(bad_request)?;
    Ok(Json(api.blocking(move |host| host.peers().remove_endpoint(&name, &network, address)).await??))
}

async fn interfaces(State(api): State<Api>, Path(network): Path<String>) -> Result<Json<Vec<String>>, Refusal> {
    let network = parse_name(network)?;
    Ok(Json(api.blocking(move |host| host.interfaces().all(&network)).await??))
}

async fn attach(
    State(api): State<Api>,
    Path(network): Path<String>,
    body: Body<AttachInterface>,
) -> Result<(StatusCode, Json<Vec<String>>), Refusal> {
    let (network, Json(AttachInterface { interface, vni })) = (parse_name(network)?, body?);
    let attached = api.blocking(move |host| host.interfaces().attach(&network, vni, &interface)).await??;
    Ok((StatusCode::CREATED, Json(attached)))
}

async fn detach(
    State(api): State<Api>,
    Path((network, interface)): Path<(String, String)>,
) -> Result<Json<Vec<String>>, Refusal> {
    let network = parse_name(network)?;
    Ok(Json(api.blocking(move |host| host.interfaces().detach(&network, &interface)).await??))
}

async fn faults(State(api): State<Api>) -> Result<Json<FaultsText>, Refusal> {
    Ok(Json(text(api.blocking(|host| host.faults().present()).await?)))
}

async fn set_faults(State(api): State<Api>, body: Body<FaultsText>) -> Result<Json<FaultsText>, Refusal> {
    let Json(FaultsText { faults }) = body?;
    let faults: Option<Faults> = faults.map(|text| text.parse().map_err(bad_request)).transpose()?;
    api.blocking(move |host| host.faults().set(faults)).await?;
    Ok(Json(text(faults)))
}

fn text(faults: Option<Faults>) -> FaultsText {
    FaultsText { faults: faults.map(|faults| faults.to_string()) }
}

fn bad_request(error: impl Display) -> Refusal {
    Refusal(StatusCode::BAD_REQUEST, error.to_string())
}

const PEERS: &str = "/v1/peers";
const PEER: &str = "/v1/peers/{host}";
const INTERFACES: &str = "/v1/networks/{network}/interfaces";
const FAULTS: &str = "/v1/faults";
