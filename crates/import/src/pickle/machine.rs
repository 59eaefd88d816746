//! The stack machine that a pickle is a program for.

use std::collections::HashMap;

use super::opcode::{self as op, refusal};
use super::value::{Pickle, Value};

/// Size of a pickle (bytes). Positions in it are 32 bits.
const MAX_BYTES: usize = 128 << 20;
/// Values that are pushed, which bounds the stack and all that containers hold.
const MAX_VALUES: usize = 1 << 24;
/// Lists, tuples and dicts.
const MAX_CONTAINERS: usize = 1 << 21;
/// Values that the pickle keeps to name them again.
const MAX_MEMO: usize = 1 << 22;
/// Containers that are open within each other while they are filled.
const MAX_DEPTH: usize = 1000;
/// Bytes of a whole number.
const MAX_INTEGER: usize = 1024;
/// The newest protocol.
const MAX_PROTOCOL: u8 = 5;

/// Why a pickle was not read, and where (bytes).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub offset: usize,
    pub what: String,
}

struct Machine {
    bytes: Vec<u8>,
    position: usize,
    stack: Vec<Value>,
    /// How high the stack was where each open MARK was.
    marks: Vec<usize>,
    memo: HashMap<u32, Value>,
    containers: Vec<Vec<Value>>,
    pushed: usize,
}

/// Reads a pickle; nothing of it is run.
///
/// # Errors
/// It is damaged, past a bound, or does something else than to hold plain data.
pub(crate) fn read(bytes: Vec<u8>) -> Result<Pickle, Refused> {
    if bytes.len() > MAX_BYTES {
        let what = format!("it has more than {MAX_BYTES} bytes");
        return Err(Refused { offset: MAX_BYTES, what });
    }
    let mut machine = Machine {
        bytes,
        position: 0,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
        containers: Vec::new(),
        pushed: 0,
    };
    loop {
        let offset = machine.position;
        match machine.step() {
            Ok(None) => {}
            Ok(Some(root)) => {
                let Machine { bytes, containers, .. } = machine;
                return Ok(Pickle { bytes, containers, root });
            }
            Err(what) => return Err(Refused { offset, what }),
        }
    }
}

type Step<T = ()> = Result<T, String>;

impl Machine {
    /// One instruction; the value of the whole where it was the last one.
    fn step(&mut self) -> Step<Option<Value>> {
        let opcode = self.byte()?;
        match opcode {
            op::PROTO => {
                let protocol = self.byte()?;
                if protocol > MAX_PROTOCOL {
                    return Err(format!("protocol {protocol} is not known"));
                }
            }
            // Frames are for whoever reads from a socket.
            op::FRAME => drop(self.number(8)?),
            op::STOP => return self.end().map(Some),
            op::MARK => {
                if self.marks.len() >= MAX_DEPTH {
                    return Err(format!("more than {MAX_DEPTH} containers are within each other"));
                }
                self.marks.push(self.stack.len());
            }
            op::POP if self.marks.last() == Some(&self.stack.len()) => drop(self.marks.pop()),
            op::POP => drop(self.pop()?),
            op::POP_MARK => drop(self.since_mark()?),
            op::DUP => {
                let top = *self.top()?;
                self.push(top)?;
            }
            op::NONE => self.push(Value::None)?,
            op::NEWTRUE => self.push(Value::Bool(true))?,
            op::NEWFALSE => self.push(Value::Bool(false))?,
            op::BININT1 | op::BININT2 => {
                let number = self.number(if opcode == op::BININT1 { 1 } else { 2 })?;
                self.push(Value::Int(number as i64))?;
            }
            op::BININT => {
                let number = self.number(4)? as u32;
                self.push(Value::Int(i64::from(number.cast_signed())))?;
            }
            op::LONG1 => self.long(1)?,
            op::LONG4 => self.long(4)?,
            op::BINFLOAT => {
                let bits = self.number(8)?.swap_bytes();
                self.push(Value::Float(f64::from_bits(bits)))?;
            }
            op::SHORT_BINBYTES => self.bytes_of(1, false)?,
            op::BINBYTES => self.bytes_of(4, false)?,
            op::BINBYTES8 => self.bytes_of(8, false)?,
            op::SHORT_BINUNICODE | op::SHORT_BINSTRING => self.bytes_of(1, true)?,
            op::BINUNICODE | op::BINSTRING => self.bytes_of(4, true)?,
            op::BINUNICODE8 => self.bytes_of(8, true)?,
            op::MEMOIZE => {
                let key = u32::try_from(self.memo.len()).map_err(|_| "its memo is full".to_owned())?;
                self.remember(key)?;
            }
            op::BINPUT => {
                let key = self.number(1)? as u32;
                self.remember(key)?;
            }
            op::LONG_BINPUT => {
                let key = self.number(4)? as u32;
                self.remember(key)?;
            }
            op::BINGET => {
                let key = self.number(1)? as u32;
                self.recall(key)?;
            }
            op::LONG_BINGET => {
                let key = self.number(4)? as u32;
                self.recall(key)?;
            }
            _ => self.container(opcode)?,
        }
        Ok(None)
    }

