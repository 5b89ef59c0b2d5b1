//! A private certificate authority for TLS tests, and the server configurations it vouches for.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use time::OffsetDateTime;

/// A private authority; each one is unknown to every other.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
#[derive(Debug, Clone)]
pub struct IssuedPem {
    pub certificate: String,
    pub key: String,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Authority")
    }
}

impl Default for Authority {
    fn default() -> Self {
        let mut parameters = CertificateParams::new(Vec::new()).expect("no names are fine");
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // A name of its own, or a client would take a foreign authority's signature for a bad one of its own.
        let name = format!("Postrider test authority {}", uuid::Uuid::new_v4().simple());
        parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(parameters, key()).expect("an authority signs itself"))
    }
}

impl Authority {
    /// The authority's certificate, for a file that `POSTRIDER_CA_FILE` names.
    pub fn certificate_pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for these names and its key, in PEM, for servers that read them from files.
    pub fn issue_pem(&self, names: &[&str]) -> IssuedPem {
        let key = key();
        let certificate = parameters_for(names).signed_by(&key, &self.0).expect("the authority signs");
        IssuedPem { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    /// A server whose certificate is valid for these names (host names or addresses).
    pub fn server(&self, names: &[&str]) -> Arc<rustls::ServerConfig> {
        self.serve(&parameters_for(names))
    }

    /// A server whose certificate was valid for these names until 2001.
    pub fn expired_server(&self, names: &[&str]) -> Arc<rustls::ServerConfig> {
        let mut parameters = parameters_for(names);
        parameters.not_before = rcgen::date_time_ymd(2000, 1, 1);
        parameters.not_after = rcgen::date_time_ymd(2001, 1, 1);
        self.serve(&parameters)
    }

    fn serve(&self, parameters: &CertificateParams) -> Arc<rustls::ServerConfig> {
        let key = key();
        let certificate = parameters.signed_by(&key, &self.0).expect("the authority signs");
        server_config(certificate.der().clone(), &key)
    }
}

/// A server whose certificate no authority signed.
pub fn self_signed_server(names: &[&str]) -> Arc<rustls::ServerConfig> {
    let key = key();
    let certificate = parameters_for(names).self_signed(&key).expect("a certificate signs itself");
    server_config(certificate.der().clone(), &key)
}

fn parameters_for(names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let mut parameters = CertificateParams::new(names).expect("names fit a certificate");
    // Fixed far apart, so that no test depends on the day it runs.
    parameters.not_before = OffsetDateTime::UNIX_EPOCH;
    parameters.not_after = rcgen::date_time_ymd(2100, 1, 1);
    parameters
}

fn key() -> KeyPair {
    KeyPair::generate().expect("a key can be generated")
}

fn server_config(certificate: CertificateDer<'static>, key: &KeyPair) -> Arc<rustls::ServerConfig> {
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider speaks TLS 1.2 and 1.3")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("the certificate fits its key");
    Arc::new(config)
}
