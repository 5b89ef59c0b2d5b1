//! What an endpoint's owner may ask for, on creation and in a merge patch.

use std::{io, net::IpAddr, sync::Arc};

use postrider_core::{destination, name, problem::Code, retry::Policy};
use postrider_store::endpoints::{Rate, Settings};
use postrider_testkit::guard;
use serde_json::{Value, json};

use crate::{
    endpoints::{HOOKS, PATH, create},
    surface::Surface,
};

/// Hosts by what they resolve to.
async fn surface() -> Surface {
    Surface::with(|settings| {
        settings.check_origin = Arc::new(guard::check_origin(|name| {
            let public = IpAddr::from([93, 184, 215, 14]);
            match name {
                "internal.example.com" => Ok(vec![IpAddr::from([10, 0, 0, 1])]),
                "mixed.example.com" => Ok(vec![public, IpAddr::from([169, 254, 169, 254])]),
                "mapped.example.com" => Ok(vec!["::ffff:127.0.0.1".parse().expect("address")]),
                "unknown.example.com" => Err(io::ErrorKind::NotFound.into()),
                "empty.example.com" => Ok(Vec::new()),
                _ => Ok(vec![public]),
            }
        }));
    })
    .await
}

/// Or a tenant could read the installation's internal names, one refusal after the other.
#[tokio::test]
async fn a_refusal_names_the_range_and_not_the_address_that_a_name_led_to() {
    let surface = surface().await;
    let acme = surface.tenant("acme").await;
    for (name, address, range) in [
        ("internal.example.com", "10.0.0.1", "private network (10.0.0.0/8)"),
        ("mixed.example.com", "169.254.169.254", "metadata service of a cloud"),
        ("mapped.example.com", "127.0.0.1", "loopback (127.0.0.0/8)"),
    ] {
        let body = json!({"id": "hooks", "url": format!("https://{name}/")}).to_string();
        let problem = surface.post_json(PATH, &acme.developer, body).await.expect_problem(Code::InvalidField);
        let detail = problem["errors"][0]["detail"].as_str().expect("detail");
        assert_eq!(detail, format!("{name} leads to an address that is not public: {range}"));
        assert!(!problem.to_string().contains(address), "{problem}");
    }
}

#[tokio::test]
async fn only_urls_that_deliveries_may_reach_are_taken() {
    let surface = surface().await;
    let acme = surface.tenant("acme").await;
    let (endpoints, keys) = (surface.count("endpoints").await, surface.count("signing_keys").await);
    for url in [
        "",
        "example.com",
        "http://example.com/",
        "ftp://example.com/",
        "https://user:password@example.com/",
        "https://example.com/#part",
        "https://example.com/?token=hidden",
        "https://example.com:0/",
        "https://exa mple.com/",
        "https://localhost/",
        "https://127.0.0.1/",
        "https://0x7f.1/",
        "https://[::1]/",
        "https://10.1.2.3/",
        "https://169.254.169.254/latest/meta-data",
        "https://internal.example.com/",
        "https://mixed.example.com/",
        "https://mapped.example.com/",
        &format!("https://example.com/{}", "a".repeat(2048)),
    ] {
        let body = json!({"id": "hooks", "url": url}).to_string();
        let problem = surface.post_json(PATH, &acme.developer, body).await.expect_problem(Code::InvalidField);
        assert_eq!(problem["errors"][0]["field"], "url", "{url}: {problem}");
        assert!(
            !problem.to_string().contains("hidden") && !problem.to_string().contains("password@"),
            "{problem}"
        );
        let change = json!({"url": url}).to_string();
        surface
            .patch(&format!("{PATH}/warehouse"), &acme.developer, change)
            .await
            .expect_problem(Code::InvalidField);
    }
    assert_eq!((surface.count("endpoints").await, surface.count("signing_keys").await), (endpoints, keys));
    let kept = surface.get(&format!("{PATH}/warehouse"), &acme.viewer).await.expect(200);
    assert_eq!(kept["url"], "https://warehouse.example/hooks");

    // A host without an address cannot be sent to either; its owner may be about to set it up.
    for (id, url) in [("a", "https://unknown.example.com/"), ("b", "https://empty.example.com:8443/x")] {
        let body = json!({"id": id, "url": url}).to_string();
        assert_eq!(surface.post_json(PATH, &acme.developer, body).await.expect(201)["url"], url);
    }
}

