// The compiled launcher: what runtime/arguments.py and runtime/prepared.py do for a call that was
// made ready before, in C. It decides nothing; a call it does not know goes back to Python.
//
// Built once for each Python by runtime/launcher.py; it needs Python's headers and no others.

#include "region.h"
#include "setup.h"

#include <stddef.h>
#include <structmember.h>

namespace fusec {

Names names;
Torch torch;
Short brief;
Driver driver;
bool forked = false;

// -- Plan ----------------------------------------------------------------------------------------

static PyObject *plan_call(PyObject *self, PyObject *const *values, size_t flags, PyObject *words) {
    Plan *plan = (Plan *)self;
    Py_ssize_t count = PyVectorcall_NARGS(flags);
    bool given = count == plan->inputs + plan->outputs;
    if (words || (count != plan->inputs && !given) || in_mode()) Py_RETURN_NOTIMPLEMENTED;
    int64_t addresses[MOST];
    for (int k = 0; k < count; ++k) {
        addresses[k] = 0;
        if (k < plan->inputs && !plan->reads[k]) continue;
        addresses[k] = address_of(values[k]);
        if (addresses[k] == -1 && PyErr_Occurred()) return nullptr;
        if (!addresses[k]) Py_RETURN_NOTIMPLEMENTED;  // its memory is gone, which Python explains
    }
    return run(plan, values, addresses, given ? values + plan->inputs : nullptr);
}

static bool read_links(PyObject *pairs, Link *links, int *count) {
    Py_ssize_t size = PyTuple_Size(pairs);
    if (size < 0 || size > MOST) return false;
    for (Py_ssize_t k = 0; k < size; ++k)
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(pairs, k), "ii", &links[k].place, &links[k].from))
            return false;
    *count = (int)size;
    return true;
}

// One step: (codes, values, pointers, scalars, function or handle, context, grid, block, cluster,
// shared, waits, device, fail); a context of 0 is that of a C++ kernel.
static bool read_step(PyObject *data, Step *step) {
    const char *codes;
    Py_ssize_t count;
    PyObject *values, *pointers, *scalars, *index, *fail;
    unsigned long long function, context;
    unsigned *grid = step->config.grid, *block = step->config.block, cluster[3], waits;
    if (!PyArg_ParseTuple(data, "s#O!O!O!KK(III)(III)(III)IIOO", &codes, &count, &PyTuple_Type, &values,
                          &PyTuple_Type, &pointers, &PyTuple_Type, &scalars, &function, &context,
                          &grid[0], &grid[1], &grid[2], &block[0], &block[1], &block[2], &cluster[0],
                          &cluster[1], &cluster[2], &step->config.shared, &waits, &index, &fail))
        return false;
    if (count > MOST || PyTuple_GET_SIZE(values) != count) return false;
    step->count = (int)count;
    memcpy(step->codes, codes, count);
    for (Py_ssize_t k = 0; k < count; ++k) {
        step->slots[k] = PyLong_AsUnsignedLongLongMask(PyTuple_GET_ITEM(values, k));
        if (PyErr_Occurred()) return false;
    }
    if (!read_links(pointers, step->pointers, &step->pointer_count)) return false;
    if (!read_links(scalars, step->scalars, &step->scalar_count)) return false;
    if (!context) {
        step->function = (void (*)(const void *))(uintptr_t)function;
        return true;
    }
    step->handle = (void *)(uintptr_t)function;
    step->context = (void *)(uintptr_t)context;
    unsigned &found = step->config.attribute_count;
    if (cluster[0] * cluster[1] * cluster[2] != 1) {
        step->attributes[found].id = 4;  // CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        memcpy(step->attributes[found++].value.cluster, cluster, sizeof cluster);
    }
    if (waits) {
        step->attributes[found].id = 6;  // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        step->attributes[found++].value.flag = 1;
    }
    step->device = (int32_t)PyLong_AsLong(index);
    if (PyErr_Occurred()) return false;
    step->stream_index = Py_NewRef(index);
    step->fail = Py_NewRef(fail);
    return true;
}

