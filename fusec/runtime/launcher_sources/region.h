// A region of a model as one call: the tensors of the graph in, the tensors of the graph out.
//
// What the kernels read are views of the tensors that the graph has, and what they write are parts
// or other shapes of those it gets. None of that is ever made: when the layouts of the tensors are
// those that were seen before, a view is the address of a tensor and a number of bytes.
#pragma once

#include "key.h"

namespace fusec {

constexpr int LARGEST = 16;  // axes of a tensor

struct Layout {
    int32_t dtype, device;
    int64_t dim, sizes[LARGEST], strides[LARGEST];
};

// An input of the plan: which tensor it is a view of, how far in, and the low bits of its address.
struct Place {
    int from;
    int64_t bytes;
    int low;
};

// An output of the plan: of a new tensor or, if `given`, of one that the call was given.
struct Target {
    int given, from;
    int64_t bytes;
};

struct Region {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *plan, *makers;
    int sources, places, targets, results;
    Layout *layouts;
    Place inputs[MOST];
    Target outputs[MOST];
    Link given[MOST];  // results: `place` as in Target::given, and -1 for None
};

// Reads the layout and the address of a tensor; NO for what is not plain.
inline Answer read_layout(PyObject *tensor, Layout *layout, int64_t *address) {
    if (!brief.usable || !is_plain(tensor)) return NO;
    Answer tracked = is_tracked(tensor);
    if (tracked != NO) return tracked == YES ? NO : ERROR;
    void *handle = handle_of(tensor), *place;
    int64_t *sizes, *strides;
    if (brief.dtype(handle, &layout->dtype) || brief.device_index(handle, &layout->device) ||
        brief.dim(handle, &layout->dim) || layout->dim > LARGEST || brief.sizes(handle, &sizes) ||
        brief.strides(handle, &strides) || brief.data_ptr(handle, &place) || !place)
        return NO;
    memcpy(layout->sizes, sizes, sizeof(int64_t) * layout->dim);
    memcpy(layout->strides, strides, sizeof(int64_t) * layout->dim);
    *address = (int64_t)(intptr_t)place;
    return YES;
}

inline bool same_layout(const Layout &one, const Layout &other) {
    return one.dtype == other.dtype && one.device == other.device && one.dim == other.dim &&
           !memcmp(one.sizes, other.sizes, sizeof(int64_t) * one.dim) &&
           !memcmp(one.strides, other.strides, sizeof(int64_t) * one.dim);
}

// The addresses of the plan's inputs, and in `bases` of the tensors; NO where a call is another.
inline Answer find_inputs(const Region *region, PyObject *const *values, int64_t *bases,
                          int64_t *addresses) {
    Layout layout;
    for (int k = 0; k < region->sources; ++k) {
        Answer answer = read_layout(values[k], &layout, &bases[k]);
        if (answer != YES) return answer;
        if (!same_layout(layout, region->layouts[k])) return NO;
    }
    for (int k = 0; k < region->places; ++k) {
        addresses[k] = bases[region->inputs[k].from] + region->inputs[k].bytes;
        if ((addresses[k] & 15) != region->inputs[k].low) return NO;
    }
    return YES;
}

inline PyObject *give(const Region *region, PyObject *const *values, PyObject *const *made, int k) {
    Link link = region->given[k];
    if (link.place < 0) Py_RETURN_NONE;
    return Py_NewRef(link.place ? values[link.from] : made[link.from]);
}

inline PyObject *give_all(const Region *region, PyObject *const *values, PyObject *const *made) {
    if (region->results == 1) return give(region, values, made, 0);
    PyObject *results = PyTuple_New(region->results);
    for (int k = 0; results && k < region->results; ++k)
        PyTuple_SET_ITEM(results, k, give(region, values, made, k));
    return results;
}

// region(tensors): what the graph gets, or NotImplemented for a call that Python has to look at.
static PyObject *region_call(PyObject *self, PyObject *const *values, size_t flags, PyObject *words) {
    Region *region = (Region *)self;
    if (words || PyVectorcall_NARGS(flags) != region->sources || in_mode()) Py_RETURN_NOTIMPLEMENTED;
    Plan *plan = (Plan *)region->plan;
    int64_t bases[MOST], addresses[MOST], fresh[MOST];
    Answer answer = find_inputs(region, values, bases, addresses);
    if (answer == ERROR) return nullptr;
    if (answer == NO) Py_RETURN_NOTIMPLEMENTED;
    PyObject *made[MOST], *outs[MOST], *done = nullptr, *results = nullptr;
    int count = 0, total = (int)PyTuple_GET_SIZE(region->makers);
    bool good = true;
    for (; good && count < total; ++count) {
        made[count] = make(plan, PyTuple_GET_ITEM(region->makers, count));
        if (!made[count]) break;
        fresh[count] = address_of(made[count]);
        good = !(fresh[count] == -1 && PyErr_Occurred());
    }
    if (good && count == total) {
        for (int k = 0; k < region->targets; ++k) {
            Target target = region->outputs[k];
            outs[k] = target.given ? values[target.from] : made[target.from];
            addresses[plan->inputs + k] =
                (target.given ? bases[target.from] : fresh[target.from]) + target.bytes;
        }
        done = run(plan, nullptr, addresses, outs);
    }
    if (done) results = give_all(region, values, made);
    Py_XDECREF(done);
    for (int k = 0; k < count; ++k) Py_DECREF(made[k]);
    return results;
}

static void region_free(PyObject *self) {
    Region *region = (Region *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyMem_Free(region->layouts);
    Py_XDECREF(region->plan);
    Py_XDECREF(region->makers);
    type->tp_free(self);
    Py_DECREF(type);
}

// Reads tuples of whole numbers, `width` of them each, into `found`; false with an exception.
inline bool read_rows(PyObject *rows, int width, long long (*found)[3], int *count) {
    *count = (int)PyTuple_GET_SIZE(rows);
    for (int k = 0; k < *count && *count <= MOST; ++k)
        for (int part = 0; part < width; ++part) {
            PyObject *row = PyTuple_GET_ITEM(rows, k);
            if (!PyTuple_Check(row) || PyTuple_GET_SIZE(row) != width) return false;
            found[k][part] = PyLong_AsLongLong(PyTuple_GET_ITEM(row, part));
            if (PyErr_Occurred()) return false;
        }
    return *count <= MOST;
}

inline bool within(long long number, Py_ssize_t count) { return number >= 0 && number < count; }

inline bool read_region(Region *region, PyObject *values, PyObject *inputs, PyObject *outputs,
                        PyObject *results) {
    Plan *plan = (Plan *)region->plan;
    long long rows[MOST][3];
    Py_ssize_t made = PyTuple_GET_SIZE(region->makers);
    for (int k = 0; k < plan->step_count; ++k)
        if (plan->steps[k].scalar_count) return false;  // numbers are not among the tensors
    if (region->sources > MOST / 2 || made > MOST) return false;
    int64_t address;
    for (int k = 0; k < region->sources; ++k)
        if (read_layout(PyTuple_GET_ITEM(values, k), &region->layouts[k], &address) != YES)
            return false;
    if (!read_rows(inputs, 3, rows, &region->places) || region->places != plan->inputs) return false;
    for (int k = 0; k < region->places; ++k) {
        if (!within(rows[k][0], region->sources)) return false;
        region->inputs[k] = {(int)rows[k][0], rows[k][1], (int)rows[k][2]};
    }
    if (!read_rows(outputs, 3, rows, &region->targets) || region->targets != plan->outputs)
        return false;
    for (int k = 0; k < region->targets; ++k) {
        if (!within(rows[k][1], rows[k][0] ? region->sources : made)) return false;
        region->outputs[k] = {(int)rows[k][0], (int)rows[k][1], rows[k][2]};
    }
    if (!read_rows(results, 2, rows, &region->results) || !region->results) return false;
    for (int k = 0; k < region->results; ++k) {
        bool none = rows[k][0] < 0;
        if (!none && !within(rows[k][1], rows[k][0] ? region->sources : made)) return false;
        region->given[k] = {(int)rows[k][0], (int)rows[k][1]};
    }
    return true;
}

extern PyTypeObject *plan_type;

// Region(plan, tensors, inputs, makers, outputs, results), as the structures above; the tensors of a
// call of its kind tell the layouts.
static PyObject *region_new(PyTypeObject *type, PyObject *args, PyObject *) {
    PyObject *plan, *values, *inputs, *makers, *outputs, *results;
    if (!PyArg_ParseTuple(args, "O!O!O!O!O!O!", plan_type, &plan, &PyTuple_Type, &values,
                          &PyTuple_Type, &inputs, &PyTuple_Type, &makers, &PyTuple_Type, &outputs,
                          &PyTuple_Type, &results))
        return nullptr;
    Region *region = (Region *)type->tp_alloc(type, 0);
    if (!region) return nullptr;
    region->call = region_call;
    region->plan = Py_NewRef(plan);
    region->makers = Py_NewRef(makers);
    region->sources = (int)PyTuple_GET_SIZE(values);
    region->layouts = (Layout *)PyMem_Calloc(region->sources + 1, sizeof(Layout));
    if (region->layouts && read_region(region, values, inputs, outputs, results))
        return (PyObject *)region;
    Py_DECREF(region);
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a region that the launcher cannot take");
    return nullptr;
}

}  // namespace fusec
