#include "checkpoint/save_plan.hpp"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "base/try.hpp"
#include "checkpoint/manifest.hpp"
#include "checkpoint/names.hpp"
#include "checkpoint/placement.hpp"
#include "checkpoint/safetensors.hpp"
#include "checkpoint/shard_index.hpp"
#include "transfer/ends.hpp"

namespace sidestep::checkpoint {
namespace {

Error refused(const TensorToSave& tensor, std::string why, std::string hint = {}) {
    return {ErrorCode::invalid_argument,
            fmt::format("tensor {} cannot be saved: {}", shown(tensor.name), why), "save", std::move(hint)};
}

// The sizes of all tensors in bytes.
Result<std::vector<Bytes>> check_tensors(const std::vector<TensorToSave>& tensors) {
    const NameTable::NameOf name = [&](std::size_t i) { return std::string_view(tensors[i].name); };
    if (const auto twice = NameTable(tensors.size(), name).twice(name))
        return refused(tensors[twice->second], "its name appears twice");
    std::vector<Bytes> sizes;
    sizes.reserve(tensors.size());
    for (const TensorToSave& tensor : tensors) {
        const auto bytes = tensor_bytes(tensor.dtype, tensor.shape);
        if (!bytes) return refused(tensor, bytes.error().message);
        const Place& place = tensor.data.place();
        if (!place.is_gpu() && !place.is_host() && !transfer::is_opened(place))
            return refused(tensor, fmt::format("its bytes are at {}", place.to_string()),
                           "tensors are saved from GPUs, host memory, ranges of files, and published memory");
        if (tensor.data.size() != *bytes)
            return refused(tensor, fmt::format("{} of shape [{}] has {} bytes, and its memory {}",
                                               to_string(tensor.dtype), fmt::join(tensor.shape, ", "), *bytes,
                                               tensor.data.size()));
        if (const auto within = transfer::check_buffer(tensor.data, false); !within)
            return refused(tensor, within.error().message);
        sizes.push_back(*bytes);
    }
    return sizes;
}

// Positions of the tensors of each file, in the order given: a file is full when the next would not fit.
std::vector<std::vector<std::size_t>> divide(const std::vector<Bytes>& sizes, Bytes shard_bytes) {
    std::vector<std::vector<std::size_t>> files(1);
    Bytes held = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        const bool full = shard_bytes > 0 && !files.back().empty() &&
                          (held >= shard_bytes || sizes[i] > shard_bytes - held);
        if (full) {
            files.emplace_back();
            held = 0;
        }
        files.back().push_back(i);
        held += sizes[i];
    }
    return files;
}

struct Held {
    std::vector<std::string> headers;  // by file
    std::unique_ptr<SavePlacement> placement;
};

// The files and published memory that tensors are read from: each is one memory, however many tensors it has.
using Sources = std::map<Place, std::uint32_t>;

// Where a tensor's bytes begin: the memory's number and the offset in it.
std::pair<std::uint32_t, Bytes> memory_of(const Buffer& data, std::vector<Buffer>& memories,
                                          Sources& sources) {
    const auto next = static_cast<std::uint32_t>(memories.size());
    if (!transfer::is_opened(data.place())) {
        memories.push_back(data);
        return {next, 0};
    }
    const auto [known, added] = sources.try_emplace(data.place(), next);
    const auto up_to = [&place = data.place()](Bytes end) {
        return (place.is_file() ? Buffer::file(place.path(), 0, end) : Buffer::shared(place.path(), 0, end))
            .on(place.node());
    };
    if (added) memories.push_back(up_to(0));
    Buffer& source = memories[known->second];
    source = up_to(std::max(source.size(), data.offset() + data.size()));
    return {known->second, data.offset()};
}

// Adds a file with these tensors to the plan.
Result<void> add_file(const std::vector<TensorToSave>& tensors, const std::vector<std::size_t>& numbers,
                      std::string path, const SaveOptions& options, SavePlan& plan, Held& held,
                      Sources& sources, std::vector<std::vector<SavePlacement::Piece>>& pieces) {
    std::vector<TensorToWrite> to_write;
    to_write.reserve(numbers.size());
    for (const std::size_t number : numbers)
        to_write.push_back({tensors[number].name, tensors[number].dtype, tensors[number].shape});
    SIDESTEP_TRY(WrittenHeader header, write_header(to_write, options.metadata));
    auto& memories = plan.spread.memories;
    std::vector<SavePlacement::Piece> file;
    file.push_back({0, header.bytes.size(), static_cast<std::uint32_t>(memories.size()), "the header"});
    memories.emplace_back();  // set when the headers lie still
    held.headers.push_back(std::move(header.bytes));
    for (const std::size_t in_file : header.order) {
        if (header.sizes[in_file] == 0) continue;
        const TensorToSave& tensor = tensors[numbers[in_file]];
        const auto [memory, offset] = memory_of(tensor.data, memories, sources);
        file.push_back({header.offsets[in_file], header.sizes[in_file], memory,
                        fmt::format("tensor {}", tensor.name), offset});
    }
    pieces.push_back(std::move(file));
    plan.spread.files.push_back({std::move(path), 0, {{0, header.file_size}}});
    plan.spread.bytes += header.file_size;
    plan.file_sizes.push_back(header.file_size);
    return {};
}

void hold_headers(SavePlan& plan, std::shared_ptr<Held> held,
                  std::vector<std::vector<SavePlacement::Piece>> pieces) {
    for (std::size_t file = 0; file < pieces.size(); ++file)
        plan.spread.memories[pieces[file].front().memory] =
            Buffer::host(static_cast<const void*>(held->headers[file].data()), held->headers[file].size());
    held->placement = std::make_unique<SavePlacement>(std::move(pieces));
    const transfer::Placement* const placement = held->placement.get();
    plan.spread.placement = std::shared_ptr<const transfer::Placement>(std::move(held), placement);
}

std::string without_slashes(std::string path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return path;
}

}  // namespace

