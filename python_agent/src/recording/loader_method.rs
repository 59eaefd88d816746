//! Methods of DataLoader iterators in place of torch's.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use super::untraced::Untraced;
use super::{data, program_errors};

/// A function and its arguments, as `pickle` takes them.
type PickledCall<'py> = (Bound<'py, PyAny>, (Bound<'py, PyAny>, String));

/// The `__next__` or `__init__` of DataLoader iterators, in place of torch's. Python has no frame of it: it would be one more between
/// the program's line and what warns in torch's function, and the warning would be said to come from another line (`stacklevel`).
#[pyclass(frozen, module = "probe_agent._native")]
struct LoaderMethod {
    original: Py<PyAny>,
    /// `types.MethodType`.
    method: Py<PyAny>,
    name: String,
    /// What is called with the same arguments when the original has returned. Where there is nothing, the method hands over a batch.
    made: Option<Py<PyAny>>,
}

#[pymethods]
impl LoaderMethod {
    #[new]
    #[pyo3(signature = (original, method, name, made = None))]
    const fn new(original: Py<PyAny>, method: Py<PyAny>, name: String, made: Option<Py<PyAny>>) -> Self {
        Self { original, method, name, made }
    }

    #[pyo3(signature = (iterator, /, *args, **kwargs))]
    fn __call__<'py>(
        &self,
        iterator: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = iterator.py();
        let original = self.original.bind(py);
        let Some(made) = &self.made else { return data::next_batch(original, iterator, None, None) };
        let all: Vec<_> = std::iter::once(iterator.clone()).chain(args.iter()).collect();
        let all = PyTuple::new(py, all)?;
        let result = original.call(&all, kwargs)?;
        let _untraced = Untraced::new(py);
        program_errors::swallow(py, "a DataLoader", made.call(py, &all, kwargs).map(drop));
        Ok(result)
    }

    /// The method of an iterator.
    fn __get__<'py>(
        this: Bound<'py, Self>,
        iterator: Option<&Bound<'py, PyAny>>,
        _class: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Some(iterator) = iterator else { return Ok(this.into_any()) };
        this.get().method.bind(this.py()).call1((&this, iterator))
    }

    /// Torch's own, as `functools.wraps` has it.
    #[getter]
    fn __wrapped__(&self, py: Python<'_>) -> Py<PyAny> {
        self.original.clone_ref(py)
    }

    /// Whatever else a program asks of a function: its name, its code.
    fn __getattr__<'py>(&self, name: &Bound<'py, PyString>) -> PyResult<Bound<'py, PyAny>> {
        self.original.bind(name.py()).getattr(name)
    }

    /// Pickled and copied as what torch's class has there, also in a process without the agent.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<PickledCall<'py>> {
        let module: String = self.original.bind(py).getattr("__module__")?.extract()?;
        let class = py.import(module)?.getattr("_BaseDataLoaderIter")?;
        Ok((py.import("builtins")?.getattr("getattr")?, (class, self.name.clone())))
    }
}

/// Adds this file's class to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<LoaderMethod>()
}
