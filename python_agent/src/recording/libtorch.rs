//! Functions of libtorch_cpu.so that need no GIL: found by name, as no header promises to keep them.

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

static PEEK: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static NAME: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static CURRENT_THREAD: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

static MODE_IS_ON: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static GET_DISABLED: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static SET_DISABLED: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// The autograd sequence number that this thread assigns next; 0 where torch does not tell.
#[inline(always)]
pub(super) fn peek() -> u64 {
    let function = PEEK.load(Ordering::Relaxed);
    if function.is_null() {
        return 0;
    }
    // SAFETY: `at::sequence_number::peek()`, stored by `find` only; it reads a thread-local number.
    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> u64>(function)() }
}

/// Torch's number of the calling thread, by which an autograd node names the thread that made it; 0 where torch does not tell.
pub(super) fn current_thread() -> u64 {
    let function = CURRENT_THREAD.load(Ordering::Relaxed);
    if function.is_null() {
        return 0;
    }
    // SAFETY: `at::RecordFunction::currentThreadId()`, stored by `find` only; it reads a thread-local number.
    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> u64>(function)() }
}

/// The range's name; None if the name is not available.
pub(super) unsafe fn name_of<'a>(range: *const u8) -> Option<&'a CStr> {
    let function = NAME.load(Ordering::Relaxed);
    if function.is_null() {
        return None;
    }
    // SAFETY: `at::RecordFunction::name() const` on the object that a callback was given.
    unsafe {
        let name =
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const u8) -> *const c_char>(function)(range);
        (!name.is_null()).then(|| CStr::from_ptr(name))
    }
}

/// While this lives, no mode of the program (`TorchFunctionMode`, `torch.device` in a `with`) sees what the calling thread does:
/// it would take our reads of tensors for the program's own.
pub(super) struct HiddenFromModes {
    /// The `at::impl::TorchFunctionDisabledState` before; None where there is no mode.
    before: Option<i8>,
}

impl HiddenFromModes {
    const ALL_DISABLED: i8 = 2;

    #[inline]
    pub(super) fn new() -> Self {
        let is_on = MODE_IS_ON.load(Ordering::Relaxed);
        // SAFETY: `at::impl::torch_function_mode_enabled()`, stored by `find_modes` only; it reads thread-local state.
        let is_on =
            !is_on.is_null() && unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> bool>(is_on)() };
        Self { before: is_on.then(Self::disable) }
    }

    #[cold]
    fn disable() -> i8 {
        // SAFETY: `get_disabled_state()` of `at::impl::PythonTorchFunctionTLS`, stored before the one above.
        let before = unsafe {
            let get = GET_DISABLED.load(Ordering::Relaxed);
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> i8>(get)()
        };
        Self::set(Self::ALL_DISABLED);
        before
    }

    fn set(state: i8) {
        // SAFETY: `set_disabled_state(TorchFunctionDisabledState)` of the same; the enumeration is an int8_t.
        unsafe {
            let set = SET_DISABLED.load(Ordering::Relaxed);
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(i8)>(set)(state);
        }
    }
}

impl Drop for HiddenFromModes {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            Self::set(before);
        }
    }
}

/// Finds the functions that [`HiddenFromModes`] calls. If one is missing, [`HiddenFromModes`] does nothing.
pub(super) fn find_modes() {
    let found = [
        symbol(c"_ZN2at4impl22PythonTorchFunctionTLS18get_disabled_stateEv"),
        symbol(c"_ZN2at4impl22PythonTorchFunctionTLS18set_disabled_stateENS0_26TorchFunctionDisabledStateE"),
        symbol(c"_ZN2at4impl27torch_function_mode_enabledEv"),
    ];
    if let [Some(get), Some(set), Some(is_on)] = found {
        GET_DISABLED.store(get, Ordering::Relaxed);
        SET_DISABLED.store(set, Ordering::Relaxed);
        MODE_IS_ON.store(is_on, Ordering::Relaxed);
    }
}

/// Looks a symbol up in libtorch_cpu.so, which must be loaded already.
pub(super) fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: NOLOAD only finds what is there; the handle is kept, as torch is never unloaded.
    unsafe {
        let library = libc::dlopen(c"libtorch_cpu.so".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY);
        let found = if library.is_null() { library } else { libc::dlsym(library, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    }
}

/// The error for a torch that lacks a symbol which callbacks need.
pub(super) fn missing() -> PyErr {
    PyRuntimeError::new_err("libtorch_cpu.so lacks a symbol of RecordFunction")
}

/// Finds the functions that [`peek`], [`name_of`] and [`current_thread`] call. Error where torch lacks one.
pub(super) fn find() -> PyResult<()> {
    if cfg!(not(target_arch = "x86_64")) {
        return Err(PyRuntimeError::new_err("RecordFunction is used on x86-64 only"));
    }
    PEEK.store(symbol(c"_ZN2at15sequence_number4peekEv").ok_or_else(missing)?, Ordering::Relaxed);
    NAME.store(symbol(c"_ZNK2at14RecordFunction4nameEv").ok_or_else(missing)?, Ordering::Relaxed);
    let current_thread = symbol(c"_ZN2at14RecordFunction15currentThreadIdEv").ok_or_else(missing)?;
    CURRENT_THREAD.store(current_thread, Ordering::Relaxed);
    Ok(())
}
