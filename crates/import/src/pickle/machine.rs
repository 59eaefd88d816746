//! The stack machine that runs a pickle.

use std::io::Read;

use super::heap::{Pickle, PickleHeap, Value};
use super::memo::PickleMemo;
use super::opcode::{self as op, is_code, refusal};
use super::source::CountedBytes;
use super::watch::{DictWatcher, PartialPickle, PickleLimits, RefusedPickle};

/// Most containers that are open within each other while they are filled.
const MAX_DEPTH: usize = 1000;
/// Most bytes of a whole number.
const MAX_INTEGER: u64 = 1024;
/// The newest protocol.
const MAX_PROTOCOL: u8 = 5;

struct PickleMachine<'w, R, W> {
    source: CountedBytes<R>,
    limits: PickleLimits,
    watch: &'w mut W,
    stack: Vec<Value>,
    /// The height of the stack at each open MARK.
    marks: Vec<usize>,
    memo: PickleMemo,
    heap: PickleHeap,
}

/// Reads a pickle as far as it can be; nothing of it is run.
pub(crate) fn read_as_far<W: DictWatcher>(bytes: impl Read, limits: PickleLimits, watch: &mut W) -> PartialPickle {
    let mut machine = PickleMachine {
        source: CountedBytes::new(bytes),
        limits,
        watch,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: PickleMemo::default(),
        heap: PickleHeap::default(),
    };
    machine.watch.begin(&mut machine.heap.texts);
    let (mut steps, mut opcode) = (0_u64, 0);
    loop {
        let offset = machine.source.offset();
        match machine.step(&mut opcode) {
            Ok(None) => {}
            Ok(Some(root)) => {
                let text_bytes = machine.source.offset();
                return PartialPickle { pickle: Pickle { heap: machine.heap, root }, text_bytes, stopped: None };
            }
            Err(what) => {
                let stopped = Some(RefusedPickle { offset, what, is_code: is_code(opcode) });
                let root = machine.close();
                return PartialPickle { pickle: Pickle { heap: machine.heap, root }, text_bytes: offset, stopped };
            }
        }
        steps += 1;
        if steps.is_multiple_of(1 << 16) {
            machine.watch.progress();
        }
    }
}

type StepResult<T = ()> = Result<T, String>;

