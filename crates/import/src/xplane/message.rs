//! Fields of a small message that is in memory.

/// A field's value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    /// The value as a signed whole number.
    pub(crate) fn signed(self) -> Option<i64> {
        match self {
            Self::Number(number) => Some(number as i64),
            Self::Bytes(_) => None,
        }
    }

    pub(crate) fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Self::Number(_) => None,
            Self::Bytes(bytes) => Some(bytes),
        }
    }
}

/// Iterates over fields.
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
    /// Whether the bytes are no valid message.
    pub broken: bool,
}

impl<'a> Fields<'a> {
    pub(crate) fn of(message: &'a [u8]) -> Self {
        Self { rest: message, broken: false }
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if *byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (own, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(own)
    }

    fn field(&mut self) -> Option<(u32, Value<'a>)> {
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).ok().filter(|number| *number > 0)?;
        let value = match tag & 7 {
            0 => Value::Number(self.varint()?),
            1 => Value::Number(u64::from_le_bytes(self.take(8)?.try_into().ok()?)),
            5 => Value::Number(u64::from(u32::from_le_bytes(self.take(4)?.try_into().ok()?))),
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Value::Bytes(self.take(length)?)
            }
            _ => return None,
        };
        Some((number, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (u32, Value<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() || self.broken {
            return None;
        }
        let field = self.field();
        self.broken = field.is_none();
        field
    }
}

/// The key and the message of an entry of a map.
pub(crate) fn entry(bytes: &[u8]) -> Option<(i64, &[u8])> {
    let (mut key, mut message) = (0, &[][..]);
    let mut fields = Fields::of(bytes);
    for (number, value) in &mut fields {
        match number {
            1 => key = value.signed()?,
            2 => message = value.bytes()?,
            _ => {}
        }
    }
    (!fields.broken).then_some((key, message))
}
