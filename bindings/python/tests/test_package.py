"""The package: its command, its stubs, its examples, its documentation."""

import ast
import inspect
import os
import subprocess
import sys
from pathlib import Path

import gdsync
import pytest

HERE = Path(__file__).resolve().parent.parent
STUB = Path(gdsync.__file__).with_name("__init__.pyi")


def run(*words, **options):
    return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300, **options)


def test_the_command_comes_along():
    for command in [[sys.executable, "-m", "gdsync"], [str(Path(sys.executable).with_name("gdsync"))]]:
        assert "pingpong" in run(*command, "--help").stdout
        done = run(*command, "pingpong", "--iters", "20")
        assert done.returncode == 0 and "every byte verified" in done.stdout, done.stderr
    done = run(sys.executable, "-m", "gdsync", "soft", "--", sys.executable, "-c", "import os; print(os.environ['LD_PRELOAD'])")
    assert done.returncode == 0 and "softhca" in done.stdout, done.stderr
    assert run(sys.executable, "-m", "gdsync", "soft", "--", sys.executable, "-c", "raise SystemExit(3)").returncode == 3


def test_doctor_and_explain_return_data():
    assert gdsync.doctor()
    explained = gdsync.explain("send left x4\nwait left.sent x4", collect_from=2)
    assert len(explained["descriptors"]) == 8
    with pytest.raises(gdsync.InvalidArgument, match="nonsense"):
        gdsync.explain("nonsense left")


@pytest.mark.parametrize("example", ["pipeline", "kv_cache", "moe", "stencil"])
def test_examples(example):
    environment = {name: value for name, value in os.environ.items() if name != "RANK"}
    done = run(sys.executable, f"{example}.py", cwd=HERE / "examples", env=environment)
    assert done.returncode == 0 and "right" in done.stdout, done.stdout + done.stderr


def members(tree):
    """Returns the stub's classes and functions with their arguments."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.ClassDef):
            found[node.name] = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
    return found


def parameters(node):
    names = node.args.posonlyargs + node.args.args + ([node.args.vararg] if node.args.vararg else []) + node.args.kwonlyargs
    return [one.arg for one in names if one.arg != "self"]


def test_the_stubs_are_what_the_module_is():
    stub = members(ast.parse(STUB.read_text()))
    assert set(stub) == set(gdsync.__all__)
    shown_by_object = set(dir(object)) - {"__init__"}
    for name, expected in stub.items():
        real = getattr(gdsync, name)
        if not isinstance(expected, dict):
            assert list(inspect.signature(real).parameters) == parameters(expected), name
            continue
        if issubclass(real, Exception):
            continue
        own = {one for one in vars(real) if one not in shown_by_object and one not in ("__module__", "__doc__", "__new__")}
        own |= {"__init__"} if "__new__" in vars(real) else set()
        assert own == set(expected), name
        for method, node in expected.items():
            if method == "__init__":
                assert list(inspect.signature(real).parameters) == parameters(node), name
            elif not method.startswith("__") and callable(getattr(real, method)):
                found = [one for one in inspect.signature(getattr(real, method)).parameters if one != "self"]
                assert found == parameters(node), f"{name}.{method}"


def test_every_object_says_what_it_is(pd):
    region = pd.allocate(8)
    for one in [gdsync.Device(), pd, region, region[:4], region.remote, region.word32(0), region.word64(0), gdsync.Stream()]:
        assert repr(one).startswith("<gdsync."), repr(one)
    for one in [gdsync.CompletionQueue(pd), gdsync.QueuePair(pd), gdsync.WorkRequest.nop(), gdsync.Stream().batch()]:
        assert repr(one).startswith("<gdsync."), repr(one)
