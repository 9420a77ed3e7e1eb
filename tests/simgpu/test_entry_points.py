"""The driver's interface: names, versions, devices, errors, and unsupported calls."""

import re
import subprocess
from pathlib import Path

import pytest

from baton import native
from tests.gpu import machines
from tests.gpu.machines import Machine


def test_devices_describe_themselves(machine: Machine) -> None:
    card = machine.card()
    machine.run(
        """
        check(cuda.cuInit(0))
        assert check(cuda.cuDeviceGetCount()) == 2
        assert check(cuda.cuDeviceGetName(100, 0)).rstrip(b" \\0") == sys.argv[1].encode()
        assert check(cuda.cuDeviceTotalMem(0)) == GIB
        assert check(cuda.cuDriverGetVersion()) == 13000
        bus = check(cuda.cuDeviceGetPCIBusId(20, 1)).split(b"\\0")[0]
        assert int(check(cuda.cuDeviceGetByPCIBusId(bus))) == 1
        A = cuda.CUdevice_attribute
        assert check(cuda.cuDeviceGetAttribute(A.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0)) == 6
        assert check(cuda.cuDeviceGetAttribute(A.CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 0)) == 1
        assert result_of(cuda.cuDeviceGet(2)) == "INVALID_DEVICE"
        for result in cuda.CUresult:
            name, text = check(cuda.cuGetErrorName(result)), check(cuda.cuGetErrorString(result))
            assert name.decode() == result.name and text
        """,
        card.name,
    )


def test_unsupported_calls_say_so_and_are_listed(machine: Machine) -> None:
    machine.run("""
        open_card()
        assert result_of(cuda.cuTexRefCreate()) == "NOT_SUPPORTED"
        assert result_of(cuda.cuTexRefCreate()) == "NOT_SUPPORTED"
        event = check(cuda.cuEventCreate(2))
        assert result_of(cuda.cuIpcGetEventHandle(event)) == "NOT_SUPPORTED"
    """)
    assert machine.status().unsupported == {"cuTexRefCreate": 2, "cuIpcGetEventHandle": 1}


def test_entry_points_are_found_by_version_and_stream_flag(machine: Machine) -> None:
    machine.run("""
        library = ctypes.CDLL("libcuda.so.1")
        def find(name, version, flags=0):
            pointer, status = ctypes.c_void_p(), ctypes.c_int(-1)
            answer = library.cuGetProcAddress_v2(
                name.encode(), ctypes.byref(pointer), version, ctypes.c_uint64(flags), ctypes.byref(status)
            )
            return answer, pointer.value, status.value
        def symbol(name):
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        assert find("cuCtxCreate", 3020) == (0, symbol("cuCtxCreate_v2"), 0)
        assert find("cuCtxCreate", 12000) == (0, symbol("cuCtxCreate_v3"), 0)
        assert find("cuCtxCreate", 13000) == (0, symbol("cuCtxCreate_v4"), 0)
        assert find("cuGetProcAddress", 11040) == (0, symbol("cuGetProcAddress"), 0)
        assert find("cuGetProcAddress", 12000) == (0, symbol("cuGetProcAddress_v2"), 0)
        assert find("cuMemcpyHtoD", 12000) == (0, symbol("cuMemcpyHtoD_v2"), 0)
        assert find("cuMemcpyHtoD", 12000, 2) == (0, symbol("cuMemcpyHtoD_v2_ptds"), 0)
        assert find("cuLaunchKernel", 12000, 2) == (0, symbol("cuLaunchKernel_ptsz"), 0)
        assert find("cuMemAllocAsync", 11000) == (500, None, 2)
        assert find("cuNoSuchThing", 13000) == (500, None, 1)
        assert find("cuNoSuchThing", 13000, 64)[0] == 1
    """)


@pytest.mark.parametrize(("default_stream", "flags"), [("0", 0), ("1", 2)])
def test_every_name_that_the_bindings_look_up_is_known_unless_it_is_newer(
    machine: Machine, tmp_path: Path, default_stream: str, flags: int
) -> None:
    recorder, notes = tmp_path / "libcuda.so.1", tmp_path / "notes"
    source = Path(__file__).parent / "recorder.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", recorder, source, "-ldl"], check=True)
    seen = machine.run(
        "check(cuda.cuInit(0)); say(check(cuda.cuDriverGetVersion()))",
        LD_LIBRARY_PATH=str(tmp_path),
        DRIVER=str(native.library("simgpu/libcuda.so.1")),
        NOTES=str(notes),
        CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM=default_stream,
    )
    asked = [line.split() for line in notes.read_text().splitlines()]
    assert len(asked) > 500
    assert {int(asked_flags) for _, _, asked_flags, _ in asked} == {flags}
    unknown = {(name, int(version)) for name, version, _, result in asked if result != "0"}
    assert all(version > int(seen) for _, version in unknown), unknown


def test_no_entry_point_crashes_on_null_arguments(machine: Machine) -> None:
    table = (Path(__file__).parent.parent.parent / "native/simgpu/names.h").read_text()
    symbols = {name for line in re.findall(r"^[ET]\(\w+, \d+, ([^)]*)\)", table, re.M) for name in line.split(", ")}
    assert len(symbols) > 300
    machine.run(
        """
        crashed = []
        for name in sys.argv[1:]:
            child = os.fork()
            if child == 0:
                library, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
                library.cuInit(0)
                library.cuCtxCreate_v2(ctypes.byref(context), 0, 0)
                getattr(library, name)(*[ctypes.c_void_p(0)] * 11)
                os._exit(0)
            if os.waitpid(child, 0)[1] != 0:
                crashed.append(name)
        assert crashed == [], crashed
        """,
        *sorted(symbols),
    )


def test_without_a_machine_there_is_no_device(tmp_path: Path, machine: Machine) -> None:
    nowhere = Machine(tmp_path / "nowhere", machine.library_folder)
    nowhere.run("""
        assert result_of(cuda.cuInit(0)) == "NO_DEVICE"
        assert result_of(cuda.cuDeviceGetCount()) == "NOT_INITIALIZED"
        assert result_of(cuda.cuTexRefCreate()) == "NOT_SUPPORTED"
    """)


def test_a_foreign_layout_is_refused(tmp_path: Path, machine: Machine) -> None:
    other = tmp_path / "other"
    other.mkdir()
    content = bytearray((machine.directory / "machine").read_bytes())
    content[8] += 1  # the layout version
    (other / "machine").write_bytes(content)
    (other / "slots").touch()
    Machine(other, machine.library_folder).run('assert result_of(cuda.cuInit(0)) == "NOT_INITIALIZED"')


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("cards=0", "setting cards has the value '0'; expected a number from 1 to 32"),
        ("*.memory_bytes=10", "card 0: memory_bytes must be at least 1048576"),
        ("0.speed=3", "setting 0.speed has the value '3'; expected an existing key of a card"),
        ("*.time_scale=-1", "setting *.time_scale has the value '-1'; expected a non-negative number"),
        ("nonsense", "setting nonsense has the value ''; expected KEY=VALUE"),
        ("*.uuid=12", "expected 32 hexadecimal digits"),
    ],
)
def test_invalid_settings_are_rejected_in_one_sentence(tmp_path: Path, setting: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=r"expected|must be") as refused:
        machines.create(tmp_path / "machine", setting)
    assert complaint in str(refused.value)
    assert not (tmp_path / "machine").exists()


def test_a_machine_cannot_be_created_twice(tmp_path: Path, machine: Machine) -> None:
    with pytest.raises(ValueError, match="already a simulated machine"):
        machines.create(machine.directory)
