use postrider_core::{header::CustomHeaders, name::EventType};
use serde_json::Value;

fn cases(list: &str) -> Vec<Value> {
    let file: Value =
        serde_json::from_str(include_str!("../../../../cases/header-and-name-injection.json")).expect("JSON");
    file[list].as_array().expect("cases").clone()
}

#[test]
fn custom_headers() {
    for case in cases("headers") {
        let (name, value) = (case["name"].as_str().expect("name"), case["value"].as_str().expect("value"));
        let verdict = CustomHeaders::from_pairs([(name, value)]);
        assert_eq!(verdict.is_ok(), case["expect"] == "accept", "{case}: {verdict:?}");
    }
}

#[test]
fn event_types() {
    for case in cases("event_types") {
        let verdict = case["event_type"].as_str().expect("event type").parse::<EventType>();
        assert_eq!(verdict.is_ok(), case["expect"] == "accept", "{case}: {verdict:?}");
    }
}
