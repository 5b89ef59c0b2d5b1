//! Which network addresses a request may go to: public unicast ones, and what the operator allows on top.
//!
//! The list is our own, from the IANA special-purpose registries (RFC 6890 and later) and the clouds' documentation,
//! because "is it private?" functions of standard libraries miss metadata services and every IPv6 form that carries
//! an IPv4 address. Deny by default: in IPv6 only `2000::/3` is allocated for global unicast, so nothing
//! else is reachable. A NAT64 prefix of a network's own cannot be told from any other prefix.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// What the operator opens beyond public addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// Networks that are allowed although the list refuses them. A metadata service is opened only by an entry for
    /// exactly its address: a wide range that happens to hold it is not enough.
    pub allowed: Vec<IpNet>,
    /// Development only: also `127.0.0.0/8` and `::1`.
    pub allow_loopback: bool,
}

/// An address that no request may go to, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub struct Refusal {
    pub address: IpAddr,
    /// What the range is for, in plain words.
    pub range: &'static str,
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} is not a public address: {}", self.address, self.range)
    }
}

/// Decides about one address, be it written in a URL or found by a lookup.
///
/// An IPv4-mapped IPv6 address is judged as the IPv4 address it stands for, since that is where the system connects.
pub fn check(policy: &Policy, address: IpAddr) -> Result<(), Refusal> {
    let canonical = address.to_canonical();
    if policy.allow_loopback && canonical.is_loopback() {
        return Ok(());
    }
    let is_metadata = METADATA.contains(&canonical);
    let is_allowed = policy.allowed.iter().any(|network| {
        let names_it_alone = network.prefix_len() == network.max_prefix_len();
        network.contains(&canonical) && (names_it_alone || !is_metadata)
    });
    if is_allowed {
        return Ok(());
    }
    let refused = if is_metadata { Some(METADATA_RANGE) } else { refused_range(canonical) };
    refused.map_or(Ok(()), |range| Err(Refusal { address, range }))
}

fn refused_range(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(v4) => {
            REFUSED_V4.iter().find(|(network, _)| network.contains(&v4)).map(|(_, range)| *range)
        }
        IpAddr::V6(v6) => {
            let named = REFUSED_V6.iter().find(|(network, _)| network.contains(&v6)).map(|(_, range)| *range);
            named.or_else(|| (!GLOBAL_UNICAST.contains(&v6)).then_some(UNALLOCATED_RANGE))
        }
    }
}

const METADATA_RANGE: &str = "metadata service of a cloud";
const UNALLOCATED_RANGE: &str = "outside the IPv6 range of public addresses (2000::/3)";

/// Services that hand out a machine's credentials to whoever asks from that machine.
const METADATA: [IpAddr; 5] = [
    // Link-local, used by nearly every cloud.
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    // Credentials of AWS containers.
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 2)),
    // Azure's platform address: publicly numbered, but answered by the host the machine runs on.
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    // Alibaba Cloud, within the range of carrier-grade NAT.
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    // AWS over IPv6, a unique local address.
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
];

const REFUSED_V4: [(Ipv4Net, &str); 15] = [
    // RFC 791 section 3.2 and RFC 1122 section 3.2.1.3; many systems take 0.0.0.0 for themselves.
    (v4([0, 0, 0, 0], 8), "this network (0.0.0.0/8)"),
    // RFC 1918.
    (v4([10, 0, 0, 0], 8), "private network (10.0.0.0/8)"),
    // RFC 6598.
    (v4([100, 64, 0, 0], 10), "carrier-grade NAT (100.64.0.0/10)"),
    // RFC 1122 section 3.2.1.3.
    (v4([127, 0, 0, 0], 8), "loopback (127.0.0.0/8)"),
    // RFC 3927.
    (v4([169, 254, 0, 0], 16), "link-local (169.254.0.0/16)"),
    // RFC 1918.
    (v4([172, 16, 0, 0], 12), "private network (172.16.0.0/12)"),
    // RFC 6890: DS-Lite, NAT64 discovery, port control.
    (v4([192, 0, 0, 0], 24), "IETF protocol assignments (192.0.0.0/24)"),
    // RFC 5737.
    (v4([192, 0, 2, 0], 24), "documentation (192.0.2.0/24)"),
    // RFC 7526: the anycast relays of 6to4, taken out of service.
    (v4([192, 88, 99, 0], 24), "6to4 relays (192.88.99.0/24)"),
    // RFC 1918.
    (v4([192, 168, 0, 0], 16), "private network (192.168.0.0/16)"),
    // RFC 2544.
    (v4([198, 18, 0, 0], 15), "benchmarking (198.18.0.0/15)"),
    // RFC 5737.
    (v4([198, 51, 100, 0], 24), "documentation (198.51.100.0/24)"),
    // RFC 5737.
    (v4([203, 0, 113, 0], 24), "documentation (203.0.113.0/24)"),
    // RFC 5771.
    (v4([224, 0, 0, 0], 4), "multicast (224.0.0.0/4)"),
    // RFC 1112 section 4, and RFC 919 for 255.255.255.255.
    (v4([240, 0, 0, 0], 4), "reserved, with the broadcast address (240.0.0.0/4)"),
];

