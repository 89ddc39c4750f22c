// A call made ready: the tensors to allocate and the kernels to launch, as C data.
//
// Python makes a Plan once for exact shapes (runtime/launcher.py); running it reads the addresses of
// tensors, writes them and the numbers into eight-byte slots, and calls. Nothing here is shared
// between calls but what never changes, so threads and nested calls need no locks beyond the GIL.
#pragma once

#include "tensor.h"

#include <pthread.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "a narrow value is the first bytes of its slot on little-endian machines only"
#endif

namespace fusec {

// Most slots, buffers and outputs of a call; what needs more stays in Python.
constexpr int MOST = 64;
constexpr int SPARE = 4;  // parameters that Triton adds behind the arguments: null pointers

extern bool forked;  // in a child of fork: OpenMP has no threads there

// CUlaunchConfig and CUlaunchAttribute of cuda.h.
struct LaunchAttribute {
    int id;
    char pad[4];
    union {
        char size[64];
        unsigned cluster[3];
        int flag;
        uint64_t align;
    } value;
};
struct LaunchConfig {
    unsigned grid[3], block[3], shared;
    void *stream;
    LaunchAttribute *attributes;
    unsigned attribute_count;
};

// Functions of the CUDA driver; set once by `setup_cuda`.
struct Driver {
    int (*launch_extended)(const LaunchConfig *, void *, void **, void **);
    int (*launch_plain)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        void *, void **, void **);
    int (*get_current)(void **);
    int (*set_current)(void *);
    int (*push)(void *);
    int (*pop)(void **);
    bool several_devices;
};
extern Driver driver;

// Moves a value between slots of a step and the buffers or inputs of a call.
struct Link {
    int place, from;
};

struct Step {
    int count;                // slots
    uint64_t slots[MOST];     // values of sizes and strides, zero where a link writes
    char codes[MOST];         // types of the slots, as in Python's struct module
    int pointer_count, scalar_count;
    Link pointers[MOST], scalars[MOST];
    void (*function)(const void *);  // a C++ kernel, or
    void *handle, *context;          // a GPU kernel, with
    LaunchConfig config;
    LaunchAttribute attributes[2];
    int32_t device;
    PyObject *stream_index;  // the number of the device
    PyObject *fail;          // called with the driver's code, raises
};

struct Plan {
    PyObject_HEAD
    vectorcallfunc call;
    int inputs, outputs, temporaries, step_count;
    bool reads[MOST];  // inputs that are tensors
    // For each output and temporary: a tensor like it, a callable, or a tuple of a function that
    // allocates on the current device, its arguments, and a tensor like it for any other device.
    PyObject *makers;
    PyObject *keep;    // what has to live as long as the plan
    Step *steps;
};

// Writes a Python number into a slot, converted as PyTorch converts it; false with an exception.
inline bool write_scalar(uint64_t *slot, char code, PyObject *value) {
    *slot = 0;
    if (code == 'f' || code == 'd') {
        double number = PyFloat_AsDouble(value);
        if (number == -1.0 && PyErr_Occurred()) return false;
        float narrow = (float)number;
        if (code == 'f') memcpy(slot, &narrow, sizeof narrow);
        else memcpy(slot, &number, sizeof number);
        return true;
    }
    if (code == '?') {
        int truth = PyObject_IsTrue(value);
        *slot = truth > 0;
        return truth >= 0;
    }
    PyObject *whole = PyNumber_Long(value);  // toward zero, as int() does
    if (!whole) return false;
    *slot = PyLong_AsUnsignedLongLongMask(whole);  // the low bits: narrower integers wrap
    Py_DECREF(whole);
    return !PyErr_Occurred();
}

// The current stream of a step's device; false with an exception.
inline bool stream_of(const Step &step, void **stream) {
    if (brief.current_stream && !brief.current_stream(step.device, stream)) return true;
    PyObject *found = PyObject_Vectorcall(torch.current_stream, &step.stream_index, 1, nullptr);
    if (!found) return false;
    *stream = PyLong_AsVoidPtr(found);
    Py_DECREF(found);
    return !PyErr_Occurred();
}

inline int start(const Step &step, void *stream, void **parameters) {
    const LaunchConfig &given = step.config;
    if (!given.attribute_count)
        return driver.launch_plain(step.handle, given.grid[0], given.grid[1], given.grid[2],
                                   given.block[0], given.block[1], given.block[2], given.shared,
                                   stream, parameters, nullptr);
    LaunchConfig config = given;
    LaunchAttribute attributes[2] = {step.attributes[0], step.attributes[1]};
    config.stream = stream;
    config.attributes = attributes;
    return driver.launch_extended(&config, step.handle, parameters, nullptr);
}

