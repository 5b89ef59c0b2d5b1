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

/// Names of types, and what a person would call them.
const TYPES: &[(&str, &str)] = &[
    ("u8", "a whole number from 0 to 255"),
    ("u16", "a whole number from 0 to 65535"),
    ("u32", "a whole number from 0 to 4294967295"),
    ("u64", "a whole number, 0 or more"),
    ("usize", "a whole number, 0 or more"),
    ("f64", "a number"),
    ("a boolean", "true or false"),
    ("a borrowed string", "a string"),
    ("a sequence", "a list"),
    ("a map", "an object"),
];

/// What parsers of numbers say of a query's text, and what to say instead.
const NUMBERS: &[&str] = &[
    "invalid digit found in string",
    "cannot parse integer from empty string",
    "number too large to fit in target type",
    "number too small to fit in target type",
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
    if NUMBERS.contains(&text) {
        return "expected a whole number".to_owned();
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

fn name(expected: &str) -> &str {
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
        let number = "expected a whole number from 0 to 255";
        let check = |body: &str, missing: Option<&str>, expected: &str| {
            let misfit = of_json(&serde_json::from_str::<Taken>(body).expect_err("refused"));
            assert_eq!((misfit.missing.as_deref(), misfit.detail.as_str()), (missing, expected), "{body}");
        };
        check(r#"{"n":"hunter2, expected x"}"#, None, number);
        check(r#"{"n":70000}"#, None, number);
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
}
