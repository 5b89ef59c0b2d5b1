//! Where a request comes from: the peer of its connection or, behind proxies that the operator trusts, the address that
//! the outermost of them saw.
//!
//! Invariant: what a caller writes into `X-Forwarded-For` is believed only as far as trusted proxies wrote it.

use std::{borrow::Cow, net::IpAddr};

use http::{HeaderMap, request::Parts};
use ipnet::IpNet;

use crate::state::State;

/// Most entries of `X-Forwarded-For` that are looked at, from the right.
const MAX_HOPS: usize = 32;
const FORWARDED_FOR: &str = "x-forwarded-for";

/// The other end of the connection that a request came on.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub IpAddr);

/// Where the request comes from; `None` where no connection is known.
pub(crate) fn client(parts: &Parts, state: &State) -> Option<IpAddr> {
    let Peer(peer) = parts.extensions.get::<Peer>().copied()?;
    Some(seen_from_outside(peer, &lines(&parts.headers), &state.trusted_proxies))
}

/// A line with bytes that are no text counts, too: a caller may have begun it, and a trusted proxy ended it.
fn lines(headers: &HeaderMap) -> Vec<Cow<'_, str>> {
    headers.get_all(FORWARDED_FOR).iter().map(|value| String::from_utf8_lossy(value.as_bytes())).collect()
}

/// Walks from our end outward for as long as the one who wrote an entry is trusted.
fn seen_from_outside(peer: IpAddr, lines: &[impl AsRef<str>], trusted: &[IpNet]) -> IpAddr {
    let is_trusted = |address: IpAddr| trusted.iter().any(|network| network.contains(&address));
    let mut client = peer.to_canonical();
    let entries = lines.iter().rev().flat_map(|line| line.as_ref().rsplit(',')).take(MAX_HOPS);
    for entry in entries {
        if !is_trusted(client) {
            break;
        }
        match parse(entry.trim()) {
            Some(address) => client = address,
            // The trusted proxy is the last one known.
            None => break,
        }
    }
    client
}

/// An address, with or without a port.
fn parse(entry: &str) -> Option<IpAddr> {
    let bare = entry.strip_prefix('[').and_then(|rest| rest.split_once(']')).map_or(entry, |(bare, _)| bare);
    let address = bare.parse::<IpAddr>().ok();
    address
        .or_else(|| entry.parse::<std::net::SocketAddr>().ok().map(|socket| socket.ip()))
        .map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forwarded_address_counts_only_as_far_as_trusted_proxies_wrote_it() {
        let trusted: Vec<IpNet> =
            ["10.0.0.0/8", "fd00::/8"].iter().map(|network| network.parse().expect("network")).collect();
        for (peer, lines, expected) in [
            ("203.0.113.9", vec!["198.51.100.1"], "203.0.113.9"),
            ("10.0.0.1", vec![], "10.0.0.1"),
            ("10.0.0.1", vec!["198.51.100.1"], "198.51.100.1"),
            ("::ffff:10.0.0.1", vec!["198.51.100.1"], "198.51.100.1"),
            ("10.0.0.1", vec!["1.1.1.1, 198.51.100.1"], "198.51.100.1"),
            ("10.0.0.1", vec!["198.51.100.1, 10.0.0.2"], "198.51.100.1"),
            ("10.0.0.1", vec!["1.1.1.1", "198.51.100.1"], "198.51.100.1"),
            ("10.0.0.1", vec!["198.51.100.1:4711"], "198.51.100.1"),
            ("fd00::1", vec!["[2001:db8::7]:443"], "2001:db8::7"),
            ("fd00::1", vec!["2001:db8::7"], "2001:db8::7"),
            ("10.0.0.1", vec!["unknown"], "10.0.0.1"),
            ("10.0.0.1", vec!["198.51.100.1, nonsense, 10.0.0.2"], "10.0.0.2"),
            ("10.0.0.1", vec![""], "10.0.0.1"),
        ] {
            let seen = seen_from_outside(peer.parse().expect("address"), &lines, &trusted);
            assert_eq!(seen.to_string(), expected, "{peer} {lines:?}");
        }
        let mut headers = HeaderMap::new();
        let begun_by_the_caller = http::HeaderValue::from_bytes(b"\xff, 198.51.100.1").expect("header");
        headers.append(FORWARDED_FOR, begun_by_the_caller);
        let seen = seen_from_outside("10.0.0.1".parse().expect("address"), &lines(&headers), &trusted);
        assert_eq!(seen.to_string(), "198.51.100.1", "a caller does not hide behind the proxy");
        let long = vec!["10.0.0.2"; 1_000].join(",");
        let seen = seen_from_outside("10.0.0.1".parse().expect("address"), &[&long], &trusted);
        assert_eq!(seen.to_string(), "10.0.0.2");
    }
}
