//! What is wrong with a value that does not fit, in words for people: which member, and what would be accepted.
//!
//! Invariant: the value itself is never repeated, because it may be a secret in the wrong place.

/// A value that is not what was expected.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Misfit {
    /// The member of the object at hand that is missing; `None` when the value at hand is what does not fit.
    pub(crate) missing: Option<String>,
    pub(crate) detail: String,
}

/// Names of types that hold whole numbers. What they can hold is wider than what a member accepts, so it is not told.
const INTEGERS: &[&str] = &["u8", "u16", "u32", "u64", "usize", "i8", "i16", "i32", "i64", "isize"];
const WHOLE_NUMBER: &str = "a whole number";

/// Names of other types, and what a person would call them.
const TYPES: &[(&str, &str)] = &[
    ("f64", "a number"),
    ("a boolean", "true or false"),
    ("a borrowed string", "a string"),
    ("a sequence", "a list"),
    ("a map", "an object"),
];

const TOO_LARGE: &str = "the number is too large";
const TOO_SMALL: &str = "the number is too small";

/// What parsers of numbers say of a query's text, and what to say instead.
const NUMBERS: &[(&str, &str)] = &[
    ("invalid digit found in string", "expected a whole number"),
    ("cannot parse integer from empty string", "expected a whole number"),
    ("number too large to fit in target type", TOO_LARGE),
    ("number too small to fit in target type", TOO_SMALL),
];

/// Explains why JSON was not taken. Where the syntax is wrong, it says at which place; else the member is enough.
pub(crate) fn of_json(error: &serde_json::Error) -> Misfit {
    let text = error.to_string();
    if !error.is_data() {
        return Misfit { missing: None, detail: text };
    }
    let place = format!(" at line {} column {}", error.line(), error.column());
    of_text(text.strip_suffix(&place).unwrap_or(&text))
}

/// Explains a refusal in the words of the deserializer. Its own words are replaced; those of our types stay.
pub(crate) fn of_text(text: &str) -> Misfit {
    if let Some(missing) = text.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        return Misfit { missing: Some(missing.to_owned()), detail: "it is missing".to_owned() };
    }
    Misfit { missing: None, detail: detail(text) }
}

fn detail(text: &str) -> String {
    if text.starts_with("duplicate field ") {
        return "given twice".to_owned();
    }
    if let Some((_, said)) = NUMBERS.iter().find(|(parser, _)| *parser == text) {
        return (*said).to_owned();
    }
    if let Some(said) = beyond_integer(text) {
        return said.to_owned();
    }
    let refusals =
        [("unknown field ", "unknown"), ("unknown variant ", ""), ("invalid type", ""), ("invalid ", "")];
    let Some((_, word)) = refusals.into_iter().find(|(start, _)| text.starts_with(start)) else {
        return text.to_owned();
    };
    match (word, text.rsplit_once(", expected ")) {
        ("", Some((_, expected))) => format!("expected {}", name(expected)),
        ("", None) => "not one of the accepted values".to_owned(),
        (word, Some((_, expected))) => format!("{word}, expected {expected}"),
        (word, None) => word.to_owned(),
    }
}

/// What is wrong with a whole number that its type cannot hold.
fn beyond_integer(text: &str) -> Option<&'static str> {
    let (number, expected) = text.strip_prefix("invalid value: integer `")?.rsplit_once(", expected ")?;
    let is_negative = number.starts_with('-');
    INTEGERS.contains(&expected).then_some(if is_negative { TOO_SMALL } else { TOO_LARGE })
}

fn name(expected: &str) -> &str {
    if INTEGERS.contains(&expected) {
        return WHOLE_NUMBER;
    }
    if expected.starts_with("struct ") {
        return "an object";
    }
    TYPES.iter().find(|(known, _)| *known == expected).map_or(expected, |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Taken {
        #[serde(rename = "n")]
        _n: Option<u8>,
        #[serde(rename = "role")]
        _role: Option<postrider_core::role::Role>,
        #[serde(rename = "name")]
        _name: postrider_core::name::Name,
    }

    #[test]
    fn refused_values_are_explained_and_not_repeated() {
        let number = "expected a whole number";
        let check = |body: &str, missing: Option<&str>, expected: &str| {
            let misfit = of_json(&serde_json::from_str::<Taken>(body).expect_err("refused"));
            assert_eq!((misfit.missing.as_deref(), misfit.detail.as_str()), (missing, expected), "{body}");
        };
        check(r#"{"n":"hunter2, expected x"}"#, None, number);
        check(r#"{"n":"5s"}"#, None, number);
        check(r#"{"n":true}"#, None, number);
        check(r#"{"n":1.5}"#, None, number);
        check(r#"{"n":70000}"#, None, "the number is too large");
        check(r#"{"n":-1}"#, None, "the number is too small");
        check(r#"{"m":1}"#, None, "unknown, expected one of `n`, `role`, `name`");
        check(r#"{"n":1,"n":1}"#, None, "given twice");
        check("{}", Some("name"), "it is missing");
        check("7", None, "expected an object");
        check("[]", None, "expected an object");
        check(r#"{"name":7}"#, None, "expected a string");
        let error = serde_json::from_str::<Taken>(r#"{"role":"hunter2"}"#).expect_err("refused");
        assert!(!of_json(&error).detail.contains("hunter2"));
        let error = serde_json::from_str::<Taken>(r#"{"name":"-"}"#).expect_err("refused");
        let own = "-".parse::<postrider_core::name::Name>().expect_err("refused").to_string();
        assert_eq!(of_json(&error).detail, own, "our own words, without a place");
        let error = serde_json::from_str::<Taken>("{").expect_err("refused");
        assert!(
            of_json(&error).detail.contains("line 1 column 1"),
            "where the syntax is wrong, the place helps"
        );
    }

    #[test]
    fn no_bounds_of_a_type_are_told_as_if_they_were_the_members() {
        fn check<T: serde::de::DeserializeOwned + std::str::FromStr<Err = std::num::ParseIntError>>() {
            let told = |body: &str| of_json(&serde_json::from_str::<T>(body).err().expect("refused")).detail;
            let asked = |text: &str| of_text(&text.parse::<T>().err().expect("refused").to_string()).detail;
            assert_eq!([told("\"5s\""), told("[]"), told("0.5")], ["expected a whole number"; 3]);
            assert_eq!([asked("5s"), asked("")], ["expected a whole number"; 2]);
            assert_eq!(asked("99999999999999999999999"), TOO_LARGE);
        }
        check::<u8>();
        check::<u16>();
        check::<u32>();
        check::<u64>();
        check::<usize>();
        check::<i8>();
        check::<i16>();
        check::<i32>();
        check::<i64>();
        check::<isize>();
    }
}
