//! Tells validation from training.
//!
//! A thread's time is cut into *sections*: one begins where a batch is asked for, where a backward pass has ended, and where
//! a step has ended. A section in which something trains (a backward pass, an optimizer's step, a module in training mode
//! with gradients) is training with all calls in it: a GAN's generator without gradients, a teacher in eval mode.
//! A section in which outermost modules are only called in eval mode or without gradients is validation, with the waits for
//! its batches and the time in between.
//!
//! A backward pass that only returns gradients (`torch.autograd.grad`: forces, attributions, an attack) does not train by
//! itself where a model in eval mode was given a batch of a DataLoader. What comes before the next batch says which it was.
//!
//! Calls in training mode without gradients are training if training has taken batches from the same iterator: their results
//! are cached for a later call with gradients (large batches of a contrastive loss). The first ones of an epoch come
//! before that is known, and count as validation.
//!
//! Modules without parameters (a preprocessor, a metric) neither train nor validate: they belong to what is called next.
//!
//! A loop without a DataLoader has no batches that separate the two. There a module that was only called in eval mode, and is
//! now called to train, was validated before.
//!
//! A process in which nothing has ever trained does not validate: it infers, and its calls are forward passes.

use super::analyser::Analyser;
use super::analyser::common_text;
use super::frame::ThreadFrame;
use super::meter::StepEvents;
use super::section::{PartsSnapshot, ThreadSection};
use super::symbol_lookup::SymbolLookup;
use super::thread::AnalysedThread;
use crate::payload::EVAL_MODE;
use crate::row_buffer::RowBuffer;
use probe_proto::stage::Stage;

/// The largest number of different modules of a section that are remembered.
const MAX_MODULES: usize = 16;

impl AnalysedThread {
    /// Whether the current section is validation so far.
    pub(super) fn is_validating(&self) -> bool {
        self.section.as_ref().is_some_and(ThreadSection::validates)
    }

    /// The number of the outermost call in the step. Validation counts its own calls.
    pub(super) fn micro_step(&self) -> i32 {
        let before = if self.is_validating() { self.parts.validation.calls } else { 0 };
        (self.parts.micro_steps - 1).max(0) + before
    }

    /// Takes in that the section's iterator has given its first batch or has no more: there may be another one at its address.
    pub(super) fn begins_or_ends_iterator(&mut self) {
        if self.section.as_ref().is_some_and(|section| section.iterator == self.trains_from) {
            self.trains_from = 0;
        }
    }

    /// Whether only optimizers' steps are open, so that what begins now is part of the loop itself.
    fn is_in_loop(&self) -> bool {
        self.frames.iter().all(|frame| matches!(frame, ThreadFrame::Optimizer { .. }))
    }
}

impl<N: SymbolLookup> Analyser<N> {
    fn mark(&self, number: usize, at: u64) -> PartsSnapshot {
        PartsSnapshot { at, parts: self.threads[number].parts.clone(), counts: self.meter.so_far() }
    }

    fn begin_section(&mut self, number: usize, now: u64, sink: &RowBuffer) {
        if self.threads[number].section.is_none() {
            let mut from = self.mark(number, now);
            // The record that begins the section is counted already.
            from.counts = from.counts.minus(StepEvents { plain: 1, ..StepEvents::default() });
            self.threads[number].section =
                Some(ThreadSection { from, rows: sink.intervals(), ..ThreadSection::default() });
        }
    }

    /// Takes in a request for a batch.
    pub(super) fn section_asks(&mut self, number: usize, iterator: u64, now: u64, sink: &RowBuffer) {
        if !self.threads[number].is_in_loop() {
            return;
        }
        // What was called without parameters after the loop before does not begin this one.
        self.threads[number].section.take_if(|section| section.is_prepared());
        // The section's unused batch is of another iterator and waits to be trained with, so the section is over.
        let is_over = |section: &ThreadSection| {
            section.trains || section.has_calls() || section.iterator != 0 && section.iterator != iterator
        };
        if self.threads[number].section.as_ref().is_some_and(is_over) {
            self.end_section(number);
        }
        self.begin_section(number, now, sink);
        if let Some(section) = &mut self.threads[number].section {
            section.iterator = iterator;
        }
    }

    /// Takes in that there was no further batch, which ends the loop over the batches.
    pub(super) fn section_ran_out(&mut self, number: usize, now: u64) {
        self.threads[number].begins_or_ends_iterator();
        let thread = &self.threads[number];
        let is_new = thread.section.as_ref().is_some_and(|section| !section.trains && !section.has_calls());
        if thread.is_in_loop() && is_new && thread.validated.is_some() {
            let until = self.mark(number, now);
            self.leave_out(number, until.clone(), until);
            self.threads[number].section = None;
        }
    }