impl<R: Read, W: DictWatcher> PickleMachine<'_, R, W> {
    /// Runs one instruction; returns the pickle's value after the last one.
    fn step(&mut self, opcode: &mut u8) -> StepResult<Option<Value>> {
        *opcode = 0;
        let code = self.source.byte()?;
        *opcode = code;
        let opcode = code;
        match opcode {
            op::PROTO => {
                let protocol = self.source.byte()?;
                if protocol > MAX_PROTOCOL {
                    return Err(format!("protocol {protocol} is not known"));
                }
            }
            // Frames only matter for reading from a socket.
            op::FRAME => drop(self.source.number(8)?),
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
                self.heap.share(top);
                self.push(top)?;
            }
            op::NONE => self.push(Value::None)?,
            op::NEWTRUE => self.push(Value::Bool(true))?,
            op::NEWFALSE => self.push(Value::Bool(false))?,
            op::BININT1 | op::BININT2 => {
                let number = self.source.number(if opcode == op::BININT1 { 1 } else { 2 })?;
                self.push(Value::Int(number as i64))?;
            }
            op::BININT => {
                let number = self.source.number(4)? as u32;
                self.push(Value::Int(i64::from(number.cast_signed())))?;
            }
            op::LONG1 => self.long(1)?,
            op::LONG4 => self.long(4)?,
            op::BINFLOAT => {
                let bits = self.source.number(8)?.swap_bytes();
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
                let key = self.source.number(1)? as u32;
                self.remember(key)?;
            }
            op::LONG_BINPUT => {
                let key = self.source.number(4)? as u32;
                self.remember(key)?;
            }
            op::BINGET => {
                let key = self.source.number(1)? as u32;
                self.recall(key)?;
            }
            op::LONG_BINGET => {
                let key = self.source.number(4)? as u32;
                self.recall(key)?;
            }
            _ => self.container(opcode)?,
        }
        Ok(None)
    }

    /// Runs an instruction that makes or fills a list, tuple or dict.
    fn container(&mut self, opcode: u8) -> StepResult {
        match opcode {
            op::EMPTY_LIST => self.make(Value::List, Vec::new()),
            op::EMPTY_TUPLE => self.make_tuple(Vec::new()),
            op::EMPTY_DICT => self.make(Value::Dict, Vec::new()),
            op::LIST => {
                let items = self.since_mark()?;
                self.make(Value::List, items)
            }
            op::TUPLE => {
                let items = self.since_mark()?;
                self.make_tuple(items)
            }
            op::DICT => {
                let items = self.since_mark()?;
                self.in_pairs(&items)?;
                self.make(Value::Dict, items)?;
                self.offer();
                Ok(())
            }
            op::TUPLE1 | op::TUPLE2 | op::TUPLE3 => {
                let mut items = Vec::with_capacity(3);
                for _ in 0..=opcode - op::TUPLE1 {
                    items.push(self.pop()?);
                }
                items.reverse();
                self.make_tuple(items)
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
                self.fill_from(mark, true)?;
                self.offer();
                Ok(())
            }
            refused => Err(self.name_of_global(refused)),
        }
    }

    fn end(&mut self) -> StepResult<Value> {
        let root = self.pop()?;
        if self.source.is_at_end()? { Ok(root) } else { Err("more bytes follow its end".into()) }
    }

    /// Puts what is open into what it was meant for, as far as that can be seen: the outermost value. Dicts within it that are
    /// not finished are left out.
    fn close(&mut self) -> Value {
        while let Some(mark) = self.marks.pop() {
            let mut items: Vec<Value> = self.stack.drain(mark.min(self.stack.len())..).collect();
            match self.stack.last() {
                Some(Value::List(number)) => self.heap.fill(*number, items.into_iter()),
                Some(Value::Dict(number)) if self.marks.is_empty() => {
                    items.truncate(items.len() & !1);
                    self.heap.fill(*number, items.into_iter());
                }
                Some(Value::Dict(_)) => drop(self.stack.pop()),
                _ => {}
            }
        }
        // A single item is added without a MARK.
        while self.stack.len() > 1 {
            let Some(top) = self.stack.pop() else { break };
            match self.stack[..] {
                [.., Value::List(number)] => self.heap.fill(number, [top].into_iter()),
                [.., Value::Dict(number), key @ Value::Text(_)] => {
                    self.stack.pop();
                    self.heap.fill(number, [key, top].into_iter());
                }
                _ => {}
            }
        }
        self.stack.pop().unwrap_or(Value::None)
    }

    /// Offers the filled dict on top to the watcher, which may take it.
    fn offer(&mut self) {
        if let Some(Value::Dict(number)) = self.stack.last().copied()
            && let Some(taken) = self.watch.filled(&mut self.heap, number)
        {
            self.heap.drop_dict(number);
            if let Some(top) = self.stack.last_mut() {
                *top = Value::Taken(taken);
            }
        }
    }

    /// Reads a whole number in two's complement, after its length.
    fn long(&mut self, length_bytes: u64) -> StepResult {
        let length = self.source.number(length_bytes)?;
        if length > MAX_INTEGER {
            return Err(format!("a whole number has {length} bytes; the limit is {MAX_INTEGER}"));
        }
        let bytes = self.source.take(length)?;
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let filler = if negative { 0xff } else { 0 };
        let mut low = [filler; 8];
        let kept = bytes.len().min(8);
        low[..kept].copy_from_slice(&bytes[..kept]);
        let number = i64::from_le_bytes(low);
        // The bytes that are left out only repeat the sign.
        let fits = bytes[kept..].iter().all(|byte| *byte == filler) && (number < 0) == negative;
        self.push(if fits { Value::Int(number) } else { Value::Lost })
    }

    /// Reads text or bytes, after their length. Text that is not UTF-8 stays bytes.
    fn bytes_of(&mut self, length_bytes: u64, is_text: bool) -> StepResult {
        let length = self.source.number(length_bytes)?;
        let bytes = self.source.take(length)?;
        let value = match std::str::from_utf8(bytes) {
            Ok(text) if is_text => self.heap.add_text(text),
            _ => self.heap.add_blob(bytes)?,
        };
        self.push(value)
    }

    fn push(&mut self, value: Value) -> StepResult {
        let most = self.limits.values;
        if self.stack.len() + self.heap.held_values() >= most {
            return Err(format!("it has more than {most} values at once"));
        }
        self.stack.push(value);
        Ok(())
    }

    /// The value on top, which no open MARK covers.
    fn top(&mut self) -> StepResult<&Value> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.last() {
            Some(top) if self.stack.len() > floor => Ok(top),
            _ => Err("it takes a value where there is none".into()),
        }
    }

    fn pop(&mut self) -> StepResult<Value> {
        let value = *self.top()?;
        self.stack.pop();
        Ok(value)
    }

    /// Takes the values that were pushed since the newest MARK, and removes the MARK.
    fn since_mark(&mut self) -> StepResult<Vec<Value>> {
        let mark = self.mark()?;
        Ok(self.stack.drain(mark..).collect())
    }

    /// Removes the newest MARK, and returns the height of the stack there.
    fn mark(&mut self) -> StepResult<usize> {
        Ok(self.marks.pop().ok_or("it goes back to a MARK where there is none")?)
    }

    fn in_pairs(&self, items: &[Value]) -> StepResult {
        if items.len().is_multiple_of(2) { Ok(()) } else { Err("a key of a dict has no value".into()) }
    }

    fn make(&mut self, kind: fn(u32) -> Value, items: Vec<Value>) -> StepResult {
        self.has_room()?;
        let made = self.heap.add(kind, items);
        self.push(made)
    }

    fn make_tuple(&mut self, items: Vec<Value>) -> StepResult {
        self.has_room()?;
        let made = self.heap.add_tuple(items);
        self.push(made)
    }

    fn has_room(&self) -> StepResult {
        let most = self.limits.containers;
        match self.heap.in_use() < most {
            true => Ok(()),
            false => Err(format!("it has more than {most} lists, tuples and dicts at once")),
        }
    }

    /// Moves the values on the stack from `start` on into the list or dict below them.
    fn fill_from(&mut self, start: usize, is_dict: bool) -> StepResult {
        let floor = self.marks.last().copied().unwrap_or(0);
        let below = start.checked_sub(1).filter(|below| *below >= floor).map(|below| self.stack[below]);
        let number = match (below, is_dict) {
            (Some(Value::List(number)), false) | (Some(Value::Dict(number)), true) => number,
            _ => return Err(format!("it adds to something that is no {}", if is_dict { "dict" } else { "list" })),
        };
        if is_dict {
            self.in_pairs(&self.stack[start..])?;
        }
        self.heap.fill(number, self.stack.drain(start..));
        Ok(())
    }

    fn remember(&mut self, key: u32) -> StepResult {
        let (value, most) = (*self.top()?, self.limits.memo);
        if self.memo.len() >= most && self.memo.get(key).is_none() {
            return Err(format!("it keeps more than {most} values to name them again"));
        }
        self.heap.share(value);
        self.memo.set(key, value);
        Ok(())
    }

    fn recall(&mut self, key: u32) -> StepResult {
        let value = self.memo.get(key).ok_or_else(|| format!("it names value {key}, and there is none"))?;
        self.push(value)
    }

    /// Why an instruction is refused, with what it would import.
    fn name_of_global(&mut self, opcode: u8) -> String {
        let mut what = refusal(opcode);
        if opcode == op::GLOBAL {
            let text = self.source.peek(80);
            let name: Vec<&str> = text.split('\n').take(2).collect();
            if name.iter().all(|part| part.chars().all(|c| c.is_ascii_graphic())) {
                what = format!("{what} ({})", name.join("."));
            }
        }
        what
    }
}
