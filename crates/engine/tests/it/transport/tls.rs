//! TLS: who is trusted, and that every failed handshake is a failed attempt with its reason, never a plaintext request.

use postrider_engine::transport;
use postrider_testkit::authority::{Authority, self_signed_server};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    pki_types::{CertificateDer, PrivatePkcs8KeyDer, pem::PemObject as _},
};

use super::*;

const NAME: &str = "receiver.test";
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn tls_receiver(config: Arc<ServerConfig>) -> SocketAddr {
    receiver(move |stream| {
        let session = ServerConnection::new(Arc::clone(&config)).expect("session");
        let mut stream = StreamOwned::new(session, stream);
        while read_request(&mut stream).is_some() {
            let _ = stream.write_all(ANSWER);
        }
    })
}

/// Trusts one authority; `receiver.test` leads to `address`.
fn bench(authority: &Authority, address: SocketAddr) -> Bench {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(authority.certificate_pem().as_bytes()).expect("PEM"))
        .expect("root");
    Setup { roots: Some(roots), divert_to: Some(address), is_strict: true, ..Setup::default() }
        .name(NAME, &[&["93.184.215.14"]])
        .build()
}

#[tokio::test]
async fn a_private_authority_vouches_for_names_and_addresses() {
    let authority = Authority::default();
    let address = tls_receiver(authority.server(&[NAME, "93.184.215.14"]));
    let bench = bench(&authority, address);
    for url in ["https://receiver.test/", "https://RECEIVER.test./", "https://93.184.215.14/"] {
        let exchange = bench.post(url).await;
        assert_eq!(status(&exchange), Some(200), "{url}: {exchange:?}");
    }
    assert_eq!(bench.dial.dialled().len(), 2, "the spellings of one name share a connection");
}

/// The extra answer is in a record of its own, so it may wait within the TLS layer where the socket no longer shows it.
#[tokio::test]
async fn an_extra_answer_is_never_the_next_one_over_tls_either() {
    let authority = Authority::default();
    let config = authority.server(&[NAME]);
    let address = receiver(move |stream| {
        let session = ServerConnection::new(Arc::clone(&config)).expect("session");
        let mut stream = StreamOwned::new(session, stream);
        if read_request(&mut stream).is_none() {
            return;
        }
        for bytes in [ANSWER, b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n"] {
            let _ = stream.conn.writer().write_all(bytes);
        }
        let _ = stream.flush();
        read_to_end(&mut stream);
    });
    let bench = bench(&authority, address);
    for connections in 1..=3 {
        assert_eq!(status(&bench.post("https://receiver.test/").await), Some(200));
        assert_eq!(bench.dial.dialled().len(), connections);
    }
}

/// Serves like [`tls_receiver`], but ends one request's connection in order, with `close_notify`, instead of answering.
fn closing_tls_receiver(config: Arc<ServerConfig>, closed_request: usize) -> SocketAddr {
    let served = AtomicUsize::new(0);
    receiver(move |stream| {
        let session = ServerConnection::new(Arc::clone(&config)).expect("session");
        let mut stream = StreamOwned::new(session, stream);
        while read_request(&mut stream).is_some() {
            if served.fetch_add(1, Relaxed) == closed_request {
                stream.conn.send_close_notify();
                let _ = stream.flush();
                return;
            }
            let _ = stream.write_all(ANSWER);
        }
    })
}

/// The alert is bytes from the receiver, but not a byte of an answer.
#[tokio::test]
async fn a_kept_connection_that_tls_closes_under_a_request_is_replaced_once_and_told() {
    let authority = Authority::default();
    let bench = bench(&authority, closing_tls_receiver(authority.server(&[NAME]), 1));
    for (reconnected, connections) in [(false, 1), (true, 2), (false, 2)] {
        let exchange = bench.post("https://receiver.test/").await;
        assert_eq!((status(&exchange), exchange.reconnected), (Some(200), reconnected), "{exchange:?}");
        assert_eq!(bench.dial.dialled().len(), connections);
    }
}

/// On a new connection session tickets come before the alert. Neither is an answer, and one try is enough.
#[tokio::test]
async fn a_new_connection_that_tls_closes_is_not_tried_again() {
    let authority = Authority::default();
    let bench = bench(&authority, closing_tls_receiver(authority.server(&[NAME]), 0));
    let exchange = bench.post("https://receiver.test/").await;
    let detail = "the receiver closed the connection without an answer";
    assert_failed(&exchange, FailureKind::ConnectionLost, detail);
    assert_eq!((exchange.reconnected, bench.dial.dialled().len()), (false, 1));
}

