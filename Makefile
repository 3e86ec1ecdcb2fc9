# The short way to everything; CMakePresets.json holds the settings.
JOBS ?= $(shell nproc)
# Half of what a test does is to wait for other threads and processes.
TEST_JOBS ?= $(shell echo $$((2 * $$(nproc))))
# Under a sanitizer it computes for longer.
SANITIZED_JOBS ?= $(shell echo $$(($$(nproc) + 1)))
PREFIX ?= /usr/local
PRESET ?= release
# The GPUs that kernels are compiled for: auto (those of this machine; all where it has none), all, none, or a list as 80;90.
GPU_ARCHITECTURES ?= auto
export SIDESTEP_GPU_ARCHITECTURES = $(GPU_ARCHITECTURES)

.PHONY: demo build setup test test-tools test-vm fuzz test-sanitizers bundle wheel deb install docs format clean

# Builds the command and moves bytes on an emulated DGX H100. Without a GPU it needs no kernels, which take half of the time.
demo: export SIDESTEP_GPU_ARCHITECTURES = $(if $(shell nvidia-smi -L 2>/dev/null),$(GPU_ARCHITECTURES),none)
demo: setup
	@tools/build.sh $(PRESET) $(JOBS) sidestep example_checkpoint
	@tools/demo.sh build/$(PRESET)/cli/sidestep build/$(PRESET)/examples/example_checkpoint

build: setup
	@tools/build.sh $(PRESET) $(JOBS) all

test: build test-tools
	@ctest --preset $(PRESET) -LE vm -j $(TEST_JOBS)

# What tests use beside the programs. Tests of what cannot be had are skipped, with the reason.
test-tools: setup
	-@tools/setup.sh tests
	-@tools/setup.sh packages
	-@tools/setup.sh browser
	-@tools/setup.sh docs
	-@tools/setup.sh s3

# The tests in virtual machines with real kernels; they skip, with the reason, where what they need cannot be had.
test-vm: build
	-@tests/vm/setup.py
	@ctest --preset $(PRESET) -L vm

# With clang's fuzzer: half a minute for each reader of topology files, a minute for each parser of checkpoints.
fuzz: setup
	@tools/setup.sh fuzz
	@tests/fuzz/run.sh 30 nccl_xml topology_json
	@tests/fuzz/run.sh 60 safetensors shard_index gguf wire

# The unit and contract tests under the address, undefined behaviour and thread sanitizers.
test-sanitizers: setup
	@tools/build.sh asan $(JOBS) sanitized_tests
	@ctest --preset asan -j $(SANITIZED_JOBS)
	@tools/build.sh tsan $(JOBS) sanitized_tests
	@ctest --preset tsan -j $(SANITIZED_JOBS)

# One archive with the command and the tests of GPUs and backends, to carry to a machine with GPUs: of any kind, unless GPU_ARCHITECTURES is given.
bundle: export SIDESTEP_GPU_ARCHITECTURES = $(GPU_ARCHITECTURES:auto=all)
bundle: setup
	@tools/build.sh release $(JOBS) bundle

# build/sidestep-VERSION-cpXY-cpXY-manylinux_2_ZZ_MACHINE.whl for each interpreter of PYTHON="python3 /opt/python3.12/bin/python";
# none named: python3. docs/python.md
wheel: export SIDESTEP_GPU_ARCHITECTURES = $(GPU_ARCHITECTURES:auto=all)
wheel: setup
	@tools/setup.sh packages
	@tools/wheel.sh build $(PYTHON)

# build/*.deb: the command, the library, what programs are built with, and the drop-ins for NCCL and cuFile.
deb: export SIDESTEP_GPU_ARCHITECTURES = $(GPU_ARCHITECTURES:auto=all)
deb: setup
	@tools/setup.sh packages
	@tools/build.sh $(PRESET) $(JOBS) sidestep sidestep_shared sidestep_nccl sidestep_cufile
	@cpack --config build/$(PRESET)/CPackConfig.cmake -G DEB -B build/deb
	@mv build/deb/*.deb build/

# make install PREFIX=/opt/sidestep: the command, the libraries, and what programs are built with; no tests.
install: setup
	@tools/build.sh $(PRESET) $(JOBS) sidestep sidestep_shared sidestep_nccl sidestep_cufile
	@cmake --install build/$(PRESET) --prefix $(PREFIX)

# The site, build/site/index.html; a link that leads nowhere fails. It asks the command for the help of every verb, which
# needs no kernels: a build folder keeps those that it has, and a new one gets none.
docs: KERNELS = $(or $(shell sed -n 's/^SIDESTEP_GPU_ARCHITECTURES:.*=//p' build/$(PRESET)/CMakeCache.txt 2>/dev/null),none)
docs: setup
	@tools/setup.sh docs
	@SIDESTEP_GPU_ARCHITECTURES='$(KERNELS)' tools/build.sh $(PRESET) $(JOBS) sidestep
	@NO_MKDOCS_2_WARNING=1 SIDESTEP_BINARY=build/$(PRESET)/cli/sidestep build/docs-venv/bin/python3 -m mkdocs build

format:
	@git ls-files -co --exclude-standard '*.cpp' '*.hpp' '*.h' '*.c' '*.cu' '*.cuh' | xargs clang-format -i

setup:
	@tools/setup.sh

clean:
	rm -rf build
