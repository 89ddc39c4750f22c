// What of a call's arguments decides its plan, as a row of integers, and a table of plans by it.
//
// The same facts as `Call.key` of runtime/arguments.py: for a tensor its type, shape, strides,
// device and the low bits of its address; for a number its class. Whatever is not plain, a tensor
// that requires grad included, is left to Python, which says what is wrong with it.
#pragma once

#include "plan.h"

namespace fusec {

constexpr int LONGEST = 256;  // numbers in a key
constexpr int ROOM = 4096;    // places of the table, a power of two
constexpr int LIMIT = 1024;   // plans in it

struct Key {
    int length = 0;
    int64_t part[LONGEST];
    bool add(int64_t value) {
        if (length == LONGEST) return false;
        part[length++] = value;
        return true;
    }
    uint64_t hash() const {
        uint64_t state = 1469598103934665603u;
        for (int k = 0; k < length; ++k) state = (state ^ (uint64_t)part[k]) * 1099511628211u;
        return state ^ (state >> 29);
    }
};

// Answers of the functions below: usable, not for this path, or a Python exception.
enum Answer { YES, NO, ERROR };

inline Answer truth_of(PyObject *found) {
    if (!found) return ERROR;
    Py_DECREF(found);
    return found == Py_True ? YES : NO;
}

inline Answer ask(PyObject *tensor, PyObject *method) {
    return truth_of(PyObject_VectorcallMethod(
        method, &tensor, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
}

inline Answer add_tuple(Key &key, PyObject *found) {
    if (!found) return ERROR;
    bool good = PyTuple_Check(found);
    Py_ssize_t count = good ? PyTuple_GET_SIZE(found) : 0;
    good = good && key.add(count);
    for (Py_ssize_t k = 0; good && k < count; ++k) {
        int64_t length = PyLong_AsLongLong(PyTuple_GET_ITEM(found, k));
        good = !(length == -1 && PyErr_Occurred()) && key.add(length);
    }
    Py_DECREF(found);
    return good ? YES : PyErr_Occurred() ? ERROR : NO;
}

// Device: -1 for the CPU, the number of a CUDA device, and nothing else.
inline Answer add_device(Key &key, PyObject *tensor) {
    Answer cuda = truth_of(PyObject_GetAttr(tensor, names.is_cuda));
    if (cuda == ERROR) return ERROR;
    if (cuda == NO) {
        Answer cpu = truth_of(PyObject_GetAttr(tensor, names.is_cpu));
        return cpu == YES && !key.add(-1) ? NO : cpu;
    }
    PyObject *found = PyObject_VectorcallMethod(
        names.get_device, &tensor, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
    if (!found) return ERROR;
    long index = PyLong_AsLong(found);
    Py_DECREF(found);
    if (index == -1 && PyErr_Occurred()) return ERROR;
    return key.add(index) ? YES : NO;
}

// A tensor that autograd would have to follow is left to Python.
inline Answer is_tracked(PyObject *tensor) {
    if (brief.usable && !brief.grad_enabled()) return NO;
    Answer tracked = truth_of(PyObject_GetAttr(tensor, names.requires_grad));
    if (tracked == YES && !brief.usable)
        tracked = truth_of(PyObject_CallNoArgs(torch.is_grad_enabled));
    return tracked;
}

// The same facts as `add_tensor` through short ways; what is not plain is left to Python.
inline Answer add_plain(Key &key, PyObject *tensor, int64_t *address) {
    if (!is_plain(tensor)) return NO;
    Answer tracked = is_tracked(tensor);
    if (tracked != NO) return tracked == YES ? NO : ERROR;
    void *handle = handle_of(tensor), *place;
    int32_t dtype, device;
    int64_t dim, *sizes, *strides;
    if (brief.dtype(handle, &dtype) || brief.device_index(handle, &device) ||
        brief.dim(handle, &dim) || brief.sizes(handle, &sizes) || brief.strides(handle, &strides) ||
        brief.data_ptr(handle, &place) || !place)  // empty, or its memory was given back
        return NO;
    *address = (int64_t)(intptr_t)place;
    bool good = key.add(dtype) && key.add(device) && key.add(dim);
    for (int64_t k = 0; good && k < dim; ++k) good = key.add(sizes[k]) && key.add(strides[k]);
    return good && key.add(*address & 15) ? YES : NO;
}

inline Answer add_tensor(Key &key, PyObject *tensor, int64_t *address) {
    if (brief.usable) return add_plain(key, tensor, address);
    Answer negated = ask(tensor, names.is_neg);
    if (negated != NO) return negated == YES ? NO : ERROR;
    Answer tracked = is_tracked(tensor);
    if (tracked != NO) return tracked == YES ? NO : ERROR;
    PyObject *layout = PyObject_GetAttr(tensor, names.layout);
    if (!layout) return ERROR;
    Py_DECREF(layout);
    if (layout != torch.strided) return NO;
    PyObject *dtype = PyObject_GetAttr(tensor, names.dtype);
    if (!dtype) return ERROR;
    Py_DECREF(dtype);  // torch keeps its types for ever, so their addresses name them
    if (!key.add((int64_t)(intptr_t)dtype)) return NO;
    Answer answer = add_device(key, tensor);
    if (answer != YES) return answer;
    answer = add_tuple(key, PyObject_GetAttr(tensor, names.shape));
    if (answer != YES) return answer;
    answer = add_tuple(key, PyObject_VectorcallMethod(
        names.stride, &tensor, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
    if (answer != YES) return answer;
    *address = address_of(tensor);
    if (*address == -1 && PyErr_Occurred()) return ERROR;
    return *address && key.add(*address & 15) ? YES : NO;
}

inline Answer add_number(Key &key, PyObject *value) {
    if (PyFloat_CheckExact(value)) return key.add(-2) ? YES : NO;
    if (PyBool_Check(value)) return key.add(-3) ? YES : NO;
    if (!PyLong_CheckExact(value)) return NO;
    int overflow = 0;
    PyLong_AsLongLongAndOverflow(value, &overflow);
    return !overflow && key.add(-4) ? YES : NO;
}

// The key of a call, and the addresses of its tensors.
inline Answer key_of(Key &key, PyObject *const *values, Py_ssize_t count, int64_t *addresses) {
    if (count > MOST / 2) return NO;
    for (Py_ssize_t k = 0; k < count; ++k) {
        addresses[k] = 0;
        Answer answer = is_tensor(values[k]) ? add_tensor(key, values[k], &addresses[k])
                                             : add_number(key, values[k]);
        if (answer != YES) return answer;
    }
    return YES;
}

// Outputs of the caller: a tensor or a tuple of tensors.
struct Given {
    PyObject *const *tensors = nullptr;
    Py_ssize_t count = 0;
};

// The key of a call with outputs of the caller, whose addresses follow those of the inputs.
inline Answer add_given(Key &key, PyObject **out, Given *given, int64_t *addresses) {
    bool several = PyTuple_CheckExact(*out);
    given->tensors = several ? &PyTuple_GET_ITEM(*out, 0) : out;
    given->count = several ? PyTuple_GET_SIZE(*out) : 1;
    if (given->count > MOST / 4 || !key.add(-5)) return NO;
    for (Py_ssize_t k = 0; k < given->count; ++k) {
        if (!is_tensor(given->tensors[k])) return NO;
        Answer answer = add_tensor(key, given->tensors[k], &addresses[k]);
        if (answer != YES) return answer;
    }
    return YES;
}

struct Entry {
    uint64_t hash;
    int length;
    int64_t *part;  // the key, and behind it, with outputs of the caller: how far each tensor reaches
    PyObject *plan;
};

struct Table {
    PyObject_HEAD
    vectorcallfunc call;
    int count;
    Entry *entries;  // open addressing; a place without a plan ends a search
};

inline Entry *find(Table *table, const Key &key, uint64_t hash) {
    for (uint64_t place = hash;; ++place) {
        Entry *entry = &table->entries[place & (ROOM - 1)];
        if (!entry->plan) return entry;
        if (entry->hash == hash && entry->length == key.length &&
            !memcmp(entry->part, key.part, sizeof(int64_t) * key.length))
            return entry;
    }
}

// Whether an output of the caller may share memory with an input, or with another output.
inline bool share_memory(const Entry *entry, const int64_t *at, int inputs, int outputs) {
    const int64_t *bytes = entry->part + entry->length;
    for (int k = inputs; k < inputs + outputs; ++k)
        for (int other = 0; other < k; ++other)
            if (at[k] < at[other] + bytes[other] && at[other] < at[k] + bytes[k]) return true;
    return false;
}

// Empties a table, a new one too; false without the memory for it, and then nothing has changed.
inline bool clear(Table *table) {
    Entry *old = table->entries, *fresh = (Entry *)PyMem_Calloc(ROOM, sizeof(Entry));
    if (!fresh) return false;
    table->entries = fresh;
    table->count = 0;
    // The plans go last: what they hold may run any code when it goes.
    for (int k = 0; old && k < ROOM; ++k) {
        PyMem_Free(old[k].part);
        Py_XDECREF(old[k].plan);
    }
    PyMem_Free(old);
    return true;
}

}  // namespace fusec
