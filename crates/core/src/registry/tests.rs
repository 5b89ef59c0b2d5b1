use super::*;

const OPEN: address::Policy = address::Policy { allowed: Vec::new(), allow_loopback: false };

fn parse(text: &str) -> Result<Registry, Refusal> {
    let url = UrlPolicy { allow_query: false, allow_loopback_http: false };
    Registry::parse(text, Policies { url, addresses: &OPEN })
}

fn endpoints(text: &str) -> Endpoints {
    let indented = text.replace('\n', "\n      ");
    let file = format!("tenants:\n  acme:\n    endpoints:\n      {indented}\n");
    let mut registry = parse(&file).expect(&file);
    registry.tenants.remove(&"acme".parse::<Name>().expect("name")).expect("the tenant")
}

const WHOLE: &str = r#"
tenants:
  acme:
    endpoints:
      sms:
        url: https://api.sms.example/v2/messages?account=7781
        allowQuery: true
        method: PUT
        successCodes: [200-204, 409]
        retry: { maxAttempts: 10, maxAgeSeconds: 3600, initialDelayMs: 1000, maxDelayMs: 60000 }
        rateLimit: { perSecond: 2.5 }
        maxInFlight: 8
        timeoutMs: 5000
        headers: { X-Account: "7781" }
        credential: sms-api
        applications: [orders, billing]
  globex:
    endpoints: {}
"#;

#[test]
fn a_file_says_everything_about_its_endpoints() {
    let registry = parse(WHOLE).expect("the file");
    let name = |text: &str| text.parse::<Name>().expect(text);
    assert_eq!(registry.tenants[&name("globex")], Endpoints::new());
    let sms = &registry.tenants[&name("acme")][&name("sms")];
    assert_eq!(sms.url, "https://api.sms.example/v2/messages");
    assert_eq!(sms.query.as_ref().map(Query::reveal), Some("account=7781"));
    assert_eq!((sms.method, sms.success_codes.to_string()), (Method::Put, "200-204,409".to_owned()));
    assert_eq!((sms.retry.max_attempts(), sms.retry.max_age().as_secs()), (10, 3_600));
    assert_eq!(sms.rate.map(|rate| (rate.per_second, rate.burst.get())), Some((2.5, 3)));
    assert_eq!((sms.max_in_flight.get(), sms.timeout), (8, Duration::from_secs(5)));
    assert_eq!(sms.headers.names().collect::<Vec<_>>(), ["x-account"]);
    assert_eq!(sms.credential, Some(name("sms-api")));
    assert_eq!(sms.applications, BTreeSet::from([name("billing"), name("orders")]));
    assert!(!format!("{registry:?}").contains("7781"), "secrets are in no debug output");
}

#[test]
fn what_is_left_out_has_the_defaults_of_any_endpoint() {
    let endpoints = endpoints("plain:\n  url: https://example.com");
    let plain = &endpoints[&"plain".parse::<Name>().expect("name")];
    assert_eq!((plain.method, plain.success_codes), (Method::Post, SuccessCodes::DEFAULT));
    assert_eq!((plain.retry, plain.rate), (Policy::DEFAULT, None));
    assert!(plain.applications.is_empty() && plain.headers.is_empty() && !plain.allow_query);
}

