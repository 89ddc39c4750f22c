// What Python tells the launcher of torch and of the CUDA driver, and how it tries what it told.
#pragma once

#include "key.h"

namespace fusec {

// setup(tensor types, strided, empty_like, is_grad_enabled, tracing state)
static PyObject *setup(PyObject *, PyObject *args) {
    PyObject *types, *strided, *like, *enabled, *state;
    if (!PyArg_ParseTuple(args, "O!OOOO", &PyTuple_Type, &types, &strided, &like, &enabled, &state))
        return nullptr;
    torch.tensor_types = Py_NewRef(types);
    torch.strided = Py_NewRef(strided);
    torch.empty_like = Py_NewRef(like);
    torch.is_grad_enabled = Py_NewRef(enabled);
    torch.tracing_state = Py_NewRef(state);
    Py_RETURN_NONE;
}

// setup_cuda(current stream, six addresses of the driver, whether there are several devices)
static PyObject *setup_cuda(PyObject *, PyObject *args) {
    PyObject *stream;
    unsigned long long at[6];
    int several;
    if (!PyArg_ParseTuple(args, "OKKKKKKp", &stream, &at[0], &at[1], &at[2], &at[3], &at[4], &at[5],
                          &several))
        return nullptr;
    Py_XSETREF(torch.current_stream, Py_NewRef(stream));
    driver.launch_extended = (decltype(driver.launch_extended))(uintptr_t)at[0];
    driver.launch_plain = (decltype(driver.launch_plain))(uintptr_t)at[1];
    driver.get_current = (decltype(driver.get_current))(uintptr_t)at[2];
    driver.set_current = (decltype(driver.set_current))(uintptr_t)at[3];
    driver.push = (decltype(driver.push))(uintptr_t)at[4];
    driver.pop = (decltype(driver.pop))(uintptr_t)at[5];
    driver.several_devices = several;
    Py_RETURN_NONE;
}

// setup_tensors(offset of the handle, offset of the keys, kinds, addresses of eleven functions): the
// short ways into torch, proven by runtime/launcher_torch.py. The last may be missing;
// without kinds, everything is read through attributes.
static PyObject *setup_tensors(PyObject *, PyObject *args) {
    Short made{};
    PyObject *kinds;
    unsigned long long at[11];
    if (!PyArg_ParseTuple(args, "nnO!(KKKKKKKKKKK)", &made.handle, &made.keys, &PyTuple_Type, &kinds,
                          &at[0], &at[1], &at[2], &at[3], &at[4], &at[5], &at[6], &at[7], &at[8],
                          &at[9], &at[10]))
        return nullptr;
    if (PyTuple_GET_SIZE(kinds) > KINDS)
        return PyErr_Format(PyExc_ValueError, "more than %d kinds of tensors", KINDS);
    for (; made.kinds < PyTuple_GET_SIZE(kinds); ++made.kinds)
        made.kind[made.kinds] =
            PyLong_AsUnsignedLongLongMask(PyTuple_GET_ITEM(kinds, made.kinds));
    if (PyErr_Occurred()) return nullptr;
    made.data_ptr = (decltype(made.data_ptr))(uintptr_t)at[0];
    made.dim = (decltype(made.dim))(uintptr_t)at[1];
    made.sizes = (decltype(made.sizes))(uintptr_t)at[2];
    made.strides = (decltype(made.strides))(uintptr_t)at[3];
    made.dtype = (decltype(made.dtype))(uintptr_t)at[4];
    made.device_index = (decltype(made.device_index))(uintptr_t)at[5];
    made.grad_enabled = (decltype(made.grad_enabled))(uintptr_t)at[6];
    made.function_mode = (decltype(made.function_mode))(uintptr_t)at[7];
    made.dispatch_mode = (decltype(made.dispatch_mode))(uintptr_t)at[8];
    made.tracing_state = (decltype(made.tracing_state))(uintptr_t)at[9];
    made.current_stream = (decltype(made.current_stream))(uintptr_t)at[10];
    made.usable = made.kinds > 0;
    brief = made;
    Py_RETURN_NONE;
}

}  // namespace fusec
