//! The Redis in which processes share their limits, if they do.

use std::path::Path;

use postrider_broker::redis::Address;

use super::{
    deliveries::{certificates, nobody_asks},
    setting,
    source::{Recorded, Source},
};

#[derive(Debug)]
pub(crate) struct Redis {
    /// `None`: each process holds its limits alone.
    pub(crate) address: Option<Address>,
    /// Further certificate authorities, in PEM.
    pub(crate) authorities_pem: Option<Vec<u8>>,
}

impl Redis {
    pub(crate) fn section(source: &mut Source<'_>) -> Result<Self, Recorded> {
        let authorities = source.optional(&setting::REDIS_CA_FILE, |path| certificates(Path::new(path)));
        let address = source.optional(&setting::REDIS_URL, |url| {
            url.parse::<Address>().map_err(|error| {
                format!("{error}: give the URL of a Redis, such as rediss://USER:PASSWORD@HOST:6379")
            })
        });
        let (address, authorities_pem) = (address?, authorities?);
        let is_encrypted = address.as_ref().is_some_and(Address::is_encrypted);
        if authorities_pem.is_some() && !is_encrypted {
            return Err(nobody_asks(source, &setting::REDIS_CA_FILE, &setting::REDIS_URL, "rediss"));
        }
        Ok(Self { address, authorities_pem })
    }
}