/// RFC 4291 section 2.4 and the IANA registry: the only range public addresses are given out from.
const GLOBAL_UNICAST: Ipv6Net = v6([0x2000, 0, 0, 0, 0, 0, 0, 0], 3);

/// Ranges within `2000::/3` that are not public, and those outside of it that deserve their own words.
const REFUSED_V6: [(Ipv6Net, &str); 18] = [
    // RFC 4291 section 2.5.2.
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 128), "unspecified (::)"),
    // RFC 4291 section 2.5.3.
    (v6([0, 0, 0, 0, 0, 0, 0, 1], 128), "loopback (::1)"),
    // RFC 4291 section 2.5.5.1, deprecated: `::127.0.0.1`.
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 96), "IPv4-compatible (::/96)"),
    // RFC 2765, obsolete: `::ffff:0:127.0.0.1`.
    (v6([0, 0, 0, 0, 0xffff, 0, 0, 0], 96), "IPv4-translated (::ffff:0:0:0/96)"),
    // RFC 6052: a NAT64 gateway would turn `64:ff9b::7f00:1` into 127.0.0.1 of its own.
    (v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96), "NAT64 (64:ff9b::/96)"),
    // RFC 8215.
    (v6([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48), "local NAT64 (64:ff9b:1::/48)"),
    // RFC 6666.
    (v6([0x100, 0, 0, 0, 0, 0, 0, 0], 64), "discarded (100::/64)"),
    // RFC 9780.
    (v6([0x100, 0, 0, 1, 0, 0, 0, 0], 64), "dummy prefix (100:0:0:1::/64)"),
    // RFC 4380: carries the IPv4 addresses of a server and a client.
    (v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 32), "Teredo (2001::/32)"),
    // RFC 2928 and its successors: benchmarking (RFC 5180), ORCHID (RFC 4843, RFC 7343), drones (RFC 9374).
    (v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 23), "IETF protocol assignments (2001::/23)"),
    // RFC 3849.
    (v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32), "documentation (2001:db8::/32)"),
    // RFC 3056: `2002:7f00:1::` leads to 127.0.0.1.
    (v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16), "6to4 (2002::/16)"),
    // RFC 9637.
    (v6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20), "documentation (3fff::/20)"),
    // RFC 9602.
    (v6([0x5f00, 0, 0, 0, 0, 0, 0, 0], 16), "segment routing (5f00::/16)"),
    // RFC 4193.
    (v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7), "unique local (fc00::/7)"),
    // RFC 4291 section 2.5.6.
    (v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10), "link-local (fe80::/10)"),
    // RFC 3879, deprecated.
    (v6([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10), "site-local (fec0::/10)"),
    // RFC 4291 section 2.7.
    (v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8), "multicast (ff00::/8)"),
];

const fn v4([a, b, c, d]: [u8; 4], prefix_length: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix_length)
}

