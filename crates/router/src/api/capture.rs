//! Packet capture operations of the API.

use super::operation::{Content, Operation, PCAP, json, read, schema};
use super::refusal::Refusal;
use super::state::Api;
use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{delete, get, post};
use rdmesh_fabric::api::{Capture, CaptureEnd, StartCapture};
use std::time::Duration;

/// The API's operations on captures.
pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation {
            method: "post",
            path: "/v1/captures",
            summary: "Begin to capture an endpoint's packets",
            request: schema::<StartCapture>(),
            response: json::<Capture>(),
            handler: post(start),
        },
        read(
            CAPTURE,
            "What was captured since the last time, as the next part of a pcap file",
            Content::Pcap,
            get(next),
        ),
        Operation {
            method: "delete",
            path: CAPTURE,
            summary: "End a capture",
            request: None,
            response: json::<CaptureEnd>(),
            handler: delete(stop),
        },
    ]
}

async fn start(
    State(api): State<Api>,
    request: Result<Json<StartCapture>, JsonRejection>,
) -> Result<(StatusCode, Json<Capture>), Refusal> {
    let Json(StartCapture { network, endpoint, snap_len }) = request?;
    let id = api.blocking(move |host| host.start_capture(network, endpoint, snap_len)).await??;
    tokio::spawn(watch(api));
    Ok((StatusCode::CREATED, Json(Capture { id })))
}

/// Ends captures that are not read any more, until there are none.
async fn watch(api: Api) {
    while let Ok(true) = api.blocking(|host| host.captures().end_abandoned()).await {
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
}

async fn next(State(api): State<Api>, Path(id): Path<u32>) -> Result<impl IntoResponse, Refusal> {
    let part = api.blocking(move |host| host.captures().read(id)).await?.ok_or_else(|| gone(id))?;
    Ok(([(header::CONTENT_TYPE, PCAP)], part))
}

async fn stop(State(api): State<Api>, Path(id): Path<u32>) -> Result<Json<CaptureEnd>, Refusal> {
    let lost = api.blocking(move |host| host.captures().stop(id)).await?.ok_or_else(|| gone(id))?;
    Ok(Json(CaptureEnd { lost }))
}

fn gone(id: u32) -> Refusal {
    Refusal(StatusCode::NOT_FOUND, format!("there is no capture {id}: one that is not read for ten seconds ends"))
}

const CAPTURE: &str = "/v1/captures/{id}";
