"""Installing the platform; every test that installs does it in a process of its own."""

import os
import subprocess
import sys

import pytest

import swift_diloco.cpu as cpu
from swift_diloco.cpu import CpuPlatformError


def run_python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_real_transformer_engine_with_cuda_is_refused() -> None:
    with pytest.raises(CpuPlatformError, match="real Transformer Engine; leave out --diloco_platform cpu"):
        cpu._refuse_real_transformer_engine(has_transformer_engine=True, has_cuda=True)
    cpu._refuse_real_transformer_engine(has_transformer_engine=True, has_cuda=False)
    cpu._refuse_real_transformer_engine(has_transformer_engine=False, has_cuda=True)


def test_a_late_call_is_refused_and_names_what_came_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcore_bridge", sys)
    with pytest.raises(CpuPlatformError, match="before mcore_bridge is imported"):
        cpu.install()
    assert not cpu.is_installed()


@pytest.mark.net
def test_importing_the_package_imports_no_torch_and_changes_nothing() -> None:
    code = (
        "import sys, os; before = dict(os.environ); import swift_diloco.cpu, swift_diloco.cpu.defaults;"
        "print('torch' in sys.modules, os.environ == before, swift_diloco.cpu.is_installed())"
    )
    assert run_python(code) == "False True False"


@pytest.mark.net
@pytest.mark.timeout(120)
def test_installing_twice_is_installing_once() -> None:
    code = (
        "import sys; from swift_diloco.cpu import install, is_installed; install(); finders = list(sys.meta_path);"
        "install(); import os, torch, transformer_engine;"
        "print(is_installed(), finders == sys.meta_path, torch.zeros(1, device='cuda').device, torch.get_num_threads(),"
        "os.environ['YETO_DILOCO_PLATFORM'], transformer_engine.__version__, 'megatron' in sys.modules)"
    )
    assert run_python(code, OMP_NUM_THREADS="1") == "True True cpu 1 cpu 2.6.0 False"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_trainer_can_be_imported_without_triton() -> None:
    code = (
        "from swift_diloco.cpu import stand_ins, install; stand_ins.is_installed = lambda package: False; install();"
        "from swift.megatron import megatron_sft_main; import triton, mcore_bridge;"
        "print('TRITON', triton.__version__, type(triton.language.load).__name__)"
    )
    assert "TRITON 3.0.0 Placeholder" in run_python(code).splitlines()[-1]
