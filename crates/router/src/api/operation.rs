//! Description of one operation of the API.

use super::refusal::Refusal;
use super::state::Api;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::routing::MethodRouter;
use rdmesh_fabric::Name;
use schemars::{JsonSchema, Schema, SchemaGenerator};

/// One operation of the API.
pub(super) struct Operation {
    /// HTTP method, in lower case.
    pub(super) method: &'static str,
    /// Path, with `{names}` for its variable parts.
    pub(super) path: &'static str,
    /// Its summary.
    pub(super) summary: &'static str,
    /// Type of the request's body.
    pub(super) request: Option<SchemaOf>,
    /// The answer's body.
    pub(super) response: Content,
    /// Does it.
    pub(super) handler: MethodRouter<Api>,
}

/// Body of an answer.
pub(super) enum Content {
    /// JSON of a type.
    Json(SchemaOf),
    /// The same of a POST that makes nothing.
    Done(SchemaOf),
    /// Plain text.
    Text,
    /// A part of a pcap file.
    Pcap,
}

/// JSON of type `T`.
pub(super) fn json<T: JsonSchema>() -> Content {
    Content::Json(|generator| generator.subschema_for::<T>())
}

/// JSON of type `T`, from a POST that makes nothing: it is answered with 200, and not with 201.
pub(super) fn done<T: JsonSchema>() -> Content {
    Content::Done(|generator| generator.subschema_for::<T>())
}

/// Writes down a type.
pub(super) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// Reads something.
pub(super) fn read(
    path: &'static str,
    summary: &'static str,
    response: Content,
    handler: MethodRouter<Api>,
) -> Operation {
    Operation { method: "get", path, summary, request: None, response, handler }
}

/// The names in a path.
pub(super) fn names(Path((network, name)): Path<(String, String)>) -> Result<(Name, Name), Refusal> {
    Ok((parse_name(network)?, parse_name(name)?))
}

/// Writes down the type of a body.
pub(super) fn schema<T: JsonSchema>() -> Option<SchemaOf> {
    Some(|generator| generator.subschema_for::<T>())
}

/// A name in a path.
pub(super) fn parse_name(text: String) -> Result<Name, Refusal> {
    Name::try_from(text).map_err(|e| Refusal(StatusCode::BAD_REQUEST, e.to_string()))
}

/// Media type of pcap files.
pub(super) const PCAP: &str = "application/vnd.tcpdump.pcap";
