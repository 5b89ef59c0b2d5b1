use proptest::prelude::*;

use super::*;

const CLOSED: UrlPolicy = UrlPolicy { allow_query: false, allow_loopback_http: false };
const VENDOR: UrlPolicy = UrlPolicy { allow_query: true, allow_loopback_http: false };
const DEVELOPMENT: UrlPolicy = UrlPolicy { allow_query: false, allow_loopback_http: true };

fn parse(text: &str, url: UrlPolicy) -> Result<Destination, Refusal> {
    let addresses = address::Policy { allow_loopback: url.allow_loopback_http, ..address::Policy::default() };
    Destination::parse(text, &url, &addresses)
}

#[test]
fn accepted_urls_and_their_parts() {
    for (text, url, host, request_target) in [
        ("https://example.com", CLOSED, "example.com", "/"),
        ("HTTPS://EXAMPLE.com:443/a/../b", CLOSED, "example.com", "/b"),
        ("https://example.com.:8443/", CLOSED, "example.com:8443", "/"),
        ("https://bücher.example/ä", CLOSED, "xn--bcher-kva.example", "/%C3%A4"),
        ("https://8.8.8.8/", CLOSED, "8.8.8.8", "/"),
        ("https://[2001:4860:4860:0::8888]:8443/", CLOSED, "[2001:4860:4860::8888]:8443", "/"),
        ("https://example.com/x?key=1", VENDOR, "example.com", "/x?key=1"),
        ("https://example.com/x?", VENDOR, "example.com", "/x?"),
        ("http://127.0.0.1:8080/x", DEVELOPMENT, "127.0.0.1:8080", "/x"),
        ("http://127.0.0.1:80", DEVELOPMENT, "127.0.0.1", "/"),
        ("http://[::1]/", DEVELOPMENT, "[::1]", "/"),
        ("http://localhost:8787/", DEVELOPMENT, "localhost:8787", "/"),
        ("https://receiver.localhost/", DEVELOPMENT, "receiver.localhost", "/"),
        ("https://a_b.example/", CLOSED, "a_b.example", "/"),
    ] {
        let destination = parse(text, url).unwrap_or_else(|refusal| panic!("{text}: {refusal}"));
        assert_eq!(destination.host_header(), host, "{text}");
        assert_eq!(destination.path_and_query().as_str(), request_target, "{text}");
    }
}