static void plan_free(PyObject *self) {
    Plan *plan = (Plan *)self;
    PyTypeObject *type = Py_TYPE(self);
    for (int k = 0; plan->steps && k < plan->step_count; ++k) {
        Py_XDECREF(plan->steps[k].stream_index);
        Py_XDECREF(plan->steps[k].fail);
    }
    PyMem_Free(plan->steps);
    Py_XDECREF(plan->makers);
    Py_XDECREF(plan->keep);
    type->tp_free(self);
    Py_DECREF(type);
}

// Whether every link stays inside its arrays; notes which inputs are read at their addresses.
static bool in_bounds(Plan *plan) {
    int buffers = plan->inputs + plan->outputs + plan->temporaries;
    if (plan->inputs > MOST / 2 || buffers > MOST || plan->outputs < 1) return false;
    for (int s = 0; s < plan->step_count; ++s) {
        const Step &step = plan->steps[s];
        for (int k = 0; k < step.pointer_count; ++k) {
            Link link = step.pointers[k];
            if (link.place < 0 || link.place >= step.count || link.from < 0 || link.from >= buffers)
                return false;
            if (link.from < plan->inputs) plan->reads[link.from] = true;
        }
        for (int k = 0; k < step.scalar_count; ++k) {
            Link link = step.scalars[k];
            if (link.place < 0 || link.place >= step.count || link.from < 0 ||
                link.from >= plan->inputs)
                return false;
        }
    }
    return true;
}

// Plan(inputs, outputs, makers, steps, keep)
static PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *) {
    int inputs, outputs;
    PyObject *makers, *steps, *keep;
    if (!PyArg_ParseTuple(args, "iiO!O!O", &inputs, &outputs, &PyTuple_Type, &makers, &PyTuple_Type,
                          &steps, &keep))
        return nullptr;
    Plan *plan = (Plan *)type->tp_alloc(type, 0);
    if (!plan) return nullptr;
    plan->call = plan_call;
    plan->inputs = inputs;
    plan->outputs = outputs;
    plan->temporaries = (int)PyTuple_GET_SIZE(makers) - outputs;
    plan->makers = Py_NewRef(makers);
    plan->keep = Py_NewRef(keep);
    plan->step_count = (int)PyTuple_GET_SIZE(steps);
    plan->steps = (Step *)PyMem_Calloc(plan->step_count + 1, sizeof(Step));
    bool good = plan->steps && inputs >= 0 && plan->temporaries >= 0;
    for (int k = 0; good && k < plan->step_count; ++k)
        good = read_step(PyTuple_GET_ITEM(steps, k), &plan->steps[k]);
    if (good && in_bounds(plan)) return (PyObject *)plan;
    Py_DECREF(plan);
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a plan that the launcher cannot take");
    return nullptr;
}

// -- Table ---------------------------------------------------------------------------------------

PyTypeObject *plan_type;

// table(arguments[, out]): the result, or NotImplemented for a call that Python has to look at.
static PyObject *table_call(PyObject *self, PyObject *const *args, size_t flags, PyObject *words) {
    Py_ssize_t given_args = PyVectorcall_NARGS(flags);
    if (words || given_args < 1 || given_args > 2 || !PyTuple_CheckExact(args[0]) || in_mode())
        Py_RETURN_NOTIMPLEMENTED;
    PyObject *const *values = &PyTuple_GET_ITEM(args[0], 0);
    Py_ssize_t inputs = PyTuple_GET_SIZE(args[0]);
    PyObject *out = given_args == 2 ? args[1] : nullptr;
    Key key;
    Given given;
    int64_t addresses[MOST];
    Answer answer = key_of(key, values, inputs, addresses);
    if (answer == YES && out) answer = add_given(key, &out, &given, addresses + inputs);
    if (answer == ERROR) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) return nullptr;
        PyErr_Clear();  // Python meets it again, and explains it
    }
    if (answer != YES) Py_RETURN_NOTIMPLEMENTED;
    Entry *entry = find((Table *)self, key, key.hash());
    Plan *plan = (Plan *)entry->plan;
    if (!plan) Py_RETURN_NOTIMPLEMENTED;
    if (out && share_memory(entry, addresses, (int)inputs, (int)given.count))
        Py_RETURN_NOTIMPLEMENTED;
    Py_INCREF(plan);  // the table may be cleared while the plan runs
    PyObject *result = run(plan, values, addresses, given.tensors);
    Py_DECREF(plan);
    return result;
}

