//! The broker, if one is used beside the table.

use std::path::Path;

use postrider_broker::rabbit::{Address, BadAddress};

use super::{
    deliveries::{certificates, nobody_asks},
    setting,
    source::{Recorded, Source},
};

/// Where the broker is; `None`: the table is the queue.
#[derive(Debug)]
pub(crate) struct RabbitMq(pub(crate) Option<Address>);

impl RabbitMq {
    pub(crate) fn section(source: &mut Source<'_>) -> Result<Self, Recorded> {
        let authorities = source.optional(&setting::RABBITMQ_CA_FILE, |path| certificates(Path::new(path)));
        let address = source.optional(&setting::RABBITMQ_URL, |url| {
            let pem = authorities.as_ref().ok().and_then(Option::as_deref);
            let pem = pem.map(|pem| String::from_utf8_lossy(pem).into_owned());
            Address::new(url, pem).map_err(|BadAddress| format!("is not the URL of a broker: {BadAddress}"))
        });
        let (authorities, address) = (authorities?, address?);
        let is_encrypted = address.as_ref().is_some_and(Address::is_encrypted);
        if authorities.is_some() && !is_encrypted {
            return Err(nobody_asks(source, &setting::RABBITMQ_CA_FILE, &setting::RABBITMQ_URL, "amqps"));
        }
        Ok(Self(address))
    }
}
