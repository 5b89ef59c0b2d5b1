//! Where requests may go: names that lead astray, mixed answers, answers that change, redirects.

use postrider_core::destination::Host;
use serde_json::Value;

use super::*;

const ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

#[tokio::test]
async fn the_shared_cases_never_open_a_forbidden_connection() {
    let file: Value =
        serde_json::from_str(include_str!("../../../../../cases/ssrf-targets.json")).expect("JSON");
    let mut checked = 0;
    for case in file["urls"].as_array().expect("urls") {
        let stage = case["stage"].as_str().expect("stage");
        if !matches!(stage, "dns" | "dns-sequence" | "redirect") {
            continue; // Decided without a lookup: the rules' own tests hold them.
        }
        checked += 1;
        let url = case["url"].as_str().expect("url");
        let mut setup = Setup { is_strict: true, divert_to: Some(closing()), ..Setup::default() };
        let parse = |answer: &Value| -> Vec<IpAddr> {
            let list = answer.as_array().expect("addresses").iter();
            list.map(|it| it.as_str().expect("text").parse().expect("address")).collect()
        };
        for (name, answers) in case["dns"].as_object().expect("dns") {
            let list = answers.as_array().expect("answers");
            let is_sequence = list.first().is_some_and(Value::is_array);
            let sequence =
                if is_sequence { list.iter().map(parse).collect() } else { [parse(answers)].into() };
            setup.names.insert(name.clone(), sequence);
        }
        let bench = setup.build();
        match (stage, case["expect"].as_str().expect("expectation")) {
            ("dns", "must_allow") => {
                bench.post(url).await;
                assert_eq!(bench.dial.dialled().len(), 1, "{case}");
            }
            ("dns", "must_block") => {
                assert!(matches!(kind(&bench.post(url).await), Some(FailureKind::AddressRefused)), "{case}");
                assert_eq!(bench.dial.dialled(), [], "{case}");
            }
            ("dns", "must_fail") => {
                assert_failed(&bench.post(url).await, FailureKind::Dns, "nx.test: the name has no address");
                assert_eq!(bench.dial.dialled(), [], "{case}");
            }
            ("dns-sequence", "must_block") => {
                bench.http.guard().check(destination(url).origin()).await.expect("allowed when saved");
                bench.clock.advance(AMPLE);
                bench.post(url).await;
                bench.clock.advance(AMPLE);
                assert!(matches!(kind(&bench.post(url).await), Some(FailureKind::AddressRefused)), "{case}");
                assert_eq!(bench.dial.dialled(), ["93.184.215.14:443".parse().expect("address")], "{case}");
            }
            // The connection is TLS, which the receiver here does not speak; the next test follows real redirects.
            ("redirect", "must_block") => {
                bench.post(url).await;
                assert_eq!(bench.dial.dialled(), ["93.184.215.14:443".parse().expect("address")], "{case}");
            }
            other => panic!("unknown case {other:?}"),
        }
    }
    assert!(checked >= 6, "the file holds lookups");
}

fn closing() -> SocketAddr {
    receiver(drop)
}

fn kind(exchange: &Exchange) -> Option<FailureKind> {
    match &exchange.outcome {
        Outcome::Failed(failure) => Some(failure.kind),
        Outcome::Answered(_) | Outcome::TokenRefused(_) => None,
    }
}

#[tokio::test]
async fn redirects_are_answers_and_nothing_more() {
    for code in 300..=308 {
        let head = format!("HTTP/1.1 {code} X\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n");
        let bench = Setup::default().build();
        let exchange = bench.post(&format!("http://{}/", answering(head))).await;
        assert_eq!(status(&exchange), Some(code));
        assert_eq!(bench.dial.dialled().len(), 1);
    }
}

#[tokio::test]
async fn one_refused_address_refuses_the_name() {
    for answers in [
        &["93.184.215.14", "127.0.0.1"][..],
        &["127.0.0.1", "93.184.215.14"],
        &["93.184.215.14", "::1"],
        &["2606:4700::1", "93.184.215.14", "::ffff:10.0.0.1"],
    ] {
        let bench = Setup { is_strict: true, ..Setup::default() }.name("mixed.test", &[answers]).build();
        assert!(
            matches!(kind(&bench.post("https://mixed.test/").await), Some(FailureKind::AddressRefused)),
            "{answers:?}"
        );
        assert_eq!(bench.dial.dialled(), []);
    }
}

#[tokio::test]
async fn a_refusal_says_why_but_not_where() {
    let bench = Setup { is_strict: true, ..Setup::default() }.name("a.test", &[&["10.1.2.3"]]).build();
    let detail = "a.test leads to an address that is not public: private network (10.0.0.0/8)";
    assert_failed(&bench.post("https://a.test/").await, FailureKind::AddressRefused, detail);
}

#[tokio::test]
async fn literals_pass_the_same_filter_whoever_parsed_them() {
    for url in
        ["https://127.0.0.1/", "http://127.0.0.1:8080/", "https://10.0.0.1/", "https://[::ffff:10.0.0.1]/"]
    {
        let bench = Setup { is_strict: true, ..Setup::default() }.build();
        assert!(matches!(kind(&bench.post(url).await), Some(FailureKind::AddressRefused)), "{url}");
        assert_eq!(bench.dial.dialled(), [], "{url}");
        assert_eq!(bench.resolver.lookups.load(Relaxed), 0, "{url}");
    }
}

#[tokio::test]
async fn plain_http_never_leaves_loopback() {
    let bench = Setup::default().name("localhost", &[&["93.184.215.14"]]).build();
    let detail = "plain HTTP is only for loopback addresses; use https://";
    assert_failed(&bench.post("http://localhost:8080/").await, FailureKind::AddressRefused, detail);
    assert_eq!(bench.dial.dialled(), []);
}

