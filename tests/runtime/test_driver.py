"""Launching through the CUDA driver, against a stand-in for it that needs no GPU."""

import ctypes
import functools
import math
import struct
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest

from fusec.errors import InternalError, UnsupportedError
from fusec.runtime import driver, launcher, libcuda
from fusec.runtime.build_cpp import find_compiler
from fusec.runtime.build_triton import Target, compile_triton
from fusec.runtime.driver import load_function, offsets, ptx_parameter_sizes
from fusec.runtime.libcuda import CudaDriver, DriverError, LaunchAttribute, LaunchConfig
from tests.runtime.kernels import HEADER, add_program

TYPES = ("*fp32", "*fp32", "*fp32", "i64", "fp32")
CUBIN = b"\x7fELF\0tail"
CODE_OF = {1: "B", 2: "H", 4: "I", 8: "Q"}


def triton_include() -> Path:
    found = find_spec("triton")
    assert found is not None
    assert found.submodule_search_locations
    return Path(found.submodule_search_locations[0]) / "backends" / "nvidia" / "include"


@pytest.fixture(scope="module")
def fake_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = find_compiler()
    if compiler is None or not (triton_include() / "cuda.h").exists():
        pytest.skip("needs a C++ compiler and the cuda.h that comes with Triton")
    path = tmp_path_factory.mktemp("fake") / "libcuda.so"
    source = Path(__file__).parent / "fake_cuda.cpp"
    command = [*compiler.command, "-shared", "-fPIC", "-O1", f"-I{triton_include()}"]
    subprocess.run([*command, str(source), "-o", str(path)], check=True)
    return path


