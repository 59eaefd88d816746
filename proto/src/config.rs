//! Settings that can change while agents run (`probe ENDPOINT config KEY=VALUE`). This module alone declares them.

/// Declares the layers of recording, for code and for people.
macro_rules! layers {
    ($first:literal $(, $name:literal)*) => {
        const LAYER_NAMES: &[&str] = &[$first $(, $name)*];
        /// The names of all layers, with commas, as a literal.
        macro_rules! layer_names {
            () => { concat!($first $(, ", ", $name)*) };
        }
        pub(crate) use layer_names;
    };
}

// The index of a layer is its bit in [`Layers`].
layers!(
    "forward",
    "backward",
    "optimizer",
    "data",
    "collectives",
    "memory",
    "process",
    "spans",
    "metrics",
    "environment",
    "copies",
    "sync_points",
    "device_time",
    "exceptions",
    "checkpoints",
    "pauses"
);

/// A key that can be set.
#[derive(Debug)]
pub struct ConfigKey {
    /// The key's name.
    pub name: &'static str,
    /// What the setting does, in one sentence.
    pub doc: &'static str,
    /// Valid values, as messages show them; the first is the default. `N` in one stands for a number, `…` for more of
    /// the same.
    pub values: &'static [&'static str],
    /// Whether a value is valid.
    accepts: fn(&str) -> bool,
}

/// The key of [`StepDetail`].
pub const DETAIL: &str = "detail";
/// The key of [`Layers`].
pub const LAYERS: &str = "layers";
/// The key of [`budget`].
pub const OVERHEAD_BUDGET: &str = "overhead_budget";

/// The key for captures that the collector makes by itself.
pub const CAPTURE_ON: &str = "capture_on";
/// The value of [`CAPTURE_ON`] for captures of slow steps.
pub const SLOW: &str = "slow";

/// All keys.
pub static KEYS: &[ConfigKey] = &[
    ConfigKey {
        name: DETAIL,
        doc: "Which steps have their modules recorded, the same on all ranks: auto, as many as overhead_budget allows, \
              one of 8 at least, and all for a while when steps get slower; every-step; 1/N, every Nth; off.",
        values: &["auto", "every-step", "1/N", "off"],
        accepts: |value| StepDetail::parse(value).is_some(),
    },
    ConfigKey {
        name: LAYERS,
        doc: concat!(
            "Layers that record: all, a list of names (",
            layer_names!(),
            "), or -NAME for all but NAME. Only layers that the agent was started with can be switched. The time of a layer \
             that is off counts as other_time."
        ),
        values: &["all", "NAME,NAME,…", "-NAME,…"],
        accepts: |value| Layers::parse(value).is_some(),
    },
    ConfigKey {
        name: OVERHEAD_BUDGET,
        doc: "Maximum cost of recording, as a share of step time, with detail=auto.",
        values: &["1%", "N%"],
        accepts: |value| budget(value).is_some(),
    },
    ConfigKey {
        name: CAPTURE_ON,
        doc: "Captures that the collector makes by itself (probe capture): off; slow, three steps of all ranks when steps \
              get slower, at most once an hour. Only the collector uses this setting.",
        values: &["off", SLOW],
        accepts: |value| ["off", SLOW].contains(&value),
    },
];

/// Which steps carry module detail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepDetail {
    /// All steps.
    EveryStep,
    /// As many steps as the budget allows; the collector chooses which.
    Auto,
    /// Steps whose number is a multiple of this, which is above 1.
    Every(u32),
    /// No step; `python.steps` is still recorded.
    Off,
}

impl StepDetail {
    /// The largest N of 1/N.
    pub const MAX_STRIDE: u32 = 65_535;

    /// Parses a value of the setting: 1/1 is every step. N need not be a power of two when a user chooses it.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "every-step" => Some(Self::EveryStep),
            "auto" => Some(Self::Auto),
            "off" => Some(Self::Off),
            _ => {
                let digits = text.strip_prefix("1/")?;
                let n: u32 = digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
                match n {
                    0 => None,
                    1 => Some(Self::EveryStep),
                    n => (n <= Self::MAX_STRIDE).then_some(Self::Every(n)),
                }
            }
        }
    }
}

