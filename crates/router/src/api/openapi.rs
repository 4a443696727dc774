//! The OpenAPI description.

use super::operation::{Content, Operation, PCAP};
use rdmesh_fabric::api::ApiError;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

/// Describes `operations`.
pub(super) fn document(operations: &[Operation]) -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.definitions_path = "/components/schemas".into();
    let mut generator = settings.into_generator();
    let mut paths = Map::new();
    for operation in operations {
        let methods = paths.entry(operation.path).or_insert_with(|| json!({}));
        methods[operation.method] = describe(operation, &mut generator);
    }
    json!({
        "openapi": "3.1.0",
        "info": { "title": "rdmesh router", "version": env!("CARGO_PKG_VERSION"), "license": { "name": "Apache-2.0 OR MIT" } },
        "paths": paths,
        "components": { "schemas": generator.take_definitions(true) },
    })
}

fn describe(operation: &Operation, generator: &mut SchemaGenerator) -> Value {
    let answer = match operation.response {
        Content::Json(schema) | Content::Done(schema) => json!({ "application/json": { "schema": schema(generator) } }),
        Content::Text => json!({ "text/plain": { "schema": { "type": "string" } } }),
        Content::Pcap => json!({ PCAP: {} }),
    };
    let refusal = generator.subschema_for::<ApiError>();
    let makes_nothing = matches!(operation.response, Content::Done(_));
    let success =
        if operation.method == "post" && operation.request.is_some() && !makes_nothing { "201" } else { "200" };
    let mut description = json!({
        "summary": operation.summary,
        "operationId": operation_id(operation),
        "parameters": parameters(operation.path),
        "responses": {
            success: { "description": "Done", "content": answer },
            "default": { "description": "Refused", "content": { "application/json": { "schema": refusal } } },
        },
    });
    if let Some(schema) = operation.request {
        let content = json!({ "application/json": { "schema": schema(generator) } });
        description["requestBody"] = json!({ "required": true, "content": content });
    }
    description
}

fn parameters(path: &str) -> Vec<Value> {
    let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    names.map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } })).collect()
}

/// `get_v1_endpoints_network_name`.
fn operation_id(operation: &Operation) -> String {
    let words = operation.path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.fold(operation.method.to_owned(), |id, word| format!("{id}_{word}"))
}

#[cfg(test)]
mod tests {
    use super::super::routes::operations;
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_operation_is_described_once_and_every_reference_leads_somewhere() {
        let operations = operations();
        let document = document(&operations);
        let ids: BTreeSet<String> = operations.iter().map(operation_id).collect();
        assert_eq!(ids.len(), operations.len());
        for operation in &operations {
            let described = &document["paths"][operation.path][operation.method];
            assert_eq!(described["summary"], operation.summary);
        }
        let mut references = Vec::new();
        collect_references(&document, &mut references);
        assert!(!references.is_empty());
        for reference in references {
            assert!(document.pointer(reference.trim_start_matches('#')).is_some(), "{reference}");
        }
    }

    #[test]
    fn what_makes_nothing_answers_200() {
        let document = document(&operations());
        let of = |path: &str| document["paths"][path]["post"]["responses"].clone();
        assert!(of("/v1/endpoints/{network}/{name}/chain")["200"].is_object());
        assert!(of("/v1/endpoints/{network}/{name}/chain-trace")["200"].is_object());
        assert!(of("/v1/endpoints")["201"].is_object());
    }

    #[test]
    fn answers_that_are_not_json_have_their_own_types() {
        let document = document(&operations());
        let of = |path: &str| document["paths"][path]["get"]["responses"]["200"]["content"].clone();
        assert_eq!(of("/v1/captures/{id}"), json!({ "application/vnd.tcpdump.pcap": {} }));
        assert!(of("/metrics").get("text/plain").is_some());
        assert!(of("/v1/status").get("application/json").is_some());
    }

    fn collect_references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(members) => {
                found.extend(members.get("$ref").and_then(Value::as_str).map(str::to_owned));
                members.values().for_each(|member| collect_references(member, found));
            }
            Value::Array(items) => items.iter().for_each(|item| collect_references(item, found)),
            _ => {}
        }
    }
}
