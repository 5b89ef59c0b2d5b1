//! TLS for receivers: whom we trust, and what to say when a handshake fails.
//!
//! Invariant: there is no way around verification. A failed handshake is a failed attempt; nothing is sent in the clear.

use std::{io, sync::Arc};

use postrider_core::{
    destination::Host,
    retry::{Failure, FailureKind},
};
use rustls::{
    CertificateError, ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};

/// Why the trusted authorities cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the PEM is broken")]
    Pem(#[from] rustls::pki_types::pem::Error),
    #[error("no certificate in PEM is there")]
    NoCertificate,
    #[error("a certificate cannot be used as an authority: {0}")]
    Certificate(rustls::Error),
    #[error("the TLS versions cannot be set up: {0}")]
    Versions(rustls::Error),
}

/// The authorities this system trusts, and those of a PEM file on top.
pub fn roots(extra_pem: Option<&[u8]>) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    let system = rustls_native_certs::load_native_certs();
    let (added, ignored) = roots.add_parsable_certificates(system.certs);
    if added == 0 {
        tracing::warn!(ignored, errors = ?system.errors, "this system has no certificate authorities");
    }
    if let Some(pem) = extra_pem {
        roots.extend(authorities(pem)?.roots);
    }
    Ok(roots)
}

/// The authorities that a text in PEM names: at least one.
pub fn authorities(pem: &[u8]) -> Result<RootCertStore, Error> {
    let mut authorities = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        authorities.add(certificate?).map_err(Error::Certificate)?;
    }
    if authorities.is_empty() { Err(Error::NoCertificate) } else { Ok(authorities) }
}

/// TLS 1.2 and 1.3 with one named provider, so that no other crate's process-wide choice changes ours.
pub(super) fn client_config(roots: RootCertStore) -> Result<Arc<ClientConfig>, Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(Error::Versions)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// The name that the certificate must be for.
pub(super) fn server_name(host: &Host) -> Result<ServerName<'static>, Failure> {
    match host {
        Host::Address(address) => Ok(ServerName::IpAddress((*address).into())),
        Host::Name(name) => ServerName::try_from(name.to_string())
            .map_err(|_| failure("the host name cannot be the name of a certificate".to_owned())),
    }
}

/// Says in plain words why a handshake failed.
pub(super) fn handshake_failure(error: &io::Error, host: &Host) -> Failure {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    failure(match (inner, error.kind()) {
        (Some(error), _) => protocol_words(error, host),
        (None, io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => {
            "the receiver closed the connection during the TLS handshake".to_owned()
        }
        (None, kind) => format!("the TLS handshake failed: {kind}"),
    })
}

pub(super) fn failure(detail: String) -> Failure {
    Failure { kind: FailureKind::Tls, detail }
}

fn protocol_words(error: &rustls::Error, host: &Host) -> String {
    match error {
        rustls::Error::InvalidCertificate(error) => certificate_words(error, host),
        rustls::Error::InvalidMessage(_) => "the receiver does not speak TLS on this port".to_owned(),
        rustls::Error::AlertReceived(alert) => format!("the receiver refused the TLS handshake: {alert:?}"),
        rustls::Error::PeerIncompatible(_) => {
            "the receiver and Postrider share no TLS version and cipher; TLS 1.2 or 1.3 is needed".to_owned()
        }
        rustls::Error::NoCertificatesPresented => "the receiver presented no certificate".to_owned(),
        // Not an enum of ours, and it may grow: the library's own words are better than none.
        other => format!("the TLS handshake failed: {other}"),
    }
}

fn certificate_words(error: &CertificateError, host: &Host) -> String {
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the receiver's certificate has expired".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the receiver's certificate is not valid yet".to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("the receiver's certificate is not for {host}")
        }
        CertificateError::UnknownIssuer => {
            "the receiver's certificate is self-signed, or comes from an authority that is not trusted here"
                .to_owned()
        }
        CertificateError::Revoked => "the receiver's certificate was revoked".to_owned(),
        CertificateError::BadSignature => {
            "the receiver's certificate was not signed by the authority it names".to_owned()
        }
        // Not an enum of ours, and it may grow. Its debug text names the fault; it quotes no certificate.
        _ => "the receiver's certificate or its chain cannot be accepted".to_owned(),
    }
}