Result<SavePlan> plan_save(const std::vector<TensorToSave>& tensors, const std::string& path,
                           const SaveOptions& options) {
    if (path.empty()) return Error{ErrorCode::invalid_argument, "the path to save to is empty", "save", {}};
    SIDESTEP_TRY(const std::vector<Bytes> sizes, check_tensors(tensors));
    const auto files = divide(sizes, options.shard_bytes);
    const bool sharded = options.shard_bytes > 0;
    const std::string target = without_slashes(path);
    SavePlan plan;
    plan.spread.direction = transfer::SpreadDirection::to_file;
    const auto held = std::make_shared<Held>();
    std::vector<std::vector<SavePlacement::Piece>> pieces;
    Sources sources;
    std::vector<std::pair<std::string, std::string>> shard_of;
    for (std::size_t file = 0; file < files.size(); ++file) {
        const std::string name = shard_name(file, files.size());
        SIDESTEP_CHECK(add_file(tensors, files[file], sharded ? fmt::format("{}/{}", target, name) : path,
                                options, plan, *held, sources, pieces));
        if (!sharded) continue;
        for (const std::size_t number : files[file]) shard_of.emplace_back(tensors[number].name, name);
    }
    hold_headers(plan, held, std::move(pieces));
    if (sharded) {
        Bytes total = 0;
        for (const Bytes size : sizes) total += size;
        plan.index_path = fmt::format("{}/{}", target, index_name);
        plan.index_text = write_shard_index(std::move(shard_of), total);
    }
    if (options.manifest) {
        for (const transfer::SpreadFile& file : plan.spread.files) SIDESTEP_CHECK(check_listable(file.path));
        plan.manifest_path = fmt::format("{}.manifest.json", target);
    }
    return plan;
}

}  // namespace sidestep::checkpoint