#[test]
fn refused_urls() {
    let long = format!("https://example.com/{}", "a".repeat(MAX_LENGTH));
    let long_label = format!("https://{}.com/", "a".repeat(64));
    let long_name = format!("https://{}com/", "a123456789.".repeat(24));
    let address = |address: &str, range| {
        Refusal::Address(address::Refusal { address: address.parse().expect("address"), range })
    };
    let label = Refusal::Name("between dots stand 1 to 63 letters, digits, `-` and `_`");
    let number = Refusal::Name("its last part starts with a letter, or it could be taken for an address");
    let private = Refusal::Name(
        "names without a dot, `.local`, `.internal` and `.home.arpa` belong to private networks",
    );
    for (text, url, expected) in [
        (long.as_str(), CLOSED, Refusal::TooLong),
        (" https://example.com/", CLOSED, Refusal::Characters),
        ("https://example.com/ ", CLOSED, Refusal::Characters),
        ("https://exa\tmple.com/", CLOSED, Refusal::Characters),
        ("https://example.com\\@127.0.0.1/", CLOSED, Refusal::Characters),
        ("https://example.com/\0", CLOSED, Refusal::Characters),
        ("https:/example.com/", CLOSED, Refusal::Scheme),
        ("https:///example.com/", CLOSED, Refusal::Scheme),
        ("https://", CLOSED, Refusal::Scheme),
        ("https://:443/", CLOSED, Refusal::Scheme),
        ("ftp://example.com/", CLOSED, Refusal::Scheme),
        ("http://example.com/", CLOSED, Refusal::Scheme),
        ("http://example.com/", DEVELOPMENT, Refusal::Scheme),
        ("http://8.8.8.8/", DEVELOPMENT, Refusal::Scheme),
        ("https://user@example.com/", CLOSED, Refusal::Credentials),
        ("https://@example.com/", CLOSED, Refusal::Credentials),
        ("https://example.com/#a", CLOSED, Refusal::Fragment),
        ("https://example.com/?a", CLOSED, Refusal::Query),
        ("https://example.com?", CLOSED, Refusal::Query),
        ("https://example.com:0/", CLOSED, Refusal::Port),
        (long_label.as_str(), CLOSED, label.clone()),
        (long_name.as_str(), CLOSED, Refusal::Name("a name has 1 to 253 characters")),
        ("https://exa(mple.com/", CLOSED, label.clone()),
        ("https://a..example/", CLOSED, label.clone()),
        ("https://localhost../", DEVELOPMENT, label),
        ("https://0x7g000001/", CLOSED, number.clone()),
        ("https://example.0x/", CLOSED, Refusal::Syntax(url::ParseError::InvalidIpv4Address)),
        ("https://example.0abc/", CLOSED, number),
        ("https://localhost/", CLOSED, Refusal::Name("`localhost` is this machine")),
        ("https://a.LOCALHOST./", CLOSED, Refusal::Name("`localhost` is this machine")),
        ("https://intranet/", CLOSED, private.clone()),
        ("https://metadata.google.internal/", CLOSED, private.clone()),
        ("https://printer.local./", CLOSED, private),
        ("https://0x7f.1/", CLOSED, address("127.0.0.1", "loopback (127.0.0.0/8)")),
        ("https://017700000001/", CLOSED, address("127.0.0.1", "loopback (127.0.0.0/8)")),
        (
            "https://[::ffff:10.0.0.1]/",
            DEVELOPMENT,
            address("::ffff:10.0.0.1", "private network (10.0.0.0/8)"),
        ),
    ] {
        assert_eq!(parse(text, url), Err(expected), "{text}");
    }
}

#[test]
fn allowed_networks_open_internal_names_but_not_plain_http() {
    let addresses =
        address::Policy { allowed: vec!["10.0.0.0/8".parse().expect("network")], allow_loopback: false };
    for (text, accepted) in [
        ("https://receiver.internal/", true),
        ("https://receiver/", true),
        ("https://10.0.0.1/", true),
        ("https://192.168.0.1/", false),
        ("http://10.0.0.1/", false),
        ("https://localhost/", false),
    ] {
        assert_eq!(Destination::parse(text, &CLOSED, &addresses).is_ok(), accepted, "{text}");
    }
}

#[test]
fn the_query_is_kept_and_never_shown() {
    let destination = parse("https://example.com/send?key=canary", VENDOR).expect("allowed");
    assert_eq!(destination.to_stored(), "https://example.com/send?key=canary");
    assert_eq!(format!("{destination} {destination:?}"), {
        "https://example.com/send Destination(https://example.com/send)"
    });
}

#[test]
fn spellings_of_one_host_share_connections() {
    let origin = |text| parse(text, CLOSED).expect("allowed").origin().clone();
    assert_eq!(origin("https://EXAMPLE.com./a"), origin("https://example.com:443/b"));
    assert_ne!(origin("https://example.com/"), origin("https://example.com:444/"));
}

proptest! {
    #[test]
    fn a_stored_url_parses_to_the_same_destination(host in "[a-z]{1,10}\\.[a-z]{2,5}", port: u16, path in "[/!-~]{0,40}") {
        if let Ok(destination) = parse(&format!("https://{host}:{port}/{path}"), VENDOR) {
            prop_assert_eq!(parse(&destination.to_stored(), VENDOR), Ok(destination));
        }
    }

    #[test]
    fn no_text_gets_past_the_address_filter(text in "https?://[\\PC]{0,40}") {
        if let Ok(destination) = parse(&text, VENDOR) {
            prop_assert_eq!(destination.origin().scheme, Scheme::Https);
            if let Host::Address(address) = destination.origin().host {
                prop_assert_eq!(address::check(&address::Policy::default(), address), Ok(()));
            }
        }
    }
}