#[test]
fn a_refusal_names_the_line_and_the_path_and_repeats_no_value() {
    let check = |entry: &str, line: u64, path: &str| {
        let file = format!(
            "tenants:\n  acme:\n    endpoints:\n      sms:\n        url: https://example.com/hidden\n{entry}"
        );
        let refusal = parse(&file).expect_err(entry);
        assert_eq!((refusal.line, refusal.path.as_str()), (Some(line), path), "{entry}: {refusal}");
        assert!(!refusal.to_string().contains("hidden"), "{refusal}");
    };
    check("        colour: hidden\n", 6, "tenants.acme.endpoints.sms.colour");
    check("        method: hidden\n", 6, "tenants.acme.endpoints.sms.method");
    check("        method: GET\n", 6, "tenants.acme.endpoints.sms.method");
    check("        successCodes: [200, hidden]\n", 6, "tenants.acme.endpoints.sms.successCodes");
    check("        successCodes: [302]\n", 6, "tenants.acme.endpoints.sms.successCodes");
    check("        maxInFlight: hidden\n", 6, "tenants.acme.endpoints.sms.maxInFlight");
    check("        allowQuery: yes\n", 6, "tenants.acme.endpoints.sms.allowQuery");
    check("        url: hidden\n", 6, "tenants.acme.endpoints.sms");
    check("        \"url\": hidden\n", 6, "tenants.acme.endpoints.sms");
    check("        headers: {x-a: hidden, 'x-a': hidden}\n", 6, "tenants.acme.endpoints.sms.headers");
    check("        applications: [a, b, a]\n", 6, "tenants.acme.endpoints.sms.applications");
    check("        successCodes: [200, '200']\n", 6, "tenants.acme.endpoints.sms.successCodes");
    check("        credential: NOT A NAME\n", 6, "tenants.acme.endpoints.sms.credential");
    check("        retry: {maxTries: 1}\n", 6, "tenants.acme.endpoints.sms.retry.maxTries");
    check("        headers: {x-a: [hidden]}\n", 6, "tenants.acme.endpoints.sms.headers.x-a");
}

#[test]
fn numbers_and_truths_stand_without_quotes() {
    let check = |entry: &str, key: &str| {
        let file = format!(
            "tenants:\n  acme:\n    endpoints:\n      sms:\n        url: https://example.com\n        {entry}\n"
        );
        let refusal = parse(&file).expect_err(entry);
        let path = format!("tenants.acme.endpoints.sms.{key}");
        assert_eq!((refusal.line, refusal.path), (Some(6), path), "{entry}: {}", refusal.reason);
    };
    for quoted in ["'5000'", "\"5000\"", "!!str 5000", "5e3", "5000.0", "true", "-1", "4294967296"] {
        check(&format!("timeoutMs: {quoted}"), "timeoutMs");
        check(&format!("retry: {{maxAttempts: {quoted}}}"), "retry.maxAttempts");
        check(&format!("rateLimit: {{perSecond: 1, burst: {quoted}}}"), "rateLimit.burst");
        check(&format!("maxInFlight: {quoted}"), "maxInFlight");
    }
    check("maxInFlight: 65537", "maxInFlight");
    check("rateLimit: {perSecond: '2.5'}", "rateLimit.perSecond");
    check("allowQuery: 'true'", "allowQuery");
    let refusal = parse("tenants: {acme: {endpoints: {a: {url: 'https://example.com', timeoutMs: '5000'}}}}");
    assert_eq!(
        refusal.expect_err("quoted").to_string(),
        "line 1: tenants.acme.endpoints.a.timeoutMs: this is not a whole number, without quotes"
    );
}