@pytest.fixture
def fake(fake_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ctypes.CDLL:
    private = tmp_path / "libcuda.so"  # a copy has state of its own
    private.write_bytes(fake_path.read_bytes())
    library = ctypes.CDLL(str(private))
    connected: list[CudaDriver] = []

    def connect() -> CudaDriver:
        connected[:] = connected or [CudaDriver(library)]
        return connected[0]

    monkeypatch.setattr(driver, "cuda_driver", connect)
    return library


class Arrays:
    """x, y and out of a launch, in host memory."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.x = (ctypes.c_float * count)(*range(count))
        self.y = (ctypes.c_float * count)(*([1.0] * count))
        self.out = (ctypes.c_float * count)()

    def values(self, scale: float) -> tuple[int | float, ...]:
        addresses = map(ctypes.addressof, (self.x, self.y, self.out))
        return (*addresses, self.count, scale)


def number(library: ctypes.CDLL, name: str) -> int:
    return ctypes.c_int.in_dll(library, name).value


def test_a_launch_reaches_the_kernel(fake: ctypes.CDLL) -> None:
    launch = load_function(CUBIN, "add", 1000, 0).prepare(TYPES, 128)
    arrays = Arrays(5)
    launch((7, 2, 3), 0x5EED, arrays.values(2.0))
    assert list(arrays.out) == [2.0, 3.0, 4.0, 5.0, 6.0]
    config = LaunchConfig.in_dll(fake, "fake_config")
    assert (config.grid_x, config.grid_y, config.grid_z) == (7, 2, 3)
    assert (config.block_x, config.block_y, config.block_z) == (128, 1, 1)
    assert (config.shared, config.stream, config.attribute_count) == (1000, 0x5EED, 0)
    launch((8, 1, 1), 0, arrays.values(3.0))
    assert list(arrays.out) == [3.0, 4.0, 5.0, 6.0, 7.0]
    config = LaunchConfig.in_dll(fake, "fake_config")
    assert (config.grid_x, config.grid_y, config.stream) == (8, 1, None)


def test_blocks_and_clusters_have_dimensions(fake: ctypes.CDLL) -> None:
    launch = load_function(CUBIN, "add", 0, 0).prepare(TYPES, (32, 4, 2), cluster=(16, 1, 1))
    launch((16, 1, 1), 0, Arrays(1).values(1.0))
    config = LaunchConfig.in_dll(fake, "fake_config")
    assert (config.block_x, config.block_y, config.block_z) == (32, 4, 2)
    assert config.attribute_count == 1
    attribute = LaunchAttribute.in_dll(fake, "fake_attribute")
    cluster = attribute.value.cluster
    assert (attribute.id, cluster.x, cluster.y, cluster.z) == (4, 16, 1, 1)
    assert number(fake, "fake_non_portable") == 1


@pytest.mark.parametrize("cluster", [(1, 1, 1), (2, 1, 1)])
def test_a_kernel_that_waits_may_be_launched_early(
    fake: ctypes.CDLL, cluster: tuple[int, int, int]
) -> None:
    launch = load_function(CUBIN, "add", 0, 0).prepare(TYPES, 32, cluster, waits=True)
    launch((2, 1, 1), 0, Arrays(1).values(1.0))
    count = LaunchConfig.in_dll(fake, "fake_config").attribute_count
    attribute = LaunchAttribute.in_dll(fake, "fake_last_attribute")
    assert (count, attribute.id, attribute.value.flag) == (1 + (cluster[0] > 1), 6, 1)


def test_the_device_says_how_many_clusters_it_holds(fake: ctypes.CDLL) -> None:
    function = load_function(CUBIN, "add", 1000, 0)
    assert [function.clusters_at_once(256, cluster) for cluster in (8, 4, 1)] == [15, 30, 120]
    config = LaunchConfig.in_dll(fake, "fake_config")
    assert (config.block_x, config.shared, config.grid_x) == (256, 1000, 1)
    assert (number(fake, "fake_launches"), fake.fake_current()) == (0, -1)


def test_an_empty_grid_launches_nothing(fake: ctypes.CDLL) -> None:
    launch = load_function(CUBIN, "add", 0, 0).prepare(TYPES, 128)
    launch((0, 1, 1), 0, Arrays(1).values(1.0))
    launch((0, 1, 1), 0, Arrays(1).values(1.0))
    assert number(fake, "fake_launches") == 0


@pytest.mark.parametrize("grid", [(2**31, 1, 1), (1, 65536, 1), (1, 1, 65536), (-1, 1, 1)])
def test_a_grid_that_is_too_large_is_refused(fake: ctypes.CDLL, grid: tuple) -> None:
    launch = load_function(CUBIN, "add", 0, 0).prepare(TYPES, 128)
    with pytest.raises(UnsupportedError, match="grid"):
        launch(grid, 0, Arrays(1).values(1.0))
    assert number(fake, "fake_launches") == 0


def test_the_largest_grid_is_passed_whole(fake: ctypes.CDLL) -> None:
    load_function(CUBIN, "add", 0, 0).prepare(TYPES, 128)(
        (2**31 - 1, 65535, 65535), 0, Arrays(1).values(1.0)
    )
    config = LaunchConfig.in_dll(fake, "fake_config")
    assert (config.grid_x, config.grid_y, config.grid_z) == driver.GRID_LIMITS


def test_loading_leaves_context_and_capture_mode_alone(fake: ctypes.CDLL) -> None:
    load_function(CUBIN, "add", 0, 0)
    assert (fake.fake_depth(), fake.fake_mode()) == (0, 0)
    assert number(fake, "fake_relaxed") == 1


def test_a_fresh_thread_gets_a_context(fake: ctypes.CDLL) -> None:
    launch = load_function(CUBIN, "add", 0, 0).prepare(TYPES, 128)
    assert fake.fake_current() == -1
    seen = []

    def work() -> None:
        launch((1, 1, 1), 0, Arrays(3).values(1.0))
        seen.append(fake.fake_current())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [0]


@pytest.mark.parametrize("devices", [1, 2])
def test_the_context_of_another_device_is_restored(fake: ctypes.CDLL, devices: int) -> None:
    ctypes.c_int.in_dll(fake, "fake_devices").value = devices
    launch = load_function(CUBIN, "add", 0, 0).prepare(TYPES, 128)
    fake.fake_push(1)
    arrays = Arrays(3)
    launch((1, 1, 1), 0, arrays.values(1.0))
    assert list(arrays.out) == [1.0, 2.0, 3.0]
    assert (fake.fake_depth(), fake.fake_current()) == (1, 1)


@pytest.mark.parametrize("devices", [1, 2])
def test_an_error_of_a_launch_has_a_name(fake: ctypes.CDLL, devices: int) -> None:
    ctypes.c_int.in_dll(fake, "fake_devices").value = devices
    launch = load_function(CUBIN, "add", 0, 0).prepare(TYPES, 128)
    with pytest.raises(DriverError, match=r"add failed with CUDA_ERROR_INVALID_HANDLE \(400\)"):
        launch((1, 1, 1), 0xBAD, Arrays(1).values(1.0))
    launch((1, 1, 1), 0, Arrays(1).values(1.0))


def test_an_error_of_loading_is_raised(fake: ctypes.CDLL) -> None:
    with pytest.raises(DriverError):
        load_function(b"\x7fELF\0other", "add", 0, 0)
    with pytest.raises(DriverError):
        load_function(CUBIN, "subtract", 0, 0)
    assert fake.fake_depth() == 0


def test_large_shared_memory_is_asked_for(fake: ctypes.CDLL) -> None:
    load_function(CUBIN, "add", 48 * 1024, 0)
    assert number(fake, "fake_shared") == 0
    load_function(CUBIN, "add", 100_000, 0)
    assert number(fake, "fake_shared") == 100_000
    with pytest.raises(UnsupportedError, match="needs 300000 bytes"):
        load_function(CUBIN, "add", 300_000, 0)


def test_values_that_do_not_fit(fake: ctypes.CDLL) -> None:
    launch = load_function(CUBIN, "add", 0, 0).prepare(TYPES, 128)
    arrays = Arrays(1)
    launch((1, 1, 1), 0, arrays.values(1e300))
    assert math.isinf(arrays.out[0])
    launch((1, 1, 1), 0, arrays.values(math.nan))
    assert math.isnan(arrays.out[0])
    with pytest.raises(InternalError, match="wrong arguments"):
        launch((1, 1, 1), 0, (0, 0, 0, 2**63, 1.0))
    with pytest.raises(InternalError, match="wrong arguments"):
        launch((1, 1, 1), 0, (0, 0, 0))


@pytest.mark.parametrize(
    "types", [TYPES[:-1], (*TYPES, "i32"), (*TYPES[:-1], "fp64"), ("i32", *TYPES[1:])]
)
def test_parameters_are_compared_with_the_kernel(fake: ctypes.CDLL, types: tuple) -> None:
    with pytest.raises(InternalError, match="parameters of"):
        load_function(CUBIN, "add", 0, 0).prepare(types, 128)


def test_an_unknown_type_is_refused(fake: ctypes.CDLL) -> None:
    with pytest.raises(InternalError, match="complex64"):
        load_function(CUBIN, "add", 0, 0).prepare(("complex64",), 128)


def test_threads_do_not_mix_their_values(fake: ctypes.CDLL) -> None:
    launch = load_function(CUBIN, "add", 0, 0).prepare(TYPES, 128)
    wrong = []

    def work(scale: float) -> None:
        arrays = Arrays(50)
        for _ in range(300):
            launch((1, 1, 1), 0, arrays.values(scale))
            if list(arrays.out) != [index + scale for index in range(50)]:
                wrong.append(scale)

    threads = [threading.Thread(target=work, args=(float(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_no_driver_is_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    libcuda.cuda_driver.cache_clear()
    with pytest.raises(UnsupportedError, match="no CUDA driver"):
        libcuda.cuda_driver()


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_sizes_agree_with_the_ptx(architecture: str) -> None:
    kinds = ("*bf16", "i1", "i8", "u8", "i32", "fp32", "i64", "fp64", "i1", "*fp8e5")
    names = [f"p{index}" for index in range(len(kinds))]
    used = " + ".join(f"{name}.to(tl.float32)" for name in names[1:-1])
    source = (
        f"{HEADER}@triton.jit\ndef k({', '.join(names)}):\n"
        f"    tl.store(p0, ({used}).to(tl.bfloat16))\n"
    )
    program = add_program(
        source=source,
        entry="k",
        signature=tuple(zip(names, kinds, strict=True)),
        constants=(),
        divisible_by_16=frozenset(),
    )
    ptx = compile_triton(program, Target.parse(architecture)).stages["ptx"]
    assert isinstance(ptx, str)
    sizes = ptx_parameter_sizes(ptx, "k")
    codes = [driver._code(kind) for kind in program.parameter_types()]
    assert sizes[: len(kinds)] == tuple(struct.calcsize(code) for code in codes)
    assert set(sizes[len(kinds) :]) == {8}


def test_ptx_parameters_of_every_form() -> None:
    ptx = """
    .visible .entry none()
    .visible .entry bare
    .reqntid 32
    .visible .entry many(
        .param .u64 .ptr .global .align 16 many_param_0,
        .param .align 64 .b8 many_param_1[128],
        .param .f32 many_param_2
    )
    """
    assert ptx_parameter_sizes(ptx, "none") == ()
    assert ptx_parameter_sizes(ptx, "bare") == ()
    assert ptx_parameter_sizes(ptx, "many") == (8, 128, 4)
    with pytest.raises(InternalError, match="no kernel"):
        ptx_parameter_sizes(ptx, "man")


def test_offsets_are_those_of_c() -> None:
    assert offsets(["?", "d", "B", "H", "f", "Q"]) == [0, 8, 16, 18, 20, 24]


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys, fusec.runtime.driver, fusec.runtime.build_triton, fusec.runtime.build_cpp\n"
        "print(sorted({'torch', 'triton', 'numpy'} & set(sys.modules)))"
    )
    finished = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert finished.stdout.strip() == b"[]"


# -- the compiled launcher ------------------------------------------------------------------------


class Memory:
    """An array with an address, as a tensor has one."""

    def __init__(self, array: ctypes.Array) -> None:
        self.array = array

    def data_ptr(self) -> int:
        return ctypes.addressof(self.array)


@pytest.fixture
def plan_of_add(fake: ctypes.CDLL):
    """`plan(x, y, scale)` through the extension module: out = x + y * scale over five elements."""
    if not Path(launcher._headers(), "Python.h").exists():
        pytest.skip("needs Python's headers")
    assert launcher.wait(120.0), launcher.reason()
    module = launcher._state.module
    stream = [0x5EED]

    def own() -> Memory:
        return Memory((ctypes.c_float * 5)())

    def make(
        devices: int = 1,
        cluster: tuple[int, int, int] = (1, 1, 1),
        maker: object = own,
        waits: int = 0,
    ):
        ctypes.c_int.in_dll(fake, "fake_devices").value = devices
        function = load_function(CUBIN, "add", 1000, 0)
        cuda = driver.cuda_driver()

        def fail(code: int) -> None:
            raise cuda.error(code, "the launch of add")

        module.setup_cuda(lambda index: stream[0] + index, *cuda.addresses(), devices > 1)
        step = (
            driver.codes(TYPES).encode(), (0, 0, 0, 5, 0), ((0, 0), (1, 1), (2, 3)), ((4, 2),),
            function.address, function.context_address, (7, 2, 3), (128, 1, 1), cluster, 1000,
            waits, 0, fail,
        )  # fmt: skip
        return module.Plan(3, 1, (maker,), (step,), function)

    make.stream = stream  # type: ignore[attr-defined]
    yield make
    launcher._state.cuda_ready = False  # the next plan of a GPU sets it up for the real driver


def memories() -> tuple[Memory, Memory]:
    arrays = Arrays(5)
    return Memory(arrays.x), Memory(arrays.y)


def test_the_launcher_reaches_the_kernel(fake: ctypes.CDLL, plan_of_add) -> None:
    plan = plan_of_add()
    assert list(plan(*memories(), 2.0).array) == [2.0, 3.0, 4.0, 5.0, 6.0]
    config = LaunchConfig.in_dll(fake, "fake_config")
    assert (config.grid_x, config.grid_y, config.grid_z) == (7, 2, 3)
    assert (config.block_x, config.block_y, config.block_z) == (128, 1, 1)
    assert (config.shared, config.stream, config.attribute_count) == (1000, 0x5EED, 0)
    plan_of_add.stream[0] = 7
    assert list(plan(*memories(), 1e39).array) == [math.inf] * 5
    assert LaunchConfig.in_dll(fake, "fake_config").stream == 7


def test_the_launcher_passes_a_cluster(fake: ctypes.CDLL, plan_of_add) -> None:
    plan = plan_of_add(cluster=(4, 2, 1))
    assert list(plan(*memories(), 1.0).array) == [1.0, 2.0, 3.0, 4.0, 5.0]
    config = LaunchConfig.in_dll(fake, "fake_config")
    assert (config.grid_x, config.block_x, config.shared) == (7, 128, 1000)
    assert (config.stream, config.attribute_count) == (0x5EED, 1)
    attribute = LaunchAttribute.in_dll(fake, "fake_attribute")
    cluster = attribute.value.cluster
    assert (attribute.id, cluster.x, cluster.y, cluster.z) == (4, 4, 2, 1)


@pytest.mark.parametrize("cluster", [(1, 1, 1), (2, 1, 1)])
def test_the_launcher_lets_kernels_overlap(
    fake: ctypes.CDLL, plan_of_add, cluster: tuple[int, int, int]
) -> None:
    plan_of_add(cluster=cluster, waits=1)(*memories(), 1.0)
    count = LaunchConfig.in_dll(fake, "fake_config").attribute_count
    attribute = LaunchAttribute.in_dll(fake, "fake_last_attribute")
    assert (count, attribute.id, attribute.value.flag) == (1 + (cluster[0] > 1), 6, 1)


def test_the_launcher_asks_torch_for_the_stream(fake: ctypes.CDLL, plan_of_add) -> None:
    ways, module = launcher._state.ways, launcher._state.module
    assert ways is not None
    answers = [0]

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
    def current(index: int, stream) -> int:
        stream[0] = 0xABC + index
        return answers[0]

    plan = plan_of_add()
    address = ctypes.cast(current, ctypes.c_void_p).value
    module.setup_tensors(*ways[:3], (*ways.functions[:-1], address))
    try:
        plan(*memories(), 1.0)
        assert LaunchConfig.in_dll(fake, "fake_config").stream == 0xABC
        answers[0] = 1  # an error: Python is asked
        plan(*memories(), 1.0)
        assert LaunchConfig.in_dll(fake, "fake_config").stream == 0x5EED
    finally:
        module.setup_tensors(*ways)


@pytest.mark.parametrize(
    ("devices", "context", "short"), [(1, 0, True), (1, 1, True), (2, 0, True), (2, 1, False)]
)
def test_the_launcher_allocates_in_the_context_of_the_plan(
    fake: ctypes.CDLL, plan_of_add, devices: int, context: int, short: bool
) -> None:
    def allocate(*arguments: object) -> Memory:
        taken.append(arguments)
        return Memory((ctypes.c_float * 5)())

    taken: list[object] = []
    otherwise = functools.partial(allocate, "otherwise")
    plan = plan_of_add(devices, maker=(allocate, ("shape", "strides"), otherwise))
    fake.fake_push(context)
    plan(*memories(), 1.0)
    assert taken == [("shape", "strides") if short else ("otherwise",)]


@pytest.mark.parametrize("devices", [1, 2])
def test_the_launcher_leaves_contexts_alone(fake: ctypes.CDLL, plan_of_add, devices: int) -> None:
    plan = plan_of_add(devices)
    fake.fake_push(1)
    assert list(plan(*memories(), 1.0).array) == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert (fake.fake_depth(), fake.fake_current()) == (1, 1)


@pytest.mark.parametrize("devices", [1, 2])
def test_the_launcher_gives_a_fresh_thread_a_context(
    fake: ctypes.CDLL, plan_of_add, devices: int
) -> None:
    plan = plan_of_add(devices)
    seen = []

    def work() -> None:
        seen.append(list(plan(*memories(), 1.0).array))
        seen.append(fake.fake_current())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [[1.0, 2.0, 3.0, 4.0, 5.0], 0]


@pytest.mark.parametrize("devices", [1, 2])
def test_the_launcher_names_errors(plan_of_add, devices: int) -> None:
    plan = plan_of_add(devices)
    plan_of_add.stream[0] = 0xBAD
    with pytest.raises(DriverError, match=r"add failed with CUDA_ERROR_INVALID_HANDLE \(400\)"):
        plan(*memories(), 1.0)
    plan_of_add.stream[0] = 0
    assert list(plan(*memories(), 1.0).array) == [1.0, 2.0, 3.0, 4.0, 5.0]
    with pytest.raises(TypeError):
        plan(*memories(), "2")
    with pytest.raises(AttributeError):
        plan(1.0, 2.0, 3.0)