    /// An instruction that makes or fills a list, tuple or dict.
    fn container(&mut self, opcode: u8) -> Step {
        match opcode {
            op::EMPTY_LIST => self.make(Value::List, Vec::new()),
            op::EMPTY_TUPLE => self.make(Value::Tuple, Vec::new()),
            op::EMPTY_DICT => self.make(Value::Dict, Vec::new()),
            op::LIST => {
                let items = self.since_mark()?;
                self.make(Value::List, items)
            }
            op::TUPLE => {
                let items = self.since_mark()?;
                self.make(Value::Tuple, items)
            }
            op::DICT => {
                let items = self.since_mark()?;
                self.in_pairs(&items)?;
                self.make(Value::Dict, items)
            }
            op::TUPLE1 | op::TUPLE2 | op::TUPLE3 => {
                let mut items = Vec::with_capacity(3);
                for _ in 0..=opcode - op::TUPLE1 {
                    items.push(self.pop()?);
                }
                items.reverse();
                self.make(Value::Tuple, items)
            }
            op::APPEND => {
                self.top()?;
                self.fill_from(self.stack.len() - 1, false)
            }
            op::APPENDS => {
                let mark = self.mark()?;
                self.fill_from(mark, false)
            }
            op::SETITEM => {
                let floor = self.marks.last().copied().unwrap_or(0);
                let start = self.stack.len().checked_sub(2).filter(|start| *start >= floor);
                self.fill_from(start.ok_or("it takes a value where there is none")?, true)
            }
            op::SETITEMS => {
                let mark = self.mark()?;
                self.fill_from(mark, true)
            }
            refused => Err(self.name_of_global(refused)),
        }
    }

    fn end(&mut self) -> Step<Value> {
        let root = self.pop()?;
        match self.bytes.len() - self.position {
            0 => Ok(root),
            more => Err(format!("{more} bytes follow its end")),
        }
    }

    fn byte(&mut self) -> Step<u8> {
        let byte = *self.bytes.get(self.position).ok_or("it ends before its STOP")?;
        self.position += 1;
        Ok(byte)
    }

    /// So many bytes, and where they are.
    fn take(&mut self, length: u64) -> Step<(usize, usize)> {
        let left = (self.bytes.len() - self.position) as u64;
        if length > left {
            return Err(format!("{length} bytes are announced and {left} are left"));
        }
        let start = self.position;
        self.position += length as usize;
        Ok((start, self.position))
    }

