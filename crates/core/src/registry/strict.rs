//! Values as the registry's file must spell them, where YAML or its reader would be lenient.
//!
//! Invariant: nothing is taken for what it is not (a text for a number), and of what is named twice nothing is dropped in
//! silence, however the two are spelt. Refusals repeat no value; names of things are none.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Display},
    marker::PhantomData,
};

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};

/// `true` or `false`.
pub(super) fn flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    struct Flag;
    impl Visitor<'_> for Flag {
        type Value = bool;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("`true` or `false`, without quotes")
        }

        fn visit_bool<E: Error>(self, value: bool) -> Result<bool, E> {
            Ok(value)
        }
    }
    // What stands there decides, not what is wanted: that would take a text for it.
    deserializer.deserialize_any(Flag)
}

/// A number of any kind.
pub(super) fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    struct Number;
    impl Visitor<'_> for Number {
        type Value = f64;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("a number, without quotes")
        }

        fn visit_f64<E: Error>(self, value: f64) -> Result<f64, E> {
            Ok(value)
        }

        fn visit_u64<E: Error>(self, value: u64) -> Result<f64, E> {
            let small = u32::try_from(value).map_err(|_| E::custom("this number is too large"))?;
            Ok(small.into())
        }
    }
    deserializer.deserialize_any(Number)
}

/// A whole number, or nothing.
pub(super) fn whole<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<u64>,
{
    let whole = Option::<Whole>::deserialize(deserializer)?;
    whole
        .map(|Whole(value)| T::try_from(value).map_err(|_| D::Error::custom("this number is too large")))
        .transpose()
}

struct Whole(u64);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Digits;
        impl Visitor<'_> for Digits {
            type Value = Whole;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a whole number, without quotes")
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Whole, E> {
                Ok(Whole(value))
            }
        }
        deserializer.deserialize_any(Digits)
    }
}

/// A list that names nothing twice, in its order.
pub(super) fn list<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Ord + Clone,
{
    struct List<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de> + Ord + Clone> Visitor<'de> for List<T> {
        type Value = Vec<T>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
            let (mut list, mut seen) = (Vec::new(), BTreeSet::new());
            while let Some(item) = items.next_element::<T>()? {
                list.push(item.clone());
                if !seen.insert(item) {
                    // By its place, since the items of some lists may be anything.
                    let place = list.len();
                    return Err(A::Error::custom(format_args!(
                        "item {place} of this list repeats an earlier one"
                    )));
                }
            }
            Ok(list)
        }
    }
    deserializer.deserialize_seq(List(PhantomData))
}

/// The same, in the order of what it names.
pub(super) fn set<'de, D, T>(deserializer: D) -> Result<BTreeSet<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Ord + Clone,
{
    Ok(list(deserializer)?.into_iter().collect())
}

/// A map without a key that is given twice.
pub(super) fn map<'de, D, K, V>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
where
    D: Deserializer<'de>,
    K: Deserialize<'de> + Ord + Display,
    V: Deserialize<'de>,
{
    struct Map<K, V>(PhantomData<(K, V)>);
    impl<'de, K, V> Visitor<'de> for Map<K, V>
    where
        K: Deserialize<'de> + Ord + Display,
        V: Deserialize<'de>,
    {
        type Value = BTreeMap<K, V>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("a map")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<BTreeMap<K, V>, A::Error> {
            let mut map = BTreeMap::new();
            while let Some(key) = entries.next_key::<K>()? {
                // The reader finds twins of one spelling and has no eye for others.
                if map.contains_key(&key) {
                    return Err(A::Error::custom(format_args!("the key `{key}` is given twice")));
                }
                let value = entries.next_value()?;
                map.insert(key, value);
            }
            Ok(map)
        }
    }
    deserializer.deserialize_map(Map(PhantomData))
}
