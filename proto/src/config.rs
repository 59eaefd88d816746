//! What agents may be told while they run (`probe ENDPOINT config KEY=VALUE`), declared here and nowhere else.

/// A key that can be set.
#[derive(Debug)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// What it does, one sentence.
    pub doc: &'static str,
    /// Values it takes; the first is the default.
    pub values: &'static [&'static str],
}

/// The key of [`Detail`].
pub const DETAIL: &str = "detail";

/// All keys.
pub static KEYS: &[Key] = &[Key {
    name: DETAIL,
    doc: "Which steps have their modules recorded, from the next step on.",
    values: &[Detail::EveryStep.as_str(), Detail::Off.as_str()],
}];

/// Which steps carry module detail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// All of them.
    EveryStep,
    /// None; `python.steps` goes on.
    Off,
}

impl Detail {
    /// As people write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::EveryStep => "every-step",
            Self::Off => "off",
        }
    }

    /// From what people write.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::EveryStep, Self::Off].into_iter().find(|d| d.as_str() == text)
    }
}

/// Checks a key and its value; the error says what is allowed.
pub fn check(key: &str, value: &str) -> Result<(), String> {
    let Some(known) = KEYS.iter().find(|k| k.name == key) else {
        let names: Vec<&str> = KEYS.iter().map(|k| k.name).collect();
        return Err(format!("there is no setting '{key}'; there is {}", names.join(", ")));
    };
    if known.values.contains(&value) {
        Ok(())
    } else {
        Err(format!("{key} cannot be '{value}'; it can be {}", known.values.join(", ")))
    }
}