    /// A little-endian number of up to eight bytes.
    fn number(&mut self, bytes: usize) -> Step<u64> {
        let (start, end) = self.take(bytes as u64)?;
        Ok(self.bytes[start..end].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    /// A whole number in two's complement, after its length.
    fn long(&mut self, length_bytes: usize) -> Step {
        let length = self.number(length_bytes)?;
        if length > MAX_INTEGER as u64 {
            return Err(format!("a whole number has {length} bytes, and at most {MAX_INTEGER} are read"));
        }
        let (start, end) = self.take(length)?;
        let bytes = &self.bytes[start..end];
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let filler = if negative { 0xff } else { 0 };
        let mut low = [filler; 8];
        let kept = bytes.len().min(8);
        low[..kept].copy_from_slice(&bytes[..kept]);
        let number = i64::from_le_bytes(low);
        // What is left out is nothing but the sign again.
        let fits = bytes[kept..].iter().all(|byte| *byte == filler) && (number < 0) == negative;
        self.push(if fits { Value::Int(number) } else { Value::WideInt })
    }

    /// Text or bytes, after their length. Text that is no UTF-8 stays bytes.
    fn bytes_of(&mut self, length_bytes: usize, is_text: bool) -> Step {
        let length = self.number(length_bytes)?;
        let (start, end) = self.take(length)?;
        let is_text = is_text && std::str::from_utf8(&self.bytes[start..end]).is_ok();
        let (start, length) = (start as u32, (end - start) as u32);
        self.push(if is_text { Value::Text { start, length } } else { Value::Bytes { start, length } })
    }

    fn push(&mut self, value: Value) -> Step {
        self.pushed += 1;
        if self.pushed > MAX_VALUES {
            return Err(format!("it has more than {MAX_VALUES} values"));
        }
        self.stack.push(value);
        Ok(())
    }

    /// The value on top, which no open MARK covers.
    fn top(&mut self) -> Step<&Value> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.last() {
            Some(top) if self.stack.len() > floor => Ok(top),
            _ => Err("it takes a value where there is none".into()),
        }
    }

    fn pop(&mut self) -> Step<Value> {
        let value = *self.top()?;
        self.stack.pop();
        Ok(value)
    }

    /// What was pushed since the newest MARK, which is over with that.
    fn since_mark(&mut self) -> Step<Vec<Value>> {
        let mark = self.mark()?;
        Ok(self.stack.drain(mark..).collect())
    }

    /// How high the stack was at the newest MARK, which is over with that.
    fn mark(&mut self) -> Step<usize> {
        Ok(self.marks.pop().ok_or("it goes back to a MARK where there is none")?)
    }

    fn in_pairs(&self, items: &[Value]) -> Step {
        if items.len().is_multiple_of(2) { Ok(()) } else { Err("a key of a dict has no value".into()) }
    }

    fn make(&mut self, kind: fn(u32) -> Value, items: Vec<Value>) -> Step {
        if self.containers.len() >= MAX_CONTAINERS {
            return Err(format!("it has more than {MAX_CONTAINERS} lists, tuples and dicts"));
        }
        let number = self.containers.len() as u32;
        self.containers.push(items);
        self.push(kind(number))
    }

    /// Moves what lies on the stack from `start` on into the list or dict below.
    fn fill_from(&mut self, start: usize, is_dict: bool) -> Step {
        let floor = self.marks.last().copied().unwrap_or(0);
        let below = start.checked_sub(1).filter(|below| *below >= floor).map(|below| self.stack[below]);
        let number = match (below, is_dict) {
            (Some(Value::List(number)), false) | (Some(Value::Dict(number)), true) => number,
            _ => return Err(format!("it adds to something that is no {}", if is_dict { "dict" } else { "list" })),
        };
        if is_dict {
            self.in_pairs(&self.stack[start..])?;
        }
        self.containers[number as usize].extend(self.stack.drain(start..));
        Ok(())
    }

    fn remember(&mut self, key: u32) -> Step {
        let value = *self.top()?;
        if self.memo.len() >= MAX_MEMO && !self.memo.contains_key(&key) {
            return Err(format!("it keeps more than {MAX_MEMO} values to name them again"));
        }
        self.memo.insert(key, value);
        Ok(())
    }

    fn recall(&mut self, key: u32) -> Step {
        let value = *self.memo.get(&key).ok_or_else(|| format!("it names value {key}, and there is none"))?;
        self.push(value)
    }

    /// Why an instruction is refused, with what it would import.
    fn name_of_global(&self, opcode: u8) -> String {
        let mut what = refusal(opcode);
        if opcode == op::GLOBAL {
            let text = self.bytes[self.position..].iter().take(80).map(|byte| char::from(*byte)).collect::<String>();
            let name: Vec<&str> = text.split('\n').take(2).collect();
            if name.iter().all(|part| part.chars().all(|c| c.is_ascii_graphic())) {
                what = format!("{what} ({})", name.join("."));
            }
        }
        what
    }
}
