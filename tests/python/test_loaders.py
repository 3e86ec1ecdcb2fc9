"""Models of transformers and of vLLM, from tensors that Sidestep loaded. vLLM itself is not here: stand-ins for the two names that
its loaders need."""

import importlib
import os
import sys
import types
import unittest
from unittest import mock

import sidestep
from package import MACHINE, PackageTest


class ModelTest(PackageTest):
    """A small model of transformers, saved."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        try:
            cls.torch, cls.transformers = (importlib.import_module(name) for name in ("torch", "transformers"))
        except ImportError as error:
            raise unittest.SkipTest(f"{error}") from error

    def setUp(self):
        super().setUp()
        config = self.transformers.LlamaConfig(vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=3,
                                               num_attention_heads=4, num_key_value_heads=2)
        self.torch.manual_seed(1)
        self.model = self.transformers.LlamaForCausalLM(config).eval()
        self.model.save_pretrained(self.folder, max_shard_size="40KB")  # several files and an index

    def assert_same(self, model):
        mine, theirs = model.state_dict(), self.model.state_dict()
        self.assertEqual(mine.keys(), theirs.keys())
        for name, tensor in theirs.items():
            self.assertTrue(self.torch.equal(mine[name], tensor), name)
        with self.torch.no_grad():
            tokens = self.torch.arange(12).reshape(2, 6)
            self.assertTrue(self.torch.equal(model(tokens).logits, self.model(tokens).logits))


class TransformersTest(ModelTest):
    def test_a_model(self):
        tensors = self.context.load(self.folder, "gpu:0", framework="torch")
        config = self.transformers.AutoConfig.from_pretrained(self.folder)
        model = self.transformers.AutoModelForCausalLM.from_pretrained(None, config=config, state_dict=tensors)
        self.assert_same(model.eval())


class VllmTest(ModelTest):
    """What vLLM 0.11 and later calls, as far as a loader sees it."""

    def setUp(self):
        super().setUp()
        self.registered = {}

        class BaseModelLoader:
            def __init__(self, load_config):
                self.load_config = load_config

        def register_model_loader(name):
            return lambda loader: self.registered.setdefault(name, loader)

        loaders = types.ModuleType("vllm.model_executor.model_loader")
        loaders.register_model_loader = register_model_loader
        base = types.ModuleType("vllm.model_executor.model_loader.base_loader")
        base.BaseModelLoader = BaseModelLoader
        modules = {name: types.ModuleType(name) for name in ("vllm", "vllm.model_executor")}
        modules |= {module.__name__: module for module in (loaders, base)}
        for patch in (mock.patch.dict(sys.modules, modules), mock.patch.dict(os.environ, {"SIDESTEP_MACHINE": MACHINE})):
            patch.start()
            self.addCleanup(patch.stop)
        importlib.import_module("sidestep.vllm").register()
        self.loader = self.registered["sidestep"](None)
        self.fresh = self.transformers.LlamaForCausalLM(self.model.config).eval()
        self.config = types.SimpleNamespace(model=str(self.folder), quantization=None)

        def load_weights(pairs):
            parameters, loaded = dict(self.fresh.named_parameters()), set()
            for name, tensor in pairs:
                parameters[name].data.copy_(tensor)
                loaded.add(name)
            return loaded

        self.fresh.load_weights = load_weights

    def test_a_model(self):
        self.loader.download_model(self.config)
        self.loader.load_weights(self.fresh, self.config)
        self.assert_same(self.fresh)

    def test_groups_are_small(self):
        vllm = importlib.import_module("sidestep.vllm")
        with mock.patch.object(vllm, "GROUP_BYTES", 8192), sidestep.open(self.folder) as checkpoint:
            groups = list(vllm._groups(checkpoint))
            self.assertEqual(sum(groups, []), checkpoint.offset_keys())
            self.assertGreater(len(groups), 5)
            for group in groups:
                size = sum(checkpoint.get_info(name).nbytes for name in group)
                self.assertTrue(size <= 8192 or len(group) == 1, group)
            self.loader.load_weights(self.fresh, self.config)
        self.assert_same(self.fresh)

    def test_names_are_no_patterns(self):
        values = {name: self.torch.full((3,), float(i)) for i, name in enumerate(["a*", "ab", "a[b]?", "!a\\"])}
        sidestep.save(values, self.folder / "odd.safetensors")
        with mock.patch.object(importlib.import_module("sidestep.vllm"), "GROUP_BYTES", 12):
            found = list(importlib.import_module("sidestep.vllm").weights(self.folder / "odd.safetensors", "cpu"))
        self.assertEqual([(name, tensor.tolist()) for name, tensor in found],
                         [(name, values[name].tolist()) for name in sidestep.open(self.folder / "odd.safetensors").offset_keys()])

    def test_what_is_refused(self):
        self.config.model = "somebody/a-name-of-a-hub"
        self.fails("not_found", self.loader.load_weights, self.fresh, self.config)
        self.config.model = str(self.folder)
        self.fresh.register_parameter("more", self.torch.nn.Parameter(self.torch.zeros(1)))
        self.assertIn("more", str(self.fails("not_found", self.loader.load_weights, self.fresh, self.config)))
        self.config.quantization = "fp8"
        self.loader.load_weights(self.fresh, self.config)
        self.fresh.secondary_weights = ("x",)
        self.fails("unsupported", self.loader.load_weights, self.fresh, self.config)


if __name__ == "__main__":
    unittest.main()
