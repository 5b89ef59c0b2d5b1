//! Bodies to publish, as a file of cases spells them or says how to make them.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::Deserialize;

#[derive(Deserialize)]
pub(crate) struct Bodies {
    pub(crate) bodies: Vec<BodyCase>,
}

#[derive(Deserialize)]
pub(crate) struct BodyCase {
    pub(crate) id: String,
    pub(crate) expect: String,
    body_base64: Option<String>,
    generate: Option<Generate>,
}

#[derive(Deserialize)]
struct Generate {
    kind: String,
    #[serde(default)]
    open: String,
    #[serde(default)]
    inner: String,
    #[serde(default)]
    close: String,
    #[serde(default)]
    text: String,
    times: usize,
}

impl BodyCase {
    pub(crate) fn body(&self) -> Vec<u8> {
        let Some(generate) = &self.generate else {
            return BASE64_STANDARD.decode(self.body_base64.as_deref().expect("a body")).expect("base64");
        };
        let Generate { kind, open, inner, close, text, times } = generate;
        match kind.as_str() {
            "nested" => [open.repeat(*times), inner.clone(), close.repeat(*times)].concat(),
            "repeat" => text.repeat(*times),
            "string" => format!(r#"{{"a":"{}"}}"#, "x".repeat(*times)),
            other => panic!("unknown kind of body {other:?}"),
        }
        .into_bytes()
    }
}
