"""The package: its command, its stubs, its examples, its documentation."""

import ast
import importlib.metadata
import inspect
import os
import subprocess
import sys
import tarfile
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


def test_a_source_distribution_has_all_that_the_build_reads(tmp_path):
    pytest.importorskip("maturin", reason="maturin, which builds the package, is not installed")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    make = "import backend, sys; print(backend.build_sdist(sys.argv[1]))"
    done = run(sys.executable, "-c", make, str(tmp_path), cwd=HERE, env=os.environ | {"PATH": path, "PYTHONPATH": str(HERE / "build")})
    assert done.returncode == 0, done.stderr
    name = done.stdout.split()[-1]
    with tarfile.open(tmp_path / name) as archive:
        archive.extractall(tmp_path, filter="data")
    root = tmp_path / name.removesuffix(".tar.gz")
    told = (root / "PKG-INFO").read_text()
    assert f"Version: {gdsync.__version__}" in told and "License-Expression: MIT OR Apache-2.0" in told
    assert (root / "bindings/python/LICENSE-APACHE").exists() and "License-File: LICENSE-MIT" in told
    # What cargo read of the repository when it built the module and the programs here.
    repository, read = HERE.parent.parent, set()
    for listed in repository.glob("target/*/*.d"):
        if listed.stem in {"lib_gdsync", "gdsync", "gdsync-lab", "gdsync-soft", "gdsync-top"}:
            read |= set(listed.read_text().split(": ", 1)[-1].split())
    inputs = [Path(one).relative_to(repository) for one in read if one.startswith(f"{repository}/")]
    inputs = [one for one in inputs if one.parts[0] != "target" and (repository / one).exists()]
    assert not [one for one in inputs if not (root / one).exists()]
    # The workspace is whole, and its lock file current: a build resolves nothing.
    done = run("cargo", "metadata", "--format-version=1", "--no-deps", "--locked", "--offline", cwd=root)
    assert done.returncode == 0, done.stderr
    # The build backend is found where the archive's own project names it.
    make = "import backend; print(backend.WORKSPACE)"
    done = run(sys.executable, "-c", make, env=os.environ | {"PYTHONPATH": str(root / "bindings/python/build")})
    assert 'backend-path = ["bindings/python/build"]' in (root / "pyproject.toml").read_text()
    assert done.stdout.strip() == str(root), done.stderr


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


def test_the_programs_of_the_page_run():
    page = (HERE.parent.parent / "docs/python/README.md").read_text()
    blocks = [block for block in page.split("```python\n")[1:] if block.startswith("import gdsync, numpy\n")]
    assert len(blocks) == 1
    done = run(sys.executable, "-c", blocks[0].split("```")[0])
    written = "[ 0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15]"
    expected = f"<gdsync.Completion of write 7: 0 bytes> 7 None {written}\n"
    assert done.returncode == 0 and done.stdout.endswith(expected), done.stdout + done.stderr


def test_tracebacks_name_exceptions_as_programs_do():
    done = run(sys.executable, "-c", "import gdsync; gdsync.explain('nonsense left')")
    assert done.stderr.splitlines()[-1].startswith("gdsync.InvalidArgument: "), done.stderr
    assert repr(gdsync.Team) == "<class 'gdsync.Team'>"


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
    return [one.arg for one in names if one.arg not in ("self", "cls")]


def public(stub):
    """Yields the public members of the stub, each with its docstring there."""
    yield "", ast.get_docstring(stub)
    for node in stub.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, ast.get_docstring(node)
        elif isinstance(node, ast.ClassDef):
            methods = {one.name: ast.get_docstring(one) for one in node.body if isinstance(one, ast.FunctionDef)}
            # Python shows one text for a class and its constructor.
            yield node.name, "\n\n".join(filter(None, [ast.get_docstring(node), methods.get("__init__")]))
            yield from ((f"{node.name}.{name}", text) for name, text in methods.items() if not name.startswith("_"))


def test_every_public_member_has_the_docstring_of_the_stub():
    members = dict(public(ast.parse(STUB.read_text())))
    assert len(members) > 111
    for name, text in members.items():
        found = gdsync
        for part in filter(None, name.split(".")):
            found = getattr(found, part)
        assert text and inspect.cleandoc(found.__doc__) == text.strip(), name


def test_the_version_and_the_licences_are_those_of_the_package():
    assert gdsync.__version__ == importlib.metadata.version("gdsync")
    names = {file.name for file in importlib.metadata.files("gdsync")}
    assert {"LICENSE-APACHE", "LICENSE-MIT"} <= names



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
        shown = {one for kind in real.__mro__[:-1] for one in vars(kind)}
        hidden = {one for one in shown if one.startswith("_") and not one.endswith("__")} | {"__annotations__", "__dict__", "__weakref__"}
        own = shown - shown_by_object - hidden - {"__module__", "__doc__", "__new__"}
        own |= {"__init__"} if "__new__" in shown else set()
        assert own == set(expected), name
        for method, node in expected.items():
            if method == "__init__":
                assert list(inspect.signature(real).parameters) == parameters(node), name
            elif not method.startswith("__") and callable(getattr(real, method)):
                found = [one for one in inspect.signature(getattr(real, method)).parameters if one not in ("self", "cls")]
                assert found == parameters(node), f"{name}.{method}"


def test_every_object_says_what_it_is(pd):
    region = pd.allocate(8)
    for one in [gdsync.Device(), pd, region, region[:4], region.remote, region.word32(0), region.word64(0), gdsync.Stream()]:
        assert repr(one).startswith("<gdsync."), repr(one)
    for one in [gdsync.CompletionQueue(pd), gdsync.QueuePair(pd), gdsync.WorkRequest.nop(), gdsync.Stream().batch()]:
        assert repr(one).startswith("<gdsync."), repr(one)
