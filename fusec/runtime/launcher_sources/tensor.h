// What the launcher reads of a tensor: through its Python attributes, or, where short ways into
// torch were proven (runtime/launcher_torch.py), through the C functions torch keeps for compilers.
//
// A Python tensor holds a pointer to torch's own object, and the place of that pointer is a handle
// as those functions take it. The object in turn has a word of dispatch keys that tells a plain
// dense tensor in memory from every other kind: negated, sparse, nested, fake, batched, traced.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

namespace fusec {

struct Names {
    PyObject *data_ptr, *shape, *stride, *dtype, *layout, *is_neg, *requires_grad, *is_cuda, *is_cpu,
        *get_device;
};

// What the extension module knows of torch; set once by `setup`.
struct Torch {
    PyObject *tensor_types;  // tuple of the classes that are plain tensors
    PyObject *strided, *empty_like, *is_grad_enabled, *tracing_state, *current_stream;
};

constexpr int KINDS = 4;  // most words of dispatch keys

// Short ways into torch; set by `setup_tensors`, all of them or none.
struct Short {
    bool usable;
    Py_ssize_t handle;      // offset of the pointer in a Python tensor
    Py_ssize_t keys;        // offset of the dispatch keys in torch's object
    int kinds;
    uint64_t kind[KINDS];   // the dispatch keys that plain dense tensors have
    int (*data_ptr)(void *, void **);
    int (*dim)(void *, int64_t *);
    int (*sizes)(void *, int64_t **);
    int (*strides)(void *, int64_t **);
    int (*dtype)(void *, int32_t *);
    int (*device_index)(void *, int32_t *);
    bool (*grad_enabled)();
    bool (*function_mode)();
    bool (*dispatch_mode)();
    void **(*tracing_state)();  // of this thread; it points to null while nothing is traced
    int (*current_stream)(int32_t, void **);  // may be null alone
};

extern Names names;
extern Torch torch;
extern Short brief;

inline bool is_tensor(PyObject *value) {
    PyObject *kind = (PyObject *)Py_TYPE(value);
    for (Py_ssize_t t = 0; t < PyTuple_GET_SIZE(torch.tensor_types); ++t)
        if (kind == PyTuple_GET_ITEM(torch.tensor_types, t)) return true;
    return false;
}

inline void *handle_of(PyObject *tensor) { return (char *)tensor + brief.handle; }

// Whether a value is a tensor whose facts the short ways may read.
inline bool is_plain(PyObject *value) {
    if (!is_tensor(value)) return false;
    const char *object = *(const char **)handle_of(value);
    if (!object) return false;
    uint64_t keys = *(const uint64_t *)(object + brief.keys);
    for (int k = 0; k < brief.kinds; ++k)
        if (keys == brief.kind[k]) return true;
    return false;
}

// Whether torch.jit.trace records what is called, as Python says.
inline bool is_traced() {
    PyObject *state = PyObject_CallNoArgs(torch.tracing_state);
    PyErr_Clear();
    Py_XDECREF(state);
    return state != Py_None;
}

// Under a mode of torch, and while it traces, every call is Python's: a mode sees what is read and
// allocated, and a trace the operator that the call is.
inline bool in_mode() {
    if (!brief.usable) return is_traced();
    return brief.function_mode() || brief.dispatch_mode() || *brief.tracing_state();
}

// The address of a tensor's first element; -1 perhaps with an exception.
inline int64_t address_of(PyObject *tensor) {
    void *address;
    if (brief.usable && is_plain(tensor) && !brief.data_ptr(handle_of(tensor), &address))
        return (int64_t)(intptr_t)address;
    PyObject *found = PyObject_VectorcallMethod(
        names.data_ptr, &tensor, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
    if (!found) return -1;
    int64_t place = (int64_t)PyLong_AsUnsignedLongLongMask(found);
    Py_DECREF(found);
    return place;
}

}  // namespace fusec