#[tokio::test]
async fn a_query_is_for_the_registry_whatever_the_policy_says() {
    let surface = Surface::with(|settings| settings.url_policy.allow_query = true).await;
    let acme = surface.tenant("acme").await;
    let body = json!({"id": "hooks", "url": "https://example.com/hooks?token=hidden"}).to_string();
    let problem = surface.post_json(PATH, &acme.developer, body).await.expect_problem(Code::InvalidField);
    assert!(!problem.to_string().contains("hidden"), "{problem}");
}

/// Members that are refused, with the field that the problem names.
fn refused() -> Vec<(Value, &'static str)> {
    vec![
        (json!({"retry": {"maxAttempts": 0}}), "retry.maxAttempts"),
        (json!({"retry": {"maxAttempts": 101}}), "retry.maxAttempts"),
        (json!({"retry": {"maxAttempts": 70_000}}), "retry.maxAttempts"),
        (json!({"retry": {"maxAgeSeconds": 604_801}}), "retry.maxAgeSeconds"),
        (json!({"retry": {"initialDelayMs": 10, "maxDelayMs": 9}}), "retry.initialDelayMs"),
        (json!({"retry": {"maxDelayMs": 86_400_001}}), "retry.maxDelayMs"),
        (json!({"retry": {"forever": true}}), "retry.forever"),
        (json!({"retry": 3}), "retry"),
        (json!({"rateLimit": {"perSecond": 0}}), "rateLimit.perSecond"),
        (json!({"rateLimit": {"perSecond": "5"}}), "rateLimit.perSecond"),
        (json!({"rateLimit": {"burst": 5}}), "rateLimit.perSecond"),
        (json!({"rateLimit": {"perSecond": 5, "burst": 0}}), "rateLimit.burst"),
        (json!({"maxInFlight": 0}), "maxInFlight"),
        (json!({"maxInFlight": 1001}), "maxInFlight"),
        (json!({"maxInFlight": 1.5}), "maxInFlight"),
        (json!({"timeoutMs": 99}), "timeoutMs"),
        (json!({"timeoutMs": 60_001}), "timeoutMs"),
        (json!({"headers": {"host": "example.org"}}), "headers"),
        (json!({"headers": {"Webhook-Signature": "v1,"}}), "headers"),
        (json!({"headers": {"x-a\r\nx-b": "1"}}), "headers"),
        (json!({"headers": {"x-a": "1\r\nx-b: 2"}}), "headers"),
        (json!({"headers": {"x-a": 1}}), "headers.x-a"),
        (json!({"headers": ["x-a"]}), "headers"),
        (json!({"signingSecret": "whsec_mine"}), "signingSecret"),
        (json!({"credential": "No Name"}), "credential"),
        (json!({"credentialId": "crm"}), "credentialId"),
    ]
}

#[tokio::test]
async fn settings_out_of_bounds_are_refused_by_name() {
    let surface = surface().await;
    let acme = surface.tenant("acme").await;
    let warehouse = format!("{PATH}/warehouse");
    let before = surface.get(&warehouse, &acme.viewer).await.expect(200);
    for (members, field) in refused() {
        let mut body = json!({"id": "hooks", "url": "https://example.com/"});
        for (name, value) in members.as_object().expect("members") {
            body[name] = value.clone();
        }
        for reply in [
            surface.post_json(PATH, &acme.developer, body.to_string()).await,
            surface.patch(&warehouse, &acme.developer, members.to_string()).await,
        ] {
            let problem = reply.expect_problem(Code::InvalidField);
            assert_eq!(problem["errors"][0]["field"], field, "{members}: {problem}");
        }
    }
    assert_eq!(surface.get(&warehouse, &acme.viewer).await.expect(200), before);
    assert_eq!(surface.count("endpoints").await, 1);
    let taken = json!({"id": "warehouse", "url": "https://example.com/"}).to_string();
    surface.post_json(PATH, &acme.developer, taken).await.expect_problem(Code::NameTaken);
}