#[tokio::test]
async fn extra_authorities_come_from_a_pem_file() {
    let pem = Authority::default().certificate_pem();
    let with_system = transport::roots(None).expect("roots").len();
    assert_eq!(transport::roots(Some(pem.as_bytes())).expect("roots").len(), with_system + 1);
    for (pem, expected) in [
        ("", "no certificate in PEM is there"),
        ("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----", "the PEM is broken"),
        (
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----",
            "a certificate cannot be used as an authority",
        ),
    ] {
        let error = transport::roots(Some(pem.as_bytes())).expect_err("refused").to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[tokio::test]
async fn certificates_that_are_not_good_enough() {
    let authority = Authority::default();
    let unknown =
        "the receiver's certificate is self-signed, or comes from an authority that is not trusted here";
    let chain = "the receiver's certificate or its chain cannot be accepted";
    for (config, expected) in [
        (authority.expired_server(&[NAME]), &["the receiver's certificate has expired"][..]),
        (authority.server(&["other.test"]), &["the receiver's certificate is not for receiver.test"]),
        (Authority::default().server(&[NAME]), &[unknown]),
        (self_signed_server(&[NAME]), &[unknown]),
        (chain_of_100(), &[unknown, chain]),
    ] {
        let bench = bench(&authority, tls_receiver(config));
        let exchange = bench.post("https://receiver.test/").await;
        let Outcome::Failed(Failure { kind: FailureKind::Tls, detail }) = &exchange.outcome else {
            panic!("{expected:?}: {exchange:?}")
        };
        assert!(expected.contains(&detail.as_str()), "{detail}");
        assert_eq!(bench.dial.dialled().len(), 1, "no second try: {detail}");
    }
}

/// What the receiver gets is a TLS handshake record and never a line of HTTP.
#[tokio::test]
async fn handshakes_that_break_and_what_the_receiver_saw() {
    let closed = "the receiver closed the connection during the TLS handshake";
    let not_tls = "the receiver does not speak TLS on this port";
    let refused = "the receiver refused the TLS handshake: HandshakeFailure";
    for (answer, expected) in [
        (&b""[..], closed),
        (b"\x16\x03\x03\x00\xff", closed),
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", not_tls),
        (b"220 mail.example ESMTP\r\n", not_tls),
        (b"\x15\x03\x03\x00\x02\x02\x28", refused),
    ] {
        let (saw, seen) = std::sync::mpsc::channel();
        let address = receiver(move |mut stream| {
            let mut first = [0; 512];
            let count = stream.read(&mut first).expect("a hello");
            let _ = saw.send(first[..count].to_vec());
            let _ = stream.write_all(answer);
        });
        let bench = bench(&Authority::default(), address);
        assert_failed(&bench.post("https://receiver.test/").await, FailureKind::Tls, expected);
        let first = seen.recv().expect("bytes");
        assert_eq!(first[..2], [0x16, 0x03], "a TLS handshake record");
        assert_eq!(bench.dial.dialled().len(), 1);
        assert!(seen.try_recv().is_err(), "no second connection");
    }
}

#[tokio::test]
async fn a_reset_in_the_handshake() {
    let address = receiver(|stream| {
        // Closing with unread bytes resets the connection.
        let mut first = [0; 1];
        let _ = stream.peek(&mut first);
    });
    let bench = bench(&Authority::default(), address);
    let detail = "the receiver closed the connection during the TLS handshake";
    assert_failed(&bench.post("https://receiver.test/").await, FailureKind::Tls, detail);
}

#[tokio::test]
async fn a_handshake_that_stalls_ends_in_time() {
    let bench = bench(&Authority::default(), receiver(|mut stream| read_to_end(&mut stream)));
    let exchange = bench.post_within("https://receiver.test/", Duration::from_millis(200)).await;
    assert_failed(&exchange, FailureKind::Tls, "the TLS handshake took longer than 200 ms");
}

fn chain_of_100() -> Arc<ServerConfig> {
    let key = || KeyPair::generate().expect("key");
    let parameters = |name: String| {
        let mut parameters = CertificateParams::new(Vec::new()).expect("parameters");
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters
    };
    let mut issuer = CertifiedIssuer::self_signed(parameters("root".to_owned()), key()).expect("root");
    let mut chain = Vec::new();
    for link in 1..100 {
        issuer =
            CertifiedIssuer::signed_by(parameters(format!("link {link}")), key(), &issuer).expect("link");
        chain.push(issuer.der().clone());
    }
    let leaf_key = key();
    let leaf = CertificateParams::new(vec![NAME.to_owned()])
        .expect("leaf")
        .signed_by(&leaf_key, &issuer)
        .expect("leaf");
    chain.push(leaf.der().clone());
    chain.reverse();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(chain, PrivatePkcs8KeyDer::from(leaf_key.serialize_der()).into());
    Arc::new(config.expect("the leaf fits its key"))
}
