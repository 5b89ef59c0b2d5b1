//! What is taken as a session, and what is not.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use proptest::prelude::*;
use serde_json::{Value, json};
use uuid::Uuid;

use super::*;

const SECRET: &[u8] = b"a session secret of more than 32 bytes";
const OTHER: &[u8] = b"the session secret of last month, as long";

fn now() -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(1_800_000_000).expect("a time")
}

fn session() -> Session {
    Session { id: Uuid::from_u128(1).into(), user_id: Uuid::from_u128(2).into(), credential_version: 3 }
}

fn keys() -> Keys {
    Keys::new(SECRET, None).expect("keys")
}

fn issued() -> String {
    keys().issue(session(), now()).expect("a token").token.to_string()
}

/// A token of these claims, rightly signed.
fn signed(claims: &str) -> String {
    signed_under(&keys().current.header, claims)
}

/// A token under this header, encoded, rightly signed.
fn signed_under(header: &str, claims: &str) -> String {
    let message = format!("{header}.{}", BASE64.encode(claims));
    let mac = Hmac::<Sha256>::new_from_slice(SECRET).expect("key").chain_update(&message);
    format!("{message}.{}", BASE64.encode(mac.finalize().into_bytes()))
}

fn claims() -> Value {
    let token = issued();
    let part = token.split('.').nth(1).expect("claims");
    serde_json::from_slice(&BASE64.decode(part).expect("base64")).expect("JSON")
}

#[test]
fn a_session_is_taken_until_its_time_is_over() {
    let issued = keys().issue(session(), now()).expect("a token");
    assert_eq!(issued.expires_at, now() + LIFE);
    for (since, expected) in [
        (Duration::ZERO, true),
        (-LEEWAY, true),
        (-LEEWAY - Duration::SECOND, false),
        (LIFE, true),
        (LIFE + LEEWAY - Duration::SECOND, true),
        (LIFE + LEEWAY, false),
        (LIFE + LEEWAY + Duration::SECOND, false),
        (Duration::weeks(5_000), false),
    ] {
        let taken = keys().verify(&issued.token, now() + since).ok();
        assert_eq!(taken, expected.then(session), "{since} after its beginning");
    }
    assert!(issued.token.len() < MAX_LENGTH / 2, "{}", issued.token.len());
    assert!(!format!("{issued:?} {:?}", keys()).contains(&issued.token[20..]));
}

#[test]
fn a_rotation_verifies_both_secrets_and_signs_with_the_new_one() {
    let old = Keys::new(OTHER, None).expect("keys");
    let both = Keys::new(SECRET, Some(OTHER)).expect("keys");
    let (of_old, of_both) =
        (old.issue(session(), now()).expect("token"), both.issue(session(), now()).expect("token"));
    for (keys, token, expected) in [
        (&both, &of_old, true),
        (&both, &of_both, true),
        (&keys(), &of_both, true),
        (&keys(), &of_old, false),
        (&old, &of_both, false),
    ] {
        assert_eq!(keys.verify(&token.token, now()).is_ok(), expected, "{keys:?}");
    }
    assert!(matches!(Keys::new(SECRET, Some(SECRET)), Err(Error::SameSecret)));
    assert!(matches!(Keys::new(&SECRET[..31], None), Err(Error::SecretTooShort)));
    assert!(matches!(Keys::new(SECRET, Some(b"short")), Err(Error::SecretTooShort)));
}

#[test]
fn rightly_signed_claims_are_taken_only_as_they_are_issued() {
    let exact = claims();
    assert_eq!(keys().verify(&signed(&exact.to_string()), now()).ok(), Some(session()));
    for name in ["iss", "aud", "sub", "jti", "iat", "exp", "ver"] {
        let mut without = exact.clone();
        without.as_object_mut().expect("object").remove(name);
        assert!(keys().verify(&signed(&without.to_string()), now()).is_err(), "without {name}");
        let twice = exact.to_string().replacen('{', &format!("{{\"{name}\":{},", exact[name]), 1);
        assert!(keys().verify(&signed(&twice), now()).is_err(), "{name} twice");
    }
    let future = now().unix_timestamp() + 86_400;
    for (name, value) in [
        ("exp", json!(future.to_string())),
        ("exp", json!(exact["exp"].to_string())),
        ("exp", json!(1_800_000_900.0)),
        ("exp", json!(null)),
        ("exp", json!(future)),
        ("exp", json!(i64::MAX)),
        ("exp", json!(i64::MIN)),
        ("iat", json!("1800000000")),
        ("iat", json!(i64::MIN)),
        ("nbf", json!(future)),
        ("nbf", json!(future.to_string())),
        ("nbf", json!(0)),
        ("iss", json!("other")),
        ("iss", json!(["postrider"])),
        ("aud", json!("other")),
        ("aud", json!(["postrider-management", "other"])),
        ("sub", json!("usr_1")),
        ("sub", json!("key_00000000000000000000000000000002")),
        ("jti", json!("")),
        ("ver", json!("3")),
        ("role", json!("owner")),
        ("tenant", json!("rival")),
    ] {
        let mut changed = exact.clone();
        changed[name] = value;
        assert!(keys().verify(&signed(&changed.to_string()), now()).is_err(), "{changed}");
    }
}

#[test]
fn other_headers_and_spellings_are_refused() {
    let token = issued();
    let parts: Vec<&str> = token.split('.').collect();
    let [header, payload, signature] = parts.as_slice() else { panic!("three parts") };
    let kid = keys().current.id;
    // The last of 43 characters carries two bits that mean nothing: another spelling of the same signature.
    let last = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let place = last.find(&signature[42..]).expect("of the alphabet");
    let respelt = format!("{}{}", &signature[..42], &last[place + 1..place + 2]);
    let with_header = |text: &str| signed_under(&BASE64.encode(text), &claims().to_string());
    for wrong in [
        String::new(),
        ".".to_owned(),
        "..".to_owned(),
        format!("{header}.{payload}"),
        format!("{header}.{payload}."),
        format!("{token}."),
        format!("{token}="),
        format!("{token} "),
        format!("{header}.{payload}.{respelt}"),
        format!("{header}=.{payload}.{signature}"),
        format!("{header}.{payload}==.{signature}"),
        format!("{token}{}", "A".repeat(MAX_LENGTH)),
        with_header(r#"{"typ":"JWT","alg":"none"}"#),
        with_header(r#"{"typ":"JWT","alg":"HS256"}"#),
        with_header(r#"{"typ":"JWT","alg":"HS256","kid":"0000000000000000"}"#),
        with_header(&format!(r#"{{"alg":"HS256","typ":"JWT","kid":"{kid}"}}"#)),
        with_header(&format!(r#"{{"typ":"JWT","alg":"HS384","kid":"{kid}"}}"#)),
        with_header(&format!(r#"{{"typ":"JWT","alg":"HS256","kid":"{kid}","crit":["exp"]}}"#)),
    ] {
        assert!(keys().verify(&wrong, now()).is_err(), "{wrong}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "[A-Za-z0-9_.=-]{0,200}") {
        prop_assert!(keys().verify(&text, now()).is_err());
    }

    #[test]
    fn a_changed_character_is_noticed_wherever_it_stands(place in 0_usize..400, typed in "[A-Za-z0-9_-]") {
        let token = issued();
        let place = place % token.len();
        let mut changed = token.clone();
        changed.replace_range(place..=place, &typed);
        prop_assert_eq!(keys().verify(&changed, now()).is_ok(), changed == token);
    }
}