#[tokio::test]
async fn a_merge_patch_changes_what_it_names_and_nothing_else() {
    let surface = surface().await;
    let acme = surface.tenant("acme").await;
    let members = json!({
        "retry": {"maxAttempts": 3, "maxAgeSeconds": 60},
        "rateLimit": {"perSecond": 5, "burst": 9},
        "maxInFlight": 4,
        "timeoutMs": 500,
        "headers": {"x-a": "1", "x-b": "2"},
    });
    create(&surface, &acme, members).await;
    let mut expected = surface.get(HOOKS, &acme.viewer).await.expect(200);
    for (patch, changed) in [
        (json!({}), json!({})),
        (json!({"maxInFlight": 5}), json!({"maxInFlight": 5})),
        (json!({"maxInFlight": null}), json!({"maxInFlight": 32})),
        (
            json!({"timeoutMs": null, "url": "https://example.com/v2", "headers": {"x-a": "1", "x-b": "2"}}),
            json!({"timeoutMs": 15_000, "url": "https://example.com/v2"}),
        ),
        (json!({"rateLimit": {"perSecond": 7}}), json!({"rateLimit": {"perSecond": 7.0, "burst": 9}})),
        (json!({"rateLimit": {"burst": null}}), json!({"rateLimit": {"perSecond": 7.0, "burst": 7}})),
        (json!({"rateLimit": null}), json!({"rateLimit": null})),
        (
            json!({"retry": {"maxAttempts": null}}),
            json!({"retry": {"maxAttempts": 25, "maxAgeSeconds": 60, "initialDelayMs": 5000, "maxDelayMs": 7_200_000}}),
        ),
        (
            json!({"retry": null}),
            json!({"retry": {"maxAttempts": 25, "maxAgeSeconds": 86_400, "initialDelayMs": 5000, "maxDelayMs": 7_200_000}}),
        ),
        (json!({"headers": {"X-A": null, "x-c": "3"}}), json!({"headers": ["x-b", "x-c"]})),
        (json!({"headers": null}), json!({"headers": []})),
    ] {
        let shown = surface.patch(HOOKS, &acme.developer, patch.to_string()).await.expect(200);
        let unchanged = shown["updatedAt"] == expected["updatedAt"];
        assert_eq!(unchanged, changed == json!({}), "{patch}: only a change counts as one");
        expected["updatedAt"] = shown["updatedAt"].clone();
        for (name, value) in changed.as_object().expect("members") {
            expected[name] = value.clone();
        }
        assert_eq!(shown, expected, "{patch}");
        assert_eq!(surface.get(HOOKS, &acme.viewer).await.expect(200), expected, "{patch}");
    }
    for (patch, field) in
        [(json!({"url": null}), "url"), (json!({"enabled": null}), "enabled"), (json!({"id": "x"}), "id")]
    {
        let problem = surface.patch(HOOKS, &acme.developer, patch.to_string()).await;
        assert_eq!(problem.expect_problem(Code::InvalidField)["errors"][0]["field"], field, "{patch}");
    }
    surface.patch(&format!("{PATH}/unknown"), &acme.developer, "{}").await.expect_problem(Code::NotFound);
}

/// Or whoever may change a URL could have a credential that they never knew sent to themselves.
#[tokio::test]
async fn another_url_gets_no_header_value_that_is_not_given_again() {
    let surface = surface().await;
    let acme = surface.tenant("acme").await;
    create(&surface, &acme, json!({"headers": {"authorization": "Bearer hidden", "x-b": "2"}})).await;
    for (patch, accepted) in [
        (json!({"url": "https://elsewhere.example.com/"}), false),
        (json!({"url": "https://example.com:8443/hooks"}), false),
        (json!({"url": "https://example.com.evil.example/hooks"}), false),
        (json!({"url": "https://elsewhere.example.com/", "headers": {"x-b": "3"}}), false),
        (json!({"url": "https://example.com/other"}), false),
        (json!({"url": "https://example.com/other", "headers": {"x-b": "3"}}), false),
        (json!({"url": "https://EXAMPLE.com/hooks"}), true),
        (
            json!({"url": "https://elsewhere.example.com/", "headers": {"x-b": "3", "authorization": null}}),
            true,
        ),
        (json!({"url": "https://example.com/", "headers": null}), true),
    ] {
        let reply = surface.patch(HOOKS, &acme.developer, patch.to_string()).await;
        if accepted {
            let url = patch["url"].as_str().expect("a URL").to_lowercase();
            assert_eq!(reply.expect(200)["url"], url, "{patch}");
        } else {
            let problem = reply.expect_problem(Code::InvalidField);
            assert_eq!(problem["errors"][0]["field"], "headers", "{patch}: {problem}");
            assert!(problem.to_string().contains("authorization"), "{problem}");
        }
    }
}

