//! Where endpoints and token URLs may lead: every form of the shared cases is refused when it is saved, and again when it
//! is changed. That requests are refused it once more is the transport's to prove.

use std::sync::Arc;

use http::Method;
use postrider_core::problem::Code;
use postrider_testkit::guard;
use serde_json::{Value, json};

use crate::{
    endpoints::PATH,
    surface::{Surface, Tenant},
};

const CREDENTIALS: &str = "/api/tenants/acme/credentials";

fn cases(list: &str) -> Vec<Value> {
    let file: Value =
        serde_json::from_str(include_str!("../../../../cases/ssrf-targets.json")).expect("JSON");
    file[list].as_array().expect("cases").clone()
}

/// What the names of the shared cases lead to, at the first look.
fn look_up(name: &str) -> Vec<std::net::IpAddr> {
    let all = cases("urls");
    let answers = all.iter().find_map(|case| case["dns"][name].as_array());
    let answers = match answers {
        Some(sequence) if sequence.first().is_some_and(Value::is_array) => sequence[0].as_array(),
        other => other,
    };
    let parse = |answer: &Value| answer.as_str().expect("text").parse().expect("address");
    answers.into_iter().flatten().map(parse).collect()
}

async fn world() -> (Surface, Tenant) {
    let surface = Surface::with(|settings| {
        settings.check_origin = Arc::new(guard::check_origin(|name| Ok(look_up(name))));
    })
    .await;
    let acme = surface.tenant("acme").await;
    (surface, acme)
}

/// Saves a URL in every place that takes one from a tenant; whether all of them took it, or none.
async fn is_saved(surface: &Surface, acme: &Tenant, url: &str) -> bool {
    let created = json!({"id": "hooks", "url": url}).to_string();
    let changed = json!({"url": url}).to_string();
    let exchange = json!({"tokenUrl": url, "clientId": "c", "clientSecret": "s"});
    let credential = json!({"id": "vendor", "oauth2ClientCredentials": exchange}).to_string();
    let warehouse = format!("{PATH}/warehouse");
    let mut taken = 0;
    for (method, path, body) in [
        (Method::POST, PATH, created),
        (Method::PATCH, warehouse.as_str(), changed),
        (Method::POST, CREDENTIALS, credential),
    ] {
        let reply = match method {
            Method::PATCH => surface.patch(path, &acme.owner, body).await,
            _ => surface.post_json(path, &acme.owner, body).await,
        };
        if reply.status.is_success() {
            taken += 1;
        } else {
            reply.expect_problem(Code::InvalidField);
        }
    }
    for made in [format!("{PATH}/hooks"), format!("{CREDENTIALS}/vendor")] {
        surface.delete(&made, &acme.owner).await;
    }
    assert!(taken == 0 || taken == 3, "{taken} of three places took {url}");
    taken == 3
}

#[tokio::test]
async fn no_form_of_an_address_that_is_not_public_is_saved() {
    let (surface, acme) = world().await;
    let mut checked = 0;
    for case in cases("urls") {
        let url = case["url"].as_str().expect("URL");
        // Plain HTTP must not be the only reason.
        let over_tls = url.replacen("http:", "https:", 1);
        let expected = match (case["stage"].as_str().expect("stage"), case["expect"].as_str().expect("word"))
        {
            (_, "either") => continue,
            // A query is for approved endpoints alone.
            (_, "must_allow") if url.contains('?') => false,
            // Against some of them nothing is known yet when they are saved.
            ("dns-sequence" | "redirect", _) | (_, "must_allow" | "must_fail") => true,
            (_, "must_block" | "must_reject") => false,
            (_, other) => panic!("unknown expectation {other}"),
        };
        assert_eq!(is_saved(&surface, &acme, &over_tls).await, expected, "{over_tls} {case}");
        checked += 1;
    }
    assert!(checked >= 40, "{checked}");
}

#[tokio::test]
async fn the_shared_addresses_are_saved_only_where_they_are_public() {
    let (surface, acme) = world().await;
    for case in cases("ips") {
        let address = case["ip"].as_str().expect("address");
        let host = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
        let url = format!("https://{host}/");
        assert_eq!(is_saved(&surface, &acme, &url).await, case["expect"] == "allow", "{case}");
    }
}