inline bool launch_cuda(const Step &step, uint64_t *slots) {
    void *stream = nullptr;
    if (!stream_of(step, &stream)) return false;
    void *parameters[MOST + SPARE];
    uint64_t zero = 0;
    for (int k = 0; k < step.count; ++k) parameters[k] = &slots[k];
    for (int k = 0; k < SPARE; ++k) parameters[step.count + k] = &zero;
    int code = 0;
    Py_BEGIN_ALLOW_THREADS
    void *current = step.context;
    bool foreign = false;
    if (driver.several_devices) {
        driver.get_current(&current);
        foreign = current != step.context;
    }
    if (!foreign) code = start(step, stream, parameters);
    // Not initialised, invalid context or handle: a thread with no context, or that of a library.
    if (foreign || code == 3 || code == 201 || code == 400) {
        driver.get_current(&current);
        if (!current) {
            // A new thread: the CUDA runtime would make this one current too.
            code = driver.set_current(step.context);
            if (!code) code = start(step, stream, parameters);
        } else if (current != step.context) {
            code = driver.push(step.context);
            if (!code) {
                code = start(step, stream, parameters);
                driver.pop(&current);
            }
        }
    }
    Py_END_ALLOW_THREADS
    if (!code) return true;
    PyObject *number = PyLong_FromLong(code);
    PyObject *none = number ? PyObject_CallOneArg(step.fail, number) : nullptr;
    Py_XDECREF(number);
    if (none) {
        Py_DECREF(none);
        PyErr_SetString(PyExc_RuntimeError, "the CUDA driver refused a launch");
    }
    return false;
}

inline bool run_step(const Step &step, PyObject *const *values, const int64_t *addresses) {
    uint64_t slots[MOST];
    memcpy(slots, step.slots, sizeof(uint64_t) * step.count);
    for (int k = 0; k < step.pointer_count; ++k)
        slots[step.pointers[k].place] = (uint64_t)addresses[step.pointers[k].from];
    for (int k = 0; k < step.scalar_count; ++k) {
        Link link = step.scalars[k];
        if (!write_scalar(&slots[link.place], step.codes[link.place], values[link.from]))
            return false;
    }
    if (!step.function) return launch_cuda(step, slots);
    if (forked) slots[step.count - 1] = 1;
    Py_BEGIN_ALLOW_THREADS
    step.function(slots);
    Py_END_ALLOW_THREADS
    return true;
}

// A new tensor, as one of the plan's makers says.
inline PyObject *make(const Plan *plan, PyObject *maker) {
    if (PyTuple_CheckExact(maker)) {
        void *current = nullptr, *own = plan->step_count ? plan->steps[0].context : nullptr;
        if (own && driver.several_devices) driver.get_current(&current);
        else current = own;
        if (current == own)
            return PyObject_Call(PyTuple_GET_ITEM(maker, 0), PyTuple_GET_ITEM(maker, 1), nullptr);
        maker = PyTuple_GET_ITEM(maker, 2);
    }
    if (PyCallable_Check(maker)) return PyObject_CallNoArgs(maker);
    return PyObject_Vectorcall(torch.empty_like, &maker, 1, nullptr);
}

// Runs the plan. `addresses` has those of the inputs (anything for numbers) and room for the rest,
// and with `given`, the caller's own outputs, theirs as well.
inline PyObject *run(Plan *plan, PyObject *const *values, int64_t *addresses,
                     PyObject *const *given = nullptr) {
    PyObject *made[MOST];
    int total = plan->outputs + plan->temporaries, count = 0;
    PyObject *result = nullptr;
    bool good = true;
    for (; given && count < plan->outputs; ++count) made[count] = Py_NewRef(given[count]);
    for (; good && count < total; ++count) {
        PyObject *tensor = make(plan, PyTuple_GET_ITEM(plan->makers, count));
        if (!tensor) break;
        made[count] = tensor;
        addresses[plan->inputs + count] = address_of(tensor);
        good = !(addresses[plan->inputs + count] == -1 && PyErr_Occurred());
    }
    good = good && count == total;
    for (int k = 0; good && k < plan->step_count; ++k) good = run_step(plan->steps[k], values, addresses);
    if (good && plan->outputs == 1) {
        result = Py_NewRef(made[0]);
    } else if (good) {
        result = PyTuple_New(plan->outputs);
        for (int k = 0; result && k < plan->outputs; ++k)
            PyTuple_SET_ITEM(result, k, Py_NewRef(made[k]));
    }
    for (int k = 0; k < count; ++k) Py_DECREF(made[k]);
    return result;
}

}  // namespace fusec
