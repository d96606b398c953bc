"""Keeps a draft head out of quantisation in servers that forget to.

Some versions of vLLM do not hand a checkpoint's exclusion list to the draft model, build packed layers for its BF16
weights, and stop at a shape assertion. Python imports a module of this name by itself when it starts, if the folder is
on PYTHONPATH: so this file has to be mounted *and* its folder named there. Either without the other does nothing.

What it does: when vLLM's modelopt module is imported, every class there that answers `is_layer_excluded(prefix)`
says yes for prefixes under `mtp.`, and is asked as before for all others. Without vLLM it does nothing at all.
"""

import functools
import importlib.abc
import importlib.util
import sys

MODULE = "vllm.model_executor.layers.quantization.modelopt"
DRAFT = "mtp"


def _is_draft(prefix):
    return isinstance(prefix, str) and DRAFT in prefix.split(".")[:2]


def _exclude_draft(cls):
    asked = cls.__dict__["is_layer_excluded"]

    @functools.wraps(asked)
    def is_layer_excluded(self, prefix, *rest, **named):
        return _is_draft(prefix) or asked(self, prefix, *rest, **named)

    cls.is_layer_excluded = is_layer_excluded


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds MODULE once, by the finders behind it, and patches it when it has been executed."""

    def find_spec(self, name, path=None, target=None):
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            for value in list(vars(module).values()):
                if isinstance(value, type) and "is_layer_excluded" in value.__dict__:
                    _exclude_draft(value)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _AfterImport())