#[test]
fn nothing_is_spelt_in_a_way_that_hides_what_it_says() {
    let refused = |file: &str, line: u64, path: &str| {
        let refusal = parse(file).expect_err(file);
        assert_eq!((refusal.line, refusal.path.as_str()), (Some(line), path), "{file}: {}", refusal.reason);
        assert!(!refusal.to_string().contains("hidden"), "{refusal}");
    };
    let entry = |entry: &str| {
        format!(
            "tenants:\n  acme:\n    endpoints:\n      sms:\n        url: https://a.example\n        {entry}\n"
        )
    };
    let sms = "tenants.acme.endpoints.sms";
    // Tags: on keys, on values of every kind, and on what holds them.
    refused("!!map {tenants: {}}", 1, "");
    refused("tenants: !!map {}", 1, "tenants");
    refused("tenants: {!!binary YWNtZQ==: {endpoints: {}}}", 1, "tenants");
    refused("tenants:\n  acme:\n    !!binary ZW5kcG9pbnRz: {}", 3, "tenants.acme");
    let binary = "!!binary aHR0cHM6Ly9hLmV4YW1wbGU=";
    let url = format!("tenants:\n  acme:\n    endpoints:\n      sms:\n        url: {binary}");
    refused(&url, 5, &format!("{sms}.url"));
    refused(&url.replace("url:", "!!binary dXJs:"), 5, sms);
    for (tagged, key) in [
        ("method: !!str PUT", ".method"),
        ("method: ! PUT", ".method"),
        ("method: !<tag:yaml.org,2002:str> PUT", ".method"),
        ("allowQuery: !!bool 'true'", ".allowQuery"),
        ("timeoutMs: !!int '500'", ".timeoutMs"),
        ("timeoutMs: !!null ''", ".timeoutMs"),
        ("rateLimit: {perSecond: !!float '2.5'}", ".rateLimit.perSecond"),
        ("retry: !!map {maxAttempts: 1}", ".retry"),
        ("headers: {x-a: !!binary aGlkZGVu}", ".headers.x-a"),
        ("headers: {!!binary eC1h: hidden}", ".headers"),
        ("credential: !!binary YQ==", ".credential"),
        ("applications: !!seq [a]", ".applications"),
        ("applications: [a, !!str b]", ".applications"),
        ("successCodes: [!!str 200]", ".successCodes"),
    ] {
        refused(&entry(tagged), 6, &format!("{sms}{key}"));
    }
    // Numbers, which the same digits would make of other values elsewhere.
    for number in ["0x1388", "0o7", "0b101", "1_7_5_0", "+500", "0500", "1.", ".5", "1e3"] {
        for key in ["timeoutMs", "maxInFlight", "retry.maxAttempts", "rateLimit.burst", "rateLimit.perSecond"]
        {
            let setting = match key.split_once('.') {
                None => format!("{key}: {number}"),
                Some((of, "burst")) => format!("{of}: {{perSecond: 1, burst: {number}}}"),
                Some((of, key)) => format!("{of}: {{{key}: {number}}}"),
            };
            refused(&entry(&setting), 6, &format!("{sms}.{key}"));
        }
    }
    for taken in ["timeoutMs: 500", "timeoutMs:", "timeoutMs: ~", "retry: {maxAttempts: null}"] {
        assert!(parse(&entry(taken)).is_ok(), "{taken}");
    }
    // Where a text is meant, what looks like a number or a tag is one.
    let headers =
        "headers: {burst: 0x10, timeoutMs: +1, x-a: '!!binary aGk='}\n        rateLimit: {perSecond: 2.50}";
    assert!(parse(&entry(headers)).is_ok());
}

#[test]
fn nothing_is_named_twice_however_it_is_spelt() {
    let of = |twin: &str| {
        format!("{{endpoints: {{a: {{url: 'https://a.example'}}, {twin}: {{url: 'https://b.example'}}}}}}")
    };
    // The reader itself does not see the last one; whoever does knows the line of the map and not of its key.
    for (twin, line) in
        [("a", 3), ("'a'", 3), ("\"a\"", 3), ("!!str a", 3), ("\"\\x61\"", 3), ("!!binary YQ==", 2)]
    {
        let refusal = parse(&format!("tenants:\n  acme: {}", of(twin))).expect_err(twin);
        let place = (refusal.line, refusal.path.as_str(), refusal.reason.as_str());
        assert_eq!(place, (Some(2), "tenants.acme.endpoints", "the key `a` is given twice"), "{twin}");
        let file = format!("tenants:\n  a: {{endpoints: {{}}}}\n  {twin}: {{endpoints: {{}}}}");
        let refusal = parse(&file).expect_err(twin);
        let place = (refusal.line, refusal.path.as_str(), refusal.reason.as_str());
        assert_eq!(place, (Some(line), "tenants", "the key `a` is given twice"), "{twin}");
        let file = format!(
            "tenants:\n  acme:\n    endpoints:\n      sms: {{url: 'https://a.example', applications: [a, {twin}]}}"
        );
        let refusal = parse(&file).expect_err(twin);
        let place = (refusal.line, refusal.path.as_str(), refusal.reason.as_str());
        let path = "tenants.acme.endpoints.sms.applications";
        assert_eq!(place, (Some(4), path, "item 2 of this list repeats an earlier one"), "{twin}");
    }
}