// remember(arguments, plan[, out, bytes]): whether calls like this one will be known. `bytes` says
// how far each argument and output reaches in memory.
static PyObject *table_remember(PyObject *self, PyObject *args) {
    Table *table = (Table *)self;
    PyObject *arguments, *plan, *out = nullptr, *bytes = nullptr;
    if (!PyArg_ParseTuple(args, "O!O!|OO!", &PyTuple_Type, &arguments, plan_type, &plan, &out,
                          &PyTuple_Type, &bytes))
        return nullptr;
    int inputs = ((Plan *)plan)->inputs, outputs = ((Plan *)plan)->outputs;
    if (PyTuple_GET_SIZE(arguments) != inputs) Py_RETURN_FALSE;
    Key key;
    Given given;
    Entry made{};
    int64_t addresses[MOST];
    Answer answer = key_of(key, &PyTuple_GET_ITEM(arguments, 0), inputs, addresses);
    if (answer == YES && out) answer = add_given(key, &out, &given, addresses + inputs);
    if (answer == ERROR) return nullptr;
    if (answer == NO || (out && (given.count != outputs || !bytes ||
                                 PyTuple_GET_SIZE(bytes) != inputs + outputs)))
        Py_RETURN_FALSE;
    made.part = (int64_t *)PyMem_Malloc(sizeof(int64_t) * (key.length + MOST));
    if (!made.part) return PyErr_NoMemory();
    memcpy(made.part, key.part, sizeof(int64_t) * key.length);
    for (int k = 0; out && k < inputs + outputs; ++k)
        made.part[key.length + k] = PyLong_AsLongLong(PyTuple_GET_ITEM(bytes, k));
    if (PyErr_Occurred()) {
        PyMem_Free(made.part);
        return nullptr;
    }
    if (table->count >= LIMIT && !clear(table)) {
        PyMem_Free(made.part);
        return PyErr_NoMemory();
    }
    made.hash = key.hash();
    made.length = key.length;
    made.plan = Py_NewRef(plan);
    Entry *entry = find(table, key, made.hash);
    Entry before = *entry;
    *entry = made;
    table->count += !before.plan;
    PyMem_Free(before.part);
    Py_XDECREF(before.plan);
    Py_RETURN_TRUE;
}

// plan(arguments[, out]): the plan of calls like this one; None where Python makes them.
static PyObject *table_plan(PyObject *self, PyObject *args) {
    PyObject *arguments, *out = nullptr;
    if (!PyArg_ParseTuple(args, "O!|O", &PyTuple_Type, &arguments, &out)) return nullptr;
    Key key;
    Given given;
    int64_t addresses[MOST];
    Py_ssize_t inputs = PyTuple_GET_SIZE(arguments);
    Answer answer = key_of(key, &PyTuple_GET_ITEM(arguments, 0), inputs, addresses);
    if (answer == YES && out) answer = add_given(key, &out, &given, addresses + inputs);
    if (answer == ERROR) return nullptr;
    PyObject *plan = answer == YES ? find((Table *)self, key, key.hash())->plan : nullptr;
    return Py_NewRef(plan ? plan : Py_None);
}

static PyObject *table_new(PyTypeObject *type, PyObject *, PyObject *) {
    Table *table = (Table *)type->tp_alloc(type, 0);
    if (!table) return nullptr;
    table->call = table_call;
    if (clear(table)) return (PyObject *)table;
    Py_DECREF(table);
    return PyErr_NoMemory();
}

