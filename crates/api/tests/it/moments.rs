//! Times that callers give: each place takes the same ones, and refuses the others by its own name.

use postrider_core::problem::Code;
use serde_json::{Value, json};

use crate::surface::{Surface, Tenant};

/// Lists that are filtered by time.
const LISTS: &[&str] = &["events", "deliveries", "audit"];
const BOUNDS: &[&str] = &["since", "until"];

const RANGE: &str = "a time lies in the years 0001 to 9999 of UTC";
const FORM: &str = "a time is written as in RFC 3339, such as 2026-11-29T20:15:00Z";

/// Times that every place takes, as they are written in JSON.
const TAKEN: &[&str] = &[
    "2026-11-29T20:15:00.123456789+02:00",
    "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00-23:59",
    "9999-12-31T23:59:59.999999999Z",
    "9999-12-31T23:59:59+23:59",
    "2016-12-31T23:59:60Z",
];

const REFUSED: &[(&str, &str)] = &[
    ("9999-12-31T23:59:59-23:59", RANGE),
    ("9999-12-31T23:59:59-00:01", RANGE),
    ("0000-01-01T00:00:00Z", RANGE),
    ("0000-01-01T00:00:00+23:59", RANGE),
    ("0001-01-01T00:00:00+00:01", RANGE),
    ("9999-12-31T23:59:60-23:59", FORM),
    ("10000-01-01T00:00:00Z", FORM),
    ("-0001-01-01T00:00:00Z", FORM),
    ("2026-02-30T00:00:00Z", FORM),
    ("2026-11-29", FORM),
    ("yesterday", FORM),
    ("", FORM),
];

async fn world() -> (Surface, Tenant) {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let path = "/api/tenants/acme/applications/orders/events/order.created";
    surface.post_json(path, &acme.publish, "1").await.expect(202);
    (surface, acme)
}

fn query(list: &str, bound: &str, time: &str) -> String {
    format!("/api/tenants/acme/{list}?{bound}={}", time.replace('+', "%2B"))
}

#[tokio::test]
async fn every_list_takes_the_times_that_can_be_held_and_refuses_the_others_by_name() {
    let (surface, acme) = world().await;
    for (list, bound) in LISTS.iter().flat_map(|list| BOUNDS.iter().map(move |bound| (list, bound))) {
        for time in TAKEN {
            surface.get(&query(list, bound, time), &acme.owner).await.expect(200);
        }
        for (time, said) in REFUSED {
            let refused = surface.get(&query(list, bound, time), &acme.owner).await;
            let hint = if *said == FORM { "; write `+` as %2B" } else { "" };
            let problem = refused.expect_problem(Code::BadRequest);
            let expected = format!("The query is not what this operation takes: `{bound}`: {said}{hint}.");
            assert_eq!(problem["detail"], expected, "{list} {time}");
        }
    }
    let all = "since=0001-01-01T00:00:00Z&until=9999-12-31T23:59:59.999999999Z";
    for list in LISTS {
        let path = format!("/api/tenants/acme/{list}?{all}");
        let found = surface.get(&path, &acme.owner).await.expect(200);
        let expected = usize::from(*list != "audit");
        assert_eq!(found["data"].as_array().map(Vec::len), Some(expected), "{list}");
    }
}

#[tokio::test]
async fn a_replay_takes_the_times_that_can_be_held_and_shows_them_in_utc() {
    let (surface, acme) = world().await;
    let path = "/api/tenants/acme/replays";
    let ask = async |bound: &str, value: Value| {
        let body = json!({ "filter": { bound: value } }).to_string();
        surface.post_json(path, &acme.developer, body).await
    };
    for bound in BOUNDS {
        for time in TAKEN {
            let made = ask(bound, json!(time)).await.expect(201);
            let shown = made["filter"][bound].as_str().expect("a time");
            assert!(shown.ends_with('Z'), "{time}: {shown}");
            let own = format!("{path}/{}", made["id"].as_str().expect("an id"));
            assert_eq!(surface.get(&own, &acme.viewer).await.expect(200)["filter"][bound], shown);
            surface.post(&format!("{own}/cancel"), &acme.developer).await.expect(200);
        }
        let not_text = [json!(1), json!(1.5), json!(true), json!([]), json!({}), Value::Null];
        let expected = "expected a time as in RFC 3339, such as 2026-11-29T20:15:00Z";
        let refused = REFUSED.iter().map(|(time, said)| (json!(time), *said));
        for (value, said) in refused.chain(not_text.map(|value| (value, expected))) {
            let problem = ask(bound, value.clone()).await.expect_problem(Code::InvalidField);
            let error = &problem["errors"][0];
            assert_eq!(
                (&error["field"], &error["detail"]),
                (&json!(format!("filter.{bound}")), &json!(said)),
                "{value}"
            );
        }
    }
}
