use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use http::{HeaderMap, HeaderName, HeaderValue};
use postrider_core::signature::{self, Algorithm, Rejection, SigningSecret, VerifyingKey};
use proptest::prelude::*;
use serde_json::Value;

const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
const TIMESTAMP_S: i64 = 1_614_265_330;

fn vectors() -> Vec<Value> {
    let file: Value =
        serde_json::from_str(include_str!("../../../../cases/signature-vectors.json")).expect("JSON");
    let vectors = file["vectors"].as_array().expect("vectors").iter();
    let is_ours =
        |vector: &&Value| vector["scheme"].as_str().is_some_and(|it| it.starts_with("standard-webhooks"));
    vectors.filter(is_ours).cloned().collect()
}

fn headers(pairs: &Value) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for pair in pairs.as_array().expect("pairs") {
        let name: HeaderName = pair[0].as_str().expect("name").parse().expect("name");
        headers.append(name, HeaderValue::from_str(pair[1].as_str().expect("value")).expect("value"));
    }
    headers
}

fn signed(id: &str, timestamp: &str, signature: &str) -> HeaderMap {
    headers(&serde_json::json!([
        ["webhook-id", id],
        ["webhook-timestamp", timestamp],
        ["webhook-signature", signature],
    ]))
}

#[test]
fn published_vectors_verify_as_expected() {
    let vectors = vectors();
    assert!(vectors.len() >= 15, "the file holds the Standard Webhooks vectors");
    for vector in vectors {
        let secrets = vector["secrets"].as_array().expect("secrets").iter();
        let keys: Vec<VerifyingKey> =
            secrets.map(|secret| secret.as_str().expect("text").parse().expect("a key")).collect();
        let body = BASE64.decode(vector["body_base64"].as_str().expect("body")).expect("base64");
        let now_s = vector["now"].as_i64().expect("now");
        let verdict = signature::verify(&headers(&vector["headers"]), &body, now_s, &keys);
        assert_eq!(verdict.is_ok(), vector["expect"] == "valid", "{}: {verdict:?}", vector["id"]);
    }
}

#[test]
fn signing_gives_the_published_signatures() {
    let body = br#"{"test": 2432232314}"#;
    let hmac: SigningSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse().expect("secret");
    let ed25519: SigningSecret =
        "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg=="
            .parse()
            .expect("secret");
    let header = signature::signature_header(&[&hmac, &ed25519], ID, TIMESTAMP_S, body);
    let expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE= \
                    v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg==";
    assert_eq!(header, expected);
    assert_eq!(*hmac.reveal(), "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    assert_eq!(*ed25519.reveal(), "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=");
}

#[test]
fn rejections_name_the_fault() {
    let secret = SigningSecret::generate(Algorithm::HmacSha256, [7; 32]);
    let key = [VerifyingKey::from(secret.clone())];
    let right = secret.sign(ID, TIMESTAMP_S, b"body");
    let (timestamp, cut) = (TIMESTAMP_S.to_string(), &right[..right.len() - 1]);
    let padded = format!("{}{right}", "v1,x ".repeat(signature::MAX_SIGNATURES - 1));
    let too_padded = format!("{}{right}", "v1,x ".repeat(signature::MAX_SIGNATURES));
    let check = |headers: &HeaderMap, now_s, keys: &[VerifyingKey], expected| {
        assert_eq!(signature::verify(headers, b"body", now_s, keys), expected, "{headers:?} at {now_s}");
    };
    let good = signed(ID, &timestamp, &right);
    check(&good, TIMESTAMP_S, &key, Ok(()));
    check(&good, TIMESTAMP_S, &[], Err(Rejection::NoMatch));
    check(&good, TIMESTAMP_S + 300, &key, Ok(()));
    check(&good, TIMESTAMP_S - 300, &key, Ok(()));
    check(&good, TIMESTAMP_S + 301, &key, Err(Rejection::TooOld));
    check(&good, TIMESTAMP_S - 301, &key, Err(Rejection::TooNew));
    check(&good, i64::MIN, &key, Err(Rejection::TooNew));
    check(&signed(ID, &timestamp, &padded), TIMESTAMP_S, &key, Ok(()));
    check(&signed(ID, &timestamp, &too_padded), TIMESTAMP_S, &key, Err(Rejection::NoMatch));
    for (id, timestamp, signature, expected) in [
        ("", timestamp.as_str(), right.as_str(), Rejection::Id),
        ("a.1", &timestamp, &right, Rejection::Id),
        (ID, "+1614265330", &right, Rejection::Timestamp),
        (ID, "01614265330", &right, Rejection::Timestamp),
        (ID, "99999999999999999999", &right, Rejection::Timestamp),
        (ID, "-1", &right, Rejection::Timestamp),
        (ID, &timestamp, "", Rejection::NoMatch),
        (ID, &timestamp, "v1,", Rejection::NoMatch),
        (ID, &timestamp, "v1a,", Rejection::NoMatch),
        (ID, &timestamp, cut, Rejection::NoMatch),
        (ID, &timestamp, &right[3..], Rejection::NoMatch),
    ] {
        check(&signed(id, timestamp, signature), TIMESTAMP_S, &key, Err(expected));
    }
    let mut twice = good.clone();
    twice.append("webhook-id", HeaderValue::from_static("other"));
    check(&twice, TIMESTAMP_S, &key, Err(Rejection::HeaderRepeated("webhook-id")));
    let mut bytes = good;
    bytes.insert("webhook-id", HeaderValue::from_bytes(b"\xff").expect("value"));
    check(&bytes, TIMESTAMP_S, &key, Err(Rejection::HeaderUnreadable("webhook-id")));
}

#[test]
fn a_weak_public_key_is_refused() {
    let weak = format!("whpk_{}", BASE64.encode([1_u8].into_iter().chain([0; 31]).collect::<Vec<_>>()));
    assert_eq!(weak.parse::<VerifyingKey>().err(), Some(signature::Error::Ed25519Key));
}

proptest! {
    #[test]
    fn the_reference_library_agrees(random: [u8; 32], body: String, id in "[a-z_0-9]{1,40}", timestamp_s in 1..99_999_999_999_i64) {
        let secret = SigningSecret::generate(Algorithm::HmacSha256, random);
        let reference = standardwebhooks::Webhook::new(&secret.reveal()).expect("secret");
        let expected = reference.sign(&id, timestamp_s, body.as_bytes()).expect("signature");
        prop_assert_eq!(secret.sign(&id, timestamp_s, body.as_bytes()), expected);
    }

    #[test]
    fn what_is_signed_verifies_and_nothing_else_does(
        random: [u8; 32],
        body in prop::collection::vec(any::<u8>(), 1..200),
        place: prop::sample::Index,
        bit in 0..8_u32,
    ) {
        for algorithm in [Algorithm::HmacSha256, Algorithm::Ed25519] {
            let secret = SigningSecret::generate(algorithm, random);
            let key = [VerifyingKey::from(secret.clone())];
            let headers = signed(ID, "1614265330", &signature::signature_header(&[&secret], ID, TIMESTAMP_S, &body));
            prop_assert_eq!(signature::verify(&headers, &body, TIMESTAMP_S, &key), Ok(()));
            let mut changed = body.clone();
            changed[place.index(body.len())] ^= 1 << bit;
            prop_assert_eq!(signature::verify(&headers, &changed, TIMESTAMP_S, &key), Err(Rejection::NoMatch));
        }
    }
}