static void table_free(PyObject *self) {
    Table *table = (Table *)self;
    PyTypeObject *type = Py_TYPE(self);
    for (int k = 0; table->entries && k < ROOM; ++k) {
        PyMem_Free(table->entries[k].part);
        Py_XDECREF(table->entries[k].plan);
    }
    PyMem_Free(table->entries);
    type->tp_free(self);
    Py_DECREF(type);
}

// -- the module ----------------------------------------------------------------------------------

static void after_fork() { forked = true; }

static PyObject *one_thread(PyObject *, PyObject *) {
    after_fork();
    Py_RETURN_NONE;
}

static PyMethodDef table_methods[] = {{"remember", table_remember, METH_VARARGS, nullptr},
                                      {"plan", table_plan, METH_VARARGS, nullptr},
                                      {}};
static PyMethodDef functions[] = {{"setup", setup, METH_VARARGS, nullptr},
                                  {"setup_cuda", setup_cuda, METH_VARARGS, nullptr},
                                  {"setup_tensors", setup_tensors, METH_VARARGS, nullptr},
                                  {"one_thread", one_thread, METH_NOARGS, nullptr},
                                  {}};
static PyMemberDef plan_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Plan, call), READONLY, nullptr}, {}};
static PyMemberDef table_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Table, call), READONLY, nullptr}, {}};
static PyMemberDef region_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Region, call), READONLY, nullptr}, {}};
static PyType_Slot plan_slots[] = {{Py_tp_new, (void *)plan_new},
                                   {Py_tp_dealloc, (void *)plan_free},
                                   {Py_tp_call, (void *)PyVectorcall_Call},
                                   {Py_tp_members, plan_members},
                                   {}};
static PyType_Slot table_slots[] = {{Py_tp_new, (void *)table_new},
                                    {Py_tp_dealloc, (void *)table_free},
                                    {Py_tp_call, (void *)PyVectorcall_Call},
                                    {Py_tp_methods, table_methods},
                                    {Py_tp_members, table_members},
                                    {}};
static PyType_Slot region_slots[] = {{Py_tp_new, (void *)region_new},
                                     {Py_tp_dealloc, (void *)region_free},
                                     {Py_tp_call, (void *)PyVectorcall_Call},
                                     {Py_tp_members, region_members},
                                     {}};
static const unsigned type_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
static PyType_Spec plan_spec = {"fusec_launcher.Plan", sizeof(Plan), 0, type_flags, plan_slots};
static PyType_Spec table_spec = {"fusec_launcher.Table", sizeof(Table), 0, type_flags, table_slots};
static PyType_Spec region_spec = {"fusec_launcher.Region", sizeof(Region), 0, type_flags, region_slots};
static PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, "fusec_launcher", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

static bool intern_names() {
    struct {
        PyObject **name;
        const char *text;
    } all[] = {{&names.data_ptr, "data_ptr"}, {&names.shape, "shape"},
               {&names.stride, "stride"},     {&names.dtype, "dtype"},
               {&names.layout, "layout"},     {&names.is_neg, "is_neg"},
               {&names.requires_grad, "requires_grad"}, {&names.is_cuda, "is_cuda"},
               {&names.is_cpu, "is_cpu"},     {&names.get_device, "get_device"}};
    for (auto &item : all)
        if (!(*item.name = PyUnicode_InternFromString(item.text))) return false;
    return true;
}

}  // namespace fusec

PyMODINIT_FUNC PyInit_fusec_launcher() {
    using namespace fusec;
    PyObject *module = PyModule_Create(&module_definition);
    if (!module || !intern_names()) return nullptr;
    plan_type = (PyTypeObject *)PyType_FromSpec(&plan_spec);
    PyObject *table = PyType_FromSpec(&table_spec);
    PyObject *region = PyType_FromSpec(&region_spec);
    if (!plan_type || !table || PyModule_AddObject(module, "Table", table) < 0) return nullptr;
    if (!region || PyModule_AddObject(module, "Region", region) < 0) return nullptr;
    Py_INCREF(plan_type);
    if (PyModule_AddObject(module, "Plan", (PyObject *)plan_type) < 0) return nullptr;
    pthread_atfork(nullptr, nullptr, after_fork);
    return module;
}
