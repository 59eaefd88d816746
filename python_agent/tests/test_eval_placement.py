"""Where a snippet runs, decided from its syntax tree: nothing of it may run while that is decided."""

from __future__ import annotations

import ast
import textwrap
from typing import Any

import pytest
from eval_support import training_names
from probe_agent._native import At
from probe_agent.eval.placement import place


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return training_names(tmp_path_factory.mktemp("user"))


# Reading: beside training.
NOW = [
    "print(train_loader.num_workers)",
    "print(f'{lr:.2e} {batch_size=} {trainer.history[-1]:{8}.3f}')",
    "model",
    "print(model, loss, optimizer)",
    "model.config.hidden_size * 4 / 1024**3",
    "getattr(train_loader, 'prefetch_factor', 2)",
    "hasattr(model, 'gradient_checkpointing') and isinstance(model, nn.Module)",
    "len(losses), sum(losses) / len(losses), max(losses), sorted(losses, reverse=True)[:3]",
    "[round(x, 2) for x in losses if x < 1]",
    "{k: type(v).__name__ for k, v in settings.items()}",
    "settings.get('lr'), list(settings), settings['lr'], 'lr' in settings",
    "for group in optimizer.param_groups: print(group['lr'])",
    "for i, l in enumerate(losses): print(i, l)",
    "for a, b in zip(losses, trainer.history): print(a - b)",
    "for layer in model.layers: print(layer)",
    "loss + 1 > 0 and not loss < 2",
    "loss.shape, loss.dtype, model.training",
    "id(model), repr(model), str(loss), dir(trainer), vars(trainer)",
    "print('x'.join(name for name in dir(model)), '%s' % loss, '{}'.format(model))",
    "import math; math.sqrt(model.config.hidden_size)",
    "math.log(loss)",
    "import json; print(json.dumps({'loss': losses}))",
    "import torch; torch.cuda.is_available(), torch.cuda.memory_allocated()",
    "torch.get_num_threads(), os.environ.get('HOME'), Path('/tmp').exists()",
    "import torch.distributed as dist\nif dist.is_initialized(): print(dist.get_rank(), dist.get_world_size())",
    "import torch.distributed; torch.distributed.get_backend()",
    "import subprocess\nr = subprocess.run(['true'], capture_output=True, text=True)\nfor i, l in enumerate(r.stdout.strip().split('\\n')): a, b = l.split(', ')",
    "import time\nt = time.perf_counter()\nwhile time.perf_counter() - t < 1: pass",
    "import time\nt = torch.randn(3)\nt.add_(1)\nprint(t.sum().item())",
    "xs = []\nfor l in losses: xs.append(l)\nxs.sort()\nprint(xs[0])",
    "d = {}\nd['m'] = model\nprint(d['m'].config)",
    "found = []\nfound.append(model)\nprint(len(found))",
    "total = 0\nfor l in losses: total += l\nprint(total)",
    "batch_size += 1\nprint(batch_size)",
    "x, y = batch\nprint(x.shape)",
    "model = 3\nprint(model.bit_length())",
    "def show(x): return f'{x}'\nprint(show(3))",
    "print(list(map(str, losses)), list(filter(None, losses)))",
    "try:\n    print(trainer.nothing)\nexcept AttributeError as error:\n    print(error)",
    "with open('/dev/null') as file: print(file.name)",
    "print(no_such_name)",
    "x = 1\ndel x",
    "while True: pass",
    "[p.device for p in trainer.history]",
    "import inspect; print(inspect.getsource(helper))",
    "print(loss if lr > 1 else losses[0])",
    "helper, Config, trainer.train_step",
    "lambda: 1",
    "# a comment only",
    "raise ValueError('planted')",
    "if (n := len(losses)) > 1: print(n)",
    "print(*losses, sep=', ')",
    "import functools\n@functools.lru_cache\ndef f(x): return x * 2\nprint(f(3))",
    "def outer():\n    seen = model.config\n    def inner(): return seen.hidden_size\n    return inner\nprint(outer)",
    "{type(v).__name__ for v in settings.values()}, {i: x for i, x in enumerate(losses)}",
    "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as text: print(lr)\nprint(text.getvalue())",
    "settings['model'].config.hidden_size, model.layers[0].qkv",
    "def f(x=lr): return x\nprint(f())",
    "x: int = batch_size\nassert x > 0, name",
    "import sys; print(sys.getsizeof(model), sys.version_info >= (3, 9))",
]

