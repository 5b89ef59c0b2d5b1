//! A session's token under attack: what the shared cases change about one that was issued here, and more of the kind.

use std::sync::{Arc, Mutex};

use axum::body::Body;
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{Request, header};
use postrider_core::{problem::Code, session};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Sha256, Sha384};
use time::{Duration, OffsetDateTime};

use crate::surface::{SESSION_SECRET, Surface, Tenant};

const CASES: &str = include_str!("../../../../cases/jwt-mutations.json");
const ROUTE: &str = "/api/tenants/acme/applications";
const PASSWORD: &str = "correct battery horse";

#[derive(Deserialize)]
struct Cases {
    mutations: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    id: String,
    mutation: String,
    expect: String,
}

/// A tenant with a user who is logged in, and the parts of that session's token.
struct Scene {
    surface: Surface,
    acme: Tenant,
    time: Arc<Mutex<OffsetDateTime>>,
    header: Value,
    claims: Value,
    token: String,
}

impl Scene {
    async fn new() -> Self {
        let time = Arc::new(Mutex::new(OffsetDateTime::from_unix_timestamp(1_800_000_000).expect("a time")));
        let now = Arc::clone(&time);
        let surface =
            Surface::with(move |settings| settings.now = Arc::new(move || *now.lock().expect("lock"))).await;
        let acme = surface.tenant("acme").await;
        let mut scene =
            Self { surface, acme, time, header: Value::Null, claims: Value::Null, token: String::new() };
        scene.create("ada@example.com").await;
        scene.token = scene.log_in("ada@example.com").await;
        let parts: Vec<&str> = scene.token.split('.').collect();
        let part = |place: usize| BASE64.decode(parts[place]).expect("base64");
        let (header, claims) = (part(0), part(1));
        scene.header = serde_json::from_slice(&header).expect("JSON");
        scene.claims = serde_json::from_slice(&claims).expect("JSON");
        // Own signatures are right: what is refused below is refused for what it says.
        assert_eq!(signed(&text(&header), &text(&claims), SESSION_SECRET), scene.token);
        scene
    }

    /// Creates a user; returns the path of it.
    async fn create(&self, email: &str) -> String {
        let body = json!({"email": email, "password": PASSWORD, "role": "developer"}).to_string();
        let path = "/api/tenants/acme/users";
        let created = self.surface.post_json(path, &self.acme.owner, body).await.expect(201);
        format!("{path}/{}", created["id"].as_str().expect("an id"))
    }

    async fn log_in(&self, email: &str) -> String {
        let begun = self.surface.log_in(email, PASSWORD).await.expect(200);
        begun["token"].as_str().expect("a token").to_owned()
    }

    /// Calls a route with these `Authorization` headers.
    async fn status(&self, values: &[String]) -> u16 {
        let mut request = Request::get(ROUTE);
        for value in values {
            request = request.header(header::AUTHORIZATION, value);
        }
        let reply = self.surface.call(request.body(Body::empty()).expect("request")).await;
        if !reply.status.is_success() {
            reply.expect_problem(Code::Unauthorized);
        }
        reply.status.as_u16()
    }

    /// The header with one member set.
    fn header_with(&self, name: &str, value: Value) -> String {
        with(&self.header, name, value)
    }

    /// The claims with one member set, rightly signed.
    fn claiming(&self, name: &str, value: Value) -> String {
        self.signed_claims(&with(&self.claims, name, value))
    }

    /// These claims, rightly signed.
    fn signed_claims(&self, claims: &str) -> String {
        let header = self.token.split('.').next().expect("a header");
        let header = text(&BASE64.decode(header).expect("base64"));
        signed(&header, claims, SESSION_SECRET)
    }

    fn now(&self) -> i64 {
        self.time.lock().expect("lock").unix_timestamp()
    }