#[test]
fn what_the_api_would_refuse_is_refused_here() {
    let check = |entry: &str, key: &str| {
        let file = format!("tenants:\n  acme:\n    endpoints:\n      sms:\n        {entry}\n");
        let refusal = parse(&file).expect_err(entry);
        assert_eq!(refusal.path, format!("tenants.acme.endpoints.sms.{key}"), "{refusal}");
        assert!(refusal.line.is_some(), "{refusal}");
    };
    check("{url: 'http://example.com/'}", "url");
    check("{url: 'https://example.com/?token=1'}", "url");
    check("{url: 'https://user@example.com/'}", "url");
    check("{url: 'https://127.0.0.1/'}", "url");
    check("{url: 'https://[::ffff:169.254.169.254]/'}", "url");
    check(r#"{url: "https://example.com/\r\nx: y"}"#, "url");
    check("{url: 'https://example.com', headers: {Host: a}}", "headers");
    check("{url: 'https://example.com', headers: {X-A: a, x-a: b}}", "headers");
    check(r#"{url: 'https://example.com', headers: {x-a: "a\r\nb: c"}}"#, "headers");
    check("{url: 'https://example.com', retry: {maxAttempts: 101}}", "retry.maxAttempts");
    check("{url: 'https://example.com', retry: {initialDelayMs: 9, maxDelayMs: 8}}", "retry.initialDelayMs");
    check("{url: 'https://example.com', rateLimit: {perSecond: 0}}", "rateLimit.perSecond");
    check("{url: 'https://example.com', rateLimit: {perSecond: .nan}}", "rateLimit.perSecond");
    check("{url: 'https://example.com', rateLimit: {perSecond: 1, burst: 0}}", "rateLimit.burst");
    check("{url: 'https://example.com', maxInFlight: 0}", "maxInFlight");
    check("{url: 'https://example.com', timeoutMs: 60001}", "timeoutMs");
}

#[test]
fn files_that_are_not_what_they_seem_are_refused() {
    let deep = format!("tenants: {}{}", "[".repeat(5_000), "]".repeat(5_000));
    let bomb = "a: &a [x, x]\nb: &b [*a, *a]\ntenants: *b\n";
    let many = (0..=MAX_ENDPOINTS).fold("tenants:\n  acme:\n    endpoints:\n".to_owned(), |file, number| {
        file + &format!("      e{number}: {{url: 'https://example.com'}}\n")
    });
    let large = format!("#{}", "x".repeat(MAX_FILE_BYTES));
    for text in [
        "",
        "tenants",
        "tenants: 1",
        "tenants:\n  Acme: {endpoints: {}}",
        "tenants:\n  acme: {endpoints: {}}\n  acme: {endpoints: {}}",
        "tenants: {acme: {endpoints: {a: {url: 'https://example.com'}, a: {url: 'https://example.com'}}}}",
        "tenants: {acme: {endpoints: {a: {url: 'https://example.com', <<: {method: PUT}}}}}",
        "tenants: {}\n---\ntenants: {}",
        "tenants: {acme: {endpoints: {a: {}}}}",
        "tenants: {acme: {}}",
        "tenants: {}\nversion: 1",
        "{tenants: {}",
        &deep,
        bomb,
        &many,
        &large,
    ] {
        let shown: String = text.chars().take(80).collect();
        let refusal = parse(text).expect_err(&shown);
        assert!(!refusal.reason.is_empty());
    }
    assert_eq!(parse("tenants: {}"), Ok(Registry::default()));
}

#[test]
fn a_difference_is_told_setting_by_setting_without_secrets() {
    let check = |before: &str, after: &str, expected: &[(&str, &str, &str)]| {
        let of = |settings: &str| endpoints(&format!("sms: {{url: 'https://example.com/a', {settings}}}"));
        let changes = diff(&of(before), &of(after));
        let seen: Vec<_> = changes
            .iter()
            .flat_map(|change| match &change.kind {
                Kind::Changed { fields, .. } => fields.clone(),
                Kind::Added(_) | Kind::Removed => panic!("{change:?}"),
            })
            .collect();
        let seen: Vec<_> = seen.iter().map(|field| (field.name, &*field.from, &*field.to)).collect();
        assert_eq!(seen, expected, "{before} → {after}");
    };
    check("", "", &[]);
    check("method: PUT", "method: PUT", &[]);
    check("method: PUT", "", &[("method", "PUT", "POST")]);
    check("timeoutMs: 500", "timeoutMs: 600", &[("timeoutMs", "500", "600")]);
    check("headers: {x-a: one}", "headers: {X-A: two}", &[("headers", "x-a", "x-a, with other values")]);
    check("headers: {x-a: one}", "headers: {x-b: one}", &[("headers", "x-a", "x-b")]);
    check("applications: [b, a]", "applications: [a, b]", &[]);
    check(
        "applications: [a]",
        "credential: key",
        &[("credential", "none", "key"), ("applications", "a", "none")],
    );
    check(
        "rateLimit: {perSecond: 1}",
        "retry: {maxAttempts: 2}",
        &[
            (
                "retry",
                "25 attempts within 86400 s, 5000 to 7200000 ms apart",
                "2 attempts within 86400 s, 5000 to 7200000 ms apart",
            ),
            ("rateLimit", "1 per second, 1 at once", "none"),
        ],
    );
}

#[test]
fn a_new_endpoint_is_told_by_what_is_not_as_by_default() {
    for (settings, expected) in [
        ("url: 'https://example.com/'", &["url"][..]),
        ("url: 'https://example.com/', method: POST, timeoutMs: 15000", &["url"]),
        ("url: 'https://example.com/?key=hidden', allowQuery: true", &["url", "allowQuery", "query"]),
        (
            "url: 'https://example.com/', method: PUT, successCodes: [200], retry: {maxAttempts: 2}, \
             rateLimit: {perSecond: 1}, maxInFlight: 1, timeoutMs: 500, credential: key, applications: [a], \
             headers: {x-a: hidden}",
            &[
                "url",
                "method",
                "successCodes",
                "retry",
                "rateLimit",
                "maxInFlight",
                "timeoutMs",
                "credential",
                "applications",
                "headers",
            ],
        ),
    ] {
        let declared = endpoints(&format!("sms: {{{settings}}}"));
        assert_eq!(chosen(declared.values().next().expect("one")), expected, "{settings}");
    }
}

#[test]
fn endpoints_come_go_and_move() {
    let before = endpoints("a: {url: 'https://example.com/'}\nb: {url: 'https://example.com/'}");
    let after = endpoints(
        "b: {url: 'https://other.example/?key=hidden', allowQuery: true}\nc: {url: 'https://example.com/'}",
    );
    let changes = diff(&before, &after);
    let kinds: Vec<_> = changes
        .iter()
        .map(|change| match &change.kind {
            Kind::Added(_) => (change.endpoint.as_str(), "added"),
            Kind::Changed { is_repointed: true, .. } => (change.endpoint.as_str(), "repointed"),
            Kind::Changed { is_repointed: false, .. } => (change.endpoint.as_str(), "changed"),
            Kind::Removed => (change.endpoint.as_str(), "removed"),
        })
        .collect();
    assert_eq!(kinds, [("a", "removed"), ("b", "repointed"), ("c", "added")]);
    assert!(!format!("{changes:?}").contains("hidden"));

    let moved = diff(
        &endpoints("b: {url: 'https://example.com/?key=1', allowQuery: true}"),
        &endpoints("b: {url: 'https://example.com/?key=2', allowQuery: true}"),
    );
    assert!(
        matches!(&moved[0].kind, Kind::Changed { is_repointed: false, fields, .. }
            if fields.as_slice() == [Field { name: "query", from: "a query".into(), to: "another query".into() }]),
        "{moved:?}"
    );
}

#[test]
fn a_document_has_no_secrets_and_one_spelling() {
    let text = |spelling: &str| document(&endpoints(spelling));
    let document = text(
        "a: {url: 'https://example.com/?key=hidden', allowQuery: true, headers: {X-B: hidden, x-a: hidden}}",
    );
    assert!(!document.contains("hidden"), "{document}");
    assert!(
        document.contains(r#""headers":["x-a","x-b"]"#) && document.contains(r#""hasQuery":true"#),
        "{document}"
    );
    assert_eq!(
        document,
        text(
            "a:\n  headers: {x-a: hidden, x-b: hidden}\n  allowQuery: true\n  url: https://EXAMPLE.com:443/?key=other"
        )
    );
}
