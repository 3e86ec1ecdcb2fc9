// What the loaders of Python programs reach with the same kind of file.
#include "bench/peer_loaders.hpp"
#include "bench/leftovers.hpp"

#include <unistd.h>

#include <array>
#include <filesystem>
#include <sstream>

#include <fmt/format.h>

#include "bench/child.hpp"

namespace sidestep::bench {
namespace {

// Prints "version NAME VERSION", then "SECONDS WHAT" for each run; WHAT is a figure's name in the case
// `checkpoint`. Each loader as its documentation says, and with what that offers for files in the page cache;
// KvikIO only reads bytes.
constexpr const char* script = R"(
import importlib, importlib.metadata, os, sys, threading, time
name, path, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
import torch, safetensors.torch
count, module = torch.cuda.device_count(), importlib.import_module(name)
installed = {found.metadata["Name"]: found.version for found in importlib.metadata.distributions()}
print("version", name, next(installed[each] for each in (name, name + "-cu13", name + "-cu12") if each in installed))
if not os.path.exists(path):
    part = size // 32
    safetensors.torch.save_file({f"layers.{i}.weight": torch.full((part,), i, dtype=torch.uint8) for i in range(32)}, path)
def by_safetensors(gpu):
    return safetensors.torch.load_file(path, device=f"cuda:{gpu}")
def by_instanttensor(gpu):
    with module.safe_open(path, framework="pt", device=gpu, backend=module.BackendPolicy.BUFFERED) as file:
        return dict(file.tensors())
def by_fastsafetensors(gpu):
    with module.fastsafe_open(path, device=f"cuda:{gpu}", nogds=True) as file:
        return {key: file.get_tensor(key) for key in file.keys()}
def by_kvikio(gpu):
    target = torch.empty(os.path.getsize(path), dtype=torch.uint8, device=f"cuda:{gpu}")
    importlib.import_module("kvikio.defaults").set({"num_threads": 16, "compat_mode": module.CompatMode.ON})
    with module.CuFile(path, "r") as file: file.pread(target).get()
    return target
load = globals()["by_" + name]
def finished(gpu):
    tensors = load(gpu)
    torch.cuda.synchronize(gpu)
def timed(work, what):
    for run in range(4):
        start = time.perf_counter()
        work()
        if run > 0: print(time.perf_counter() - start, what, flush=True)
def everywhere():
    threads = [threading.Thread(target=finished, args=(i,)) for i in range(count)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
timed(lambda: finished(0), "file -> gpu:0, warm")
if count > 1 and name != "instanttensor": timed(everywhere, f"file -> {count} GPUs, the whole on each, warm")
)";

constexpr std::array loaders = {"safetensors", "instanttensor", "fastsafetensors", "kvikio"};
constexpr std::chrono::minutes loader_limit{5};

}  // namespace

Result<std::vector<PeerFigure>> parse_loader(const std::string& text, Bytes bytes) {
    std::vector<PeerFigure> figures;
    std::string tool;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        std::string first;
        std::string rest;
        words >> first >> std::ws;
        std::getline(words, rest);
        if (first == "version") {
            tool = rest;
            continue;
        }
        char* end = nullptr;
        const double seconds = std::strtod(first.c_str(), &end);
        if (tool.empty() || first.empty() || *end != '\0' || !(seconds > 0) || rest.empty())
            return Error{ErrorCode::invalid_argument,
                         fmt::format("'{}' is not a time and figure", line),
                         "loader",
                         {}};
        PeerFigure figure;
        figure.tool = tool;
        figure.key = "checkpoint";
        figure.what = rest;
        figure.from = "file";
        if (rest == "file -> gpu:0, warm") figure.to = "gpu:0";
        figure.bytes = bytes;
        figure.unit = "GB/s";
        figure.value = static_cast<double>(bytes) / seconds / 1e9;
        figures.push_back(std::move(figure));
    }
    if (figures.empty()) return Error{ErrorCode::invalid_argument, "it printed no figure", "loader", {}};
    return figures;
}

std::vector<PeerFigure> run_loaders(const Options& options, Bytes bytes, std::vector<std::string>& notes) {
    std::vector<PeerFigure> all;
    const std::string python = find_program("python3");
    const auto folder = scratch_folder(options);
    if (python.empty() || !folder) {
        notes.push_back(python.empty() ? "python3 is not on PATH" : folder.error().message);
        return all;
    }
    const ScratchFile file(
        (*folder / fmt::format("sidestep-bench-loader-{}.safetensors", getpid())).string());
    for (const char* name : loaders) {
        auto ended =
            run_program(python, {"-c", script, name, file.path(), std::to_string(bytes)}, loader_limit);
        if (!ended) {
            notes.push_back(fmt::format("{}: {}", name, ended.error().to_string()));
            continue;
        }
        if (ended->code != 0)
            notes.push_back(fmt::format("{} ended with {}: {}", name, ended->code, last_line(ended->errors)));
        auto figures = parse_loader(ended->output, bytes);
        if (figures)
            all.insert(all.end(), figures->begin(), figures->end());
        else if (ended->code == 0)
            notes.push_back(fmt::format("{}: {}", name, figures.error().to_string()));
    }
    return all;
}

}  // namespace sidestep::bench
