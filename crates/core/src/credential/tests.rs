use std::time::Duration;

use proptest::prelude::*;

use super::*;

const CANARY: &str = "canary";

fn bearer(token: &str) -> Result<Credential, Refusal> {
    Bearer::new(token.into()).map(Credential::Bearer)
}

fn basic_of(username: &str, password: &str) -> Result<Credential, Refusal> {
    Basic::new(username.into(), password.into()).map(Credential::Basic)
}

fn header_of(name: &str, value: &str) -> Result<Credential, Refusal> {
    Header::new(name, value.into()).map(Credential::Header)
}

fn parts() -> Parts {
    Parts {
        token_url: "https://vendor.example/token".to_owned(),
        client_id: "a client".into(),
        client_secret: "canary: 50% & more".into(),
        scope: None,
        audience: None,
        client_authentication: ClientAuthentication::Basic,
    }
}

fn client(change: impl FnOnce(&mut Parts)) -> Result<Credential, Refusal> {
    let mut parts = parts();
    change(&mut parts);
    ClientCredentials::new(parts).map(Credential::OAuth2)
}

fn shown(value: Option<HeaderValue>) -> String {
    let value = value.expect("a header value");
    assert!(value.is_sensitive());
    value.to_str().expect("ASCII").to_owned()
}

#[test]
fn what_is_refused_names_its_member_and_repeats_nothing() {
    let long = |length: usize| "x".repeat(length);
    for (made, field) in [
        (bearer(""), "bearer.token"),
        (bearer("canary \n"), "bearer.token"),
        (bearer("canary canary"), "bearer.token"),
        (bearer("canaryé"), "bearer.token"),
        (bearer(&long(MAX_TOKEN_LENGTH + 1)), "bearer.token"),
        (basic_of("canary:", "x"), "basic.username"),
        (basic_of("canary\r", "x"), "basic.username"),
        (basic_of(&long(MAX_USERNAME_LENGTH + 1), "x"), "basic.username"),
        (basic_of("", ""), "basic.password"),
        (basic_of("x", "canary\0"), "basic.password"),
        (basic_of("x", &long(MAX_PASSWORD_LENGTH + 1)), "basic.password"),
        (header_of("Host", CANARY), "header.name"),
        (header_of("webhook-id", CANARY), "header.name"),
        (header_of("proxy-authorization", CANARY), "header.name"),
        (header_of("content-length", CANARY), "header.name"),
        (header_of("", CANARY), "header.name"),
        (header_of("x\r\ny", CANARY), "header.name"),
        (header_of("x-key", "canary\r\nx: y"), "header.value"),
        (header_of("x-key", " canary"), "header.value"),
        (client(|parts| parts.client_id = "".into()), "oauth2ClientCredentials.clientId"),
        (client(|parts| parts.client_id = "canary\n".into()), "oauth2ClientCredentials.clientId"),
        (client(|parts| parts.client_secret = "".into()), "oauth2ClientCredentials.clientSecret"),
        (client(|parts| parts.client_secret = "canaryé".into()), "oauth2ClientCredentials.clientSecret"),
        (client(|parts| parts.scope = Some(String::new())), "oauth2ClientCredentials.scope"),
        (client(|parts| parts.scope = Some("canary  b".to_owned())), "oauth2ClientCredentials.scope"),
        (client(|parts| parts.scope = Some("canary\"".to_owned())), "oauth2ClientCredentials.scope"),
        (client(|parts| parts.audience = Some("canary b".to_owned())), "oauth2ClientCredentials.audience"),
        (
            client(|parts| parts.audience = Some(long(MAX_PARAMETER_LENGTH + 1))),
            "oauth2ClientCredentials.audience",
        ),
    ] {
        let refusal = made.expect_err(field);
        assert_eq!(refusal.field(), field, "{refusal}");
        assert!(!refusal.to_string().contains(CANARY) && !refusal.to_string().contains("xxxxx"), "{refusal}");
    }
}

