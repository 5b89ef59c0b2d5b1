//! Access tokens: how often one is fetched, for how long it is kept, and what answers are worth.

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use futures::{FutureExt as _, future::join_all};
use postrider_core::{
    address,
    credential::Credential,
    destination::{Destination, UrlPolicy},
    id::{CredentialId, TenantId},
    retry::{Failure, FailureKind},
};
use postrider_engine::{
    clock::SystemClock,
    credentials::{Client, FETCH_TIMEOUT, TRUST_IN_REPLACEMENT, Token, Tokens},
    transport::{Http, Settings, Transport as _},
};
use postrider_testkit::{
    answer::{Answer, Gate},
    clock::FakeClock,
    receiver::Receiver,
    running::loopback_http,
    scenario::token_client,
};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

const SECOND: Duration = Duration::from_secs(1);
/// Stands in everything that nobody may see.
const CANARY: &str = "canary-71c0";

/// A token endpoint, and a process that asks it by a clock that only the test moves.
struct Bench {
    endpoint: Receiver,
    http: Arc<Http>,
    clock: FakeClock,
    tasks: TaskTracker,
    tokens: Tokens,
}

impl Bench {
    async fn new() -> Self {
        Self::over(loopback_http()).await
    }

    async fn over(http: Http) -> Self {
        let (clock, tasks) = (FakeClock::default(), TaskTracker::new());
        let tokens = Tokens::new(Arc::new(clock.clone()), tasks.clone());
        Self { endpoint: Receiver::start().await, http: Arc::new(http), clock, tasks, tokens }
    }

    fn client(&self) -> Arc<Client> {
        self.client_of(1)
    }

    fn client_of(&self, version: i64) -> Arc<Client> {
        let url = self.endpoint.url(&format!("/token/{CANARY}"));
        let policy = UrlPolicy { allow_query: false, allow_loopback_http: true };
        let addresses = address::Policy { allow_loopback: true, ..address::Policy::default() };
        let Credential::OAuth2(credentials) = token_client(&url, CANARY) else {
            panic!("a client is made for tokens")
        };
        Arc::new(Client {
            tenant_id: TenantId::from_uuid(Uuid::from_u128(1)),
            credential_id: CredentialId::from_uuid(Uuid::from_u128(2)),
            version,
            destination: Arc::new(Destination::parse(&url, &policy, &addresses).expect("a URL")),
            credentials,
        })
    }

    async fn get(&self, client: &Arc<Client>) -> Result<Token, Failure> {
        self.get_within(client, FETCH_TIMEOUT).await
    }

    /// With a shorter limit for the request, where nothing is to come.
    async fn get_within(&self, client: &Arc<Client>, limit: Duration) -> Result<Token, Failure> {
        let http = Arc::clone(&self.http);
        let fetch = move |mut request: postrider_engine::transport::Outgoing| async move {
            assert_eq!(request.timeout, FETCH_TIMEOUT);
            request.timeout = limit;
            http.fetch(request).await
        };
        self.tokens.get(client, fetch).await
    }

    fn answers_tokens(&self, expires_in: u32) {
        let number = std::sync::atomic::AtomicU32::new(0);
        self.endpoint.answer_with(move |_| {
            let number = number.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1;
            granting(&format!("token-{number}"), expires_in)
        });
    }

    fn asked(&self) -> usize {
        self.endpoint.requests().len()
    }
}