#[tokio::test]
async fn the_next_address_is_tried_where_one_does_not_answer() {
    let address = answering(ANSWER);
    let bench = Setup::default().name("localhost", &[&["127.0.0.2", "127.0.0.1"]]).build();
    // Only 127.0.0.1 listens on this port.
    let exchange = bench.post(&format!("http://localhost:{}/", address.port())).await;
    assert_eq!(status(&exchange), Some(200));
    assert_eq!(bench.dial.dialled().len(), 2);
}

#[tokio::test]
async fn lookups_are_shared_and_short_lived() {
    let address = answering(ANSWER);
    let bench = Setup::default().name("localhost", &[&["127.0.0.1"]]).build();
    let url = format!("http://localhost:{}/", address.port());
    futures::future::join_all((0..20).map(|_| bench.post(&url))).await;
    assert_eq!(bench.resolver.lookups.load(Relaxed), 1);
    bench.clock.advance(Duration::from_secs(1));
    bench.post(&url).await;
    assert_eq!(bench.resolver.lookups.load(Relaxed), 2);
}

#[tokio::test]
async fn a_kept_connection_is_not_used_once_its_name_has_moved() {
    let address = answering(ANSWER);
    let sequence: [&[&str]; 3] = [&["127.0.0.1"], &["127.0.0.1"], &["127.0.0.2"]];
    let bench = Setup { divert_to: Some(address), ..Setup::default() }.name("localhost", &sequence).build();
    let mut dialled = Vec::new();
    for _ in 0..3 {
        assert_eq!(status(&bench.post("http://localhost:8080/").await), Some(200));
        dialled.push(bench.dial.dialled().len());
        bench.clock.advance(Duration::from_secs(1));
    }
    assert_eq!(dialled, [1, 1, 2]);
    assert_eq!(bench.dial.dialled()[1], "127.0.0.2:8080".parse().expect("address"));
}

#[tokio::test]
async fn a_kept_connection_is_not_used_once_its_name_is_refused() {
    let address = answering(ANSWER);
    let bench = Setup { divert_to: Some(address), ..Setup::default() }
        .name("localhost", &[&["127.0.0.1"], &["10.0.0.1"]])
        .build();
    assert_eq!(status(&bench.post("http://localhost:8080/").await), Some(200));
    bench.clock.advance(Duration::from_secs(1));
    assert!(matches!(kind(&bench.post("http://localhost:8080/").await), Some(FailureKind::AddressRefused)));
}

/// Every form of the shared cases, let through by whoever parsed it, is refused where connections are made.
#[tokio::test]
async fn the_shared_literals_never_open_a_forbidden_connection() {
    let mut checked = 0;
    for case in cases("urls").iter().filter(|case| case["stage"] == "literal") {
        let url = case["url"].as_str().expect("url");
        // Plain HTTP must not be the only reason.
        let over_tls = url.replacen("http:", "https:", 1);
        let expected = match case["expect"].as_str().expect("expectation") {
            "must_block" => 0,
            "must_allow" => 1,
            "either" => continue,
            other => panic!("unknown expectation {other}"),
        };
        // Some are no URL to our parser, however open the policy is.
        let Some(destination) = lenient(&over_tls) else {
            assert_eq!(expected, 0, "{case}");
            continue;
        };
        let mut setup = Setup { is_strict: true, divert_to: Some(closing()), ..Setup::default() };
        if let Host::Name(name) = &destination.origin().host {
            // This machine's own name, however it is spelt.
            setup = setup.name(name, &[&["127.0.0.1"]]);
        }
        let bench = setup.build();
        let exchange = bench.send(destination).await;
        assert_eq!(kind(&exchange) == Some(FailureKind::AddressRefused), expected == 0, "{case}");
        assert_eq!(bench.dial.dialled().len(), expected, "{case}");
        checked += 1;
    }
    assert!(checked >= 30, "{checked}");
}

#[tokio::test]
async fn the_shared_addresses_are_refused_as_literals_and_as_answers() {
    for case in cases("ips") {
        let text = case["ip"].as_str().expect("address");
        let literal =
            if text.contains(':') { format!("https://[{text}]/") } else { format!("https://{text}/") };
        for url in [literal.as_str(), "https://named.test/"] {
            let setup = Setup { is_strict: true, divert_to: Some(closing()), ..Setup::default() };
            let bench = setup.name("named.test", &[&[text]]).build();
            let exchange = bench.send(lenient(url).expect("a URL")).await;
            let is_allowed = case["expect"] == "allow";
            assert_eq!(kind(&exchange) != Some(FailureKind::AddressRefused), is_allowed, "{url} {case}");
            assert_eq!(bench.dial.dialled().len(), usize::from(is_allowed), "{url} {case}");
        }
    }
}

fn cases(list: &str) -> Vec<Value> {
    let file: Value =
        serde_json::from_str(include_str!("../../../../../cases/ssrf-targets.json")).expect("JSON");
    file[list].as_array().expect("cases").clone()
}

/// Parses under a policy that refuses no address, not even a metadata service.
fn lenient(url: &str) -> Option<Destination> {
    let named = ["169.254.169.254", "169.254.170.2", "168.63.129.16", "100.100.100.200", "fd00:ec2::254"];
    let alone = named.map(|address| address.parse::<IpAddr>().expect("address").into());
    let all = ["0.0.0.0/0", "::/0"].map(|network| network.parse().expect("network"));
    let open = address::Policy { allowed: [all.as_slice(), alone.as_slice()].concat(), allow_loopback: true };
    let url_policy = UrlPolicy { allow_query: true, allow_loopback_http: true };
    Destination::parse(url, &url_policy, &open).ok()
}
