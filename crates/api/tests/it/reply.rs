//! An answer of the surface, read to its end.

use axum::response::Response;
use http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt as _;
use postrider_core::problem::Code;
use serde_json::Value;

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) async fn read(response: Response) -> Self {
        let (parts, body) = response.into_parts();
        let body = body.collect().await.expect("the body ends").to_bytes().to_vec();
        Self { status: parts.status, headers: parts.headers, body }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    pub(crate) fn header(&self, name: &header::HeaderName) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("no {name} in {self:?}")).to_str().expect("ASCII")
    }

    /// Checks that the answer is a success of this status, and gives its body.
    #[track_caller]
    pub(crate) fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", String::from_utf8_lossy(&self.body));
        self.json()
    }

    /// Checks that the answer is this problem, in the form that every problem has, and gives it.
    #[track_caller]
    pub(crate) fn expect_problem(&self, code: Code) -> Value {
        let problem = self.expect(code.status());
        assert_eq!(self.header(&header::CONTENT_TYPE), "application/problem+json");
        assert_eq!(self.header(&header::X_CONTENT_TYPE_OPTIONS), "nosniff");
        assert_eq!(problem["code"], code.as_str(), "{problem}");
        assert_eq!(problem["type"], format!("https://postrider.dev/problems/{}", code.as_str()));
        assert_eq!(problem["status"], code.status());
        assert_eq!(problem["title"], code.title());
        assert!(problem["detail"].as_str().is_some_and(|detail| detail.ends_with('.')), "{problem}");
        assert_eq!(self.headers.contains_key(header::WWW_AUTHENTICATE), code.status() == 401);
        assert_eq!(self.headers.contains_key(header::RETRY_AFTER), [429, 503].contains(&code.status()));
        problem
    }
}
