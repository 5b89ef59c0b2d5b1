//! The registry's file meets the same cases as the API: what would be refused there is refused here.

use postrider_core::{
    address,
    destination::{Destination, UrlPolicy},
    header::CustomHeaders,
    registry::{Policies, Refusal, Registry},
};
use serde_json::{Value, json};

fn cases(file: &str, list: &str) -> Vec<Value> {
    let file: Value = serde_json::from_str(file).expect("JSON");
    file[list].as_array().expect("cases").clone()
}

/// A file in JSON, which is YAML, too.
fn parse(entry: &Value) -> Result<Registry, Refusal> {
    let file = json!({ "tenants": { "acme": { "endpoints": { "vendor": entry } } } }).to_string();
    let addresses = address::Policy::default();
    Registry::parse(&file, Policies { url: UrlPolicy::default(), addresses: &addresses })
}

#[test]
fn urls_are_refused_as_anywhere() {
    let mut refused = 0;
    for case in cases(include_str!("../../../../cases/ssrf-targets.json"), "urls") {
        let text = case["url"].as_str().expect("URL");
        // The scheme must not be the only reason.
        let over_tls = text.replacen("http:", "https:", 1).replacen("HTTP:", "https:", 1);
        for text in [text, &over_tls] {
            let vendor = UrlPolicy { allow_query: true, allow_loopback_http: false };
            let is_allowed = Destination::parse(text, &vendor, &address::Policy::default()).is_ok();
            let verdict = parse(&json!({ "url": text, "allowQuery": true }));
            assert_eq!(verdict.is_ok(), is_allowed, "{text:?}: {verdict:?}");
            refused += usize::from(!is_allowed);
            if text.contains('?') {
                assert!(parse(&json!({ "url": text })).is_err(), "a query must be allowed: {text:?}");
            }
        }
    }
    assert!(refused > 20, "{refused} cases were refused");
}

#[test]
fn headers_are_refused_as_anywhere() {
    let mut refused = 0;
    for case in cases(include_str!("../../../../cases/header-and-name-injection.json"), "headers") {
        let (name, value) = (case["name"].as_str().expect("name"), case["value"].as_str().expect("value"));
        let headers = CustomHeaders::from_pairs([(name, value)]);
        let entry = json!({ "url": "https://example.com/", "headers": { name: value } });
        match (parse(&entry), headers) {
            (Ok(registry), Ok(headers)) => {
                let endpoints = registry.tenants.into_values().flatten();
                let read: Vec<CustomHeaders> = endpoints.map(|(_, endpoint)| endpoint.headers).collect();
                assert_eq!(read, [headers], "{case}");
            }
            (Err(refusal), Err(_)) => {
                // A single letter stands in every text.
                assert!(value.len() < 4 || !refusal.to_string().contains(value), "{case}: {refusal}");
                refused += 1;
            }
            (read, headers) => panic!("{case}: {read:?}, not {headers:?}"),
        }
    }
    assert!(refused > 5, "{refused} cases were refused");
}