/// Layers of recording that are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layers(pub u16);

impl Layers {
    /// Names of all layers; the index of a name is its bit.
    pub const NAMES: &[&str] = LAYER_NAMES;
    /// All layers.
    pub const ALL: Self = Self(u16::MAX >> (16 - Self::NAMES.len()));

    /// Parses a value of the setting: `all`, `forward,data` (these and no others), `-backward,-data` (all but these).
    pub fn parse(text: &str) -> Option<Self> {
        if text == "all" {
            return Some(Self::ALL);
        }
        let (mut named, mut without) = (0_u16, 0_u16);
        for item in text.split(',').map(str::trim) {
            let (name, bits) = match item.strip_prefix('-') {
                Some(name) => (name, &mut without),
                None => (item, &mut named),
            };
            *bits |= 1 << Self::NAMES.iter().position(|known| *known == name)?;
        }
        Some(Self(if named == 0 { Self::ALL.0 } else { named } & !without))
    }

    /// Whether the layer with this name is on.
    pub fn has(self, name: &str) -> bool {
        Self::NAMES.iter().position(|known| *known == name).is_some_and(|bit| self.0 >> bit & 1 == 1)
    }
}

/// Parses an overhead budget as a share of step time: `1%`, `0.5%`, `0.01`. It is above 0 and at most 1.
pub fn budget(text: &str) -> Option<f64> {
    let (number, unit) = match text.strip_suffix('%') {
        Some(number) => (number, 100.0),
        None => (text, 1.0),
    };
    let share = number.trim().parse::<f64>().ok()? / unit;
    (share > 0.0 && share <= 1.0).then_some(share)
}

/// Checks a key and its value; the error says what is allowed.
pub fn check(key: &str, value: &str) -> Result<(), String> {
    let Some(known) = KEYS.iter().find(|k| k.name == key) else {
        let names: Vec<&str> = KEYS.iter().map(|k| k.name).collect();
        return Err(format!("there is no setting '{key}'; available: {}", names.join(", ")));
    };
    if (known.accepts)(value) {
        Ok(())
    } else {
        let names = if key == LAYERS { format!("; layers are {}", Layers::NAMES.join(", ")) } else { String::new() };
        Err(format!("{key} cannot be '{value}'; it can be {}{names}", known.values.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_what_people_write() {
        for (text, detail) in [
            ("every-step", Some(StepDetail::EveryStep)),
            ("auto", Some(StepDetail::Auto)),
            ("off", Some(StepDetail::Off)),
            ("1/1", Some(StepDetail::EveryStep)),
            ("1/6", Some(StepDetail::Every(6))),
            ("1/0", None),
            ("1/70000", None),
            ("1/-2", None),
            ("1/+2", None),
            ("2/3", None),
            ("1/N", None),
        ] {
            assert_eq!(StepDetail::parse(text), detail, "{text}");
        }
        for (text, layers) in [
            ("all", Some(u16::MAX)),
            ("forward,data", Some(0b01001)),
            ("-backward, -data", Some(!0b1010)),
            ("forward,backward,-backward", Some(0b00001)),
            ("", None),
            ("-", None),
            ("forwards", None),
        ] {
            assert_eq!(Layers::parse(text), layers.map(Layers), "{text}");
        }
        assert!(Layers(0b01001).has("data") && !Layers(0b01001).has("backward") && !Layers::ALL.has("nobody"));
        for (text, share) in [("1%", Some(0.01)), ("0.5 %", Some(0.005)), ("0.02", Some(0.02)), ("100%", Some(1.0))] {
            assert_eq!(budget(text), share, "{text}");
        }
        for text in ["", "%", "0", "-1%", "101%", "nan", "one"] {
            assert_eq!(budget(text), None, "{text}");
        }
    }

    #[test]
    fn defaults_are_allowed() {
        for key in KEYS {
            assert_eq!(check(key.name, key.values[0]), Ok(()));
        }
    }
}