fn granting(token: &str, expires_in: u32) -> Answer {
    let body = format!(r#"{{"access_token":"{token}","token_type":"Bearer","expires_in":{expires_in}}}"#);
    Answer::ok().header("content-type", "application/json").body(body)
}

fn shown(token: Result<Token, Failure>) -> String {
    let token = token.expect("a token");
    assert!(token.authorization.is_sensitive());
    token.authorization.to_str().expect("ASCII").to_owned()
}

fn refused(token: Result<Token, Failure>) -> String {
    let failure = token.expect_err("no token");
    assert_eq!(failure.kind, FailureKind::CredentialUnavailable);
    assert!(!failure.detail.contains(CANARY) && !failure.detail.contains("127.0.0.1"), "{failure:?}");
    failure.detail
}

#[tokio::test]
async fn a_request_for_a_token_says_what_it_must_and_no_more() {
    let bench = Bench::new().await;
    bench.answers_tokens(3600);
    assert_eq!(shown(bench.get(&bench.client()).await), "Bearer token-1");
    let request = bench.endpoint.requests().remove(0);
    assert_eq!((request.method(), request.target()), ("POST", "/token/canary-71c0"));
    assert_eq!(&*request.body, b"grant_type=client_credentials");
    let mut headers: Vec<(String, &str)> =
        request.headers().into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect();
    headers.retain(|(name, _)| !["host", "user-agent"].contains(&name.as_str()));
    headers.sort();
    let authorization = format!("Basic {}", BASE64.encode(format!("acme:{CANARY}")));
    let expected = [
        ("accept", "application/json"),
        ("authorization", &*authorization),
        ("content-length", "29"),
        ("content-type", "application/x-www-form-urlencoded"),
    ];
    assert_eq!(headers, expected.map(|(name, value)| (name.to_owned(), value)));
}

#[tokio::test]
async fn a_hundred_who_need_a_token_ask_once() {
    let bench = Bench::new().await;
    let (client, gate) = (bench.client(), Gate::default());
    bench.endpoint.queue([granting("shared", 3600).after(&gate)]);
    let all = join_all((0..100).map(|_| bench.get(&client)));
    let (tokens, ()) = tokio::join!(all, async {
        bench.endpoint.wait_for(1).await;
        gate.open();
    });
    assert!(tokens.into_iter().all(|token| shown(token) == "Bearer shared"));
    assert_eq!(bench.asked(), 1);
}

#[tokio::test]
async fn a_request_outlives_who_wanted_it_first() {
    let bench = Bench::new().await;
    let (client, gate) = (bench.client(), Gate::default());
    bench.endpoint.queue([granting("late", 3600).after(&gate)]);
    tokio::select! {
        biased;
        _ = bench.get(&client) => panic!("nothing has been answered"),
        _ = bench.endpoint.wait_for(1) => {}
    }
    gate.open();
    bench.tasks.close();
    bench.tasks.wait().await;
    let kept = bench.get(&client).now_or_never().expect("it came although nobody waited");
    assert_eq!((shown(kept), bench.asked()), ("Bearer late".to_owned(), 1));
}

#[tokio::test]
async fn a_request_that_panics_is_a_failure_for_all_who_wait_and_holds_up_nobody_later() {
    let bench = Bench::new().await;
    bench.answers_tokens(3600);
    let client = bench.client();
    let waiting = (0..3).map(|_| {
        bench.tokens.get(&client, |_| async {
            tokio::task::yield_now().await;
            panic!("a fault of ours")
        })
    });
    for failed in join_all(waiting).await {
        assert_eq!(refused(failed), "no access token: the request for one could not be made");
    }
    bench.clock.advance(SECOND);
    assert_eq!(shown(bench.get(&client).await), "Bearer token-1");
}

#[tokio::test]
async fn a_token_is_used_until_shortly_before_it_expires() {
    for (expires_in, usable) in [(100, 80), (3600, 3570), (0, 270)] {
        let bench = Bench::new().await;
        let client = bench.client();
        bench.answers_tokens(expires_in);
        assert_eq!(shown(bench.get(&client).await), "Bearer token-1");
        bench.clock.advance(Duration::from_millis(1_000 * usable - 1));
        assert_eq!(shown(bench.get(&client).await), "Bearer token-1", "{expires_in}");
        bench.clock.advance(Duration::from_millis(1));
        assert_eq!(shown(bench.get(&client).await), "Bearer token-2", "{expires_in}");
    }
}

#[tokio::test]
async fn a_replaced_credential_has_tokens_of_its_own() {
    let bench = Bench::new().await;
    bench.answers_tokens(3600);
    assert_eq!(shown(bench.get(&bench.client_of(1)).await), "Bearer token-1");
    assert_eq!(shown(bench.get(&bench.client_of(2)).await), "Bearer token-2");
    assert_eq!(shown(bench.get(&bench.client_of(2)).await), "Bearer token-2");
    // Who still holds the old version gets a token, and leaves those of the new one alone.
    assert_eq!(shown(bench.get(&bench.client_of(1)).await), "Bearer token-3");
    assert_eq!(shown(bench.get(&bench.client_of(2)).await), "Bearer token-2");
    assert!(bench.tokens.refused(&bench.client_of(1), 1), "the next attempt has another token");
    assert_eq!(shown(bench.get(&bench.client_of(2)).await), "Bearer token-2");
}

#[tokio::test]
async fn a_dead_token_endpoint_is_asked_ever_less_often() {
    let bench = Bench::new().await;
    let client = bench.client();
    bench.endpoint.answer_with(|_| Answer::status(500).body(CANARY));
    for (number, pause) in (1..).zip([1, 2, 4, 8, 16, 16]) {
        let detail = refused(bench.get(&client).await);
        assert_eq!(detail, "no access token: the token endpoint answered 500");
        bench.clock.advance((pause * SECOND).saturating_sub(Duration::from_millis(1)));
        assert_eq!(refused(bench.get(&client).await), detail, "the failure is remembered");
        assert_eq!(bench.asked(), number, "before {pause} s are over");
        bench.clock.advance(Duration::from_millis(1));
    }
    bench.answers_tokens(10);
    assert_eq!(shown(bench.get(&client).await), "Bearer token-1");
    bench.clock.advance(10 * SECOND);
    bench.endpoint.answer_with(|_| Answer::status(503));
    refused(bench.get(&client).await);
    bench.clock.advance(SECOND);
    bench.answers_tokens(10);
    assert_eq!(shown(bench.get(&client).await), "Bearer token-1", "a success made the pauses short again");
}

#[tokio::test]
async fn a_token_endpoint_may_ask_for_a_longer_pause_within_bounds() {
    for (retry_after, pause) in [("20", 20), ("99999999999", 60), ("0", 1), ("-5", 1), ("soon", 1)] {
        let bench = Bench::new().await;
        let client = bench.client();
        bench.endpoint.queue([Answer::status(429).header("Retry-After", retry_after)]);
        refused(bench.get(&client).await);
        bench.answers_tokens(3600);
        bench.clock.advance((pause * SECOND).saturating_sub(Duration::from_millis(1)));
        refused(bench.get(&client).await);
        bench.clock.advance(Duration::from_millis(1));
        assert_eq!(shown(bench.get(&client).await), "Bearer token-1", "{retry_after}");
    }
}

#[tokio::test]
async fn answers_that_hold_no_token_are_failures_in_our_own_words() {
    let json = |body: String| Answer::ok().body(body);
    let length = 64 * 1024;
    let largest =
        format!(r#"{{"access_token":"t","token_type":"bearer","pad":"{}"}}"#, "x".repeat(length - 60));
    let endless = format!("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{}", "x".repeat(1 << 20));
    let cut = "HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{\"access_token\":\"canary-71c0\"";
    let could_not = |kind: &str| format!("the token endpoint could not be asked ({kind})");
    let holds = |what: &str| format!("the token endpoint's answer {what}");
    let no_form = || holds("is not a JSON object with the members of RFC 6749, section 5.1");
    let no_header = "has an `access_token` that cannot stand in a header, or is longer than 8192 bytes";
    let status = |status: u16| format!("the token endpoint answered {status}");
    let moved = |status, to: &str| Answer::status(status).header("Location", to);
    for (answer, expected) in [
        (Answer::status(401).body(format!(r#"{{"error":"{CANARY}"}}"#)), status(401)),
        (moved(302, "http://127.0.0.1:1/canary-71c0"), status(302)),
        (moved(307, "/elsewhere"), status(307)),
        (Answer::status(204), no_form()),
        (json(CANARY.to_owned()), no_form()),
        (json("[\"canary-71c0\",\"bearer\",1]".to_owned()), no_form()),
        (json("{".repeat(length)), no_form()),
        (json("{\"access_token\":\"canary-71c0\r\nx: y\",\"token_type\":\"bearer\"}".to_owned()), no_form()),
        (
            json(r#"{"access_token":"canary-71c0\r\nx: y","token_type":"bearer"}"#.to_owned()),
            holds(no_header),
        ),
        (json(format!(r#"{{"token":"{CANARY}","token_type":"bearer"}}"#)), holds("has no `access_token`")),
        (
            json(format!(r#"{{"access_token":"{CANARY}","token_type":"mac"}}"#)),
            holds("has a `token_type` other than `bearer`"),
        ),
        (json(largest.clone() + &" ".repeat(100)), could_not("bad_response")),
        (Answer::raw(endless), could_not("bad_response")),
        (Answer::raw(cut), could_not("connection_lost")),
        (Answer::raw("SSH-2.0-canary-71c0\r\n\r\n"), could_not("bad_response")),
        (Answer::close(), could_not("connection_lost")),
        (Answer::reset(), could_not("connection_lost")),
    ] {
        let bench = Bench::new().await;
        bench.endpoint.queue([answer]);
        let detail = refused(bench.get(&bench.client()).await);
        assert_eq!(detail, format!("no access token: {expected}"));
        assert_eq!(bench.asked(), 1, "nothing is followed or sent again: {expected}");
    }
    let bench = Bench::new().await;
    bench.endpoint.queue([json(largest)]);
    assert_eq!(shown(bench.get(&bench.client()).await), "Bearer t", "all but the limit is read");
}

#[tokio::test]
async fn a_slow_token_endpoint_is_given_up_as_a_whole() {
    const SHORT: Duration = Duration::from_millis(300);
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\n";
    for slow in [
        Answer::never(),
        Answer::raw_open(head),
        Answer::trickle(head.to_owned() + &"x".repeat(20), SHORT / 20),
    ] {
        let bench = Bench::new().await;
        bench.endpoint.queue([slow]);
        let detail = refused(bench.get_within(&bench.client(), SHORT).await);
        assert_eq!(detail, "no access token: the token endpoint could not be asked (timeout)");
    }
}

#[tokio::test]
async fn a_token_url_passes_the_guard_of_every_request() {
    // Stored when loopback was allowed; now it is not.
    let clock = Arc::new(SystemClock::new());
    let strict = Settings::of_the_system(address::Policy::default(), rustls::RootCertStore::empty(), clock);
    let bench = Bench::over(Http::new(strict).expect("settings")).await;
    let detail = refused(bench.get(&bench.client()).await);
    assert_eq!(detail, "no access token: the token endpoint could not be asked (address_refused)");
    assert_eq!(bench.endpoint.connections(), 0);
}

#[tokio::test]
async fn a_refused_token_is_given_up_once() {
    let bench = Bench::new().await;
    let client = bench.client();
    bench.answers_tokens(3600);
    let first = bench.get(&client).await.expect("a token");
    assert!(bench.tokens.refused(&client, first.serial));
    assert!(
        bench.tokens.refused(&client, first.serial),
        "its successor will be asked for by the next attempt"
    );
    let second = bench.get(&client).await.expect("a token");
    assert_ne!(first.serial, second.serial);
    assert!(bench.tokens.refused(&client, first.serial), "its successor is there");
    assert!(
        !bench.tokens.refused(&client, second.serial),
        "a fresh successor that is refused, too, is no better"
    );
    assert_eq!(bench.get(&client).await.expect("a token").serial, second.serial);
    bench.clock.advance(TRUST_IN_REPLACEMENT);
    assert!(bench.tokens.refused(&client, second.serial), "by now it may have been revoked");
    let third = bench.get(&client).await.expect("a token");
    assert_eq!((third.serial, bench.asked()), (3, 3));
    bench.clock.advance(3600 * SECOND);
    let fourth = bench.get(&client).await.expect("a token");
    assert!(bench.tokens.refused(&client, fourth.serial), "it came because the one before had expired");
}

#[tokio::test]
async fn no_debug_output_shows_a_token_or_a_client() {
    let bench = Bench::new().await;
    bench.endpoint.queue([granting(CANARY, 3600)]);
    let client = bench.client();
    let token = bench.get(&client).await.expect("a token");
    for text in [format!("{token:?}"), format!("{:?}", bench.tokens), format!("{client:?}")] {
        assert!(!text.contains(CANARY), "{text}");
    }
    let kept = bench.get(&bench.client()).now_or_never().expect("it is here, and nothing is waited for");
    assert_eq!(kept.expect("a token").serial, token.serial);
}