# Calls and changes of what training uses: between steps. With a word of the reason.
STEP = [
    ("trainer.train_step()", "trainer.train_step"),
    ("for _ in range(3): trainer.train_step()", "trainer.train_step"),
    ("next(iter(train_loader))", "train_loader"),
    ("batch = next(iter(train_loader))", "train_loader"),
    ("for batch in train_loader: break", "train_loader"),
    ("[b for b in train_loader]", "train_loader"),
    ("list(train_loader)", "train_loader"),
    ("next(generator)", "generator"),
    ("model(torch.ones(1))", "model"),
    ("loss.item()", "loss.item"),
    ("loss.backward()", "loss.backward"),
    ("x = torch.ones(2, requires_grad=True)\nx.sum().backward()", "backward"),
    ("x = torch.ones(2, requires_grad=True)\ntorch.autograd.grad(x.sum(), x)", "torch.autograd.grad"),
    ("model.named_modules()", "model.named_modules"),
    ("for n, m in model.named_modules():\n    if hasattr(m, 'gradient_checkpointing'): print(n)", "named_modules"),
    ("print(sum(p.numel() for p in model.parameters()))", "model.parameters"),
    ("m = model\nm.eval()", "m.eval"),
    ("m = [model][0]\nm.eval()", "m.eval"),
    ("d = {'m': model}\nd['m'].eval()", "eval"),
    ("xs = []\nxs.append(model)\nxs[0].eval()", "eval"),
    ("f = trainer.train_step\nf()", "f"),
    ("(trainer.train_step if lr else print)()", "train_step"),
    ("(lambda: trainer.train_step())()", "trainer.train_step"),
    ("def go(x): x.train_step()\ngo(trainer)", "x.train_step"),
    ("class A:\n    def go(self): trainer.train_step()\nA().go()", "go"),
    ("getattr(trainer, 'train_' + 'step')()", "getattr"),
    ("torch.compile(model)", "torch.compile"),
    ("model = torch.compile(model)", "torch.compile"),
    ("helper(3)", "helper"),
    ("Config()", "Config"),
    ("import user_training\nuser_training.helper(1)", "user_training.helper"),
    ("from user_training import helper as h\nh(1)", "h"),
    ("import sys\nsys.modules['user_training'].helper(1)", "sys.modules"),
    ("import gc\nfor o in gc.get_objects(): o.step()", "o.step"),
    ("model.training = False", "model.training"),
    ("optimizer.param_groups[0]['lr'] = 0.5", "optimizer.param_groups"),
    ("losses[0] = 1", "losses"),
    ("del losses[0]", "losses"),
    ("losses.append(1)", "losses.append"),
    ("losses += [1]", "losses"),
    ("loss += 1", "loss"),
    ("trainer.history[0] += 1", "trainer.history"),
    ("setattr(model, 'x', 1)", "model"),
    ("torch.backends.cudnn.benchmark = True", "torch.backends.cudnn.benchmark"),
    ("torch.manual_seed(0)", "torch.manual_seed"),
    ("exec('trainer.train_step()')", "exec"),
    ("eval('1')", "eval"),
    ("import builtins\nbuiltins.exec('1')", "exec"),
    ("__import__('os')", "__import__"),
    ("import torch.distributed as dist\ndist.barrier()", "torch.distributed.barrier"),
    ("dist.all_reduce(torch.ones(1))", "torch.distributed"),
    ("from torch.distributed import all_reduce\nall_reduce(torch.ones(1))", "torch.distributed"),
    ("F.relu(loss)", "F.relu"),
    ("import copy\ncopy.deepcopy(model)", "copy.deepcopy"),
    ("import threading\nthreading.Thread(target=trainer.train_step).start()", "threading.Thread"),
    ("m = nn.Linear(2, 2)\nm(torch.ones(1, 2))", "module"),
    ("with model.no_sync(): pass", "model.no_sync"),
    ("print(1, file=trainer)", "prints into"),
    ("sorted(losses, key=helper)", "live function"),
    ("list(map(helper, [1]))", "live function"),
    ("match lr:\n    case 1: pass", "not understood"),
    ("x = 3\nfor _ in range(2):\n    print(x)\n    x = trainer\nx.train_step()", "x.train_step"),
    ("x = None\nfor _ in range(3):\n    if x: x.eval()\n    x = model", "x.eval"),
    ("if lr > 1: x = 'a'\nelse: x = model\nx.upper()", "x.upper"),
    ("try: x = 1\nexcept Exception: x = model\nx.eval()", "x.eval"),
    ("def f(): return thing.eval()\nthing = model\nf()", "thing.eval"),
    ("from math import *", "not understood"),
    ("(m := model).eval()", "eval"),
    ("if (n := trainer.train_step()): print(n)", "trainer.train_step"),
    ("settings['model'].eval()", "eval"),
    ("model.layers[0].qkv(batch[0])", "qkv"),
    ("{name: helper(1) for name in [1]}", "helper"),
    ("{helper(x) for x in losses}", "helper"),
    ("print(*[helper(x) for x in losses])", "helper"),
    ("print(f'{helper(1)}')", "helper"),
    ("@helper\ndef f(): pass", "helper"),
    ("@trainer.train_step\nclass A: pass", "class"),
    (
        "def outer():\n    t = trainer\n    def inner(): return t.train_step()\n    return inner\nouter()()",
        "outer()",
    ),
    ("def f(go=trainer.train_step): go()\nf()", "go"),
    ("async def f(): trainer.train_step()", "not understood"),
    ("with trainer as t: pass", "trainer"),
    ("print(next(iter(model.parameters())))", "model.parameters"),
    ("import functools\nfunctools.partial(trainer.train_step)()", "functools.partial"),
    ("import operator\noperator.methodcaller('train_step')(trainer)", "operator.methodcaller"),
    ("trainer.model.config.hidden_size = 3", "trainer.model.config.hidden_size"),
    ("for optimizer.param_groups[0]['lr'] in [0.1]: pass", "optimizer.param_groups"),
    ("[*train_loader]", "train_loader"),
    ("a, *b = train_loader", "takes apart"),
    ("type(trainer).train_step(trainer)", "train_step"),
    ("vars(model)['training'] = False", "training"),
    ("globals()['trainer'].train_step()", "train_step"),
    ("model.__class__.forward = None", "model.__class__"),
    ("x = losses\nx.clear()", "x.clear"),
    ("try: pass\nfinally: trainer.train_step()", "trainer.train_step"),
    ("while (b := next(generator)): print(b)", "generator"),
    ("lr and trainer.train_step()", "trainer.train_step"),
    ("torch.save(model, '/dev/null')", "torch.save"),
]


