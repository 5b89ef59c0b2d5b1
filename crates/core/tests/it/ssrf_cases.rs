use std::net::IpAddr;

use postrider_core::{
    address,
    destination::{Destination, Host, UrlPolicy},
};
use serde_json::Value;

fn cases(list: &str) -> Vec<Value> {
    let file: Value =
        serde_json::from_str(include_str!("../../../../cases/ssrf-targets.json")).expect("JSON");
    file[list].as_array().expect("cases").clone()
}

#[test]
fn addresses() {
    for case in cases("ips") {
        let address: IpAddr = case["ip"].as_str().expect("address").parse().expect("address");
        let verdict = address::check(&address::Policy::default(), address);
        assert_eq!(verdict.is_ok(), case["expect"] == "allow", "{case}: {verdict:?}");
    }
}

/// What a URL says of itself: refused outright, or every address it would be connected to by lookup.
fn is_allowed(text: &str, case: &Value, url: UrlPolicy) -> bool {
    let closed = address::Policy::default();
    let Ok(destination) = Destination::parse(text, &url, &closed) else { return false };
    match &destination.origin().host {
        Host::Address(_) => true,
        Host::Name(name) => case["dns"][&**name].as_array().is_some_and(|answers| {
            let addresses =
                answers.iter().map(|answer| answer.as_str().expect("address").parse().expect("address"));
            addresses.map(|address| address::check(&closed, address)).all(|verdict| verdict.is_ok())
        }),
    }
}

#[test]
fn urls() {
    for case in cases("urls") {
        let text = case["url"].as_str().expect("URL");
        let vendor = UrlPolicy { allow_query: true, allow_loopback_http: false };
        match (case["stage"].as_str(), case["expect"].as_str()) {
            // They depend on what happens after the first lookup or answer: the transport's tests hold them.
            (Some("dns-sequence" | "redirect"), _) | (_, Some("either" | "must_fail")) => {}
            (_, Some("must_block" | "must_reject")) => {
                assert!(!is_allowed(text, &case, vendor), "{case}");
                // The scheme must not be the only reason.
                let over_tls = text.replacen("http:", "https:", 1).replacen("HTTP:", "https:", 1);
                assert!(!is_allowed(&over_tls, &case, vendor), "{over_tls} {case}");
            }
            (_, Some("must_allow")) => {
                let policy = UrlPolicy { allow_query: text.contains('?'), allow_loopback_http: false };
                assert!(is_allowed(text, &case, policy), "{case}");
            }
            (_, other) => panic!("unknown expectation {other:?}"),
        }
    }
}