    /// A session whose time is over by a second more than clocks may differ.
    fn just_over(&self) -> String {
        let over = self.now() - session::LEEWAY.whole_seconds() - 1;
        let mut claims = self.claims.clone();
        claims["iat"] = json!(over - session::LIFE.whole_seconds());
        claims["exp"] = json!(over);
        self.signed_claims(&claims.to_string())
    }

    /// Sessions of a user who was deleted meanwhile, and of one who was disabled.
    async fn of_users_who_are_gone(&self) -> Vec<String> {
        let (deleted, disabled) =
            (self.create("deleted@example.com").await, self.create("disabled@example.com").await);
        let tokens =
            vec![self.log_in("deleted@example.com").await, self.log_in("disabled@example.com").await];
        for token in &tokens {
            assert_eq!(self.status(&[bearer(token)]).await, 200, "it was good");
        }
        self.surface.delete(&deleted, &self.acme.owner).await;
        self.surface.patch(&disabled, &self.acme.owner, r#"{"enabled":false}"#).await.expect(200);
        tokens
    }

    /// All tokens that the case stands for.
    async fn mutated(&self, id: &str) -> Vec<String> {
        let parts: Vec<&str> = self.token.split('.').collect();
        let [header, payload, signature] = parts.as_slice() else { panic!("three parts") };
        let exact = self.claims.to_string();
        match id {
            "m01" => ["none", "None", "NONE", "nOnE"]
                .into_iter()
                .flat_map(|algorithm| {
                    let header = BASE64.encode(self.header_with("alg", algorithm.into()));
                    [format!("{header}.{payload}."), format!("{header}.{payload}")]
                })
                .collect(),
            // There is no public key here; whatever one might be given out, it signs nothing.
            "m04" => [PUBLIC_KEY, PUBLIC_KEY.trim_end()]
                .map(|key| signed(&text(&BASE64.decode(header).expect("base64")), &exact, key.as_bytes()))
                .to_vec(),
            "m07" => ["sub", "ver", "exp", "jti"]
                .into_iter()
                .map(|name| {
                    let value = match &self.claims[name] {
                        Value::Number(number) => json!(number.as_i64().expect("whole") + 1),
                        _ => json!(self.claims[name].as_str().expect("text").replace(['0', '1', '2'], "3")),
                    };
                    format!("{header}.{}.{signature}", BASE64.encode(with(&self.claims, name, value)))
                })
                .collect(),
            "m10" => ["../../dev/null", "' or 1=1", "", "0000000000000000"]
                .into_iter()
                .flat_map(|kid| {
                    let header = self.header_with("kid", kid.into());
                    // Also under the secrets that such a key id hopes to be led to.
                    [SESSION_SECRET, b"", b"\0"].map(|secret| signed(&header, &exact, secret))
                })
                .collect(),
            "m13" => ["nbf", "exp", "iat"]
                .into_iter()
                .flat_map(|name| {
                    [json!("99999999999"), json!((self.now() + 60).to_string())].map(|value| (name, value))
                })
                .map(|(name, value)| self.claiming(name, value))
                .collect(),
            "m16" => vec![self.just_over()],
            "m19" => ["sub", "exp", "ver"]
                .into_iter()
                .flat_map(|name| {
                    let again = format!("\"{name}\":{}", self.claims[name]);
                    [
                        exact.replacen('{', &format!("{{{again},"), 1),
                        format!("{},{again}}}", &exact[..exact.len() - 1]),
                    ]
                })
                .map(|claims| self.signed_claims(&claims))
                .collect(),
            "m22" => self.of_users_who_are_gone().await,
            // Two headers; handled by the caller.
            "m25" => vec![self.token.clone()],
            unknown => panic!("say how {unknown} is applied"),
        }
    }
}

const PUBLIC_KEY: &str = "-----BEGIN PUBLIC KEY-----\n\
    MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n\
    -----END PUBLIC KEY-----\n";

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// An object with one member set, as JSON.
fn with(object: &Value, name: &str, value: Value) -> String {
    let mut changed = object.clone();
    changed[name] = value;
    changed.to_string()
}

fn signed(header: &str, claims: &str, secret: &[u8]) -> String {
    let message = format!("{}.{}", BASE64.encode(header), BASE64.encode(claims));
    let mac = Hmac::<Sha256>::new_from_slice(secret).expect("any length").chain_update(&message);
    format!("{message}.{}", BASE64.encode(mac.finalize().into_bytes()))
}

#[tokio::test]
async fn every_mutation_of_the_shared_cases_is_refused() {
    let cases: Cases = serde_json::from_str(CASES).expect("cases");
    assert!(cases.mutations.len() >= 9);
    let scene = Scene::new().await;
    let good = bearer(&scene.token);
    for Case { id, mutation, expect } in &cases.mutations {
        assert!(expect.starts_with("reject"), "{id}: {expect}");
        let tokens = scene.mutated(id).await;
        assert!(!tokens.is_empty());
        for token in tokens {
            let headers = if id == "m25" { vec![good.clone(); 2] } else { vec![bearer(&token)] };
            assert_eq!(scene.status(&headers).await, 401, "{id} {mutation}: {token}");
        }
        assert_eq!(scene.status(std::slice::from_ref(&good)).await, 200, "{id}: the token itself is good");
    }
}

#[tokio::test]
async fn more_of_the_same_kinds_is_refused() {
    let scene = Scene::new().await;
    let parts: Vec<&str> = scene.token.split('.').collect();
    let [header, payload, signature] = parts.as_slice() else { panic!("three parts") };
    let exact = scene.claims.to_string();
    let under_384 = {
        let header = scene.header_with("alg", "HS384".into());
        let message = format!("{}.{payload}", BASE64.encode(header));
        let mac = Hmac::<Sha384>::new_from_slice(SESSION_SECRET).expect("any length").chain_update(&message);
        format!("{message}.{}", BASE64.encode(mac.finalize().into_bytes()))
    };
    let without = |name: &str| {
        let mut claims = scene.claims.clone();
        claims.as_object_mut().expect("object").remove(name);
        scene.signed_claims(&claims.to_string())
    };
    let mut tokens = vec![
        under_384,
        signed(&scene.header_with("crit", json!(["exp"])), &exact, SESSION_SECRET),
        signed(&scene.header_with("jwk", json!({"kty": "oct", "k": "AAAA"})), &exact, SESSION_SECRET),
        signed(&scene.header_with("jku", "https://evil.example/".into()), &exact, SESSION_SECRET),
        scene.claiming("aud", json!(["postrider-management", "other"])),
        scene.claiming("iss", "other".into()),
        scene.claiming("exp", json!(i64::MAX)),
        scene.claiming("iat", json!(scene.now() + 60)),
        scene.claiming("ver", json!(2)),
        scene.claiming("role", "owner".into()),
        scene.claiming("sub", "usr_00000000000000000000000000000000".into()),
        format!("{header}.{payload}.{signature}="),
        format!("{header}.{payload}.{signature}.{signature}"),
        format!("{header}.{payload}.{}", "A".repeat(43)),
        format!("{header}.{payload}.{signature}{}", "A".repeat(8_000)),
    ];
    tokens.extend(["iss", "aud", "sub", "jti", "iat", "exp", "ver"].map(without));
    for token in tokens {
        assert_eq!(scene.status(&[bearer(&token)]).await, 401, "{token}");
    }
    let both = [bearer(&scene.token), bearer(&scene.acme.owner)];
    assert_eq!(scene.status(&both).await, 401);
    assert_eq!(scene.status(&[format!("{}, {}", both[0], both[1])]).await, 401);
    *scene.time.lock().expect("lock") += session::LIFE + Duration::HOUR;
    assert_eq!(scene.status(&both[..1]).await, 401);
}