def placed(code: str, names: dict[str, Any]) -> tuple[str, str]:
    found = place(ast.parse(textwrap.dedent(code)), names)
    return str(found.at), found.why


@pytest.mark.parametrize("code", NOW)
def test_reading_runs_beside_training(code: str, names: dict[str, Any]) -> None:
    assert placed(code, names) == ("now", "it only reads")


@pytest.mark.parametrize(("code", "word"), STEP)
def test_what_could_change_training_runs_between_steps(code: str, word: str, names: dict[str, Any]) -> None:
    try:
        at, why = placed(code, names)
    except SyntaxError:
        pytest.skip("newer syntax than this Python has")
    assert at == "step"
    assert word in why


# The document's blocks, and where each belongs.
DOCUMENT = [
    ("""
import subprocess
result = subprocess.run(
    ['nvidia-smi', '--query-gpu=utilization.gpu,utilization.memory,temperature.gpu',
     '--format=csv,noheader,nounits'],
    capture_output=True, text=True
)
for i, line in enumerate(result.stdout.strip().split('\\n')):
    gpu_util, mem_util, temp = line.split(', ')
    print(f'GPU {i}: Util={gpu_util}%, Mem={mem_util}%, Temp={temp}°C')""", "now"),
    ("""
import torch
import time

# Measure sync overhead
start = time.perf_counter()
torch.cuda.synchronize()
sync_time = time.perf_counter() - start
print(f'CUDA sync time: {sync_time*1000:.2f} ms')""", "now"),
    ("""
import time

# Time one batch load
start = time.perf_counter()
batch = next(iter(train_loader))
load_time = time.perf_counter() - start
print(f'Batch load time: {load_time*1000:.2f} ms')""", "step"),
    ("""
print(f'Num workers: {train_loader.num_workers}')
print(f'Pin memory: {train_loader.pin_memory}')
print(f'Prefetch factor: {getattr(train_loader, "prefetch_factor", 2)}')""", "now"),
    ("""
import torch.distributed as dist
import time

if dist.is_initialized():
    tensor = torch.randn(1000000, device='cuda')

    start = time.perf_counter()
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    allreduce_time = time.perf_counter() - start

    print(f'All-reduce time for 4MB: {allreduce_time*1000:.2f} ms')""", "step"),
    ("""
import torch

# Check attention memory scaling
seq_len = model.config.max_position_embeddings
hidden = model.config.hidden_size
num_heads = model.config.num_attention_heads

# Attention score memory: O(seq_len^2)
attention_memory = seq_len * seq_len * num_heads * 4 / 1024**3  # GB
print(f'Estimated attention memory: {attention_memory:.2f} GB')""", "now"),
    ("""
import torch
# High compute utilization + low memory bandwidth = compute-bound
# Low compute utilization + high memory utilization = memory-bound""", "now"),
    ("""
import torch
if hasattr(torch, 'compile'):
    model = torch.compile(model)
    print('Model compiled with torch.compile')""", "step"),
    ("""
from torch.cuda.amp import autocast
print(f'AMP enabled: {torch.cuda.amp.autocast_mode.is_autocast_enabled()}')""", "now"),
    ("""
# Check if gradient checkpointing is enabled
for name, module in model.named_modules():
    if hasattr(module, 'gradient_checkpointing'):
        print(f'{name}: checkpoint={module.gradient_checkpointing}')""", "step"),
    ("""
import time

# Time training steps
steps = 10
start = time.perf_counter()
for _ in range(steps):
    trainer.train_step()
elapsed = time.perf_counter() - start

samples_per_sec = (steps * batch_size) / elapsed
print(f'Throughput: {samples_per_sec:.1f} samples/sec')""", "step"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "at"), DOCUMENT)
def test_the_documents_snippets(code: str, at: str, names: dict[str, Any]) -> None:
    assert placed(code, names)[0] == at


def test_a_name_that_the_training_code_took_is_no_builtin_any_more(names: dict[str, Any]) -> None:
    assert placed("max(1, 2)", names)[0] == "now"
    assert placed("max(1, 2)", {**names, "max": names["helper"]})[0] == "step"


def test_deciding_runs_nothing(names: dict[str, Any]) -> None:
    # `loud` is a property that raises.
    assert placed("model.config.loud.x", names)[0] == "now"
    assert placed("for x in model.config.loud: print(x)", names)[0] == "step"


def test_deep_nesting_is_placed_and_no_crash(names: dict[str, Any]) -> None:
    tree = ast.parse("x = " + "-" * 200 + "1")
    leaf = tree.body[0]
    for _ in range(5000):  # deeper than any parser goes, so that the walk reaches its limit
        leaf.value = ast.UnaryOp(ast.USub(), leaf.value)  # type: ignore[attr-defined]
    assert place(tree, names) == (At.STEP, "it is nested too deeply to be understood")
