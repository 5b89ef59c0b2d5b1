//! How an endpoint is asked: the HTTP method, and which answers are a success. As members of a merge patch they are kept
//! when left out and go back to their default when `null`.

use std::fmt;

use postrider_core::{
    method::{self, Method},
    success_codes::{self, SuccessCodes},
};
use serde::{Deserialize, Deserializer};

use crate::{change::Change, problem::Problem};

/// The word for a method, read as text so that a refusal names the field.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(transparent)]
pub(crate) struct MethodWord(String);

/// Codes and ranges, one text each.
#[derive(Debug, Clone, Default)]
pub(crate) struct CodeTexts(Vec<String>);

/// Most entries of a list of codes; every set of codes can be told in fewer.
const MAX_CODE_TEXTS: usize = 200;

/// # Errors
/// `422` naming the field `method`.
pub(super) fn method(change: &Change<MethodWord>, current: Method) -> Result<Method, Problem> {
    match change {
        Change::Keep => Ok(current),
        Change::Remove => Ok(Method::default()),
        Change::Set(MethodWord(word)) => word
            .parse()
            .map_err(|method::Unknown| Problem::invalid_field("method", method::Unknown.to_string())),
    }
}

/// # Errors
/// `422` naming the field `successCodes`.
pub(super) fn success_codes(
    change: &Change<CodeTexts>,
    current: SuccessCodes,
) -> Result<SuccessCodes, Problem> {
    match change {
        Change::Keep => Ok(current),
        Change::Remove => Ok(SuccessCodes::DEFAULT),
        Change::Set(CodeTexts(texts)) if texts.is_empty() => Err(refused(success_codes::Error::Empty)),
        Change::Set(CodeTexts(texts)) => texts.join(",").parse().map_err(refused),
    }
}

/// As the API shows them: codes and ranges, sorted.
pub(super) fn shown(codes: SuccessCodes) -> Vec<String> {
    codes.to_string().split(',').map(str::to_owned).collect()
}

fn refused(error: success_codes::Error) -> Problem {
    Problem::invalid_field("successCodes", error.to_string())
}

impl<'de> Deserialize<'de> for CodeTexts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;

        impl<'de> serde::de::Visitor<'de> for List {
            type Value = CodeTexts;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a list of codes and ranges such as \"200-299\"")
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut list: A) -> Result<CodeTexts, A::Error> {
                let mut texts = Vec::new();
                while let Some(text) = list.next_element::<String>()? {
                    if texts.len() == MAX_CODE_TEXTS {
                        return Err(serde::de::Error::invalid_length(MAX_CODE_TEXTS + 1, &self));
                    }
                    texts.push(text);
                }
                Ok(CodeTexts(texts))
            }
        }

        deserializer.deserialize_seq(List)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn success_codes_are_a_list_of_codes_and_ranges() {
        let check = |text: &str, expected: Result<&[&str], ()>| {
            let change = serde_json::from_str::<Change<CodeTexts>>(text).map_err(|_| ());
            let codes =
                change.and_then(|change| success_codes(&change, SuccessCodes::DEFAULT).map_err(|_| ()));
            let expected =
                expected.map(|texts| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>());
            assert_eq!(codes.map(shown), expected, "{text}");
        };
        check(r#"["200-204","409"]"#, Ok(&["200-204", "409"]));
        check(r#"["201", "200"]"#, Ok(&["200-201"]));
        check("null", Ok(&["200-299"]));
        for refused in
            [r"[]", r#"[""]"#, r#"["301"]"#, r#"["200,201x"]"#, r"[200]", r#""200-299""#, r#"["503"]"#]
        {
            check(refused, Err(()));
        }
    }

    #[test]
    fn a_method_is_one_of_three() {
        let check = |text: &str, expected: Option<Method>| {
            let change: Change<MethodWord> = serde_json::from_str(text).expect(text);
            assert_eq!(method(&change, Method::Patch).ok(), expected, "{text}");
        };
        check(r#""PUT""#, Some(Method::Put));
        check("null", Some(Method::Post));
        check(r#""GET""#, None);
        check(r#""put""#, None);
        assert_eq!(method(&Change::Keep, Method::Patch), Ok(Method::Patch));
    }
}
