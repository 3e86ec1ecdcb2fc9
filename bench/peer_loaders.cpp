// What the usual loader of Python programs reaches with the same kind of file: safetensors, with PyTorch.
#include <unistd.h>

#include <filesystem>
#include <sstream>
#include <system_error>

#include <fmt/format.h>

#include "bench/child.hpp"
#include "bench/peer_loaders.hpp"

namespace sidestep::bench {
namespace {

// Prints "SECONDS WHAT" for each run; WHAT is a figure's name in the case `checkpoint`.
constexpr const char* script = R"(
import os, sys, threading, time
import torch, safetensors, safetensors.torch
path, size, count = sys.argv[1], int(sys.argv[2]), torch.cuda.device_count()
part = size // 32
safetensors.torch.save_file({f"layers.{i}.weight": torch.full((part,), i, dtype=torch.uint8) for i in range(32)}, path)
print("version", safetensors.__version__, torch.__version__)
def load(device):
    tensors = safetensors.torch.load_file(path, device=device)
    torch.cuda.synchronize(device)
def timed(work, what):
    for run in range(4):
        start = time.perf_counter()
        work()
        if run > 0: print(time.perf_counter() - start, what)
def everywhere():
    threads = [threading.Thread(target=load, args=(f"cuda:{i}",)) for i in range(count)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
timed(lambda: load("cuda:0"), "file -> gpu:0, warm")
if count > 1: timed(everywhere, f"file -> {count} GPUs, the whole on each, warm")
)";

constexpr std::chrono::minutes limit{5};

}  // namespace

Result<std::vector<PeerFigure>> parse_loader(const std::string& text, Bytes bytes) {
    std::vector<PeerFigure> figures;
    std::string tool = "safetensors";
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        std::string first;
        std::string rest;
        words >> first >> std::ws;
        std::getline(words, rest);
        if (first == "version") {
            tool = fmt::format("safetensors.torch.load_file {}", rest.substr(0, rest.find(' ')));
            continue;
        }
        char* end = nullptr;
        const double seconds = std::strtod(first.c_str(), &end);
        if (first.empty() || *end != '\0' || !(seconds > 0) || rest.empty())
            return Error{ErrorCode::invalid_argument, fmt::format("'{}' is no time and figure", line), "safetensors", {}};
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
    if (figures.empty()) return Error{ErrorCode::invalid_argument, "it printed no figure", "safetensors", {}};
    return figures;
}

Result<std::vector<PeerFigure>> run_loader(const Options& options, Bytes bytes) {
    const std::string python = find_program("python3");
    if (python.empty()) return Error{ErrorCode::not_found, "python3 is not on PATH", {}, {}};
    std::error_code error;
    std::filesystem::path folder = options.folder;
    if (options.folder.empty()) folder = std::filesystem::temp_directory_path(error);
    if (error) return Error{ErrorCode::not_found, "there is no folder for temporary files", {}, "use --folder"};
    const std::string file = (folder / fmt::format("sidestep-bench-loader-{}.safetensors", getpid())).string();
    auto ended = run_program(python, {"-c", script, file, std::to_string(bytes)}, limit);
    unlink(file.c_str());
    if (!ended) return ended.error();
    if (ended->code != 0) {
        const std::size_t end = ended->errors.find_last_not_of('\n');
        const std::size_t begin = ended->errors.find_last_of('\n', end);
        return Error{ErrorCode::unsupported,
                     fmt::format("python3 ended with {}: {}", ended->code,
                                 ended->errors.substr(begin == std::string::npos ? 0 : begin + 1, end - begin)),
                     {},
                     {}};
    }
    return parse_loader(ended->output, bytes);
}

}  // namespace sidestep::bench