#[tokio::test]
async fn patches_at_the_same_time_lose_nothing_of_each_other() {
    let surface = surface().await;
    let acme = surface.tenant("acme").await;
    create(&surface, &acme, json!({})).await;
    let patches = [
        json!({"maxInFlight": 3}),
        json!({"timeoutMs": 300}),
        json!({"headers": {"x-a": "1"}}),
        json!({"headers": {"x-b": "2"}}),
        json!({"retry": {"maxAttempts": 3}}),
        json!({"retry": {"maxAgeSeconds": 60}}),
        json!({"enabled": false}),
    ];
    let replies = futures::future::join_all(
        patches.iter().map(|patch| surface.patch(HOOKS, &acme.developer, patch.to_string())),
    );
    for reply in replies.await {
        reply.expect(200);
    }
    let shown = surface.get(HOOKS, &acme.viewer).await.expect(200);
    assert_eq!((&shown["maxInFlight"], &shown["timeoutMs"]), (&json!(3), &json!(300)));
    assert_eq!((&shown["headers"], &shown["enabled"]), (&json!(["x-a", "x-b"]), &json!(false)));
    assert_eq!((&shown["retry"]["maxAttempts"], &shown["retry"]["maxAgeSeconds"]), (&json!(3), &json!(60)));
}

/// The numbers in the document are written by hand beside the types that hold them.
#[test]
fn the_document_states_the_bounds_that_hold() {
    let document: Value = serde_json::from_str(&postrider_api::document()).expect("JSON");
    let schemas = &document["components"]["schemas"];
    let milliseconds =
        |duration: std::time::Duration| json!(u64::try_from(duration.as_millis()).expect("small"));
    let timeouts = Settings::TIMEOUT_BOUNDS;
    for schema in ["NewEndpoint", "EndpointPatch"] {
        let properties = &schemas[schema]["properties"];
        assert_eq!(properties["timeoutMs"]["minimum"], milliseconds(*timeouts.start()), "{schema}");
        assert_eq!(properties["timeoutMs"]["maximum"], milliseconds(*timeouts.end()), "{schema}");
        assert_eq!(properties["maxInFlight"]["maximum"], json!(Settings::MAX_IN_FLIGHT_BOUND), "{schema}");
        assert_eq!(properties["url"]["maxLength"], json!(destination::MAX_LENGTH), "{schema}");
    }
    let retry = &schemas["RetryPolicyPatch"]["properties"];
    assert_eq!(retry["maxAttempts"]["maximum"], json!(Policy::ATTEMPTS_BOUND));
    assert_eq!(retry["maxAgeSeconds"]["maximum"], json!(Policy::AGE_BOUND.as_secs()));
    for delay in ["initialDelayMs", "maxDelayMs"] {
        assert_eq!(retry[delay]["maximum"], milliseconds(Policy::DELAY_BOUND), "{delay}");
    }
    let rate = &schemas["RateLimitPatch"]["properties"];
    assert_eq!(rate["perSecond"]["minimum"].as_f64(), Some(*Rate::PER_SECOND_BOUNDS.start()));
    assert_eq!(rate["perSecond"]["maximum"].as_f64(), Some(*Rate::PER_SECOND_BOUNDS.end()));
    assert_eq!(rate["burst"]["maximum"], json!(Rate::BURST_BOUND));
    for schema in ["NewSubscription", "SubscriptionPatch"] {
        let event_types = &schemas[schema]["properties"]["eventTypes"];
        assert_eq!(event_types["maxItems"], json!(name::MAX_EVENT_TYPES_PER_SUBSCRIPTION), "{schema}");
    }
    for schema in ["NewTenant", "NewApplication", "NewEndpoint", "NewSubscription"] {
        assert_eq!(
            schemas[schema]["properties"]["id"]["maxLength"],
            json!(name::MAX_NAME_LENGTH),
            "{schema}"
        );
    }
}
