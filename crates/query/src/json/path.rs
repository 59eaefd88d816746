//! Reads one value out of a text that is JSON, without a tree of the others.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// A key of an object, or the index of an item of an array; a negative index counts from the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PathStep<'a> {
    Key(&'a str),
    Index(i64),
}

/// The value at the end of `path`, as it is written; None if the path leads to no value, or the text is not JSON.
pub(super) fn value_at<'a>(json: &'a str, path: &[PathStep<'_>]) -> Option<&'a RawValue> {
    let whole: &RawValue = serde_json::from_str(json).ok()?;
    path.iter().try_fold(whole, |value, step| {
        let from_end = step.index().filter(|index| *index < 0);
        let from_start = from_end.and_then(|index| array_length(value.get())?.checked_add(index)).map(PathStep::Index);
        let step = from_start.as_ref().unwrap_or(step);
        step.deserialize(&mut serde_json::Deserializer::from_str(value.get())).ok().flatten()
    })
}

impl PathStep<'_> {
    /// The index that it is in an array.
    fn index(&self) -> Option<i64> {
        match self {
            Self::Index(index) => Some(*index),
            Self::Key(key) => key.parse().ok(),
        }
    }
}

/// A value as text: strings without quotes and escapes, and everything else as it is written; None for null.
pub(super) fn as_text(value: &RawValue) -> Option<Cow<'_, str>> {
    match value.get() {
        "null" => None,
        text if text.starts_with('"') => serde_json::from_str(text).map(Cow::Owned).ok(),
        text => Some(Cow::Borrowed(text)),
    }
}

/// The number of items of an array; None of anything else.
pub(super) fn array_length(json: &str) -> Option<i64> {
    let items: Vec<IgnoredAny> = serde_json::from_str(json).ok()?;
    i64::try_from(items.len()).ok()
}

impl<'de> DeserializeSeed<'de> for &PathStep<'_> {
    type Value = Option<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &PathStep<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(key) = entries.next_key::<Cow<'de, str>>()? {
            // Of a key that is there twice, the last value counts.
            match self {
                PathStep::Key(asked) if *asked == key => found = Some(entries.next_value()?),
                _ => _ = entries.next_value::<IgnoredAny>()?,
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let (asked, mut index, mut found) = (self.index(), 0, None);
        while let Some(item) = items.next_element::<&RawValue>()? {
            if asked == Some(index) {
                found = Some(item);
            }
            index += 1;
        }
        Ok(found)
    }

    // Numbers, texts, true, false and null have nothing inside.

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str =
        r#" {"a": {"b": [1, -2.50, "x\"y\u00e9", null, true, {}]}, "k\"": 3, "twice": 1, "twice": [2], "-1": 4} "#;

    fn text(path: &[PathStep<'_>]) -> Option<String> {
        as_text(value_at(JSON, path)?).map(Cow::into_owned)
    }

    #[test]
    fn a_value_is_found_by_keys_and_indices() {
        use PathStep::{Index, Key};
        let item = |index| text(&[Key("a"), Key("b"), Index(index)]);
        assert_eq!([item(0), item(1), item(2)], ["1", "-2.50", "x\"yé"].map(|text| Some(text.to_owned())));
        assert_eq!((item(3), item(6), item(-7), item(i64::MIN)), (None, None, None, None));
        assert_eq!((item(-1), item(-2)), (Some("{}".into()), Some("true".into())));
        assert_eq!(text(&[Key("a"), Key("b"), Key("1")]).as_deref(), Some("-2.50"));
        assert_eq!(text(&[Key("k\"")]).as_deref(), Some("3"));
        assert_eq!(text(&[Key("twice")]).as_deref(), Some("[2]"));
        assert_eq!((text(&[Key("-1")]).as_deref(), text(&[Index(-1)])), (Some("4"), None));
        assert_eq!((text(&[Key("b")]), text(&[Index(0)]), text(&[Key("k\""), Key("b")])), (None, None, None));
        assert_eq!(value_at(JSON, &[]).map(RawValue::get), Some(JSON.trim()));
    }

    #[test]
    fn what_is_no_json_has_no_value() {
        for json in ["", "{", r#"{"a": 1"#, r#"{"a": 1}}"#, "{a: 1}", "nul", r#""\q""#] {
            assert_eq!(value_at(json, &[PathStep::Key("a")]).map(RawValue::get), None, "{json}");
            assert_eq!(array_length(json), None, "{json}");
        }
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        assert_eq!(
            (array_length("[1, [2, 3], {}]"), array_length("{}"), array_length(&deep)),
            (Some(3), None, Some(1))
        );
        assert!(value_at(&deep, &[PathStep::Index(0), PathStep::Index(0)]).is_some());
    }
}