#[test]
fn each_kind_sets_one_header() {
    let token = Bearer::new("abc.def-1".into()).expect("a token");
    assert_eq!(shown(token.authorization()), "Bearer abc.def-1");
    // The example of RFC 7617, section 2.
    let pair = Basic::new("Aladdin".into(), "open sesame".into()).expect("a pair");
    assert_eq!(shown(pair.authorization()), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
    // An API key alone, in either place.
    assert!(basic_of("key", "").is_ok() && basic_of("", "key").is_ok());
    let own = Header::new("X-Api-Key", "k y".into()).expect("a header");
    assert_eq!((own.name().as_str(), shown(own.value())), ("x-api-key", "k y".to_owned()));
    for (made, name) in [
        (bearer("x"), "authorization"),
        (basic_of("x", "y"), "authorization"),
        (header_of("X-Api-Key", "x"), "x-api-key"),
        (header_of("Authorization", "Token x"), "authorization"),
        (client(|_| ()), "authorization"),
    ] {
        assert_eq!(made.expect(name).header_name(), name);
    }
}

#[test]
fn a_token_request_is_what_rfc_6749_says() {
    let in_head = ClientCredentials::new(parts()).expect("a client");
    assert_eq!(*in_head.form(), "grant_type=client_credentials");
    // Both parts are form-encoded before they are joined.
    let expected = BASE64.encode("a+client:canary%3A+50%25+%26+more");
    assert_eq!(shown(in_head.authorization()), format!("Basic {expected}"));
    let in_body = ClientCredentials::new(Parts {
        scope: Some("a:b c".to_owned()),
        audience: Some("https://vendor.example/".to_owned()),
        client_authentication: ClientAuthentication::Body,
        ..parts()
    })
    .expect("a client");
    assert_eq!(
        *in_body.form(),
        "grant_type=client_credentials&client_id=a+client&client_secret=canary%3A+50%25+%26+more\
         &scope=a%3Ab+c&audience=https%3A%2F%2Fvendor.example%2F"
    );
    assert_eq!(in_body.authorization(), None);
}

#[test]
fn no_debug_output_shows_a_value() {
    for credential in [
        bearer(CANARY),
        basic_of(CANARY, CANARY),
        header_of("x-key", CANARY),
        client(|parts| {
            parts.token_url = format!("https://vendor.example/{CANARY}");
            parts.client_id = CANARY.into();
            parts.scope = Some(CANARY.to_owned());
        }),
    ] {
        let credential = credential.expect("a credential");
        let text = format!("{credential:?}");
        assert!(!text.contains(CANARY), "{text}");
        if let Credential::OAuth2(client) = credential {
            let parts = client.into_parts();
            let text = format!("{parts:?} {:?}", parts.client_secret);
            assert!(!text.contains(CANARY), "{text}");
        }
    }
}

#[test]
fn what_is_stored_reads_back_and_damage_is_noticed() {
    for (credential, kind) in [
        (bearer("x"), Kind::Bearer),
        (basic_of("é", "x\"y"), Kind::Basic),
        (header_of("x-key", "a\\b"), Kind::Header),
        (client(|parts| parts.scope = Some("a b".to_owned())), Kind::OAuth2),
        (client(|parts| parts.client_authentication = ClientAuthentication::Body), Kind::OAuth2),
    ] {
        let credential = credential.expect("a credential");
        let stored = credential.to_stored();
        let read = Credential::from_stored(&stored).expect("its own stored form");
        assert_eq!((credential.kind(), read.kind()), (kind, kind));
        assert_eq!(read.to_stored(), stored);
        assert_eq!(kind.as_str().parse(), Ok(kind));
        assert_eq!(Credential::from_stored(&stored[1..]).err(), Some(Refusal::Stored));
    }
    for text in ["", "{}", r#"{"bearer":{"token":"a b"}}"#, r#"{"bearer":{"token":"a","more":1}}"#, "null"] {
        assert!(Credential::from_stored(text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn an_answer_is_a_token_or_worth_nothing() {
    let check = |body: &str, expected: Result<&str, Fault>| {
        let read = Granted::read(body.as_bytes()).map(|granted| shown(Some(granted.authorization)));
        assert_eq!(read.as_deref(), expected.as_ref().copied(), "{body}");
    };
    check(r#"{"access_token":"t-1","token_type":"Bearer"}"#, Ok("Bearer t-1"));
    check(
        " \n{\"token_type\":\"BEARER\",\"access_token\":\"t\",\"refresh_token\":\"r\",\"scope\":null} ",
        Ok("Bearer t"),
    );
    for body in [
        "",
        "<html>",
        "null",
        "\"t\"",
        r#"["t","bearer",1]"#,
        "{",
        r#"{"access_token":1,"token_type":"bearer"}"#,
        r#"{"access_token":"a","access_token":"b","token_type":"bearer"}"#,
        "{\"access_token\":\"a\",\"token_type\":\"bearer\"} {}",
    ] {
        check(body, Err(Fault::Form));
    }
    check(r#"{"token_type":"bearer"}"#, Err(Fault::NoToken));
    check(r#"{"access_token":null,"token_type":"bearer"}"#, Err(Fault::NoToken));
    check(r#"{"access_token":"t"}"#, Err(Fault::TokenType));
    check(r#"{"access_token":"t","token_type":"mac"}"#, Err(Fault::TokenType));
    for token in ["", "a b", "a\\r\\nx: y", "\\u0000", "é"] {
        check(&format!(r#"{{"access_token":"{token}","token_type":"bearer"}}"#), Err(Fault::Token));
    }
    let long = "t".repeat(MAX_ACCESS_TOKEN_LENGTH + 1);
    check(&format!(r#"{{"access_token":"{long}","token_type":"bearer"}}"#), Err(Fault::Token));
    assert_eq!(
        Granted::read(b"{\"access_token\":\"\xff\",\"token_type\":\"bearer\"}").err(),
        Some(Fault::Form)
    );
}

#[test]
fn a_lifetime_is_bounded_whatever_the_answer_says() {
    let seconds = Duration::from_secs;
    for (expires_in, usable) in [
        ("3600", seconds(3570)),
        ("\"3600\"", seconds(3570)),
        ("3600.9", Duration::from_millis(3_570_900)),
        ("100", seconds(80)),
        ("1", Duration::from_millis(800)),
        ("0", seconds(270)),
        ("-5", seconds(270)),
        ("null", seconds(270)),
        ("\"soon\"", seconds(270)),
        ("[1]", seconds(270)),
        ("86400", seconds(86_370)),
        ("1e300", seconds(86_370)),
        ("18446744073709551615", seconds(86_370)),
        ("\"18446744073709551615\"", seconds(86_370)),
    ] {
        let body = format!(r#"{{"access_token":"t","token_type":"bearer","expires_in":{expires_in}}}"#);
        assert_eq!(Granted::read(body.as_bytes()).expect(expires_in).usable, usable, "{expires_in}");
    }
    let without = br#"{"access_token":"t","token_type":"bearer"}"#;
    assert_eq!(Granted::read(without).expect("a token").usable, seconds(270));
}

proptest! {
    #[test]
    fn no_answer_makes_a_header_that_is_not_one(token in "[ -~é\n]{0,12}", expires_in: f64) {
        let body = serde_json::json!({ "access_token": token, "token_type": "bearer", "expires_in": expires_in });
        if let Ok(granted) = Granted::read(body.to_string().as_bytes()) {
            prop_assert_eq!(shown(Some(granted.authorization)), format!("Bearer {token}"));
            prop_assert!(granted.usable > Duration::ZERO && granted.usable <= MAX_LIFETIME);
        }
    }

    #[test]
    fn what_is_accepted_can_be_sent(username: String, password: String, token: String, value: String) {
        if let Ok(pair) = Basic::new(username.as_str().into(), password.as_str().into()) {
            prop_assert!(pair.authorization().is_some());
        }
        if let Ok(bearer) = Bearer::new(token.as_str().into()) {
            prop_assert!(bearer.authorization().is_some());
        }
        if let Ok(header) = Header::new("x-key", value.as_str().into()) {
            prop_assert!(header.value().is_some());
        }
    }
}