    /// Takes in a call of an outermost module without parameters.
    pub(super) fn section_prepares(&mut self, number: usize, mode: u64, now: u64, sink: &RowBuffer) {
        if mode != 0 && self.threads[number].is_in_loop() {
            self.begin_section(number, now, sink);
        }
    }

    /// Takes in a call of an outermost module with parameters.
    pub(super) fn section_calls(&mut self, number: usize, module: u64, mode: u64, now: u64, sink: &mut RowBuffer) {
        if !self.threads[number].is_in_loop() {
            return;
        }
        if self.threads[number].section.as_ref().is_some_and(|section| section.was_validation_of(module, mode)) {
            self.end_section(number);
        }
        self.begin_section(number, now, sink);
        let thread = &mut self.threads[number];
        let of_training = |section: &ThreadSection| section.iterator != 0 && section.iterator == thread.trains_from;
        if mode == 0 || mode & EVAL_MODE == 0 && thread.section.as_ref().is_some_and(of_training) {
            return self.section_trains(number, now, sink);
        }
        let Some(section) = &mut thread.section else { return };
        let was_validation = section.validates();
        section.mode = if section.has_calls() { section.mode & mode } else { mode };
        if section.modules.len() < MAX_MODULES && !section.modules.contains(&module) {
            section.modules.push(module);
        }
        if !was_validation && section.validates() {
            self.restage_section(number, sink);
        }
    }

    /// Takes in the end of an outermost call or backward pass.
    pub(super) fn section_goes_on(&mut self, number: usize, now: u64) {
        if self.threads[number].is_validating() {
            let until = self.mark(number, now);
            if let Some(section) = &mut self.threads[number].section {
                section.until = until;
            }
        }
    }

    /// Marks the section as training.
    pub(super) fn section_trains(&mut self, number: usize, now: u64, sink: &mut RowBuffer) {
        if !self.threads[number].is_in_loop() {
            return;
        }
        self.begin_section(number, now, sink);
        let thread = &mut self.threads[number];
        thread.validated = None;
        let Some(section) = &mut thread.section else { return };
        let was_validation = section.validates();
        section.trains = true;
        if section.iterator != 0 {
            thread.trains_from = section.iterator;
        }
        if was_validation {
            self.restage_section(number, sink);
        }
    }

    /// Gives rows of the section the stage that it has now: validation or forward.
    fn restage_section(&mut self, number: usize, sink: &mut RowBuffer) {
        let thread = &self.threads[number];
        let Some(section) = &thread.section else { return };
        let forward = common_text(&mut self.words.forward, &mut sink.strings, Stage::Forward.as_str());
        let validation = common_text(&mut self.words.validation, &mut sink.strings, Stage::Validation.as_str());
        let (from, to) = if section.validates() { (forward, validation) } else { (validation, forward) };
        sink.restage(section.rows, thread.id, from, to);
    }

    /// Takes in the beginning of a backward pass or an optimizer's step: from now on, calls in eval mode are validation.
    pub(super) fn learning_begins(&mut self, number: usize, now: u64, sink: &mut RowBuffer) {
        self.trained = true;
        sink.quiet = None;
        self.section_trains(number, now, sink);
    }

    /// Takes in the beginning of a pass that returns gradients: of inputs (forces, attributions, an attack), or for updates by
    /// hand. Within a call it is part of what the module computes.
    pub(super) fn differentiates(&mut self, number: usize, now: u64, sink: &mut RowBuffer) {
        if !self.threads[number].is_in_loop() {
            return;
        }
        match &mut self.threads[number].section {
            Some(section) if self.stepped && section.may_differentiate() => section.differentiated = true,
            _ => self.learning_begins(number, now, sink),
        }
    }

    /// Ends the section.
    pub(super) fn end_section(&mut self, number: usize) {
        let Some(section) = self.threads[number].section.take() else { return };
        if section.validates() {
            self.leave_out(number, section.from, section.until);
        }
    }

    /// Counts the time between the two marks, or since the validation before, as validation.
    fn leave_out(&mut self, number: usize, from: PartsSnapshot, mut until: PartsSnapshot) {
        let thread = &mut self.threads[number];
        let from = thread.validated.take().unwrap_or(from);
        let (time, counts) = (until.at.saturating_sub(from.at), until.counts.minus(from.counts));
        thread.parts.leave_out(&from.parts, &mut until.parts, time, counts);
        self.meter.set(self.meter.so_far().minus(counts));
        until.counts = until.counts.minus(counts);
        thread.validated = Some(until);
    }
}
