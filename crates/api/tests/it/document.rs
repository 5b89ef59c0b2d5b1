//! The OpenAPI document: complete, and the one that is committed.

use std::collections::HashSet;

use serde_json::Value;

use crate::surface::Surface;

fn operations(document: &Value) -> impl Iterator<Item = (String, &Value)> {
    document["paths"].as_object().expect("paths").iter().flat_map(|(path, item)| {
        let operations = item.as_object().expect("path item").iter();
        operations.map(move |(method, operation)| (format!("{method} {path}"), operation))
    })
}

#[test]
fn the_committed_document_is_the_generated_one() {
    let committed = include_str!("../../../../openapi.json");
    let generated = postrider_api::document();
    let difference = committed.lines().zip(generated.lines()).enumerate().find(|(_, (old, new))| old != new);
    assert!(
        committed == generated,
        "openapi.json is out of date (first difference: {difference:?}); run `postrider openapi > openapi.json`"
    );
}

#[tokio::test]
async fn the_served_document_is_the_generated_one() {
    let surface = Surface::new().await;
    let reply = surface.get("/openapi.json", "").await;
    assert_eq!(reply.expect(200)["openapi"], "3.1.0");
    assert_eq!(reply.body, postrider_api::document().as_bytes());
}

#[test]
fn every_operation_says_what_it_does_and_how_it_fails() {
    let document: Value = serde_json::from_str(&postrider_api::document()).expect("JSON");
    let mut ids = HashSet::new();
    for (name, operation) in operations(&document) {
        let id = operation["operationId"].as_str().unwrap_or_else(|| panic!("{name} has no operationId"));
        assert!(ids.insert(id), "{id} is there twice");
        assert!(operation["summary"].as_str().is_some_and(|text| !text.is_empty()), "{name} has no summary");
        assert_eq!(operation["tags"].as_array().map(Vec::len), Some(1), "{name}");

        if id.starts_with("list_") {
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let query: Vec<&Value> = parameters.filter(|parameter| parameter["in"] == "query").collect();
            for name in ["limit", "cursor"] {
                assert!(query.iter().any(|parameter| parameter["name"] == name), "{id} has no {name}");
            }
        }

        let responses = operation["responses"].as_object().expect("responses");
        let has = |status: &str| responses.contains_key(status);
        assert!(responses.keys().any(|status| status.starts_with('2')), "{name} never succeeds");
        assert!(has("500"), "{name}");
        if operation.get("security").is_some() {
            assert!(has("401") && has("403") && has("503"), "{name}");
        }
        if name.contains('{') {
            assert!(has("404"), "{name}");
        }
        if operation.get("requestBody").is_some() {
            assert!(["400", "408", "413", "415", "422"].into_iter().all(has), "{name}");
        }
        for (status, response) in responses {
            assert!(response["description"].as_str().is_some_and(|text| !text.is_empty()), "{name} {status}");
            // Health answers 503 with the state of each dependency instead.
            if status.starts_with(['4', '5']) && !(name.contains("/health") && status == "503") {
                let schema = &response["content"]["application/problem+json"]["schema"]["$ref"];
                assert_eq!(schema, "#/components/schemas/Problem", "{name} {status}");
            }
        }
        let declared: Vec<&str> = operation["parameters"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|parameter| (parameter["in"] == "path").then(|| parameter["name"].as_str()).flatten())
            .collect();
        let in_path: Vec<&str> = name.split(['{', '}']).skip(1).step_by(2).collect();
        assert_eq!(declared, in_path, "{name}");
    }
    assert!(ids.len() >= 14);
}

/// Every reference leads somewhere, and every credential is described.
#[test]
fn the_document_is_closed() {
    let document: Value = serde_json::from_str(&postrider_api::document()).expect("JSON");
    check_references(&document, &document);
    for (name, operation) in operations(&document) {
        for scheme in operation["security"].as_array().into_iter().flatten() {
            for scheme in scheme.as_object().expect("scheme").keys() {
                assert!(document["components"]["securitySchemes"].get(scheme).is_some(), "{name}: {scheme}");
            }
        }
    }
}

fn check_references(document: &Value, value: &Value) {
    match value {
        Value::Object(members) => {
            if let Some(reference) = members.get("$ref").and_then(Value::as_str) {
                let pointer = reference.strip_prefix('#').expect("a local reference");
                assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
            }
            members.values().for_each(|value| check_references(document, value));
        }
        Value::Array(values) => values.iter().for_each(|value| check_references(document, value)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
