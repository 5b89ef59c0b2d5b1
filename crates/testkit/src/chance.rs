//! Chance that repeats itself: what the proofs draw from their seeds.

/// `SplitMix64` (Steele, Lea and Flood 2014): an endless stream of bits from one seed.
#[derive(Debug, Clone)]
pub struct Bits(u64);

impl Bits {
    pub const fn of(seed: u64) -> Self {
        Self(seed)
    }

    pub const fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::Bits;

    #[test]
    fn a_seed_repeats_itself() {
        let drawn = |seed| {
            let mut bits = Bits::of(seed);
            [bits.draw(), bits.draw()]
        };
        // Of the reference implementation, `splitmix64.c`, for the seed 1234567.
        assert_eq!(drawn(1_234_567), [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
    }
}