const fn v6(groups: [u16; 8], prefix_length: u8) -> Ipv6Net {
    let [first, second, third, fourth, fifth, sixth, seventh, eighth] = groups;
    Ipv6Net::new_assert(
        Ipv6Addr::new(first, second, third, fourth, fifth, sixth, seventh, eighth),
        prefix_length,
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is_allowed(policy: &Policy, address: &str) -> bool {
        check(policy, address.parse().expect("address")).is_ok()
    }

    #[test]
    fn what_the_operator_opens() {
        let closed = Policy::default();
        let development = Policy { allow_loopback: true, ..Policy::default() };
        let private = Policy { allowed: vec!["10.0.0.0/8".parse().expect("network")], allow_loopback: false };
        for (address, by_default, in_development, with_private) in [
            ("8.8.8.8", true, true, true),
            ("127.0.0.1", false, true, false),
            ("127.255.255.254", false, true, false),
            ("::1", false, true, false),
            ("::ffff:127.0.0.1", false, true, false),
            ("::127.0.0.1", false, false, false),
            ("64:ff9b::7f00:1", false, false, false),
            ("0.0.0.0", false, false, false),
            ("10.1.2.3", false, false, true),
            ("::ffff:10.1.2.3", false, false, true),
            ("2002:a01:203::", false, false, false),
            ("192.168.0.1", false, false, false),
            ("8000::1", false, false, false),
            ("fbff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", false, false, false),
        ] {
            let found = [&closed, &development, &private].map(|policy| is_allowed(policy, address));
            assert_eq!(found, [by_default, in_development, with_private], "{address}");
        }
    }

    #[test]
    fn a_wide_range_does_not_open_a_metadata_service() {
        for (network, address, expected) in [
            ("0.0.0.0/0", "169.254.169.254", false),
            ("0.0.0.0/0", "168.63.129.16", false),
            ("100.64.0.0/10", "100.100.100.200", false),
            ("100.64.0.0/10", "100.100.100.201", true),
            ("fd00::/8", "fd00:ec2::254", false),
            ("169.254.169.254/32", "169.254.169.254", true),
            ("169.254.169.254/32", "::ffff:169.254.169.254", true),
        ] {
            let policy = Policy { allowed: vec![network.parse().expect("network")], allow_loopback: false };
            assert_eq!(is_allowed(&policy, address), expected, "{address} with {network}");
        }
    }

    #[test]
    fn a_refusal_names_the_range() {
        let address = "::ffff:10.0.0.1".parse().expect("address");
        let text = check(&Policy::default(), address).expect_err("private").to_string();
        assert_eq!(text, "::ffff:10.0.0.1 is not a public address: private network (10.0.0.0/8)");
    }

    #[test]
    fn the_edges_of_every_ipv4_range() {
        let closed = Policy::default();
        for (network, _) in REFUSED_V4 {
            assert!(check(&closed, network.network().into()).is_err(), "start of {network}");
            assert!(check(&closed, network.broadcast().into()).is_err(), "end of {network}");
        }
        for outside in [
            "1.0.0.0",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "191.255.255.255",
            "192.0.1.0",
            "192.0.1.255",
            "192.0.3.0",
            "192.88.98.255",
            "192.88.100.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "198.51.99.255",
            "198.51.101.0",
            "203.0.112.255",
            "203.0.114.0",
            "223.255.255.255",
            "168.63.129.15",
            "168.63.129.17",
        ] {
            assert!(is_allowed(&closed, outside), "{outside}");
        }
    }

    #[test]
    fn the_edges_of_every_ipv6_range() {
        let closed = Policy::default();
        for (network, _) in REFUSED_V6 {
            assert!(check(&closed, network.network().into()).is_err(), "start of {network}");
            assert!(check(&closed, network.broadcast().into()).is_err(), "end of {network}");
        }
        for outside in [
            "2000::",
            "2000:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            "2001:200::",
            "2001:db7:ffff:ffff:ffff:ffff:ffff:ffff",
            "2001:db9::",
            "2001:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            "2003::",
            "3ffe:ffff::",
            "3fff:1000::",
            "2606:4700:4700::1111",
        ] {
            assert!(is_allowed(&closed, outside), "{outside}");
        }
    }

    proptest! {
        #[test]
        fn no_address_inside_a_refused_range_passes(index in 0..REFUSED_V4.len(), host: u32) {
            let (network, _) = REFUSED_V4[index];
            let address = Ipv4Addr::from(u32::from(network.network()) | host & u32::from(network.hostmask()));
            prop_assert!(check(&Policy::default(), address.into()).is_err());
            prop_assert!(check(&Policy::default(), address.to_ipv6_mapped().into()).is_err());
            prop_assert!(check(&Policy::default(), address.to_ipv6_compatible().into()).is_err());
        }

        #[test]
        fn no_ipv6_address_outside_global_unicast_passes(address: u128) {
            let address = Ipv6Addr::from(address);
            let starts_with_001 = address.segments()[0] >> 13 == 1;
            prop_assert!(starts_with_001 || check(&Policy::default(), address.into()).is_err());
        }

        #[test]
        fn a_mapped_address_is_judged_like_its_ipv4_address(address: u32) {
            let address = Ipv4Addr::from(address);
            let plain = check(&Policy::default(), address.into()).is_ok();
            prop_assert_eq!(check(&Policy::default(), address.to_ipv6_mapped().into()).is_ok(), plain);
        }
    }
}
